"""`hf-cyclical prune` interrupted, resumed, and on several processes."""

import os
import sys

import pytest
import torch
from safetensors.torch import load, load_file
from support.started import PYTHON, ROOT, SHORT, TORCHRUN, call, interrupt, prune, run, start
from transformers import AutoModelForImageClassification

from hf_cyclical import load_report
from hf_cyclical.training import OutputLock

SAVES = [*SHORT, "--save_steps", "5", "--save_total_limit", "5"]


def test_ctrl_c_leaves_a_checkpoint_that_is_resumed_to_the_same_model(tmp_path):
    arguments = ["--max_steps", 300, "--dense_epochs", 0, "--cycles", 2]
    process = start(PYTHON, *arguments, "--output_dir", tmp_path / "stopped", start_new_session=True)
    out, _ = interrupt(process, r" (5\d|[6-9]\d|1\d\d)/300")
    assert process.returncode == 130
    assert "Stopped after update" in out
    command = out.strip().splitlines()[-1].split()
    assert command[:2] == ["hf-cyclical", "prune"]
    code, _, err = call(*command[2:])
    assert code == 0, err

    code, _, err = call(*arguments, "--output_dir", tmp_path / "whole")
    assert code == 0, err
    stopped, whole = (AutoModelForImageClassification.from_pretrained(tmp_path / n) for n in ("stopped", "whole"))
    assert all(torch.equal(p, q) for p, q in zip(stopped.parameters(), whole.parameters(), strict=True))
    assert load_report(tmp_path / "stopped").cycles == load_report(tmp_path / "whole").cycles


def test_the_script_runs_without_any_argument(tmp_path):
    """The README's first command, whose run is of default settings in a default folder."""
    process = start([sys.executable, ROOT / "scripts/prune.py"], cwd=tmp_path, start_new_session=True)
    out, _ = interrupt(process, r" [1-9]\d*/\d")
    assert process.returncode == 130
    assert out.strip().splitlines()[-1].endswith("hf-cyclical prune --resume auto")


def test_a_dense_run_resumes_from_its_newest_complete_checkpoint(tmp_path, capsys):
    arguments = ["--target_sparsity", "0", "--dense_epochs", "0", "--max_steps", "12", "--save_steps", "4"]
    arguments += ["--save_total_limit", "5", "--output_dir", str(tmp_path / "out"), "--resume", "auto"]
    assert prune(*arguments) == 0
    (tmp_path / "out" / "checkpoint-12" / "optimizer.pt").write_bytes(b"")  # as a kill may leave it
    assert prune(*arguments) == 0
    assert "Resuming from" in (out := capsys.readouterr().out)
    assert "checkpoint-8" in out


def test_resume_auto_starts_and_then_resumes_from_the_newest_complete_checkpoint(tmp_path, capsys):
    arguments = [*SAVES, "--output_dir", str(tmp_path / "out"), "--resume", "auto"]
    assert prune(*arguments) == 0
    assert "No checkpoint yet: starting from the beginning" in capsys.readouterr().out
    first = load_report(tmp_path / "out")
    (tmp_path / "out" / "pruning_report.json").unlink()
    for harmed in ("checkpoint-24", "checkpoint-20"):
        (tmp_path / "out" / harmed / "optimizer.pt").write_bytes(b"")
    assert prune(*arguments) == 0
    assert f"Resuming from {tmp_path / 'out' / 'checkpoint-15'}" in capsys.readouterr().out
    assert load_report(tmp_path / "out") == first  # its command too, as nobody had interrupted it


@pytest.mark.parametrize("augment", ["cifar", "shift"])
def test_inside_an_epoch_the_images_are_augmented_as_without_a_break(tmp_path, augment):
    arguments = [*SAVES, "--augment", augment]  # an epoch has 8 updates
    assert prune(*arguments, "--output_dir", str(tmp_path / "whole")) == 0
    for at in (10, 20):
        checkpoint = str(tmp_path / "whole" / f"checkpoint-{at}")
        assert prune(*arguments, "--output_dir", str(tmp_path / f"from-{at}"), "--resume", checkpoint) == 0
    assert prune(*SAVES, "--augment", "none", "--output_dir", str(tmp_path / "plain")) == 0
    whole, first, second, plain = (
        load_file(tmp_path / name / "model.safetensors") for name in ("whole", "from-10", "from-20", "plain")
    )
    for name, weight in whole.items():
        assert torch.equal(weight, first[name]), name
        assert torch.equal(weight, second[name]), name
    assert not torch.equal(whole["fc.weight"], plain["fc.weight"])


def test_resume_auto_of_a_dense_run(tmp_path, capsys):
    arguments = [*SAVES[:2], "--target_sparsity", "0", "--save_steps", "5", "--output_dir", str(tmp_path / "out")]
    for words in ("No checkpoint yet", f"Resuming from {tmp_path / 'out' / 'checkpoint-24'}"):
        assert prune(*arguments, "--resume", "auto") == 0
        assert words in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--resume", "nowhere"], "'nowhere' is no checkpoint"),
        (["--resume", "auto", "--resume_from_checkpoint", "x"], "resume 'auto' contradicts resume_from_checkpoint 'x'"),
        (["--resume", "auto"], "no checkpoint in"),
        (["--resume", "{}/checkpoint-5"], "checkpoint-5' is damaged, manifest.json is damaged: there is no"),
    ],
)
def test_what_cannot_be_resumed_is_one_line(tmp_path, capsys, arguments, words):
    (tmp_path / "checkpoint-5").mkdir()
    (tmp_path / "checkpoint-5" / "manifest.json").write_text("{")
    with pytest.raises(SystemExit) as exit_:
        prune(*SHORT, "--output_dir", str(tmp_path), *(a.format(tmp_path) for a in arguments))
    assert exit_.value.code == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--augment", "none"], "augment is 'shift' there, 'none' here"),
        (["--max_train_samples", "800"], "training images is 898 there, 800 here"),
    ],
)
def test_a_checkpoint_of_other_data_is_refused(tmp_path, capsys, arguments, words):
    """Although the number of updates, 24, is the same."""
    assert prune(*SAVES, "--output_dir", tmp_path / "out") == 0
    with pytest.raises(SystemExit):
        prune(*SAVES, *arguments, "--output_dir", tmp_path / "out", "--resume", "auto")
    assert f"of other data: {words}: resume with the data it was made with" in capsys.readouterr().err


