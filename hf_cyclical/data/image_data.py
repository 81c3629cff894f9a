"""What loading gives: images and classes, ready to become data sets for a model."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor
from torch.utils.data import Dataset

from .decoding import EncodedImages
from .images import SingleImages, StreamedImages, StreamSplit, TensorImages, ready_batch, stack_images
from .transforms import SHIFTS, Augment, ImageSettings, eval_transform, padding_of, train_transform


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
    """

    name: str
    labels: list[str]
    image_size: int | None
    small: bool
    augment: Augment
    train: Split | StreamSplit
    eval: Split | StreamSplit

    @property
    def collate(self) -> Callable:
        """The Trainer's `data_collator`."""
        return stack_images if isinstance(self.train, StreamSplit) else ready_batch

    def for_model(self, settings: ImageSettings, *, seed: int) -> tuple[Dataset, Dataset]:
        """Training and evaluation set for the Trainer, in the size and scale that a model takes.

        Args:
            settings: Of the model.
            seed: Of the augmentation, and of the order of a stream.
        """
        # The centre of a large image is what models are evaluated on; of a small image every pixel counts.
        whole = self.augment in SHIFTS or (self.augment == "none" and self.small)
        transform = train_transform(settings, self.augment, whole=whole)
        plain = eval_transform(settings, whole=whole)
        if isinstance(self.train, StreamSplit):
            return StreamedImages(self.train, transform, seed=seed), StreamedImages(self.eval, plain)
        kind = TensorImages if isinstance(self.eval.images, Tensor) else SingleImages
        eval_set = kind(self.eval.images, self.eval.labels, plain)
        images, labels = self.train.images, self.train.labels
        if isinstance(images, Tensor) and self.augment != "imagenet":
            padding, mirror = padding_of(min(images.shape[-2:])), self.augment == "cifar"
            moved = {"padding": padding, "mirror": mirror} if self.augment in SHIFTS else {}
            return TensorImages(images, labels, plain, **moved, seed=seed), eval_set
        return SingleImages(images, labels, transform, seed=None if self.augment == "none" else seed), eval_set
