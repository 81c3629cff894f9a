"""PruningConfig: how to prune, as one frozen dataclass that is also the JSON record and the command line."""

import dataclasses
import difflib
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from hf_cyclical.core import recipes

from .core import MASK, Choice, Largest, LrFactor, NofM, Pattern, PruningError, Recipe, Shape, Steered, pattern_of
from .methods import DEFAULT_METHOD, DEFAULT_SHARE, METHODS, SCOPES, SHARES, applies

logger = logging.getLogger(__name__)

LrShape = Literal["drop", "cosine", "linear", "constant"]

_DEFAULTS: dict[str, Any] = {
    "target_sparsity": 0.9,
    "cycles": 5,
    "schedule": "cubic",
    "delta_t": 100,
    "ramp_fraction": 0.8,
    "lr_shape": "drop",
    "lr_drop_at": 0.75,
    "lr_drop_factor": 0.1,
    "share": DEFAULT_SHARE,
    "row_floor": 1,
    "mask_momentum": True,
}
_METHOD_HELP = "; ".join(f"{name}: {row.help}" for name, row in METHODS.items())
_SHARE_HELP = "; ".join(f"{name}: {row.help}" for name, row in SHARES.items())


def _help(text: str, **metadata: Any) -> dict[str, Any]:
    return {"help": text, **metadata}


