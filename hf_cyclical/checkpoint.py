"""The pruner's part of a Trainer checkpoint: masks and history bit-packed in safetensors, the rest in JSON."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from .core import TVPGD, RecoveryTracker
from .report import PruningReport

STATE_NAME = "pruning_state.json"
TENSORS_NAME = "pruning_state.safetensors"
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
        "t": pruned["t"],
        "s_now": pruned["s_now"],
        "regrown_by_layer": history["regrown_by_layer"],
        "cycles_ended": history["cycles_ended"],
        "report": report.to_dict(),
    }
    save_file(tensors, Path(folder) / TENSORS_NAME)
    (Path(folder) / STATE_NAME).write_text(json.dumps(state))


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
