"""A Trainer whose checkpoints and models are complete or not there, alone in its output folder."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from hf_cyclical.core import PruningError, any_process
from hf_cyclical.formats import writing

from .checkpoints import STAGING_NAME, newest_checkpoint, publish, replace_model, rotate, seal
from .distillation import DistillingTrainer
from .output_lock import OutputLock


class WholeCheckpointTrainer(DistillingTrainer):
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
        self._locks: dict[str, OutputLock] = {}
        try:
            super().__init__(*args, **kwargs)
        except OSError as error:
            folder = Path(self.args.output_dir) if "args" in vars(self) else None
            if folder is None or Path(error.filename or "") not in (folder, *folder.parents):
                raise
            with writing("the run", folder):
                raise

    def train(self, resume_from_checkpoint: Any = None, trial: Any = None, *args: Any, **kwargs: Any) -> Any:
        """As in Trainer, while no other run may write to the output folder."""
        if not self.whole_checkpoints:
            return super().train(resume_from_checkpoint, trial, *args, **kwargs)
        with self.alone(trial) as folder:
            if self.is_world_process_zero():
                shutil.rmtree(Path(folder, STAGING_NAME), ignore_errors=True)  # what a kill has left
            return super().train(resume_from_checkpoint, trial, *args, **kwargs)

    @contextmanager
    def alone(self, trial: Any = None) -> Iterator[str]:
        """Keeps other runs out of the output folder: to be entered by all processes, and as often as one likes.

        Raises:
            PruningError: If another run is in it, on every process.
        """
        folder, error = self._get_output_dir(trial), None
        lock = self._locks.setdefault(folder, OutputLock(folder))
        main = self.is_world_process_zero()
        try:
            if main:
                lock.__enter__()
        except PruningError as raised:
            error = raised
        if any_process(error is not None, self.args.device):
            raise error or PruningError("the main process could not start: see its error")
        try:
            yield folder
        finally:
            if main:
                lock.__exit__()

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """As in Trainer; the model that was there before stays until the new one is complete."""
        if not self.whole_checkpoints or self._staging is not None:
            return super().save_model(output_dir, _internal_call)
        folder = Path(output_dir or self.args.output_dir)
        staged = folder / STAGING_NAME / "model"
        with writing("the model", folder, self.to_save_again):
            try:
                super().save_model(str(staged), _internal_call)
                if self.args.should_save:
                    replace_model(staged, folder)
            finally:
                if self.args.should_save:
                    shutil.rmtree(staged.parent, ignore_errors=True)

    def to_save_again(self) -> str:
        """Where the model still is, if it could not be written."""
        try:
            checkpoint = newest_checkpoint(self.args.output_dir)
        except PruningError:
            checkpoint = None
        return f", and resume from {str(checkpoint)!r}" if checkpoint else ", and save it again"

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
            with writing(name, run_dir, lambda: ", and resume from the newest complete checkpoint"):
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
        except PruningError:
            if self.args.should_save:
                shutil.rmtree(staging, ignore_errors=True)
            raise
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
