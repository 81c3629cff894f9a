"""From encoded images to pixels, with errors that say which image was bad."""

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from tqdm.auto import tqdm

from hf_cyclical.core import PruningError
from hf_cyclical.formats import optional

if TYPE_CHECKING:
    import datasets


_AT_ONCE = 1000


class EncodedImages:
    """Images of a data set, decoded when they are asked for: `images[[3, 1]]` yields two RGB images.

    Args:
        rows: Data set with a column of images that are not decoded.
        column: Its name.
        chosen: The rows to use.
        split: Name of the split, for errors.
    """

    def __init__(self, rows: "datasets.Dataset", column: str, chosen: Sequence[int], split: str) -> None:
        self.rows, self.column, self.split = rows, column, split
        self.chosen = np.asarray(chosen, dtype=np.int64)

    def __len__(self) -> int:
        return len(self.chosen)

    def __getitem__(self, indices: Sequence[int]) -> Iterator[Image.Image]:
        rows = self.chosen[indices]
        encoded = self.rows[rows.tolist()][self.column]
        return (decode(value, f"image {row} of split {self.split!r}") for row, value in zip(rows, encoded, strict=True))


def decode(encoded: Any, name: str) -> Image.Image:
    """An RGB image from the bytes or path that `datasets` gives; `name` says in an error which one it was."""
    try:
        if encoded is None:
            raise ValueError("there is none")
        return _rgb(optional("datasets", "datasets").Image().decode_example(encoded))
    except Exception as error:  # Decoders of broken files raise almost anything, SyntaxError included.
        path = encoded["path"] if isinstance(encoded, dict) else None
        reason = " ".join(str(error).split()) or type(error).__name__
        raise PruningError(
            f"{name}{f' ({path})' if path else ''} cannot be read ({reason}): repair or remove it"
        ) from error


def decode_all(images: EncodedImages) -> Tensor | None:
    """All images as one uint8 tensor (n, 3, height, width), or None if they differ in size."""
    width, height = next(images[[0]]).size
    pixels = np.empty((len(images), 3, height, width), dtype=np.uint8)
    # None: only on a terminal.
    quiet = True if int(os.environ.get("LOCAL_RANK", "0")) else None
    with tqdm(total=len(images), desc=f"Decoding {images.split}", unit=" images", disable=quiet, leave=False) as bar:
        for start in range(0, len(images), _AT_ONCE):
            at = range(start, min(start + _AT_ONCE, len(images)))
            for i, image in zip(at, images[at], strict=True):
                if image.size != (width, height):
                    return None
                pixels[i] = np.asarray(image).transpose(2, 0, 1)
            bar.update(len(at))
    return torch.from_numpy(pixels)


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode == "RGB":
        return image
    if image.mode.startswith("I;16"):  # convert() would cut every value above 255
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    elif image.mode in ("I", "F"):
        raise ValueError(f"32 bits a pixel, mode {image.mode}")
    return image.convert("RGB")
