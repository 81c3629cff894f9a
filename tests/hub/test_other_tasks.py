"""Segmentation and detection: pruned with the user's own data, described, verified, packed, pushed and loaded."""

import re

import pytest
import torch
from support.card_reading import assert_whole, front
from support.other_tasks import SIDE, finish
from transformers import AutoModelForObjectDetection, AutoModelForSemanticSegmentation

import hf_cyclical
from hf_cyclical import PruningError, pack_folder, unpack_folder, verify
from hf_cyclical.models import load_image_model

TASKS = {
    "segmentation": (AutoModelForSemanticSegmentation, "image-segmentation", "A semantic segmentation model"),
    "detection": (AutoModelForObjectDetection, "object-detection", "An object detector"),
}


@pytest.fixture(scope="module", params=list(TASKS))
def finished(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param) / "run"
    return request.param, finish(folder, request.param), folder


def answers(model):
    pixels = torch.randn(2, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(7))
    with torch.no_grad():
        return model.eval()(pixel_values=pixels).logits


def same(a, b):
    return torch.allclose(answers(a), answers(b), atol=1e-6)


def test_the_saved_folder_describes_itself_and_loads_in_one_call(finished):
    task, trainer, folder = finished
    auto_class, tag, words = TASKS[task]
    assert trainer.report.sparsity == pytest.approx(0.8, abs=0.01)
    found = verify(folder)
    assert found.ok, found.table()
    card = (folder / "README.md").read_text()
    assert_whole(card)
    assert front(card)["pipeline_tag"] == tag
    assert f"\n{words}, trained on `user/scenes`," in card
    assert f'model = {auto_class.__name__}.from_pretrained(".")' in card
    assert not re.search("image.classif", card, re.IGNORECASE)
    assert same(auto_class.from_pretrained(folder), trainer.model)
    loaded = hf_cyclical.load(folder)
    assert type(loaded) is type(trainer.model)
    assert same(loaded, trainer.model)
    names = {path.name for path in folder.iterdir()}
    assert {"pruning_report.json", "pruning_run.png", "sparsity.json", "model.safetensors"} <= names


def test_packed_and_unpacked_it_is_the_same(finished, tmp_path):
    task, trainer, folder = finished
    pack_folder(folder, tmp_path / "packed")
    assert verify(tmp_path / "packed").ok
    for loaded in (hf_cyclical.load(tmp_path / "packed"), TASKS[task][0].from_pretrained(tmp_path / "packed")):
        assert same(loaded, trainer.model)
    unpack_folder(tmp_path / "packed", tmp_path / "back")
    assert (tmp_path / "back" / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
    assert verify(tmp_path / "back").ok


def test_the_command_says_that_it_is_for_classifiers(finished):
    task, _, folder = finished
    with pytest.raises(PruningError) as error:
        load_image_model(str(folder), ["a", "b"])
    assert f"is for {TASKS[task][1]}, and this is for image classifiers: prune it in Python" in str(error.value)
    assert "\n" not in str(error.value)


def push_and_load(folder, task):
    import sys

    sys.path.insert(0, "tests")
    from support.other_tasks import make_task_trainer

    trainer = make_task_trainer(folder, task)
    trainer.train()
    trainer.push_to_hub("user/scenes", packed=True)
    import hf_cyclical
    from hf_cyclical import verify

    loaded = [hf_cyclical.load("user/scenes", revision=branch) for branch in ("main", "packed")]
    weights = trainer.model.state_dict()
    equal = [all(weights[k].equal(v) for k, v in model.state_dict().items()) for model in loaded]
    return [equal, verify("user/scenes").ok, verify("user/scenes", "packed").ok]


@pytest.mark.parametrize("task", list(TASKS))
def test_pushed_it_is_verified_and_loaded_from_both_branches(hub, clients, task, tmp_path):
    assert clients.ask(push_and_load, tmp_path / "run", task) == [[True, True], True, True]
    _, tag, words = TASKS[task]
    card = hub.files("user/scenes")["README.md"]
    card = card.decode() if isinstance(card, bytes) else card
    assert front(card)["pipeline_tag"] == tag
    assert f"\n{words}" in card
    assert f'{TASKS[task][0].__name__}.from_pretrained("user/scenes")' in card
