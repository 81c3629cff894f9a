"""What version 0.1.0 wrote is still read: a checkpoint, a report, a sparsity record, packed weights."""

import hashlib
import json
import shutil
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from support.tiny import CYCLICAL, zeros
from transformers import TrainerCallback

from hf_cyclical import PruningConfig, load, load_report, unpack_folder, verify

FILES = Path(__file__).parent / "files"
# Of the weights before they were packed.
DENSE_SHA256 = "add01925628feadde2305294d7fcab2118536837191f99cd79836539da5ead64"

# How runs went before there were these settings.
BEFORE = {"mask_momentum": False, "row_floor": 0}


def holds(value, older):
    """Whether a value has all that an older one has; newer versions add fields."""
    if isinstance(older, dict):
        return older.keys() <= value.keys() and all(holds(value[key], older[key]) for key in older)
    if isinstance(older, list):
        return len(value) == len(older) and all(map(holds, value, older))
    return value == older


class AtResume(TrainerCallback):
    """Notes the masks, and the update, with which training resumes."""

    def on_train_begin(self, args, state, control, **kwargs):
        self.update = state.global_step
        self.masks = {name: mask.clone() for name, mask in self.trainer.pruner.masks.items()}


@pytest.fixture
def checkpoint(tmp_path):
    return Path(shutil.copytree(FILES / "checkpoint-15", tmp_path / "run" / "checkpoint-15"))


def test_a_run_resumes_from_the_checkpoint(checkpoint, make_trainer):
    start = AtResume()
    before = {field.name: BEFORE[field.name] for field in fields(PruningConfig) if field.name in BEFORE}
    pruning = CYCLICAL | {"ema_decay": 0.9} | before
    start.trainer = trainer = make_trainer(pruning, max_steps=24, callbacks=[start])
    trainer.train(resume_from_checkpoint=str(checkpoint))
    weights = load_file(FILES / "checkpoint-15" / "model.safetensors")
    assert start.update == 15
    assert set(start.masks) == {"conv.weight", "hidden.weight", "head.weight"}
    assert all(torch.equal(mask, weights[name] != 0) for name, mask in start.masks.items())
    assert trainer.state.global_step == 24
    assert zeros(trainer.model) == 32 + 1382 + 65  # 90 % of the 36, 1536 and 72 weights of each layer
    report = json.loads((FILES / "checkpoint-15" / "pruning_state.json").read_text())["report"]
    assert holds(trainer.report.to_dict()["cycles"][0], report["cycles"][0])
    assert trainer.report.to_dict()["masks"][: len(report["masks"])] == report["masks"]
    assert [cycle.update for cycle in trainer.report.cycles] == [12, 24]


def test_the_report_is_read():
    report = load_report(FILES / "packed")
    content = json.loads((FILES / "packed" / "pruning_report.json").read_text())
    assert holds(report.to_dict(), content)
    assert report.pruned == 67_321
    assert f"{report.sparsity:.4f}" == "0.9000"
    assert [cycle.recovered for cycle in report.cycles] == [0, 33_679]


def test_the_record_is_that_of_the_weights():
    verification = verify(FILES / "packed")
    assert verification.ok, verification.table()


def test_packed_weights_are_unpacked_and_loaded(tmp_path):
    unpack_folder(FILES / "packed", tmp_path / "dense")
    weights = tmp_path / "dense" / "model.safetensors"
    assert hashlib.sha256(weights.read_bytes()).hexdigest() == DENSE_SHA256
    state = load(FILES / "packed").state_dict()
    dense = load_file(weights)
    assert state.keys() == dense.keys()
    assert all(torch.equal(tensor, dense[name]) for name, tensor in state.items())
