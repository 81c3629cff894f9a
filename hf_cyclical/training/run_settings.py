"""What decides how a run goes, its data included: a checkpoint has it, and is resumed only where it is the same."""

import dataclasses
import json
import logging
import sys
import zlib
from collections.abc import Mapping, Sized
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor
from torch.utils.data import Subset

from hf_cyclical.config import PruningConfig, current_settings
from hf_cyclical.core import PruningError
from hf_cyclical.methods import applies

if TYPE_CHECKING:
    from .trainer import CyclicalPruningTrainer

logger = logging.getLogger(__name__)

_BEFORE = {"row_floor": 0, "mask_momentum": False}  # how runs went before there were these settings
_ELSEWHERE = ("data", "num_train_epochs")  # compared below, and as the number of updates
_LABELS = "checksum of the training labels"
_LONG = 8  # items of a list above which an error names only one of them


def run_settings(trainer: "CyclicalPruningTrainer", pruning: PruningConfig) -> dict[str, Any]:
    """All settings of a run, as JSON holds them; `pruning` has no setting that is still to be chosen."""
    args = trainer.args
    images = trainer._train_batch_size * args.gradient_accumulation_steps * args.world_size
    settings = pruning.to_dict() | {
        "learning_rate": args.learning_rate,
        "optim": str(getattr(args.optim, "value", args.optim)),
        "optim_args": args.optim_args,
        "weight_decay": args.weight_decay,
        "max_grad_norm": args.max_grad_norm,
        "label_smoothing_factor": args.label_smoothing_factor,
        "seed": args.seed,
        "data_seed": args.data_seed,
        "num_train_epochs": None if args.max_steps > 0 else args.num_train_epochs,
        "images an update": None if args.auto_find_batch_size else images,
    }
    return json.loads(json.dumps(settings | {"data": _data_settings(trainer)}))


def refuse_other_settings(there: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    """Raise a PruningError that names the first setting in which a checkpoint differs from the run that is to resume.

    Args:
        there: The settings of the checkpoint, which may be older than some of them.
        here: The settings of the run.
    """
    defaults = {field.name: field.default for field in dataclasses.fields(PruningConfig)}
    data, there = there.get("data", {}), defaults | _BEFORE | current_settings(there)
    for name, value in here.items():
        if name not in _ELSEWHERE and there.get(name, value) != value and applies(here["method"], name):
            raise PruningError(
                f"the checkpoint is of another run: {_difference(name, there[name], value)}: "
                "resume with the settings it was made with"
            )
    if _LABELS not in here.get("data", {}):
        logger.warning("the training data tell no labels: whether they are those of the checkpoint was not compared")
    for name, value in here.get("data", {}).items():
        if name in data and data[name] != value:
            raise PruningError(
                f"the checkpoint is of other data: {_difference(name, data[name], value)}: "
                "resume with the data it was made with"
            )


def _data_settings(trainer: "CyclicalPruningTrainer") -> dict[str, Any]:
    """What is known of the data; a stream has no length, and not every data set tells its labels."""
    train, classes = trainer.train_dataset, getattr(getattr(trainer.model, "config", None), "id2label", None)
    known = {
        "training images": _count(train),
        "evaluation images": _count(trainer.eval_dataset),
        "label names": [str(classes[i]) for i in sorted(classes)] if classes else None,
        _LABELS: _checksum(train),
    }
    return trainer.data_settings | {name: value for name, value in known.items() if value is not None}


def _count(dataset: Any) -> int | None:
    return len(dataset) if isinstance(dataset, Sized) and not isinstance(dataset, dict) else None


def _checksum(dataset: Any) -> int | None:
    """Of the numbers of the classes in their order, which tells data sets of one size apart; None if it has none.

    Not the fingerprint of `datasets`: it depends on the dates of files and on how transforms are pickled.
    """
    labels = _labels(dataset)
    if labels is None or labels.dtype.kind not in "iu" or labels.shape != (_count(dataset),):
        return None
    return zlib.crc32(np.ascontiguousarray(labels, dtype="<i8"))


def _labels(dataset: Any) -> np.ndarray | None:
    if isinstance(dataset, Subset):
        labels = _labels(dataset.dataset)
        return None if labels is None else labels[list(dataset.indices)]
    if (datasets := sys.modules.get("datasets")) and isinstance(dataset, datasets.Dataset):
        features = dataset.features
        named = [name for name in ("label", "labels") if name in features]
        columns = [name for name, kind in features.items() if isinstance(kind, datasets.ClassLabel)] or named
        labels = dataset.with_format("numpy", columns)[columns[0]][:] if columns else None
    else:
        labels = getattr(dataset, "labels", getattr(dataset, "targets", None))  # ours, or those of torchvision
    try:
        return None if labels is None else np.asarray(labels.cpu() if isinstance(labels, Tensor) else labels)
    except ValueError:  # of each image a list, as for detection
        return None


def _difference(name: str, there: Any, here: Any) -> str:
    if isinstance(there, list) and isinstance(here, list) and min(len(there), len(here)) > _LONG:
        if len(there) != len(here):
            return f"{name} are {len(there)} there, {len(here)} here"
        i = next(i for i, pair in enumerate(zip(there, here, strict=True)) if pair[0] != pair[1])
        return f"number {i} of the {name} is {there[i]!r} there, {here[i]!r} here"
    return f"{name} is {there!r} there, {here!r} here"
