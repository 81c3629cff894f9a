"""The methods that the paper compares itself with by their published numbers, and their like, as variants to run.

Each has a row with the settings of its authors. A second one has the learning rate and the share that suit it best,
which an experiment of its own chooses: `hf-cyclical compare --experiment digits-rivals-choice` trains on a part of the
training images and evaluates on the others. The chosen.json that it leaves is what the folder `tuned` holds.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from hf_cyclical.methods import DEFAULT_SHARE

HOLDOUT = 0.2
RATES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.4)
FIRST_RATES = RATES[1:-1]
SHARES = ("uniform", "erk", "global")
PAPER = ("one_shot", "gradual", "cyclical", "cyclical_lr")

_NESTEROV = "momentum=0.9,nesterov=True"

# As in the authors' code, read in the commits that are named. Rates are those for a batch of so many images, and grow
# with it. All fall along a cosine to 0, in place of the authors' steps down to a hundredth or less.
# Which layers are pruned belongs to the table, and is one for all methods.
AUTHORS: Mapping[str, dict[str, Any]] = {
    # google-research/rigl d39fc7d, rigl/cifar_resnet/resnet_train_eval.py (the defaults, and the paper's cosine) and
    # README (ERK). It keeps the first layer dense, exchanges every 100 updates, whatever the batch, until 77 % of the
    # run, and divides its rate by 5 at 31 %, 61 % and 92 %.
    "rigl": {
        **{"init_masks": "random", "share": "erk", "drop_fraction": 0.3},
        **{"learning_rate": 0.1, "batch": 128, "weight_decay": 5e-4, "optim_args": _NESTEROV},
    },
    # TimDettmers/sparse_learning e19ff16, mnist_cifar/main.py and sparselearning/core.py (the defaults). It exchanges
    # after each of 100 epochs of 450 updates, and divides its rate by 10 every 25,000 updates.
    "snfs": {
        **{"init_masks": "random", "share": "uniform", "drop_fraction": 0.5},
        **{"learning_rate": 0.1, "batch": 100, "weight_decay": 5e-4, "optim_args": _NESTEROV},
    },
    # INCHEON-CHO/Dynamic_Model_Pruning_with_Feedback deb281e, README: not the authors', who have published no code. The
    # last layer is dense, and the rate divided by 10 at 50 % and 75 %.
    "dpf": {
        **{"share": "global", "learning_rate": 0.2, "batch": 128, "weight_decay": 1e-4, "optim_args": _NESTEROV},
    },
    # IST-DASLab/ACDC b4790da, configs/neurips/iht_cifar10_resnet20_unstructured_insta_prune_freq20_95_constant.yaml:
    # 200 epochs, of which 10 are dense at first and 30 sparse at last, and others in turn 20; the rate is divided by 10
    # at epochs 65, 125 and 185. The length of the phases is that of ImageNet here.
    "acdc": {
        **{"share": "global", "cycles": 5},
        **{"learning_rate": 0.1, "batch": 128, "weight_decay": 5e-4, "optim_args": "momentum=0.9"},
    },
    # VITA-Group/GraNet f338a24, README (CIFAR, s_i = 0) and CIFAR/main.py (batch). Masks are chosen every 1,000 of
    # 72,000 updates; the rate is divided by 10 at 50 % and 75 %.
    "granet": {
        **{"share": "global", "drop_fraction": 0.5},
        **{"learning_rate": 0.1, "batch": 100, "weight_decay": 5e-4, "optim_args": _NESTEROV},
    },
}
_GRANET_CHOICES = 72  # in a run
_SNFS_MOST = 100  # exchanges in a run, which are one after each epoch of a larger data set
_COSINE = {"lr_shape": "cosine"}

_CHOICES = Path(__file__).with_name("tuned")
TUNED: Mapping[str, Mapping[str, dict[str, Any]]] = {
    path.stem: json.loads(path.read_text())["chosen"] for path in sorted(_CHOICES.glob("*.json"))
}
"""By experiment and method, what its choice has found."""


class Budget(NamedTuple):
    """How long the runs of a table are, and their batches.

    Attributes:
        epoch: Updates of an epoch.
        epochs: Of pruning.
        batch: Images of an update.
    """

    epoch: int
    epochs: int
    batch: int

    @property
    def updates(self) -> int:
        """Of pruning."""
        return round(self.epoch * self.epochs)


def authors(budget: Budget) -> dict[str, dict[str, Any]]:
    """The settings of each row with those of its authors."""
    rows: dict[str, dict[str, Any]] = {method: {"method": method} for method in PAPER}
    for method, settings in AUTHORS.items():
        rate = settings["learning_rate"] * budget.batch / settings["batch"]
        own = {name: value for name, value in settings.items() if name != "batch"}
        rows[method] = {"method": method, **own, **_COSINE, "learning_rate": float(f"{rate:.3g}"), "row_floor": 0}
        rows[method] |= _intervals(method, budget)
    return rows


def scales(method: str, budget: Budget) -> bool:
    """Whether a short run chooses masks as often as one of the budget; else the interval is a rule."""
    of_the_run = method == "snfs" and _snfs_interval(budget) > budget.epoch
    return of_the_run or method in ("gradual", "cyclical", "cyclical_lr", "granet")


def _snfs_interval(budget: Budget) -> int:
    return max(budget.epoch, budget.updates // _SNFS_MOST)


def _intervals(method: str, budget: Budget) -> dict[str, int]:
    """How many updates lie between two choices of masks, where the authors say so."""
    granet = round(budget.updates / _GRANET_CHOICES)
    known = {"rigl": 100, "snfs": _snfs_interval(budget), "dpf": 16, "granet": granet}
    return {"delta_t": known[method]} if method in known else {}


def tuned(experiment: str, budget: Budget) -> dict[str, dict[str, Any]]:
    """The settings of each second row, by its label."""
    found = TUNED.get(experiment, {})
    return {f"{method}, tuned": candidate(method, budget) | settings for method, settings in found.items()}


def in_pairs(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """The rows of both, each method's first row followed by its second."""
    both: dict[str, Any] = {}
    for label, row in first.items():
        tuned_label = f"{label}, tuned"
        both |= {label: row} | ({tuned_label: second[tuned_label]} if tuned_label in second else {})
    return both


def candidate(method: str, budget: Budget) -> dict[str, Any]:
    """A method as it is tuned: from the given weights, with the package's floor of the rows and the weight decay."""
    phases = {"cycles": AUTHORS[method]["cycles"]} if method == "acdc" else {}
    return {"method": method, **phases, **_COSINE, **_intervals(method, budget)}


def own_share(method: str) -> str:
    """The share that a method has without a choice."""
    return AUTHORS.get(method, {}).get("share", DEFAULT_SHARE)


def candidates(budget: Budget) -> dict[str, dict[str, Any]]:
    """All that can be tried to choose from, on images that are held out of the training images."""
    return {
        f"{method}, lr {rate:g}, {share}": {
            **candidate(method, budget), "learning_rate": rate, "share": share, "holdout": HOLDOUT
        }
        for method in (*PAPER, *AUTHORS)
        for rate in RATES
        for share in SHARES
    }  # fmt: skip
