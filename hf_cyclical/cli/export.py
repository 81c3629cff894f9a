"""Export a pruned model for other engines.

hf-cyclical export FOLDER --to onnx [--output FILE]

BatchNorm is folded into the convolutions, zeros stay zeros, and ONNX Runtime must give the model's own outputs.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from hf_cyclical.core import PruningError

from .command_line import Parser, fail

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line, and return its exit code."""
    parser = Parser("export", __doc__)
    parser.add_argument("source", metavar="FOLDER", help="the pruned model: a folder, or a Hub id")
    parser.add_argument("--revision", help="branch, tag or commit on the Hub")
    parser.add_argument("--to", choices=["onnx"], default="onnx", help="the format (onnx)")
    parser.add_argument("--output", type=Path, metavar="FILE", help="the file to write (model.onnx)")
    parser.add_argument("--size", type=int, help="side of the images in pixels; the model's own if not given")
    args = parser.parse_args(argv)
    if args.size is not None and args.size < 1:
        parser.error("--size must be at least 1")
    output = args.output or Path("model.onnx")
    if output.exists():
        fail(f"{output} exists: choose another --output or remove it")
    if not output.parent.is_dir():
        fail(f"there is no folder {str(output.parent)!r} for --output: make it first")
    try:
        from hf_cyclical.engine import export_onnx
        from hf_cyclical.models import image_side, load

        model = load(args.source, args.revision)
        side = args.size or image_side(args.source, args.revision, model)
        zeros = export_onnx(model, output, (3, side, side))
    except (PruningError, OSError) as error:
        fail(error)
    checked = "ONNX Runtime gives the same outputs"
    sys.stdout.write(f"{output}: {output.stat().st_size:,} bytes, {zeros:,} zeros in its weights; {checked}\n")
    return 0
