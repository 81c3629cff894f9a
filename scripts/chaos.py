"""Kills the main job again and again, and checks that it ends as if nobody had.

python scripts/chaos.py --short                            # 30 kills of a small run
python scripts/chaos.py --short --processes 2 --kills 10   # of two processes
python scripts/chaos.py -- --share global --seed 1         # the whole main job, with arguments of scripts/prune.py

An uninterrupted run comes first. Then runs are killed with SIGKILL, half of the time at any moment and half of the time
just after a save has begun, and resume with --resume auto until they finish. Weights and zeros have to be the same bit
for bit, and the report in all but its command line and versions. The exit code is 1 if a run differs or is lost.
"""

import argparse
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import psutil
import torch
from safetensors.torch import load_file

SCRIPT = Path(__file__).with_name("prune.py")
SHORT = ["--max_steps", "120", "--dense_epochs", "0", "--cycles", "3", "--delta_t", "5", "--save_steps", "2"]
STARTED = re.compile(rb"\d+/\d+ \[")  # a progress bar: the imports, which no kill can disturb, are over
POLL = 0.001


@dataclass
class Attempt:
    """A start of the job, watched from outside: its process, its log, and the saves seen in its folder."""

    command: list[str]
    folder: Path
    saves: dict[str, list[float]] = field(default_factory=dict)  # by name: when first and last seen

    def __post_init__(self) -> None:
        self.log = self.folder.with_suffix(".log")
        self.before = self.log.stat().st_size if self.log.exists() else 0
        self.first = newest(self.folder)
        self.began = time.time()
        environment = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"} | os.environ
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(  # noqa: S603
                self.command, stdout=log, stderr=log, env=environment, start_new_session=True
            )

    def running(self) -> bool:
        """Looks again at everything: called in a loop."""
        for name in self.saving():
            self.saves.setdefault(name, [time.time()])[1:] = [time.time()]
        return self.process.poll() is None

    def saving(self) -> list[str]:
        """Names of the checkpoints that it is writing, or was when it ended; not those that earlier starts left."""
        names = []
        with suppress(FileNotFoundError):  # whole in the meantime
            for path in (self.folder / "_saving").glob("checkpoint-*"):
                names += [path.name] * (path.stat().st_mtime >= self.began)
        return names

    def training(self) -> bool:
        with self.log.open("rb") as log:
            log.seek(self.before)
            return bool(STARTED.search(log.read())) or newest(self.folder) != self.first

    def wait(self, until) -> bool:
        """Whether it was still running when `until` came true."""
        try:
            while self.running():
                if until():
                    return True
                time.sleep(POLL)
        except BaseException:  # Ctrl-C does not reach it
            self.kill()
            raise
        return False

    def kill(self) -> bool:
        """SIGKILL to all of its processes at once; torchrun gives each one a group of its own."""
        root = psutil.Process(self.process.pid)
        processes = [root, *root.children(recursive=True)]
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
        code = self.process.wait()
        psutil.wait_procs(processes[1:], timeout=60)
        return code == -signal.SIGKILL


@dataclass
class Whole:
    """The uninterrupted run: what others are compared with, and what to expect of their time."""

    folder: Path
    seconds: float
    saves: int
    save_seconds: float


@dataclass
class Tally:
    kills: int = 0
    inside: int = 0
    equal: int = 0
    different: int = 0
    lost: int = 0

    def __str__(self) -> str:
        return (
            f"kills {self.kills}, of these inside saves {self.inside}; "
            f"runs compared {self.equal + self.different}, equal {self.equal}, lost {self.lost}"
        )


def main(argv: list[str]) -> int:
    options = parse(argv)
    draw, tally = random.Random(options.seed), Tally()
    whole = run_whole(options)
    print(f"whole run: {whole.seconds:.1f} s after the start, {whole.saves} saves of {whole.save_seconds:.3f} s")
    number = 0
    while tally.kills < options.kills:
        number += 1
        folder = options.output_dir / f"run-{number}"
        code = run_with_kills(options, folder, whole, draw, tally)
        if code:
            tally.lost += 1
            print(f"run {number}: LOST, exit code {code}; the end of {folder}.log:\n{tail(folder)}", flush=True)
            continue
        differences = compare(folder, whole.folder)
        tally.different += bool(differences)
        tally.equal += not differences
        print(f"run {number}: {'DIFFERENT: ' + '; '.join(differences) if differences else 'equal'}", flush=True)
    print(tally)
    return int(tally.different + tally.lost > 0)


def run_whole(options: argparse.Namespace) -> Whole:
    folder = options.output_dir / "whole"
    attempt = Attempt(command(options, folder), folder)
    attempt.wait(attempt.training)
    start = time.time()
    attempt.wait(lambda: False)
    if attempt.process.returncode:
        sys.exit(f"error: the run fails even if nobody kills it; the end of {attempt.log}:\n{tail(folder)}")
    lengths = [last - first for first, last in attempt.saves.values()]
    return Whole(folder, time.time() - start, len(lengths), median(lengths or [0.0]))


