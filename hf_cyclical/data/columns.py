"""Which columns of a data set hold the images and the classes, and what the classes are."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hf_cyclical.core import PruningError
from hf_cyclical.formats import optional

from .arguments import DataArguments

if TYPE_CHECKING:
    import datasets


_CIFAR100 = {"fine_label", "coarse_label"}
_INTEGERS = tuple(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
_CLASS_TYPES = (*_INTEGERS, "bool", "string", "large_string")


class Columns(NamedTuple):
    """Names of two columns."""

    image: str
    label: str


def find_columns(features: "datasets.Features", args: DataArguments) -> Columns:
    """The columns that the arguments name, else the only ones with images and with classes."""
    image = args.image_column_name or _only_image(features)
    _require_column(features, image, "image_column_name")
    if not _holds_images(features[image]):
        raise PruningError(
            f"column {image!r} holds {_type_name(features[image])}, not images: name another with image_column_name"
        )
    label = args.label_column_name or _only_label(features)
    _require_column(features, label, "label_column_name")
    if not _has_names(features[label]) and not _holds_classes(features[label]):
        raise PruningError(
            f"column {label!r} holds {_type_name(features[label])}, not one class for each image: name a column of "
            "integers or strings with label_column_name"
        )
    return Columns(image, label)


class Classes:
    """The classes of a column, in order.

    Args:
        feature: The column's feature.
        values: All its values, for a feature that does not name its classes.
        split: Where they are from, for errors.
    """

    def __init__(self, feature: Any, values: np.ndarray | None, split: str) -> None:
        if _has_names(feature):
            self.names = list(feature.names)
            self.values = np.arange(len(self.names))
        elif values is None:
            raise PruningError(
                f"the labels of split {split!r} are {_type_name(feature)} without class names, which are only known "
                "after reading all: turn streaming off"
            )
        else:
            self.values = np.unique(values)
            self.names = [str(value) for value in self.values]
        if len(self.names) < 2:
            raise PruningError(f"split {split!r} has the only class {self.names}: give data with two or more")

    def encode(self, values: np.ndarray, split: str) -> Tensor:
        """The numbers of the classes; a value that is none of them is an error that says where it is."""
        codes = np.searchsorted(self.values, values).clip(max=len(self.values) - 1)
        unknown = np.flatnonzero(self.values[codes] != values)
        if len(unknown):
            row = unknown[0]
            raise PruningError(
                f"the label of image {row} of split {split!r} is {values[row]!s}, which is none of the "
                f"{len(self.names)} classes {_short(self.names)}: correct it, or use another split"
            )
        return torch.from_numpy(codes.astype(np.int64))


def read_labels(rows: "datasets.Dataset", column: str, split: str) -> np.ndarray:
    """All labels of a split, as they are."""
    labels = rows.select_columns([column]).with_format("arrow")[:].column(column)
    if labels.null_count:
        row = labels.is_null().to_pylist().index(True)
        raise missing_label(f"image {row} of split {split!r}")
    return labels.to_numpy()


def missing_label(image: str) -> PruningError:
    """The error for a label that is None."""
    return PruningError(f"the label of {image} is missing (None): label it, remove it, or use another split")


def _only_image(features: "datasets.Features") -> str:
    datasets = optional("datasets", "datasets")
    found = [name for name, feature in features.items() if isinstance(feature, datasets.Image)]
    return _only(found, features, "images", "image_column_name")


def _only_label(features: "datasets.Features") -> str:
    found = [name for name, feature in features.items() if _has_names(feature)]
    if set(found) == _CIFAR100:
        return "fine_label"
    found = found or [name for name, feature in features.items() if _holds_classes(feature)]
    return _only(found, features, "classes", "label_column_name")


def _only(found: list[str], features: "datasets.Features", what: str, argument: str) -> str:
    if len(found) == 1:
        return found[0]
    if found:
        raise PruningError(f"columns {', '.join(found)} all hold {what}: choose one with {argument}")
    raise PruningError(f"none of the columns {', '.join(features)} holds {what}: name one with {argument}")


def _require_column(features: "datasets.Features", name: str, argument: str) -> None:
    if name not in features:
        raise PruningError(f"{argument} {name!r} is not a column: the data has {', '.join(features)}")


def _has_names(feature: Any) -> bool:
    return isinstance(feature, optional("datasets", "datasets").ClassLabel)


def _holds_classes(feature: Any) -> bool:
    return isinstance(feature, optional("datasets", "datasets").Value) and feature.dtype in _CLASS_TYPES


def _holds_images(feature: Any) -> bool:
    """Images, or the bytes of their files as other tools write them."""
    datasets = optional("datasets", "datasets")
    encoded = feature.get("bytes") if isinstance(feature, dict) else feature
    return isinstance(feature, datasets.Image) or (isinstance(encoded, datasets.Value) and "binary" in encoded.dtype)


def _type_name(feature: Any) -> str:
    return getattr(feature, "dtype", None) or type(feature).__name__


def _short(names: Iterable[str], most: int = 5) -> str:
    names = list(names)
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")
