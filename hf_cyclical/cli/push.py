"""Push a finished run to the Hub: the model, its card, report, figure and sparsity record, and nothing else.

hf-cyclical push pruned user/name                     # a private repository, made if it is not there
hf-cyclical push pruned user/name --hub_public        # a public one
hf-cyclical push pruned user/name --packed            # packed weights too, on the branch packed
hf-cyclical push pruned user/name --license apache-2.0

The token is that of `hf auth login`, or HF_TOKEN. The folder stays as it is; pushing it again after a failure resumes,
and pushing what is there already changes nothing. Without --packed, a repository that has a branch packed is refused,
as that branch would stay the one of another model.
"""

import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from hf_cyclical.core import PruningError

from .command_line import Parser, fail, stopped_pushing


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line, and return its exit code."""
    args = _parse(list(sys.argv[1:] if argv is None else argv))
    from hf_cyclical.hub import push, push_command

    options = {"private": not args.hub_public, "packed": args.packed, "license": args.license}
    try:
        url = push(args.folder, args.repo_id, **options)
    except PruningError as error:
        fail(error)
    except KeyboardInterrupt:
        return stopped_pushing(args.folder, push_command(args.folder, args.repo_id, **options))
    sys.stdout.write(f"Pushed to {url}\n")
    return 0


def _parse(argv: list[str]) -> Namespace:
    parser = Parser("push", __doc__)
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="the output_dir of a finished run")
    parser.add_argument("repo_id", metavar="user/name", help="the repository; a name alone is one of your own")
    parser.add_argument("--hub_public", action="store_true", help="make the repository public; private unless given")
    parser.add_argument("--packed", action="store_true", help="push packed weights too, on the branch packed")
    parser.add_argument("--license", help="the licence that the card names, that of the model that was pruned")
    named = (word.partition("=")[0].lstrip("-").replace("-", "_") for word in argv if word.startswith("-"))
    if any(name in ("token", "hub_token") for name in named):
        from hf_cyclical.hub import LOGIN

        fail(f"a token on the command line can be seen by others: {LOGIN}")
    return parser.parse_args(argv)
