"""`hf-cyclical compare` as its users start it."""

import json
import os
import shutil
import signal
import statistics
import sys

import pytest
from support.patience import HUNG
from support.started import interrupt, run, start, wait_for
from transformers import TrainerCallback

from hf_cyclical import PruningError, load_report
from hf_cyclical.cli import INTERRUPTED, Run, compare_runs
from hf_cyclical.paper import claimed

from .conftest import SHORT, TWO, snapshot

COMPARE = [sys.executable, "scripts/compare.py"]


def accuracies(folder, label):
    return [
        100 * load_report(path).cycles[-1].metrics["accuracy"]
        for path in sorted((folder / "reports").glob(f"{label}*"))
    ]


def test_every_cell_starts_from_the_same_dense_model_and_ends_at_its_sparsity(compare, tmp_path):
    code, out, err = compare(*TWO, "--seeds", 1, 2)
    assert code == 0, err
    reports = {path.name: load_report(path) for path in (tmp_path / "out" / "reports").iterdir()}
    assert set(reports) == {f"{m}-0.9-seed{n}.json" for m in ("one_shot", "cyclical") for n in (1, 2)}
    assert len({report.dense["loss"] for report in reports.values()}) == 1
    assert len({report.updates for report in reports.values()}) == 1
    assert all(report.sparsity == pytest.approx(0.9, abs=1e-3) for report in reports.values())
    assert [r.about["seed"] for r in reports.values()].count(2) == 2
    assert len(reports["cyclical-0.9-seed1.json"].cycles) == 2

    expected = "| 0.9 | " + " | ".join(
        f"{statistics.mean(a):.2f} ± {statistics.stdev(a):.2f}"
        for a in (accuracies(tmp_path / "out", "one_shot"), accuracies(tmp_path / "out", "cyclical"))
    )
    assert expected in out
    assert "2 seeds; experiment digits, 4.33 epochs (0.006 of the experiment's)" in out
    assert (tmp_path / "out" / "table.md").read_text().strip() in out


def test_the_dense_model_of_all_runs_may_have_other_epochs(compare, tmp_path, finished_once):
    code, out, err = compare("--dense_epochs", 1, *TWO, "--methods", "one_shot")
    assert code == 0, err
    assert "--dense_epochs 1" in out
    (report,) = (load_report(path) for path in (tmp_path / "out" / "reports").iterdir())
    assert report.dense_updates == 0  # it is none of the runs' own
    usual = finished_once[1].split("dense ")[1].split(" %")[0]
    assert report.dense["accuracy"] < float(usual) / 100 - 0.05


def test_a_finished_cell_is_never_run_twice(compare, finished):
    before = {path: path.stat().st_mtime_ns for path in (finished / "reports").iterdir()}
    dense = (finished / "cifar_resnet8-dense" / "model.safetensors").stat().st_mtime_ns
    code, out, _ = compare(*TWO, "--seeds", 1, 2)
    assert code == 0
    after = {path: path.stat().st_mtime_ns for path in (finished / "reports").iterdir()}
    assert len(after) == 2 * len(before) == 4
    assert before.items() <= after.items()
    assert (finished / "cifar_resnet8-dense" / "model.safetensors").stat().st_mtime_ns == dense
    assert "mean ± standard deviation of 2 seeds" in out


def test_the_table_comes_back_from_the_results_alone(compare, finished, finished_once):
    shown = compare("--show", finished / "results.json")
    assert shown[0] == 0
    assert shown[1].strip() in finished_once[1]


def test_results_of_earlier_commands_stay_in_the_table(compare, finished):
    code, out, _ = compare(*TWO[:-1], 2, "--methods", "one_shot")
    assert code == 0
    assert "2 seeds" in out
    assert len(json.loads((finished / "results.json").read_text())["cells"]) == 3


def test_words_may_be_joined_by_dashes(compare, finished, finished_once):
    words = [word.replace("_", "-") if word.startswith("--") else word for word in SHORT]
    code, out, err = compare(*words, *TWO, short=False)
    assert code == 0, err
    assert out == finished_once[1].replace(str(finished_once[0]), str(finished))


