"""The schema of sparsity.json: what its fields may hold, and how they follow from its counts."""

import hashlib
import json
import math
import re
from collections.abc import Callable
from typing import Any

from hf_cyclical.core import PruningError, first_line

METADATA_NAME = "sparsity.json"
SCHEMA = "hf_cyclical/sparsity@1"
KEY = "hf_cyclical"  # of the short form in config.json, and of the mask hash in the header of the weights
MAX_METADATA_BYTES = 1 << 22
_MOST_TENSORS = 10_000
_MOST_LEVELS = 32
_MOST = 1 << 48  # of anything that is counted

Kind = Callable[[Any, str], None]


def read_metadata(data: bytes) -> dict[str, Any]:
    """The record in the bytes of a sparsity.json, which may be hostile.

    Raises:
        PruningError: If it is too large, no JSON, of another schema, or if any field is missing, unknown, of a wrong
            type, out of range, or contradicts the counts.
    """
    metadata = parse_metadata(data)
    tensors, achieved = metadata["tensors"], metadata["achieved"]
    for i, entry in enumerate(tensors):
        _derived(f"tensors[{i}].weights", entry["weights"], math.prod(entry["shape"]))
        if entry["zeros"] > entry["weights"]:
            raise _wrong(f"tensors[{i}].zeros", entry["zeros"], f"at most its {entry['weights']} weights")
    for key, expected in totals(tensors, achieved["parameters"], achieved["zeros"]).items():
        _derived(f"achieved.{key}", achieved[key], expected)
    if not achieved["prunable_zeros"] <= achieved["zeros"] <= achieved["parameters"] >= achieved["prunable"]:
        raise _wrong("achieved.zeros", achieved["zeros"], "between the pruned weights and all parameters")
    _derived("mask_sha256", metadata["mask_sha256"], root_hash(tensors))
    _derived("method", metadata["method"], metadata["settings"].get("method"))
    return metadata


def parse_metadata(data: bytes) -> dict[str, Any]:
    """As `read_metadata`, but without a look at whether its numbers fit each other."""
    if len(data) > MAX_METADATA_BYTES:
        raise PruningError(
            f"{METADATA_NAME} has {len(data):,} bytes, more than {MAX_METADATA_BYTES:,}: download or stamp it again"
        )
    metadata = parse_json(data, METADATA_NAME)
    schema = metadata.get("schema")
    if schema != SCHEMA:
        number = re.fullmatch(r"hf_cyclical/sparsity@(\d{1,9})", schema) if isinstance(schema, str) else None
        todo = "upgrade hf_cyclical" if number and int(number[1]) > 1 else "stamp the model again"
        raise PruningError(f"{METADATA_NAME}: schema {schema!r:.60} is unknown, known is {SCHEMA}: {todo}")
    _RECORD(metadata, "")
    names = [entry["name"] for entry in metadata["tensors"]]
    if names != sorted(set(names)):
        raise _wrong("tensors", f"{len(names)} names", "sorted by name, each of them once")
    return metadata


