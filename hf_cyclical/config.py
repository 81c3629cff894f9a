"""PruningConfig: how to prune, as one frozen dataclass that is also the JSON record and the command line.

A setting is one field: its type, its rule with the default (`core.settings`), and its help. One that only some methods
have stands in their rows of METHODS too. Those on how weights are trained are in `Levers`, and in `DenseStart`.
"""

import dataclasses
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, get_args, get_type_hints

from . import core
from .core import Choice, LrFactor, LrShape, NofM, Pattern, Recipe, Shape
from .core.automatic import AUTO, auto_cycles, auto_delta_t
from .core.dense_start import DenseStart
from .core.levers import Levers
from .core.settings import Setting, number, one_of, patterns, refuse, says, switch, text, whole
from .methods import DEFAULT_METHOD, DEFAULT_SHARE, INIT_MASKS, METHODS, SCOPES, SHARES, applies, refuse_beside_groups

logger = logging.getLogger(__name__)
_DROP = ("lr_shape", "drop")


def _rows(table: Any) -> str:
    return "; ".join(f"{name}: {row.help}" for name, row in table.items())


def _layer_target(name: str, value: str) -> None:
    try:
        number("[0, 1)", "").check(name, float(value.rpartition("=")[2]))
    except ValueError:
        refuse(name, value, "must be a pattern, = and a fraction in [0, 1)", "write layer1.*=0.8")