@pytest.mark.parametrize(
    "harm", [lambda rows: rows.append([]), lambda rows: rows[0].pop("report"), lambda rows: rows[0].update(report={})]
)
def test_results_that_are_not_whole_are_refused(compare, finished, harm):
    path = finished / "results.json"
    data = json.loads(path.read_text())
    harm(data["cells"])
    path.write_text(json.dumps(data))
    code, _, err = compare("--show", path)
    assert code == 2
    assert str(path) in err
    assert err.count("\n") == 1


def test_models_are_kept_if_wanted_but_not_their_checkpoints(finished):
    assert (finished / "cells" / "cyclical-0.9-seed1" / "model.safetensors").exists()
    assert not list(finished.glob("cells/*/checkpoint-*"))


def test_the_cycles_of_any_experiment_are_shown_if_wanted(compare, finished):
    code, out, err = compare("--show", finished / "results.json", "--by_cycle")
    assert code == 0, err
    rows = [[word.strip() for word in line.strip("|").split("|")] for line in out.splitlines() if line.startswith("|")]
    report = json.loads((finished / "reports" / "cyclical-0.9-seed1.json").read_text())
    assert [row[:2] for row in rows] == [  # one_shot has one cycle
        ["", ""],
        ["---", "---"],
        *(["cyclical", what] for what in ("accuracy", "mask distance", "regrown (%)")),
    ]
    for i, cycle in enumerate(report["cycles"]):
        expected = (100 * cycle["metrics"]["accuracy"], cycle["mask_distance"], 100 * cycle["regrown"])
        assert [row[2 + i] for row in rows] == [f"cycle {i + 1}", "---", *(f"{value:.2f}" for value in expected)]


def test_what_another_command_is_at_is_left_to_it(compare, finished):
    more = [*TWO[:-1], 2]
    with claimed(finished, "one_shot-0.9-seed2") as mine:
        assert mine
        code, out, err = compare(*more)
        assert code == 0, err
        assert {path.name for path in (finished / "reports").glob("*seed2*")} == {"cyclical-0.9-seed2.json"}
        assert "Runs that another command is at: 1." in out
    code, out, err = compare(*more)
    assert code == 0, err
    assert (finished / "reports" / "one_shot-0.9-seed2.json").exists()
    assert "another command" not in out


def test_a_command_that_leaves_every_run_to_others_says_so(compare, finished):
    shutil.rmtree(finished / "reports")
    (finished / "results.json").unlink()
    with claimed(finished, "one_shot-0.9-seed1"), claimed(finished, "cyclical-0.9-seed1"):
        code, out, err = compare(*TWO)
    assert code == 0, err
    assert out.startswith("No run is finished.")
    assert "Runs that another command is at: 2." in out


def test_commands_that_start_together_share_the_dense_model_and_the_runs(tmp_path):
    folder = tmp_path / "out"
    with claimed(folder, "cifar_resnet8-dense"):
        commands = [start(COMPARE, *SHORT, *TWO, "--output_dir", folder) for _ in range(2)]
        for command in commands:
            wait_for(command, "waiting for another command, which is at cifar_resnet8-dense")
    errors = [command.communicate(timeout=HUNG)[1] for command in commands]
    assert [command.returncode for command in commands] == [0, 0], errors
    reports = [load_report(path) for path in (folder / "reports").iterdir()]
    assert sorted(report.config["method"] for report in reports) == ["cyclical", "one_shot"]
    assert len({report.dense["loss"] for report in reports}) == 1


def test_the_table_that_is_left_has_every_method_though_the_cycles_are_shown(compare, finished):
    left = (finished / "table.md").read_text()
    code, out, err = compare(*TWO, "--by_cycle", folder=finished)
    assert code == 0, err
    assert "| cyclical | regrown (%) |" in out
    assert (finished / "table.md").read_text() == left


def test_ablations_show_accuracy_and_masks_of_each_cycle(compare):
    code, out, err = compare(
        "--experiment", "digits-schedules", "--methods", "linear", "cyclical_lr", "--sparsities", 0.9, "--seeds", 1
    )
    assert code == 0, err
    rows = [line.split(" | ") for line in out.splitlines() if line.startswith("| ")]
    assert [row[:2] for row in rows[2:]] == [
        [f"| {label}", what]
        for label in ("linear", "cyclical_lr")
        for what in ("accuracy", "mask distance", "regrown (%)")
    ]
    assert [row[2].strip(" |") for row in rows[2:] if row[1] == "mask distance"] == ["0.00", "0.00"]
    assert rows[-2][3].strip(" |") == "0.00"  # cyclical_lr keeps its masks


def test_the_dense_model_that_is_trained_first_teaches_in_the_tables_of_levers(compare, tmp_path):
    levers = ["--experiment", "digits-levers-choice", "--methods", "only distill", "+ average", "--updates", 10]
    code, out, err = compare(*levers, "--sparsities", 0.9, "--seeds", 1, short=False)
    assert code == 0, err
    reports = [load_report(path) for path in (tmp_path / "out" / "reports").iterdir()]
    assert [report.config["distill"] for report in reports] == [0.5, 0.5]
    assert {report.about["holdout"] for report in reports} == {0.2}
    assert "| sparsity | + average | only distill |" in out


def test_an_interrupted_cell_is_resumed_to_the_same_report(compare, tmp_path):
    arguments = ["--methods", "cyclical", "--sparsities", "0.9", "--delta_t", "1", "--cycles", "2", "--scale", "0.04"]
    arguments += ["--max_train_samples", "256", "--model_name_or_path", "cifar_resnet8", "--save_steps", "10"]
    arguments += ["--seeds", "1"]
    process = start(COMPARE, *arguments, "--output_dir", tmp_path / "stopped", start_new_session=True)
    _, err = interrupt(process, r" ([3-9]\d|1\d\d)/\d+ ")
    assert process.returncode == 130
    assert "the same command resumes" in err
    assert not (tmp_path / "stopped" / "reports").exists()
    for folder in ("stopped", "whole"):
        code, _, err = compare(*arguments, folder=tmp_path / folder, short=False)
        assert code == 0, err
    stopped, whole = (load_report(tmp_path / n / "reports" / "cyclical-0.9-seed1.json") for n in ("stopped", "whole"))
    assert stopped.cycles == whole.cycles
    assert stopped.masks == whole.masks


