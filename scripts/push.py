"""Push a finished run to the Hub: the model, its card, report, figure and sparsity record, and nothing else.

python scripts/push.py pruned user/name                     # a private repository, made if it is not there
python scripts/push.py pruned user/name --hub_public        # a public one
python scripts/push.py pruned user/name --packed            # packed weights too, on the branch packed
python scripts/push.py pruned user/name --license apache-2.0

The token is that of `hf auth login`, or HF_TOKEN. The folder stays as it is; pushing it again after a failure goes on
where it was, and pushing what is there already changes nothing. Without --packed, a repository that has a branch packed
is refused, as that branch would stay the one of another model.
"""

import argparse
import sys
from pathlib import Path

from hf_cyclical import PruningError
from hf_cyclical.cli import Parser, fail, stopped_pushing
from hf_cyclical.hub import LOGIN, push, push_command


def main(argv: list[str]) -> int:
    args = parse(argv)
    options = {"private": not args.hub_public, "packed": args.packed, "license": args.license}
    try:
        url = push(args.folder, args.repo_id, **options)
    except PruningError as error:
        fail(error)
    except KeyboardInterrupt:
        return stopped_pushing(args.folder, push_command(args.folder, args.repo_id, **options))
    print(f"Pushed to {url}")
    return 0


def parse(argv: list[str]) -> argparse.Namespace:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = Parser(description=__doc__, formatter_class=formatter, allow_abbrev=False)
    parser.add_argument("folder", type=Path, help="the output_dir of a finished run")
    parser.add_argument("repo_id", metavar="user/name", help="the repository; a name alone is one of your own")
    parser.add_argument("--hub_public", action="store_true", help="make the repository public; private unless given")
    parser.add_argument("--packed", action="store_true", help="push packed weights too, on the branch packed")
    parser.add_argument("--license", help="the licence that the card names, that of the model that was pruned")
    named = (word.partition("=")[0].lstrip("-").replace("-", "_") for word in argv if word.startswith("-"))
    if any(name in ("token", "hub_token") for name in named):
        fail(f"a token on the command line can be seen by others: {LOGIN}")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
