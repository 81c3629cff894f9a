"""Dense against pruned on an image, compared with what transformers computes by itself."""

import importlib.util
import json

import numpy as np
import pytest
import torch
from PIL import Image
from support.tiny_models import LABELS, prune, save_family
from transformers import AutoImageProcessor, AutoModelForImageClassification

from hf_cyclical import PruningError
from hf_cyclical.show import Predictor, predictions

IMAGE = Image.fromarray(np.random.default_rng(3).integers(0, 255, (50, 40, 3), dtype=np.uint8))


@pytest.fixture
def folders(tmp_path):
    model = save_family("ResNet", tmp_path / "dense")
    save_family("ResNet", tmp_path / "pruned")
    prune(model, 0.9)
    model.save_pretrained(tmp_path / "pruned")
    return tmp_path / "dense", tmp_path / "pruned"


def by_transformers(folder):
    model, processor = (
        AutoModelForImageClassification.from_pretrained(folder),
        AutoImageProcessor.from_pretrained(folder),
    )
    with torch.no_grad():
        scores = model.eval()(**processor(IMAGE, return_tensors="pt")).logits.softmax(-1)[0]
    return dict(zip(LABELS, scores.tolist(), strict=True))


def test_both_models_say_what_they_say_in_transformers(folders):
    dense, pruned = folders
    found = Predictor(pruned, str(dense)).predict(IMAGE)
    assert found.scores["dense"] == pytest.approx(by_transformers(dense), abs=1e-4)
    assert found.scores["pruned"] == pytest.approx(by_transformers(pruned), abs=1e-4)
    assert list(found.scores["dense"].values()) == sorted(found.scores["dense"].values(), reverse=True)
    assert list(found.milliseconds) == [("dense", "torch"), ("pruned", "torch"), ("pruned", "hf_cyclical")]
    assert all(value > 0 for value in found.milliseconds.values())


def test_without_a_dense_model_or_the_engine_there_is_still_the_pruned_one(folders, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(predictions, "find_spec", lambda name: None if name == "llvmlite" else found(name))
    said = Predictor(folders[1]).predict(IMAGE.convert("RGBA"))
    assert list(said.scores) == ["pruned"]
    assert list(said.milliseconds) == [("pruned", "torch")]
    assert any('pip install "hf_cyclical[fast]"' in line for line in said.notes)


def test_a_model_that_is_too_dense_for_the_engine_runs_in_torch_and_it_is_said(folders):
    said = Predictor(folders[0]).predict(IMAGE)
    assert said.scores["pruned"] == pytest.approx(by_transformers(folders[0]), abs=1e-4)
    assert list(said.milliseconds) == [("pruned", "torch")]
    assert any(line.startswith("The engine does not take this model: ") for line in said.notes)


def test_classes_of_the_same_name_stay_apart_and_names_are_printable(folders):
    file = folders[1] / "config.json"
    names = {"0": "crane", "1": "crane", "2": "a\x1b[2J"}
    file.write_text(json.dumps(json.loads(file.read_text()) | {"id2label": names, "label2id": None}))
    said = Predictor(folders[1]).predict(IMAGE)
    assert set(said.scores["pruned"]) == {"crane (0)", "crane (1)", "a?[2J"}


def test_a_hostile_model_is_refused_as_load_refuses_it(folders):
    file = folders[1] / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"embedding_size": 1 << 30}))
    with pytest.raises(PruningError, match="more than any model"):
        Predictor(folders[1])
