"""From encoded images to pixels, with errors that say which image was bad."""

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError
from torch import Tensor
from tqdm.auto import tqdm

from hf_cyclical.core import PruningError
from hf_cyclical.formats import optional

if TYPE_CHECKING:
    import datasets


SMALL_SIDE = 64
MOST_PIXELS = 2**26  # of one image: a few kilobytes can hold gigabytes of one colour

_AT_ONCE = 1000
_HEAD = 1 << 14
_ORIENTATION = ExifTags.Base.Orientation
_TODO = "repair or remove it; check_images full finds all such images, and skip_bad_images leaves them out"


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
        return _read(encoded)
    except Exception as error:  # Decoders of broken files raise almost anything, SyntaxError included.
        raise PruningError(f"{name}{shown_path(encoded)} cannot be read ({_reason(error)}): {_TODO}") from error


def problem(encoded: Any, *, full: bool = True) -> str | None:
    """Why an image cannot be used, in a few words; None if it can.

    Args:
        encoded: Bytes or path, as `datasets` gives them; the bytes may be a buffer.
        full: Whether all pixels are decoded, as those of small images always are, or only the header is read.
    """
    try:
        if full or max(_size(encoded)) <= SMALL_SIDE:
            _read(encoded)
    except Exception as error:
        return _reason(error)
    return None


def shown_path(encoded: Any) -> str:
    """The path of an image in brackets, if it has one."""
    path = encoded["path"] if isinstance(encoded, dict) else None
    return f" ({path})" if path else ""


def _read(encoded: Any) -> Image.Image:
    with _open(encoded) as file, Image.open(file) as image:
        _check_header(image)
        image.load()
        upright = image if image.getexif().get(_ORIENTATION) is None else ImageOps.exif_transpose(image)
        return _rgb(upright)


def _size(encoded: Any) -> tuple[int, int]:
    """From the header of an image, of which the first bytes are enough in most formats."""
    if encoded is not None and encoded["bytes"] is not None:
        with suppress(Exception), Image.open(BytesIO(encoded["bytes"][:_HEAD])) as image:
            return _check_header(image)
    with _open(encoded) as file, Image.open(file) as image:
        return _check_header(image)


def _open(encoded: Any) -> Any:
    if encoded is None or (encoded["bytes"] is None and encoded["path"] is None):
        raise ValueError("there is none")
    if encoded["bytes"] is not None:
        return BytesIO(encoded["bytes"])
    return optional("datasets.utils.file_utils", "datasets").xopen(encoded["path"], "rb")


def _check_header(image: Image.Image) -> tuple[int, int]:
    width, height = image.size
    if width * height > MOST_PIXELS:
        raise ValueError(f"{width:,} x {height:,} pixels, of which at most {MOST_PIXELS:,} are decoded")
    if image.mode in ("I", "F"):
        raise ValueError(f"32 bits a pixel, mode {image.mode}")
    return image.size


def _reason(error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):  # whose text has an address in memory
        return "not a known image format"
    if isinstance(error, FileNotFoundError):
        return "the file is not there"
    return " ".join(str(error).split()) or type(error).__name__


def is_first_here() -> bool:
    """Whether this process is the one of those on this machine that says what all of them would say."""
    return int(os.environ.get("LOCAL_RANK", "0")) == 0


def decode_all(images: EncodedImages) -> Tensor | None:
    """All images as one uint8 tensor (n, 3, height, width), or None if they differ in size."""
    width, height = next(images[[0]]).size
    pixels = np.empty((len(images), 3, height, width), dtype=np.uint8)
    # None: only on a terminal.
    quiet = None if is_first_here() else True
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
    return image.convert("RGB")
