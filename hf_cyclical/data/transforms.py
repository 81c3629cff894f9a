"""From images to what a model takes, with and without randomness."""

from typing import Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from torchvision.transforms import InterpolationMode, v2

from hf_cyclical.core import PruningError

from .keyed_random import Keys, draw

Augment = Literal["cifar", "imagenet", "shift", "none"]

SHIFTS = ("cifar", "shift")  # which keep the size of an image: of a small one every pixel counts
_INTERPOLATIONS = {
    "nearest": InterpolationMode.NEAREST_EXACT,
    "bilinear": InterpolationMode.BILINEAR,
    "bicubic": InterpolationMode.BICUBIC,
}


class ImageSettings(Protocol):
    """What a model was made for."""

    @property
    def size(self) -> int:
        """Side of the images."""

    @property
    def mean(self) -> tuple[float, ...]:
        """Per channel, of images scaled to [0, 1]."""

    @property
    def std(self) -> tuple[float, ...]:
        """Per channel."""

    @property
    def interpolation(self) -> str:
        """nearest, bilinear or bicubic."""

    @property
    def crop_pct(self) -> float:
        """Part of the image that an evaluation looks at."""


def train_transform(settings: ImageSettings, augment: Augment, *, whole: bool) -> v2.Compose:
    """For one image, as PIL or as a uint8 tensor; draws from torch's generator."""
    size = settings.size
    if augment == "imagenet":
        steps = [v2.RandomResizedCrop(size, interpolation=_interpolation(settings)), v2.RandomHorizontalFlip()]
    elif augment in SHIFTS:
        steps = [*_centre(settings, size), v2.RandomCrop(size, padding=padding_of(size))]
        steps += [v2.RandomHorizontalFlip()] if augment == "cifar" else []
    else:
        return eval_transform(settings, whole=whole)
    return v2.Compose([*steps, *_normalised(settings)])


def eval_transform(settings: ImageSettings, *, whole: bool) -> v2.Compose:
    """For one image or a batch of one size: the whole of it, or the centre that `crop_pct` says."""
    return v2.Compose(
        [
            *_centre(settings, settings.size if whole else round(settings.size / settings.crop_pct)),
            *_normalised(settings),
        ]
    )


def padding_of(size: int) -> int:
    """4 pixels at CIFAR's 32, and in proportion elsewhere."""
    return size // 8


def crop_and_flip(images: Tensor, keys: Keys, padding: int) -> Tensor:
    """Each image of a batch shifted by up to `padding` pixels, black around it, and mirrored or not."""
    chosen = shift(images, keys, padding)
    mirror = draw(keys, 2, 2).bool()
    return torch.where(mirror[:, None, None, None], chosen.flip(-1), chosen)


def shift(images: Tensor, keys: Keys, padding: int) -> Tensor:
    """Each image of a batch shifted by up to `padding` pixels, black around it."""
    height, width = images.shape[-2:]
    top, left = (draw(keys, number, 2 * padding + 1) for number in (0, 1))
    # All the crops there are, as views: only the chosen ones are copied.
    crops = F.pad(images, [padding] * 4).unfold(2, height, 1).unfold(3, width, 1)
    return crops[torch.arange(len(images)), :, top, left]


def _centre(settings: ImageSettings, shorter_side: int) -> list[v2.Transform]:
    return [v2.Resize(shorter_side, interpolation=_interpolation(settings)), v2.CenterCrop(settings.size)]


def _normalised(settings: ImageSettings) -> list[v2.Transform]:
    return [
        v2.ToImage(),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize(list(settings.mean), list(settings.std), inplace=True),
        v2.ToPureTensor(),
    ]


def _interpolation(settings: ImageSettings) -> InterpolationMode:
    if settings.interpolation not in _INTERPOLATIONS:
        raise PruningError(f"interpolation {settings.interpolation!r} is unknown: use {', '.join(_INTERPOLATIONS)}")
    return _INTERPOLATIONS[settings.interpolation]
