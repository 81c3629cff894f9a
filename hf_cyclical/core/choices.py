"""Choices: line 5 of Algorithm 1, which weights stay.

A choice is composed of plain values: what weights are ranked by (`score`), how many go in each layer (`share`), what
every row keeps (`row_floor`), how the zeros are arranged (`pattern`). `TVPGD` calls it and never asks which one it has.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor
from torch.optim import Optimizer

from .layers import matches
from .patterns import UNSTRUCTURED, Pattern
from .shares import Share, uniform
from .topk import Masks


class View(NamedTuple):
    """What a choice sees after the optimizer's step of update t.

    Attributes:
        params: The weights, the pruned ones with what this update added to them.
        masks: The masks before the choice.
        t: The update.
        optimizer: With the momentum of the weights; None where the caller has given none.
        s: The sparsity that the masks before the choice were chosen for.
    """

    params: Mapping[str, Tensor]
    masks: Masks
    t: int
    optimizer: Optimizer | None = None
    s: float = 0.0


Choice = Callable[[View, float, Masks], None]
"""Writes the masks at sparsity s over the last argument."""

Score = Callable[[View], Mapping[str, Tensor]]
"""What weights are ranked by: the absolute values of these tensors."""


def magnitude(view: View) -> Mapping[str, Tensor]:
    """The weights themselves."""
    return view.params


@dataclass(frozen=True)
class Largest:
    """The weights with the largest scores stay: magprune, with its defaults.

    Attributes:
        score: What weights are ranked by.
        share: How many go in each layer.
        row_floor: How many of its largest weights every row keeps; 0 is Algorithm 1 as printed.
        pattern: How the zeros are arranged.
    """

    score: Score = magnitude
    share: Share = uniform
    row_floor: int = 0
    pattern: Pattern = UNSTRUCTURED

    def __call__(self, view: View, s: float, out: Masks) -> None:
        self.pattern(self.score(view), s, self.share, self.row_floor, out)


@dataclass(frozen=True)
class Steered:
    """Some layers have targets of their own, which rise along the schedule; the others are chosen by `others`.

    Attributes:
        others: The choice, of each of them and among all others.
        targets: Globs on layer names with the layers' targets; the first that matches counts.
        s_t: The target of the other layers.
    """

    others: Choice
    targets: tuple[tuple[str, float], ...]
    s_t: float

    def __call__(self, view: View, s: float, out: Masks) -> None:
        own = layer_targets(view.params, self.targets)
        for name, target in own.items():
            self.others(view._replace(params={name: view.params[name]}), target * s / self.s_t, out)
        rest = {name: p for name, p in view.params.items() if name not in own}
        if rest:
            self.others(view._replace(params=rest), s, out)


def layer_targets(names: Iterable[str], targets: Sequence[tuple[str, float]]) -> dict[str, float]:
    """The targets of the weights, by name, whose layers have one of their own.

    Raises:
        PruningError: If a pattern matches no layer.
    """
    layers = {name.removesuffix(".weight"): name for name in names}
    matched = [(matches("layer_sparsity", [pattern], layers), target) for pattern, target in targets]
    own = {name: [target for some, target in matched if layer in some] for layer, name in layers.items()}
    return {name: found[0] for name, found in own.items() if found}
