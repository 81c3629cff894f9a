"""A Trainer whose checkpoints are complete or not there."""

import os
import shutil
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import nn
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from hf_cyclical.core import PruningError, first_line

from .checkpoints import STAGING_NAME, publish, rotate, seal
from .lean_trainer import LeanTrainer


class WholeCheckpointTrainer(LeanTrainer):
    """Writes each checkpoint under another name and renames it when all processes are done.

    Whatever happens in between, a kill or a full disk, leaves the checkpoint before it as the newest one.

    Attributes:
        whole_checkpoints: Whether it does so, or is `Trainer`.
        data_settings: What is known of the data beyond the data sets: a checkpoint of other data is not resumed.
    """

    whole_checkpoints = True
    _staging: str | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.data_settings: dict[str, Any] = {}
        super().__init__(*args, **kwargs)

    def _get_output_dir(self, trial: Any) -> str:
        return self._staging or super()._get_output_dir(trial)

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        if self._staging is None:  # else it is about to get another name, under which it is pushed
            super()._push_from_checkpoint(checkpoint_folder)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        if not self.whole_checkpoints:
            return super()._save_checkpoint(model, trial)
        run_dir = self._get_output_dir(trial)
        name, staging = f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}", os.path.join(run_dir, STAGING_NAME)
        try:
            if self.args.should_save:
                shutil.rmtree(staging, ignore_errors=True)
            self.accelerator.wait_for_everyone()
            self._staging = staging
            super()._save_checkpoint(model, trial)
            self._remember_best(run_dir, name)
            self.accelerator.wait_for_everyone()
            if self.args.should_save:
                seal(Path(staging, name))
                publish(Path(staging, name), Path(run_dir, name))
                rotate(
                    run_dir,
                    newest=self.state.global_step,
                    limit=self.args.save_total_limit,
                    best=self.state.best_model_checkpoint,
                )
            self.accelerator.wait_for_everyone()
        except (OSError, RuntimeError, SafetensorError) as error:
            if not _is_of_the_disk(error):
                raise
            if self.args.should_save:
                shutil.rmtree(staging, ignore_errors=True)
            raise PruningError(
                f"{name} could not be written to {run_dir!r} ({first_line(error)}): make room, and resume from the "
                "newest complete checkpoint"
            ) from error
        finally:
            self._staging = None
        if self.args.push_to_hub:
            self._push_from_checkpoint(os.path.join(run_dir, name))

    def _remember_best(self, run_dir: str, name: str) -> None:
        """The best checkpoint by its final name, on every process: each of them loads it in the end."""
        if self.state.best_model_checkpoint and self.state.best_global_step == self.state.global_step:
            self.state.best_model_checkpoint = os.path.join(run_dir, name)
            if self.args.should_save:
                self.state.save_to_json(os.path.join(run_dir, STAGING_NAME, name, TRAINER_STATE_NAME))


def _is_of_the_disk(error: Exception) -> bool:
    """Whether it comes from writing files: torch has no class of its own for that, and gloo's errors look alike."""
    return not isinstance(error, RuntimeError) or "PytorchStreamWriter" in str(error) or "unexpected pos" in str(error)
