"""What there is of a job in its folder: finished, running, or stopped on the way. The folder may be a stranger's."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from hf_cyclical.core import PruningError, printable
from hf_cyclical.formats import CONFIG, WEIGHTS, leads_elsewhere
from hf_cyclical.reports import REPORT_NAME, PruningReport, last_update, read_whole
from hf_cyclical.training import is_running, newest_checkpoint, read_progress

_MAX_REPORT_BYTES = 64 << 20  # far above that of the longest run of the largest model
_LOOKS = 3  # at files that are deleted while they are read
_CHECKPOINTS = "checkpoint-*"
FINISHED, RUNNING, STOPPED = "finished", "running", "stopped"


@dataclass(frozen=True)
class Snapshot:
    """A job at one moment.

    Attributes:
        state: Whether it is finished, running or stopped.
        report: What it tells; None if it has told nothing yet.
        updates: How many updates `report` knows of.
        model: The folder of the newest weights; None if there are none.
        problem: Why there is no report, in a line.
    """

    state: str
    report: PruningReport | None = None
    updates: int = 0
    model: Path | None = None
    problem: str | None = None


class Job:
    """The folder of a job.

    Args:
        folder: As the command line names it: no other is ever looked at.

    Raises:
        PruningError: If it is not the folder of a job.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._lock = Lock()  # every open page looks
        self._seen: tuple[object, ...] | None = None
        self._snapshot = Snapshot(STOPPED)
        first = self.look()
        if first.report is None and first.state != RUNNING:
            raise PruningError(first.problem)

    def look(self) -> Snapshot:
        """The job as it is now; files are read again only if there are others."""
        with self._lock:
            for _ in range(_LOOKS):
                stamp = self.stamp()
                if stamp == self._seen:
                    return self._snapshot
                try:
                    self._snapshot, self._seen = self._read(), stamp
                except FileNotFoundError:
                    continue  # a checkpoint that was deleted while it was read: the next look finds the next one
                except (PruningError, OSError) as error:
                    self._snapshot, self._seen = self._unread(str(error)), stamp
                return self._snapshot
            if self._seen is None:
                where = f"files in {str(self.folder)!r} were deleted while they were read"
                self._snapshot = self._unread(f"{where}: try again when nothing deletes there")
            return self._snapshot

    def _unread(self, problem: str) -> Snapshot:
        return Snapshot(RUNNING if is_running(self.folder) else STOPPED, problem=printable(problem))

    def stamp(self) -> tuple[object, ...]:
        """Something that differs whenever the files of the job do."""
        files = [self.folder / REPORT_NAME, self.folder / WEIGHTS, *sorted(self.folder.glob(_CHECKPOINTS))]
        times = ((path.name, _changed(path)) for path in files)
        return (is_running(self.folder), *times)

    def _read(self) -> Snapshot:
        running = is_running(self.folder)
        there = (self.folder / REPORT_NAME).is_file()
        if there and not running:
            with suppress(PruningError):  # what is wrong with it matters only if there is no newer checkpoint
                report = _report(self.folder)
                if report.layers:  # whatever its checkpoints are: a copy may have other times, and damaged ones
                    return self._told(report)
        checkpoint = newest_checkpoint(self.folder, links=False)
        if there and (checkpoint is None or _changed(self.folder / REPORT_NAME) >= _changed(checkpoint)):
            return self._told(_report(self.folder))
        state = RUNNING if running else STOPPED
        progress = read_progress(checkpoint) if checkpoint else None
        if progress is None:
            where = f"there is no {REPORT_NAME} in {str(self.folder)!r}, and no checkpoint with one"
            model = _with_weights(checkpoint or self.folder)
            return Snapshot(state, model=model, problem=f"{where}: give the folder of a job, its --output_dir")
        updates, report = progress
        return Snapshot(state, report, updates, _with_weights(checkpoint))

    def _told(self, report: PruningReport) -> Snapshot:
        state = FINISHED if report.layers else STOPPED
        return Snapshot(state, report, int(last_update(report)), _with_weights(self.folder))


def _report(folder: Path) -> PruningReport:
    file = folder / REPORT_NAME
    if leads_elsewhere(file):
        raise PruningError(f"{REPORT_NAME} in {str(folder)!r} is a link to elsewhere: put the file itself there")
    if (size := file.stat().st_size) > _MAX_REPORT_BYTES:
        raise PruningError(
            f"{REPORT_NAME} in {str(folder)!r} has {size:,} bytes, at most {_MAX_REPORT_BYTES:,} are read"
        )
    return read_whole(folder, f"{REPORT_NAME} in {str(folder)!r}")


def _with_weights(folder: Path) -> Path | None:
    return folder if all((folder / name).is_file() for name in (CONFIG, WEIGHTS)) else None


def _changed(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0