@dataclass(frozen=True)
class PruningConfig:
    """How a model is pruned. `None` stands for the method's default."""

    _argument_group_name = "pruning (PruningConfig)"

    method: str = field(
        default=DEFAULT_METHOD, metadata=_help(f"How the model is pruned. {_METHOD_HELP}.", choices=list(METHODS))
    )
    target_sparsity: float | None = field(
        default=None,
        metadata=_help(
            "Fraction of the weights that are zero at the end, in [0, 1); 0.9 if not given, or what pattern n:m fixes "
            "(s_t in the paper)."
        ),
    )
    cycles: int | None = field(
        default=None, metadata=_help("Number of cycles, or of prunings for iterative; 5 if not given (k in the paper).")
    )
    init_sparsity: float | None = field(
        default=None,
        metadata=_help("Sparsity at the start of cycles 2 to k; half the target if not given (s_init in the paper)."),
    )
    schedule: Shape | None = field(
        default=None,
        metadata=_help("How the sparsity rises within a cycle; cubic is Eq. 1 and the default (s(t) in the paper)."),
    )
    delta_t: int | None = field(
        default=None,
        metadata=_help("Optimizer updates between two choices of masks; 100 if not given (Delta t in the paper)."),
    )
    ramp_fraction: float | None = field(
        default=None,
        metadata=_help(
            "Part of a cycle in which the sparsity rises and masks change, in (0, 1]; 0.8 if not given (the paper's 16 "
            "of 20 epochs). The rest is fine-tuning."
        ),
    )
    lr_shape: LrShape | None = field(
        default=None,
        metadata=_help(
            "Learning rate within a cycle; drop is the paper's choice and the default (eta(t) in the paper)."
        ),
    )
    lr_drop_at: float | None = field(
        default=None,
        metadata=_help(
            "Fraction of the cycle after which the learning rate drops; 0.75 if not given (paper: 0.75 for CIFAR, 0.5 "
            "for ImageNet)."
        ),
    )
    lr_drop_factor: float | None = field(
        default=None, metadata=_help("What the drop multiplies the learning rate by; 0.1 if not given.")
    )
    share: str | None = field(
        default=None,
        metadata=_help(
            f"How the weights that go are shared out among the layers; {DEFAULT_SHARE} if not given. {_SHARE_HELP}.",
            choices=list(SHARES),
        ),
    )
    scope: str | None = field(
        default=None,
        metadata=_help(
            "The former name of share: local is uniform, global and lamp are as they were.", choices=list(SCOPES)
        ),
    )
    layer_sparsity: list[str] | None = field(
        default=None,
        metadata=_help(
            "Targets that some layers have of their own, as pattern=fraction with a glob on layer names (layer1.*=0.8 "
            "fc=0); the first that matches counts. They rise along the schedule, and target_sparsity is for all others."
        ),
    )
    row_floor: int | None = field(
        default=None,
        metadata=_help(
            "Every row of a weight, that is a filter or an output, keeps at least so many of its largest weights; 1 if "
            "not given. A filter that has lost all of them returns with far too large weights, or never. 0 turns it "
            "off, and is Algorithm 1 as printed."
        ),
    )
    pattern: str | None = field(
        default=None,
        metadata=_help(
            "How the zeros are arranged; anywhere if not given. n:m, such as 2:4: of every m consecutive inputs of an "
            "output (channels, at each position of a convolution's kernel) n stay. It fixes target_sparsity to 1 - "
            "n/m, and at sparsity s a group has lost round(s * m) weights. BxC, such as 4x1 or 16x1: blocks of B "
            "consecutive outputs and C consecutive inputs stay or go together, by the sum of their magnitudes. "
            "Weights that fill no group or block, where it does not divide a layer, are pruned unstructured."
        ),
    )
    include: list[str] | None = field(
        default=None,
        metadata=_help("Globs on the names of the layers to prune; all linear and convolution layers if not given."),
    )
    exclude: list[str] | None = field(default=None, metadata=_help("Globs on the names of layers that stay dense."))
    dense_epochs: float = field(
        default=0.0,
        metadata=_help(
            "Epochs of dense training before the first cycle, out of num_train_epochs (appendix: from scratch)."
        ),
    )
    dense_updates: int = field(
        default=0, metadata=_help("The same in optimizer updates, out of max_steps. Give one of the two.")
    )
    mask_momentum: bool | None = field(
        default=None,
        metadata=_help(
            "Mask the optimizer's momentum with the weights, so that a weight returns with the steps since it was last "
            "masked and not with the sum of all since it was pruned. If not given, true where weights can return and "
            "the optimizer has a momentum. False is Algorithm 1 as printed.",
            nargs="?",
            const=True,
        ),
    )
    ema_decay: float | None = field(
        default=None,
        metadata=_help(
            "Evaluate and save an exponential moving average of the weights, masked, with this decay (0.999); "
            "begins anew with each cycle. Not in the paper; none if not given."
        ),
    )

    def __post_init__(self) -> None:
        self._take_former_names()
        self._check_choices()
        self._check_numbers()
        self._check_contradictions()

    @property
    def prunes(self) -> bool:
        """Whether there is anything to do: not for a target of 0, where training is dense throughout."""
        return METHODS[self.method].keeps_zeros or self.resolved("target_sparsity") > 0

    @property
    def layer_targets(self) -> tuple[tuple[str, float], ...]:
        """`layer_sparsity` as patterns and fractions."""
        return tuple((pattern, float(value)) for pattern, _, value in map(_parted, self.layer_sparsity or ()))

    @property
    def arrangement(self) -> Pattern:
        """`pattern` as what chooses masks."""
        return pattern_of(self.pattern)

    @property
    def choice(self) -> Choice:
        """Which weights stay at a sparsity."""
        share, row_floor = SHARES[self.resolved("share")].share, self.resolved("row_floor")
        choice = Largest(share=share, row_floor=row_floor, pattern=self.arrangement)
        if not self.layer_sparsity:
            return choice
        return Steered(choice, self.layer_targets, self.resolved("target_sparsity"))

    def resolved(self, name: str) -> Any:
        """A setting with the default in place of `None`."""
        value = getattr(self, name)
        if value is not None:
            return value
        if name == "target_sparsity" and self.arrangement.sparsity is not None:
            return self.arrangement.sparsity
        if name in METHODS[self.method].defaults:
            return METHODS[self.method].defaults[name]
        if name == "init_sparsity" and self.resolved("cycles") > 1:
            return 0.5 * self.resolved("target_sparsity") or None
        if name in ("lr_drop_at", "lr_drop_factor") and self.resolved("lr_shape") != "drop":
            return None
        return _DEFAULTS.get(name)

    def recipe(self, updates: int, epochs: float | None = None) -> Recipe:
        """The recipe for a run of so many optimizer updates, the dense start included.

        Args:
            updates: Optimizer updates of the whole run.
            epochs: Epochs of the whole run, needed only for `dense_epochs`.
        """
        dense = self._dense_updates(updates, epochs)
        T = updates - dense
        k = self._cycles
        shortest = METHODS[self.method].shortest
        if k * shortest > T:
            start = f" after {dense} dense ones" if dense else ""
            rule = f"takes at least {k * shortest} updates ({shortest} per cycle), and the run has {T}{start}"
            _refuse("cycles", k, rule, "train longer, use a smaller batch" + (", or lower cycles" if k > 1 else ""))
        recipe = METHODS[self.method].build(self.resolved, T, self._lr)
        if not recipe.keep_zeros:
            recipe = dataclasses.replace(recipe, choose=self.choice)
        if applies(self.method, "mask_momentum") and self.resolved("mask_momentum"):
            recipe = dataclasses.replace(recipe, moments=MASK)
        return recipes.with_dense_start(recipe, dense, lr=self._lr)

    def to_dict(self) -> dict[str, Any]:
        """As JSON holds it, with the defaults in place of `None`: `PruningConfig(**config.to_dict())` is the same."""
        values = dataclasses.asdict(self)
        values |= {name: self.resolved(name) for name in values if applies(self.method, name)}
        del values["scope"]  # in share
        return values

    @property
    def _cycles(self) -> int:
        return self.resolved("cycles") if applies(self.method, "cycles") else 1

    @property
    def _lr(self) -> LrFactor:
        if self.resolved("lr_shape") == "drop":
            return recipes.lr_drop(self.resolved("lr_drop_at"), self.resolved("lr_drop_factor"))
        shapes = {"cosine": recipes.lr_cosine, "linear": recipes.lr_linear, "constant": recipes.lr_constant}
        return shapes[self.resolved("lr_shape")]

    def _dense_updates(self, updates: int, epochs: float | None) -> int:
        if not self.dense_epochs:
            dense = self.dense_updates
        elif epochs is None:
            _refuse(
                "dense_epochs", self.dense_epochs, "needs a run counted in epochs", "use dense_updates with max_steps"
            )
        else:
            dense = round(updates * self.dense_epochs / epochs) if epochs > 0 else updates
        if dense and dense >= updates:
            name = "dense_epochs" if self.dense_epochs else "dense_updates"
            of = f"{epochs:g} epochs" if self.dense_epochs else f"{updates} updates"
            _refuse(
                name, getattr(self, name), f"leaves nothing of the run's {of} to prune in", "lower it or train longer"
            )
        return dense

    def _take_former_names(self) -> None:
        if self.scope is None:
            return
        if self.scope not in SCOPES:
            _refuse_unknown("scope", self.scope, list(SCOPES))
        share = SCOPES[self.scope]
        if self.share not in (None, share):
            _refuse("scope", self.scope, f"is the former name of share, and share is {self.share!r}", "leave it out")
        logger.warning("scope %r is now called share %r: use that", self.scope, share)
        object.__setattr__(self, "share", share)
        object.__setattr__(self, "scope", None)

    def _check_choices(self) -> None:
        known = {
            "method": list(METHODS),
            "schedule": get_args(Shape),
            "lr_shape": get_args(LrShape),
            "share": list(SHARES),
        }
        for name, allowed in known.items():
            value = getattr(self, name)
            if value not in allowed and not (value is None and name != "method"):
                _refuse_unknown(name, value, allowed)

        if not isinstance(self.pattern, str | None):
            _refuse("pattern", self.pattern, "must be text", "write '2:4' or '4x1'")
        if not isinstance(self.mask_momentum, bool | None):
            _refuse("mask_momentum", self.mask_momentum, "must be true or false", "write one of them")
        for name in ("include", "exclude", "layer_sparsity"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, str) or not all(isinstance(v, str) for v in value)):
                _refuse(name, value, "must be a list of patterns", f"write [{value!r}]")

    def _check_numbers(self) -> None:
        self._check("target_sparsity", lambda v: 0 <= v < 1, "in [0, 1)", "give a fraction, such as 0.9 for 90 %")
        self._check("init_sparsity", lambda v: 0 <= v < 1, "in [0, 1)", "give a fraction, such as 0.45")
        self._check("ramp_fraction", lambda v: 0 < v <= 1, "in (0, 1]", "give a fraction, such as 0.8")
        self._check("cycles", lambda v: v >= 1, "a whole number of at least 1", "use 1 for a single cycle", whole=True)
        self._check(
            "delta_t", lambda v: v >= 1, "a whole number of at least 1", "use 100 as the paper does", whole=True
        )
        self._check("lr_drop_at", lambda v: 0 < v <= 1, "in (0, 1]", "use 0.75 as the paper does")
        self._check("lr_drop_factor", lambda v: 0 <= v <= 1, "in [0, 1]", "use 0.1 as the paper does")
        for text in self.layer_sparsity or ():
            _, _, value = _parted(text)
            if not _is_fraction(value):
                _refuse("layer_sparsity", text, "must be a pattern, = and a fraction in [0, 1)", "write layer1.*=0.8")
        self._check(
            "row_floor", lambda v: v >= 0, "a whole number of at least 0", "use 1, or 0 to turn it off", whole=True
        )
        self._check("dense_epochs", lambda v: v >= 0, "0 or more", "use 0 to prune from the start")
        self._check("ema_decay", lambda v: 0 < v < 1, "in (0, 1)", "use 0.999, or leave it out for no average")
        self._check(
            "dense_updates",
            lambda v: v >= 0,
            "a whole number of 0 or more",
            "use 0 to prune from the start",
            whole=True,
        )

    def _check(self, name: str, holds: Callable[[Any], bool], rule: str, remedy: str, whole: bool = False) -> None:
        value = getattr(self, name)
        if value is None:
            return
        number = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
        if not number or not math.isfinite(value) or not holds(value):
            _refuse(name, value, f"must be {rule}", remedy)

    def _check_contradictions(self) -> None:
        for name in sorted(set().union(*(row.settings for row in METHODS.values()))):
            value = getattr(self, name)
            if value is not None and value is not False and not applies(self.method, name):
                _refuse(name, value, f"has no meaning for method {self.method}", "leave it out")
        if isinstance(self.arrangement, NofM):
            self._check_fixed_sparsity(self.arrangement)
        if self.init_sparsity is not None and self.cycles == 1:
            _refuse("init_sparsity", self.init_sparsity, "is for cycles 2 to k, and cycles is 1", "leave it out")
        if self.init_sparsity is not None and self.init_sparsity >= self.resolved("target_sparsity"):
            rule = f"must be below target_sparsity {self.resolved('target_sparsity')}"
            _refuse("init_sparsity", self.init_sparsity, rule, "lower it, so that weights can return in a cycle")
        for name in ("lr_drop_at", "lr_drop_factor"):
            if getattr(self, name) is not None and (shape := self.resolved("lr_shape")) != "drop":
                _refuse(name, getattr(self, name), f"has no meaning for lr_shape {shape}", "leave it out")
        if self.dense_epochs and self.dense_updates:
            _refuse(
                "dense_updates",
                self.dense_updates,
                f"contradicts dense_epochs {self.dense_epochs:g}",
                "give one of them",
            )
        for name in ("ema_decay", "mask_momentum", "layer_sparsity"):
            if getattr(self, name) and not self.prunes:
                rule = "has no effect where nothing is pruned"
                _refuse(name, getattr(self, name), rule, "raise target_sparsity above 0")
        if METHODS[self.method].keeps_zeros and (self.dense_epochs or self.dense_updates):
            name = "dense_epochs" if self.dense_epochs else "dense_updates"
            _refuse(name, getattr(self, name), f"would undo the zeros that method {self.method} keeps", "leave it out")

    def _check_fixed_sparsity(self, pattern: NofM) -> None:
        if not math.isclose(self.resolved("target_sparsity"), pattern.sparsity, abs_tol=1e-6):
            rule = f"contradicts pattern {pattern}, whose sparsity is {pattern.sparsity:g}"
            _refuse("target_sparsity", self.target_sparsity, rule, "leave it out")
        if self.resolved("share") != "uniform":
            rule = f"has no meaning for pattern {pattern}, which prunes every layer alike"
            _refuse("share", self.share, rule, "use uniform, or leave it out")
        if self.layer_sparsity:
            rule = f"has no meaning for pattern {pattern}, which prunes every layer alike"
            _refuse("layer_sparsity", self.layer_sparsity, rule, "leave it out, or exclude layers that stay dense")
        if self.resolved("row_floor") > pattern.n:
            rule = f"is more than pattern {pattern} keeps of each group"
            _refuse("row_floor", self.row_floor, rule, f"use {pattern.n} at most, or leave it out")


def current_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings as an earlier version has written them, under the names that they have now."""
    scope = settings.get("scope")
    renamed = {"share": SCOPES.get(scope, scope)} if isinstance(scope, str) else {}
    return renamed | {name: value for name, value in settings.items() if name not in ("scope", "layer_floor")}


def _parted(text: str) -> tuple[str, str, str]:
    return text.rpartition("=")


def _is_fraction(text: str) -> bool:
    try:
        return 0 <= float(text) < 1
    except ValueError:
        return False


def _refuse_unknown(name: str, value: Any, allowed: Any) -> None:
    near = difflib.get_close_matches(str(value), allowed, n=1)
    hint = f"did you mean {near[0]}?" if near else "choose one of them"
    _refuse(name, value, f"is not one of {', '.join(allowed)}", hint)


def _refuse(name: str, value: Any, rule: str, remedy: str) -> Any:
    raise PruningError(f"{name} {value!r} {rule}: {remedy}")
