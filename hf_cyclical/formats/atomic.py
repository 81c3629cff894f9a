"""Files: how they are written, what to do if they cannot be, and which links are followed to them."""

import errno
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from hf_cyclical.core import PruningError, first_line

_UNWRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS)
_NO_FOLDER = (errno.ENOENT, errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.ENAMETOOLONG)
_OF_TORCH = ("PytorchStreamWriter", "unexpected pos", "cannot be opened", "does not exist")


@contextmanager
def replacing(file: Path) -> Iterator[Path]:
    """Another name to write a file under, which then gets its own: so it is whole, or as it was before."""
    new = file.with_name(f".{file.name}.new")
    try:
        yield new
        if file.exists():
            shutil.copymode(file, new)
        new.replace(file)
    finally:
        new.unlink(missing_ok=True)


def write_text(file: Path, text: str) -> None:
    """Write a text file, as a whole or not at all."""
    with replacing(file) as new:
        new.write_text(text, encoding="utf-8")


@contextmanager
def writing(what: str, folder: str | Path, then: Callable[[], str] | None = None) -> Iterator[None]:
    """Lines that write files: a full disk or an unwritable folder is one line that says what to do.

    Args:
        what: Is written.
        folder: Where to.
        then: Gives what to do after that, as the end of the error: ", and save it again".
    """
    try:
        yield
    except (OSError, RuntimeError, SafetensorError) as error:
        if not _is_of_the_disk(error):
            raise
        where = f"{what} could not be written to {str(folder)!r} ({first_line(error)})"
        raise PruningError(f"{where}: {_remedy(error)}{then() if then else ''}") from error


def _is_of_the_disk(error: Exception) -> bool:
    """Whether it comes from writing files: torch has no class of its own for that, and gloo's errors look alike."""
    return not isinstance(error, RuntimeError) or any(words in str(error) for words in _OF_TORCH)


def _remedy(error: Exception) -> str:
    of_safetensors = re.search(r"\(os error (\d+)\)", str(error))
    number = error.errno if isinstance(error, OSError) else int(of_safetensors[1]) if of_safetensors else None
    if number in _UNWRITABLE or "cannot be opened" in str(error):
        return "make the folder writable, or name another one"
    return "name another folder" if number in _NO_FOLDER else "make room"


def leads_elsewhere(file: Path) -> bool:
    """Whether a file is a link to what is not its model's.

    A snapshot in the cache of the Hub's client is made of links, to the blobs of the same repository.
    """
    if not file.is_symlink():
        return False
    snapshots = file.parent.resolve().parent
    cached = snapshots.name == "snapshots" and snapshots.parent.name.startswith("models--")
    return not cached or file.resolve().parent != snapshots.parent / "blobs"
