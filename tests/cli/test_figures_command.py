"""`hf-cyclical figures`: the figures of a report file."""

import json
from pathlib import Path

import pytest
from support.made_reports import made, without_metrics
from support.started import captured

from hf_cyclical.cli import main

NAMES = {f"pruning_{name}.{ending}" for name in ("run", "regrown", "recovery", "layers") for ending in ("png", "svg")}


def figures(*arguments):
    return captured(main, "figures", *arguments)


def snapshot(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_it_draws_all_figures_beside_the_report(tmp_path):
    made().save(tmp_path)
    code, out, err = figures(tmp_path)
    assert (code, err) == (0, "")
    assert {Path(line) for line in out.splitlines()} == {tmp_path / name for name in NAMES}
    assert {path.name for path in tmp_path.iterdir()} == {*NAMES, "pruning_report.json"}


def test_figures_are_named_after_the_report_and_go_where_asked(tmp_path):
    file = made().save(tmp_path).rename(tmp_path / "cyclical-0.9-seed1.json")
    code, out, _ = figures(file, "--output_dir", tmp_path / "new" / "figures", "--only", "layers", "--formats", "svg")
    assert code == 0
    assert out.split() == [str(tmp_path / "new" / "figures" / "cyclical-0.9-seed1_layers.svg")]
    assert len(snapshot(tmp_path)) == 2


def test_files_that_exist_are_kept_unless_told_otherwise(tmp_path):
    made().save(tmp_path)
    old = tmp_path / "pruning_run.png"
    old.write_text("mine")
    code, out, err = figures(tmp_path, "--formats", "png")
    assert code == 0
    assert old.read_text() == "mine"
    assert err == f"{old} exists and is kept: --overwrite replaces it\n"
    assert len(out.splitlines()) == 3
    code, out, err = figures(tmp_path, "--formats", "png", "--overwrite")
    assert (code, err) == (0, "")
    assert old.read_bytes().startswith(b"\x89PNG")


def test_a_figure_without_data_is_left_out_with_a_line(tmp_path):
    without_metrics(made(cycles=1)).save(tmp_path)
    code, out, err = figures(tmp_path, "--formats", "svg")
    assert code == 0
    assert err == "no recovery figure: nothing was evaluated in this run\n"
    assert len(out.splitlines()) == 3


def changed(**values):
    return lambda text: json.dumps(json.loads(text) | values)


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (lambda text: text[: len(text) // 2], "is not a complete report"),
        (lambda text: "", "is not a complete report"),
        (lambda text: "[]", "is not a complete report"),
        (lambda text: "{}", "schema None"),
        (changed(schema=2), "has schema 2, this version of hf_cyclical reads 1: upgrade it"),
        (changed(surprise=1), "is not a complete report"),
        (changed(masks=[[1]]), "is not a complete report, see its masks"),
        (changed(schedule=[[1, 2, 3]]), "is not a complete report, see its schedule"),
        (
            changed(layers=[{"name": "a", "shape": [1], "weights": 0, "kept": 0, "regrown": 0}]),
            "is not a complete report, see its layers",
        ),
        (
            changed(layers=[{"name": "a", "shape": [4, 5], "weights": 20, "kept": 1, "regrown": 0, "empty": 5}]),
            "is not a complete report, see its layers",
        ),
        (changed(updates="many"), "is not a complete report, see its updates"),
    ],
)
def test_bad_reports_are_one_line_and_nothing_is_overwritten(tmp_path, harm, words):
    file = made().save(tmp_path)
    file.write_text(harm(file.read_text()))
    for name in NAMES:
        (tmp_path / name).write_text("mine")
    before = snapshot(tmp_path)
    code, out, err = figures(tmp_path, "--overwrite")
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert words in err
    assert str(tmp_path) in err
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere.json"], "nowhere.json: No such file"),
        (["."], "pruning_report.json: No such file"),
        (["report.json", "--output_dir", "report.json"], "report.json: File exists"),
        (["report.json", "--formats", "gif"], "argument --formats: invalid choice: 'gif'"),
        (["report.json", "--only", "all"], "argument --only: invalid choice: 'all'"),
        ([], "arguments are required: REPORT"),
    ],
)
def test_bad_arguments_are_one_line(tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    made().save(tmp_path).rename(tmp_path / "report.json")
    code, out, err = figures(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert words in err
    assert len(snapshot(tmp_path)) == 1
