"""Section 4 of the paper: does pruning find the weight that is not needed? One-shot against PGD in linear regression.

python scripts/linear_recovery.py                          # Table 1 of the paper beside ours, in seconds
python scripts/linear_recovery.py --sweep --json FILE      # and how it depends on lambda, also into a file

A problem is y = X alpha with normal X (n samples in rows, d weights, entries scaled by 1 / sqrt(n)) and one zero in
alpha, at the index c. Both methods start from the regularised least-squares solution w = A alpha with
A = (X^T X + lambda I)^-1 X^T X, and prune one weight. They recover alpha's support if that weight is c at the end. The
random alpha has normal entries; the adversarial alpha is the row c of A, which makes w_c large. The paper gives neither
lambda nor PGD's step size: both are arguments.
"""

import argparse
import json
import sys
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from hf_cyclical.cli import fail
from hf_cyclical.core import PruningError
from hf_cyclical.paper import LINEAR_RECOVERY, Rate, Recovery, Simulation
from hf_cyclical.reports import table_of

CHOICES = ("random", "adversarial")
SWEEP = [0.01, 0.1, 1.0, 3.0, 10.0, 30.0, 100.0]


@dataclass(frozen=True)
class Cell:
    of: Simulation
    ours: Recovery

    @property
    def paper(self) -> tuple[float, float] | None:
        return LINEAR_RECOVERY.get((self.of.n, self.of.alpha)) if self.of.d == 5 else None

    def record(self) -> dict:
        rates = {"one_shot": self.ours.one_shot, "pgd": self.ours.pgd, "settled": self.ours.settled}
        ours = {name: figure(rate) for name, rate in rates.items()}
        paper = dict(zip(("one_shot", "pgd"), self.paper, strict=True)) if self.paper else None
        return {"n": self.of.n, "alpha": self.of.alpha, "lambda": self.of.lam, "paper": paper, **ours}


def main(argv: list[str]) -> int:
    options = parse(argv)
    try:
        simulations = plan(options)
        cells = [Cell(simulation, simulation.run()) for simulation in simulations]
        index = adversarial_index(options)
    except PruningError as error:
        fail(error)
    shown = [cell for cell in cells if cell.of.lam == options.lambdas[0]]
    print(settings_line(options), table_text(shown), settled_line(shown), index_line(index), sep="\n\n")
    if len(cells) > len(shown):
        print("", "How it depends on lambda (one-shot / PGD):", "", dependence_text(cells), sep="\n")
    if options.json:
        write(options, cells, index)
    return 0


def plan(options: argparse.Namespace) -> list[Simulation]:
    """Every cell of the table for every lambda. All are made before one is run, so that bad input is found at once."""
    lambdas = sorted({*options.lambdas, *SWEEP}) if options.sweep else dict.fromkeys(options.lambdas)
    c = min(3, options.d) - 1  # the paper's c = 3, from 0
    common = {"d": options.d, "c": c} | {
        name: getattr(options, name) for name in ("runs", "steps", "step_size", "seed")
    }
    cells = product(lambdas, dict.fromkeys(options.n), CHOICES)
    return [Simulation(alpha, n, lam, **common) for lam, n, alpha in cells]


def adversarial_index(options: argparse.Namespace) -> Rate:
    """The other figure of section 4: magnitude pruning alone, 10,000 matrices of d = 5, n = 4, with c = 3 (from 1)."""
    return (
        Simulation("adversarial", n=4, lam=options.lambdas[0], runs=10_000, steps=1, seed=options.seed).run().one_shot
    )


def settings_line(options: argparse.Namespace) -> str:
    step = "1 / L" if options.step_size is None else f"{options.step_size:g}"
    return (
        f"d = {options.d}, lambda = {options.lambdas[0]:g}, PGD with {options.steps:,} updates of step size {step}, "
        f"{options.runs:,} runs a row, seed {options.seed}. After ±: the standard error; that of the paper's 100 runs "
        "is up to 0.05."
    )


def table_text(cells: list[Cell]) -> str:
    head = ["n", "alpha", "one-shot, paper", "one-shot, ours", "PGD, paper", "PGD, ours"]
    rows = []
    for cell in cells:
        one_shot, pgd = (f"{p:.2f}" for p in cell.paper) if cell.paper else ("", "")
        rows.append([str(cell.of.n), cell.of.alpha, one_shot, show(cell.ours.one_shot), pgd, show(cell.ours.pgd)])
    return table_of([head, *rows])


