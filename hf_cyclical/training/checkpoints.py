"""The folders of checkpoints: complete or not there, with a list of files that tells damaged ones."""

import json
import logging
import os
import re
import shutil
import zlib
from pathlib import Path, PurePosixPath, PureWindowsPath

from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from hf_cyclical.core import PruningError

logger = logging.getLogger(__name__)

MANIFEST_NAME = "manifest.json"
STAGING_NAME = "_saving"
_BLOCK = 1 << 20
_MAX_MANIFEST_BYTES = 1 << 20  # the list of some ten thousand files


def seal(folder: Path) -> None:
    """List the files of a checkpoint in it, and put all of it on the disk."""
    files = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        files[path.relative_to(folder).as_posix()] = {"bytes": path.stat().st_size, "crc32": _crc32(path)}
    (folder / MANIFEST_NAME).write_text(json.dumps(files, indent=1) + "\n")
    for path in [*folder.rglob("*"), folder]:
        flush(path)


def publish(staged: Path, final: Path) -> None:
    """Give a sealed checkpoint its name, in place of one that had it."""
    if final.exists():
        os.rename(final, staged.with_name(f"deleted-{final.name}"))
    os.rename(staged, final)
    flush(final.parent)
    shutil.rmtree(staged.parent, ignore_errors=True)


def replace_model(staged: Path, folder: Path) -> None:
    """Move the files of a saved model into a folder, in place of those of the model that was there."""
    names = {path.name for path in staged.iterdir()}
    for path in staged.iterdir():
        flush(path)
        os.replace(path, folder / path.name)
    for path in folder.glob("model*.safetensors*"):  # the model before may have been in one piece, or in several
        if path.name not in names:
            path.unlink()
    flush(folder)
    shutil.rmtree(staged.parent, ignore_errors=True)


def rotate(run_dir: str | Path, *, newest: int, limit: int | None, best: str | None) -> None:
    """Delete the oldest complete checkpoints, and keep at most `limit`.

    Their update numbers decide, as clocks can jump. Those ahead of the newest go first: they are of an earlier run.
    What is not complete is neither counted nor deleted.

    Args:
        run_dir: Where they are.
        newest: The update of the one that was just written, which stays.
        limit: How many may stay; all of them if None or 0.
        best: The best checkpoint, which stays.
    """
    if not limit or limit < 0:
        return
    complete = [(update, folder) for update, folder in _checkpoints(Path(run_dir)) if _misfit(folder) is None]
    protected = [f for update, f in complete if update == newest or (best and f.resolve() == Path(best).resolve())]
    oldest_first = sorted(complete, key=lambda checkpoint: (checkpoint[0] <= newest, checkpoint[0]))
    others = [folder for _, folder in oldest_first if folder not in protected]
    for folder in others[: max(0, len(complete) - max(limit, len(protected)))]:
        _discard(folder)


def _discard(folder: Path) -> None:
    """Delete a checkpoint, which has lost its name before it loses a file: a kill leaves none that is incomplete."""
    staging = folder.with_name(STAGING_NAME)
    staging.mkdir(exist_ok=True)
    away = staging / f"deleted-{folder.name}"
    shutil.rmtree(away, ignore_errors=True)
    os.rename(folder, away)
    shutil.rmtree(staging, ignore_errors=True)


def has_manifest(folder: Path) -> bool:
    """Whether a folder is a checkpoint that was sealed, damaged or not."""
    return (folder / MANIFEST_NAME).is_file()


def damage(folder: str | Path) -> str | None:
    """What is wrong with a checkpoint, in words that name the file; None if it is complete."""
    folder = Path(folder)
    if (problem := _misfit(folder)) is not None:
        return problem
    for name, (_, crc32) in _manifest(folder).items():
        try:
            if _crc32(folder / name) != crc32:
                return f"{name} is not as it was written"
        except OSError as error:
            return f"{name} cannot be read ({error.strerror})"
    return None


def newest_checkpoint(output_dir: str | Path, before: int | None = None, *, links: bool = True) -> Path | None:
    """The newest complete checkpoint of a run; None if the run has none.

    Args:
        output_dir: Of the run.
        before: An update, if it is to be the newest before it.
        links: Whether it may be a symbolic link to a folder: not if the run is a stranger's.

    Raises:
        PruningError: If there are checkpoints, but all of them are damaged.
    """
    damages = []
    for update, folder in _checkpoints(Path(output_dir)):
        if (before is not None and update >= before) or (folder.is_symlink() and not links):
            continue
        problem = damage(folder)
        if problem is None:
            for text in damages:
                logger.warning("%s: resuming from %s instead", text, folder.name)
            return folder
        damages.append(f"{folder.name} is damaged, {problem}")
    if damages and before is None:
        raise PruningError(
            f"no checkpoint in {str(output_dir)!r} is complete ({'; '.join(damages)}): restart in another output_dir"
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
        f"resume from {str(earlier)!r}, which is complete" if earlier else "there is no complete one before it: restart"
    )
    raise PruningError(f"the checkpoint {str(folder)!r} is damaged, {problem}: {remedy}")


def _misfit(folder: Path) -> str | None:
    """How a checkpoint differs from its manifest by what a look at the folder tells; None if it does not."""
    try:
        for name, (size, _) in _manifest(folder).items():
            path = folder / name
            if not path.is_file():
                return f"{name} is missing"
            if path.stat().st_size != size:
                return f"{name} has {path.stat().st_size} bytes instead of {size}"
    except FileNotFoundError:
        return f"{MANIFEST_NAME} is missing"
    except OSError as error:
        return f"{MANIFEST_NAME} cannot be read ({error.strerror})"
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return f"{MANIFEST_NAME} is damaged"
    return None


def _manifest(folder: Path) -> dict[str, tuple[int, int]]:
    """Size and checksum of each file of a checkpoint."""
    if not has_manifest(folder):
        raise FileNotFoundError(MANIFEST_NAME)
    with (folder / MANIFEST_NAME).open("rb") as file:
        text = file.read(_MAX_MANIFEST_BYTES + 1)
    if len(text) > _MAX_MANIFEST_BYTES:
        raise ValueError(f"more than {_MAX_MANIFEST_BYTES} bytes")
    content = json.loads(text)
    files = {str(name): (int(entry["bytes"]), int(entry["crc32"])) for name, entry in content.items()}
    if TRAINER_STATE_NAME not in files:  # every checkpoint has it
        raise ValueError(f"no {TRAINER_STATE_NAME}")
    if not all(map(_inside, files)):
        raise ValueError("a file outside of the checkpoint")
    return files


def _inside(name: str) -> bool:
    """Whether the name of a file, on any system, is of one inside the folder that it is relative to."""
    windows = PureWindowsPath(name)  # takes both kinds of slashes
    return not (PurePosixPath(name).is_absolute() or windows.anchor or ".." in windows.parts)


def _checkpoints(output_dir: Path) -> list[tuple[int, Path]]:
    """Newest first."""
    found = [(_update(path), path) for path in output_dir.glob(f"{PREFIX_CHECKPOINT_DIR}-*") if path.is_dir()]
    return sorted(((update, path) for update, path in found if update is not None), reverse=True)


def _update(folder: Path) -> int | None:
    match = re.fullmatch(rf"{PREFIX_CHECKPOINT_DIR}-(\d+)", folder.name)
    return int(match[1]) if match else None


def _crc32(path: Path) -> int:
    value = 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            value = zlib.crc32(block, value)
    return value


def flush(path: Path) -> None:
    """Put a file, or the names in a folder, on the disk."""
    if os.name == "nt":  # Windows cannot open folders, nor flush what was opened for reading
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
