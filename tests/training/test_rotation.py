"""Which checkpoints stay: the newest by their update numbers, and the best; only complete ones count."""

import json
import os
import shutil
import signal
from pathlib import Path

import pytest
from support.processes import on_processes
from support.tiny import CYCLICAL, build_trainer, same_weights
from torch.multiprocessing import ProcessExitedException
from transformers import TrainerCallback

from hf_cyclical import PruningError
from hf_cyclical.training import newest_checkpoint
from hf_cyclical.training.checkpoints import damage, rotate

ROTATED = {"max_steps": 24, "save_strategy": "steps", "save_steps": 5, "save_total_limit": 2}


class ClockJumpsBack(TrainerCallback):
    """Each checkpoint is an hour older than the one before it."""

    def on_save(self, args, state, control, **kwargs):
        then = 2_000_000_000 - 3600 * state.global_step
        os.utime(Path(args.output_dir, f"checkpoint-{state.global_step}"), (then, then))


def names(folder):
    return sorted((path.name for path in folder.iterdir()), key=lambda name: int(name.rpartition("-")[2]))


def test_checkpoints_are_ordered_by_their_updates_and_not_by_the_clock(make_trainer, tmp_path):
    make_trainer(CYCLICAL, callbacks=[ClockJumpsBack()], **ROTATED).train()
    assert names(tmp_path / "run") == ["checkpoint-20", "checkpoint-24"]


def test_the_best_stays_whatever_the_clock_says(make_trainer, tmp_path):
    arguments = {"eval_strategy": "steps", "eval_steps": 5, "metric_for_best_model": "loss", "greater_is_better": False}
    trainer = make_trainer(CYCLICAL, callbacks=[ClockJumpsBack()], load_best_model_at_end=True, **ROTATED | arguments)
    trainer.train()
    assert trainer.state.best_global_step == 12  # which is not among the last two
    assert names(tmp_path / "run") == ["checkpoint-12", "checkpoint-24"]


def sealed(folder, *updates):
    """Checkpoints that hold only what tells that they are complete."""
    for update in updates:
        path = folder / f"checkpoint-{update}"
        path.mkdir(parents=True)
        (path / "trainer_state.json").write_text("{}")
        (path / "manifest.json").write_text(json.dumps({"trainer_state.json": {"bytes": 2, "crc32": 2745614147}}))
    return folder


def test_the_best_is_found_by_another_spelling_of_its_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sealed(tmp_path / "run", 1, 2, 3, 4)
    rotate(tmp_path / "run", newest=4, limit=2, best="./run/../run/checkpoint-1")
    assert names(tmp_path / "run") == ["checkpoint-1", "checkpoint-4"]


def test_checkpoints_ahead_of_the_run_go_first(tmp_path):
    """They are of an earlier run, or of a later part that is trained again; the one just written always stays."""
    sealed(tmp_path, 5, 10, 90, 100)
    rotate(tmp_path, newest=10, limit=2, best=None)
    assert names(tmp_path) == ["checkpoint-5", "checkpoint-10"]
    sealed(tmp_path, 100)
    rotate(tmp_path, newest=10, limit=1, best=None)
    assert names(tmp_path) == ["checkpoint-10"]


@pytest.mark.parametrize("limit", [None, 0])
def test_without_a_limit_all_stay(tmp_path, limit):
    rotate(sealed(tmp_path, 1, 2, 3), newest=3, limit=limit, best=None)
    assert names(tmp_path) == ["checkpoint-1", "checkpoint-2", "checkpoint-3"]


def half_deleted(path):
    (path / "trainer_state.json").unlink()


def without_manifest(path):
    (path / "manifest.json").unlink()


def empty_manifest(path):
    (path / "manifest.json").write_text("{}")


def no_json(path):
    (path / "manifest.json").write_text("[")


@pytest.mark.parametrize("harm", [half_deleted, without_manifest, empty_manifest, no_json])
def test_what_is_not_complete_neither_counts_nor_is_deleted(tmp_path, harm):
    sealed(tmp_path, 1, 2, 3, 4, 5)
    harm(tmp_path / "checkpoint-2")
    harm(tmp_path / "checkpoint-4")
    rotate(tmp_path, newest=5, limit=2, best=None)
    assert names(tmp_path) == ["checkpoint-2", "checkpoint-3", "checkpoint-4", "checkpoint-5"]


