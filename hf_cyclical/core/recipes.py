"""Recipes: every method of the paper as a value, a triple (s, eta, update_at) for Algorithm 1.

A recipe says how sparse (`s`), how fast (`eta`) and when (`update_at`); `TVPGD` runs any of them and never asks which
one it has. All of them end at exactly `s_t`.
"""

from dataclasses import dataclass, replace
from typing import Literal, get_args

from .choices import Choice, Largest
from .errors import PruningError
from .learning_rates import LrFactor, lr_drop
from .moments import KEEP, Forget, Moments, forget_nothing
from .patterns import UNSTRUCTURED, Pattern
from .regrowth import Regrowth
from .schedules import (
    Schedule,
    When,
    after,
    always,
    constant,
    cubic,
    linear,
    never,
    split,
    split_with_tail,
    step,
    zero_first,
)
from .schedules import cyclical as compose

Shape = Literal["cubic", "linear", "step", "constant"]
_MAGPRUNE = Largest()


@dataclass(frozen=True)
class Recipe:
    """One method of the paper.

    Attributes:
        s: The sparsity that line 5 of Algorithm 1 asks for.
        eta: The factor on the base learning rate in line 3.
        update_at: The `if` of line 4: whether the masks are chosen again at t.
        cycles: The updates of each cycle. The learning rate restarts with each, and a report has a row for each.
        project_at: Whether line 7 is executed at t. Always, except in gradual pruning with recovery and a dense start.
        keep_zeros: Whether the masks start from the zeros that the weights already have.
        choose: Line 5: which weights stay at a sparsity; magprune of every layer, as the paper does, unless told.
        moments: What happens to the optimizer's state of pruned weights; nothing unless told.
        restart_at: Whether all of the optimizer's momentum restarts at zero after t; never unless told.
        hold_at: Whether line 3 is left out at t, so that no weight and no state of the optimizer changes.
        straight_through: Whether the optimizer's step is applied to dense weights, which are put aside between steps.
        forget: What pruned weights lose before line 5, and so return without; nothing unless told.
        needs_momentum: Whether weights are ranked by the optimizer's momentum.
    """

    s: Schedule
    eta: Schedule
    update_at: When
    cycles: tuple[range, ...]
    project_at: When = always
    keep_zeros: bool = False
    choose: Choice = _MAGPRUNE
    moments: Moments = KEEP
    restart_at: When = never
    hold_at: When = never
    straight_through: bool = False
    forget: Forget = forget_nothing
    needs_momentum: bool = False

    @property
    def T(self) -> int:
        """Number of updates, those of a dense start included."""
        return self.cycles[-1].stop

    @property
    def s_t(self) -> float:
        """The target: the sparsity of the last update."""
        return self.s(self.T - 1)

    @property
    def restarts(self) -> bool:
        """Whether the momentum restarts at any update."""
        return any(map(self.restart_at, range(self.T)))

    @property
    def intervenes(self) -> bool:
        """Whether the optimizer's step is left out at any update, or is applied to other weights than the model's."""
        return self.straight_through or any(map(self.hold_at, range(self.T)))

    def pruning_by(self, prune: Choice, row_floor: int, pattern: Pattern = UNSTRUCTURED) -> "Recipe":
        """The same method with another choice of the weights that stay at a sparsity, which has the pattern."""
        if isinstance(self.choose, Regrowth):
            return replace(self, choose=replace(self.choose, prune=prune, row_floor=row_floor, pattern=pattern))
        return replace(self, choose=prune)


def cyclical(
    s_t: float,
    T: int,
    *,
    k: int = 5,
    delta_t: int = 100,
    s_init: float | None = None,
    ramp: float = 0.8,
    tail: float = 0.0,
    shape: Shape = "cubic",
    lr: LrFactor | None = None,
) -> Recipe:
    """Cyclical pruning, the paper's method: in each of `k` cycles s rises to `s_t`, and the learning rate restarts.

    Args:
        s_t: Target sparsity, a fraction in [0, 1).
        T: Number of updates.
        k: Number of cycles.
        delta_t: Updates between two choices of the masks.
        s_init: Sparsity at the start of cycles 2 to k; the first starts dense. 0.5 * `s_t` if not given.
        ramp: Part of a cycle in which s rises and masks change; the rest is fine-tuning with fixed masks.
        tail: Part of all updates with which the last cycle ends, in place of that rest; none of its own if 0.
        shape: How s rises.
        lr: Learning-rate factor within a cycle.
    """
    if not 1 <= k <= T or delta_t < 1 or shape not in get_args(Shape):
        raise PruningError(
            f"k={k}, T={T}, delta_t={delta_t}, shape={shape!r} cannot work: give 1 <= k <= T, delta_t >= 1 and one of "
            f"{', '.join(get_args(Shape))}"
        )
    fixed = max(1, round(tail * T)) if tail else 0
    if k > T - fixed:
        raise PruningError(f"tail={tail:g} leaves {T - fixed} of {T} updates for {k} cycles: lower it or train longer")
    cycles = split_with_tail(T, k, ramp, fixed) if fixed else split(T, k)
    ends = [_ramp_end(len(cycle), ramp) for cycle in cycles]
    if fixed:
        ends[-1] = len(cycles[-1]) - fixed
    starts = [0.0] + [0.5 * s_t if s_init is None else s_init] * (k - 1)
    rises = [_rise(shape, start, s_t, len(c), end) for start, c, end in zip(starts, cycles, ends, strict=True)]
    updates = [_grid(shape, len(cycle), end, delta_t) for cycle, end in zip(cycles, ends, strict=True)]
    return Recipe(
        s=compose(rises, cycles),
        eta=compose([(lr or lr_drop())(len(cycle)) for cycle in cycles], cycles),
        update_at=compose(updates, cycles),
        cycles=cycles,
    )


