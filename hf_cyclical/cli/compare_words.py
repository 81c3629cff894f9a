"""The command lines of single runs: what a comparison asks for, and whether a report is of that."""

import shlex
from pathlib import Path

from hf_cyclical.core import PruningError
from hf_cyclical.formats import last_part
from hf_cyclical.paper import Comparison, Results, Values, check_report


def words_of(values: Values) -> list[str]:
    """Arguments as a command line has them."""
    return [word for name, given in values.items() for word in (f"--{name}", *map(str, given))]


def check_runs(comparison: Comparison, results: Results, source: Path) -> None:
    """Refuse reports that are of other runs than their rows say, or of rows that had other settings then."""
    for cell, report in results.items():
        check_report(cell, report, f"{cell} in {source}", "take another copy")
        try:
            made = _arguments(report.about.get("command"))
        except ValueError as error:  # a quotation that does not end
            raise PruningError(f"{cell} in {source} has a command that is none: take another copy") from error
        asked = _arguments(shlex.join(words_of(comparison.settings(cell, comparison.setting.model))))
        for name in {**asked, **made} if made else ():
            if asked.get(name) != made.get(name):
                there, here = (" ".join(of.get(name, ["not given"])) for of in (made, asked))
                raise PruningError(
                    f"{cell} in {source} had other settings: {name} is {there} there, {here} here: "
                    "run it in another output_dir"
                )


def _arguments(command: str | None) -> dict[str, list[str]]:
    """A command's arguments by their names, with the last parts of paths; not the model, which may be anywhere."""
    found: dict[str, list[str]] = {}
    for word in shlex.split(command or ""):
        if word.startswith("--"):
            found[word[2:]] = []
        elif found:
            found[next(reversed(found))].append(last_part(word))
    found.pop("model_name_or_path", None)
    return found