@dataclass(frozen=True)
class PruningConfig(Levers, DenseStart):
    """How a model is pruned. `None` stands for the method's default."""

    _argument_group_name = "pruning (PruningConfig)"
    method: Annotated[str, one_of(METHODS, optional=False)] = says(
        f"How the model is pruned. {_rows(METHODS)}.", DEFAULT_METHOD, choices=list(METHODS)
    )
    target_sparsity: Annotated[float | None, number("[0, 1)", "give a fraction such as 0.9 for 90 %", default=0.9)] = (
        says("Fraction of zeros at the end; 0.9 if not given, or what pattern n:m fixes (s_t in the paper).")
    )
    cycles: Annotated[int | str | None, whole(1, "use 1 for a single cycle", default=5, auto=True)] = says(
        "Number of cycles, or of prunings for iterative; 5 without the recipe (k in the paper), 8 for acdc, 1 for "
        "freeze. auto: as many as have 2,000 updates each, at most the number without the recipe."
    )
    init_sparsity: Annotated[float | None, number("[0, 1)", "give a fraction such as 0.45")] = says(
        "Sparsity at the start of cycles 2 to k; half the target if not given (s_init in the paper)."
    )
    schedule: Annotated[Shape | None, one_of(get_args(Shape), default="cubic")] = says(
        "How the sparsity rises within a cycle; cubic is Eq. 1 and the default (s(t) in the paper)."
    )
    delta_t: Annotated[int | str | None, whole(1, "use 100 as the paper does", default=100, auto=True)] = says(
        "Optimizer updates between two choices of masks; 100 without the recipe (Delta t in the paper), 16 for dpf, "
        "and a hundredth of the run for snfs. auto: 31 choices while the sparsity rises, none over 100 updates apart."
    )
    ramp_fraction: Annotated[float | None, number("(0, 1]", "give a fraction such as 0.8", default=0.8)] = says(
        "Part of a cycle in which the sparsity rises or masks change; the rest is fine-tuning. 0.8 if not given (16 of "
        "20 epochs); rigl and dpf 0.75, granet 0.6875."
    )
    drop_fraction: Annotated[float | None, number("[0.005, 1]", "use 0.3 or 0.5", default=0.5)] = says(
        "Part of the kept weights that is exchanged at first, falling along a cosine; rigl 0.3, snfs and granet 0.5."
    )
    init_masks: Annotated[str | None, one_of(INIT_MASKS, default="magnitude")] = says(
        "Which weights rigl and snfs keep at first; magnitude if not given. random is the authors', who train from "
        "scratch.",
        choices=list(INIT_MASKS),
    )
    replace_step: Annotated[bool | None, switch(default=True)] = says(
        "Whether an exchange of rigl takes the place of the optimizer's step, as in the original. True if not given.",
        nargs="?",
        const=True,
    )
    lr_shape: Annotated[LrShape | None, one_of(get_args(LrShape), default="drop")] = says(
        "Learning rate within a cycle, eta(t); drop, the paper's, without the recipe. acdc: over the run, cosine."
    )
    lr_drop_at: Annotated[float | None, number("(0, 1]", "use 0.75 as the paper does", default=0.75, only=_DROP)] = (
        says("Part of a cycle before the learning rate drops; 0.75 if not given (paper: CIFAR 0.75, ImageNet 0.5).")
    )
    lr_drop_factor: Annotated[float | None, number("[0, 1]", "use 0.1 as the paper does", default=0.1, only=_DROP)] = (
        says("What the drop multiplies the learning rate by; 0.1 if not given.")
    )
    share: Annotated[str | None, one_of(SHARES, default=DEFAULT_SHARE)] = says(
        f"Who loses what; {DEFAULT_SHARE} without the recipe (granet: global). {_rows(SHARES)}.", choices=list(SHARES)
    )
    scope: Annotated[str | None, one_of(SCOPES)] = says(
        "The former name of share: local is uniform, global and lamp are as they were.", choices=list(SCOPES)
    )
    layer_sparsity: Annotated[list[str] | None, patterns(_layer_target, only_pruning=True)] = says(
        "Targets of some layers, as glob=fraction (layer1.*=0.8 fc=0); the first match counts, all along the schedule."
    )
    row_floor: Annotated[int | None, whole(0, "use 1, or 0 to turn it off", default=1)] = says(
        "Weights that every filter or output keeps at least; 1 if not given. 0 is Algorithm 1 as printed."
    )
    pattern: Annotated[str | None, text("write '2:4' or '4x1'")] = says(
        "How zeros are arranged; anywhere if not given. n:m, such as 2:4: n of every m consecutive inputs (channels) "
        "of an output stay, which fixes target_sparsity. BxC, such as 4x1: blocks of outputs and inputs stay or go."
    )
    include: Annotated[list[str] | None, patterns()] = says(
        "Globs on the names of the layers to prune; all linear and convolution layers if not given."
    )
    exclude: Annotated[list[str] | None, patterns()] = says("Globs on the names of layers that stay dense.")

    def __post_init__(self) -> None:
        for name, setting in _SETTINGS.items():
            value = getattr(self, name)
            if setting.auto and isinstance(value, str) and value.isdecimal():  # of a command line
                object.__setattr__(self, name, value := int(value))
            if value is not None or not setting.optional:
                setting.check(name, value)
        self._take_former_names()
        self._check_contradictions()

    @property
    def prunes(self) -> bool:
        """Whether there is anything to do: not for a target of 0, where training is dense throughout."""
        return METHODS[self.method].keeps_zeros or self.resolved("target_sparsity") > 0

    @property
    def layer_targets(self) -> tuple[tuple[str, float], ...]:
        """`layer_sparsity` as patterns and fractions."""
        parts = (text.rpartition("=") for text in self.layer_sparsity or ())
        return tuple((pattern, float(value)) for pattern, _, value in parts)

    @property
    def arrangement(self) -> Pattern:
        """`pattern` as what chooses masks."""
        return core.pattern_of(self.pattern)

    @property
    def redistributes(self) -> bool:
        """Whether weights move between layers, so that the share is only that of the first masks."""
        return METHODS[self.method].redistributes and self.arrangement.sparsity is None

    @property
    def choice(self) -> Choice:
        """Which weights stay at a sparsity."""
        return self._choice(seed=0)

    def _choice(self, seed: int) -> Choice:
        share, row_floor = SHARES[self.resolved("share")].share, self.resolved("row_floor")
        score = INIT_MASKS[self.resolved("init_masks")](seed)
        choice = core.Largest(score, share, row_floor, self.arrangement)
        if not self.layer_sparsity:
            return choice
        return core.Steered(choice, self.layer_targets, self.resolved("target_sparsity"))

    def resolved(self, name: str) -> Any:
        """A setting with the default in place of `None`."""
        value, setting = getattr(self, name), _SETTINGS[name]
        if value is not None:
            return value
        if name == "target_sparsity" and self.arrangement.sparsity is not None:
            return self.arrangement.sparsity
        if name == "share" and self.arrangement.sparsity is not None:
            return DEFAULT_SHARE
        if name in METHODS[self.method].defaults:
            return METHODS[self.method].defaults[name]
        if name == "init_sparsity" and self.resolved("cycles") != 1:
            return 0.5 * self.resolved("target_sparsity") or None
        if setting.only and self.resolved(setting.only[0]) != setting.only[1]:
            return None
        if setting.needs and not getattr(self, setting.needs):
            return None
        return setting.default

    @property
    def automatic(self) -> list[str]:
        """The settings that are chosen when the number of updates is known."""
        return [name for name in ("cycles", "delta_t") if getattr(self, name) == AUTO]

    def fitted(self, updates: int, epochs: float | None = None) -> "PruningConfig":
        """The configuration of a run, with numbers in place of auto; the arguments are those of `recipe`."""
        if not self.automatic:
            return self
        T, chosen = updates - self.updates_before(updates, epochs), {}
        k = self._cycles
        if k == AUTO:
            most = METHODS[self.method].defaults.get("cycles", _SETTINGS["cycles"].default)
            k = auto_cycles(T, most, METHODS[self.method].fewest_cycles)
            chosen = {"cycles": k} | ({"init_sparsity": None} if k == 1 else {})
        if self.delta_t == AUTO:
            ramp = self.resolved("ramp_fraction") if applies(self.method, "ramp_fraction") else 1.0
            chosen["delta_t"] = auto_delta_t(T, k, ramp, self.tail or 0.0)
        return dataclasses.replace(self, **chosen)

    def recipe(self, updates: int, epochs: float | None = None, seed: int = 0) -> Recipe:
        """The recipe for a run of so many optimizer updates, the dense start included.

        Args:
            updates: Optimizer updates of the whole run.
            epochs: Epochs of the whole run, needed only for `dense_epochs`.
            seed: Of random masks.
        """
        if self.automatic:
            return self.fitted(updates, epochs).recipe(updates, epochs, seed)
        dense = self.updates_before(updates, epochs)
        T = updates - dense
        k = self._cycles
        shortest = METHODS[self.method].shortest
        if k * shortest > T:
            start = f" after {dense} dense ones" if dense else ""
            rule = f"takes at least {k * shortest} updates ({shortest} per cycle), and the run has {T}{start}"
            refuse("cycles", k, rule, "train longer, use a smaller batch" + (", or lower cycles" if k > 1 else ""))
        recipe = METHODS[self.method].build(self.resolved, T, self._lr)
        if not recipe.keep_zeros:
            recipe = recipe.pruning_by(self._choice(seed), self.resolved("row_floor"), self.arrangement)
        if applies(self.method, "mask_momentum") and self.resolved("mask_momentum"):
            recipe = dataclasses.replace(recipe, moments=core.MASK)
        if self.ema_decay and recipe.update_at(T - 1):
            self._refuse("ema_decay", "has no effect, as masks are chosen again after the last update", "leave it out")
        return core.with_dense_start(recipe, dense, lr=self._lr)

    def to_dict(self) -> dict[str, Any]:
        """As JSON holds it, with the defaults in place of `None`: `PruningConfig(**config.to_dict())` is the same."""
        values = dataclasses.asdict(self)
        values |= {name: self.resolved(name) for name in values if applies(self.method, name)}
        del values["scope"]  # in share
        return values

    @property
    def _cycles(self) -> Any:
        return self.resolved("cycles") if applies(self.method, "cycles") else 1

    @property
    def _lr(self) -> LrFactor:
        lr = core.lr_factor(self.resolved("lr_shape"), self.resolved("lr_drop_at"), self.resolved("lr_drop_factor"))
        return core.lr_warmup(lr, self.lr_warmup) if self.lr_warmup else lr

    def _take_former_names(self) -> None:
        if self.scope is None:
            return
        share = SCOPES[self.scope]
        if self.share not in (None, share):
            self._refuse("scope", f"is the former name of share, and share is {self.share!r}", "leave it out")
        logger.warning("scope %r is now called share %r: use that", self.scope, share)
        object.__setattr__(self, "share", share)
        object.__setattr__(self, "scope", None)

    def _refuse(self, name: str, rule: str, remedy: str) -> None:
        refuse(name, getattr(self, name), rule, remedy)

    def _check_contradictions(self) -> None:
        for name, setting in _SETTINGS.items():
            if (value := getattr(self, name)) is None or value is False:
                continue
            if not applies(self.method, name):
                self._refuse(name, f"has no meaning for method {self.method}", "leave it out")
            if setting.only and (other := self.resolved(setting.only[0])) != setting.only[1]:
                self._refuse(name, f"has no meaning for {setting.only[0]} {other}", "leave it out")
            if setting.needs and not getattr(self, setting.needs):
                self._refuse(name, f"has no meaning without {setting.needs}", "leave it out")
            if value and setting.only_pruning and not self.prunes:
                self._refuse(name, "has no effect where nothing is pruned", "raise target_sparsity above 0")
        if isinstance(self.arrangement, NofM):
            refuse_beside_groups(self.arrangement, self.resolved, partial(getattr, self))
        if isinstance(self.cycles, int) and self.cycles < (fewest := METHODS[self.method].fewest_cycles):
            self._refuse("cycles", f"is too few for method {self.method}", f"use {fewest} or more")
        if self.init_sparsity is not None and self.cycles == 1:
            self._refuse("init_sparsity", "is for cycles 2 to k, and cycles is 1", "leave it out")
        if self.init_sparsity is not None and self.init_sparsity >= (target := self.resolved("target_sparsity")):
            remedy = "lower it, so that weights can return in a cycle"
            self._refuse("init_sparsity", f"must be below target_sparsity {target}", remedy)
        if self.dense_epochs and self.dense_updates:
            self._refuse("dense_updates", f"contradicts dense_epochs {self.dense_epochs:g}", "give one of them")
        if (start := self.dense_by) and self.allr is not None:
            self._refuse("allr", f"needs trained weights, and {start} trains them first", "leave one of them out")
        if start and METHODS[self.method].keeps_zeros:
            self._refuse(start, f"would undo the zeros that method {self.method} keeps", "leave it out")
        if self.distill and METHODS[self.method].keeps_zeros:
            rule = f"has no dense teacher: method {self.method} starts from a sparse model"
            self._refuse("distill", rule, "leave it out")


_SETTINGS: dict[str, Setting] = {
    name: hint.__metadata__[0] for name, hint in get_type_hints(PruningConfig, include_extras=True).items()
}


def as_config(pruning: PruningConfig | Mapping[str, Any]) -> PruningConfig:
    """A configuration, also given as its settings in a dict."""
    if isinstance(pruning, PruningConfig):
        return pruning
    if not isinstance(pruning, Mapping):
        refuse("pruning", pruning, "is no PruningConfig", "pass PruningConfig(target_sparsity=0.9)")
    for name in pruning:
        one_of(_SETTINGS).check("pruning setting", name)
    return PruningConfig(**pruning)


def current_settings(values: dict[str, Any]) -> dict[str, Any]:
    """Settings as an earlier version has written them, under the names that they have now."""
    scope = values.get("scope")
    renamed = {"share": SCOPES.get(scope, scope)} if isinstance(scope, str) else {}
    return renamed | {name: value for name, value in values.items() if name not in ("scope", "layer_floor")}
