"""`hf-cyclical linear` as its users start it."""

import json
import re
import sys

import pytest
from support.started import run

from hf_cyclical.cli import main
from hf_cyclical.paper import Simulation

COMMAND = [sys.executable, "-m", "hf_cyclical", "linear"]


def rows(out, first):
    """The cells of the Markdown table whose first column has this name."""
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in out.splitlines() if line.startswith("|")]
    start = next(i for i, line in enumerate(lines) if line[0] == first)
    width = len(lines[start])
    assert lines[start + 1] == ["---"] * width
    table = []
    for line in lines[start + 2 :]:
        if len(line) != width:
            break
        table.append(line)
    return lines[start], table


@pytest.fixture(scope="module")
def few_runs(tmp_path_factory):
    file = tmp_path_factory.mktemp("linear") / "figures.json"
    code, out, err = run(COMMAND, "--runs", 50, "--steps", 40, "--lambda", 10, 0.1, "--seed", 3, "--json", file)
    assert code == 0, err
    return out, json.loads(file.read_text())


def test_the_papers_table_stands_beside_ours(few_runs):
    out, _ = few_runs
    head, table = rows(out, "n")
    assert head == ["n", "alpha", "one-shot, paper", "one-shot, ours", "PGD, paper", "PGD, ours"]
    assert [line[:3] + line[4:5] for line in table] == [
        ["2", "random", "0.33", "0.32"],
        ["2", "adversarial", "0.12", "0.11"],
        ["4", "random", "0.22", "0.36"],
        ["4", "adversarial", "0.02", "0.23"],
        ["10", "random", "0.35", "0.64"],
        ["10", "adversarial", "0.04", "0.44"],
    ]
    cell = Simulation("random", n=10, lam=10.0, runs=50, steps=40, seed=3).run()
    for column, rate in ((3, cell.one_shot), (5, cell.pgd)):
        assert table[4][column] == f"{rate.value:.3f} ± {rate.standard_error:.3f}"


def test_the_figure_of_ten_thousand_matrices_is_there(few_runs):
    out, figures = few_runs
    line = re.search(r"adversarial index in (.*?) ± (.*?) % of 10,000 matrices .*\(paper: about 3 %\)", out)
    index = figures["adversarial_index"]
    assert float(line[1]) == pytest.approx(100 * index["rate"], abs=0.005)
    assert index["runs"] == 10_000


def test_several_lambdas_show_how_the_table_depends_on_lambda(few_runs):
    out, figures = few_runs
    head, table = rows(out, "lambda")
    assert head[1] == "n = 2, random"
    assert [line[0] for line in table] == ["10", "0.1", "paper"]
    assert table[2][4] == "0.02 / 0.23"
    cell = next(c for c in figures["cells"] if (c["n"], c["alpha"], c["lambda"]) == (4, "adversarial", 0.1))
    assert table[1][4] == f"{cell['one_shot']['rate']:.3f} / {cell['pgd']['rate']:.3f}"


def test_the_file_has_every_figure_and_the_settings(few_runs):
    _, figures = few_runs
    assert figures["settings"] == {
        "runs": 50, "d": 5, "n": [2, 4, 10], "steps": 40, "step_size": None, "seed": 3, "lambda": [10.0, 0.1],
    }  # fmt: skip
    assert len(figures["cells"]) == 12
    assert figures["cells"][0]["paper"] == {"one_shot": 0.33, "pgd": 0.32}
    for cell in figures["cells"]:
        p = cell["pgd"]["successes"] / 50
        assert cell["pgd"]["rate"] == p
        assert cell["pgd"]["standard_error"] == pytest.approx((p * (1 - p) / 50) ** 0.5)


def called(capsys, *arguments):
    """The same in this process, which has the imports behind it: exit code, output and error."""
    try:
        code = main(["linear", *map(str, arguments)])
    except SystemExit as exit_:
        code = exit_.code
    return code, *capsys.readouterr()


def test_other_sizes_have_no_figures_of_the_paper(capsys):
    code, out, _ = called(capsys, "--runs", 5, "--steps", 3, "--d", 2, "--n", 4, 4)
    assert code == 0
    _, table = rows(out, "n")
    assert [line[:3] for line in table] == [["4", "random", ""], ["4", "adversarial", ""]]


def test_sweep_adds_lambdas_to_the_table_of_the_chosen_one(capsys):
    code, out, _ = called(capsys, "--runs", 5, "--steps", 3, "--n", 4, "--lambda", 2, "--sweep")
    assert code == 0
    assert "lambda = 2," in out
    _, table = rows(out, "lambda")
    assert [line[0] for line in table] == ["0.01", "0.1", "1", "2", "3", "10", "30", "100", "paper"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--runs", 0], "runs is 0"),
        (["--n", 4, -1], "n is -1"),
        (["--d", 1], "d of at least 2"),
        (["--lambda", 0], "lambda is 0.0"),
        (["--lambda", "much"], "argument --lambda: invalid float value: 'much'"),
        (["--steps", 0], "steps is 0"),
        (["--step_size", "inf"], "step size is inf"),
        (["--step_size", 50, "--runs", 5], "step size 50.0 is too large"),
        (["--seed", -1], "--seed -1 is no seed"),
        (["--json", "no/such/folder.json"], "name a file in an existing folder"),
        (["--rums", 5], "unrecognized arguments: --rums 5"),
    ],
)
def test_bad_input_is_one_line(capsys, arguments, message):
    code, out, err = called(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert message in err
