"""The table of methods of different authors: accuracy and cost of each, who is first, and the paper's Table 4."""

from collections.abc import Sequence
from statistics import mean, stdev

from hf_cyclical.reports import PruningReport, final_metrics, table_of

from .published import TABLE_4
from .results import Results

Column = dict[str, list[float]]
"""The accuracies of each row at one sparsity, in percent."""


def rival_rows(labels: Sequence[str], results: Results) -> list[list[str]]:
    """A row for each label: accuracies at all sparsities, the mean density of the run at each, time per update."""
    sparsities = sorted({cell.sparsity for cell in results})
    columns = [_column(results, s) for s in sparsities]
    seeds = len({cell.seed for cell in results})
    rows = [["method", *(f"{s:g}" for s in sparsities), "mean density (%)", "time per update"]]
    for label in labels:
        densities = [[100 * report.mean_density for report in _reports(results, label, s)] for s in sparsities]
        shown = " / ".join(f"{mean(values):.1f}" if values else "-" for values in densities)
        accuracies = [spread(column.get(label, []), seeds) for column in columns]
        rows.append([label, *accuracies, shown, _time(results, label)])
    return rows


def first_lines(results: Results) -> str:
    """Who is first at each sparsity, and who is within the spread of the first.

    A row with fewer seeds than the others is not ranked: what diverged would count as if it had not been run.
    """
    lines = []
    for s in sorted({cell.sparsity for cell in results}):
        column = _column(results, s)
        most = max(map(len, column.values()), default=0)
        ranked = [label for label in column if len(column[label]) == most]
        order = sorted(ranked, key=lambda label: -mean(column[label]))
        if order:
            close = [label for label in order[1:] if _within(column[order[0]], column[label])]
            others = f"; within its spread: {'; '.join(close)}" if close else ""
            one = " (one seed, so that its spread is not known)" if most == 1 else ""
            few = [label for label in column if label not in ranked]
            unranked = f" Not ranked, with fewer seeds: {'; '.join(few)}." if few else ""
            lines.append(f"First at {s:g}: {order[0]}{one}{others}.{unranked}")
    return "\n".join(lines)


def table_4() -> str:
    """What the columns of cost are, and the paper's table of published results, as printed."""
    printed = [["method", "pruning ratio", "dense baseline", "pruned", "difference"], *map(list, TABLE_4)]
    return (
        "The first row of each method has the settings of its authors, but for what is one for all: which layers are "
        "pruned, the start from the dense model, of which RigL and SNFS keep random weights, and a cosine in place of "
        "steps of the learning rate. The paper's methods have a floor of the rows there, the others none. A second "
        "row, tuned, has the floor, the table's optimizer and the learning rate and share that were best on held-out "
        "images, at 0.98.\n\nMean density: weights that the masks kept, in the mean over all updates, at each "
        "sparsity: what hardware that skips zeros would pay in forward passes, dense training being 100, if all layers "
        "took as long for a weight. Gradients of SNFS and DPF are dense at every update, those of RigL and GraNet "
        "where masks are chosen. Time per update: over that of dense training with the same trainer, batch and images, "
        "measured right before and after each run. Within its spread: a mean that is lower by no more than the "
        "standard deviation of the first.\n\n"
        "The paper's Table 4, ResNet-50 on ImageNet, as printed: every method with a budget and a dense model of its "
        f"own.\n\n{table_of(printed)}"
    )


def spread(percentages: Sequence[float], expected: int) -> str:
    """Mean and standard deviation, and how many there are if not as many as expected."""
    if not percentages:
        return ""
    some = f" ({len(percentages)})" if len(percentages) < expected else ""
    deviation = f" ± {stdev(percentages):.2f}" if len(percentages) > 1 else ""
    return f"{mean(percentages):.2f}{deviation}{some}"


def _column(results: Results, s: float) -> Column:
    column: Column = {}
    for cell, report in results.items():
        accuracy = final_metrics(report).get("accuracy")
        if cell.sparsity == s and accuracy is not None:
            column.setdefault(cell.label, []).append(100 * accuracy)
    return column


def _reports(results: Results, label: str, s: float) -> list[PruningReport]:
    rows = [report for cell, report in results.items() if (cell.label, cell.sparsity) == (label, s)]
    return [report for report in rows if "diverged" not in report.about]


def _within(first: Sequence[float], other: Sequence[float]) -> bool:
    return mean(first) - mean(other) <= (stdev(first) if len(first) > 1 else 0.0)


def _time(results: Results, label: str) -> str:
    ratios = [
        report.about["seconds per update"] / report.about["dense seconds per update"]
        for cell, report in results.items()
        if cell.label == label and "dense seconds per update" in report.about
    ]
    return f"{mean(ratios):.2f}" if ratios else ""
