"""The paper's experiments by name: variants of a method x sparsities, on the model and data of a preset."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hf_cyclical.methods import applies

from . import levers, rivals
from .presets import PRESETS
from .recommendation import recommended_rate


@dataclass(frozen=True)
class Variant:
    """What is compared: a method, or one setting of it.

    Attributes:
        label: Its name in the table.
        settings: Arguments of hf-cyclical prune, over those of the preset.
        per_run: Those in updates that grow and shrink with the budget, so that a run has as many of them.
    """

    label: str
    settings: dict[str, Any]
    per_run: tuple[str, ...] = ()


@dataclass(frozen=True)
class Experiment:
    """A table of the paper, or one of ours.

    Attributes:
        about: What it shows, and which table of the paper it is.
        preset: Model, data, budget and learning rate: a name of `presets.PRESETS`.
        variants: The rows or columns.
        sparsities: The targets.
        seeds: Those to run if no others are asked for.
        by_cycle: Whether the table has accuracy, mask distance and regrown weights of each cycle, not only the end.
        dense: Arguments of the training of the dense model, over those of the preset, where it must be trained.
        rivals: Whether it compares methods of different authors: with their cost, and the paper's Table 4 beside them.
        chooses: Whether it only chooses settings, on images that are held out.
        levers: Whether its rows add one lever at a time.
        updates: Of pruning in a run of the full budget, where settings are `per_run`.
    """

    about: str
    preset: str
    variants: tuple[Variant, ...]
    sparsities: tuple[float, ...]
    seeds: tuple[int, ...] = (1,)
    by_cycle: bool = False
    dense: dict[str, Any] = field(default_factory=dict)
    rivals: bool = False
    chooses: bool = False
    levers: bool = False
    updates: int | None = None


def _methods(*names: str) -> tuple[Variant, ...]:
    return tuple(Variant(name, {"method": name}) for name in names)


_THREE = _methods("one_shot", "gradual", "cyclical")
_SIX = _methods("one_shot", "iterative", "gradual", "gradual_recovery", "cyclical_lr", "cyclical")
_SCHEDULES = (
    *(Variant(shape, {"method": "cyclical", "schedule": shape}) for shape in ("cubic", "linear", "step")),
    Variant("cyclical_lr", {"method": "cyclical_lr"}),
)
_INITS = tuple(Variant(f"s_init {s:g}", {"method": "cyclical", "init_sparsity": s}) for s in (0.0, 0.25, 0.5, 0.75))
_SCOPES: dict[str, dict[str, Any]] = {
    "local": {},
    "erk": {"share": "erk"},
    "global without floor": {"share": "global", "row_floor": 0},
    "global": {"share": "global"},
    "lamp": {"share": "lamp"},
}
_DIGITS_SEEDS = (1, 2, 3, 4, 5)
_CIFAR_DENSE = {"learning_rate": 0.1}  # He et al.'s for these networks; the paper's 1e-2 is of trained ones
_CIFAR = (0.9, 0.95, 0.98, 0.99)
_MOBILE = (0.7, 0.8, 0.9, 0.95)
_IMAGENET = {
    "resnet18": (0.6, 0.7, 0.8, 0.9),
    "resnet50": (0.6, 0.7, 0.8, 0.9, 0.95),
    "efficientnet": (0.4, 0.5, 0.6, 0.7, 0.75),
    "mobilenetv2": (0.4, 0.5, 0.6, 0.7),
}


def _cycles(epochs: int, **more: Any) -> tuple[Variant, ...]:
    """One, two and three cycles of so many epochs."""
    return tuple(
        Variant(f"{k} cycle{'s' * (k > 1)}", {"method": "cyclical", "cycles": k, "pruning_epochs": k * epochs, **more})
        for k in (1, 2, 3)
    )


def _rivals(
    name: str,
    preset: str,
    epoch: int,
    seeds: tuple[int, ...],
    dense: dict[str, Any],
    choice_seeds: tuple[int, ...] = (1,),
) -> dict[str, Experiment]:
    """The comparison with the rivals, and the choice of their settings; `epoch` is the number of updates of one."""
    settings = PRESETS[preset].settings
    budget = rivals.Budget(epoch, settings["pruning_epochs"], settings["per_device_train_batch_size"])
    rows = rivals.in_pairs(rivals.authors(budget), rivals.tuned(name, budget))
    tried = rivals.candidates(budget)
    return {
        name: Experiment(
            f"the rivals of the paper's Table 4 in one engine, from one dense model ({preset})",
            preset,
            _rival_variants(rows, budget),
            _CIFAR,
            seeds,
            dense=dense,
            rivals=True,
            updates=budget.updates,
        ),
        f"{name}-choice": Experiment(
            f"their learning rates and shares, chosen on held-out training images ({preset})",
            preset,
            _rival_variants(tried, budget),
            (0.98,),
            choice_seeds,
            dense=dense | {"holdout": rivals.HOLDOUT},
            chooses=True,
            updates=budget.updates,
        ),
    }


def _rival_variants(rows: Mapping[str, dict[str, Any]], budget: rivals.Budget) -> tuple[Variant, ...]:
    return tuple(
        Variant(label, settings, ("delta_t",) if rivals.scales(settings["method"], budget) else ())
        for label, settings in rows.items()
    )


def _levers(
    name: str, preset: str, epoch: int, rate: float, seeds: tuple[int, ...], dense: dict[str, Any]
) -> dict[str, Experiment]:
    """The table of levers, and the same on held-out training images, to choose from; `rate` is the dense training's."""
    held_out, settings = {"holdout": rivals.HOLDOUT}, PRESETS[preset].settings
    tried = levers.rows(rate, recommended_rate(settings["per_device_train_batch_size"]))
    return {
        label: Experiment(
            f"what helps beyond the paper's settings, one lever added at a time{where} ({preset})",
            preset,
            tuple(Variant(label, row | more, ("delta_t",) if _scales(row) else ()) for label, row in tried.items()),
            (0.9, 0.95, 0.98),
            seeds,
            dense=dense | more,
            levers=True,
            updates=epoch * settings["pruning_epochs"],
        )
        for label, where, more in ((name, "", {}), (f"{name}-choice", ", on held-out training images", held_out))
    }


