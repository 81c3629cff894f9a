"""Draw the figures of a run from its report alone, as PNG and SVG.

python scripts/figures.py pruned                                # pruning_*.png and .svg, into the folder of the run
python scripts/figures.py report.json --output_dir figures      # elsewhere; the folder is made if it is not there
python scripts/figures.py pruned --only recovery --formats svg

    run         sparsity, learning rate, regrown weights and accuracy over the run (the paper's Figure 1)
    regrown     sparsity, regrown weights and learning rate over the run (appendix, figure a)
    recovery    regrown weights against accuracy at the end of each cycle (appendix, figure b)
    layers      the sparsity of each pruned layer, and the weights that it keeps

Files are named after the report (pruning_report.json: pruning_run.png, report.json: report_run.png). The paths of those
written are printed. A file that is there already is kept, and a figure that the report has no data for is left out; a
line on stderr says so.
"""

import argparse
import sys
from pathlib import Path

from hf_cyclical import PruningError
from hf_cyclical.cli import Parser, fail
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

FIGURES = {
    "run": draw_run,
    "regrown": draw_regrown,
    "recovery": draw_recovery,
    "layers": draw_layers,
}
FORMATS = ("png", "svg")


def main(argv: list[str]) -> int:
    args = parse(argv)
    try:
        draw(read_whole(args.report, str(args.report)), args)
    except PruningError as error:
        fail(error)
    except OSError as error:
        fail(f"{error.filename or args.report}: {error.strerror or error}")
    return 0


def draw(report: PruningReport, args: argparse.Namespace) -> None:
    drawn = {}
    for name in dict.fromkeys(args.only):
        try:
            drawn[name] = FIGURES[name](report)
        except NothingToDrawError as reason:
            note(f"no {name} figure: {reason}")
    folder, stem = place(args)
    folder.mkdir(parents=True, exist_ok=True)
    for name, figure in drawn.items():
        for ending in dict.fromkeys(args.formats):
            path = folder / f"{stem}_{name}.{ending}"
            if path.exists() and not args.overwrite:
                note(f"{path} exists and is kept: --overwrite draws it anew")
            else:
                print(save(figure, path))


def place(args: argparse.Namespace) -> tuple[Path, str]:
    """The folder of the figures, and what their names begin with."""
    file = args.report / REPORT_NAME if args.report.is_dir() else args.report
    return args.output_dir or file.parent, file.stem.removesuffix("_report")


def note(line: str) -> None:
    print(line, file=sys.stderr)


def parse(argv: list[str]) -> argparse.Namespace:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = Parser(description=__doc__, formatter_class=formatter, allow_abbrev=False)
    parser.add_argument("report", type=Path, help=f"a report file, or the folder of a run with its {REPORT_NAME}")
    parser.add_argument("--output_dir", type=Path, metavar="FOLDER", help="where to write (beside the report)")
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=FORMATS, help="png, svg or both (both)")
    parser.add_argument("--only", nargs="+", choices=FIGURES, default=list(FIGURES), help="these figures alone")
    parser.add_argument("--overwrite", action="store_true", help="replace files that are there already")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
