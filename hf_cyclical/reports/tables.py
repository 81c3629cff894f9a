"""Rows of text as tables, for a terminal and in Markdown."""

import math
from collections.abc import Iterable, Sequence

_RATES = frozenset(
    (
        "acc",
        "accuracy",
        "precision",
        "recall",
        "f1",
        "iou",
        "miou",
        "jaccard",
        "dice",
        "map",
        "mar",
        "auc",
        "auroc",
        "sensitivity",
        "specificity",
        "top",
        "ap",
        "ar",
        "pq",
        "rate",
    )
)


def table_of(rows: Sequence[Sequence[str]]) -> str:
    """Rows of text of our own as a table, the first one its head."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], "|" + " --- |" * len(rows[0]), *lines[1:]])


def align(rows: list[list[str]], texts: int = 1) -> str:
    """Rows of text as columns: the first ones, which are texts, to the left, the others to the right."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            cell.ljust(w) if i < texts else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    return "\n".join([lines[0], "  ".join("-" * w for w in widths), *lines[1:]])


def show(value: float | None, metric: str = "accuracy") -> str:
    """A number as a table shows it: rates in percent, other metrics as they are, also what is not in [0, 1]."""
    if value is None:
        return "-"
    return f"{100 * value:.2f} %" if is_rate(metric) and 0 <= value <= 1 else f"{value:.4g}"


def in_percent(metric: str, values: Iterable[float]) -> bool:
    """Whether all values of a metric are shown in percent: some compute theirs in percent already."""
    return is_rate(metric) and all(0 <= value <= 1 for value in values if math.isfinite(value))


def is_rate(metric: str) -> bool:
    """Whether a metric is a fraction, by the words of its name: accuracy, mean_iou, mAP50, top5, error_rate."""
    words = metric.lower().replace("-", "_").split("_")
    stems = [word.rstrip("0123456789") for word in words]
    return words[-1].endswith("accuracy") or not _RATES.isdisjoint([*words, *stems])
