"""Print the paper's settings by name.

hf-cyclical presets                          # all of them
hf-cyclical presets cifar10-resnet20         # one, and where its values come from

A preset is chosen with hf-cyclical prune --preset NAME; any other argument overrides it. Tables of the paper are run by
hf-cyclical compare --experiment NAME.
"""

import difflib
import sys
from collections.abc import Sequence

from hf_cyclical.paper import PRESETS
from hf_cyclical.reports import align

from .command_line import Parser, fail

_COLUMNS = {
    "model": "model_name_or_path",
    "dataset": "dataset_name",
    "sparsity": "target_sparsity",
    "cycles": "cycles",
    "epochs": "pruning_epochs",
    "delta_t": "delta_t",
    "optimizer": "optim",
    "rate": "learning_rate",
    "drop at": "lr_drop_at",
    "batch": "per_device_train_batch_size",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line, and return its exit code."""
    parser = Parser("presets", __doc__)
    parser.add_argument("name", metavar="NAME", nargs="?", help="the preset to explain; all are listed if not given")
    name = parser.parse_args(argv).name
    if name is not None and name not in PRESETS:
        near = difflib.get_close_matches(name, PRESETS, n=1)
        fail(f"preset {name!r} is unknown: {f'did you mean {near[0]}?' if near else 'hf-cyclical presets lists them'}")
    sys.stdout.write(f"{describe_presets() if name is None else explain(name)}\n")
    return 0


def describe_presets() -> str:
    """A table of all presets."""
    rows = [[name, *(str(p.settings.get(key, "")) for key in _COLUMNS.values())] for name, p in PRESETS.items()]
    return align([["preset", *_COLUMNS], *rows], texts=3)


def explain(name: str) -> str:
    """The values of a preset with their sources: the paper's sentence, or our reason."""
    preset = PRESETS[name]
    sources = {key: f'paper: "{why}"' for keys, why in preset.paper.items() for key in keys.split(", ")}
    sources |= {key: why for keys, why in preset.ours.items() for key in keys.split(", ")}
    rows = [[f"--{key}", str(value), sources.get(key, "")] for key, value in preset.settings.items()]
    return align([["argument", "value", "source"], *rows], texts=3)
