"""Check and convert pruned models.

python -m hf_cyclical verify user/name           # does it have the sparsity and the masks that it says?
python -m hf_cyclical verify FOLDER
python -m hf_cyclical pack FOLDER [TARGET]       # the same weights, lossless, in a fraction of the bytes
python -m hf_cyclical unpack FOLDER [TARGET]     # and back

verify ends with exit code 0 if everything is as recorded and with 1 if anything differs; bad input is 2.
"""

import os
import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Sequence
from pathlib import Path

from hf_cyclical.core import PruningError
from hf_cyclical.formats import WEIGHTS, pack_folder
from hf_cyclical.hub import verify
from hf_cyclical.models import unpack_folder

from .command_line import Parser, fail


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line, and return its exit code."""
    args = _parser().parse_args(argv)
    if getattr(args, "target", "") is None:
        args.target = os.path.abspath(args.folder) + args.ending
    try:
        text, code = args.run(args)
    except (PruningError, OSError) as error:
        fail(error)
    sys.stdout.write(f"{text}\n")
    return code


def _parser() -> ArgumentParser:
    parser = Parser("python -m hf_cyclical", description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, metavar="{verify,pack,unpack}")
    command = commands.add_parser("verify", help="recount a model's weights and compare with what its files say")
    command.add_argument("source", metavar="SOURCE", help="a folder, or a Hub id: user/name")
    command.add_argument("--revision", help="branch, tag or commit on the Hub; the branch main if not given")
    command.set_defaults(run=_verify)
    _add_limit(command)
    for name, run in (("pack", _pack), ("unpack", _unpack)):
        command = commands.add_parser(name, help=f"{name} the weights of a saved model")
        command.add_argument("folder", metavar="FOLDER", help="the saved model")
        command.add_argument("target", metavar="TARGET", nargs="?", help=f"the folder to make (FOLDER-{name}ed)")
        command.set_defaults(run=run, ending=f"-{name}ed")
    _add_limit(command)
    return parser


def _add_limit(command: ArgumentParser) -> None:
    text = "the most bytes that the weights may take unpacked; what the model of config.json takes if not given"
    command.add_argument("--max_bytes", type=int, help=text)


def _verify(args: Namespace) -> tuple[str, int]:
    limit = {} if args.max_bytes is None else {"max_bytes": args.max_bytes}
    verification = verify(args.source, args.revision, **limit)
    return verification.table(), 0 if verification.ok else 1


def _pack(args: Namespace) -> tuple[str, int]:
    done = pack_folder(args.folder, args.target)
    sizes = f"{done.packed_bytes:,} bytes instead of {done.dense_bytes:,}, {done.ratio:.1f} times smaller"
    return f"{args.target}: {sizes}; {done.tensors} tensors packed", 0


def _unpack(args: Namespace) -> tuple[str, int]:
    unpack_folder(args.folder, args.target, max_bytes=args.max_bytes)
    packed, dense = ((Path(folder) / WEIGHTS).stat().st_size for folder in (args.folder, args.target))
    return f"{args.target}: {dense:,} bytes instead of {packed:,}, {dense / packed:.1f} times larger", 0
