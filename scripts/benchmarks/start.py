"""What the command line takes before it answers."""

import argparse
import resource
import subprocess
import sys
from statistics import median

from .common import Row, ratio

TIMES = 3
# The words, the exit code, and the seconds that they may take.
LINES = (
    (["--help"], 0, 0.5),
    (["prune", "--target_sparcity", "0.9"], 2, 3.0),
    (["compare", "--learning_rat", "0.1"], 2, 3.0),
    (["prune", "--help"], 0, None),
)


def start(options: argparse.Namespace) -> list[Row]:
    """CPU seconds until `hf-cyclical` has explained itself or a mistyped argument, against what they may be.

    Those without a goal stand beside the import of torch, which they need.
    """
    torch = cpu_seconds(["-c", "import torch"], 0)
    rows = []
    for words, code, most in LINES:
        found = cpu_seconds(["-m", "hf_cyclical", *words], code)
        rows.append(ratio(" ".join(words), "s", found, most or torch, ("<=", 1) if most else None))
    return rows


def cpu_seconds(words: list[str], code: int) -> float:
    """The median of several starts; a first one does not count, as it fills the disk's cache."""
    found = []
    for _ in range(TIMES + 1):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run([sys.executable, *words], capture_output=True)  # noqa: S603 - our own words
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode != code:
            raise RuntimeError(f"{words} ended with {done.returncode}: {done.stderr.decode()}")
        found.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return median(found[1:])
