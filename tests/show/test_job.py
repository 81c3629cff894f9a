"""What is found in the folder of a job: finished, running, stopped, or none."""

import json
import os
import socket

import pytest
from support.made_reports import made
from support.tiny import CYCLICAL

from hf_cyclical import PruningError
from hf_cyclical.show import Job


@pytest.fixture
def run(make_trainer, tmp_path):
    """A run with checkpoints after updates 12 and 24, at the ends of its two cycles."""
    trainer = make_trainer(CYCLICAL, num_train_epochs=2, save_strategy="steps", save_steps=1000)
    trainer.train()
    return trainer, tmp_path / "run"


def hold(folder, pid=None):
    """As a run that is in progress does."""
    (folder / ".lock.json").write_text(json.dumps({"pid": pid or os.getpid(), "host": socket.gethostname()}))


def told(file, **parts):
    """Other parts of a report."""
    file.write_text(json.dumps({**json.loads(file.read_text()), **parts}))


def test_a_run_in_progress_is_its_newest_checkpoint(run):
    trainer, folder = run
    hold(folder)
    (folder / "checkpoint-24").rename(folder / "later")
    job = Job(folder)
    first = job.look()
    assert (first.state, first.updates) == ("running", 12)
    assert first.report.cycles == trainer.report.cycles[:1]
    assert job.look() is first  # nothing is read again
    (folder / "later").rename(folder / "checkpoint-24")
    second = job.look()
    assert (second.updates, second.report.cycles) == (24, trainer.report.cycles)


def test_a_run_whose_process_is_gone_has_stopped(run):
    _, folder = run
    hold(folder, pid=2**22 + 1)  # more than Linux gives
    assert Job(folder).look().state == "stopped"
    (folder / ".lock.json").unlink()
    assert Job(folder).look().state == "stopped"


def test_a_finished_run_is_its_report_until_another_one_writes_checkpoints_there(run):
    trainer, folder = run
    trainer.report.save(folder)
    job = Job(folder)
    assert (job.look().state, job.look().report) == ("finished", trainer.report)
    hold(folder)
    later = (folder / "pruning_report.json").stat().st_mtime_ns + 10**9
    os.utime(folder / "checkpoint-24", ns=(later, later))
    assert (job.look().state, job.look().updates) == ("running", 24)


@pytest.mark.parametrize("name", ["manifest.json", "trainer_state.json"])
def test_a_finished_run_is_its_report_whatever_its_checkpoints_are(tmp_path, name):
    report = made()
    file = report.save(tmp_path)
    (tmp_path / "checkpoint-24").mkdir()
    (tmp_path / "checkpoint-24" / name).write_text("damaged")
    later = file.stat().st_mtime_ns + 10**9
    os.utime(tmp_path / "checkpoint-24", ns=(later, later))
    found = Job(tmp_path).look()
    assert (found.state, found.report) == ("finished", report)


def test_a_damaged_checkpoint_is_passed_over(run):
    _, folder = run
    state = folder / "checkpoint-24" / "pruning_state.json"
    state.write_text(state.read_text()[:-10])
    assert Job(folder).look().updates == 12


def test_a_run_that_has_saved_nothing_yet_is_waited_for(tmp_path):
    hold(tmp_path)
    found = Job(tmp_path).look()
    assert (found.state, found.report, found.model) == ("running", None, None)
    assert "no checkpoint" in found.problem


def test_a_folder_that_is_of_no_job_is_refused_in_one_line(tmp_path):
    with pytest.raises(PruningError, match=r"there is no pruning_report\.json in .* give the folder of a job"):
        Job(tmp_path)


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (lambda file: file.write_text("{"), "is not a complete report"),
        (lambda file: file.write_text("[]"), "is not a complete report"),
        (lambda file: file.write_text("[" * 10**5), "is not a complete report"),
        (lambda file: file.write_bytes(b"\xff\xfe"), "is not a complete report"),
        (lambda file: told(file, evaluations=[{"update": float("inf")}]), "see its evaluations"),
        (lambda file: told(file, evaluations=[{"update": float("nan")}]), "see its evaluations"),
        (lambda file: told(file, masks=[[float("inf"), 0.5, 0.0]]), "see its masks"),
        (lambda file: told(file, schedule=[[float("nan"), 0.1]]), "see its schedule"),
        (lambda file: told(file, updates=10**400), "see its updates"),
        (lambda file: os.truncate(file, (64 << 20) + 1), "at most 67,108,864 are read"),
        (lambda file: file.rename(file.with_name("x")) and file.symlink_to(file.with_name("x")), "link to elsewhere"),
    ],
)
def test_the_report_of_a_stranger_has_limits(tmp_path, harm, words):
    harm(made().save(tmp_path))
    with pytest.raises(PruningError, match=words) as raised:
        Job(tmp_path)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("times", [1, 3])
def test_a_checkpoint_that_is_deleted_during_the_first_look_is_looked_for_again(tmp_path, monkeypatch, times):
    report = made(cycles=1, layers=0)
    report.save(tmp_path)
    found = [FileNotFoundError("checkpoint-1")] * times

    def newest(folder, **kwargs):
        if found:
            raise found.pop()

    monkeypatch.setattr("hf_cyclical.show.job.newest_checkpoint", newest)
    if times == 1:
        assert Job(tmp_path).look().report == report
    else:
        with pytest.raises(PruningError, match="were deleted while they were read: try again"):
            Job(tmp_path)
