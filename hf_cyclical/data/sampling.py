"""Which rows of a split are used, and for what."""

import logging

import numpy as np
from torch import Tensor

from hf_cyclical.core import PruningError
from hf_cyclical.formats import optional

from .arguments import DataArguments
from .keyed_random import image_keys

logger = logging.getLogger(__name__)

EVAL_FRACTION = 0.1  # of a training split, where there is no other
_OF_SPLITS, _OF_HOLDOUTS = 42, 17  # seeds: the same images are evaluated on in runs of every seed


def sample(rows: np.ndarray, most: int | None, seed: int) -> np.ndarray:
    """At most so many of the rows, at random and in order."""
    if most is None or most >= len(rows):
        return rows
    return np.sort(np.random.default_rng(seed).choice(rows, most, replace=False))


def hold_out(codes: Tensor, rows: np.ndarray, fraction: float) -> tuple[np.ndarray, np.ndarray]:
    """Rows to train on and rows that are held out, the same part of each class whatever the seed of the run.

    Args:
        codes: Class of each row of the split.
        rows: Those that may be used for training.
        fraction: The part to hold out. Of a class of two images or more at least one is, and at least one is not.

    Raises:
        PruningError: If no class has two images.
    """
    keys, classes = image_keys(_OF_HOLDOUTS, 0, rows), codes[rows].numpy()
    held = np.zeros(len(rows), dtype=bool)
    for code in np.unique(classes):
        members = np.flatnonzero(classes == code)
        most = len(members) - 1
        n = min(max(1, round(fraction * len(members))), most)
        held[members[np.argsort(keys[members])[:n]]] = True
    if not held.any():
        raise PruningError(f"holdout {fraction:g} holds out no image, as every class has one only: leave it out")
    return rows[~held], rows[held]


def split_rows(codes: Tensor, names: list[str], args: DataArguments) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the training split to train and to evaluate on, where there is no other split; whatever the seed.

    Args:
        codes: Class of each row.
        names: Of the classes.
        args: For the part to evaluate on.
    """
    datasets = optional("datasets", "datasets")
    features = datasets.Features(row=datasets.Value("int64"), label=datasets.ClassLabel(names=names))
    rows = datasets.Dataset.from_dict({"row": range(len(codes)), "label": codes.tolist()}, features=features)
    fraction = args.eval_fraction or EVAL_FRACTION
    how = {"test_size": fraction, "seed": _OF_SPLITS}
    try:
        try:
            made, kind = rows.train_test_split(**how, stratify_by_column="label"), "the same part of each class"
        except ValueError:
            made, kind = rows.train_test_split(**how), "at random, as a class has too few images for its part"
    except ValueError as error:
        raise PruningError(
            f"split {args.train_split!r} has {len(codes)} images, too few to evaluate on {fraction:.0%} of "
            "them: name another split with eval_split"
        ) from error
    logger.info(
        "%s has no validation or test split: %d of the %d images of split %r are for evaluation (%s)",
        args.dataset_name,
        len(made["test"]),
        len(codes),
        args.train_split,
        kind,
    )
    return np.sort(made["train"]["row"]), np.sort(made["test"]["row"])
