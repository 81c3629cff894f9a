"""Levers: the settings that any method can be run with, beyond which weights it prunes and when."""

from dataclasses import dataclass
from typing import Annotated

from .settings import number, says, switch, whole


@dataclass(frozen=True, kw_only=True)
class Levers:
    """Settings of how the weights are trained. `None` leaves a lever out, except where its help says otherwise."""

    mask_momentum: Annotated[bool | None, switch(default=True, only_pruning=True)] = says(
        "Mask the optimizer's momentum with the weights, so that weights return with their latest steps only. True if "
        "not given, where weights can return and there is a momentum. False is Algorithm 1 as printed.",
        nargs="?",
        const=True,
    )
    ema_decay: Annotated[float | None, number("(0, 1)", "use 0.999, or leave it out", only_pruning=True)] = says(
        "Evaluate and save a moving average of the weights with this decay (0.999). It restarts at each choice of "
        "masks and with each cycle, so that it is of weights with the final masks; its decay is lower at first."
    )
    distill: Annotated[float | None, number("[0, 1]", "use 0.5, or leave it out", only_pruning=True)] = says(
        "Weight of what the dense model says of each image, beside the labels with 1 minus it: the model as it is "
        "before the first cycle teaches. 0.5 if the argument has no value.",
        nargs="?",
        const=0.5,
    )
    distill_temperature: Annotated[float | None, number("(0, 100]", "use 4", default=4.0, needs="distill")] = says(
        "Divides the logits of both models in distillation, so that unlikely classes count, too; 4 if not given."
    )
    recalibrate: Annotated[int | None, whole(0, "use 50, or 0 for none", only_pruning=True)] = says(
        "Re-estimate BatchNorm's statistics from so many training batches before the pruned model is evaluated on the "
        "way, after which those of training come back, and at the end, when they stay. Changes no weight. 0 for none."
    )
    allr: Annotated[float | None, number("[0, 1]", "use 0.1, or leave it out", only_pruning=True)] = says(
        "Multiply the learning rate as ALLR does (Zimmer et al. 2023): by the part of the weights' norm that pruning "
        "to the target takes, over the root of the fraction pruned, and by this number at least (the authors take "
        "the epochs of retraining over those of dense training). 0.1 if the argument has no value.",
        nargs="?",
        const=0.1,
    )
    lr_warmup: Annotated[float | None, number("[0, 1)", "use 0.1, or leave it out", only_pruning=True)] = says(
        "Part of each cycle (of the run for acdc) in which the learning rate rises by equal steps to its start; "
        "lr_shape takes the rest."
    )
    tail: Annotated[float | None, number("[0, 1)", "use 0.2, or leave it out", only_pruning=True)] = says(
        "Part of the pruning that trains with fixed masks at the end: the last cycle is longer by it than its ramp, "
        "and the others share what is left. Without it, all cycles have the same length."
    )
