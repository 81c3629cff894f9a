"""Computing a large tensor a few channels at a time, where the next operator takes them one by one."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from .depthwise import WINDOWS
from .planes import Tensor
from .products import emit_dense, emit_sparse
from .program import Field, Place, Row
from .winograd import AT_ONCE, emit_winograd

__all__ = ["in_groups"]

LARGE = 384 * 1024  # bytes of a tensor that is not worth writing in one piece
GROUP = 256 * 1024  # bytes of the channels computed at a time, so that they are still in the cache when they are read


def in_groups(operators: Sequence[list[Row]]) -> list[list[Row]]:
    """The rows of each operator, but those of a convolution and of a depthwise one or a pooling after it in turns."""
    users = Counter(tensor for rows in operators for row in rows for tensor in row.tensors())
    grouped = list(operators)
    for i, (first, second) in enumerate(pairwise(operators)):
        if len(first) == len(second) == 1 and _fit(first[0], second[0], users):
            grouped[i], grouped[i + 1] = _turns(first[0], second[0]), []
    return grouped


def _fit(first: Row, second: Row, users: Counter) -> bool:
    if first.kernel.emit not in (emit_sparse, emit_dense, emit_winograd) or second.kernel.fields is not WINDOWS:
        return False
    middle = _tensor(second, "source")
    alone = _tensor(first, "target") is middle and users[middle] == 2 and not middle.exclusive
    return alone and first.fields.get("blocks", 1) == 1 and 4 * middle.layout.floats > LARGE


def _turns(first: Row, second: Row) -> list[Row]:
    layout, target = _tensor(second, "source").layout, second.fields["target"]
    at_once = {emit_dense: first.kernel.variant[1], emit_winograd: AT_ONCE}.get(first.kernel.emit, 1)
    groups = -(-4 * layout.floats // GROUP)
    size = -(-layout.channels // (groups * at_once)) * at_once
    middle = Tensor(replace(layout, channels=size))
    rows = []
    for start in range(0, layout.channels, size):
        part = slice(start, min(start + size, layout.channels))
        count = part.stop - start
        write: dict[str, Field] = {
            "target": Place(middle, first.fields["target"].offset),
            "bias": first.fields["bias"][part],
            "outputs": count // at_once,
        }
        if first.kernel.emit is emit_winograd:
            write["weights"] = first.fields["weights"][start // at_once : part.stop // at_once]
        else:
            write["starts"] = first.fields["starts"][start // at_once : part.stop // at_once + 1]
        if "residual_planes" in first.fields:
            write["residual_planes"] = first.fields["residual_planes"][part]
        read: dict[str, Field] = {
            "source": Place(middle, second.fields["source"].offset),
            "target": replace(target, offset=target.offset + start * second.fields["target_stride"]),
            "planes": count,
        }
        read |= {name: second.fields[name][part] for name in ("weights", "bias") if name in second.fields}
        rows += [Row(first.kernel, first.fields | write), Row(second.kernel, second.fields | read)]
    return rows


def _tensor(row: Row, field: str) -> Tensor | None:
    place = row.fields[field]
    return place.tensor if isinstance(place, Place) else None
