"""One run from its arguments: what the commands share between the command line and the Trainer."""

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, set_seed
from transformers.trainer_utils import SaveStrategy

from hf_cyclical.core import PruningError
from hf_cyclical.data import ImageData, load_image_data
from hf_cyclical.formats import CLASSIFICATION
from hf_cyclical.models import ImageModel, check_image_model, load_image_model, make_portable
from hf_cyclical.training import (
    CyclicalPruningTrainer,
    SetEpochCallback,
    StopOnSignalCallback,
    is_convolutional,
    keep_freed_memory,
    task_arguments,
)

from .arguments import Arguments
from .recipe import set_recommended


@dataclass
class Run:
    """A trainer, ready to train.

    Attributes:
        args: The arguments it was built from.
        trainer: The trainer.
        data: Its images.
        loaded: The model with what is known of it.
        stop: Knows whether a signal ended the training.
        notes: Lines for the plan on settings that the user has left open.
        diverged: What became NaN or infinite in training, where `compare` goes on with other runs.
    """

    args: Arguments
    trainer: CyclicalPruningTrainer
    data: ImageData
    loaded: ImageModel
    stop: StopOnSignalCallback
    notes: list[str]
    diverged: str = ""

    @classmethod
    def build(
        cls,
        args: Arguments,
        data: ImageData | None = None,
        callbacks: Sequence[TrainerCallback] = (),
        *,
        to_be_trained: bool = False,
    ) -> "Run":
        """Load model and data, unless `data` is there from an earlier run, and put them together.

        A run that is only checked may have a model that is yet `to_be_trained`.
        """
        keep_freed_memory()
        set_seed(args.training.seed)
        name, from_scratch = args.model.model_name_or_path, args.model.from_scratch
        if data is None:
            check_image_model(name, from_scratch=from_scratch)  # a wrong name is said before data are prepared
            with args.training.main_process_first(desc="loading the data"):  # the others find it in the cache
                data = load_image_data(args.data, seed=args.training.seed)
        loaded = load_image_model(
            name,
            data.labels,
            image_size=args.model.image_size or data.image_size,
            resize_trained=args.model.image_size is not None,
            whole=data.whole,
            from_scratch=from_scratch,
        )
        notes = set_recommended(args, loaded, data)
        train, evaluation = data.for_model(loaded, seed=args.training.seed)
        stop = StopOnSignalCallback()
        channels_last = args.run.channels_last
        with _no_new_folder(Path(args.training.output_dir)):
            trainer = CyclicalPruningTrainer(
                loaded.model,
                args.training,
                pruning=args.pruning,
                channels_last=is_convolutional(loaded.model) if channels_last == "auto" else channels_last,
                train_dataset=train,
                eval_dataset=evaluation,
                processing_class=loaded.processor,
                callbacks=[stop, SetEpochCallback(train), *callbacks],
                **task_arguments(CLASSIFICATION) | {"data_collator": data.collate},  # which may have batches already
            )
        folder = Path(args.data.dataset_name)  # if it is one: it may have another place when the run is resumed
        trainer.data_settings = {
            "dataset_name": folder.resolve().name if folder.exists() else args.data.dataset_name,
            "dataset_config_name": args.data.dataset_config_name,
            "train_split": args.data.train_split,
            "streaming": args.data.streaming,
            "augment": data.augment,
            "image settings": asdict(loaded.settings),
        }
        if not to_be_trained:
            _refuse_untrained(trainer, loaded)
        trainer.whole_checkpoints = True  # also of a dense model: --resume auto relies on it
        return cls(args, trainer, data, loaded, stop, notes)

    def save(self, command: str) -> Path:
        """Write model, report, figure, record and card into the output folder; all processes must call this.

        Raises:
            PruningError: If that cannot be written to. If no checkpoint has the model, a temporary folder has it then.
        """
        folder = Path(self.args.training.output_dir)
        self.trainer.about = self.about(command)
        try:
            self._save_to(folder)
        except PruningError as error:
            if self.args.training.save_strategy != SaveStrategy.NO:
                raise
            raise PruningError(self._save_elsewhere(error)) from error
        return folder

    def about(self, command: str) -> dict[str, Any]:
        """What the report is to say about the run."""
        known = {
            "model": self.args.model.model_name_or_path,
            "base_model": self.loaded.base_model,
            "model_revision": self.loaded.revision,
            "dataset": self.args.data.dataset_name,
            "command": command,
        }
        holdout = self.args.data.holdout
        return known if holdout is None else known | {"holdout": holdout}

    def _save_to(self, folder: Path) -> None:
        if self.trainer.report is None:
            self.trainer.save_model(str(folder))
            self.trainer.on_main(lambda: make_portable(folder))
        else:
            self.trainer.save_pruned(folder)

    def _save_elsewhere(self, error: PruningError) -> str:
        """What to say after a failure that would cost the model, which is saved in a new folder."""
        folder = Path(tempfile.mkdtemp(prefix="pruned_"))
        try:
            self._save_to(folder)
        except PruningError:
            shutil.rmtree(folder, ignore_errors=True)
            return str(error)
        if not self.trainer.is_world_process_zero():
            folder.rmdir()
        return f"{str(error).removesuffix(', and save it again')}; this time the model is in {folder}"


def _refuse_untrained(trainer: CyclicalPruningTrainer, loaded: ImageModel) -> None:
    """Raise a PruningError if the weights that the run starts from are to say what they cannot know."""
    weight, part = trainer.pruning.distill, trainer.pruning.allr
    if part is not None and (loaded.untrained or loaded.of_other_classes):
        which = f"the {loaded.untrained or 'head'} of {loaded.model.config.name_or_path!r}"
        how = "would be random" if loaded.untrained else "is of other classes"
        raise PruningError(f"allr {part:g} needs trained weights, and {which} {how}: leave allr out")
    if weight and loaded.untrained and trainer.plan().cycles[0].start == 0:
        raise PruningError(
            f"distill {weight:g} has no dense teacher, as the {loaded.untrained} of "
            f"{loaded.model.config.name_or_path!r} would be random: add dense_epochs, or leave distill out"
        )


@contextmanager
def _no_new_folder(folder: Path) -> Iterator[None]:
    """Remove the empty folder that a Trainer makes as soon as it is made: a plan or a refused run needs none."""
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        yield
    finally:
        for path in made:
            with suppress(OSError):  # of another process, or no longer empty
                path.rmdir()
