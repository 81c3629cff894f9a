"""Which rows of a split are used, and for what."""

import logging

import numpy as np
from torch import Tensor

from hf_cyclical.core import PruningError
from hf_cyclical.formats import optional

from .arguments import DataArguments

logger = logging.getLogger(__name__)

EVAL_FRACTION = 0.1  # of a training split, where there is no other


def sample(rows: np.ndarray, most: int | None, seed: int) -> np.ndarray:
    """At most so many of the rows, at random and in order."""
    if most is None or most >= len(rows):
        return rows
    return np.sort(np.random.default_rng(seed).choice(rows, most, replace=False))


def hold_out(codes: Tensor, names: list[str], args: DataArguments, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the training split to train and to evaluate on.

    Args:
        codes: Class of each row.
        names: Of the classes.
        args: For the part to evaluate on.
        seed: Of the choice.
    """
    datasets = optional("datasets", "datasets")
    features = datasets.Features(row=datasets.Value("int64"), label=datasets.ClassLabel(names=names))
    rows = datasets.Dataset.from_dict({"row": range(len(codes)), "label": codes.tolist()}, features=features)
    fraction = EVAL_FRACTION if args.eval_fraction is None else args.eval_fraction
    how = {"test_size": fraction, "seed": seed}
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