@pytest.mark.parametrize("harm", [half_deleted, without_manifest, empty_manifest, no_json])
def test_what_is_not_complete_falls_back_to_the_one_before_and_says_so(tmp_path, caplog, harm):
    sealed(tmp_path, 1, 2)
    harm(tmp_path / "checkpoint-2")
    assert newest_checkpoint(tmp_path) == tmp_path / "checkpoint-1"
    assert "checkpoint-2 is damaged" in caplog.text
    assert "resuming from checkpoint-1 instead" in caplog.text
    assert len(caplog.text.splitlines()) == 1


@pytest.mark.parametrize(
    "text",
    [
        "{}", "[]", "null", '{"trainer_state.json": {}}', '{"trainer_state.json": {"bytes": "2", "crc32": null}}',
        '{"model.safetensors": {"bytes": 2, "crc32": 1}}',
    ],
)  # fmt: skip
def test_a_manifest_lists_files_with_their_sizes(tmp_path, text):
    sealed(tmp_path, 1)
    (tmp_path / "checkpoint-1" / "manifest.json").write_text(text)
    assert damage(tmp_path / "checkpoint-1") == "manifest.json is damaged"
    with pytest.raises(PruningError, match=r"no checkpoint in .* is complete"):
        newest_checkpoint(tmp_path)


@pytest.mark.parametrize("name", ["/etc/hostname", "../x", "a/../../x", "..\\x", "C:\\x", "C:x", "\\x"])
def test_a_manifest_names_no_file_outside_of_its_folder(tmp_path, name):
    sealed(tmp_path, 1)
    files = {"trainer_state.json": {"bytes": 2, "crc32": 2745614147}, name: {"bytes": 0, "crc32": 0}}
    (tmp_path / "checkpoint-1" / "manifest.json").write_text(json.dumps(files))
    assert damage(tmp_path / "checkpoint-1") == "manifest.json is damaged"


def test_a_manifest_has_a_limit_of_its_size(tmp_path):
    manifest = sealed(tmp_path, 1) / "checkpoint-1" / "manifest.json"
    text = manifest.read_text()
    manifest.write_text(text.ljust(1 << 20))
    assert damage(tmp_path / "checkpoint-1") is None
    manifest.write_text(text.ljust((1 << 20) + 1))
    assert damage(tmp_path / "checkpoint-1") == "manifest.json is damaged"
    manifest.write_text(text.replace("2,", "Infinity,"))
    assert damage(tmp_path / "checkpoint-1") == "manifest.json is damaged"


def test_a_checkpoint_that_is_a_link_is_passed_over_if_links_are_not_wanted(tmp_path):
    sealed(tmp_path / "elsewhere", 2)
    sealed(tmp_path / "run", 1)
    (tmp_path / "run" / "checkpoint-2").symlink_to(tmp_path / "elsewhere" / "checkpoint-2", target_is_directory=True)
    assert newest_checkpoint(tmp_path / "run").name == "checkpoint-2"
    assert newest_checkpoint(tmp_path / "run", links=False).name == "checkpoint-1"


def die_while_rotating(rank, folder):
    def die(path, *args, **kwargs):
        old = [file for file in Path(path).rglob("trainer_state.json") if "checkpoint-5" in str(file)]
        if not old:
            return rmtree(path, *args, **kwargs)
        old[0].unlink()
        os.kill(os.getpid(), signal.SIGKILL)

    rmtree, shutil.rmtree = shutil.rmtree, die
    build_trainer(folder, CYCLICAL, **ROTATED).train()


def test_a_kill_inside_a_rotation_costs_no_complete_checkpoint(make_trainer, tmp_path):
    folder = tmp_path / "run"
    with pytest.raises(ProcessExitedException):
        on_processes(1, die_while_rotating, folder)
    assert [damage(path) for path in sorted(folder.glob("checkpoint-*"))] == [None, None]  # 10 and 12
    trainer = make_trainer(CYCLICAL, **ROTATED | {"max_steps": 24})
    trainer.train(resume_from_checkpoint=True)
    assert names(folder) == ["checkpoint-20", "checkpoint-24"]
    undisturbed = make_trainer(CYCLICAL, **ROTATED | {"output_dir": str(tmp_path / "undisturbed")})
    undisturbed.train()
    assert same_weights(trainer.model, undisturbed.model)
