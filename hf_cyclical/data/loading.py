"""A data set by name: on the Hub, in a folder, or scikit-learn's digits."""

import logging
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from hf_cyclical.core import PruningError
from hf_cyclical.formats import optional

from .arguments import DataArguments
from .checking import checked
from .columns import Classes, Columns, find_columns, read_labels
from .decoding import SMALL_SIDE, EncodedImages, decode, decode_all
from .digits import load_digits
from .image_data import ImageData, Split
from .images import StreamSplit
from .sampling import EVAL_FRACTION, hold_out, sample, split_rows
from .stored import Splits, load_splits, not_loaded
from .transforms import Augment

if TYPE_CHECKING:
    import datasets


logger = logging.getLogger(__name__)

# A fixed limit and not what happens to be free: on every machine the same images are augmented in the same way.
MOST_BYTES = 4 * 2**30


def load_image_data(args: DataArguments, *, seed: int = 42) -> ImageData:
    """The data set that the arguments name.

    Args:
        args: What to load.
        seed: Of the choice of images, where not all are used.
    """
    if args.dataset_name is None:
        raise PruningError("dataset_name is missing: give a Hub id, a folder, or digits")
    if args.dataset_name == "digits":
        return load_digits(args, seed)
    splits = load_splits(args)
    _require_split(splits, args.train_split, "train_split")
    features = splits[args.train_split].features
    if features is None:
        raise PruningError(f"data set {args.dataset_name!r} does not say what its columns hold: turn streaming off")
    columns = find_columns(features, args)
    encoded = optional("datasets", "datasets").Image(decode=False)
    splits = splits.select_columns(list(columns)).cast_column(columns.image, encoded)
    return _streamed(splits, columns, args) if args.streaming else _stored(splits, columns, args, seed)


def _require_split(splits: Splits, name: str, argument: str) -> None:
    if name not in splits:
        raise PruningError(f"{argument} {name!r} is not a split: the data has {', '.join(splits)}")


def _eval_split(splits: Splits, args: DataArguments) -> str | None:
    if args.eval_split is not None:
        _require_split(splits, args.eval_split, "eval_split")
        return args.eval_split
    return next((name for name in ("validation", "test") if name in splits and name != args.train_split), None)


def _stored(splits: Splits, columns: Columns, args: DataArguments, seed: int) -> ImageData:
    """Data that lies on disk."""
    train_name, eval_name = args.train_split, _eval_split(splits, args)
    values = _labels(splits, train_name, columns)
    classes = Classes(splits[train_name].features[columns.label], values, train_name)
    train_codes = eval_codes = classes.encode(values, train_name)
    _refuse_one_class(train_codes, classes.names, train_name)
    train_rows = np.arange(len(train_codes))
    if eval_name is None:
        train_rows, eval_rows = split_rows(train_codes, classes.names, args)
        eval_name, eval_from = train_name, f"{args.eval_fraction or EVAL_FRACTION:.0%} of split {train_name}"
    elif args.holdout is None:
        eval_codes = classes.encode(_labels(splits, eval_name, columns), eval_name)
        eval_rows, eval_from = np.arange(len(eval_codes)), f"split {eval_name}"
    if args.holdout is not None:
        train_rows, eval_rows = hold_out(train_codes, train_rows, args.holdout)
        eval_name, eval_from = train_name, f"{args.holdout:.0%} of the training images, held out"
    train_rows = sample(train_rows, args.max_train_samples, seed)
    eval_rows = sample(eval_rows, args.max_eval_samples, seed)
    chosen = ((train_name, train_rows), (eval_name, eval_rows))
    train, evaluation = checked([EncodedImages(splits[n], columns.image, rows, n) for n, rows in chosen], args)
    (train_images, size), (eval_images, eval_size) = _prepare(train), _prepare(evaluation)
    return ImageData(
        name=args.dataset_name,
        labels=classes.names,
        image_size=_side(size) if size == eval_size else None,
        small=size is not None,
        augment=_augment(args, small=size is not None),
        train=Split(train_images, train_codes[train.chosen]),
        eval=Split(eval_images, eval_codes[evaluation.chosen]),
        eval_from=eval_from,
    )


def _streamed(splits: Splits, columns: Columns, args: DataArguments) -> ImageData:
    """Data that is read while training."""
    train_name, eval_name = args.train_split, _eval_split(splits, args)
    if eval_name is None:
        raise PruningError(
            f"data set {args.dataset_name!r} has no validation or test split, and none can be made of a stream: name "
            "one with eval_split, or turn streaming off"
        )
    if args.check_images != "none":
        logger.info("the images of a stream are not checked before training")
    classes = Classes(splits[train_name].features[columns.label], None, train_name)
    first, _ = (_first_row(splits[name], name, args) for name in (train_name, eval_name))
    size = _small_size(decode(first[columns.image], f"image 0 of split {train_name!r}").size)
    train, evaluation = (
        StreamSplit(splits[name], columns, len(classes.names), name, limit)
        for name, limit in ((train_name, args.max_train_samples), (eval_name, args.max_eval_samples))
    )
    return ImageData(
        name=args.dataset_name,
        labels=classes.names,
        image_size=_side(size),
        small=size is not None,
        augment=_augment(args, small=size is not None),
        train=train,
        eval=evaluation,
        eval_from=f"split {eval_name}",
    )


def _first_row(stream: "datasets.IterableDataset", split: str, args: DataArguments) -> dict[str, Any]:
    try:
        row = next(iter(stream), None)
    except (OSError, RuntimeError, ValueError) as error:
        raise not_loaded(args.dataset_name, error) from error
    _refuse_empty(row is None, split)
    return row


def _labels(splits: Splits, name: str, columns: Columns) -> np.ndarray:
    _refuse_empty(len(splits[name]) == 0, name)
    return read_labels(splits[name], columns.label, name)


def _refuse_empty(empty: bool, split: str) -> None:
    if empty:
        raise PruningError(f"split {split!r} is empty: use another")


def _refuse_one_class(codes: Tensor, names: list[str], split: str) -> None:
    if len(codes.unique()) == 1:
        raise PruningError(
            f"all images of split {split!r} are of the class {names[codes[0]]!r}: give data with two or more"
        )


def _prepare(images: EncodedImages) -> tuple[Tensor | EncodedImages, tuple[int, int] | None]:
    """Small images of one size decoded, with that size; others as they are, without."""
    size = _small_size(next(images[[0]]).size)
    if size is None or len(images) * 3 * size[0] * size[1] > MOST_BYTES:
        return images, size
    decoded = decode_all(images)
    if decoded is None:
        logger.info("the images of split %r differ in size: they are decoded while training", images.split)
        return images, None
    return decoded, size


def _small_size(size: tuple[int, int]) -> tuple[int, int] | None:
    return size if max(size) <= SMALL_SIDE else None


def _side(size: tuple[int, int] | None) -> int | None:
    return size[0] if size is not None and size[0] == size[1] else None


def _augment(args: DataArguments, *, small: bool) -> Augment:
    if args.augment == "auto":
        return "cifar" if small else "imagenet"
    return args.augment
