"""Section 4 of the paper: does pruning find the weight that is not needed? One-shot against PGD in linear regression.

hf-cyclical linear                          # Table 1 of the paper beside ours, in seconds
hf-cyclical linear --sweep --json FILE      # and how it depends on lambda, also into a file

A problem is y = X alpha with normal X (n samples in rows, d weights, entries scaled by 1 / sqrt(n)) and one zero in
alpha, at the index c. Both methods start from the regularised least-squares solution w = A alpha with
A = (X^T X + lambda I)^-1 X^T X, and prune one weight. They recover alpha's support if that weight is c at the end. The
random alpha has normal entries; the adversarial alpha is the row c of A, which makes w_c large. The paper gives neither
lambda nor PGD's step size: both are arguments.
"""

import json
import sys
from argparse import Namespace
from collections.abc import Sequence
from itertools import product
from pathlib import Path

from hf_cyclical.core import PruningError
from hf_cyclical.paper import (
    LinearCell,
    Rate,
    Simulation,
    dependence_on_lambda,
    index_line,
    linear_table,
    rate_record,
    settled_line,
)

from .command_line import Parser, fail

_CHOICES = ("random", "adversarial")
_SWEEP = [0.01, 0.1, 1.0, 3.0, 10.0, 30.0, 100.0]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line, and return its exit code."""
    options = _parse(argv)
    try:
        simulations = _plan(options)
        cells = [LinearCell(simulation, simulation.run()) for simulation in simulations]
        index = _adversarial_index(options)
    except PruningError as error:
        fail(error)
    shown = [cell for cell in cells if cell.of.lam == options.lambdas[0]]
    texts = [_settings_line(options), linear_table(shown), settled_line(shown), index_line(index)]
    if len(cells) > len(shown):
        texts += ["How it depends on lambda (one-shot / PGD):", dependence_on_lambda(cells)]
    sys.stdout.write("\n\n".join(texts) + "\n")
    if options.json:
        _write(options, cells, index)
    return 0


def _plan(options: Namespace) -> list[Simulation]:
    """Every cell of the table for every lambda. All are made before one is run, so that bad input is found at once."""
    lambdas = sorted({*options.lambdas, *_SWEEP}) if options.sweep else dict.fromkeys(options.lambdas)
    c = min(3, options.d) - 1  # the paper's c = 3, from 0
    common = {"d": options.d, "c": c} | {
        name: getattr(options, name) for name in ("runs", "steps", "step_size", "seed")
    }
    cells = product(lambdas, dict.fromkeys(options.n), _CHOICES)
    return [Simulation(alpha, n, lam, **common) for lam, n, alpha in cells]


def _adversarial_index(options: Namespace) -> Rate:
    """The other figure of section 4: magnitude pruning alone, 10,000 matrices of d = 5, n = 4, with c = 3 (from 1)."""
    return (
        Simulation("adversarial", n=4, lam=options.lambdas[0], runs=10_000, steps=1, seed=options.seed).run().one_shot
    )


def _settings_line(options: Namespace) -> str:
    step = "1 / L" if options.step_size is None else f"{options.step_size:g}"
    return (
        f"d = {options.d}, lambda = {options.lambdas[0]:g}, PGD with {options.steps:,} updates of step size {step}, "
        f"{options.runs:,} runs a row, seed {options.seed}. After ±: the standard error; that of the paper's 100 runs "
        "is up to 0.05."
    )


def _write(options: Namespace, cells: list[LinearCell], index: Rate) -> None:
    settings = {name: getattr(options, name) for name in ("runs", "d", "n", "steps", "step_size", "seed")}
    figures = {
        "settings": settings | {"lambda": options.lambdas},
        "cells": [cell.record() for cell in cells],
        "adversarial_index": {"d": 5, "n": 4, "c": 3, "lambda": options.lambdas[0], "paper": 0.03} | rate_record(index),
    }
    options.json.write_text(json.dumps(figures, indent=2) + "\n")


def _parse(argv: Sequence[str] | None) -> Namespace:
    parser = Parser("linear", __doc__)
    parser.add_argument(
        "--runs", type=int, default=10_000, help="problems in each row of the table (10000; paper: 100)"
    )
    parser.add_argument("--d", type=int, default=5, help="number of weights (5)")
    parser.add_argument("--n", type=int, nargs="+", default=[2, 4, 10], help="numbers of samples (2 4 10)")
    parser.add_argument(
        "--lambda", type=float, nargs="+", default=[10.0], dest="lambdas", metavar="LAMBDA",
        help="of the least-squares solution (10); the table is for the first, more show how it depends on lambda",
    )  # fmt: skip
    parser.add_argument("--sweep", action="store_true", help=f"also lambda = {' '.join(f'{lam:g}' for lam in _SWEEP)}")
    parser.add_argument(
        "--step_size", type=float,
        help="of PGD on |y - Xw|^2 / 2; if not given 1 / L for each X, L being the largest eigenvalue of X^T X",
    )  # fmt: skip
    parser.add_argument("--steps", type=int, default=1000, help="updates of PGD (1000)")
    parser.add_argument("--seed", type=int, default=0, help="of matrices and alphas, the same for every row (0)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file, too")
    options = parser.parse_args(argv)
    if options.json and (options.json.is_dir() or not options.json.parent.is_dir()):
        parser.error(f"--json {options.json} cannot be written: name a file in an existing folder")
    if not 0 <= options.seed < 2**63:
        parser.error(f"--seed {options.seed} is no seed: give a number from 0 to 2^63 - 1")
    return options
