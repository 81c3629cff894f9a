"""`hf-cyclical prune --budget`: what it sets, what it contradicts, and that a run resumes with what it chose."""

import json
import re

import pytest
import torch
from safetensors.torch import load_file
from support.started import PYTHON, TORCHRUN, call, prune, run

from hf_cyclical import load_report
from hf_cyclical.cli import parse_arguments
from hf_cyclical.training import Cost

FEW = ["--dense_epochs", "0", "--max_train_samples", "120", "--max_eval_samples", "100"]  # 2 updates an epoch


@pytest.mark.parametrize(
    ("words", "cycles", "delta_t"),
    [
        (["--preset", "digits"], "auto", "auto"),
        (["--preset", "digits", "--cycles", "3"], 3, "auto"),
        (["--preset", "digits", "--method", "gradual"], None, "auto"),
        (["--model_name_or_path", "some", "--dataset_name", "digits", "--delta_t", "7"], "auto", 7),
    ],
)
def test_cycles_and_choices_of_masks_follow_unless_told(words, cycles, delta_t):
    pruning = parse_arguments([*words, "--budget", "30m"], description="").pruning
    assert (pruning.cycles, pruning.delta_t) == (cycles, delta_t)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--num_train_epochs", "3"], "budget '30m' contradicts num_train_epochs 3.0: give one of them"),
        (["--max_steps", "30"], "budget '30m' contradicts max_steps 30: give one of them"),
        (["--pruning_epochs", "3"], "budget '30m' contradicts pruning_epochs 3.0: give one of them"),
        (["--target_sparsity", "0"], "budget '30m' is for pruning, and target_sparsity is 0: use num_train_epochs"),
        (["--budget", "half"], "budget 'half' is no time: write 90s, 30m, 2h or 1h30m"),
    ],
)
def test_what_it_contradicts_is_refused(capsys, words, line):
    with pytest.raises(SystemExit) as exit_:
        parse_arguments(["--budget", "30m", *words], description="")
    assert exit_.value.code == 2
    assert capsys.readouterr().err == f"error: {line}\n"


def test_the_plan_has_as_many_epochs_as_there_is_time_for(tmp_path, monkeypatch):
    cost = Cost(update=0.5, evaluation=5.0)
    monkeypatch.setattr("hf_cyclical.training.time_estimate.measured", lambda trainer: cost)
    code, out, err = call(*FEW, "--budget", "10m", "--plan", "--output_dir", tmp_path / "out")
    assert code == 0, err
    # 540 s: 2 evaluations of 5 s, and 1,060 updates: 530 epochs
    assert "Budget: 530 epochs fit into 10m, as an update takes 0.5 s here and an evaluation 5 s; a tenth" in out
    assert "1,060 optimizer updates: 0 dense, 1,060 in 1 cycle" in out
    assert "Estimated time: 9.0 minutes (1,060 updates of 0.5 s, 2 evaluations of 5 s, as measured now)" in out


@pytest.mark.parametrize(
    ("budget", "epochs", "updates"),
    [
        ("5m", "27 epochs, 13.5 of them dense, fit", "540 optimizer updates: 270 dense, 270 in"),  # 270 s: half
        ("30m", "162 epochs, 81 of them dense, fit", "3,240 optimizer updates: 1,620 dense, 1,620 in"),
        ("60m", "324 epochs fit", "6,480 optimizer updates: 2,000 dense, 4,480 in"),  # time for all 100 dense epochs
    ],
)
def test_a_recommended_dense_start_is_a_part_of_what_fits(tmp_path, monkeypatch, budget, epochs, updates):
    monkeypatch.setattr("hf_cyclical.training.time_estimate.measured", lambda trainer: Cost(update=0.5))
    words = ["--model_name_or_path", "cifar_resnet8", "--from_scratch", "--dataset_name", "digits", *FEW[2:]]
    words += ["--per_device_train_batch_size", "6", "--plan"]  # 20 updates an epoch
    code, out, err = call(*words, "--budget", budget, "--output_dir", tmp_path / "out")
    assert code == 0, err
    assert f"Budget: {epochs} into {budget}" in out
    assert updates in out


