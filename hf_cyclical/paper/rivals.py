"""The methods that the paper compares itself with by their published numbers, and their like, as variants to run.

Each has a row with the settings of its authors. A second one has the learning rate and the share that suit it best,
which an experiment of its own chooses: `hf-cyclical compare --experiment digits-rivals-choice` trains on a part of the
training images and evaluates on the others. The chosen.json that it leaves is what the folder `tuned` holds.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hf_cyclical.methods import DEFAULT_SHARE, METHODS

HOLDOUT = 0.2
RATES = (0.02, 0.05, 0.1, 0.2)
SHARES = ("uniform", "erk", "global")
PAPER = ("one_shot", "gradual", "cyclical", "cyclical_lr")

# Of the authors' experiments with CIFAR-10, AC/DC's with ImageNet, at a batch of 128 or 256.
AUTHORS: Mapping[str, dict[str, Any]] = {
    "rigl": {"init_masks": "random", "share": "erk", "learning_rate": 0.1, "weight_decay": 5e-4, "row_floor": 0},
    "snfs": {"init_masks": "random", "learning_rate": 0.1, "weight_decay": 5e-4, "row_floor": 0},
    "dpf": {"share": "global", "delta_t": 16, "learning_rate": 0.2, "weight_decay": 1e-4, "row_floor": 0},
    "acdc": {"share": "global", "cycles": 8, "learning_rate": 0.256, "weight_decay": 5e-5, "row_floor": 0},
    "granet": {"share": "global", "learning_rate": 0.1, "weight_decay": 5e-4, "row_floor": 0},
}

_CHOICES = Path(__file__).with_name("tuned")
TUNED: Mapping[str, Mapping[str, dict[str, Any]]] = {
    path.stem: json.loads(path.read_text())["chosen"] for path in sorted(_CHOICES.glob("*.json"))
}
"""By experiment and method, what its choice has found."""


def authors(epoch: int) -> dict[str, dict[str, Any]]:
    """The settings of each row with those of its authors; `epoch` is the number of updates of one."""
    rows: dict[str, dict[str, Any]] = {method: {"method": method} for method in PAPER}
    rows |= {method: {"method": method, **settings} for method, settings in AUTHORS.items()}
    rows["snfs"]["delta_t"] = epoch  # once an epoch
    return rows


def tuned(experiment: str, epoch: int) -> dict[str, dict[str, Any]]:
    """The settings of each second row, by its label."""
    found = TUNED.get(experiment, {})
    return {f"{method}, tuned": candidate(method, epoch) | settings for method, settings in found.items()}


def candidate(method: str, epoch: int) -> dict[str, Any]:
    """A method as it is tuned: from the given weights, with the package's floor of the rows and the weight decay."""
    own = {"snfs": {"delta_t": epoch}, "dpf": {"delta_t": 16}, "acdc": {"cycles": 8}}
    return {"method": method, **own.get(method, {})}


def own_share(method: str) -> str:
    """The share that a method has without a choice."""
    return AUTHORS.get(method, {}).get("share", METHODS[method].defaults.get("share", DEFAULT_SHARE))


def candidates(epoch: int) -> dict[str, dict[str, Any]]:
    """All that can be tried to choose from, on images that are held out of the training images."""
    return {
        f"{method}, lr {rate:g}, {share}": {
            **candidate(method, epoch), "learning_rate": rate, "share": share, "holdout": HOLDOUT
        }
        for method in (*PAPER, *AUTHORS)
        for rate in RATES
        for share in SHARES
    }  # fmt: skip
