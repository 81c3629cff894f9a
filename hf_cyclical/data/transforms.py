"""From images to what a model takes, with and without randomness."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor
from torchvision.transforms import InterpolationMode, v2

from hf_cyclical.core import PruningError

from .keyed_random import Keys, draw

Augment = Literal["cifar", "imagenet", "shift", "none"]
Transform = Callable[[Any], Tensor]

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


class ImageProcessor(Protocol):
    """What whoever uses a saved model makes of an image, as transformers' image processors do."""

    def __call__(self, images: Image.Image, *, return_tensors: str) -> Mapping[str, Tensor]:
        """`pixel_values` of a batch of one."""


class ForModel(Protocol):
    """What is to be known of a model."""

    @property
    def settings(self) -> ImageSettings:
        """For training."""

    @property
    def processor(self) -> ImageProcessor:
        """For evaluation."""


def train_transform(settings: ImageSettings, augment: Augment) -> Transform:
    """For one image, as PIL or as a uint8 tensor; draws from torch's generator."""
    size = settings.size
    if augment == "imagenet":
        steps = [v2.RandomResizedCrop(size, interpolation=_interpolation(settings)), v2.RandomHorizontalFlip()]
    else:
        steps = [*_centre(settings), v2.RandomCrop(size, padding=padding_of(size))]
        steps += [v2.RandomHorizontalFlip()] if augment == "cifar" else []
    return v2.Compose([*steps, *_normalised(settings)])


def batch_transform(settings: ImageSettings) -> Transform:
    """For one image or a batch of one size: the centre square, resized and scaled."""
    return v2.Compose([*_centre(settings), *_normalised(settings)])


def eval_transform(processor: ImageProcessor) -> Transform:
    """For one image, as PIL or as a uint8 tensor: the same as for whoever uses the saved model."""
    return partial(_processed, processor)


def only_scales(model: ForModel, height: int, width: int) -> bool:
    """Whether a model's processor leaves every pixel of such images where it is."""
    noise = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    image = Image.fromarray(noise)
    seen, scaled = _processed(model.processor, image), v2.Compose(_normalised(model.settings))(image)
    return seen.shape == scaled.shape and torch.allclose(seen, scaled, atol=1e-4)


def _processed(processor: ImageProcessor, image: Image.Image | Tensor) -> Tensor:
    if isinstance(image, Tensor):
        image = v2.functional.to_pil_image(image)
    return processor(image, return_tensors="pt")["pixel_values"][0]


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


def _centre(settings: ImageSettings) -> list[v2.Transform]:
    return [v2.Resize(settings.size, interpolation=_interpolation(settings)), v2.CenterCrop(settings.size)]


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
