"""Table 1 of the paper beside ours, from simulations of its section 4."""

from dataclasses import dataclass
from typing import Any

from hf_cyclical.reports import table_of

from .linear import Rate, Recovery, Simulation
from .published import LINEAR_RECOVERY


@dataclass(frozen=True)
class LinearCell:
    """A cell of the table: its simulation and what it found."""

    of: Simulation
    ours: Recovery

    @property
    def paper(self) -> tuple[float, float] | None:
        """What the paper has there, for one-shot and PGD."""
        return LINEAR_RECOVERY.get((self.of.n, self.of.alpha)) if self.of.d == 5 else None

    def record(self) -> dict[str, Any]:
        """As JSON."""
        rates = {"one_shot": self.ours.one_shot, "pgd": self.ours.pgd, "settled": self.ours.settled}
        ours = {name: rate_record(rate) for name, rate in rates.items()}
        paper = dict(zip(("one_shot", "pgd"), self.paper, strict=True)) if self.paper else None
        return {"n": self.of.n, "alpha": self.of.alpha, "lambda": self.of.lam, "paper": paper, **ours}


def linear_table(cells: list[LinearCell]) -> str:
    """The paper's Table 1 beside ours."""
    head = ["n", "alpha", "one-shot, paper", "one-shot, ours", "PGD, paper", "PGD, ours"]
    rows = []
    for cell in cells:
        one_shot, pgd = (f"{p:.2f}" for p in cell.paper) if cell.paper else ("", "")
        rows.append([str(cell.of.n), cell.of.alpha, one_shot, _show(cell.ours.one_shot), pgd, _show(cell.ours.pgd)])
    return table_of([head, *rows])


def dependence_on_lambda(cells: list[LinearCell]) -> str:
    """The same cells for several lambdas, and how far each is from the paper."""
    rows = {lam: [cell for cell in cells if cell.of.lam == lam] for lam in dict.fromkeys(cell.of.lam for cell in cells)}
    first = next(iter(rows.values()))
    table = [
        [f"{lam:g}", *(f"{c.ours.one_shot.value:.3f} / {c.ours.pgd.value:.3f}" for c in row), _difference(row)]
        for lam, row in rows.items()
    ]
    if any(c.paper for c in first):
        table.append(["paper", *("{:.2f} / {:.2f}".format(*c.paper) if c.paper else "" for c in first), ""])
    head = ["lambda", *(f"n = {c.of.n}, {c.of.alpha}" for c in first), "mean distance from the paper"]
    return table_of([head, *table])


def _difference(cells: list[LinearCell]) -> str:
    pairs = [
        pair
        for cell in cells
        if cell.paper
        for pair in zip(cell.paper, (cell.ours.one_shot.value, cell.ours.pgd.value), strict=True)
    ]
    return f"{sum(abs(paper - ours) for paper, ours in pairs) / len(pairs):.3f}" if pairs else ""


def settled_line(cells: list[LinearCell]) -> str:
    """How often PGD had come to rest halfway."""
    least = min(cells, key=lambda cell: cell.ours.settled.value)
    percent = 100 * least.ours.settled.value
    return (
        f"PGD's mask at the end is the one after {least.of.steps // 2:,} updates in {percent:.1f} % of "
        f"the runs or more (fewest with n = {least.of.n}, {least.of.alpha})."
    )


def index_line(rate: Rate) -> str:
    """The figure of the adversarial index, beside the paper's."""
    return (
        f"Magnitude pruning of the least-squares solution finds the adversarial index in {100 * rate.value:.2f} ± "
        f"{100 * rate.standard_error:.2f} % of {rate.runs:,} matrices with d = 5, n = 4, c = 3 (paper: about 3 %)."
    )


def _show(rate: Rate) -> str:
    return f"{rate.value:.3f} ± {rate.standard_error:.3f}"


def rate_record(rate: Rate) -> dict[str, Any]:
    """A rate as JSON."""
    return {"rate": rate.value, "standard_error": rate.standard_error, "successes": rate.successes, "runs": rate.runs}
