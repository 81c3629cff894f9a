"""A Trainer whose checkpoints are complete or not there."""

import os
import shutil
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import nn
from transformers import Trainer
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, rotate_checkpoints

from .core import PruningError
from .manifest import STAGING_NAME, newest_checkpoint, publish, seal


class WholeCheckpointTrainer(Trainer):
    """Writes each checkpoint under another name and renames it when all processes are done.

    Whatever happens in between, a kill or a full disk, leaves the checkpoint before it as the newest one.

    Attributes:
        whole_checkpoints: Whether it does so, or is `Trainer`.
    """

    whole_checkpoints = True
    _staging: str | None = None

    def _get_output_dir(self, trial: Any) -> str:
        return self._staging or super()._get_output_dir(trial)

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
            self.accelerator.wait_for_everyone()
            if self.args.should_save:
                self._publish(Path(staging, name), Path(run_dir, name))
            self.accelerator.wait_for_everyone()
        except (OSError, RuntimeError, SafetensorError) as error:
            shutil.rmtree(staging, ignore_errors=True)
            raise PruningError(
                f"{name} could not be written to {run_dir!r} ({_first_line(error)}): make room, and go on from the "
                f"newest whole checkpoint ({newest_checkpoint(run_dir) or 'there is none yet'})"
            ) from error
        finally:
            self._staging = None

    def _publish(self, staged: Path, final: Path) -> None:
        if self.state.best_model_checkpoint == str(staged):
            self.state.best_model_checkpoint = str(final)
            self.state.save_to_json(str(staged / TRAINER_STATE_NAME))
        seal(staged)
        publish(staged, final)
        rotate_checkpoints(
            output_dir=str(final.parent),
            save_total_limit=self.args.save_total_limit,
            best_model_checkpoint=self.state.best_model_checkpoint,
            use_mtime=True,
        )


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
