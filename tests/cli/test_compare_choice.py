"""`hf-cyclical compare` of rivals: their table, and the choice of settings on images that are held out."""

import json

import pytest

from hf_cyclical import load_report
from hf_cyclical.cli import INTERRUPTED, compare_runs

WORDS = ["--experiment", "digits-rivals-choice", "--updates", "6", "--max_train_samples", "128", "--seeds", "1"]
RATES = ["0.01", "0.02", "0.05", "0.1", "0.2", "0.4"]
FIRST = RATES[1:-1]


def accuracies(folder):
    """Of every run by its rate and share."""
    found = {}
    for path in (folder / "reports").iterdir():
        method, rate, share, *_ = path.stem.split("-")
        assert method == "one_shot"
        found[rate.removeprefix("lr_"), share] = load_report(path).cycles[-1].metrics["accuracy"]
    return found


def searched(found):
    """What a search with these results has tried."""
    tried = list(FIRST)
    while True:
        at = RATES.index(max(tried, key=lambda rate: found[rate, "uniform"]))
        further = set(RATES[max(at - 1, 0) : at + 2]) - set(tried)
        if not further:
            return {*((rate, "uniform") for rate in tried), (RATES[at], "erk"), (RATES[at], "global")}
        tried = sorted({*tried, *further}, key=float)


def best(found):
    in_order = [(rate, share) for rate in RATES for share in ("uniform", "erk", "global")]  # of equal ones the first
    rate, share = max((key for key in in_order if key in found), key=found.get)
    return {"learning_rate": float(rate), "share": share}


def test_rates_are_tried_first_and_then_other_shares_with_the_best(compare, tmp_path):
    code, out, err = compare(*WORDS, "--methods", "one_shot", short=False)
    assert code == 0, err
    found = accuracies(tmp_path / "out")
    assert set(found) == searched(found)
    assert f'Best on the images held out: {{"one_shot": {json.dumps(best(found))}}}' in out
    kept = json.loads((tmp_path / "out" / "chosen.json").read_text())
    assert kept["chosen"] == {"one_shot": best(found)}
    assert sorted(kept["accuracy on the images held out"].values()) == pytest.approx(sorted(found.values()), abs=1e-6)
    reports = [load_report(path) for path in (tmp_path / "out" / "reports").iterdir()]
    assert {report.about["holdout"] for report in reports} == {0.2}


@pytest.mark.parametrize("stop_after", [1, 3])  # in the dense model's place stands the first
def test_an_interrupted_choice_resumes_without_a_second_run(compare, tmp_path, monkeypatch, stop_after):
    trained, train = [], compare_runs.train

    def interrupted(words, work, *rest):
        if len(trained) == stop_after:
            return None
        trained.append(work.name)
        return train(words, work, *rest)

    words = [*WORDS, "--methods", "one_shot"]
    monkeypatch.setattr(compare_runs, "train", interrupted)
    assert compare(*words, short=False)[0] == INTERRUPTED
    before = accuracies(tmp_path / "out") if stop_after > 1 else {}
    assert len(before) == stop_after - 1
    monkeypatch.setattr(compare_runs, "train", train)
    assert compare(*words, short=False)[0] == 0
    after = accuracies(tmp_path / "out")
    assert set(after) == searched(after)
    assert before.items() <= after.items()


def test_another_share_is_not_tried_while_another_command_is_at_a_rate(compare, tmp_path):
    with compare_runs.claimed(tmp_path / "out", "one_shot-lr_0.1-uniform-0.98-seed1"):
        code, out, err = compare(*WORDS, "--methods", "one_shot", short=False)
    assert code == 0, err
    assert set(accuracies(tmp_path / "out")) == {(rate, "uniform") for rate in FIRST if rate != "0.1"}
    assert "Not all is tried yet of one_shot." in out
    assert "Runs that another command is at: 1." in out
    assert json.loads((tmp_path / "out" / "chosen.json").read_text())["chosen"] == {}


def test_a_choice_names_its_methods_where_one_is_unknown(compare):
    code, _, err = compare(*WORDS, "--methods", "rigel", short=False)
    assert code == 2
    assert err.endswith("choose from one_shot, gradual, cyclical, cyclical_lr, rigl, snfs, dpf, acdc, granet\n")


def test_a_table_of_rivals_measures_what_an_update_costs_and_comes_back_from_its_file(compare, tmp_path):
    words = ["--experiment", "digits-rivals", "--updates", "12", "--max_train_samples", "128", "--seeds", "1"]
    code, out, err = compare(*words, "--methods", "gradual", "rigl", "--sparsities", "0.9", short=False)
    assert code == 0, err
    rows = {line.split(" | ")[0].strip("| "): line.strip("| ").split(" | ") for line in out.splitlines()}
    for method in ("gradual", "rigl"):
        report = load_report(tmp_path / "out" / "reports" / f"{method}-0.9-seed1.json")
        ratio = report.about["seconds per update"] / report.about["dense seconds per update"]
        assert ratio > 0
        assert rows[method][2:] == [f"{100 * report.mean_density:.1f}", f"{ratio:.2f}"]
    assert compare("--show", tmp_path / "out" / "results.json")[1].strip() in out


@pytest.mark.parametrize(("call", "kept"), [(2, 0), (4, 1)])  # of the dense model, a timing, the cell, a timing
def test_an_interrupted_timing_stops_and_keeps_what_is_finished(compare, tmp_path, monkeypatch, call, kept):
    calls, train = [], compare_runs.train

    def interrupted(*args):
        calls.append(args)
        return None if len(calls) == call else train(*args)

    monkeypatch.setattr(compare_runs, "train", interrupted)
    words = ["--experiment", "digits-rivals", "--updates", "8", "--max_train_samples", "128", "--seeds", "1"]
    code, _, err = compare(*words, "--methods", "gradual", "--sparsities", "0.9", short=False)
    assert code == INTERRUPTED, err
    assert len(calls) == call
    reports = [load_report(path) for path in (tmp_path / "out" / "reports").glob("*.json")]
    assert len(reports) == kept
    assert all(report.about["dense seconds per update"] > 0 for report in reports)  # that of the first timing


def test_the_measurement_of_costs_leaves_the_run_as_it_is(compare, tmp_path):
    words = ["--updates", "8", "--max_train_samples", "128", "--seeds", "1", "--methods", "one_shot"]
    for name in ("digits-rivals", "digits"):
        code, _, err = compare(*words, "--sparsities", "0.9", "--experiment", name, short=False, folder=tmp_path / name)
        assert code == 0, err
    timed, other = (
        load_report(tmp_path / n / "reports" / "one_shot-0.9-seed1.json") for n in ("digits-rivals", "digits")
    )
    assert "seconds per update" not in other.about
    assert (timed.cycles, timed.evaluations, timed.masks) == (other.cycles, other.evaluations, other.masks)