def test_a_shortened_dense_start_is_resumed_as_it_was(tmp_path, monkeypatch, capsys):
    words = ["--model_name_or_path", "cifar_resnet8", "--from_scratch", "--dataset_name", "digits", *FEW[2:]]
    words += ["--per_device_train_batch_size", "60", "--save_steps", "4", "--save_total_limit", "9", "--budget", "1h"]
    monkeypatch.setattr("hf_cyclical.training.time_estimate.fit_epochs", lambda *_: 6.0)
    assert prune(*words, "--output_dir", tmp_path / "whole") == 0
    checkpoint = tmp_path / "whole" / "checkpoint-8"
    assert prune(*words, "--output_dir", tmp_path / "resumed", "--resume", checkpoint) == 0
    assert "Budget: 6 epochs, as was chosen for 1h" in capsys.readouterr().out
    whole, resumed = (load_report(tmp_path / name) for name in ("whole", "resumed"))
    assert (whole.updates, whole.dense_updates) == (resumed.updates, resumed.dense_updates) == (12, 6)
    assert whole.masks == resumed.masks


def test_a_time_too_short_is_one_line_with_what_is_needed(tmp_path, monkeypatch):
    monkeypatch.setattr("hf_cyclical.training.time_estimate.measured", lambda trainer: Cost(update=0.5, evaluation=5.0))
    code, _, err = call(*FEW, "--budget", "30s", "--output_dir", tmp_path / "out")
    assert code == 2
    assert err.startswith("error: budget '30s' is too short for one cycle of 100 updates or more")
    assert err.endswith("(50 epochs): give 67s or more\n")  # 60 s and a tenth of it all
    assert not (tmp_path / "out").exists()


def test_a_run_is_the_same_as_with_the_epochs_it_chose_and_resumes_with_them(tmp_path, monkeypatch, capsys):
    saves = [*FEW, "--save_steps", "4", "--save_total_limit", "5"]
    monkeypatch.setattr("hf_cyclical.training.time_estimate.fit_epochs", lambda *_: 6.0)
    assert prune(*saves, "--budget", "1h", "--output_dir", tmp_path / "fitted") == 0
    named = ["--num_train_epochs", "6", "--cycles", "auto", "--delta_t", "auto"]
    assert prune(*saves, *named, "--output_dir", tmp_path / "named") == 0
    state = json.loads((tmp_path / "fitted" / "checkpoint-4" / "pruning_state.json").read_text())
    assert (state["settings"]["num_train_epochs"], state["settings"]["cycles"]) == (6.0, 1)

    # The machine has become faster.
    monkeypatch.setattr("hf_cyclical.training.time_estimate.fit_epochs", lambda *_: 60.0)
    checkpoint = tmp_path / "fitted" / "checkpoint-4"
    capsys.readouterr()
    assert prune(*saves, "--budget", "1h", "--output_dir", tmp_path / "again", "--resume", checkpoint) == 0
    assert "Budget: 6 epochs, as was chosen for 1h when the run started." in capsys.readouterr().out

    fitted, named, again = (load_file(tmp_path / n / "model.safetensors") for n in ("fitted", "named", "again"))
    for name, weight in fitted.items():
        assert torch.equal(weight, named[name]), name
        assert torch.equal(weight, again[name]), name
    assert load_report(tmp_path / "fitted").config["delta_t"] == 1


def test_two_processes_agree_on_the_epochs(tmp_path):
    words = [
        *FEW,
        "--budget",
        "1h",
        "--plan",
        "--per_device_train_batch_size",
        "30",
        "--output_dir",
        tmp_path / "out",
    ]
    code, out, err = run([*TORCHRUN, *PYTHON[1:]], *words)
    assert code == 0, err
    assert out.count("Budget: ") == 1
    epochs, updates = re.search(r"Budget: (\S+) epochs fit into 1h[\s\S]* ([\d,]+) optimizer updates", out).groups()
    assert int(updates.replace(",", "")) == pytest.approx(2 * float(epochs), rel=1e-5)  # as %g shows six digits
