"""Measure how fast a pruned model is on this processor.

hf-cyclical speed FOLDER                 # dense torch, hf_cyclical, ONNX Runtime and OpenVINO; batch 1 and 32
hf-cyclical speed user/name --json FILE
hf-cyclical speed FOLDER --record        # and let the card of the next push tell it

All engines take turns. With one thread, the processor's time is measured, so that other jobs matter little.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from hf_cyclical.core import PruningError

from .command_line import Parser, fail

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line, and return its exit code."""
    parser = Parser("speed", __doc__)
    parser.add_argument("source", metavar="FOLDER", help="the pruned model: a folder, or a Hub id")
    parser.add_argument("--revision", help="branch, tag or commit on the Hub")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 32], help="images at once (1 32)")
    parser.add_argument("--threads", type=int, default=1, help="threads of every engine (1)")
    parser.add_argument("--rounds", type=int, default=15, help="how often each engine runs (15)")
    parser.add_argument("--size", type=int, help="side of the images in pixels; the model's own if not given")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file, too")
    text = "write the figures into the folder, too: the card of its next push has them"
    parser.add_argument("--record", action="store_true", help=text)
    args = parser.parse_args(argv)
    if min(*args.batches, args.threads, args.rounds, 1 if args.size is None else args.size) < 1:
        parser.error("--batches, --threads, --rounds and --size must be at least 1")
    if args.record and not Path(args.source).is_dir():
        parser.error(f"--record writes into the folder of a model, and {args.source!r} is none")
    if args.json and not args.json.parent.is_dir():
        parser.error(f"there is no folder {str(args.json.parent)!r} for --json: make it first")
    try:
        from hf_cyclical.engine import measure_speed
        from hf_cyclical.models import image_side, load

        model = load(args.source, args.revision)
        side = args.size or image_side(args.source, args.revision, model)
        speed = measure_speed(
            model, (3, side, side), batches=args.batches, threads=args.threads, rounds=args.rounds, tell=_tell
        )
        if args.json:
            args.json.write_text(json.dumps(speed.to_dict(), indent=2) + "\n")
        if args.record:
            from hf_cyclical.hub import record_speed

            record_speed(Path(args.source), speed.to_dict())
    except (PruningError, OSError) as error:
        fail(error)
    sys.stdout.write(f"{speed.table()}\n")
    return 0


def _tell(text: str) -> None:
    sys.stderr.write(f"{text}\n")
