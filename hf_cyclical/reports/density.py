"""How dense the weights were in training, from the choices of masks in a report."""

from collections.abc import Mapping, Sequence
from typing import Any

from hf_cyclical.methods import METHODS


def mean_density(
    config: Mapping[str, Any], start_sparsity: float, masks: Sequence[Sequence[float]], updates: int
) -> float:
    """Fraction of the prunable weights that the passes of the model have, in the mean over all updates.

    Args:
        config: The PruningConfig as JSON holds it.
        start_sparsity: Fraction of them that was zero before the run.
        masks: The choices of masks as (update, sparsity, ...): they are in the passes from the next update on.
        updates: Of the whole run.
    """
    points = [(0, start_sparsity), *((update + 1, sparsity) for update, sparsity, *_ in masks)]
    ends = [*(start for start, _ in points[1:]), updates]
    pairs = [(end - start, 1 - sparsity) for (start, sparsity), end in zip(points, ends, strict=True)]
    if masks and dense_between(config):
        delta_t = config.get("delta_t")
        pairs[1:-1] = [_with_dense(length, kept, delta_t) for length, kept in pairs[1:-1]]
    return sum(length * kept for length, kept in pairs) / updates


def dense_between(config: Mapping[str, Any]) -> bool:
    """Whether the method has dense weights between two choices of masks."""
    method = config.get("method")
    return method in list(METHODS) and METHODS[method].dense_between


def _with_dense(length: float, kept: float, delta_t: Any) -> tuple[float, float]:
    """One pass with the masks after each choice, all others dense; a report of a long run lacks some choices."""
    choices = -(-length // delta_t) if isinstance(delta_t, int) and delta_t > 0 else 1
    sparse = min(choices, length)
    return length, (sparse * kept + length - sparse) / length if length else kept
