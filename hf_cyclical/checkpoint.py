"""The pruner's part of a Trainer checkpoint: masks and history bit-packed in safetensors, the rest in JSON."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers.trainer import TRAINER_STATE_NAME

from .core import TVPGD, PruningError, RecoveryTracker
from .report import PruningReport

STATE_NAME = "pruning_state.json"
TENSORS_NAME = "pruning_state.safetensors"
FORMAT = 1
_FLAG_BITS = 4


def save_state(folder: str | Path, pruner: TVPGD, tracker: RecoveryTracker, report: PruningReport) -> None:
    """Write all that a run needs to go on, beside the weights that were saved in `folder`."""
    pruned, history = pruner.state_dict(), tracker.state_dict()
    tensors = {f"mask.{name}": _pack(mask) for name, mask in pruned["masks"].items()}
    for name, flags in history["flags"].items():
        planes = [_pack(flags.bitwise_right_shift(bit).bitwise_and(1)) for bit in range(_FLAG_BITS)]
        tensors[f"flags.{name}"] = torch.stack(planes)
    tensors |= {f"hidden.{name}": values.cpu().contiguous() for name, values in pruned["hidden"].items()}
    state = {
        "format": FORMAT,
        "shapes": {name: list(mask.shape) for name, mask in pruned["masks"].items()},
        "t": pruned["t"],
        "s_now": pruned["s_now"],
        "regrown_by_layer": history["regrown_by_layer"],
        "cycles_ended": history["cycles_ended"],
        "report": report.to_dict(),
    }
    save_file(tensors, Path(folder) / TENSORS_NAME)
    (Path(folder) / STATE_NAME).write_text(json.dumps(state))


def check_state(folder: str | Path, config: dict[str, Any], shapes: dict[str, list[int]]) -> None:
    """Refuse a folder that is no checkpoint, or one of another model or with other settings.

    Args:
        folder: The checkpoint.
        config: The settings of the run that is to go on, resolved.
        shapes: The shapes of the weights that it prunes.
    """
    folder = Path(folder)
    if not (folder / TRAINER_STATE_NAME).is_file():
        raise PruningError(f"{str(folder)!r} is no checkpoint: name a folder checkpoint-N that a run has left")
    if not (folder / STATE_NAME).is_file():
        raise PruningError(f"{str(folder)!r} holds no masks: resume from a checkpoint of CyclicalPruningTrainer")
    state = json.loads((folder / STATE_NAME).read_text())
    if state["format"] != FORMAT:
        raise PruningError(f"{str(folder)!r} is of format {state['format']}, this version reads {FORMAT}: upgrade it")
    there = state["report"]["config"]
    for name in config:
        if there.get(name) != config[name]:
            raise PruningError(
                f"the checkpoint is of another run: {name} is {there.get(name)!r} there, {config[name]!r} here: "
                "resume with the settings it was made with"
            )
    if state["shapes"] != shapes:
        name = next(n for n in {**state["shapes"], **shapes} if state["shapes"].get(n) != shapes.get(n))
        raise PruningError(
            f"the checkpoint is of another model: {name} has shape {state['shapes'].get(name)} there, "
            f"{shapes.get(name)} here: resume with the model it is of"
        )


def load_state(folder: str | Path, pruner: TVPGD, tracker: RecoveryTracker) -> PruningReport:
    """Take over the state saved in `folder`, and return the report so far."""
    state = json.loads((Path(folder) / STATE_NAME).read_text())
    tensors = load_file(Path(folder) / TENSORS_NAME)
    pruner.load_state_dict(
        {
            "t": state["t"],
            "s_now": state["s_now"],
            "masks": {name: _unpack(tensors[f"mask.{name}"], mask).bool() for name, mask in pruner.masks.items()},
            "hidden": _by_prefix(tensors, "hidden."),
        }
    )
    flags = {
        name: sum(_unpack(plane, like) << bit for bit, plane in enumerate(tensors[f"flags.{name}"]))
        for name, like in tracker.flags.items()
    }
    tracker.load_state_dict({**state, "flags": flags})
    return PruningReport.from_dict(state["report"])


def has_state(folder: str | Path) -> bool:
    """Whether `folder` is a checkpoint with a pruner's state."""
    return (Path(folder) / STATE_NAME).is_file()


def _pack(bits: Tensor) -> Tensor:
    return torch.from_numpy(np.packbits(bits.cpu().numpy().astype(bool)))


def _unpack(packed: Tensor, like: Tensor) -> Tensor:
    bits = np.unpackbits(packed.numpy(), count=like.numel())
    return torch.from_numpy(bits).view(like.shape)


def _by_prefix(tensors: dict[str, Tensor], prefix: str) -> dict[str, Any]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
