"""Data sets that give the Trainer whole batches."""

import itertools
import zlib
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset
from torchvision.transforms import v2

from hf_cyclical.core import PruningError
from hf_cyclical.formats import CLASSIFICATION

from .columns import Columns, missing_label
from .decoding import EncodedImages, decode
from .keyed_random import drawn_from, image_keys
from .transforms import Transform, crop_and_flip, shift

IMAGES, LABELS = CLASSIFICATION.columns

if TYPE_CHECKING:
    import datasets


SHUFFLE_BUFFER = 1000

Batch = dict[str, Tensor]


def ready_batch(batch: Batch) -> Batch:
    """The collator for data sets that give whole batches."""
    return batch


def stack_images(examples: list[Batch]) -> Batch:
    """The collator for data sets that give one image after the other."""
    return {name: torch.stack([example[name] for example in examples]) for name in examples[0]}


class Epochs:
    """The epoch, which worker processes see change too."""

    def __init__(self) -> None:
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()

    @property
    def epoch(self) -> int:
        return int(self._epoch)

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch begins: the augmentation follows from it."""
        self._epoch.fill_(epoch)

    def at_epoch(self, epoch: int) -> Self:
        """The same images as they are in an epoch, whichever is on."""
        fixed = copy(self)
        fixed._epoch = torch.tensor(epoch)
        return fixed


class TensorImages(Epochs, Dataset):
    """Images of one size in memory, of which whole batches are shifted, mirrored and transformed at once.

    Args:
        images: uint8, (n, 3, height, width).
        labels: int64, (n,).
        transform: For a batch of uint8 images; scaling to [0, 1] if not given.
        padding: Shift each image by up to so many pixels, black around it, and mirror half of them; None for neither.
        mirror: False to shift only.
        seed: Of shifts and mirrors.
    """

    def __init__(
        self,
        images: Tensor,
        labels: Tensor,
        transform: Transform | None = None,
        *,
        padding: int | None = None,
        mirror: bool = True,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.images, self.labels, self.padding, self.mirror, self.seed = images, labels, padding, mirror, seed
        self.transform = transform or v2.ToDtype(torch.float32, scale=True)

    def __len__(self) -> int:
        return len(self.images)

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        images = self.images[indices]
        if self.padding is not None:
            move = crop_and_flip if self.mirror else shift
            images = move(images, image_keys(self.seed, self.epoch, indices), self.padding)
        return {IMAGES: self.transform(images), LABELS: self.labels[indices]}

    def __getitem__(self, index: int) -> Batch:
        return _first(self.__getitems__([index]))


class SingleImages(Epochs, Dataset):
    """Images that are decoded and transformed one by one, and given as whole batches.

    Args:
        images: Encoded images, or a tensor as for `TensorImages`.
        labels: int64, (n,).
        transform: For one image; may draw from torch's generator if there is a seed.
        seed: Of what the transform draws; None if it draws nothing.
    """

    def __init__(
        self, images: EncodedImages | Tensor, labels: Tensor, transform: Transform, *, seed: int | None = None
    ) -> None:
        super().__init__()
        self.images, self.labels, self.transform, self.seed = images, labels, transform, seed

    def __len__(self) -> int:
        return len(self.labels)

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        images = self.images[indices]
        if self.seed is None:
            pixels = [self.transform(image) for image in images]
        else:
            keys = image_keys(self.seed, self.epoch, indices)
            pixels = [_drawn(self.transform, image, key) for image, key in zip(images, keys, strict=True)]
        return {IMAGES: torch.stack(pixels), LABELS: self.labels[indices]}

    def __getitem__(self, index: int) -> Batch:
        return _first(self.__getitems__([index]))


@dataclass(frozen=True)
class StreamSplit:
    """Rows of undecoded images that come one after the other.

    Attributes:
        rows: The stream.
        columns: Its images and labels.
        classes: How many there are.
        name: Of the split, for errors.
        limit: Use so many of the first ones.
    """

    rows: "datasets.IterableDataset"
    columns: Columns
    classes: int
    name: str
    limit: int | None = None


class StreamedImages(Epochs, IterableDataset):
    """A stream of images, decoded and transformed one by one.

    With a seed it is endless: pass after pass, each shuffled and augmented in its own way. The Trainer takes a stream
    for one epoch of `max_steps` updates, and only so can it find its place again when a run is resumed.

    Args:
        split: Where they come from.
        transform: For one image; may draw from torch's generator if there is a seed.
        seed: Of the order and of what the transform draws; None for one pass in the stream's own order without draws.
    """

    def __init__(self, split: StreamSplit, transform: Transform, *, seed: int | None = None) -> None:
        super().__init__()
        self.split, self.transform, self.seed = split, transform, seed

    def __iter__(self) -> Iterator[Batch]:
        if self.seed is None:
            yield from self._examples(epoch=0)
            return
        for epoch in itertools.count(self.epoch):
            examples = self._examples(epoch)
            first = next(examples, None)
            if first is None:  # a worker that got none of the files
                return
            yield first
            yield from examples

    def _examples(self, epoch: int) -> Iterator[Batch]:
        split = self.split
        for position, row in enumerate(self._rows(epoch)):
            name = f"image {position} read from the stream of split {split.name!r}"
            encoded, label = row[split.columns.image], row[split.columns.label]
            image = decode(encoded, name)
            if label is None:
                raise missing_label(name)
            if not 0 <= label < split.classes:
                raise PruningError(
                    f"the label of {name} is {label}, which is none of the {split.classes} classes: use another split"
                )
            if self.seed is None:
                pixels = self.transform(image)
            else:
                pixels = _drawn(self.transform, image, image_keys(self.seed, epoch, [_identity(encoded)])[0])
            yield {IMAGES: pixels, LABELS: torch.tensor(label)}

    def _rows(self, epoch: int) -> "datasets.IterableDataset":
        rows = self.split.rows
        if self.split.limit is not None:
            rows = rows.take(self.split.limit)
        if self.seed is not None:
            rows = rows.shuffle(seed=self.seed, buffer_size=SHUFFLE_BUFFER)
            rows.set_epoch(epoch)
        return rows


def _drawn(transform: Transform, image: Any, key: int) -> Tensor:
    with drawn_from(key):
        return transform(image)


def _identity(encoded: dict[str, Any]) -> int:
    """What tells an image of a stream from others; its position depends on the order and the worker."""
    return zlib.crc32(encoded["bytes"] or encoded["path"].encode())


def _first(batch: Batch) -> Batch:
    return {name: values[0] for name, values in batch.items()}