def test_a_signal_at_the_last_update_of_a_cell_keeps_it_and_stops(compare, tmp_path, monkeypatch):
    class CtrlC(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == state.max_steps:
                os.kill(os.getpid(), signal.SIGINT)

    build = Run.build.__func__
    monkeypatch.setattr(
        Run,
        "build",
        classmethod(lambda cls, a, d, callbacks=(), **more: build(cls, a, d, [*callbacks, CtrlC()], **more)),
    )
    code, _, err = compare(*TWO, "--model_name_or_path", "cifar_resnet8")
    assert code == 130
    assert "the same command resumes" in err
    assert [path.name for path in (tmp_path / "out" / "reports").iterdir()] == ["one_shot-0.9-seed1.json"]


def test_a_dense_model_is_trained_with_the_rate_of_its_experiment(command, tmp_path, monkeypatch):
    trained = []

    def train(words, *rest):
        trained.append(dict(zip(words[::2], words[1::2], strict=True)))

    monkeypatch.setattr(compare_runs, "train", train)
    words = ["--experiment", "cifar10-resnet20", "--dataset_name", "digits", "--methods", "gradual"]
    assert command(*words, "--output_dir", tmp_path / "out")[0] == INTERRUPTED  # as train returns no run
    assert len(trained) == 1
    # He et al.'s 0.1 and 160 epochs, and the paper's 0.01 for pruning only.
    expected = {"--learning_rate": "0.1", "--num_train_epochs": "160", "--target_sparsity": "0", "--seed": "0"}
    assert trained[0].items() >= expected.items()


def test_a_row_whose_settings_have_changed_is_not_mixed_with_its_former_runs(compare, finished):
    path = finished / "reports" / "cyclical-0.9-seed1.json"
    path.write_text(path.read_text().replace("--method cyclical", "--method cyclical --share erk"))
    before = snapshot(finished)
    code, _, err = compare(*TWO)
    assert code == 2
    assert f"cyclical 0.9 seed 1 in {finished} had other settings: share is erk there, not given here: run it" in err
    assert snapshot(finished) == before


def test_a_run_that_fails_is_named_and_what_is_finished_stays(compare, finished, monkeypatch):
    def train(*rest):
        raise PruningError("conv1.weight has 3 NaN or infinite weights of 72")

    before = snapshot(finished / "reports")
    monkeypatch.setattr(compare_runs, "train", train)
    code, _, err = compare(*TWO[:-1], 2)
    assert code == 2
    assert "one_shot 0.9 seed 2: conv1.weight has 3 NaN or infinite weights of 72" in err
    assert snapshot(finished / "reports") == before


def test_runs_from_another_dense_model_are_refused_before_their_first_update(compare, finished, monkeypatch):
    trained, train = [], compare_runs.train

    class Counts(TrainerCallback):
        def on_step_end(self, args, state, *rest, **kwargs):
            trained.append(state.global_step)

    monkeypatch.setattr(compare_runs, "train", lambda *given: train(*given, Counts()))
    for path in (finished / "reports").iterdir():
        report = json.loads(path.read_text())
        report["dense"]["loss"] *= 1.1
        path.write_text(json.dumps(report))
    before = snapshot(finished / "reports")
    code, _, err = compare(*TWO[:-1], 1, 2)
    assert code == 2
    assert f"{finished} starts from another dense model than" in err
    assert not trained
    assert snapshot(finished / "reports") == before


def test_a_run_that_diverges_is_told_and_the_others_go_on(compare, finished, monkeypatch):
    kept, train = snapshot(finished / "reports"), compare_runs.train

    def too_fast(words, work, *rest):
        fast = "one_shot" in words
        return train([*words, "--learning_rate", "1e30"] if fast else words, work, *rest)

    monkeypatch.setattr(compare_runs, "train", too_fast)
    code, out, err = compare(*TWO[:-1], 1, 2)
    assert code == 0, err
    [line] = [line for line in out.splitlines() if line.startswith("- one_shot 0.9 seed 2: ")]
    assert "NaN or infinite" in line
    assert (finished / "reports" / "cyclical-0.9-seed2.json").exists()
    assert not (finished / "cells" / "one_shot-0.9-seed2").exists()
    row = next(line for line in out.splitlines() if line.startswith("| 0.9 "))
    assert "(1)" in row.split(" | ")[1]  # of two seeds
    assert "(1)" not in row.split(" | ")[2]
    assert kept.items() <= snapshot(finished / "reports").items()
    assert compare("--show", finished / "results.json")[1].strip() in out
    monkeypatch.setattr(compare_runs, "train", None)  # nothing is run again
    assert compare(*TWO[:-1], 1, 2)[0] == 0


def test_two_processes_share_the_work_of_each_cell(tmp_path):
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "scripts/compare.py"]
    code, out, err = run(launcher, *SHORT, *TWO, "--use_cpu", "--ddp_backend", "gloo", "--output_dir", tmp_path / "out")
    assert code == 0, err
    assert out.count("| 0.9 |") == 1
    assert load_report(tmp_path / "out" / "reports" / "cyclical-0.9-seed1.json").about["processes"] == 2


def test_a_budget_in_updates_is_that_of_every_method(compare, tmp_path):
    words = [*TWO, "--updates", "9", "--max_train_samples", "128", "--delta_t", "1", "--cycles", "2"]
    code, out, err = compare(*words, "--augment", "shift", "--eval_fraction", "0.3", short=False)
    assert code == 0, err
    assert ", 9 updates; dense" in out
    for path in (tmp_path / "out" / "reports").iterdir():
        report = load_report(path)
        assert (report.updates, report.dense_updates) == (9, 0)
        assert "--max_steps 9" in report.about["command"]
    code, again, _ = compare("--show", tmp_path / "out" / "results.json")
    assert again.splitlines()[0] == out.splitlines()[0]
    code, _, err = compare(*words, "--augment", "shift", "--eval_fraction", "0.3", "--updates", "10", short=False)
    assert code == 2
    assert "updates is 9 there, 10 here" in err