def _scales(row: dict[str, Any]) -> bool:
    return row.get("delta_t") != "auto" and applies(row["method"], "delta_t")


EXPERIMENTS: dict[str, Experiment] = {
    "digits": Experiment(
        "every method of the paper on the embedded digits", "digits", _SIX, (0.95, 0.98, 0.99), _DIGITS_SEEDS
    ),
    "digits-schedules": Experiment(
        "the paper's Table 5 on the digits: how s rises within a cycle",
        "digits",
        _SCHEDULES,
        (0.98,),
        _DIGITS_SEEDS,
        True,
    ),
    "digits-init": Experiment(
        "the paper's Table 8 on the digits: s at the start of cycles 2 to k",
        "digits",
        _INITS,
        (0.98,),
        _DIGITS_SEEDS,
        True,
    ),
    "digits-scope": Experiment(
        "which weights compete with each other, on the digits; the paper has local (uniform) only",
        "digits",
        tuple(
            Variant(f"{method.label}, {scope}", method.settings | settings)
            for scope, settings in _SCOPES.items()
            for method in _THREE
        ),
        (0.95, 0.98, 0.99),
        _DIGITS_SEEDS,
    ),
    **_rivals("digits-rivals", "digits", 15, _DIGITS_SEEDS, {}, choice_seeds=(1, 2, 3)),
    **_rivals("cifar10-resnet20-rivals", "cifar10-resnet20", 196, (1,), _CIFAR_DENSE),
    **_levers("digits-levers", "digits", 15, 0.05, _DIGITS_SEEDS, {}),
    **_levers("cifar10-resnet20-levers", "cifar10-resnet20", 196, 0.1, (1,), _CIFAR_DENSE),
    **{
        f"{data}-{model}": Experiment(
            f"the paper's Table {6 if data == 'cifar10' else 7} ({model})",
            f"{data}-{model}",
            _THREE,
            _MOBILE if model == "mobilenet" else _CIFAR,
            dense=_CIFAR_DENSE,
        )
        for data in ("cifar10", "cifar100")
        for model in ("resnet20", "resnet56", "vgg14", "mobilenet")
    },
    "cifar10-resnet20-schedules": Experiment(
        "the paper's Table 5: how s rises within a cycle",
        "cifar10-resnet20",
        _SCHEDULES,
        (0.99,),
        (1,),
        True,
        _CIFAR_DENSE,
    ),
    "cifar10-resnet20-init": Experiment(
        "the paper's Table 8: s at the start of cycles 2 to k",
        "cifar10-resnet20",
        _INITS,
        (0.98,),
        (1,),
        True,
        _CIFAR_DENSE,
    ),
    "cifar10-resnet20-recovery": Experiment(
        "the paper's Table 9: gradual pruning with recovery",
        "cifar10-resnet20",
        _methods("gradual", "cyclical", "gradual_recovery"),
        _CIFAR,
        dense=_CIFAR_DENSE,
    ),
    **{
        f"imagenet-{model}": Experiment(f"the paper's Table 3 ({model})", f"imagenet-{model}", _THREE, sparsities)
        for model, sparsities in _IMAGENET.items()
    },
    "imagenet-resnet50-published": Experiment(
        "the paper's Table 4: ResNet-50 against published results",
        "imagenet-resnet50-published",
        _cycles(20),
        (0.735, 0.826),
    ),
    "imagenet-resnet50-scratch": Experiment(
        "the paper's Table 10: training from scratch, 60 dense epochs first, with one learning rate for all",
        "imagenet-resnet50-published",
        _cycles(15, from_scratch=True, dense_epochs=60),
        (0.735, 0.826),
    ),
}


def epochs_of(experiment: Experiment, variant: Variant) -> float:
    """The paper's epochs of pruning for a variant."""
    return (PRESETS[experiment.preset].settings | variant.settings)["pruning_epochs"]