def test_a_folder_in_which_another_run_is(tmp_path, capsys):
    with OutputLock(tmp_path / "out"), pytest.raises(SystemExit) as exit_:
        prune(*SHORT, "--output_dir", tmp_path / "out")
    assert exit_.value.code == 2
    assert f"error: another run, process {os.getpid()} on" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["pruning_report.json", "pruning_run.png", "sparsity.json"])
def test_a_report_that_cannot_be_written_is_one_line_and_the_model_is_there(tmp_path, capsys, name):
    (tmp_path / "out" / name).mkdir(parents=True)
    with pytest.raises(SystemExit) as exit_:
        prune(*SAVES, "--output_dir", tmp_path / "out")
    assert exit_.value.code == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert line.startswith(f"error: the report of the run could not be written to '{tmp_path / 'out'}'")
    assert line.endswith(f": name another folder, and resume from '{tmp_path / 'out' / 'checkpoint-24'}'")
    AutoModelForImageClassification.from_pretrained(tmp_path / "out")


@pytest.mark.parametrize("target", [0.9, 0])
def test_without_checkpoints_a_model_that_cannot_be_written_is_kept_elsewhere(tmp_path, capsys, monkeypatch, target):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "elsewhere"))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out" / "model.safetensors" / "in the way").mkdir(parents=True)
    with pytest.raises(SystemExit) as exit_:
        prune(*SHORT, "--target_sparsity", target, "--save_strategy", "no", "--output_dir", tmp_path / "out")
    assert exit_.value.code == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    (kept,) = (tmp_path / "elsewhere").glob("pruned_*")
    assert line.startswith(f"error: the model could not be written to '{tmp_path / 'out'}'")
    assert line.endswith(f": name another folder; this time the model is in {kept}")
    AutoModelForImageClassification.from_pretrained(kept)
    assert (kept / "sparsity.json").is_file() == bool(target)


THREADS_AT_THE_END = """
import sys
from pathlib import Path
from hf_cyclical.cli import main

code = main(["prune", *sys.argv[1:]])
tasks = Path("/proc/self/task")
names = [(task / "comm").read_text() for task in tasks.iterdir()] if tasks.exists() else []
print(f"{sum('gloo' in name for name in names)} threads of gloo are left")
sys.exit(code)
"""


def test_two_processes_by_torchrun_say_so_and_one_resumes(tmp_path, capsys):
    """Without --use_cpu, which is set where there is no accelerator."""
    folder = tmp_path / "out"
    batch = "--per_device_train_batch_size"
    (tmp_path / "prune.py").write_text(THREADS_AT_THE_END)
    code, out, err = run([*TORCHRUN, tmp_path / "prune.py"], *SAVES, batch, 16, "--output_dir", folder)
    assert code == 0, err
    assert out.count("0 threads of gloo are left") == 2  # any that is late would abort its process as Python ends
    assert out.count("2 processes (DDP), cpu, 32 images an update") == 1
    assert out.count("mask distance") == 1  # one table, not one of each process
    report = load_report(folder)
    assert report.about["processes"] == 2
    there, model = tensors_of(folder / "checkpoint-20" / "pruning_state"), tensors_of(folder / "model")
    for name in ("checkpoint-24", "checkpoint-20"):
        (folder / name / "manifest.json").unlink()
    assert prune(*SAVES, "--use_cpu", batch, "32", "--output_dir", str(folder), "--resume", "auto") == 0
    out = capsys.readouterr().out
    assert "1 process, cpu, 32 images an update" in out
    assert f"Resuming from {folder / 'checkpoint-15'}" in out
    again = load_report(folder)
    assert [row[:2] for row in again.masks] == [row[:2] for row in report.masks]
    assert again.cycles[0] == report.cycles[0]
    assert again.cycles[-1].floor_rows > again.cycles[-1].empty_rows == 0
    assert [layer.kept for layer in again.layers] == [layer.kept for layer in report.layers]
    # No masks are chosen between 15 and 20. After 22 they are, of weights that have seen other statistics of BatchNorm.
    here = tensors_of(folder / "checkpoint-20" / "pruning_state")
    assert (folder / "checkpoint-20" / "manifest.json").is_file()
    assert here.keys() == there.keys()
    assert all(torch.equal(packed, there[name]) for name, packed in here.items())
    kept, both = 0, 0
    for name, weight in tensors_of(folder / "model").items():
        if weight.dim() > 1:
            assert weight.count_nonzero() == model[name].count_nonzero(), name
            kept += int(weight.count_nonzero())
            both += int(((weight != 0) & (model[name] != 0)).sum())
    assert kept == sum(layer.kept for layer in again.layers)
    assert both > 0.95 * kept


def tensors_of(path):
    """In memory, as the file is about to be written again."""
    return load(path.with_name(f"{path.name}.safetensors").read_bytes())
