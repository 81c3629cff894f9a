"""AC/DC (Peste et al., 2021): dense and sparse phases in turn, along one learning-rate schedule."""

from itertools import pairwise

from .errors import PruningError
from .learning_rates import LrFactor, lr_cosine
from .recipes import Recipe
from .schedules import split

_WARM_UP = 0.10
_LAST_DENSE = 0.10
_LAST_SPARSE = 0.15


def acdc(s_t: float, T: int, *, k: int = 8, lr: LrFactor | None = None) -> Recipe:
    """Alternating compressed and decompressed training: dense and at `s_t` in turn, with `k` sparse phases.

    The first tenth of the run is dense, the last 15 % are sparse, after a dense phase of a tenth; phases in between
    have equal lengths. 8 sparse phases are the authors' 100 epochs on ImageNet, most of 5 epochs. Before a dense phase
    all momentum restarts at zero, and weights that return do so with its first step. The learning rate never restarts.

    Args:
        s_t: Sparsity of the sparse phases, a fraction in [0, 1).
        T: Number of updates.
        k: Number of sparse phases, 2 or more. Each ends a cycle of the report.
        lr: Learning-rate factor over the whole run; a cosine if not given.
    """
    first, last = round(_WARM_UP * T), T - round(_LAST_SPARSE * T)
    last_dense = T - round((_LAST_DENSE + _LAST_SPARSE) * T)
    between = 2 * (k - 1) - 1  # sparse, dense, ..., sparse
    if k < 2 or last_dense - first < between or not first < last_dense < last < T:
        raise PruningError(f"k={k}, T={T} cannot work: give 2 or more sparse phases, and more updates than phases")
    parts = [range(first + part.start, first + part.stop) for part in split(last_dense - first, between)]
    sparse = [*parts[::2], range(last, T)]
    starts = {part.start for part in sparse}
    stops = {part.stop for part in sparse[:-1]}
    return Recipe(
        s=lambda t: s_t if t >= last or any(t in part for part in sparse) else 0.0,
        eta=(lr or lr_cosine)(T),
        update_at=lambda t: t in starts or t in stops,
        cycles=tuple(range(start, stop) for start, stop in pairwise([0, *(part.stop for part in sparse)])),
        restart_at=lambda t: t + 1 in stops,
    )
