"""Measures what pruning costs in time and memory, on the CPU, against the goals of this project.

python scripts/benchmark.py                                  # everything, about ten minutes
python scripts/benchmark.py magprune apply --json FILE       # some of it, and into a file too

A time means little on a busy machine, a ratio does. So what is compared takes turns (A B A B ...), each turn of both
gives a ratio measured / baseline, and the tables have the median of these, next to the medians of both.
This is a report and not a test: the exit code does not depend on the goals.
"""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

import torch
from benchmarks.common import Row
from benchmarks.data import small_images
from benchmarks.engine import engine, threads
from benchmarks.masks import apply, choose_masks, memory
from benchmarks.precision import precision
from benchmarks.rivals import rivals
from benchmarks.scaling import scaling
from benchmarks.start import start
from benchmarks.storage import storage
from benchmarks.training import overhead

USAGE_ERROR = 2
BENCHMARKS = {
    "overhead": overhead,
    "rivals": rivals,
    "precision": precision,
    "magprune": choose_masks,
    "apply": apply,
    "memory": memory,
    "scaling": scaling,
    "data": small_images,
    "storage": storage,
    "engine": engine,
    "threads": threads,
    "start": start,
}


def main(argv: list[str]) -> int:
    options = parse(argv)
    torch.set_num_threads(options.threads)
    figures = {}
    for name in options.names or BENCHMARKS:
        print(f"{name} ...", file=sys.stderr, flush=True)
        torch.manual_seed(0)
        rows = BENCHMARKS[name](options)
        print(table(name, rows), flush=True)
        figures[name] = [asdict(row) | {"ok": row.ok} for row in rows]
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 0


def table(name: str, rows: list[Row]) -> str:
    lines = [["what", "unit", "measured", "baseline", "ratio", "goal", "ok"], *(row.cells() for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    texts = ("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)
    return "\n".join([f"{name}: {BENCHMARKS[name].__doc__.splitlines()[0]}", *map(str.rstrip, texts), ""])


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(BENCHMARKS)}; all if none is named")
    parser.add_argument("--steps", type=int, default=75, help="updates of each trainer in overhead (75)")
    # With more, every operation waits for the core that other jobs keep busy: twenty times longer, for the short ones.
    parser.add_argument("--threads", type=int, default=1, help="threads of torch (1); more only if nothing else runs")
    parser.add_argument(
        "--model",
        type=Path,
        metavar="FOLDER",
        help="trained model for storage (digits if not given), pruned one for engine",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file, too")
    parser.error = lambda message: parser.exit(USAGE_ERROR, f"error: {message} (--help explains every argument)\n")
    options = parser.parse_args(argv)
    if unknown := [name for name in options.names if name not in BENCHMARKS]:
        parser.error(f"benchmark {unknown[0]!r} is not known: choose from {', '.join(BENCHMARKS)}")
    if min(options.steps, options.threads) < 1:
        parser.error(f"--steps {options.steps} and --threads {options.threads} must be at least 1")
    if options.model and not (options.model / "model.safetensors").is_file():
        parser.error(f"--model {options.model} has no model.safetensors: name the folder of a saved model")
    if options.json and (options.json.is_dir() or not options.json.parent.is_dir()):
        parser.error(f"--json {options.json} cannot be written: name a file in an existing folder")
    return options


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
