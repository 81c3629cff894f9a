"""Finding the files of a model by its name: in a folder, in the cache or on the Hub, with one-line errors."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from huggingface_hub import HfApi, errors, hf_hub_download, snapshot_download, try_to_load_from_cache

from hf_cyclical.core import PruningError, first_line
from hf_cyclical.formats import CONFIG, PROCESSORS, WEIGHTS, WEIGHTS_INDEX, leads_elsewhere

_PICKLES = (".bin", ".ckpt", ".pickle", ".pkl", ".pt", ".pth")
_OF_THE_WAY = (OSError, errors.HTTPError)  # the second is the base class of the HTTP library's own
_MISTAKES = (AssertionError, AttributeError, ImportError, LookupError, NameError, TypeError)


def find_files(source: str | Path, revision: str | None, limits: Mapping[str, int]) -> dict[str, Path]:
    """Where the files of a model are, by name, downloaded if need be; see `find_all_files`."""
    return find_all_files(source, revision, limits)[0]


def find_all_files(
    source: str | Path, revision: str | None, limits: Mapping[str, int]
) -> tuple[dict[str, Path], set[str]]:
    """Where the files of a model are, by name, and the names of all files beside them.

    What is needed is downloaded; files that the model lacks are left out.

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


def _in_folder(name: str, folder: Path, limits: Mapping[str, int]) -> tuple[dict[str, Path], set[str]]:
    there = {path.name for path in folder.iterdir() if path.is_file()}
    _refuse_missing(name, there)
    files = {file: folder / file for file in limits if file in there}
    for file, path in files.items():
        if leads_elsewhere(path):
            raise PruningError(f"{file} of {name!r} is a link to elsewhere: put the file itself there")
        _refuse_large(name, file, path.stat().st_size, limits[file])
    return files, there


def _on_the_hub(name: str, revision: str | None, limits: Mapping[str, int]) -> tuple[dict[str, Path], set[str]]:
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
    return {file: Path(hf_hub_download(name, file, revision=info.sha)) for file in wanted}, set(sizes)


def _in_the_cache(name: str, revision: str | None, limits: Mapping[str, int]) -> tuple[dict[str, Path], set[str]]:
    found = {file: try_to_load_from_cache(name, file, revision=revision) for file in limits}
    files = {file: Path(path) for file, path in found.items() if isinstance(path, str)}
    if not {CONFIG, WEIGHTS} <= files.keys():
        todo = "go online once to download it, or give a folder"
        raise PruningError(f"model {name!r} is not in the cache and the Hub must not be asked: {todo}")
    for file, path in files.items():
        _refuse_large(name, file, path.stat().st_size, limits[file])
    return files, {path.name for path in files[CONFIG].parent.iterdir()}


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


@contextmanager
def downloading(name: str, revision: str | None = None) -> Iterator[None]:
    """Turns what the client raises while a model is looked for into one line."""
    try:
        yield
    except PruningError:
        raise
    except errors.GatedRepoError as error:
        todo = f"ask for access at https://huggingface.co/{name} and log in with `hf auth login`"
        raise PruningError(f"model {name!r} is gated: {todo}") from error
    except errors.RevisionNotFoundError as error:
        todo = "name a branch, tag or commit of it"
        raise PruningError(f"model {name!r} has no revision {revision!r}: {todo}") from error
    except (errors.RepositoryNotFoundError, errors.HFValidationError) as error:
        todo = "check the spelling, or log in with `hf auth login` if it is private"
        raise PruningError(f"model {name!r} is neither a folder here nor on the Hub: {todo}") from error
    except errors.LocalEntryNotFoundError as error:
        todo = "go online once to download it, or give a folder"
        raise PruningError(f"model {name!r} is not in the cache and the Hub cannot be reached: {todo}") from error
    except Exception as error:
        if not is_of_the_hub(error):
            raise
        raise PruningError(f"model {name!r} could not be downloaded, try again: {first_line(error)}") from error


def is_of_the_hub(error: Exception) -> bool:
    """Whether an error is not a mistake in a program, which has to be seen as what it is."""
    return not isinstance(error, _MISTAKES) or broke_on_the_way(error)


def broke_on_the_way(error: BaseException | None) -> bool:
    """Whether the connection is to blame; the client wraps some of its errors in others."""
    return error is not None and (isinstance(error, _OF_THE_WAY) or broke_on_the_way(error.__cause__))


def download_model(name: str, *, weights: bool) -> Path:
    """The folder in the local cache that holds a model of the Hub, downloaded if need be.

    Args:
        name: Hub id.
        weights: Whether the weights are needed, or its configs only.
    """
    files = [CONFIG, *PROCESSORS]
    if weights:
        files += [WEIGHTS, WEIGHTS_INDEX, "model-*-of-*.safetensors"]
    with downloading(name):
        return Path(snapshot_download(name, allow_patterns=files))
