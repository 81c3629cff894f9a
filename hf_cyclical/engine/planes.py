"""How an image is stored: one plane per channel, with zeros between rows and planes, so that a tap is an offset."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from .emitter import BYTES

__all__ = ["Layout", "Tensor", "tile_sizes"]


@dataclass(frozen=True)
class Layout:
    """Where the pixels of an image are, in floats from the buffer's start.

    Attributes:
        channels: Planes.
        height: Rows of pixels.
        width: Pixels in a row.
        lanes: Floats in a vector.
        gap: Padding after each row, which is also that before the next one.
        above: Rows of padding before the first row.
        below: Rows of padding after the last one.
        fill: What the padding holds.
        flat: A vector with one pixel per channel, side by side, without padding.
        band_rows: Rows in a band, if the image is cut into bands, of which each has planes of its own; else 0. Each
            thread computes one band, so that what it writes and what it reads are apart from what others do.
    """

    channels: int
    height: int
    width: int
    lanes: int
    gap: int = 0
    above: int = 0
    below: int = 0
    fill: float = 0.0
    flat: bool = False
    band_rows: int = 0

    @property
    def rows(self) -> int:
        """Rows of a plane."""
        return self.band_rows or self.height

    @property
    def bands(self) -> int:
        return -(-self.height // self.rows)

    def rows_of(self, band: int) -> int:
        """Rows of a band that are the image's; the last one may have fewer than the others."""
        return min(self.rows, self.height - band * self.rows)

    @property
    def pitch(self) -> int:
        """Floats from one row to the next."""
        return self.width + self.gap

    @cached_property
    def vectors(self) -> int:
        """Vectors that hold all pixels of a plane and the gaps between them."""
        return -(-((self.rows - 1) * self.pitch + self.width) // self.lanes)

    @property
    def slack(self) -> int:
        """Vectors after these that a kernel may write, too, so that tiles may have equal sizes."""
        return max(1, self.vectors // 16)

    @cached_property
    def lead(self) -> int:
        """Floats before a plane's first pixel; a multiple of the vector, so that pixels are aligned."""
        return _round_up(self.above * self.pitch + self.gap, self.lanes)

    @cached_property
    def stride(self) -> int:
        """Floats from one plane to the next."""
        if self.flat:
            return 1
        body = (self.vectors + self.slack) * self.lanes
        floats = _round_up(self.lead + body + self.below * self.pitch + self.gap, 16)
        return floats if floats % 32 else floats + 16  # odd lines: planes do not meet in the same set of a cache

    @property
    def floats(self) -> int:
        """Floats of the buffer."""
        return self.bands * self.band_floats

    @property
    def band_floats(self) -> int:
        """Floats of a band: all planes, and one that stays as it is filled."""
        return _round_up(self.channels, 64) + 64 if self.flat else (self.channels + 1) * self.stride

    def first_pixel(self, channel: int = 0) -> int:
        """Bytes from a band's start to a channel's first pixel."""
        return BYTES * (channel * self.stride + (0 if self.flat else self.lead))

    def mask(self, band: int = 0) -> np.ndarray:
        """All bits set where a band has a pixel, and none where there is padding."""
        floats = np.arange((self.vectors + self.slack) * self.lanes)
        row, column = np.divmod(floats, self.pitch)
        return np.where((column < self.width) & (row < self.rows_of(band)), -1, 0).astype(np.int32)


@dataclass(eq=False)
class Tensor:
    """Planes of a program.

    Attributes:
        layout: Final when all operators that use it are known.
        exclusive: Whether its buffer must serve no other tensor, because not every pixel of it is written each time.
        nonnegative: Whether no pixel is below zero, so that the padding is not larger than any.
    """

    layout: Layout
    exclusive: bool = False
    nonnegative: bool = False

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.layout.channels, self.layout.height, self.layout.width


def tile_sizes(layout: Layout, most: int) -> list[int]:
    """Vectors per tile that cover a plane and no more than its slack, the largest first."""
    sizes = []
    for tiles in range(-(-layout.vectors // most), layout.vectors + 1):
        size = -(-layout.vectors // tiles)
        if size not in sizes and tiles * size <= layout.vectors + layout.slack and (size >= 4 or not sizes):
            sizes.append(size)
    return sizes


def _round_up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple
