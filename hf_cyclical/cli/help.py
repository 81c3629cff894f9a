"""The help of a run's arguments: `--help` shows those that people use, a line for each, `--help-all` all of them."""

from argparse import SUPPRESS, Action, ArgumentParser, RawDescriptionHelpFormatter
from typing import Any, NoReturn

SHORT, COMPLETE = "help", "help_all"
_LINES = {
    "preset": "the paper's settings by name, see hf-cyclical presets",
    "plan": "print the plan of the run and stop",
    "resume": "auto: from the newest complete checkpoint in output_dir, if any; or its folder",
    "overwrite": "replace what another run left in output_dir",
    "pruning_epochs": "epochs of pruning, all cycles together",
    "budget": "time for training, such as 30m or 2h, which sets its epochs and cycles",
    "hub_public": "push to a public repository, not to a private one",
    "packed": "push packed weights too, on the branch packed",
    "model_name_or_path": "a folder, a Hub id or a timm name",
    "from_scratch": "start from random weights",
    "image_size": "side of the images in pixels; the model's if not given",
    "dataset_name": "a Hub id, a folder of images or of parquet files, or digits",
    "image_column_name": "column of the images, if there are several",
    "label_column_name": "column of the classes, if there are several",
    "augment": "%(choices)s",
    "max_train_samples": "train on so many images",
    "streaming": "read the data while training, with no copy on disk; needs max_steps",
    "method": "%(choices)s",
    "target_sparsity": "zeros at the end, a fraction; 0.9 if not given (s_t in the paper)",
    "cycles": "number of cycles, or auto; 5 without the recipe (k in the paper)",
    "init_sparsity": "at the start of cycles 2 to k; half the target if not given (s_init in the paper)",
    "delta_t": "updates between two choices of masks, or auto; 100 without the recipe (Delta t in the paper)",
    "share": "each layer's share of the zeros: %(choices)s; uniform without the recipe",
    "layer_sparsity": 'targets of some layers, such as "layer1.*=0.8" fc=0',
    "pattern": "how the zeros are arranged: 2:4 or another n:m, blocks such as 4x1; anywhere if not given",
    "exclude": "names of layers that stay dense, with * and ?",
    "dense_epochs": "epochs of dense training first, out of num_train_epochs",
    "output_dir": "where the pruned model, its report and checkpoints go",
    "num_train_epochs": "epochs in all",
    "max_steps": "updates in all, in place of epochs",
    "per_device_train_batch_size": "images at once on each device",
    "gradient_accumulation_steps": "batches for each update",
    "learning_rate": "at the start of each cycle",
    "weight_decay": "of the optimizer",
    "optim": "the optimizer: sgd, adamw_torch or another one of TrainingArguments",
    "bf16": "train in bfloat16 mixed precision",
    "dataloader_num_workers": "processes that load images",
    "seed": "of weights, order and augmentation",
    "push_to_hub": "push the finished run to the Hub",
    "hub_model_id": "where to, as user/name",
}
_RECOMMENDED = {  # arguments that the recommended recipe sets where no preset is named
    *("method", "share", "cycles", "delta_t", "lr_shape", "optim", "optim_args", "learning_rate", "weight_decay"),
    *("num_train_epochs", "per_device_train_batch_size"),
}
_VALUES = {int: "N", float: "X", str: "TEXT"}
_WITHOUT = (None, False, "", -1)  # defaults that say nothing


class Formatter(RawDescriptionHelpFormatter):
    """Descriptions as they are, and room for the longest names."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=34, width=120)


class ShowHelp(Action):
    """Prints the help and ends: with `const`, of every argument and in full."""

    def __init__(self, option_strings: list[str], dest: str, const: bool = False, help: str | None = None) -> None:
        super().__init__(option_strings, dest, nargs=0, const=const, default=SUPPRESS, help=help)

    def __call__(self, parser: ArgumentParser, *_: Any) -> NoReturn:
        """Each argument once: not in its two spellings, and not again as its opposite."""
        for action in parser._actions:
            if action.dest in (SHORT, COMPLETE) or not action.option_strings:
                continue
            line = action.help if self.const else _LINES.get(action.dest)
            if line is None or _is_opposite(action):
                action.help = SUPPRESS
            else:
                _simplify(action, line, choices=bool(self.const))
        parser.print_help()
        parser.exit()


def add_help(parser: ArgumentParser) -> None:
    """Add both kinds of help."""
    parser.add_argument("-h", "--help", dest=SHORT, action=ShowHelp, help="show the arguments that people use")
    parser.add_argument("--help-all", dest=COMPLETE, action=ShowHelp, const=True, help="show all arguments, in full")


def _simplify(action: Action, text: str, choices: bool) -> None:
    """Make an argument print as one name, with the kind of its value, and its default at the end."""
    action.option_strings = action.option_strings[:1]
    is_flag = action.nargs == "?" and action.const is True
    if is_flag and action.default is False:
        action.nargs = 0
    elif is_flag:
        action.metavar = "BOOL"
    elif action.choices is None:
        action.metavar = _VALUES.get(action.type, "VALUE")
    elif not choices:
        action.metavar = "NAME"
    default = getattr(action.default, "value", action.default)
    told = default in _WITHOUT or isinstance(default, list | dict) or not default
    value = str(default).replace("%", "%%")
    shown = f"{value} without the recipe" if action.dest in _RECOMMENDED else f"default: {value}"
    action.help = f"{' '.join(text.split())}" + ("" if told else f" ({shown})")


def _is_opposite(action: Action) -> bool:
    return action.const is False and any(name.startswith("--no_") for name in action.option_strings)
