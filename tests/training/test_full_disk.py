"""Full disks and unwritable folders: one line that says what to do, and nothing is lost."""

import os

import pytest
from safetensors.torch import load_file
from support.small_disk import small_disk  # noqa: F401 - a fixture
from support.tiny import CYCLICAL, build_trainer, same_weights
from transformers import TrainerCallback

from hf_cyclical import PruningError
from hf_cyclical.training import newest_checkpoint

SAVES = {"max_steps": 24, "save_strategy": "steps", "save_steps": 5, "save_total_limit": 2}


class FillAt(TrainerCallback):
    def __init__(self, disk, update):
        self.disk, self.update = disk, update

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == self.update:
            self.disk.fill()


def one_line(caught):
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_a_checkpoint_that_does_not_fit_costs_nothing_before_it(small_disk, tmp_path):  # noqa: F811
    run = small_disk.folder / "run"
    trainer = build_trainer(run, CYCLICAL, callbacks=[FillAt(small_disk, 13)], **SAVES)
    with pytest.raises(PruningError) as caught:
        trainer.train()
    message = one_line(caught)
    assert message.startswith(f"checkpoint-15 could not be written to '{run}' (")
    assert message.endswith("): make room, and resume from the newest complete checkpoint")
    assert sorted(path.name for path in run.iterdir()) == ["checkpoint-10", "checkpoint-12"]
    small_disk.empty()
    again, undisturbed = build_trainer(run, CYCLICAL, **SAVES), build_trainer(tmp_path / "other", CYCLICAL, **SAVES)
    again.train(resume_from_checkpoint=True)
    undisturbed.train()
    assert same_weights(again.model, undisturbed.model)


@pytest.mark.parametrize("saves", [True, False])
def test_the_final_model_leaves_the_one_before_and_can_be_saved_again(small_disk, saves):  # noqa: F811
    run = small_disk.folder / "run"
    trainer = build_trainer(run, CYCLICAL, **SAVES | ({} if saves else {"save_strategy": "no"}))
    trainer.save_model()
    before = (run / "model.safetensors").read_bytes()
    trainer.train()
    small_disk.fill()
    with pytest.raises(PruningError) as caught:
        trainer.save_model()
    message = one_line(caught)
    assert message.startswith(f"the model could not be written to '{run}' (")
    then = f"resume from '{run / 'checkpoint-24'}'" if saves else "save it again"
    assert message.endswith(f"): make room, and {then}")
    assert (run / "model.safetensors").read_bytes() == before
    assert not (run / "_saving").exists()
    small_disk.empty()
    trainer.save_model()
    saved = load_file(run / "model.safetensors")
    assert all((saved[name] == value).all() for name, value in trainer.model.state_dict().items())
    assert not saves or newest_checkpoint(run) == run / "checkpoint-24"


def test_a_model_in_one_piece_replaces_one_in_several(make_trainer, tmp_path):
    trainer = make_trainer(CYCLICAL, max_steps=12)
    trainer.train()
    for name in ("model-00001-of-00002.safetensors", "model.safetensors.index.json"):
        (tmp_path / "run" / name).write_text("of another model")
    trainer.save_model()
    weights = [path.name for path in (tmp_path / "run").iterdir() if path.name.startswith("model")]
    assert weights == ["model.safetensors"]


@pytest.fixture
def unprivileged(tmp_path):
    """What root may not do, either: a folder of somebody else."""
    tmp_path.chmod(0o555)
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    yield tmp_path
    if root:
        os.seteuid(0)
    tmp_path.chmod(0o755)


def test_a_folder_that_cannot_be_made(unprivileged):
    with pytest.raises(PruningError) as caught:
        build_trainer(unprivileged / "a" / "run", CYCLICAL, **SAVES)
    message = one_line(caught)
    assert message.startswith(f"the run could not be written to '{unprivileged / 'a' / 'run'}' ([Errno 13] Permission")
    assert message.endswith("): make the folder writable, or name another one")


def test_a_folder_that_cannot_be_written_to(tmp_path):
    trainer = build_trainer(tmp_path / "run", CYCLICAL, **SAVES)
    (tmp_path / "run").chmod(0o555)
    root = os.geteuid() == 0
    try:
        if root:
            os.seteuid(65534)
        with pytest.raises(
            PruningError, match=r"^the run could not .*: make the folder writable, or name another one$"
        ):
            trainer.train()
    finally:
        if root:
            os.seteuid(0)
        (tmp_path / "run").chmod(0o755)
    assert trainer.state.global_step == 0


def test_a_file_in_place_of_the_folder(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(
        PruningError, match=r"^the run could not be written to '.*file/run' \(.*\): name another folder$"
    ):
        build_trainer(tmp_path / "file" / "run", CYCLICAL, **SAVES)
