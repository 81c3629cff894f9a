"""The recommended recipe: the settings of a run whose user names a model and data, no preset, and leaves them open.

All of its values are in this file. Each comes with its reason, a sentence for the plan.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hf_cyclical.config import PruningConfig
from hf_cyclical.core import pattern_of
from hf_cyclical.core.automatic import CYCLE
from hf_cyclical.methods import METHODS, applies

EPOCHS = 30.0  # of pruning
UPDATES = CYCLE  # of pruning, which few images have in more epochs
RATE = 0.05  # of SGD, for an update of 256 images
ADAM_RATE = 1e-4
THIRD = "a third of the paper's for CIFAR"
BATCH = 256
LARGE, LARGE_BATCH = 64, 64  # images of a side above the first come in batches of the second
HEAD_EPOCHS, HEAD_IMAGES = 3.0, 150_000  # of dense training for a new head: the smaller of the two
HEAD_UPDATES = 200  # of it, which few images have in more epochs
SCRATCH_PART = 0.5  # of a run from random weights that is dense
MOST_DENSE = 0.2  # of a short run that is dense for a new head
DEPTHWISE_DENSE = True
LOW = 0.7  # sparsities below have one method, others another
BELOW = ("gradual", f"below {LOW:g} the paper's tables have no method a point ahead of it")
FROM = ("cyclical", "in the paper's tables the best or within half a point of it, and the best where they are sparsest")
SHARE = ("lamp", "layers that need more weights keep more of them than with the paper's uniform share")

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
        split: Whether weights are split among processes (FSDP).
        processes: How many train together.
    """

    told: Mapping[str, Any]
    images: int | None
    side: int
    batch_norm: bool
    untrained: str | None = None
    depthwise: tuple[str, ...] = ()
    split: bool = False
    processes: int = 1

    @property
    def images_per_update(self) -> int:
        """On all processes."""
        own = LARGE_BATCH if self.side > LARGE else BATCH
        batch = self.told.get("per_device_train_batch_size", own) * self.told.get("gradient_accumulation_steps", 1)
        return batch * self.processes

    def epochs_of(self, updates: int) -> float:
        """How many epochs have so many updates; 0 for a stream, whose length is not known."""
        return updates / math.ceil(self.images / self.images_per_update) if self.images else 0.0


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
    few = _at_least(facts.epochs_of(HEAD_UPDATES), min(HEAD_EPOCHS, HEAD_IMAGES / max(facts.images or HEAD_IMAGES, 1)))
    why = "the head is new to these classes: all weights are trained densely first, as a random head teaches nothing"
    return _dense(facts, few, why)


def most_dense(facts: Facts) -> float:
    """The part of a short run that a recommended dense start may be."""
    return MOST_DENSE if facts.untrained == "head" else SCRATCH_PART


def _from_scratch(facts: Facts) -> Recommended:
    if facts.untrained is None:
        return {}
    why = "the weights are random: they are trained densely first, and then pruned"
    pruning = facts.told.get("pruning_epochs", _pruning_epochs(facts))
    run = facts.told.get("num_train_epochs", pruning / (1 - SCRATCH_PART))
    return _dense(facts, SCRATCH_PART * run, why)


def _dense(facts: Facts, epochs: float, why: str) -> Recommended:
    """So many dense epochs, or the part `most_dense` of a run that was told to be shorter."""
    told, most = facts.told, most_dense(facts)
    if {"dense_epochs", "dense_updates", "allr"} & set(told):
        return {}
    if (steps := told.get("max_steps", -1)) > 0:
        return {"dense_updates": (max(round(most * steps), 1), why)}
    run = told.get("num_train_epochs")
    return {"dense_epochs": (epochs if run is None else min(epochs, most * run), why)}


def _length(facts: Facts) -> Recommended:
    found: Recommended = {}
    if not {"num_train_epochs", "max_steps", "pruning_epochs", "budget"} & set(facts.told):
        epochs = _pruning_epochs(facts)
        few = f"{UPDATES:,} updates, as many as a cycle needs to recover"
        found["pruning_epochs"] = (epochs, f"{few if epochs > EPOCHS else THIRD}; budget sets another time")
    if facts.side > LARGE:
        found["per_device_train_batch_size"] = (LARGE_BATCH, "the paper's for ImageNet")
    return found


def _pruning_epochs(facts: Facts) -> float:
    return _at_least(facts.epochs_of(UPDATES), EPOCHS)


def _at_least(least: float, epochs: float) -> float:
    return math.ceil(least) if least > epochs else epochs


def recommended_rate(images: int) -> float:
    """The learning rate of SGD for so many images an update.

    It grows with their root: in proportion it would be too low for small batches. On held-out digits, in batches of 60,
    0.01 ends 1.1 points below 0.05 at 98 % and 2.2 at 99 %.
    """
    return round(RATE * math.sqrt(images / 256), 6)


def _rate(facts: Facts) -> Recommended:
    """The optimizer with its learning rate: that of dense training, scaled with the batch."""
    optim = facts.told.get("optim", "sgd" if facts.batch_norm else "adamw_torch")
    if optim != "sgd":
        why = "models without BatchNorm are trained by it"
        return {"optim": (optim, why), "optim_args": (None, ""), "learning_rate": (ADAM_RATE, "the paper's with Adam")}
    images = facts.images_per_update
    rate = recommended_rate(images)
    why = f"near that of dense training, for {images} images an update; the paper has 0.01 for 256 (CIFAR)"
    decay = (1e-4, "that of dense training (He et al.)")
    return {"optim": ("sgd", "for a model with BatchNorm"), "learning_rate": (rate, why), "weight_decay": decay}


def _layers(facts: Facts) -> Recommended:
    """Each layer's share, and which layers stay dense."""
    found: Recommended = {"share": SHARE}
    if facts.depthwise and DEPTHWISE_DENSE:
        found["exclude"] = (
            list(facts.depthwise),
            "depthwise convolutions have few weights, and each filter only those of a channel",
        )
    return found


def _left_alone(facts: Facts, method: str, name: str) -> bool:
    """Whether a setting was told, has no meaning beside what was, or is one that a method that was told has its own."""
    told, row = facts.told, METHODS[method]
    beside = {
        "share": ("scope",),
        "exclude": ("include", "layer_sparsity"),
        "lr_shape": ("lr_drop_at", "lr_drop_factor"),
    }
    return (
        name in told
        or any(other in told for other in beside.get(name, ()))
        or not applies(method, name)
        or (name == "share" and pattern_of(told.get("pattern")).sparsity is not None)
        or ("method" in told and name in row.defaults)
        or (name == "distill" and (facts.split or _no_teacher(facts)))
    )


def _no_teacher(facts: Facts) -> bool:
    told_none = {"dense_epochs", "dense_updates"} & set(facts.told)
    return facts.untrained is not None and bool(told_none) and not any(facts.told[name] for name in told_none)
