"""Image data in memory, ready for the Trainer."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from .core import PruningError


@dataclass(frozen=True)
class ImageData:
    """A training and an evaluation set with the names of their classes."""

    train: "TensorImages"
    eval: "TensorImages"
    labels: list[str]


class TensorImages(Dataset):
    """Small images kept as uint8 tensors, turned into whole batches at once.

    Args:
        images: uint8, (n, channels, height, width).
        labels: int64, (n,).
        mean: Per channel, of images scaled to [0, 1].
        std: Per channel.
    """

    def __init__(
        self, images: Tensor, labels: Tensor, mean: tuple[float, ...] = (0.0,) * 3, std: tuple[float, ...] = (1.0,) * 3
    ) -> None:
        self.images, self.labels = images, labels
        self.mean = torch.tensor(mean).view(-1, 1, 1)
        self.std = torch.tensor(std).view(-1, 1, 1)

    def __len__(self) -> int:
        return len(self.images)

    @property
    def image_size(self) -> int:
        return self.images.shape[-1]

    def normalized_as(self, config: Any) -> "TensorImages":
        """The same images, normalised as a timm model's configuration says."""
        return TensorImages(self.images, self.labels, config.pretrained_cfg["mean"], config.pretrained_cfg["std"])

    def __getitems__(self, indices: list[int]) -> dict[str, Tensor]:
        pixels = self.images[indices].float().div_(255)
        return {"pixel_values": pixels.sub_(self.mean).div_(self.std), "labels": self.labels[indices]}

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {name: batch[0] for name, batch in self.__getitems__([index]).items()}


def ready_batch(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """The collator for datasets that give whole batches."""
    return batch


def load_image_data(name: str) -> ImageData:
    """The data set of that name."""
    if name != "digits":
        raise PruningError(f"dataset {name!r} is not known: use digits")
    return _digits()


def _digits() -> ImageData:
    """scikit-learn's 1,797 handwritten digits of 8x8 pixels, which come with it; half are for evaluation."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    digits = load_digits()
    pixels = torch.from_numpy(digits.images / 16 * 255).round().to(torch.uint8)
    images = pixels.unsqueeze(1).expand(-1, 3, -1, -1).contiguous()
    labels = torch.from_numpy(digits.target)
    train, test = train_test_split(range(len(labels)), test_size=0.5, stratify=labels, random_state=0)
    return ImageData(
        train=TensorImages(images[train], labels[train]),
        eval=TensorImages(images[test], labels[test]),
        labels=[str(digit) for digit in digits.target_names],
    )
