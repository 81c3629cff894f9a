"""The recommended recipe in a run: what it depends on, and the arguments that it sets."""

import os
from collections.abc import Sequence
from dataclasses import fields, replace
from fnmatch import fnmatchcase

from torch import nn
from transformers.training_args import OptimizerNames

from hf_cyclical.config import PruningConfig
from hf_cyclical.core import prunable_parameters
from hf_cyclical.data import ImageData
from hf_cyclical.methods import METHODS
from hf_cyclical.models import ImageModel
from hf_cyclical.paper import Facts, Recommended, most_dense, new_head, recommended
from hf_cyclical.training import batch_norms

from .arguments import Arguments

_PRUNING = {field.name for field in fields(PruningConfig)}
_OTHER_CLASSES = (
    "The model's classes have other names than the data's: if they are other classes, train the head first "
    "(--dense_epochs 3)."
)
_PARTS = 3  # of a layer's name that are tried to tell layers apart


def set_recommended(args: Arguments, loaded: ImageModel, data: ImageData) -> list[str]:
    """Set what the user has left open, and give the lines of the plan on it.

    A preset keeps its settings; only a head that is new, which none of its models has, is trained first.
    """
    if not args.pruning.prunes or METHODS[args.pruning.method].keeps_zeros:
        return []
    facts = _facts(args, loaded, data)
    if not args.preset:
        found = recommended(facts)
    elif loaded.untrained == "head" and not args.pruning.dense_epochs:
        found = new_head(facts)
    else:
        found = {}
    args.most_dense = most_dense(facts) if "dense_epochs" in found else None
    _apply(args, found)
    told = [f"  {name} {_shown(value)}: {why}" for name, (value, why) in found.items() if why]
    lines = ["Chosen here, as no argument says otherwise:", *told] if told else []
    if loaded.of_other_classes and not (args.pruning.dense_epochs or args.pruning.dense_updates):
        lines.append(_OTHER_CLASSES)
    return lines


def _facts(args: Arguments, loaded: ImageModel, data: ImageData) -> Facts:
    model, training = loaded.model, args.training
    layers = [name.removesuffix(".weight") for name in prunable_parameters(model)]
    deep = [name for name, module in model.named_modules() if _is_depthwise(module)]
    return Facts(
        told=args.named,
        images=None if args.data.streaming else len(data.train.labels),
        side=loaded.settings.size,
        batch_norm=bool(batch_norms(model)),
        untrained=loaded.untrained or ("head" if loaded.of_other_classes else None),
        depthwise=_globs(deep, layers),
        split=bool(training.fsdp) or os.environ.get("ACCELERATE_USE_FSDP") == "true",
        processes=training.world_size,
    )


def _apply(args: Arguments, found: Recommended) -> None:
    values = {name: value for name, (value, _) in found.items()}
    args.pruning = replace(args.pruning, **{name: value for name, value in values.items() if name in _PRUNING})
    for name, value in values.items():
        if name == "pruning_epochs":
            args.run.pruning_epochs = value
        elif name not in _PRUNING:
            setattr(args.training, name, OptimizerNames(value) if name == "optim" else value)
    if args.run.pruning_epochs is not None:
        args.training.num_train_epochs = args.run.pruning_epochs + args.pruning.dense_epochs
    elif args.run.budget and args.most_dense:  # until it is known how many there is time for
        args.training.num_train_epochs = max(
            args.training.num_train_epochs, args.pruning.dense_epochs / args.most_dense
        )


def _is_depthwise(module: nn.Module) -> bool:
    return isinstance(module, nn.Conv2d) and 1 < module.groups == module.in_channels


def _globs(names: Sequence[str], layers: Sequence[str]) -> tuple[str, ...]:
    """A pattern that only these of the layers match, by the ends of their names; the names if there is none."""
    for n in range(1, _PARTS + 1):
        ends = sorted({"*." + ".".join(name.split(".")[-n:]) for name in names})
        if {layer for layer in layers if any(fnmatchcase(layer, end) for end in ends)} == set(names):
            return tuple(ends)
    return tuple(names)


def _shown(value: object) -> str:
    if isinstance(value, list):
        return " ".join(value)
    return f"{value:g}" if isinstance(value, float) else str(value)