def gradual(
    s_t: float,
    T: int,
    *,
    delta_t: int = 100,
    ramp: float = 0.8,
    shape: Shape = "cubic",
    lr: LrFactor | None = None,
) -> Recipe:
    """Gradual pruning (Zhu and Gupta): one cycle, s rises once along Equation 1."""
    return cyclical(s_t, T, k=1, delta_t=delta_t, ramp=ramp, shape=shape, lr=lr)


def gradual_recovery(
    s_t: float,
    T: int,
    *,
    delta_t: int = 100,
    ramp: float = 0.8,
    shape: Shape = "cubic",
    lr: LrFactor | None = None,
) -> Recipe:
    """Gradual pruning with recovery (appendix): line 7 inside the `if`, so that the weights are dense between updates.

    From the last choice of the masks on they stay applied, as in gradual pruning: the end of the run fine-tunes the
    sparse model.
    """
    recipe = gradual(s_t, T, delta_t=delta_t, ramp=ramp, shape=shape, lr=lr)
    last = _ramp_end(T, ramp)
    return replace(recipe, project_at=lambda t: t >= last or recipe.update_at(t))


def cyclical_lr(
    s_t: float,
    T: int,
    *,
    k: int = 5,
    delta_t: int = 100,
    ramp: float = 0.8,
    shape: Shape = "cubic",
    lr: LrFactor | None = None,
) -> Recipe:
    """The paper's control: the first cycle as in cyclical pruning, the later ones only restart the learning rate."""
    recipe = cyclical(s_t, T, k=k, delta_t=delta_t, ramp=ramp, shape=shape, lr=lr)
    first = recipe.cycles[0].stop
    return replace(
        recipe,
        s=lambda t: recipe.s(t) if t < first else s_t,
        update_at=lambda t: t < first and recipe.update_at(t),
    )


def one_shot(s_t: float, T: int, *, lr: LrFactor | None = None) -> Recipe:
    """One-shot pruning (Han et al.): prunes the given weights at t = 0, where eta = 0, then fine-tunes."""
    return Recipe(s=constant(s_t), eta=zero_first((lr or lr_drop())(T)), update_at=lambda t: t == 0, cycles=split(T, 1))


def iterative(s_t: float, T: int, *, k: int = 5, lr: LrFactor | None = None) -> Recipe:
    """Iterative pruning (Han et al.): `k` prunings by equal steps of s, each followed by its own learning-rate cycle.

    The paper's s_t * t / T would leave the last pruning one step short of the target; here pruning c of k reaches
    s_t * c / k.
    """
    cycles = split(T, k)
    starts = {cycle.start for cycle in cycles}
    return Recipe(
        s=compose([constant(s_t * ((c + 1) / k)) for c in range(k)], cycles),
        eta=compose([zero_first((lr or lr_drop())(len(cycle))) for cycle in cycles], cycles),
        update_at=lambda t: t in starts,
        cycles=cycles,
    )


def pgd(s_t: float, T: int) -> Recipe:
    """Projected gradient descent: masks at every update (delta_t = 1), constant sparsity and learning rate."""
    return Recipe(s=constant(s_t), eta=constant(1.0), update_at=always, cycles=split(T, 1))


def freeze(T: int, *, k: int = 1, lr: LrFactor | None = None) -> Recipe:
    """Fine-tuning that keeps the zeros which the weights already have, whatever method made them."""
    cycles = split(T, k)
    return Recipe(
        s=constant(0.0),  # never asked for: no update chooses masks
        eta=compose([(lr or lr_drop())(len(cycle)) for cycle in cycles], cycles),
        update_at=never,
        cycles=cycles,
        keep_zeros=True,
    )


def with_dense_start(recipe: Recipe, updates: int, *, lr: LrFactor | None = None) -> Recipe:
    """`recipe` after `updates` dense ones: training from scratch, as in the appendix.

    The dense start has a learning-rate cycle of its own.
    """
    if not updates:
        return recipe

    return replace(
        recipe,
        s=after(updates, constant(0.0), recipe.s),
        eta=after(updates, (lr or lr_drop())(updates), recipe.eta),
        update_at=after(updates, never, recipe.update_at),
        project_at=after(updates, never, recipe.project_at),
        restart_at=after(updates, never, recipe.restart_at),
        hold_at=after(updates, never, recipe.hold_at),
        choose=lambda view, s, out: recipe.choose(view._replace(t=view.t - updates), s, out),
        cycles=tuple(range(c.start + updates, c.stop + updates) for c in recipe.cycles),
    )


def _ramp_end(length: int, ramp: float) -> int:
    """Local update at which the masks of a cycle are chosen for the last time: inside the cycle also for ramp = 1."""
    return min(round(ramp * length), length - 1)


def _jump(length: int, end: int) -> int:
    """Local update at which the step shape prunes: the halfway mark of the cycle, or earlier if the ramp ends there."""
    return min(round(0.5 * length), end)


def _rise(shape: Shape, start: float, s_t: float, length: int, end: int) -> Schedule:
    shapes: dict[Shape, Schedule] = {
        "cubic": cubic(start, s_t, end),
        "linear": linear(start, s_t, end),
        "step": step(start, s_t, at=_jump(length, end)),
        "constant": constant(s_t),
    }
    return shapes[shape]


def _grid(shape: Shape, length: int, end: int, delta_t: int) -> When:
    """Local updates that choose masks: 0, every `delta_t`, and the end of the ramp, where s is exactly s_t."""
    marks = {end, _jump(length, end)} if shape == "step" else {end}
    return lambda t: t in marks or (t < end and t % delta_t == 0)
