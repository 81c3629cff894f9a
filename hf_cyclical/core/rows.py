"""The rows of a weight: a convolution's filters, a linear map's outputs."""

from typing import NamedTuple

from torch import Tensor


class RowCounts(NamedTuple):
    """Rows of a layer.

    Attributes:
        rows: How many there are.
        empty: Of how many the masks keep nothing.
        at_floor: Of how many they keep just as many weights as the floor demands, and would prune more.
    """

    rows: int
    empty: int
    at_floor: int


def row_counts(mask: Tensor, row_floor: int) -> RowCounts:
    """The rows of one mask; a vector has none."""
    if mask.dim() < 2 or not mask.numel():
        return RowCounts(0, 0, 0)
    kept = mask.flatten(1).sum(1)
    at_floor = (kept <= row_floor) & (kept < mask[0].numel()) & (kept > 0)
    return RowCounts(len(kept), int((kept == 0).sum()), int(at_floor.sum()))
