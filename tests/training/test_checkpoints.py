"""A checkpoint is complete or not there; a damaged one is named, and the one before it offered."""

import os
import resource
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from support.processes import on_processes
from support.tiny import CYCLICAL, build_trainer, same_weights
from torch.multiprocessing import ProcessExitedException
from transformers import TrainerCallback

from hf_cyclical import PruningError
from hf_cyclical.training import newest_checkpoint
from hf_cyclical.training.checkpoints import damage

SAVES = {"max_steps": 24, "save_strategy": "steps", "save_steps": 5}
FILES = [
    "model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json", "training_args.bin",
    "pruning_state.json", "pruning_state.safetensors",
]  # fmt: skip


def truncate(path: Path):
    path.write_bytes(path.read_bytes()[:-7])


def flip_a_bit(path: Path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def empty(path: Path):
    path.write_bytes(b"")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run with checkpoints at 5, 10, 12, 15, 20 and 24."""
    folder = tmp_path_factory.mktemp("finished")
    trainer = build_trainer(folder, CYCLICAL, **SAVES)
    trainer.train()
    return trainer


@pytest.fixture
def copy(finished, tmp_path):
    folder = tmp_path / "run"
    for step in (10, 20):
        source = Path(finished.args.output_dir, f"checkpoint-{step}")
        (folder / source.name).mkdir(parents=True)
        for file in source.iterdir():
            (folder / source.name / file.name).write_bytes(file.read_bytes())
    return folder


class TestDamage:
    @pytest.mark.parametrize("harm", [truncate, flip_a_bit, empty, Path.unlink])
    @pytest.mark.parametrize("name", FILES)
    def test_is_named_and_the_checkpoint_before_offered(self, copy, make_trainer, name, harm):
        harm(copy / "checkpoint-20" / name)
        with pytest.raises(PruningError) as caught:
            make_trainer(CYCLICAL, **SAVES).train(resume_from_checkpoint=str(copy / "checkpoint-20"))
        message = str(caught.value)
        assert f"checkpoint-20' is damaged, {name}" in message
        assert f"resume from '{copy / 'checkpoint-10'}'" in message
        assert newest_checkpoint(copy) == copy / "checkpoint-10"

    @pytest.mark.parametrize("harm", [truncate, flip_a_bit, empty, Path.unlink])
    def test_of_the_list_itself(self, copy, make_trainer, harm):
        harm(copy / "checkpoint-20" / "manifest.json")
        with pytest.raises(PruningError, match=r"checkpoint-20' is damaged, .*: resume from \S+checkpoint-10'"):
            make_trainer(CYCLICAL, **SAVES).train(resume_from_checkpoint=str(copy / "checkpoint-20"))

    def test_true_goes_on_from_the_newest_whole_one(self, copy, finished, make_trainer, caplog):
        flip_a_bit(copy / "checkpoint-20" / "optimizer.pt")
        trainer = make_trainer(CYCLICAL, **SAVES)
        trainer.train(resume_from_checkpoint=True)
        assert same_weights(trainer.model, finished.model)
        assert (
            "checkpoint-20 is damaged, optimizer.pt is not as it was written: resuming from checkpoint-10"
            in caplog.text
        )

    def test_of_all_is_an_error(self, copy, make_trainer):
        for folder in copy.iterdir():
            empty(folder / "model.safetensors")
        with pytest.raises(
            PruningError, match=r"no checkpoint in .* is complete .*checkpoint-20.*checkpoint-10.*restart"
        ):
            make_trainer(CYCLICAL, **SAVES).train(resume_from_checkpoint=True)

    def test_a_whole_one_has_none(self, finished):
        folders = list(Path(finished.args.output_dir).iterdir())
        assert sorted(f.name for f in folders) == [f"checkpoint-{n}" for n in (10, 12, 15, 20, 24, 5)]
        assert [damage(folder) for folder in folders] == [None] * 6


class LimitFiles(TrainerCallback):
    """As if the disk were full from update 8 on."""

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == 8:
            resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))


def test_a_full_disk_costs_only_the_checkpoint_that_did_not_fit(make_trainer, finished, tmp_path):
    trainer = make_trainer(CYCLICAL, callbacks=[LimitFiles()], **SAVES)
    try:
        with pytest.raises(PruningError) as caught:
            trainer.train()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    folder = tmp_path / "run"
    message = str(caught.value)
    assert message.startswith(f"checkpoint-10 could not be written to '{folder}'")
    assert message.endswith("make room, and resume from the newest complete checkpoint")
    assert "\n" not in message
    assert [f.name for f in folder.iterdir()] == ["checkpoint-5"]
    again = make_trainer(CYCLICAL, **SAVES)
    again.train(resume_from_checkpoint=True)
    assert same_weights(again.model, finished.model)


def die_while_saving(rank, folder, moment):
    from hf_cyclical.training import saving

    calls = []

    def die(*args):
        calls.append(args)
        if len(calls) == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*args)

    original = getattr(saving, moment)
    setattr(saving, moment, die)
    build_trainer(folder, CYCLICAL, **SAVES).train()


@pytest.mark.parametrize("moment", ["seal", "publish"])
def test_a_kill_inside_a_save_leaves_the_checkpoint_before(make_trainer, finished, tmp_path, moment):
    folder = tmp_path / "run"
    with pytest.raises(ProcessExitedException):
        on_processes(1, die_while_saving, folder, moment)
    assert newest_checkpoint(folder) == folder / "checkpoint-5"
    again = make_trainer(CYCLICAL, **SAVES)
    again.train(resume_from_checkpoint=True)
    assert same_weights(again.model, finished.model)
    assert not (folder / "_saving").exists()


def test_a_checkpoint_takes_the_place_of_one_of_the_same_name(make_trainer, tmp_path):
    for seed in (1, 2):
        make_trainer(CYCLICAL, **SAVES | {"seed": seed, "max_steps": 12}).train()
    assert newest_checkpoint(tmp_path / "run") == tmp_path / "run" / "checkpoint-12"


@pytest.mark.parametrize("folder", ["./run", "run"])
def test_the_best_checkpoint_is_remembered_by_its_final_name(make_trainer, tmp_path, monkeypatch, folder):
    monkeypatch.chdir(tmp_path)
    arguments = {
        **SAVES, "eval_strategy": "steps", "eval_steps": 5, "load_best_model_at_end": True, "save_total_limit": 1,
        "metric_for_best_model": "accuracy",
    }  # fmt: skip
    trainer = make_trainer(CYCLICAL, **arguments, output_dir=folder)
    trainer.train()
    best = Path(trainer.state.best_model_checkpoint)
    assert best.parent == Path("run")
    saved = load_file(best / "model.safetensors")
    assert all(torch.equal(weight, saved[name]) for name, weight in trainer.model.state_dict().items())
    assert trainer.evaluate()["eval_accuracy"] == trainer.state.best_metric