def dependence_text(cells: list[Cell]) -> str:
    rows = {lam: [cell for cell in cells if cell.of.lam == lam] for lam in dict.fromkeys(cell.of.lam for cell in cells)}
    first = next(iter(rows.values()))
    table = [
        [f"{lam:g}", *(f"{c.ours.one_shot.value:.3f} / {c.ours.pgd.value:.3f}" for c in row), difference(row)]
        for lam, row in rows.items()
    ]
    if any(c.paper for c in first):
        table.append(["paper", *("{:.2f} / {:.2f}".format(*c.paper) if c.paper else "" for c in first), ""])
    head = ["lambda", *(f"n = {c.of.n}, {c.of.alpha}" for c in first), "mean distance from the paper"]
    return table_of([head, *table])


def difference(cells: list[Cell]) -> str:
    pairs = [
        pair
        for cell in cells
        if cell.paper
        for pair in zip(cell.paper, (cell.ours.one_shot.value, cell.ours.pgd.value), strict=True)
    ]
    return f"{sum(abs(paper - ours) for paper, ours in pairs) / len(pairs):.3f}" if pairs else ""


def settled_line(cells: list[Cell]) -> str:
    least = min(cells, key=lambda cell: cell.ours.settled.value)
    percent = 100 * least.ours.settled.value
    return (
        f"PGD's mask at the end is the one after {least.of.steps // 2:,} updates in {percent:.1f} % of "
        f"the runs or more (fewest with n = {least.of.n}, {least.of.alpha})."
    )


def index_line(rate: Rate) -> str:
    return (
        f"Magnitude pruning of the least-squares solution finds the adversarial index in {100 * rate.value:.2f} ± "
        f"{100 * rate.standard_error:.2f} % of {rate.runs:,} matrices with d = 5, n = 4, c = 3 (paper: about 3 %)."
    )


def show(rate: Rate) -> str:
    return f"{rate.value:.3f} ± {rate.standard_error:.3f}"


def figure(rate: Rate) -> dict:
    return {"rate": rate.value, "standard_error": rate.standard_error, "successes": rate.successes, "runs": rate.runs}


def write(options: argparse.Namespace, cells: list[Cell], index: Rate) -> None:
    settings = {name: getattr(options, name) for name in ("runs", "d", "n", "steps", "step_size", "seed")}
    figures = {
        "settings": settings | {"lambda": options.lambdas},
        "cells": [cell.record() for cell in cells],
        "adversarial_index": {"d": 5, "n": 4, "c": 3, "lambda": options.lambdas[0], "paper": 0.03} | figure(index),
    }
    options.json.write_text(json.dumps(figures, indent=2) + "\n")


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--runs", type=int, default=10_000, help="problems in each row of the table (10000; paper: 100)"
    )
    parser.add_argument("--d", type=int, default=5, help="number of weights (5)")
    parser.add_argument("--n", type=int, nargs="+", default=[2, 4, 10], help="numbers of samples (2 4 10)")
    parser.add_argument(
        "--lambda", type=float, nargs="+", default=[10.0], dest="lambdas", metavar="LAMBDA",
        help="of the least-squares solution (10); the table is for the first, more show how it depends on lambda",
    )  # fmt: skip
    parser.add_argument("--sweep", action="store_true", help=f"also lambda = {' '.join(f'{lam:g}' for lam in SWEEP)}")
    parser.add_argument(
        "--step_size", type=float,
        help="of PGD on |y - Xw|^2 / 2; if not given 1 / L for each X, L being the largest eigenvalue of X^T X",
    )  # fmt: skip
    parser.add_argument("--steps", type=int, default=1000, help="updates of PGD (1000)")
    parser.add_argument("--seed", type=int, default=0, help="of matrices and alphas, the same for every row (0)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file, too")
    parser.error = lambda message: fail(f"{message} (--help explains every argument)")
    options = parser.parse_args(argv)
    if options.json and (options.json.is_dir() or not options.json.parent.is_dir()):
        parser.error(f"--json {options.json} cannot be written: name a file in an existing folder")
    if not 0 <= options.seed < 2**63:
        parser.error(f"--seed {options.seed} is no seed: give a number from 0 to 2^63 - 1")
    return options


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
