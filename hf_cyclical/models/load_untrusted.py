"""Models from folders and repositories that may be hostile: packed weights or ordinary ones, of either library."""

import os
from pathlib import Path

from torch import nn

from hf_cyclical.core import PruningError, first_line
from hf_cyclical.formats import (
    CONFIG,
    MAX_BYTES,
    MAX_CONFIG_BYTES,
    PROCESSORS,
    WEIGHTS,
    iterate_tensors,
    read_config,
    read_kinds,
)
from hf_cyclical.formats import unpack_folder as unpack_any

from .download import find_files
from .fitting import UNBUILDABLE, Plan, plan_model


def load_packed_model(folder: str | os.PathLike[str], *, max_bytes: int = MAX_BYTES) -> nn.Module:
    """The image classifier in a folder, packed or not: that of timm if the folder is timm's, else that of transformers.

    Uses public interfaces alone: the model is made from its config, then gets its weights. All of them must fit. It is
    made without memory for its weights first, so that a config that asks for more than the file has takes none, nor
    does a file with more than the config asks for.

    Args:
        folder: The folder, which may be hostile.
        max_bytes: The most that the weights may take, unpacked and in the model.

    Raises:
        PruningError: If the config cannot be used, if the weights are damaged, or if they do not fit the config.
    """
    folder = Path(folder)
    plan = _plan(folder, max_bytes)
    tensors = dict(iterate_tensors(folder / WEIGHTS, max_bytes=max_bytes))
    try:
        return plan.make(tensors).eval()
    except UNBUILDABLE as error:
        raise PruningError(f"the model in {str(folder)!r} cannot be made: {first_line(error)}") from error


def unpack_folder(
    source: str | os.PathLike[str], target: str | os.PathLike[str], *, max_bytes: int | None = None
) -> None:
    """Make an ordinary folder of a packed one, which may be hostile.

    Args:
        source: The packed folder.
        target: The folder to make. It may exist if it is empty.
        max_bytes: The most that the weights may take unpacked. If not given, they must be those of the model that
            config.json describes, and so take no more than it does.

    Raises:
        PruningError: If the source is damaged or not packed, if its weights take more, or if the target exists.
    """
    if max_bytes is None:
        _plan(Path(source), MAX_BYTES)
    unpack_any(source, target, max_bytes=MAX_BYTES if max_bytes is None else max_bytes)


def _plan(folder: Path, max_bytes: int) -> Plan:
    config = read_config(folder)
    plan = plan_model(folder, config, read_kinds(folder / WEIGHTS, max_bytes=max_bytes), max_bytes)
    plan.fit.refuse(folder)
    return plan


def load(source: str | Path, revision: str | None = None, *, max_bytes: int = MAX_BYTES) -> nn.Module:
    """The image classifier of a folder or of the Hub, with packed weights or ordinary ones.

    Nothing but its config, its processor and its safetensors is downloaded, and no code of the repository runs.

    Args:
        source: A folder, or a Hub id.
        revision: Branch, tag or commit of the Hub's: `packed`, for one.
        max_bytes: The most that the weights may take, in the file, unpacked and in the model.

    Returns:
        A model of timm if the repository is timm's, else one of transformers, ready for inference.

    Raises:
        PruningError: If there is no such model, or if it cannot be loaded.
    """
    limits = dict.fromkeys((CONFIG, *PROCESSORS), MAX_CONFIG_BYTES)
    files = find_files(source, revision, limits | {WEIGHTS: max_bytes})
    return load_packed_model(files[CONFIG].parent, max_bytes=max_bytes)