def parse_json(data: bytes, name: str) -> dict[str, Any]:
    """The settings in the bytes of a JSON file, which may be hostile; `name` is how errors call it."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) < len(pairs):
            raise ValueError("a key is there twice")
        return dict(pairs)

    try:
        content = json.loads(data, object_pairs_hook=unique)
        deep = _is_deep(content)
    except ValueError as error:
        raise PruningError(f"{name} is not valid JSON, download or save it again: {first_line(error)}") from None
    except RecursionError:
        deep = True
    if deep:
        raise PruningError(f"{name} is nested too deeply: download or save it again")
    if not isinstance(content, dict):
        raise PruningError(f"{name} holds no settings but a {type(content).__name__}: download or save it again")
    return content


def _is_deep(content: Any) -> bool:
    """Whether there are more levels than anything needs; what comes after may walk through the others by recursion."""
    level = [content]
    for _ in range(_MOST_LEVELS):
        nested = [item for item in level if isinstance(item, dict | list)]
        level = [child for item in nested for child in (item.values() if isinstance(item, dict) else item)]
    return bool(level)


def totals(tensors: list[dict[str, Any]], parameters: int, zeros: int) -> dict[str, Any]:
    """What the entries of the pruned tensors amount to."""
    prunable = sum(entry["weights"] for entry in tensors)
    pruned = sum(entry["zeros"] for entry in tensors)
    return {
        "prunable": prunable,
        "prunable_zeros": pruned,
        "sparsity": pruned / max(prunable, 1),
        "parameters": parameters,
        "zeros": zeros,
        "overall_sparsity": pruned / max(parameters, 1),
    }


def root_hash(tensors: list[dict[str, Any]]) -> str:
    """SHA-256 of the mask hashes of all tensors, as bytes, in the order of their names."""
    digests = [bytes.fromhex(entry["mask_sha256"]) for entry in sorted(tensors, key=lambda entry: entry["name"])]
    return hashlib.sha256(b"".join(digests)).hexdigest()


def _wrong(where: str, value: Any, rule: str) -> PruningError:
    return PruningError(f"{METADATA_NAME}: {where} {value!r:.60} must be {rule}: download or stamp it again")


def _derived(where: str, value: Any, expected: Any) -> None:
    same = math.isclose(value, expected, abs_tol=1e-12) if isinstance(expected, float) else value == expected
    if not same:
        raise _wrong(where, value, f"{expected!r:.70}, which follows from the other fields")


def _whole(least: int = 0) -> Kind:
    def check(value: Any, where: str) -> None:
        if type(value) is not int or not least <= value <= _MOST:
            raise _wrong(where, value, f"a whole number from {least} to {_MOST}")

    return check


def _number(least: float = -math.inf, most: float = math.inf) -> Kind:
    def check(value: Any, where: str) -> None:
        if type(value) not in (int, float) or abs(value) > 1e300 or not least <= value <= most:
            raise _wrong(where, value, "a finite number" if most == math.inf else f"a number from {least} to {most}")

    return check


def _text(pattern: str = ".{1,500}") -> Kind:
    def check(value: Any, where: str) -> None:
        if not isinstance(value, str) or not value.isprintable() or not re.fullmatch(pattern, value):
            raise _wrong(where, value, f"printable text of the form {pattern}")

    return check


def _list(kind: Kind, most: int) -> Kind:
    def check(value: Any, where: str) -> None:
        if not isinstance(value, list) or len(value) > most:
            raise _wrong(where, value, f"a list of at most {most} entries")
        for i, item in enumerate(value):
            kind(item, f"{where}[{i}]")

    return check


def _table(kind: Kind, most: int = 100) -> Kind:
    def check(value: Any, where: str) -> None:
        if not isinstance(value, dict) or len(value) > most or not all(map(str.isprintable, value)):
            raise _wrong(where, value, f"a table of at most {most} printable names")
        for key, item in value.items():
            kind(item, f"{where}.{key:.60}")

    return check


def _record(**fields: Kind) -> Kind:
    def check(value: Any, where: str) -> None:
        if not isinstance(value, dict) or value.keys() != fields.keys():
            raise _wrong(where or "the record", value, f"a table of {', '.join(fields)}")
        for key, kind in fields.items():
            kind(value[key], f"{where}.{key}".removeprefix("."))

    return check


def _maybe(kind: Kind) -> Kind:
    return lambda value, where: None if value is None else kind(value, where)


def _setting(value: Any, where: str) -> None:
    kinds = {str: _text("(?s).{0,500}"), list: _list(_text(), 1000), int: _number(), float: _number()}
    if value is not None and type(value) is not bool:
        kinds.get(type(value), _text())(value, where)


_SHA256, _FRACTION = _text("[0-9a-f]{64}"), _number(0, 1)
_RECORD = _record(
    schema=_text(),
    method=_text(),
    settings=_table(_setting),
    base_model=_record(id=_maybe(_text()), revision=_maybe(_text())),
    achieved=_record(
        prunable=_whole(1),
        prunable_zeros=_whole(),
        sparsity=_FRACTION,
        parameters=_whole(1),
        zeros=_whole(),
        overall_sparsity=_FRACTION,
    ),
    recovery=_list(
        _record(cycle=_whole(1), update=_whole(), regrown=_FRACTION, recovered=_whole(), mask_distance=_FRACTION),
        10_000,
    ),
    evaluation=_record(dense=_table(_number()), pruned=_table(_number())),
    tensors=_list(
        _record(name=_text(), shape=_list(_whole(), 16), weights=_whole(), zeros=_whole(), mask_sha256=_SHA256),
        _MOST_TENSORS,
    ),
    mask_sha256=_SHA256,
    versions=_table(_text("[\\w.+!-]{1,100}")),
    weights=_record(file=_text("model[.]safetensors"), layout=_text("dense|packed"), sha256=_SHA256, bytes=_whole(1)),
)
