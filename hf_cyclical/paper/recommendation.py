"""The recommended recipe: the settings of a run whose user names a model and data, no preset, and leaves them open.

All of its values are in this file. Each comes with its reason, a sentence for the plan.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hf_cyclical.config import PruningConfig
from hf_cyclical.methods import METHODS, applies

EPOCHS = 30.0  # of pruning
RATE = 0.05  # of SGD, for an update of 256 images
ADAM_RATE = 1e-4
LARGE, LARGE_BATCH = 64, 64  # images of a side above the first come in batches of the second
HEAD_EPOCHS, HEAD_IMAGES = 3.0, 150_000  # of dense training for a new head: the smaller of the two
SCRATCH_PART = 0.5  # of a run from random weights that is dense
MOST_DENSE = 0.2  # of a short run that is dense for a new head
DEPTHWISE_DENSE = True
CLASSIFIER_DENSE = False
LOW = 0.7  # sparsities below have one method, others another
BELOW = ("gradual", f"below {LOW:g} the paper's tables have no method a point ahead of it")
FROM = ("cyclical", "the best in the paper's tables, by more the sparser")
SHARE = ("lamp", "layers that need more weights keep more of them than with the paper's uniform share")
SHARE_OF_SPLIT = ("erk", "the same, and lamp is not made for weights that FSDP splits")

PRUNING: Mapping[str, tuple[Any, str]] = {
    "lr_shape": ("cosine", "each cycle ends at rest, and starts at the rate that dense training has"),
    "lr_warmup": (0.1, "the rate rises first, as weights that return have no momentum yet"),
    "tail": (0.2, "the last masks are trained as long as others do it (AC/DC, RigL), not for the paper's 4 %"),
    "cycles": ("auto", "as many as have time to recover"),
    "delta_t": ("auto", "as many choices of masks in a cycle as the paper has"),
    "distill": (0.5, "the dense model teaches the pruned one"),
}
RECALIBRATE = (50, "BatchNorm's statistics are re-estimated, as those of training are of denser weights")


@dataclass(frozen=True)
class Facts:
    """What the recipe depends on.

    Attributes:
        told: The settings that the user has given, which are never changed.
        images: Training images; None of a stream.
        side: Of the images, in pixels.
        batch_norm: Whether the model has statistics of BatchNorm.
        untrained: Which of its weights are random: "head", "weights" or None.
        depthwise: Names of its depthwise convolutions.
        classifier: Name of its last layer, if it is pruned.
        split: Whether weights are split among processes (FSDP).
        processes: How many train together.
    """

    told: Mapping[str, Any]
    images: int | None
    side: int
    batch_norm: bool
    untrained: str | None = None
    depthwise: tuple[str, ...] = ()
    classifier: str | None = None
    split: bool = False
    processes: int = 1


Recommended = dict[str, tuple[Any, str]]
"""Values by argument, with their reasons."""


def recommended(facts: Facts) -> Recommended:
    """What to set beyond what was told."""
    told = facts.told
    target = told.get("target_sparsity", PruningConfig(pattern=told.get("pattern")).resolved("target_sparsity"))
    best = BELOW if target < LOW and all(applies(BELOW[0], name) for name in told) else FROM
    method = told.get("method", best[0])
    if target == 0 or METHODS[method].keeps_zeros:
        return {}
    found = {"method": best} | _length(facts) | _rate(facts) | PRUNING | _layers(facts)
    found |= {"recalibrate": RECALIBRATE} if facts.batch_norm and facts.images is not None else {}
    found |= new_head(facts) if facts.untrained == "head" else _from_scratch(facts)
    return {name: found[name] for name in found if not _left_alone(facts, method, name)}


def new_head(facts: Facts) -> Recommended:
    """The dense start of a model whose head is random: all of it is trained, as one of the data's own teaches best.

    With the head alone BatchNorm's statistics, features and teacher would stay those of other images.
    """
    few = min(HEAD_EPOCHS, HEAD_IMAGES / max(facts.images or HEAD_IMAGES, 1))
    why = "the head is new to these classes: all weights are trained densely first, as a random head teaches nothing"
    return _dense(facts, few, why)


def most_dense(facts: Facts) -> float:
    """The part of a short run that a recommended dense start may be."""
    return MOST_DENSE if facts.untrained == "head" else SCRATCH_PART


def _from_scratch(facts: Facts) -> Recommended:
    if facts.untrained is None:
        return {}
    why = "the weights are random: they are trained densely first, and then pruned"
    return _dense(facts, SCRATCH_PART * EPOCHS / (1 - SCRATCH_PART), why)


def _dense(facts: Facts, epochs: float, why: str) -> Recommended:
    """So many dense epochs, or the part `most_dense` of a run that was told to be shorter."""
    told, most = facts.told, most_dense(facts)
    if {"dense_epochs", "dense_updates"} & set(told):
        return {}
    if (steps := told.get("max_steps", -1)) > 0:
        return {"dense_updates": (max(round(most * steps), 1), why)}
    run = told.get("num_train_epochs")
    return {"dense_epochs": (epochs if run is None else min(epochs, most * run), why)}


def _length(facts: Facts) -> Recommended:
    found: Recommended = {}
    if not {"num_train_epochs", "max_steps", "pruning_epochs", "budget"} & set(facts.told):
        found["pruning_epochs"] = (EPOCHS, "a third of the paper's; budget sets another time")
    if facts.side > LARGE:
        found["per_device_train_batch_size"] = (LARGE_BATCH, "the paper's for ImageNet")
    return found


def _rate(facts: Facts) -> Recommended:
    """The optimizer with its learning rate: that of dense training, scaled with the batch."""
    optim = facts.told.get("optim", "sgd" if facts.batch_norm else "adamw_torch")
    if optim != "sgd":
        why = "models without BatchNorm are trained by it"
        return {"optim": (optim, why), "optim_args": (None, ""), "learning_rate": (ADAM_RATE, "the paper's with Adam")}
    own = LARGE_BATCH if facts.side > LARGE else 256
    batch = facts.told.get("per_device_train_batch_size", own) * facts.told.get("gradient_accumulation_steps", 1)
    images = batch * facts.processes
    rate = round(RATE * images / 256, 6)
    why = f"near that of dense training, for {images} images an update; the paper has 0.01 for 256 (CIFAR)"
    decay = (1e-4, "that of dense training (He et al.)")
    return {"optim": ("sgd", "for a model with BatchNorm"), "learning_rate": (rate, why), "weight_decay": decay}


def _layers(facts: Facts) -> Recommended:
    """Each layer's share, and which layers stay dense."""
    found: Recommended = {"share": SHARE_OF_SPLIT if facts.split else SHARE}
    dense = list(facts.depthwise) if DEPTHWISE_DENSE else []
    dense += [facts.classifier] if CLASSIFIER_DENSE and facts.classifier else []
    if dense:
        found["exclude"] = (dense, "depthwise convolutions have few weights, and each filter only those of a channel")
    return found


def _left_alone(facts: Facts, method: str, name: str) -> bool:
    """Whether a setting was told, has no meaning beside what was, or is one that a method that was told has its own."""
    told, row = facts.told, METHODS[method]
    beside = {
        "share": ("scope", "pattern"),
        "exclude": ("include", "layer_sparsity"),
        "lr_shape": ("lr_drop_at", "lr_drop_factor"),
        "optim_args": ("optim",),
    }
    return (
        name in told
        or any(other in told for other in beside.get(name, ()))
        or not applies(method, name)
        or ("method" in told and name in row.defaults)
        or (name == "distill" and (facts.split or _no_teacher(facts)))
    )


def _no_teacher(facts: Facts) -> bool:
    told_none = {"dense_epochs", "dense_updates"} & set(facts.told)
    return facts.untrained is not None and bool(told_none) and not any(facts.told[name] for name in told_none)
