"""`hf-cyclical compare` with folders that are not its own, harmed reports and bad input: nothing is lost."""

from pathlib import Path

import pytest

from hf_cyclical.paper import Setting, check_folder

from .conftest import TWO, snapshot


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (["--experiment", "digits-init", "--methods", "s_init 0"], "experiment is 'digits' there, 'digits-init' here"),
        (["--scale", "0.05"], "holds another experiment: scale is 0.006 there, 0.05 here"),
        (["--learning_rate", "0.1"], "holds another experiment: arguments"),
    ],
)
def test_the_folder_of_another_experiment_is_left_alone(compare, finished, change, words):
    before = snapshot(finished)
    code, _, err = compare(*TWO, *change)
    assert code == 2
    assert words in err
    assert err.count("\n") == 1
    assert snapshot(finished) == before


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        (["digits-rivals-choice", "--model_name_or_path", "trained"], "it out"),
        (["cifar10-resnet20-levers-choice", "--model_name_or_path", "trained"], "it out"),
        (["cifar10-resnet20", "--holdout=0.2", "--model_name_or_path", "trained"], "it out"),
        (["imagenet-resnet50", "--holdout", "0.2"], "holdout out"),  # whose own model is trained
    ],
)
def test_a_dense_model_that_may_have_seen_the_images_that_are_held_out_is_refused(compare, tmp_path, words, remedy):
    code, _, err = compare("--experiment", *words, short=False)
    assert code == 2
    assert f"may have been trained on the images that are held out to choose by: leave {remedy}" in err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["15", "--model_name_or_path", "trained"], "15 is for a dense model that is trained here, not trained"),
        (["15", "--experiment", "imagenet-resnet18"], "15 is for a dense model that is trained here, not timm/"),
        (["0"], "0 must be above 0: give the epochs of the dense model's training"),
        (["few"], "few"),
        ([], "dense_epochs"),
    ],
)
def test_epochs_of_a_dense_model_that_is_not_trained_here_or_not_at_all_are_refused(compare, tmp_path, words, why):
    code, _, err = compare("--dense_epochs", *words, short=False)
    assert code == 2
    assert why in err
    assert err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_folder_of_something_else_is_left_alone(compare, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("years of work")
    code, _, err = compare(*TWO)
    assert code == 2
    assert "holds something else: name another output_dir" in err
    assert snapshot(tmp_path / "out") == {tmp_path / "out" / "thesis.txt": b"years of work"}


def test_a_folder_that_another_process_is_making_is_not_something_else(tmp_path, monkeypatch):
    def is_there(path):
        there = exists(path)
        if path.name == "experiment.json":
            path.write_text("made right after we looked")
        return there

    exists = Path.exists
    (tmp_path / ".locks").mkdir()
    (tmp_path / ".experiment.json.new").write_text("half of it")
    monkeypatch.setattr(Path, "exists", is_there)
    check_folder(tmp_path, Setting("digits", 1.0, "cifar_resnet8", "digits", []))


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (lambda text: text[: len(text) // 2], "is not a complete report"),
        (lambda text: "[]", "is not a complete report"),
        (lambda text: '{"schema": 1}', "is not a complete report"),
        (lambda text: text.replace('"schema": 1', '"schema": 2'), "has schema 2, this version of hf_cyclical reads 1"),
        (lambda text: text.replace('"target_sparsity": 0.9,', '"target_sparsity": 0.8,'), "not (0.9, 1)"),
    ],
)
def test_a_harmed_report_is_named_and_not_overwritten(compare, finished, harm, words):
    path = finished / "reports" / "cyclical-0.9-seed1.json"
    path.write_text(harm(path.read_text()))
    before = snapshot(finished)
    code, _, err = compare(*TWO)
    assert code == 2
    assert str(path) in err
    assert words in err
    assert snapshot(finished) == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--experiment", "digit"], "experiment 'digit' is unknown: choose one of digits,"),
        (
            ["--preset", "digits"],
            "--preset is an argument of hf-cyclical prune: what is compared is chosen with --experiment digits",
        ),
        (["--methods", "cyclic"], "method 'cyclic' is not part of digits: choose from one_shot,"),
        (["--sparsities", "90"], "sparsity 90 must be above 0 and below 1"),
        (["--scale", "0"], "scale 0 must be above 0"),
        (["--scale", "0.0001"], "cycles"),
        (["--updates", "0"], "updates 0 must be at least 1"),
        (["--updates", "100", "--scale", "0.5"], "updates 100 contradicts scale 0.5"),
        (["--updates", "100", "--experiment", "imagenet-resnet50-scratch"], "its variants differ in length: use scale"),
        (["--max_steps", "3"], "--max_steps is set for each run by compare"),
        (["--seed", "3"], "--seed is set for each run by compare"),
        (["--pruning-epochs", "3"], "--pruning_epochs is set for each run by compare"),
        (["--experiment", "digits-schedules", "--schedule", "linear"], "--schedule is set for each run by compare"),
        (["--experiment", "digits-init", "--sparsities", "0.98", "0.7"], "init_sparsity 0.75"),
        (["--seeds", "-1"], "seed -1 must be in 0 to"),
        (["--scale", "inf"], "scale inf must be above 0"),
        (["--streaming", "True"], "--streaming needs max_steps"),
        (["--learning_rat", "3"], "argument --learning_rat is unknown: did you mean --learning_rate?"),
        (["word"], "argument 'word' stands alone"),
        (["--show", "nowhere.json"], "nowhere.json cannot be read"),
    ],
)
def test_bad_input_is_one_line_before_anything_is_written(compare, tmp_path, arguments, words):
    code, _, err = compare(*arguments, short=False)
    assert code == 2
    assert words in err
    assert err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_the_experiments_are_listed(compare):
    code, out, _ = compare("--experiment", "list")
    assert code == 0
    assert "cifar10-resnet20-schedules" in out
