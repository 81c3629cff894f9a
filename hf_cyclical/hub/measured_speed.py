"""How fast a model was on one processor: beside the model as speed.json, and from there on its card.

A measurement is of one file of weights, whose hash it has: of any other nothing is said.
"""

import json
from pathlib import Path
from typing import Any

from hf_cyclical.core import PruningError
from hf_cyclical.formats import WEIGHTS, describe_weights, parse_json, write_text

SPEED_NAME = "speed.json"
_MOST_BYTES = 1 << 20


def record_speed(folder: Path, speed: dict[str, Any]) -> Path:
    """Write a measurement beside the weights that it is of, for the card of the next push.

    Args:
        folder: The model.
        speed: What `measure_speed` of the engine found, as a dict.

    Returns:
        The file.

    Raises:
        PruningError: If there are no weights in the folder.
    """
    file = folder / WEIGHTS
    if not file.is_file():
        raise PruningError(f"there is no {WEIGHTS} in {str(folder)!r}: record the speed of a model in a folder")
    target = folder / SPEED_NAME
    kept = {key: speed[key] for key in ("processor", "threads", "shape", "timings")}
    write_text(target, json.dumps({"weights_sha256": describe_weights(file)["sha256"], **kept}, indent=1) + "\n")
    return target


def read_speed(folder: Path) -> dict[str, Any] | None:
    """The measurement of the weights in a folder; None if there is none, or if it is of other weights.

    Raises:
        PruningError: If the file is not what `record_speed` writes.
    """
    file = folder / SPEED_NAME
    if not file.is_file():
        return None
    wrong = PruningError(f"{SPEED_NAME} in {str(folder)!r} is not a measurement: measure again, or delete it")
    if file.stat().st_size > _MOST_BYTES:
        raise wrong
    speed = parse_json(file.read_bytes(), SPEED_NAME)
    if speed.get("weights_sha256") != describe_weights(folder / WEIGHTS)["sha256"]:
        return None
    try:
        timings = [(str(t["engine"]), int(t["batch"]), float(t["milliseconds"])) for t in speed["timings"]]
        shape = [int(number) for number in speed["shape"]]
        said = {"processor": str(speed["processor"]), "threads": int(speed["threads"]), "shape": shape}
    except (KeyError, TypeError, ValueError) as error:
        raise wrong from error
    return said | {"timings": timings} if timings else None
