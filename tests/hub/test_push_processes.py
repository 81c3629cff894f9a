"""`trainer.push_to_hub` on two processes: one of them pushes, and both learn how it went."""

import faulthandler
import os
import tempfile

import pytest
from huggingface_hub import constants
from support.local_hub import WRITER
from support.patience import HUNG
from support.processes import on_processes
from support.pushing import PUSHED, make_trainer
from support.sharded import ShardedTrainer
from support.tiny import OrderedPruningTrainer

from hf_cyclical import PruningError
from hf_cyclical.formats import WEIGHTS

KINDS = {"ddp": OrderedPruningTrainer, "fsdp2": ShardedTrainer}
OTHER = "another process could not push the model: see its error"


def be_a_client(url, folder):
    """In a process that has the client imported already."""
    faulthandler.dump_traceback_later(HUNG, exit=True)  # a process that waits for ever is what these tests are about
    os.environ["HF_TOKEN"] = WRITER
    constants.ENDPOINT, constants.HF_HUB_DISABLE_XET = url, True
    tempfile.tempdir = str(folder)
    folder.mkdir(parents=True)


def push(rank, mode, url, folder, name):
    be_a_client(url, folder / str(rank))
    trainer = make_trainer(folder / "run", trainer=KINDS[mode], per_device_train_batch_size=4)
    trainer.train()
    try:
        result = trainer.push_to_hub(name)
    except PruningError as error:
        result = str(error)
    left = [path.name for path in (folder / str(rank)).iterdir()]
    faulthandler.cancel_dump_traceback_later()
    return result, left


def is_kept(folder, left, error, name):
    """Whether one folder is left, with the model, and the error has the command that pushes it."""
    (kept,) = (folder / one for one in left)
    return error.endswith(f"to try again: hf-cyclical push {kept} {name}") and (kept / WEIGHTS).is_file()


def make_repository(rank, url, folder, name):
    be_a_client(url, folder / str(rank))
    try:
        trainer = make_trainer(folder / "run", push_to_hub=True, hub_strategy="end", hub_model_id=name)
        result = trainer.hub_model_id
    except PruningError as error:
        result = str(error)
    faulthandler.cancel_dump_traceback_later()
    return result


@pytest.mark.parametrize("mode", KINDS)
def test_the_main_process_pushes(hub, tmp_path, mode):
    results = on_processes(2, push, mode, hub.url, tmp_path, "user/model")
    assert results == [(f"{hub.url}/user/model", []), (None, [])]
    assert sorted(hub.files("user/model")) == PUSHED
    assert len(hub.asked("POST", "/commit/")) == len(hub.asked("POST", "/api/repos/create")) == 1
    assert b'"processes": 2' in hub.files("user/model")["pruning_report.json"]


@pytest.mark.parametrize("mode", KINDS)
def test_a_name_that_is_refused_ends_both_and_leaves_the_model_once(hub, tmp_path, mode):
    (main, left), other = on_processes(2, push, mode, hub.url, tmp_path, "nobody/model")
    assert "the Hub does not let the token write to 'nobody/model'" in main
    assert other == (OTHER, [])
    assert is_kept(tmp_path / "0", left, main, "nobody/model")
    assert not hub.asked("POST", "/commit/")


@pytest.mark.parametrize("mode", KINDS)
def test_a_server_that_fails_ends_both_and_leaves_the_model_once(hub, tmp_path, mode):
    hub.fail("POST", "/commit/", times=None, message="Database on fire")
    (main, left), other = on_processes(2, push, mode, hub.url, tmp_path, "user/model")
    assert "(500: Database on fire)" in main
    assert other == (OTHER, [])
    assert is_kept(tmp_path / "0", left, main, "user/model")


def test_a_repository_that_cannot_be_made_ends_both_before_training(hub, tmp_path):
    main, other = on_processes(2, make_repository, hub.url, tmp_path / "no", "nobody/model")
    assert ("does not let the token write" in main, other) == (True, OTHER)
    assert on_processes(2, make_repository, hub.url, tmp_path / "yes", "user/model") == ["user/model", None]
