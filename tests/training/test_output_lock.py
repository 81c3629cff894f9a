"""Two runs never write to one output folder: the second is told who is there."""

import os
import signal
import socket
import subprocess
import sys

import pytest
from support.processes import on_processes
from support.tiny import CYCLICAL, build_trainer
from transformers import TrainerCallback

from hf_cyclical import PruningError
from hf_cyclical.training import OutputLock

RUN = {"max_steps": 12, "save_strategy": "steps", "save_steps": 5}
HOLD = """
import sys, time
from hf_cyclical.training.output_lock import OutputLock
with OutputLock(sys.argv[1]):
    print("held", flush=True)
    time.sleep(3600)
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that has the lock of the folder."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path / "run")], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def test_another_run_is_named_and_left_alone_until_it_is_killed(make_trainer, tmp_path, holder):
    trainer = make_trainer(CYCLICAL, **RUN)
    with pytest.raises(PruningError) as caught:
        trainer.train()
    assert str(caught.value) == (
        f"another run, process {holder.pid} on {socket.gethostname()}, writes to '{tmp_path / 'run'}': wait until it "
        "has ended, stop it, or name another output_dir"
    )
    assert trainer.state.global_step == 0
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    trainer.train()
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [
        "checkpoint-10",
        "checkpoint-12",
        "checkpoint-5",
        "checkpoint-6",
    ]


class Look(TrainerCallback):
    """Tries to start another run in the folder, in the middle of this one."""

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 3:
            with pytest.raises(PruningError, match=f"another run, process {os.getpid()} on"):
                build_trainer(args.output_dir, CYCLICAL, **RUN).train()
            self.looked = True


class Fail(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        raise RuntimeError("as a user's callback may")


def test_it_is_held_from_start_to_end_and_leaves_nothing(make_trainer, tmp_path):
    look = Look()
    trainer = make_trainer(CYCLICAL, callbacks=[look], max_steps=12)
    with trainer.alone():
        trainer.train()
        with pytest.raises(PruningError, match="another run"):
            OutputLock(tmp_path / "run").__enter__()
    assert look.looked
    assert list((tmp_path / "run").iterdir()) == []


def test_a_run_that_fails_releases_it(make_trainer):
    with pytest.raises(RuntimeError, match="callback may"):
        make_trainer(CYCLICAL, callbacks=[Fail()], **RUN).train()
    make_trainer(CYCLICAL, **RUN).train()


def test_other_folders_are_free(make_trainer, tmp_path, holder):
    make_trainer(CYCLICAL, output_dir=str(tmp_path / "other"), **RUN).train()


def start_where_another_is(rank, folder):
    trainer = build_trainer(folder, CYCLICAL, per_device_train_batch_size=4, **RUN)
    try:
        trainer.train()
    except PruningError as error:
        return str(error)


def test_of_several_processes_none_waits_for_one_that_was_refused(tmp_path, holder):
    main, other = on_processes(2, start_where_another_is, tmp_path / "run")
    assert main.startswith(f"another run, process {holder.pid} on")
    assert other == "the main process could not start: see its error"


def test_several_processes_have_one_lock(tmp_path):
    assert on_processes(2, start_where_another_is, tmp_path / "run") == [None, None]
    assert not list((tmp_path / "run").glob(".lock*"))
