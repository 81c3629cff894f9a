"""Verifying: whether a pruned model is what its files say, for someone who trusts none of them."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_cyclical.core import NofM, PruningError, pattern_of
from hf_cyclical.formats import (
    CONFIG,
    KEY,
    MAX_BYTES,
    MAX_CONFIG_BYTES,
    MAX_METADATA_BYTES,
    METADATA_NAME,
    QUANTIZATION_KEY,
    SCHEMA,
    WEIGHTS,
    Kind,
    describe_weights,
    header_metadata,
    is_packed,
    iterate_tensors,
    parse_json,
    parse_metadata,
    read_kinds,
    root_hash,
    say_classes_once,
)
from hf_cyclical.models import changed_by_timm, find_all_files, is_of_timm, plan_model
from hf_cyclical.reports import align

from .branches import content_hash, has_branch
from .other_weights import other_weight_files, pointers_elsewhere, several_dtypes
from .push_settings import MAIN, PACKED
from .record import count_weights, is_weight, short_form

_SHOWN = 20  # differences in the table
_NOTHING = object()  # in place of a value that is missing


@dataclass(frozen=True)
class Verification:
    """What a look at a model's weights found.

    Attributes:
        source: The folder or Hub id.
        rows: What was compared: the field, what the files say, what the weights say.
        differences: A line for each difference; none if the model is what its files say.
    """

    source: str
    rows: tuple[tuple[str, str, str], ...]
    differences: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether the model is what its files say."""
        return not self.differences

    def table(self) -> str:
        """The comparison as text, the differences below it."""
        marked = [[row[0], *map(_cut, row[1:]), "" if row[1] == row[2] else "differs"] for row in self.rows]
        table = align([["", "recorded", "recomputed", ""], *marked])
        lines = "\n".join(line.rstrip() for line in table.splitlines())
        if self.ok:
            return f"{lines}\n\n{self.source}: the weights are what its files say."
        more = len(self.differences) - _SHOWN
        shown = [*self.differences[:_SHOWN], *([f"and {more} more"] if more > 0 else [])]
        count = f"{len(self.differences)} difference{'s' if len(self.differences) > 1 else ''}"
        return f"{lines}\n\n{self.source}: {count}\n" + "\n".join(f"  {line}" for line in shown)


def verify(source: str | Path, revision: str | None = None, *, max_bytes: int = MAX_BYTES) -> Verification:
    """Count a pruned model's weights again, and compare with its sparsity.json, its config.json and its header.

    What is counted are the tensors of the model that config.json describes: each of them must be there, and nothing
    else. Whatever would have transformers or timm load other weights than these is a difference, too.

    The model may be hostile: no pickle is opened, no code of it runs, no path is taken from its files, and sizes are
    checked before anything is downloaded, read or unpacked. What the config does not ask for takes no memory.

    Args:
        source: A folder, or a Hub id.
        revision: Branch, tag or commit of the Hub's. If not given, it is the branch main, and a branch `packed` must
            hold the same model.
        max_bytes: The most that the weights may take, in the file and unpacked.

    Raises:
        PruningError: If the model cannot be found, or if one of its files is missing, too large or malformed.
    """
    main, files = _verify_one(source, revision, max_bytes)
    is_folder = Path(source).expanduser().is_dir()
    if revision is not None or is_folder or not main.ok or not has_branch(str(source), PACKED):
        return main
    packed, others = _verify_one(source, PACKED, max_bytes)
    differences = list(packed.differences)
    if packed.ok and content_hash(files[WEIGHTS], max_bytes) != content_hash(others[WEIGHTS], max_bytes):
        differences.append(f"its weights are not those of the branch {MAIN}")
    if _model_config(files[CONFIG]) != _model_config(others[CONFIG]):
        differences.append(f"its {CONFIG} describes another model than that of the branch {MAIN}")
    row = (f"branch {PACKED}", f"as {MAIN}", f"as {MAIN}" if not differences else "another model")
    return Verification(main.source, (*main.rows, row), tuple(f"branch {PACKED}: {line}" for line in differences))