def run_with_kills(
    options: argparse.Namespace, folder: Path, whole: Whole, draw: random.Random, tally: Tally
) -> int | None:
    """The exit code of the run, killed as often as kills are left."""
    stuck = False
    while True:
        attempt = Attempt([*command(options, folder), "--resume", "auto"], folder)
        if tally.kills == options.kills:
            attempt.wait(lambda: False)
        # After a kill that cost all that its start had done, the next one leaves time for a checkpoint.
        moment = kill_moment(attempt, whole, draw, stuck)
        if not attempt.wait(moment) or not attempt.kill():
            return attempt.process.returncode
        inside, now = bool(attempt.saving()), newest(folder)
        stuck = now == attempt.first
        tally.kills += 1
        tally.inside += inside
        where = "inside a save" if inside else "between saves"
        start = f"from checkpoint-{attempt.first}" if attempt.first else "from the start"
        print(f"kill {tally.kills}: {folder.name} started {start}, reached update {now}, {where}", flush=True)


def kill_moment(attempt: Attempt, whole: Whole, draw: random.Random, stuck: bool):
    """A condition that comes true when it is time to kill."""
    in_save = draw.random() < 0.5 and whole.saves > 0
    delay = draw.uniform(0, 1.2 * whole.save_seconds if in_save else whole.seconds)
    save = draw.randint(2 if stuck else 1, max(2, whole.saves // 2))
    started: list[float] = []

    def now() -> bool:
        if not started:
            if in_save:
                ready = len(attempt.saves) >= save
            else:
                ready = newest(attempt.folder) != attempt.first if stuck else attempt.training()
            started.extend([time.time()] * ready)
        return bool(started) and time.time() >= started[0] + delay

    return now


def command(options: argparse.Namespace, folder: Path) -> list[str]:
    arguments = [str(SCRIPT), *(SHORT if options.short else []), *options.arguments, "--output_dir", str(folder)]
    if options.processes == 1:
        return [sys.executable, *arguments]
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    torchrun = ["-m", "torch.distributed.run", "--nproc_per_node", options.processes, "--master_port", port]
    return [sys.executable, *map(str, torchrun), *arguments, "--use_cpu"]


def newest(folder: Path) -> int:
    """The update of the newest checkpoint; those that are being written are elsewhere. 0 if there is none."""
    return max((int(path.name.removeprefix("checkpoint-")) for path in folder.glob("checkpoint-*")), default=0)


def tail(folder: Path, lines: int = 15) -> str:
    return "\n".join(folder.with_suffix(".log").read_text(errors="replace").splitlines()[-lines:])


def compare(folder: Path, whole: Path) -> list[str]:
    """What differs between the results of two runs."""
    ours, theirs = (load_file(path / "model.safetensors") for path in (folder, whole))
    if ours.keys() != theirs.keys():
        return ["the names of the weights"]
    weights = [n for n in ours if not same_bits(ours[n], theirs[n])]
    zeros = [n for n in ours if not torch.equal(ours[n] == 0, theirs[n] == 0)]
    found = [
        f"{what} of {len(names)} tensors ({', '.join(names[:2])}, ...)"
        for what, names in (("weights", weights), ("zeros", zeros))
        if names
    ]
    ours, theirs = (json.loads((path / "pruning_report.json").read_text()) for path in (folder, whole))
    for report in (ours, theirs):
        report["about"] = {k: v for k, v in report["about"].items() if k not in ("command", "versions")}
    fields = [name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name)]
    return [*found, *([f"{', '.join(sorted(fields))} in the report"] if fields else [])]


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and torch.equal(*(t.flatten().view(torch.uint8) for t in (a, b)))


def parse(argv: list[str]) -> argparse.Namespace:
    own, separator, arguments = list(argv), "--", []
    if separator in own:
        at = own.index(separator)
        own, arguments = own[:at], own[at + 1 :]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=30, help="kills in all (30); the run of the last one is finished")
    parser.add_argument("--processes", type=int, default=1, help="processes of the job (1)")
    parser.add_argument("--seed", type=int, default=0, help="of the moments to kill at (0)")
    parser.add_argument("--output_dir", type=Path, default=Path("chaos"), help="an empty or new folder (chaos)")
    parser.add_argument("--short", action="store_true", help="a run of seconds, which saves at every other update")
    options = parser.parse_args(own)
    if min(options.kills, options.processes) < 1:
        parser.error("--kills and --processes must be at least 1")
    if options.output_dir.exists() and any(options.output_dir.iterdir()):
        parser.error(f"--output_dir {options.output_dir} is not empty: name another folder")
    options.output_dir.mkdir(parents=True, exist_ok=True)
    options.arguments = arguments
    return options


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
