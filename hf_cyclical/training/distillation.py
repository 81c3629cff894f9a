"""Knowledge distillation: the dense model that pruning starts from teaches the sparse one."""

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_model, save_model
from torch import Tensor, nn
from torch.nn.functional import kl_div, log_softmax

from hf_cyclical.config import PruningConfig
from hf_cyclical.core import PruningError, Recipe, broadcast_buffers

from .lean_trainer import LeanTrainer

TEACHER_NAME = "teacher.safetensors"


class Distillation:
    """The loss (1 - weight) * L + weight * T^2 * KL(teacher || student), with both distributions at temperature T.

    L is the loss of the labels. The teacher is the model as it is before the first update of pruning, in eval mode.
    It is part of every checkpoint, so that a run resumes with exactly the teacher that it started with.

    Args:
        weight: Of the teacher, in [0, 1].
        temperature: T, which divides the logits; T^2 keeps the gradients at the scale of the labels' ones.
        start: The first update with a teacher: that after a dense start.
    """

    def __init__(self, weight: float, temperature: float, start: int = 0) -> None:
        self.weight, self.temperature, self.start = weight, temperature, start
        self.teacher: nn.Module | None = None

    @classmethod
    def of(cls, pruning: PruningConfig, recipe: Recipe) -> "Distillation | None":
        """How a run of this recipe is taught, before there is a teacher; None if it is not."""
        temperature, start = pruning.resolved("distill_temperature"), recipe.cycles[0].start
        return cls(pruning.distill, temperature, start) if pruning.distill else None

    def take(self, model: nn.Module) -> None:
        """Make a frozen copy of the model the teacher; all processes must call this."""
        broadcast_buffers(model)
        self.teacher = _frozen(model)

    def loss(self, labelled: Tensor, outputs: Any, inputs: Mapping[str, Any]) -> Tensor:
        """The loss of a batch.

        Args:
            labelled: L.
            outputs: What the model gives for the batch.
            inputs: The batch without labels.
        """
        with torch.no_grad():
            taught = _logits(self.teacher(**inputs))
        return (1 - self.weight) * labelled + self.weight * divergence(_logits(outputs), taught, self.temperature)

    def save(self, folder: str | Path) -> None:
        """Write the teacher, if there is one yet, into a checkpoint."""
        if self.teacher is not None:
            save_model(self.teacher, str(Path(folder, TEACHER_NAME)))

    def resume(self, folder: str | Path, model: nn.Module) -> None:
        """Take over the teacher of a checkpoint, if it has one: a copy of the model with other weights."""
        path = Path(folder, TEACHER_NAME)
        if path.is_file():
            self.teacher = _frozen(model)
            load_model(self.teacher, path)


class DistillingTrainer(LeanTrainer):
    """A Trainer that adds a teacher's word to the loss in training, and not to that of evaluations.

    Attributes:
        distillation: The teacher and how much it counts; None for the labels alone.
    """

    distillation: Distillation | None = None

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """As in Trainer, with the teacher's part in training."""
        teaching = self.distillation
        if teaching is None or not model.training or self.state.global_step < teaching.start:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        if teaching.teacher is None:
            teaching.take(self.accelerator.unwrap_model(model, keep_torch_compile=False))
        images = {name: value for name, value in inputs.items() if name not in self.label_names}
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        # The Trainer divides a loss by the parts of an accumulated batch, except that of a function of the user.
        parts = self.current_gradient_accumulation_steps if self.compute_loss_func is not None else 1
        loss = teaching.loss(loss * parts, outputs, images) / parts
        return (loss, outputs) if return_outputs else loss

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)
        if self.distillation is not None and self.args.should_save:
            self.distillation.save(output_dir)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if self.distillation is not None and checkpoint is not None:
            self.distillation.resume(checkpoint, self.accelerator.unwrap_model(self.model, keep_torch_compile=False))


def divergence(logits: Tensor, taught: Tensor, temperature: float) -> Tensor:
    """T^2 * KL(teacher || student) at temperature T, the mean over images, or over pixels where each has a class.

    Args:
        logits: Of the student: images x classes, or images x classes x height x width.
        taught: Those of the teacher.
        temperature: T.
    """
    if logits.dim() not in (2, 4) or logits.shape != taught.shape:
        raise PruningError(
            f"distill compares the classes of each image or pixel, and the model gives logits of shape "
            f"{list(logits.shape)}: leave distill out"
        )
    student, teacher = (log_softmax(values.float() / temperature, dim=1) for values in (logits, taught))
    cells = logits.numel() // logits.shape[1]
    return temperature**2 * kl_div(student, teacher, reduction="sum", log_target=True) / cells


def describe_distillation(teaching: Distillation, model: nn.Module) -> str:
    """Who teaches, and what it costs, as a line."""
    size = sum(t.numel() * t.element_size() for t in (*model.parameters(), *model.buffers())) / 1e6
    when = f"after the {teaching.start:,} dense updates" if teaching.start else "at the start"
    return (
        f"Distillation: the model as it is {when} teaches, weight {teaching.weight:g}, temperature "
        f"{teaching.temperature:g}. It costs a forward pass more for each batch, about a third of an update, and "
        f"{size:.3g} MB in memory and in each checkpoint."
    )


def _frozen(model: nn.Module) -> nn.Module:
    return copy.deepcopy(model).requires_grad_(False).eval()


def _logits(outputs: Any) -> Tensor:
    return outputs["logits"] if isinstance(outputs, dict) else outputs[-1]