def _model_config(file: Path) -> dict[str, Any]:
    """A config without what it says of the layout of the weights."""
    config = parse_json(file.read_bytes(), CONFIG)
    say_classes_once(config)
    return {key: value for key, value in config.items() if key not in (KEY, QUANTIZATION_KEY)}


def _verify_one(source: str | Path, revision: str | None, max_bytes: int) -> tuple[Verification, dict[str, Path]]:
    """What `verify` says of one revision, and where its files are."""
    limits = {METADATA_NAME: MAX_METADATA_BYTES, CONFIG: MAX_CONFIG_BYTES, WEIGHTS: max_bytes}
    files, beside = find_all_files(source, revision, limits)
    if METADATA_NAME not in files:
        raise PruningError(f"model {str(source)!r} has no {METADATA_NAME}: verify one that hf_cyclical has pushed")
    recorded = parse_metadata(files[METADATA_NAME].read_bytes())
    config = parse_json(files[CONFIG].read_bytes(), CONFIG)
    file = files[WEIGHTS]
    packed, kinds = is_packed(file), read_kinds(file, max_bytes=max_bytes)
    comparison = _Comparison()
    comparison.elsewhere(config, beside, packed, kinds)
    skip = comparison.model(file, config, kinds, max_bytes) if comparison.ok else ()  # else nobody can tell which it is
    comparison.pruned(recorded["tensors"], kinds)
    fits = comparison.ok
    comparison.fields("weights", recorded["weights"], describe_weights(file))
    if packed and not fits:  # what is no tensor of the model is not unpacked: it may take any memory
        return comparison.result(source), files
    _compare_counts(comparison, recorded, config, file, skip, max_bytes)
    return comparison.result(source), files


def _compare_counts(
    comparison: "_Comparison",
    recorded: dict[str, Any],
    config: dict[str, Any],
    file: Path,
    skip: tuple[str, ...],
    max_bytes: int,
) -> None:
    """Count the weights again, and compare what follows from that."""
    names = [entry["name"] for entry in recorded["tensors"]]
    tensors, achieved = count_weights(file, names, skip=skip, max_bytes=max_bytes)
    found = recorded | {"achieved": achieved, "mask_sha256": root_hash(tensors), "weights": describe_weights(file)}
    comparison.tensors(recorded["tensors"], tensors)
    comparison.fields("achieved", recorded["achieved"], achieved)
    comparison.field("mask_sha256", recorded["mask_sha256"], found["mask_sha256"])
    comparison.field("method", recorded["method"], recorded["settings"].get("method"))
    pattern = _fixed_pattern(recorded["settings"])
    if pattern is not None:
        named = ((name, w) for name, w in iterate_tensors(file, max_bytes=max_bytes) if name in set(names))
        comparison.field(f"groups beyond {pattern}", 0, sum(pattern.broken(w) for _, w in named))
    comparison.fields(CONFIG, config.get(KEY), short_form(found))
    header = _parse_header(header_metadata(file).get(KEY))
    comparison.fields("header", header, {"schema": SCHEMA, "mask_sha256": found["mask_sha256"]})


def _fixed_pattern(settings: dict[str, Any]) -> NofM | None:
    """The pattern n:m of the settings, which every group of weights can be held against."""
    text = settings.get("pattern")
    pattern = pattern_of(text) if isinstance(text, str) else None
    return pattern if isinstance(pattern, NofM) else None


def _parse_header(text: str | None) -> Any:
    try:
        return text and parse_json(text[:1000].encode(), "header")
    except PruningError:
        return text


