"""A Trainer that pushes the finished model and nothing else of its output folder."""

import logging
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from transformers.trainer import TRAINING_ARGS_NAME

from hf_cyclical.config import PruningConfig
from hf_cyclical.core import PruningError, any_process
from hf_cyclical.hub import LOGIN, MAIN, create_repository, public_id, push, push_command, refuse_settings
from hf_cyclical.reports import FIGURE_NAME, PruningReport, plot_run, versions

from .saving import WholeCheckpointTrainer

logger = logging.getLogger(__name__)

Result = TypeVar("Result")
_DENSE = (
    "target_sparsity 0 leaves a dense model, and only pruned ones are pushed, as Trainer would push its arguments too: "
    "use trainer.model.push_to_hub"
)


class PushingTrainer(WholeCheckpointTrainer):
    """Pushes as `hub.push` does, and never as `Trainer` does, which pushes all that is in its output folder."""

    pruning: PruningConfig
    report: PruningReport | None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        refuse_settings(self.args)

    def init_hf_repo(self, token: str | None = None, private: bool | None = None) -> None:
        """Makes the repository, private unless `private` or `hub_private_repo` is False; the former decides."""
        if not self.pruning.prunes:
            raise PruningError(_DENSE)
        refuse_settings(self.args)
        self.push_in_progress = None
        private = self._wants_private(private)
        self.hub_model_id = self.on_main(lambda: create_repository(self._wanted_name(), private=private))

    def on_main(self, action: Callable[[], Result]) -> Result | None:
        """What an action gives on the main process, while the others wait; if it fails there, all of them fail."""
        with self._together():
            return action() if self.is_world_process_zero() else None

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """As in Trainer, which also pushes what its user saves, if `push_to_hub`: here once the run has ended."""
        if not self.pruning.prunes:
            return super().save_model(output_dir, _internal_call)
        super().save_model(output_dir, _internal_call=True)
        if self.args.push_to_hub and not _internal_call:
            if self.report is not None and self.report.layers:
                self.push_to_hub()
            else:
                logger.warning("the model was saved and not pushed, as the run has not ended")

    def push_to_hub(self, *args: Any, **kwargs: Any) -> Any:
        """Push the pruned model, its report, card and sparsity record, as `hub.push` does; see there.

        To be called on all processes: the main one pushes, the others wait for it. Each argument can be left out.

        Args:
            args: `repo_id`, "user/name"; `hub_model_id` of the arguments if not given.
            kwargs: `repo_id`, `private`, `packed`, `license` and `commit_message`, as of `hub.push`. Of Trainer's
                other arguments those that fill its card have no effect, as this card is filled from the report.

        Returns:
            The address of the repository, on the main process.

        Raises:
            PruningError: If there is no finished run or the push fails, on every process. The model is then kept in a
                temporary folder, and the error of the main process has the command that pushes it from there.
        """
        if not self.pruning.prunes:
            raise PruningError(_DENSE)
        return self._push_pruned(*args, **kwargs)

    def _push_pruned(
        self,
        repo_id: str | None = None,
        *,
        private: bool | None = None,
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        **kwargs: Any,
    ) -> str | None:
        if self.report is None or not self.report.layers:
            raise PruningError("there is no finished run to push: call train() first")
        known = ("packed", "license", "commit_message")
        if unused := sorted(set(kwargs) - set(known)):
            logger.warning("the card is filled from the report of the run: %s has no effect", ", ".join(unused))
        options = {name: kwargs[name] for name in known if kwargs.get(name) is not None}
        private = self._wants_private(private)
        self.callback_handler.on_push_begin(self.args, self.state, self.control)
        wanted = repo_id or self.hub_model_id or self._wanted_name()
        folder = self._save_finished()  # first of all, as the model may be nowhere else when an error ends the program

        def push_saved() -> str:
            with _keeping(folder, wanted, private, options):
                _refuse_arguments(blocking, token, revision)
                return push(folder, wanted, private=private, **options)

        url = self.on_main(push_saved)
        shutil.rmtree(folder, ignore_errors=True)
        return url

    @contextmanager
    def _together(self) -> Iterator[None]:
        """Some lines that all processes run: if they fail on one, none of them goes on to wait for it."""
        error = None
        try:
            yield
        except Exception as raised:
            error = raised
        failed = any_process(error is not None, self.args.device)
        if error is not None:
            raise error
        if failed:
            raise PruningError("another process could not push the model: see its error")

    def _save_finished(self) -> Path:
        """Save what a push needs into a new folder, which only that of the main process outlives."""
        folder = Path(tempfile.mkdtemp(prefix="pruned_"))
        keep = False
        try:
            with self._together():
                self.save_model(str(folder), _internal_call=True)
                (folder / TRAINING_ARGS_NAME).unlink(missing_ok=True)
                if self.is_world_process_zero():
                    self._save_report(folder)
            keep = self.is_world_process_zero()
        finally:
            if not keep:
                shutil.rmtree(folder)
        return folder

    def _save_report(self, folder: Path) -> None:
        about = {"seed": self.args.seed, "processes": self.args.world_size, "versions": versions()}
        config = getattr(self.model, "config", None)
        if name := getattr(config, "name_or_path", None):
            about["model"] = name
            if public_id(name) and not self.report.about.keys() & {"model", "base_model"}:
                about["model_revision"] = getattr(config, "_commit_hash", None)
        self.report.about = about | self.report.about
        self.report.save(folder)
        with suppress(PruningError):  # matplotlib is optional, and so is the figure
            plot_run(self.report, folder / FIGURE_NAME)

    def _wanted_name(self) -> str:
        return self.args.hub_model_id or Path(self.args.output_dir).absolute().name

    def _wants_private(self, private: bool | None) -> bool:
        return self.args.hub_private_repo is not False if private is None else private


def _refuse_arguments(blocking: bool, token: str | None, revision: str | None) -> None:
    if token is not None:
        raise PruningError(f"push_to_hub takes no token: {LOGIN}")
    if not blocking:
        raise PruningError("push_to_hub with blocking=False would push in the background: leave it out")
    if revision not in (None, MAIN):
        raise PruningError(f"push_to_hub with revision {revision!r}: the model goes to {MAIN}, leave it out")


@contextmanager
def _keeping(folder: Path, repo_id: str, private: bool, options: dict[str, Any]) -> Iterator[None]:
    """Whatever fails says where the model is, also what `push` does not expect, and Ctrl-C."""
    kept = f"the model is whole in {folder}"
    asked = {name: value for name, value in options.items() if name != "commit_message"}
    then = f"{kept}, to try again: {push_command(folder, repo_id, private=private, **asked)}"
    try:
        yield
    except PruningError as error:
        if kept in str(error):
            raise
        raise PruningError(f"{error}; {then}") from error
    except BaseException as error:
        error.add_note(then)
        raise
