"""Computing a large tensor a few channels at a time, where the next operator takes them one by one."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from .depthwise import WINDOWS
from .movement import COPY
from .planes import Tensor
from .products import emit_dense, emit_sparse
from .program import Field, Place, Row
from .winograd import AT_ONCE, emit_winograd

__all__ = ["in_groups"]

LARGE = 384 * 1024  # bytes of a tensor that is not worth writing in one piece
GROUP = 256 * 1024  # bytes of the channels computed at a time, so that they are still in the cache when they are read


def in_groups(operators: Sequence[list[Row]]) -> list[list[Row]]:
    """The rows of each operator, but those of a convolution and of a depthwise one or a pooling after it in turns."""
    users = Counter(tensor for rows in operators for tensor in {t for row in rows for t in row.tensors()})
    grouped = list(operators)
    for i, (first, second) in enumerate(pairwise(operators)):
        if first and second and _fit(first, second, users):
            grouped[i], grouped[i + 1] = _turns(first, second), []
    return grouped


def _fit(first: list[Row], second: list[Row], users: Counter) -> bool:
    write, read = first[-1], second[-1]  # before the last one, other bands, and copies of rows between bands
    if write.kernel.emit not in (emit_sparse, emit_dense, emit_winograd) or read.kernel.fields is not WINDOWS:
        return False
    middle = _tensor(read, "source")
    alone = _tensor(write, "target") is middle and users[middle] == 2 and not middle.exclusive
    return alone and write.fields.get("blocks", 1) == 1 and 4 * middle.layout.band_floats > LARGE


def _turns(first: list[Row], second: list[Row]) -> list[Row]:
    layout, kernel = _tensor(second[-1], "source").layout, first[-1].kernel
    at_once = {emit_dense: kernel.variant[1], emit_winograd: AT_ONCE}.get(kernel.emit, 1)
    groups = -(-4 * layout.band_floats // GROUP)
    size = -(-layout.channels // (groups * at_once)) * at_once
    middle = Tensor(replace(layout, channels=size))
    rows = [row for row in first if row.kernel.fields is COPY]
    for start in range(0, layout.channels, size):
        part = slice(start, min(start + size, layout.channels))
        rows += [_writing(row, middle, part, at_once) for row in first if row.kernel.fields is not COPY]
        rows += [_reading(row, middle, part) for row in second]
    return rows


def _writing(row: Row, middle: Tensor, part: slice, at_once: int) -> Row:
    """A row of a convolution for some of its outputs."""
    fields = row.fields
    write: dict[str, Field] = {
        "target": replace(fields["target"], tensor=middle),
        "bias": fields["bias"][part],
        "outputs": (part.stop - part.start) // at_once,
    }
    if row.kernel.emit is emit_winograd:
        write["weights"] = fields["weights"][part.start // at_once : part.stop // at_once]
    else:
        write["starts"] = fields["starts"][part.start // at_once : part.stop // at_once + 1]
    if "residual_planes" in fields:
        write["residual_planes"] = fields["residual_planes"][part]
    return replace(row, fields=fields | write, bundle=row.bundle and (row.bundle, part.start))


def _reading(row: Row, middle: Tensor, part: slice) -> Row:
    """A row that reads them: windows, or a copy of rows from one band to another."""
    fields, count = row.fields, part.stop - part.start
    read: dict[str, Field] = {"source": replace(fields["source"], tensor=middle)}
    if row.kernel.fields is COPY:
        read |= {"target": replace(fields["target"], tensor=middle), "channels": count}
    else:
        target = fields["target"]
        offset = target.offset + part.start * fields["target_stride"]
        read |= {"target": replace(target, offset=offset), "planes": count}
        read |= {name: fields[name][part] for name in ("weights", "bias") if name in fields}
    return replace(row, fields=fields | read, bundle=row.bundle and (row.bundle, part.start))


def _tensor(row: Row, field: str) -> Tensor | None:
    place = row.fields[field]
    return place.tensor if isinstance(place, Place) else None
