"""The command lines of single runs: what a comparison asks for, and whether a report is of that."""

import dataclasses
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hf_cyclical.core import PruningError
from hf_cyclical.formats import last_part
from hf_cyclical.paper import Comparison, Results, Values, check_report

from .parsing import parse_arguments

_PLACES = ("output_dir", "logging_dir", "run_name", "model_name_or_path")


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
        same = not made or asked == made or _meaning(asked) == _meaning(made)
        for name in () if same else {**asked, **made}:
            if asked.get(name) != made.get(name):
                there, here = (" ".join(of.get(name, ["not given"])) for of in (made, asked))
                raise PruningError(
                    f"{cell} in {source} had other settings: {name} is {there} there, {here} here: "
                    "run it in another output_dir"
                )


def meaning_of(values: Values) -> dict[str, Any]:
    """What a run is, however its command line says it: with the preset's values and the defaults in it.

    Where its model and its results are is left out.
    """
    return _meaning({name: [last_part(str(value)) for value in given] for name, given in values.items()})


def _meaning(arguments: dict[str, Sequence[str]]) -> dict[str, Any]:
    named = {name: given for name, given in arguments.items() if name not in _PLACES}
    args = parse_arguments(words_of({**named, "model_name_or_path": ["model"], "output_dir": ["results"]}))
    parts = [{f.name: getattr(part, f.name) for f in dataclasses.fields(part)} for part in (args.data, args.training)]
    found = {name: value for part in (*parts, args.pruning.to_dict()) for name, value in part.items()}
    return {name: value for name, value in found.items() if name not in _PLACES}


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
