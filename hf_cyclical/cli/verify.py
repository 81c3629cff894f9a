"""Recount the weights of a pruned model, and compare with what its files say.

hf-cyclical verify user/name           # does it have the sparsity and the masks that it says?
hf-cyclical verify FOLDER

The exit code is 0 if everything is as recorded, and 1 if anything differs; bad input is 2.
"""

import sys
from collections.abc import Sequence

from hf_cyclical.core import PruningError

from .command_line import Parser, add_limit, fail


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line, and return its exit code."""
    parser = Parser("verify", __doc__)
    parser.add_argument("source", metavar="SOURCE", help="a folder, or a Hub id: user/name")
    parser.add_argument("--revision", help="branch, tag or commit on the Hub; the branch main if not given")
    add_limit(parser)
    args = parser.parse_args(argv)
    from hf_cyclical.hub import verify  # seconds, with all that it imports

    try:
        limit = {} if args.max_bytes is None else {"max_bytes": args.max_bytes}
        verification = verify(args.source, args.revision, **limit)
    except (PruningError, OSError) as error:
        fail(error)
    sys.stdout.write(f"{verification.table()}\n")
    return 0 if verification.ok else 1
