"""What loading gives: images and classes, ready to become data sets for a model."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor
from torch.utils.data import Dataset

from .decoding import EncodedImages
from .images import SingleImages, StreamedImages, StreamSplit, TensorImages, ready_batch, stack_images
from .transforms import (
    SHIFTS,
    Augment,
    ForModel,
    ImageSettings,
    batch_transform,
    eval_transform,
    only_scales,
    padding_of,
    train_transform,
)


@dataclass(frozen=True)
class Split:
    """Images, in memory or encoded, with the numbers of their classes."""

    images: Tensor | EncodedImages
    labels: Tensor


@dataclass(frozen=True)
class ImageData:
    """A training and an evaluation set.

    Attributes:
        name: Where they come from.
        labels: Names of the classes, in order.
        image_size: Side of the images if all are small squares of one size, else None. Of a stream only the first
            image is looked at.
        small: Whether the images are small and of one size.
        augment: How training images are augmented.
        train: Training images.
        eval: Evaluation images.
        eval_from: Where these come from, in words.
    """

    name: str
    labels: list[str]
    image_size: int | None
    small: bool
    augment: Augment
    train: Split | StreamSplit
    eval: Split | StreamSplit
    eval_from: str

    @property
    def collate(self) -> Callable:
        """The Trainer's `data_collator`."""
        return stack_images if isinstance(self.train, StreamSplit) else ready_batch

    @property
    def whole(self) -> bool:
        """Whether no part of an image is to be cut off: of a small image every pixel counts.

        The centre of a large one is what models are evaluated on.
        """
        return self.augment in SHIFTS or (self.augment == "none" and self.small)

    def describe(self, settings: ImageSettings) -> list[str]:
        """The lines of a plan: images, classes, splits, their size for a model, augmentation."""
        train, evaluation = (
            "a stream of images" if isinstance(split, StreamSplit) else f"{len(split.labels):,} images"
            for split in (self.train, self.eval)
        )
        side = settings.size
        return [
            f"{self.name}: {train} to train on, {evaluation} to evaluate on ({self.eval_from}), "
            f"{len(self.labels):,} classes",
            f"images of {side}x{side} pixels, augmentation {self.augment}",
        ]

    def for_model(self, model: ForModel, *, seed: int) -> tuple[Dataset, Dataset]:
        """Training and evaluation set for the Trainer, in the size and scale that a model takes.

        Evaluation images are what the model's processor makes of them: the numbers of an evaluation are those of
        whoever uses the saved model with the processor that is saved beside it.

        Args:
            model: What `load_image_model` returned.
            seed: Of the augmentation, and of the order of a stream.
        """
        plain = eval_transform(model.processor)
        augmented = plain if self.augment == "none" else train_transform(model.settings, self.augment)
        if isinstance(self.train, StreamSplit):
            return StreamedImages(self.train, augmented, seed=seed), StreamedImages(self.eval, plain)
        eval_set = self._plain(self.eval, model)
        images, labels = self.train.images, self.train.labels
        if self.augment == "none":
            return self._plain(self.train, model), eval_set
        if isinstance(images, Tensor) and self.augment in SHIFTS:
            padding, mirror = padding_of(min(images.shape[-2:])), self.augment == "cifar"
            transform = batch_transform(model.settings)
            return TensorImages(images, labels, transform, padding=padding, mirror=mirror, seed=seed), eval_set
        return SingleImages(images, labels, augmented, seed=seed), eval_set

    def _plain(self, split: Split, model: ForModel) -> Dataset:
        """Images without augmentation; whole batches at once where nothing but scaling is to be done."""
        if isinstance(split.images, Tensor) and only_scales(model, *split.images.shape[-2:]):
            return TensorImages(split.images, split.labels, batch_transform(model.settings))
        return SingleImages(split.images, split.labels, eval_transform(model.processor))
