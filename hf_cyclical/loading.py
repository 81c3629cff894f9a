"""Loading models from a folder or the Hub, in either layout, and finding the files of a model that may be hostile."""

import os
from collections.abc import Mapping
from pathlib import Path

from huggingface_hub import HfApi, errors, hf_hub_download, try_to_load_from_cache
from torch import nn

from .core import PruningError
from .files import leads_elsewhere
from .hub_errors import downloading
from .model_files import CONFIG, PROCESSORS, WEIGHTS, WEIGHTS_INDEX
from .packed.codec import MAX_BYTES
from .packed.folders import MAX_CONFIG_BYTES
from .packed.models import load_packed_model

_PICKLES = (".bin", ".ckpt", ".pickle", ".pkl", ".pt", ".pth")


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


def find_files(source: str | Path, revision: str | None, limits: Mapping[str, int]) -> dict[str, Path]:
    """Where the files of a model are, by name, downloaded if need be; those that it lacks are left out.

    Args:
        source: A folder, or a Hub id.
        revision: Branch, tag or commit of the Hub's.
        limits: The names of the files that may be needed, and how many bytes each may have.

    Raises:
        PruningError: If there is no such model, if a file is too large or a link to elsewhere, or if there is no config
            or no safetensors.
    """
    name = os.fspath(source)
    folder = Path(name).expanduser()
    if name and folder.is_dir():
        if revision is not None:
            raise PruningError(f"revision {revision!r} has no meaning for the folder {name!r}: leave it out")
        return _in_folder(name, folder, limits)
    if folder.is_absolute() or name.startswith((".", "~")) or name.count("/") != 1:
        raise PruningError(f"{name!r} is neither a folder here nor a Hub id: check the path, or write user/name")
    with downloading(name, revision):
        try:
            return _on_the_hub(name, revision, limits)
        except errors.OfflineModeIsEnabled:
            return _in_the_cache(name, revision, limits)


def _in_folder(name: str, folder: Path, limits: Mapping[str, int]) -> dict[str, Path]:
    there = {path.name for path in folder.iterdir() if path.is_file()}
    _refuse_missing(name, there)
    files = {file: folder / file for file in limits if file in there}
    for file, path in files.items():
        if leads_elsewhere(path):
            raise PruningError(f"{file} of {name!r} is a link to elsewhere: put the file itself there")
        _refuse_large(name, file, path.stat().st_size, limits[file])
    return files


def _on_the_hub(name: str, revision: str | None, limits: Mapping[str, int]) -> dict[str, Path]:
    info = HfApi().model_info(name, revision=revision, files_metadata=True)
    sizes = {sibling.rfilename: sibling.size for sibling in info.siblings or ()}
    _refuse_missing(name, set(sizes))
    wanted = [file for file in limits if file in sizes]
    for file in wanted:
        _refuse_large(name, file, sizes[file], limits[file])
    # By its commit: whoever changes the branch meanwhile changes nothing here. The first one by the branch's own name,
    # which the cache then knows, for the day without a network.
    first = Path(hf_hub_download(name, CONFIG, revision=revision))
    if first.parent.name != info.sha:
        raise PruningError(f"model {name!r} was changed while it was downloaded: try again")
    return {file: Path(hf_hub_download(name, file, revision=info.sha)) for file in wanted}


def _in_the_cache(name: str, revision: str | None, limits: Mapping[str, int]) -> dict[str, Path]:
    found = {file: try_to_load_from_cache(name, file, revision=revision) for file in limits}
    files = {file: Path(path) for file, path in found.items() if isinstance(path, str)}
    if not {CONFIG, WEIGHTS} <= files.keys():
        todo = "go online once to download it, or give a folder"
        raise PruningError(f"model {name!r} is not in the cache and the Hub must not be asked: {todo}")
    for file, path in files.items():
        _refuse_large(name, file, path.stat().st_size, limits[file])
    return files


def _refuse_missing(name: str, there: set[str]) -> None:
    if CONFIG not in there:
        raise PruningError(f"model {name!r} has no {CONFIG}: give a folder or Hub id of transformers or timm")
    if WEIGHTS in there:
        return
    if WEIGHTS_INDEX in there:
        raise PruningError(f"the weights of {name!r} are in several files: save them in one, with max_shard_size")
    pickles = sorted(file for file in there if file.endswith(_PICKLES))
    found = f"{pickles[0]!r:.80}, a pickle, which is never opened" if pickles else "no weights that are known"
    raise PruningError(f"model {name!r} has no {WEIGHTS} but {found}: save it as safetensors")


def _refuse_large(name: str, file: str, size: int | None, limit: int) -> None:
    if size is None or size > limit:
        shown = "unknown" if size is None else f"{size:,}"
        raise PruningError(f"{file} of {name!r} has {shown} bytes, at most {limit:,} are read: use another model")
