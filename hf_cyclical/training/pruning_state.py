"""The pruner's part of a Trainer checkpoint: masks and history bit-packed in safetensors, the rest in JSON.

Tensors are stored in one piece whatever the number of processes, so that a run can resume with another number of them.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from transformers.trainer import TRAINER_STATE_NAME

from hf_cyclical.core import TVPGD, PruningError, RecoveryTracker
from hf_cyclical.formats import leads_elsewhere
from hf_cyclical.reports import PruningReport, whole_report

from .checkpoints import has_manifest, refuse_damaged
from .ema import WeightAverage
from .run_settings import refuse_other_settings

STATE_NAME = "pruning_state.json"
TENSORS_NAME = "pruning_state.safetensors"
FORMAT = 2
MAX_STATE_BYTES = 64 << 20  # far above what the longest report of the largest model takes
_FLAG_BITS = 4


def save_state(
    folder: str | Path,
    settings: dict[str, Any],
    pruner: TVPGD,
    tracker: RecoveryTracker,
    report: PruningReport,
    average: WeightAverage | None = None,
    *,
    write: bool = True,
) -> None:
    """Write all that a run needs to resume, beside the weights that were saved in `folder`.

    All processes call it, as gathering split weights takes all of them; those with `write` write.
    """
    tensors = {}
    for name in pruner.masks:  # one layer at a time, so that no process holds more than one in full
        layer = {f"mask.{name}": _pack(pruner.whole_mask(name)), f"flags.{name}": _planes(tracker.whole_flags(name))}
        if pruner.hides:
            layer[f"hidden.{name}"] = pruner.hidden_values(name).cpu()
        if write:
            tensors |= layer
    for name in average.values if average else ():
        value = average.whole_value(name)
        if write:
            tensors[f"average.{name}"] = value.cpu().clone(memory_format=torch.contiguous_format)
    if not write:
        return
    state = {
        "format": FORMAT,
        "settings": settings,
        "shapes": {name: list(p.shape) for name, p in pruner.params.items()},
        "split": pruner.shards.several,
        "t": pruner.t,
        "s_now": pruner.s_now,
        "regrown_by_layer": tracker.regrown_by_layer,
        "cycles_ended": tracker.cycles_ended,
        "report": report.to_dict(),
    }
    save_file(tensors, Path(folder) / TENSORS_NAME)
    (Path(folder) / STATE_NAME).write_text(json.dumps(state))


def check_state(folder: str | Path, settings: dict[str, Any], shapes: dict[str, list[int]], split: bool) -> None:
    """Refuse a folder that is no checkpoint, a damaged one, or one of another model or with other settings.

    Args:
        folder: The checkpoint.
        settings: Those of the run that is to resume.
        shapes: The shapes of the weights that it prunes.
        split: Whether they are split among processes.
    """
    folder = Path(folder)
    if not has_manifest(folder):
        if not (folder / TRAINER_STATE_NAME).is_file():
            raise PruningError(f"{str(folder)!r} is no checkpoint: name a folder checkpoint-N that a run has left")
        if not has_state(folder):
            raise PruningError(f"{str(folder)!r} holds no masks: resume from a checkpoint of CyclicalPruningTrainer")
    refuse_damaged(folder)
    if not has_state(folder):
        raise PruningError(f"{str(folder)!r} holds only a model (save_only_model): resume from one that holds all")
    state = json.loads((folder / STATE_NAME).read_text())
    if state["format"] != FORMAT:
        raise PruningError(
            f"{str(folder)!r} is of format {state['format']}, this version of hf_cyclical reads {FORMAT}: resume with "
            f"{'a newer' if state['format'] > FORMAT else 'the older'} version"
        )
    if state["split"] != split:
        with_it, without = ("there", "here") if state["split"] else ("here", "there")
        raise PruningError(
            f"the checkpoint is of another kind of run: with FSDP2 {with_it}, without {without}, and the optimizer's "
            "state does not carry over: resume as it was made, on any number of processes"
        )
    if floor := state["settings"].get("layer_floor"):
        raise PruningError(
            f"{str(folder)!r} is of a run with layer_floor {floor:g}, which this version of hf_cyclical does not have: "
            "resume with the older version"
        )
    refuse_other_settings(state["settings"], settings)
    if state["shapes"] != shapes:
        name = next(n for n in {**state["shapes"], **shapes} if state["shapes"].get(n) != shapes.get(n))
        raise PruningError(
            f"the checkpoint is of another model: {name} has shape {state['shapes'].get(name)} there, "
            f"{shapes.get(name)} here: resume with the model it is of"
        )


def load_state(
    folder: str | Path, pruner: TVPGD, tracker: RecoveryTracker, average: WeightAverage | None = None
) -> PruningReport:
    """Take over the state saved in `folder`, and return the report so far."""
    state = json.loads((Path(folder) / STATE_NAME).read_text())
    with safe_open(Path(folder) / TENSORS_NAME, framework="pt") as file:
        names = set(file.keys())
        for name, p in pruner.params.items():  # one layer at a time, as in saving
            hidden = file.get_tensor(f"hidden.{name}") if f"hidden.{name}" in names else None
            pruner.load_layer(name, _unpack(file.get_tensor(f"mask.{name}"), p.shape).bool(), hidden)
            planes = enumerate(file.get_tensor(f"flags.{name}"))
            tracker.load_layer(name, sum(_unpack(plane, p.shape) << bit for bit, plane in planes))
        for name in average.values if average else ():
            average.load(name, file.get_tensor(f"average.{name}"))
    pruner.t, pruner.s_now = state["t"], state["s_now"]
    tracker.load_state_dict({**state, "flags": {}})
    return PruningReport.from_dict(state["report"])


def read_progress(folder: str | Path) -> tuple[int, PruningReport] | None:
    """How many updates a checkpoint has behind it, and the report so far; None if it holds only a model.

    Raises:
        PruningError: If its state is damaged.
    """
    folder, name = Path(folder), f"{STATE_NAME} in {str(folder)!r}"
    if not has_state(folder):
        return None
    if (size := (folder / STATE_NAME).stat().st_size) > MAX_STATE_BYTES or leads_elsewhere(folder / STATE_NAME):
        raise PruningError(f"{name} has {size:,} bytes or is a link, and is not read: name the folder of a run")
    try:
        state = json.loads((folder / STATE_NAME).read_text(encoding="utf-8"))
        updates, report = int(state["t"]), state["report"]
    except (KeyError, OverflowError, RecursionError, TypeError, ValueError) as error:
        raise PruningError(f"{name} is damaged: resume from an earlier checkpoint, or restart") from error
    return updates, whole_report(report, name)


def epochs_of(folder: str | Path) -> float | None:
    """The epochs of the run that left a checkpoint; None if that is not known, as of a damaged or an older one."""
    try:
        return json.loads((Path(folder) / STATE_NAME).read_text())["settings"]["num_train_epochs"]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def has_state(folder: str | Path) -> bool:
    """Whether `folder` is a checkpoint with a pruner's state."""
    return (Path(folder) / STATE_NAME).is_file()


def _planes(flags: Tensor) -> Tensor:
    return torch.stack([_pack(flags.bitwise_right_shift(bit).bitwise_and(1)) for bit in range(_FLAG_BITS)])


def _pack(bits: Tensor) -> Tensor:
    return torch.from_numpy(np.packbits(bits.cpu().numpy().astype(bool)))


def _unpack(packed: Tensor, shape: torch.Size) -> Tensor:
    bits = np.unpackbits(packed.numpy(), count=shape.numel())
    return torch.from_numpy(bits).view(shape)
