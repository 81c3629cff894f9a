"""The arguments of a run, as dataclasses for HfArgumentParser."""

from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from transformers import TrainingArguments

from hf_cyclical.config import PruningConfig
from hf_cyclical.core import PruningError
from hf_cyclical.data import DataArguments
from hf_cyclical.paper import DEFAULT_PRESET


def _field(default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass
class ModelArguments:
    """Which model."""

    _argument_group_name = "model"

    model_name_or_path: str | None = _field(
        None,
        "A folder, a Hub id (microsoft/resnet-50, timm/resnet18.a1_in1k) or a timm name (resnet18, cifar_resnet20).",
    )
    from_scratch: bool = _field(
        False, "Start from random weights; with dense_epochs, the training from scratch of the paper's appendix."
    )
    image_size: int | None = _field(
        None,
        "Side of the images, in pixels, for training, evaluation and the saved processor; the model's if not given.",
    )

    def __post_init__(self) -> None:
        if self.image_size is not None and self.image_size < 1:
            raise PruningError(
                f"image_size is {self.image_size}, and must be at least 1: leave it out for the model's own"
            )


@dataclass
class RunArguments:
    """What to do."""

    _argument_group_name = "run"

    preset: str | None = _field(
        None,
        "The paper's settings by name, overridden by any other argument; list prints them. "
        f"{DEFAULT_PRESET} if neither a model nor a dataset is given.",
    )
    plan: bool = _field(False, "Print the plan of the run and stop.")
    resume: str | None = _field(
        None,
        "auto resumes from the newest complete checkpoint in output_dir, or starts if there is none; "
        "or the folder of a checkpoint.",
    )
    overwrite: bool = _field(False, "Replace what another run left in output_dir; without it such a folder is refused.")
    pruning_epochs: float | None = _field(
        None, "Epochs of pruning, all cycles together: sets num_train_epochs to these and the dense ones."
    )
    budget: str | None = _field(
        None,
        "The time that training may take, such as 30m, 2h, 90s or 1h30m: a few updates are measured, and "
        "num_train_epochs is set to what there is time for, with its evaluations. cycles and delta_t are auto "
        "then, unless told. A resumed run keeps the epochs that were chosen at its start.",
    )
    channels_last: Literal["auto", True, False] = _field(
        "auto",
        "Give the model its images with the channels innermost, which makes convolutions faster, most of all together "
        "with bf16; auto: if the model has several 2-D convolutions. Weights and masks stay as they are.",
    )
    hub_public: bool = _field(False, "With push_to_hub: make the repository public; it is private unless told.")
    packed: bool = _field(False, "With push_to_hub: push packed weights too, on the branch packed.")


@dataclass
class PruningTrainingArguments(TrainingArguments):
    """TrainingArguments with the paper's defaults where they differ from the Trainer's."""

    _argument_group_name = "training (transformers.TrainingArguments, with the paper's defaults)"

    output_dir: str = _field("pruned", "Folder for the pruned model, its report and checkpoints.")
    optim: str = _field("sgd", "Optimizer; the paper's for CIFAR is SGD with momentum.")
    optim_args: str | None = _field("momentum=0.9", "Optimizer arguments.")
    learning_rate: float = _field(1e-2, "Learning rate at the start of each cycle (paper: 1e-2 for CIFAR).")
    max_grad_norm: float = _field(0.0, "Gradient clipping; 0 for none, as the paper has none.")
    per_device_train_batch_size: int = _field(256, "Batch size on each device (paper: 256 for CIFAR).")
    per_device_eval_batch_size: int = _field(256, "Batch size of evaluations.")
    num_train_epochs: float = _field(100.0, "Epochs in all, those of a dense start included (paper: 100 for CIFAR).")
    logging_steps: float = _field(0.1, "Log every so many updates, or such a part of the run; cycle ends anyway.")
    save_steps: float = _field(0.1, "Checkpoint every so many updates, or such a part of the run; cycle ends anyway.")
    save_total_limit: int | None = _field(2, "Checkpoints to keep.")
    dataloader_pin_memory: bool = _field(torch.accelerator.is_available(), "Where there is a device to copy to.")
    use_cpu: bool = _field(not torch.accelerator.is_available(), "Where there is no other device; bf16 asks for it.")
    remove_unused_columns: bool = _field(False, "Leave it off: our data gives what the model takes.")
    push_to_hub: bool = _field(False, "Push the finished model with its card, report and figure; see hub_model_id.")
    hub_model_id: str | None = _field(None, "With push_to_hub: the repository, as user/name.")
    hub_strategy: str = _field("end", "When to push: at the end, as models on the way are not at the target.")


@dataclass
class Arguments:
    """All arguments of a run.

    Attributes:
        repo_id: Where to push what it leaves.
        named: Those that the user has given, which nothing else overrides.
        preset: Whether the others are those of a preset; if not, they are recommended once the model is known.
        most_dense: The part of a run that a recommended dense start may be; None if there is none.
    """

    model: ModelArguments
    data: DataArguments
    run: RunArguments
    pruning: PruningConfig
    training: PruningTrainingArguments
    repo_id: str | None
    named: dict[str, Any]
    preset: bool
    most_dense: float | None = None


TYPES = (RunArguments, ModelArguments, DataArguments, PruningConfig, PruningTrainingArguments)
