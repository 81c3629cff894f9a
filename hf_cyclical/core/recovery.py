"""Weight recovery by the paper's definitions: M_j(t1) = 0 and M_j(t2) = 1 for some t1 < t2."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .shards import Shards, part, whole

_PRUNED_NOW = 1
_EVER_PRUNED = 2
_KEPT_FIRST = 4  # kept by the masks at the end of the first cycle
_RECOVERED = 8  # recovered inside the current cycle


@dataclass(frozen=True)
class CycleRecovery:
    """What happened to the masks in one cycle.

    Attributes:
        recovered: Weights that went from pruned to kept at least once inside the cycle.
        mask_distance: Jaccard distance between the masks at the end of this cycle and of the first.
    """

    recovered: int
    mask_distance: float


class RecoveryTracker:
    """Follows the masks of a run: call `update` after each choice of masks, `end_cycle` at the end of each cycle.

    Keeps one byte per weight. Of weights that are split among processes it follows the part that is here, and counts
    over all of them.

    Args:
        masks: The masks at the start.
        params: The weights, needed only if they are split.

    Attributes:
        flags: The history of each weight, as bits.
        regrown_by_layer: Number of weights per layer that were pruned at any earlier update and are kept now.
    """

    def __init__(self, masks: Mapping[str, Tensor], params: Mapping[str, Tensor] | None = None) -> None:
        self._params = masks if params is None else params  # for their layout only
        self._shards = Shards.of(self._params.values())
        self.flags = {name: torch.zeros_like(mask, dtype=torch.uint8) for name, mask in masks.items()}
        self.weights = sum(self._totals(flags.numel() for flags in self.flags.values()))
        self.regrown_by_layer = dict.fromkeys(masks, 0)
        self.cycles_ended = 0

    def update(self, masks: Mapping[str, Tensor]) -> None:
        """Take in masks that were just chosen."""
        regrown = []
        for name, flags in self.flags.items():
            kept = masks[name].view(torch.uint8)
            # The lowest bit says "pruned until now": where it meets a kept weight, that weight has recovered.
            flags.bitwise_or_((flags & kept).mul_(_RECOVERED))
            flags.bitwise_and_(~_PRUNED_NOW & 0xFF).bitwise_or_((kept ^ 1).mul_(_PRUNED_NOW | _EVER_PRUNED))
            regrown.append(int((flags & (_EVER_PRUNED | _PRUNED_NOW) == _EVER_PRUNED).count_nonzero()))
        self.regrown_by_layer = dict(zip(self.flags, self._totals(regrown), strict=True))

    @property
    def regrown(self) -> float:
        """Fraction of all the weights that were pruned at any earlier update and are kept now."""
        return sum(self.regrown_by_layer.values()) / self.weights

    def end_cycle(self, masks: Mapping[str, Tensor]) -> CycleRecovery:
        """Close a cycle: what recovered in it, and how far its masks are from those of the first."""
        recovered = 0
        for name, flags in self.flags.items():
            if self.cycles_ended == 0:
                flags.bitwise_or_(masks[name].view(torch.uint8) * _KEPT_FIRST)
            recovered += int((flags & _RECOVERED).count_nonzero())
            flags.bitwise_and_(~_RECOVERED & 0xFF)
        self.cycles_ended += 1
        (recovered,) = self._totals((recovered,))
        return CycleRecovery(recovered=recovered, mask_distance=self.mask_distance(masks))

    def mask_distance(self, masks: Mapping[str, Tensor]) -> float:
        """Jaccard distance between these masks and those at the end of the first cycle, once that has ended."""
        shared = either = 0
        for name, flags in self.flags.items():
            first = (flags & _KEPT_FIRST) != 0
            shared += int((first & masks[name]).count_nonzero())
            either += int((first | masks[name]).count_nonzero())
        shared, either = self._totals((shared, either))
        return 1 - shared / either if either else 0.0

    def _totals(self, counts: Iterable[int]) -> list[int]:
        return self._shards.totals(counts, next(iter(self.flags.values())).device)

    def state_dict(self) -> dict[str, Any]:
        """The history so far, on any number of processes."""
        return {
            "flags": {name: self.whole_flags(name) for name in self.flags},
            "regrown_by_layer": dict(self.regrown_by_layer),
            "cycles_ended": self.cycles_ended,
        }

    def whole_flags(self, name: str) -> Tensor:
        """The history of a layer's weights in one piece."""
        return whole(self.flags[name], self._params[name])

    def load_layer(self, name: str, flags: Tensor) -> None:
        """Take over the history of a layer's weights in one piece."""
        self.flags[name].copy_(part(flags, self._params[name]))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a history."""
        for name, flags in state["flags"].items():
            self.load_layer(name, flags)
        self.regrown_by_layer = dict(state["regrown_by_layer"])
        self.cycles_ended = state["cycles_ended"]


def mask_distance(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> float:
    """Jaccard distance between the sets of weights that two masks keep: 0 if equal, 1 if disjoint."""
    shared = sum(int((a[name] & b[name]).count_nonzero()) for name in a)
    either = sum(int((a[name] | b[name]).count_nonzero()) for name in a)
    return 1 - shared / either if either else 0.0