class _Comparison:
    """Collects the rows and the differences."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, str, str]] = []
        self.differences: list[str] = []

    @property
    def ok(self) -> bool:
        """Whether there is no difference so far."""
        return not self.differences

    def result(self, source: str | Path) -> Verification:
        """What was found."""
        return Verification(str(source), tuple(self.rows), tuple(self.differences))

    def elsewhere(self, config: dict[str, Any], beside: set[str], packed: bool, kinds: dict[str, Kind]) -> None:
        """What leads a loader to other weights."""
        files = other_weight_files(beside)
        settings = list(pointers_elsewhere(config, packed=packed, kinds=kinds))
        self.differences += [f"{_show(name)} is beside {WEIGHTS}: some loaders take it instead" for name in files]
        self.differences += [
            f"{CONFIG} has {key} {_show(value)}: some loaders then take other weights" for key, value in settings
        ]
        if dtypes := several_dtypes(kinds):
            self.differences.append(f"{WEIGHTS} has tensors of {' and '.join(dtypes)}: some loaders make them all one")
        self.rows.append(("ways to other weights", "0", f"{len(files) + len(settings) + bool(dtypes):,}"))

    def model(self, file: Path, config: dict[str, Any], kinds: dict[str, Kind], max_bytes: int) -> tuple[str, ...]:
        """Hold what is stored against the model of the config; gives the names that are none of its own."""
        fit = plan_model(file.parent, config, kinds, max_bytes, exact=False).fit
        self.differences += fit.lines()
        if self.ok and is_of_timm(config):
            changed = changed_by_timm(file.parent, config, kinds, max_bytes)
            self.differences += [
                f"tensor {name!r:.100} is changed by timm, as pretrained_cfg asks for another" for name in changed
            ]
        return fit.unknown

    def pruned(self, recorded: list[dict[str, Any]], kinds: dict[str, Kind]) -> None:
        """Whether what is recorded as pruned are weights."""
        names = (entry["name"] for entry in recorded)
        others = [name for name in names if name in kinds and not is_weight(name, kinds[name].dtype)]
        self.differences += [f"tensor {name!r:.100} is recorded as pruned, but is no weight" for name in others]

    def tensors(self, recorded: list[dict[str, Any]], found: list[dict[str, Any]]) -> None:
        """Compare the entries of tensors; those that agree are only counted."""
        by_name = {entry["name"]: entry for entry in found}
        same = 0
        for entry in recorded:
            name = f"tensor {entry['name']!r:.100}"
            if entry["name"] not in by_name:
                self.differences.append(f"{name} is recorded, but not in the weights")
                continue
            others = {key: (entry[key], value) for key, value in by_name[entry["name"]].items() if entry[key] != value}
            self.differences += [_line(f"{name}: {key}", *pair) for key, pair in others.items()]
            same += not others
        self.rows.append(("tensors", f"{len(recorded):,}", f"{same:,}"))

    def fields(self, where: str, recorded: Any, found: dict[str, Any]) -> None:
        """Compare a table, in which nothing may be missing or too much."""
        if not isinstance(recorded, dict):
            self.rows.append((where, _show(_NOTHING if recorded is None else recorded), "a table"))
            self.differences.append(f"{where} has no table {KEY!r} that says what the weights are")
            return
        for key, value in found.items():
            self.field(f"{where} {key}", recorded.get(key, _NOTHING), value)
        self.differences += [f"{where} has {key!r:.60}, which is unknown" for key in recorded if key not in found]

    def field(self, where: str, recorded: Any, found: Any) -> None:
        """Compare a value."""
        self.rows.append((where, _show(recorded), _show(found)))
        # As JSON: True is not 1 there.
        if recorded is _NOTHING or json.dumps(recorded) != json.dumps(found):
            self.differences.append(_line(where, recorded, found))


def _line(where: str, recorded: Any, found: Any) -> str:
    return f"{where} is recorded as {_show(recorded)}, but is {_show(found)}"


def _show(value: Any) -> str:
    """A value that may be hostile, in a few printable characters."""
    if value is _NOTHING:
        return "nothing"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}" if abs(value) < 1 << 64 else "a huge number"
    return _cut(value if isinstance(value, str) and value.isprintable() else repr(value), 70)


def _cut(text: str, most: int = 24) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."
