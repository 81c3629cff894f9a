"""Draw the figures of a run from its report alone, as PNG and SVG.

hf-cyclical figures pruned                                # pruning_*.png and .svg, into the folder of the run
hf-cyclical figures report.json --output_dir figures      # elsewhere; the folder is made if it is not there
hf-cyclical figures pruned --only recovery --formats svg

    run         sparsity, learning rate, regrown weights and accuracy over the run (the paper's Figure 1)
    regrown     sparsity, regrown weights and learning rate over the run (appendix, figure a)
    recovery    regrown weights against accuracy at the end of each cycle (appendix, figure b)
    layers      the sparsity of each pruned layer, and the weights that it keeps

Files are named after the report (pruning_report.json: pruning_run.png, report.json: report_run.png). The paths of those
written are printed. A file that is there already is kept, and a figure that the report has no data for is left out; a
line on stderr says so.
"""

import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from hf_cyclical.core import PruningError
from hf_cyclical.reports import (
    REPORT_NAME,
    NothingToDrawError,
    PruningReport,
    draw_layers,
    draw_recovery,
    draw_regrown,
    draw_run,
    read_whole,
    save,
)

from .command_line import Parser, fail

_FIGURES = {
    "run": draw_run,
    "regrown": draw_regrown,
    "recovery": draw_recovery,
    "layers": draw_layers,
}
_FORMATS = ("png", "svg")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line, and return its exit code."""
    args = _parse(argv)
    try:
        _draw(read_whole(args.report, str(args.report)), args)
    except PruningError as error:
        fail(error)
    except OSError as error:
        fail(f"{error.filename or args.report}: {error.strerror or error}")
    return 0


def _draw(report: PruningReport, args: Namespace) -> None:
    drawn = {}
    for name in dict.fromkeys(args.only):
        try:
            drawn[name] = _FIGURES[name](report)
        except NothingToDrawError as reason:
            _note(f"no {name} figure: {reason}")
    folder, stem = _place(args)
    folder.mkdir(parents=True, exist_ok=True)
    for name, figure in drawn.items():
        for ending in dict.fromkeys(args.formats):
            path = folder / f"{stem}_{name}.{ending}"
            if path.exists() and not args.overwrite:
                _note(f"{path} exists and is kept: --overwrite replaces it")
            else:
                sys.stdout.write(f"{save(figure, path)}\n")


def _place(args: Namespace) -> tuple[Path, str]:
    """The folder of the figures, and what their names begin with."""
    file = args.report / REPORT_NAME if args.report.is_dir() else args.report
    return args.output_dir or file.parent, file.stem.removesuffix("_report")


def _note(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def _parse(argv: Sequence[str] | None) -> Namespace:
    parser = Parser("figures", __doc__)
    parser.add_argument(
        "report", metavar="REPORT", type=Path, help=f"a report file, or the folder of a run with its {REPORT_NAME}"
    )
    parser.add_argument("--output_dir", type=Path, metavar="FOLDER", help="where to write (beside the report)")
    parser.add_argument("--formats", nargs="+", choices=_FORMATS, default=_FORMATS, help="png, svg or both (both)")
    parser.add_argument("--only", nargs="+", choices=_FIGURES, default=list(_FIGURES), help="these figures alone")
    parser.add_argument("--overwrite", action="store_true", help="replace files that are there already")
    return parser.parse_args(argv)
