"""Files: how they are written, and which links are followed to them."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


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


def leads_elsewhere(file: Path) -> bool:
    """Whether a file is a link to what is not its model's.

    A snapshot in the cache of the Hub's client is made of links, to the blobs of the same repository.
    """
    if not file.is_symlink():
        return False
    snapshots = file.parent.resolve().parent
    cached = snapshots.name == "snapshots" and snapshots.parent.name.startswith("models--")
    return not cached or file.resolve().parent != snapshots.parent / "blobs"
