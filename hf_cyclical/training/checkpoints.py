"""Complete checkpoints: written under another name and renamed, with a list of files that tells damaged ones."""

import json
import logging
import os
import re
import shutil
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import nn
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, rotate_checkpoints

from hf_cyclical.core import PruningError, first_line

from .lean_trainer import LeanTrainer

logger = logging.getLogger(__name__)

MANIFEST_NAME = "manifest.json"
STAGING_NAME = "_saving"
_BLOCK = 1 << 20


def seal(folder: Path) -> None:
    """List the files of a checkpoint in it, and put all of it on the disk."""
    files = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        files[path.relative_to(folder).as_posix()] = {"bytes": path.stat().st_size, "crc32": _crc32(path)}
    (folder / MANIFEST_NAME).write_text(json.dumps(files, indent=1) + "\n")
    for path in [*folder.rglob("*"), folder]:
        _flush(path)


def publish(staged: Path, final: Path) -> None:
    """Give a sealed checkpoint its name, in place of one that had it."""
    old = staged.with_name(f"{final.name}.old")
    if final.exists():
        os.rename(final, old)
    os.rename(staged, final)
    _flush(final.parent)
    shutil.rmtree(staged.parent, ignore_errors=True)


def has_manifest(folder: Path) -> bool:
    """Whether a folder is a checkpoint that was sealed, damaged or not."""
    return (folder / MANIFEST_NAME).is_file()


def damage(folder: str | Path) -> str | None:
    """What is wrong with a checkpoint, in words that name the file; None if it is whole."""
    folder = Path(folder)
    try:
        files = json.loads((folder / MANIFEST_NAME).read_text())
        expected = {str(name): (entry["bytes"], entry["crc32"]) for name, entry in files.items()}
    except FileNotFoundError:
        return f"{MANIFEST_NAME} is missing"
    except (ValueError, TypeError, KeyError, AttributeError):
        return f"{MANIFEST_NAME} is damaged"
    for name, (size, crc32) in expected.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != size:
            return f"{name} has {path.stat().st_size} bytes instead of {size}"
        if _crc32(path) != crc32:
            return f"{name} is not as it was written"
    return None


def newest_checkpoint(output_dir: str | Path, before: int | None = None) -> Path | None:
    """The newest whole checkpoint of a run, if need be the newest `before` an update; None if the run has none.

    Raises:
        PruningError: If there are checkpoints, but all of them are damaged.
    """
    damages = []
    for update, folder in _checkpoints(Path(output_dir)):
        if before is not None and update >= before:
            continue
        problem = damage(folder)
        if problem is None:
            for text in damages:
                logger.warning("%s: going on from %s instead", text, folder.name)
            return folder
        damages.append(f"{folder.name} is damaged, {problem}")
    if damages and before is None:
        raise PruningError(
            f"no checkpoint in {str(output_dir)!r} is whole ({'; '.join(damages)}): start anew in another output_dir"
        )
    return None


def refuse_damaged(folder: str | Path) -> None:
    """Raise a PruningError that names the damaged file of a checkpoint, and the checkpoint to use instead."""
    folder = Path(folder)
    problem = damage(folder)
    if problem is None:
        return
    earlier = newest_checkpoint(folder.parent, before=_update(folder))
    remedy = (
        f"go on from {str(earlier)!r}, which is whole" if earlier else "there is no whole one before it: start anew"
    )
    raise PruningError(f"the checkpoint {str(folder)!r} is damaged, {problem}: {remedy}")


def _checkpoints(output_dir: Path) -> Iterator[tuple[int, Path]]:
    """Newest first."""
    found = [(_update(path), path) for path in output_dir.glob(f"{PREFIX_CHECKPOINT_DIR}-*") if path.is_dir()]
    return iter(sorted(((update, path) for update, path in found if update is not None), reverse=True))


def _update(folder: Path) -> int | None:
    match = re.fullmatch(rf"{PREFIX_CHECKPOINT_DIR}-(\d+)", folder.name)
    return int(match[1]) if match else None


def _crc32(path: Path) -> int:
    value = 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            value = zlib.crc32(block, value)
    return value


def _flush(path: Path) -> None:
    if os.name == "nt":  # Windows cannot open folders, nor flush what was opened for reading
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class WholeCheckpointTrainer(LeanTrainer):
    """Writes each checkpoint under another name and renames it when all processes are done.

    Whatever happens in between, a kill or a full disk, leaves the checkpoint before it as the newest one.

    Attributes:
        whole_checkpoints: Whether it does so, or is `Trainer`.
    """

    whole_checkpoints = True
    _staging: str | None = None

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
                self._rotate(run_dir)
            self.accelerator.wait_for_everyone()
        except (OSError, RuntimeError, SafetensorError) as error:
            if not _is_of_the_disk(error):
                raise
            if self.args.should_save:
                shutil.rmtree(staging, ignore_errors=True)
            raise PruningError(
                f"{name} could not be written to {run_dir!r} ({first_line(error)}): make room, and go on from the "
                "newest whole checkpoint"
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

    def _rotate(self, run_dir: str) -> None:
        rotate_checkpoints(
            output_dir=run_dir,
            save_total_limit=self.args.save_total_limit,
            best_model_checkpoint=self.state.best_model_checkpoint,
            use_mtime=True,
        )


def _is_of_the_disk(error: Exception) -> bool:
    """Whether it comes from writing files: torch has no class of its own for that, and gloo's errors look alike."""
    return not isinstance(error, RuntimeError) or "PytorchStreamWriter" in str(error) or "unexpected pos" in str(error)
