"""The masks of a saved model as pictures, from its zeros. The file is read with the limits of `load`."""

from dataclasses import dataclass
from math import ceil, sqrt
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from hf_cyclical.core import PruningError, row_counts
from hf_cyclical.formats import CONFIG, MAX_BYTES, MAX_CONFIG_BYTES, PREFIX, WEIGHTS, iterate_tensors, read_kinds
from hf_cyclical.models import find_files
from hf_cyclical.reports import PruningReport

KEPT, PRUNED, EMPTY, FLOOR, BETWEEN = (20, 60, 110), (226, 232, 240), (200, 60, 50), (247, 201, 107), (255, 255, 255)
_SIDE, _MOST_PIXELS = 720, 2400  # of a picture that is enlarged, and of one that is not
_MOST_WEIGHTS = 1 << 27


@dataclass(frozen=True)
class MaskPicture:
    """A layer's mask.

    Attributes:
        image: A square for each weight. Filters and outputs go down, their inputs across, and kernels are tiles. Tall
            ones continue at the top of the next column.
        caption: What is in it, in words.
    """

    image: Image.Image
    caption: str


def mask_layers(model: Path, report: PruningReport | None) -> list[str]:
    """The layers of a saved model that have a mask, by the names in its file: those that the report says were pruned.

    Raises:
        PruningError: If the file cannot be read.
    """
    kinds = read_kinds(_weights(model), max_bytes=MAX_BYTES)
    there = [name for name, kind in kinds.items() if len(kind.shape) > 1 and name.endswith("weight")]
    known = _pruned_names(report)
    pruned = [name for name in known if name in there]
    return pruned or there


def _pruned_names(report: PruningReport | None) -> list[str]:
    """As a run names them, and without the prefix of transformers' wrapper, as timm does."""
    if report is None:
        return []
    layers = report.layers or next((cycle.layers for cycle in reversed(report.cycles) if cycle.layers), ())
    return [name for layer in layers for name in dict.fromkeys((layer.name, layer.name.removeprefix(PREFIX)))]


def mask_picture(model: Path, name: str, row_floor: int) -> MaskPicture:
    """The mask of one layer.

    Args:
        model: The folder of the model.
        name: The name of its weight there.
        row_floor: How many weights the run kept in every row at least; 0 if it did not.

    Raises:
        PruningError: If there is no such layer, or if the file cannot be read.
    """
    for found, tensor in iterate_tensors(_weights(model), max_bytes=MAX_BYTES):
        if found == name and tensor.dim() > 1 and 0 < tensor.numel() <= _MOST_WEIGHTS:
            mask = tensor != 0
            return MaskPicture(picture_of(mask, row_floor), _caption(mask, row_floor))
    raise PruningError(f"the model in {str(model)!r} has no layer {name!r:.80} that can be drawn: choose another")


def picture_of(mask: Tensor, row_floor: int = 0) -> Image.Image:
    """See `MaskPicture`."""
    rows, columns, height, width = _tiles(mask).shape
    # A line between kernels, none between single weights; the last one has none beside it.
    gap = 1 if height * width > 1 else 0
    canvas = np.full((rows * (height + gap), columns * (width + gap), 3), BETWEEN, dtype=np.uint8)
    colours = _colours(mask, row_floor)
    for y in range(height):
        for x in range(width):
            canvas[y :: height + gap, x :: width + gap] = colours[:, :, y, x]
    canvas = _wrapped(canvas, rows, height + gap)
    canvas = canvas[: canvas.shape[0] - gap, : canvas.shape[1] - gap]
    return _sized(Image.fromarray(canvas))


def _tiles(mask: Tensor) -> Tensor:
    """(filters, inputs, height, width), whatever dimensions a layer has."""
    shape = (*mask.shape[:2], *(mask.shape[2:] if mask.dim() == 4 else (1, mask[0, 0].numel())))
    return mask.reshape(shape)


def _colours(mask: Tensor, row_floor: int) -> np.ndarray:
    kept = mask.flatten(1).sum(1)
    at_floor = (kept > 0) & (kept <= row_floor) & (kept < mask[0].numel())
    background = torch.tensor(PRUNED).repeat(len(mask), 1)
    background[at_floor], background[kept == 0] = torch.tensor(FLOOR), torch.tensor(EMPTY)
    spread = background[:, None, None, None, :]
    return torch.where(_tiles(mask)[..., None], torch.tensor(KEPT), spread).to(torch.uint8).numpy()


def _wrapped(canvas: np.ndarray, rows: int, step: int) -> np.ndarray:
    """A tall picture as several columns of rows."""
    tall, wide = canvas.shape[:2]
    columns = min(rows, max(1, round(sqrt(tall / wide))))
    per_column = ceil(rows / columns)
    columns = ceil(rows / per_column)
    if columns == 1:
        return canvas
    space = max(2, step // 2)
    new = np.full((per_column * step, columns * (wide + space) - space, 3), BETWEEN, dtype=np.uint8)
    for i in range(columns):
        part = canvas[i * per_column * step : (i + 1) * per_column * step]
        new[: len(part), i * (wide + space) : i * (wide + space) + wide] = part
    return new


def _sized(image: Image.Image) -> Image.Image:
    """Enlarged by a whole factor, or shrunk if it is larger than a page."""
    longest = max(image.size)
    if longest > _MOST_PIXELS:
        factor = _MOST_PIXELS / longest
        size = (max(1, round(image.width * factor)), max(1, round(image.height * factor)))
        return image.resize(size, Image.Resampling.BOX)
    return image.resize([side * max(1, _SIDE // longest) for side in image.size], Image.Resampling.NEAREST)


def _caption(mask: Tensor, row_floor: int) -> str:
    rows, inputs, *kernel = mask.shape
    counts, kept = row_counts(mask, row_floor), int(mask.sum())
    size = f", kernels of {' x '.join(map(str, kernel))}" if kernel else ""
    what = "filters" if kernel else "outputs"
    plan = f"{rows:,} {what} of {inputs:,} input{'s' if inputs != 1 else ''}{size}"
    floor = f", {counts.at_floor:,} at the floor of {row_floor:,}" if row_floor else ""
    zero = 100 * (1 - kept / mask.numel())
    return (
        f"{plan}: {kept:,} of {mask.numel():,} weights kept, {zero:.2f} % zero; {counts.empty:,} {what} empty{floor}."
    )


def _weights(model: Path) -> Path:
    return find_files(model, None, {CONFIG: MAX_CONFIG_BYTES, WEIGHTS: MAX_BYTES})[WEIGHTS]
