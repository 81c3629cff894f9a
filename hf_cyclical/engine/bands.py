"""Cutting images into bands of rows, one for each thread, and rows of a program for each band."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from .copies import Phases, in_rows_of
from .plan import Plan
from .planes import Layout, Tensor
from .program import Field, Place, Row

__all__ = ["for_bands", "pad_windows", "pixel_mask", "window_start", "with_rows_for"]


def with_rows_for(plan: Plan, source: Phases, height: int) -> Phases:
    """The image in bands that fit a result of so many rows, of which each needs those around the same row here."""
    layout = source.tensor.layout
    if layout.band_rows and not (layout.bands - 1) * layout.rows < height <= layout.bands * layout.rows:
        return replace(source, tensor=in_rows_of(plan, source.tensor, 0))
    return source


def for_bands(row: Row, tensor: Tensor) -> list[Row]:
    """A row that writes a tensor, for each of its bands."""
    bands = tensor.layout.bands
    if bands == 1:
        return [row]
    return [replace(row, fields=_fields(row, tensor, band), owner=band, bundle=row) for band in range(bands)]


def _fields(row: Row, tensor: Tensor, band: int) -> dict[str, Field]:
    fields: dict[str, Field] = {
        name: replace(value, band=band) if isinstance(value, Place) and value.tensor.layout.bands > 1 else value
        for name, value in row.fields.items()
    }
    return fields | {"mask": pixel_mask(tensor, band)} if "mask" in fields else fields


def pixel_mask(tensor: Tensor, band: int = 0) -> np.ndarray:
    """All bits set where a plane has pixels; the same array for all tensors of a geometry."""
    layout = tensor.layout
    key = (layout.rows_of(band), layout.vectors, layout.width, layout.pitch, layout.lanes)
    if key not in _MASKS:
        _MASKS[key] = layout.mask(band)
    return _MASKS[key]


_MASKS: dict[tuple[int, ...], np.ndarray] = {}  # one per geometry: a network has few


def window_start(source: Layout, target: Layout, stride: int, padding: int, band: int) -> int:
    """The row of a band of the source where the first window of that band of the target begins."""
    return band * (stride * target.rows - source.rows) - padding


def pad_windows(
    plan: Plan, source: Tensor, target: Layout, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int]
) -> None:
    """Pad the source so that every window lies in its band."""
    here, columns = source.layout, (target.width - 1) * stride[1] + kernel[1] - padding[1] - source.layout.width
    starts = [window_start(here, target, stride[0], padding[0], band) for band in range(target.bands)]
    below = [
        start + (target.rows_of(band) - 1) * stride[0] + kernel[0] - here.rows for band, start in enumerate(starts)
    ]
    plan.pad(source, above=max(0, -min(starts)), below=max(0, *below), gap=max(0, padding[1], columns))
