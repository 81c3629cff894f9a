"""A lock that keeps two runs out of one output folder."""

import json
import logging
import os
import socket
from contextlib import suppress
from pathlib import Path

from filelock import FileLock, Timeout

from hf_cyclical.core import PruningError
from hf_cyclical.formats import writing

logger = logging.getLogger(__name__)

LOCK_NAME = ".lock"
HOLDER_NAME = ".lock.json"
_PATIENCE = 60  # seconds for the workers of a killed run, which hold its lock until they notice


class OutputLock:
    """Held by one process at a time, and by no process that has ended, however it ended.

    The operating system releases it; the file only has a name to hold, and is gone when the lock is released. May be
    taken again by the process that has it, and is released when it was left as often.

    Args:
        folder: What it is for; made if it is not there.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._lock = FileLock(self.folder / LOCK_NAME)

    def __enter__(self) -> "OutputLock":
        if self._lock.is_locked:
            self._lock.acquire()
            return self
        with writing("the run", self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            try:
                self._lock.acquire(timeout=0)
            except Timeout:
                self._wait_for_the_dead()
            except NotImplementedError:  # what filelock raises where a file system has no locks
                logger.warning("%s has no locks: start no other run in it", self.folder)
                return self
            holder = {"pid": os.getpid(), "host": socket.gethostname()}
            with suppress(OSError):  # of a full disk: nothing but an error reads it
                (self.folder / HOLDER_NAME).write_text(json.dumps(holder))
        return self

    def __exit__(self, *error: object) -> None:
        if self._lock.is_locked and self._lock.lock_counter == 1:
            for name in (HOLDER_NAME, LOCK_NAME):
                with suppress(OSError):
                    (self.folder / name).unlink()
        self._lock.release()

    def _wait_for_the_dead(self) -> None:
        pid, host = self._holder()
        try:
            self._lock.acquire(timeout=_PATIENCE if host == socket.gethostname() and not _alive(pid) else 0)
        except Timeout as error:
            raise PruningError(
                f"another run, process {pid} on {host}, writes to {str(self.folder)!r}: wait until it has ended, stop "
                "it, or name another output_dir"
            ) from error

    def _holder(self) -> tuple[int | None, str]:
        try:
            holder = json.loads((self.folder / HOLDER_NAME).read_text())
            return int(holder["pid"]), str(holder["host"])
        except (OSError, ValueError, TypeError, KeyError):  # it has only just begun, or ended
            return None, "an unknown host"


def is_running(folder: str | Path) -> bool:
    """Whether a run writes to a folder now, as far as what it has noted there tells; takes no lock.

    That of another machine is believed: it cannot be seen from here whether it was killed.
    """
    pid, host = OutputLock(folder)._holder()
    return pid is not None and (host != socket.gethostname() or _alive(pid))


def _alive(pid: int | None) -> bool:
    try:
        os.kill(pid or 0, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
