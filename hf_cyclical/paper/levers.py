"""What helps a pruned model beyond the paper's settings, one lever at a time: the rows of the tables of levers.

The first row is the paper's method with the paper's settings. Then each lever is added to those before it ("+ tail"),
and is tried alone ("only tail"). With all of them come the alternatives: other methods, shares and learning rates.
"""

from collections.abc import Mapping
from typing import Any

from hf_cyclical.methods import applies

METHODS = ("gradual", "cyclical_lr", "one_shot")

PAPER: Mapping[str, Any] = {
    "method": "cyclical",
    "share": "uniform",
    "learning_rate": 1e-2,
    "lr_shape": "drop",
    "row_floor": 0,
    "mask_momentum": False,
}


def levers(rate: float) -> dict[str, dict[str, Any]]:
    """The settings of each lever, in the order in which they are added; `rate` is the dense training's largest.

    How many cycles there are is none: in a short run of the recipe there is one, and all that follows would be gradual.
    """
    return {
        "floor": {"row_floor": 1},
        "momentum": {"mask_momentum": True},
        "rate": {"learning_rate": rate, "lr_shape": "cosine"},
        "warm-up": {"lr_warmup": 0.1},
        "lamp": {"share": "lamp"},
        "tail": {"tail": 0.2},
        "distill": {"distill": 0.5},
        "recalibrate": {"recalibrate": 50},
        "average": {"ema_decay": 0.99},
    }


def rows(rate: float, recommended: float) -> dict[str, dict[str, Any]]:
    """The settings of each row by its label; `recommended` is the rate of the recipe that users get."""
    found, together = {"paper": dict(PAPER)}, dict(PAPER)
    tried = levers(rate)
    for name, settings in tried.items():
        together |= settings
        found[f"+ {name}"] = dict(together)
    for name, settings in list(tried.items())[1:]:  # the first is added alone
        found[f"only {name}"] = PAPER | settings
    for method in METHODS:
        found[f"all, {method}"] = {"method": method} | {k: v for k, v in together.items() if _has(method, k)}
    for share in ("uniform", "erk", "global"):
        found[f"all, {share}"] = together | {"share": share}
    for other in (rate / 5, rate / 2, rate * 2):
        found[f"all, lr {other:g}"] = together | {"learning_rate": other}
    found["all, allr 0"] = together | {"allr": 0.0}
    found["all, delta_t"] = together | {"delta_t": "auto"}
    for cycles in (2, 3):  # one is gradual pruning
        found[f"all, {cycles} cycles"] = together | {"cycles": cycles}
    found["all, linear"] = together | {"lr_shape": "linear"}
    automatic = {"cycles": "auto", "delta_t": "auto", "learning_rate": recommended}
    found["recipe"] = {name: value for name, value in together.items() if name != "ema_decay"} | automatic
    return found


def _has(method: str, name: str) -> bool:
    return name != "method" and applies(method, name)
