"""`trainer.save_pruned`: a folder that describes itself, without a push."""

import json

import pytest
import torch
from support.card_reading import assert_whole, front
from support.pushing import PUSHED, make_trainer
from support.tiny import CYCLICAL, build_trainer

import hf_cyclical
from hf_cyclical import PruningError, load_report, verify
from hf_cyclical.hub import build_folder


def test_leaves_model_report_figure_record_and_card(tmp_path):
    trainer = make_trainer(tmp_path / "out")
    with pytest.raises(PruningError, match=r"there is no finished run to save: call train\(\) first"):
        trainer.save_pruned(tmp_path / "saved")
    trainer.train()
    trainer.about = {"model": "test_resnet", "dataset": "me/pets"}
    trainer.save_pruned(tmp_path / "saved")
    assert sorted(path.name for path in (tmp_path / "saved").iterdir()) == PUSHED
    assert verify(tmp_path / "saved").ok
    card = (tmp_path / "saved" / "README.md").read_text()
    assert_whole(card)
    assert front(card)["datasets"] == ["me/pets"]
    assert 'from_pretrained(".")' in card
    report = load_report(tmp_path / "saved")
    assert (report.about["dataset"], report.about["seed"]) == ("me/pets", 42)
    assert (report.layers, report.cycles) == (trainer.report.layers, trainer.report.cycles)
    loaded = dict(hf_cyclical.load(tmp_path / "saved").named_parameters())
    assert all(torch.equal(p, loaded[n.removeprefix("timm_model.")]) for n, p in trainer.model.named_parameters())

    # What is pushed from it later is the same model, with its address on the card.
    pushed = build_folder(tmp_path / "saved", tmp_path / "pushed", repo_id="me/model")["main"]
    records = [json.loads((folder / "sparsity.json").read_text()) for folder in (tmp_path / "saved", pushed)]
    assert records[0]["mask_sha256"] == records[1]["mask_sha256"]
    assert 'from_pretrained("me/model")' in (pushed / "README.md").read_text()


def test_of_a_model_without_a_config_leaves_what_there_is(tmp_path, caplog):
    trainer = build_trainer(tmp_path / "out", CYCLICAL, max_steps=12)
    trainer.train()
    trainer.save_pruned(tmp_path / "saved")
    assert sorted(path.name for path in (tmp_path / "saved").iterdir()) == [
        "model.safetensors", "pruning_report.json", "pruning_run.png",
    ]  # fmt: skip
    assert "has no config, and so no record and no card" in caplog.text
