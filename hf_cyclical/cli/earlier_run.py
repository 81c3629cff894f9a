"""What an earlier run left in the folder of a new one: it is replaced only if nothing of it is lost by that."""

from pathlib import Path

from hf_cyclical.core import PruningError
from hf_cyclical.formats import WEIGHTS
from hf_cyclical.reports import REPORT_NAME, load_report
from hf_cyclical.training import newest_checkpoint

_TELL = "name another --output_dir, or add --overwrite to replace it"


def refuse_to_replace(folder: str, command: str) -> None:
    """Refuse to start in a folder that holds another run; the same command may be run again, as it gives the same.

    Args:
        folder: The output_dir of the run.
        command: What the run was started by.

    Raises:
        PruningError: If a model of another command is there, or checkpoints of a run that was not finished.
    """
    report = Path(folder) / REPORT_NAME
    if report.is_file():
        try:
            made = load_report(report).about.get("command")
        except PruningError:  # damaged, or of a later version
            made = None
        if made != command:
            by = f" by `{made}`" if made else ""
            raise PruningError(f"output_dir {folder!r} holds a model that was made{by}: {_TELL}")
    elif (Path(folder) / WEIGHTS).is_file():
        raise PruningError(f"output_dir {folder!r} holds a model: {_TELL}")
    elif (checkpoint := newest_checkpoint(folder)) is not None:
        raise PruningError(
            f"output_dir {folder!r} holds {checkpoint.name} of a run that was not finished: "
            f"add --resume auto to go on with it, {_TELL}"
        )
