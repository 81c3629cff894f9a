"""Look at a job in the browser, finished or running.

hf-cyclical show FOLDER                                # a page at http://127.0.0.1:7860, opened in the browser
hf-cyclical show FOLDER --dense timm/resnet18.a1_in1k  # predictions beside those of the dense model
hf-cyclical show FOLDER --port 0 --no_browser          # at any free port, which is printed

The page has the figure of the run; sparsity, empty rows and rows at the floor of each layer over the cycles; every mask
as a picture; what the pruned and the dense model say of an image that is dropped in, and how long they take; the card.
Of a running job it shows the newest checkpoint, and looks for others every few seconds. Nobody else is called.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from hf_cyclical.core import PruningError

from .command_line import Parser, fail

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line, and return its exit code."""
    parser = Parser("show", __doc__)
    parser.add_argument("folder", metavar="FOLDER", help="the folder of a job: its --output_dir")
    parser.add_argument("--dense", metavar="SOURCE", help="the dense model to compare with: a folder, or a Hub id")
    parser.add_argument("--port", type=int, default=7860, help="the port of the page; 0 takes any that is free (7860)")
    text = "the address to listen at (127.0.0.1, this machine only); whoever reaches another one sees the page"
    parser.add_argument("--host", default="127.0.0.1", help=text)
    parser.add_argument("--no_browser", action="store_true", help="open no browser")
    args = parser.parse_args(argv)
    if not 0 <= args.port <= 65535:
        parser.error(f"--port {args.port} must be from 0 to 65535")
    folder = Path(args.folder).expanduser()
    if not folder.is_dir():
        found = "is a file" if folder.exists() else "is not there"
        fail(f"{args.folder!r} {found}: give the folder of a job, its --output_dir")
    try:
        from hf_cyclical.show import Job  # seconds, with the Trainer

        job = Job(folder)
        from hf_cyclical.show import serve  # seconds, with Gradio

        serve(job, dense=args.dense, host=args.host, port=args.port, browser=not args.no_browser, tell=_tell)
    except (PruningError, OSError) as error:
        fail(error)
    except KeyboardInterrupt:
        pass
    return 0


def _tell(address: str) -> None:
    sys.stdout.write(f"The page is at {address}; Ctrl-C ends it\n")
    sys.stdout.flush()
