"""Pack the weights of pruned models, and unpack them: `hf-cyclical pack` and `hf-cyclical unpack`."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from hf_cyclical.core import PruningError
from hf_cyclical.formats import WEIGHTS, pack_folder

from .command_line import Parser, add_limit, fail


def pack(argv: Sequence[str] | None = None) -> int:
    """Run the command line, and return its exit code."""
    parser = _parser("pack", "The same weights, lossless, in a fraction of the bytes.")
    args = parser.parse_args(argv)
    target = args.target or f"{os.path.abspath(args.folder)}-packed"
    try:
        done = pack_folder(args.folder, target)
    except (PruningError, OSError) as error:
        fail(error)
    sizes = f"{done.packed_bytes:,} bytes instead of {done.dense_bytes:,}, {done.ratio:.1f} times smaller"
    sys.stdout.write(f"{target}: {sizes}; {done.tensors} tensors packed\n")
    return 0


def unpack(argv: Sequence[str] | None = None) -> int:
    """Run the command line, and return its exit code."""
    parser = _parser("unpack", "The inverse of pack: an ordinary model, with its zeros.")
    add_limit(parser)
    args = parser.parse_args(argv)
    target = args.target or f"{os.path.abspath(args.folder)}-unpacked"
    from hf_cyclical.models import unpack_folder  # seconds, with all that it imports

    try:
        unpack_folder(args.folder, target, max_bytes=args.max_bytes)
        packed, dense = ((Path(folder) / WEIGHTS).stat().st_size for folder in (args.folder, target))
    except (PruningError, OSError) as error:
        fail(error)
    sys.stdout.write(f"{target}: {dense:,} bytes instead of {packed:,}, {dense / packed:.1f} times larger\n")
    return 0


def _parser(name: str, about: str) -> Parser:
    parser = Parser(name, about)
    parser.add_argument("folder", metavar="FOLDER", help="the saved model")
    parser.add_argument("target", metavar="TARGET", nargs="?", help=f"the folder to make (FOLDER-{name}ed)")
    return parser
