"""Random numbers as a pure function of seed, epoch and image.

Whatever the batch, the process, the worker or the point where a run was resumed: the same image is augmented in the
same way in the same epoch.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Keys = NDArray[np.uint64]


def image_keys(seed: int, epoch: int, images: Sequence[int]) -> Keys:
    """64 random bits for each image."""
    return _mix(_mix(_mix(_words([seed])) ^ _words([epoch])) ^ _words(images))


def draw(keys: Keys, number: int, below: int) -> Tensor:
    """The draw of that number for each key: an integer of 0..below-1."""
    high = _mix(keys ^ _words([number])) >> np.uint64(32)
    return torch.from_numpy((high * np.uint64(below) >> np.uint64(32)).astype(np.int64))


@contextmanager
def drawn_from(key: int) -> Iterator[None]:
    """Inside, torch's generator follows from the key; after it, it is where it was."""
    # Not torch.manual_seed, which would also seed the accelerators, that fork_rng does not restore here.
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(key))
        yield


def _words(values: Sequence[int]) -> Keys:
    return np.asarray(values, dtype=np.int64).astype(np.uint64)


def _mix(words: Keys) -> Keys:
    """A step of splitmix64."""
    words = words + np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
