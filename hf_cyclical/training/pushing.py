"""Publisher: saves and pushes the finished model of a trainer, and nothing else of its output folder."""

import dataclasses
import logging
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import PreTrainedModel
from transformers.trainer import TRAINING_ARGS_NAME

from hf_cyclical import hub
from hf_cyclical.core import PruningError
from hf_cyclical.formats import writing
from hf_cyclical.models import make_portable
from hf_cyclical.reports import FIGURE_NAME, plot_run, versions

from .together import on_main, together

if TYPE_CHECKING:
    from .trainer import CyclicalPruningTrainer

logger = logging.getLogger(__name__)

_DENSE = (
    "target_sparsity 0 leaves a dense model, and only pruned ones are pushed, as Trainer would push its arguments too: "
    "use trainer.model.push_to_hub"
)
_OPTIONS = ("packed", "license", "commit_message")  # of hub.push


class Publisher:
    """Pushes as `hub.push` does, and never as `Trainer` does, which pushes all that is in its output folder.

    The code of the hub is imported when the first of it is needed: `hub` loads its names lazily.
    """

    def __init__(self, trainer: "CyclicalPruningTrainer") -> None:
        self.trainer = trainer

    @property
    def finished(self) -> bool:
        """Whether there is a model to publish."""
        return self.trainer.report is not None and bool(self.trainer.report.layers)

    def create_repository(self, private: bool | None = None) -> str | None:
        """Make the repository of the arguments; its whole name, on the main process."""
        if not self.trainer.pruning.prunes:
            raise PruningError(_DENSE)
        hub.refuse_settings(self.trainer.args)
        wants = self._wants_private(private)
        return on_main(self.trainer, lambda: hub.create_repository(self._wanted_name(), private=wants))

    def save(self, folder: str | Path, *, described: bool = True) -> None:
        """Save model, report and figure into a folder, with its record and card if `described`."""
        folder, trainer = Path(folder), self.trainer
        self._refuse_unfinished("save")
        with together(trainer), writing("the report of the run", folder, trainer.to_save_again):
            trainer.save_model(str(folder), _internal_call=True)
            if trainer.is_world_process_zero():
                (folder / TRAINING_ARGS_NAME).unlink(missing_ok=True)
                report = dataclasses.replace(trainer.report, about=self._about())
                report.save(folder)
                with suppress(PruningError):  # matplotlib is optional, and so is the figure
                    plot_run(report, folder / FIGURE_NAME)
                if described:
                    self._describe(folder)

    def push(
        self,
        repo_id: str | None = None,
        *,
        private: bool | None = None,
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        **kwargs: Any,
    ) -> str | None:
        """As `CyclicalPruningTrainer.push_to_hub`."""
        trainer = self.trainer
        if not trainer.pruning.prunes:
            raise PruningError(_DENSE)
        self._refuse_unfinished("push")
        if unused := sorted(set(kwargs) - set(_OPTIONS)):
            logger.warning("the card is filled from the report of the run: %s has no effect", ", ".join(unused))
        options = {name: kwargs[name] for name in _OPTIONS if kwargs.get(name) is not None}
        private = self._wants_private(private)
        trainer.callback_handler.on_push_begin(trainer.args, trainer.state, trainer.control)
        wanted = repo_id or trainer.hub_model_id or self._wanted_name()
        folder = self._save_first()  # first of all, as the model may be nowhere else when an error ends the program

        def push_saved() -> str:
            with _keeping(folder, wanted, private, options):
                _refuse_arguments(blocking, token, revision)
                return hub.push(folder, wanted, private=private, **options)

        url = on_main(trainer, push_saved)
        shutil.rmtree(folder, ignore_errors=True)
        return url

    def _refuse_unfinished(self, verb: str) -> None:
        if not self.finished:
            raise PruningError(f"there is no finished run to {verb}: call train() first")
        self.trainer.run.refuse_non_finite()

    def _save_first(self) -> Path:
        """Save what a push needs into a new folder, which only that of the main process outlives."""
        folder = Path(tempfile.mkdtemp(prefix="pruned_"))
        keep = False
        try:
            self.save(folder, described=False)
            keep = self.trainer.is_world_process_zero()
        finally:
            if not keep:
                shutil.rmtree(folder)
        return folder

    def _describe(self, folder: Path) -> None:
        if isinstance(self.trainer.unwrapped(), PreTrainedModel):
            make_portable(folder)
            hub.describe(folder)
        else:
            logger.warning("the model in %s has no config, and so no record and no card", folder)

    def _about(self) -> dict[str, Any]:
        """What the report says about the run: what is known here, and what the user has added."""
        trainer = self.trainer
        about = {"seed": trainer.args.seed, "processes": trainer.args.world_size, "versions": versions()}
        config = getattr(trainer.model, "config", None)
        if name := getattr(config, "name_or_path", None):
            about["model"] = name
            if hub.public_id(name) and not trainer.about.keys() & {"model", "base_model"}:
                about["model_revision"] = getattr(config, "_commit_hash", None)
        return about | trainer.about

    def _wanted_name(self) -> str:
        return self.trainer.args.hub_model_id or Path(self.trainer.args.output_dir).absolute().name

    def _wants_private(self, private: bool | None) -> bool:
        return self.trainer.args.hub_private_repo is not False if private is None else private


def _refuse_arguments(blocking: bool, token: str | None, revision: str | None) -> None:
    if token is not None:
        raise PruningError(f"push_to_hub takes no token: {hub.LOGIN}")
    if not blocking:
        raise PruningError("push_to_hub with blocking=False would push in the background: leave it out")
    if revision not in (None, hub.MAIN):
        raise PruningError(f"push_to_hub with revision {revision!r}: the model goes to {hub.MAIN}, leave it out")


@contextmanager
def _keeping(folder: Path, repo_id: str, private: bool, options: dict[str, Any]) -> Iterator[None]:
    """Whatever fails says where the model is, also what `push` does not expect, and Ctrl-C."""
    kept = f"the model is complete in {folder}"
    asked = {name: value for name, value in options.items() if name != "commit_message"}
    then = f"{kept}, to try again: {hub.push_command(folder, repo_id, private=private, **asked)}"
    try:
        yield
    except PruningError as error:
        if kept in str(error):
            raise
        raise PruningError(f"{error}; {then}") from error
    except BaseException as error:
        error.add_note(then)
        raise
