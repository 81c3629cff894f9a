"""METHODS and SHARES: one frozen row for each, and the only place that knows their names.

A method is a recipe of Algorithm 1. A new one is a function that makes the recipe, in core, and a row here.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from hf_cyclical.core import recipes

from .core import (
    LrFactor,
    NofM,
    Recipe,
    Score,
    Share,
    acdc,
    dpf,
    erk,
    granet,
    lamp,
    magnitude,
    random_scores,
    ranked,
    rigl,
    snfs,
    uniform,
)
from .core.settings import refuse

Settings = Callable[[str], Any]
"""A setting by its name, with the default in place of None: `PruningConfig.resolved`."""

_LR = frozenset({"lr_shape", "lr_drop_at", "lr_drop_factor", "lr_warmup", "allr"})
_CHOICE = frozenset({"target_sparsity", "share", "row_floor", "layer_sparsity", "pattern"})
_RISE = frozenset({"schedule", "delta_t", "ramp_fraction", "mask_momentum"}) | _CHOICE | _LR
_EXCHANGE = frozenset({"target_sparsity", "share", "row_floor", "pattern", "delta_t", "drop_fraction"}) | _LR
_START = frozenset({"init_masks"})


@dataclass(frozen=True)
class Method:
    """A method of pruning.

    Attributes:
        build: Makes the recipe from the settings, the number of updates and the learning-rate factor of a cycle.
        settings: The settings that it has. One that it lacks must be left out: without effect it would mislead.
        help: What it does, for the command line.
        sentence: What it did, for the card; `{cycles}` stands for their number.
        shortest: Updates that a cycle takes at least.
        fewest_cycles: How many it has at least.
        with_one_cycle: The method that it is with a single cycle, if that has a name of its own.
        defaults: Of settings whose default is not that of the others.
        keeps_zeros: Whether it keeps the zeros that a model has, and so has no target.
        redistributes: Whether weights move between layers, unless a pattern fixes how many each has.
        dense_between: Whether weights are dense between two choices of masks, and sparse only after the last.
    """

    build: Callable[[Settings, int, LrFactor], Recipe]
    settings: frozenset[str]
    help: str
    sentence: str
    shortest: int = 2
    fewest_cycles: int = 1
    with_one_cycle: str | None = None
    defaults: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    keeps_zeros: bool = False
    redistributes: bool = False
    dense_between: bool = False


def _rise(get: Settings, lr: LrFactor) -> dict[str, Any]:
    shape = {"delta_t": get("delta_t"), "ramp": get("ramp_fraction"), "shape": get("schedule")}
    return {"s_t": get("target_sparsity"), **shape, "lr": lr}


METHODS: Mapping[str, Method] = MappingProxyType(
    {
        "cyclical": Method(
            build=lambda get, T, lr: recipes.cyclical(
                T=T, k=get("cycles"), s_init=get("init_sparsity"), tail=get("tail") or 0, **_rise(get, lr)
            ),
            settings=_RISE | {"cycles", "init_sparsity", "tail"},
            help="the sparsity rises in each of several cycles (the paper's method)",
            sentence=(
                "It was pruned cyclically: the sparsity rises to its target in each of {cycles} cycles and falls "
                "between them, so that weights pruned by mistake can return."
            ),
            with_one_cycle="gradual",
        ),
        "gradual": Method(
            build=lambda get, T, lr: recipes.gradual(T=T, **_rise(get, lr)),
            settings=_RISE,
            help="once, along Eq. 1",
            sentence="It was pruned gradually: the sparsity rose once, step by step, to its target.",
        ),
        "gradual_recovery": Method(
            build=lambda get, T, lr: recipes.gradual_recovery(T=T, **_rise(get, lr)),
            settings=_RISE,
            help="gradual, with dense weights between two choices of masks (appendix)",
            sentence="It was pruned gradually, with dense weights between one choice of masks and the next.",
            dense_between=True,
        ),
        "cyclical_lr": Method(
            build=lambda get, T, lr: recipes.cyclical_lr(T=T, k=get("cycles"), **_rise(get, lr)),
            settings=_RISE | {"cycles"},
            help="gradual in the first cycle; the later ones only restart the learning rate",
            sentence=(
                "It was pruned gradually in the first of {cycles} cycles; the others only restarted the learning rate."
            ),
            with_one_cycle="gradual",
        ),
        "iterative": Method(
            build=lambda get, T, lr: recipes.iterative(get("target_sparsity"), T, k=get("cycles"), lr=lr),
            settings=_CHOICE | _LR | {"cycles"},
            help="a few prunings, each with its learning-rate cycle",
            sentence="It was pruned in {cycles} equal steps, each followed by training.",
            with_one_cycle="one_shot",
        ),
        "one_shot": Method(
            build=lambda get, T, lr: recipes.one_shot(get("target_sparsity"), T, lr=lr),
            settings=_CHOICE | _LR,
            help="prune, then fine-tune",
            sentence="It was pruned at once, and then trained further.",
            shortest=1,
        ),
        "pgd": Method(
            build=lambda get, T, lr: recipes.pgd(get("target_sparsity"), T),
            settings=_CHOICE | {"mask_momentum"},
            help="masks at every update",
            sentence=(
                "It was pruned by projected gradient descent: the smallest weights were set to zero after every update."
            ),
            shortest=1,
        ),
        "freeze": Method(
            build=lambda get, T, lr: recipes.freeze(T, k=get("cycles"), lr=lr),
            settings=(_LR - {"allr"}) | {"cycles"},
            help="keep the zeros that the model already has",
            sentence="It had these zeros before: the run described here trained the other weights and kept the zeros.",
            shortest=1,
            defaults=MappingProxyType({"cycles": 1}),
            keeps_zeros=True,
        ),
        "acdc": Method(
            build=lambda get, T, lr: acdc(get("target_sparsity"), T, k=get("cycles"), lr=lr),
            settings=_CHOICE | _LR | {"cycles"},
            help="dense and sparse phases in turn, one learning-rate schedule (AC/DC, Peste et al. 2021)",
            sentence="It was trained densely and sparsely in turn (AC/DC), with {cycles} sparse phases.",
            shortest=3,
            fewest_cycles=2,
            defaults=MappingProxyType({"cycles": 8, "lr_shape": "cosine"}),
        ),
        "rigl": Method(
            build=lambda get, T, lr: rigl(
                get("target_sparsity"),
                T,
                delta_t=get("delta_t"),
                fraction=get("drop_fraction"),
                stop=get("ramp_fraction"),
                replace_step=get("replace_step"),
                lr=lr,
            ),
            settings=_EXCHANGE | _START | {"layer_sparsity", "ramp_fraction", "replace_step"},
            help="constant sparsity; small weights are exchanged for those with large gradients (Evci et al. 2020)",
            sentence=(
                "It was trained at constant sparsity (RigL): at regular intervals the smallest weights were exchanged "
                "for those with the largest gradients."
            ),
            defaults=MappingProxyType({"drop_fraction": 0.3, "ramp_fraction": 0.75}),
        ),
        "snfs": Method(
            build=lambda get, T, lr: snfs(
                get("target_sparsity"), T, delta_t=get("delta_t"), fraction=get("drop_fraction"), lr=lr
            ),
            settings=_EXCHANGE | _START,
            help="constant sparsity; small weights move to where the momentum is large (SNFS, Dettmers 2019)",
            sentence=(
                "It was trained at constant sparsity (sparse momentum, SNFS): at regular intervals the smallest "
                "weights were exchanged for those with the largest momentum."
            ),
            defaults=MappingProxyType({"delta_t": None}),
            redistributes=True,
        ),
        "dpf": Method(
            build=lambda get, T, lr: dpf(
                get("target_sparsity"), T, delta_t=get("delta_t"), ramp=get("ramp_fraction"), lr=lr
            ),
            settings=_CHOICE | _LR | {"delta_t", "ramp_fraction"},
            help="gradual; sparse in every pass, while steps are applied to dense weights (DPF, Lin et al. 2020)",
            sentence=(
                "It was pruned gradually with feedback (DPF): gradients were those of the sparse model, and were "
                "applied to dense weights, of which the masks were chosen."
            ),
            defaults=MappingProxyType({"delta_t": 16, "ramp_fraction": 0.75}),
        ),
        "granet": Method(
            build=lambda get, T, lr: granet(
                get("target_sparsity"),
                T,
                delta_t=get("delta_t"),
                fraction=get("drop_fraction"),
                ramp=get("ramp_fraction"),
                lr=lr,
            ),
            settings=_EXCHANGE | {"layer_sparsity", "ramp_fraction"},
            help="gradual; small weights are exchanged for those with large gradients (GraNet, Liu et al. 2021)",
            sentence=(
                "It was pruned gradually (GraNet): after each pruning, small weights were exchanged for those with the "
                "largest gradients."
            ),
            defaults=MappingProxyType({"share": "global", "ramp_fraction": 0.6875}),
        ),
    }
)
DEFAULT_METHOD = "cyclical"
INIT_MASKS: Mapping[str, Callable[[int], Score]] = MappingProxyType(
    {"magnitude": lambda seed: magnitude, "random": random_scores}
)
"""What decides which weights stay at first, given a seed."""


@dataclass(frozen=True)
class ShareKind:
    """A way to share out among the layers the weights that go.

    Attributes:
        share: The function.
        help: What it does, for the command line.
        sentence: What it did, for the card.
        floored: The same where the rows had a floor, if that is an exception from it.
        ahead: Whether it follows from the layers' shapes, and so is known before training.
    """

    share: Share
    help: str
    sentence: str
    floored: str | None = None
    ahead: bool = False


_ALIKE = "Every layer was pruned to the same sparsity, except for rounding"
_RANKED = "Weights of all layers were ranked together, so that some layers are sparser than others."
SHARES: Mapping[str, ShareKind] = MappingProxyType(
    {
        "uniform": ShareKind(
            uniform,
            "every layer is pruned to the same sparsity, as in the paper",
            f"{_ALIKE}.",
            f"{_ALIKE}, and except where the floor of the rows keeps more.",
            ahead=True,
        ),
        "erk": ShareKind(
            erk,
            "layers with more weights for their dimensions are sparser (Erdos-Renyi kernel, Evci et al. 2020)",
            "Layers with more weights for their dimensions are sparser (Erdos-Renyi kernel).",
            ahead=True,
        ),
        "lamp": ShareKind(
            lamp,
            "weights of all layers compete by magnitudes that are adapted to their layer (LAMP, Lee et al. 2021)",
            _RANKED,
        ),
        "global": ShareKind(ranked, "weights of all layers compete by their magnitudes", _RANKED),
    }
)
DEFAULT_SHARE = "uniform"
SCOPES = MappingProxyType({"local": "uniform", "global": "global", "lamp": "lamp"})
"""The shares by the names that they had before."""


def applies(method: str, name: str) -> bool:
    """Whether a setting means something for a method; settings that all methods share always do."""
    return name in METHODS[method].settings or all(name not in row.settings for row in METHODS.values())


def refuse_beside_groups(pattern: NofM, get: Settings, given: Settings) -> None:
    """Raise a PruningError if settings contradict a pattern n:m, which fixes the sparsity of every layer.

    Args:
        pattern: The pattern.
        get: A setting by its name, with the default in place of None.
        given: The same as it was given.
    """
    alike = f"has no meaning for pattern {pattern}, which prunes every layer alike"
    if not math.isclose(get("target_sparsity"), pattern.sparsity, abs_tol=1e-6):
        rule = f"contradicts pattern {pattern}, whose sparsity is {pattern.sparsity:g}"
        refuse("target_sparsity", given("target_sparsity"), rule, "leave it out")
    if get("share") != DEFAULT_SHARE:
        refuse("share", given("share"), alike, f"use {DEFAULT_SHARE}, or leave it out")
    if get("layer_sparsity"):
        remedy = "leave it out, or exclude layers that stay dense"
        refuse("layer_sparsity", given("layer_sparsity"), alike, remedy)
    if get("row_floor") > pattern.n:
        rule = f"is more than pattern {pattern} keeps of each group"
        refuse("row_floor", given("row_floor"), rule, f"use {pattern.n} at most, or leave it out")
