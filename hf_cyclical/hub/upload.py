"""Pushing a finished run to the Hub: each branch in one commit, on top of what was seen there before."""

import logging
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

from huggingface_hub import HfApi, RepoUrl, constants, errors, get_session, get_token
from huggingface_hub.utils import validate_repo_id

from hf_cyclical.core import PruningError

from .errors import LOGIN, pushing
from .folder import ALLOWED, build_folder
from .other_weights import other_weight_files
from .push_settings import MAIN, PACKED

__all__ = ["create_repository", "push", "push_command"]

logger = logging.getLogger(__name__)

TIMEOUT = 120.0  # seconds without a sign of the Hub: it may take a minute for a large commit
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def push(
    run: str | Path,
    repo_id: str,
    *,
    private: bool = True,
    packed: bool = False,
    license: str | None = None,
    commit_message: str = "Push with hf_cyclical",
    timeout: float = TIMEOUT,
) -> str:
    """Push the folder of a finished run: each branch in one commit, or none if nothing has changed.

    Args:
        run: The run's folder. It stays as it is, whatever happens.
        repo_id: "user/name", made if it is not there; a name alone is one of the user's own.
        private: Whether it is to be private. An existing one stays what it is; a public one is then refused.
        packed: Whether to push packed weights too, on the branch `packed`. One that is there already is refused
            without it, as it would stay that of another model.
        license: For the card; if not given, that of the base model, as far as the Hub tells it.
        commit_message: The title of the commits.
        timeout: Seconds to wait for the Hub, each time that it does not answer.

    Returns:
        The address of the repository.

    Raises:
        PruningError: If the run cannot be pushed, if somebody else pushes at the same time, or if the Hub or the way to
            it fails: with the command to try again.
    """
    run = Path(run)
    options = {"private": private, "packed": packed, "license": license}
    repo_id = _whole_name(repo_id, f"; to try again: {push_command(run, repo_id, **options)}", timeout)
    with TemporaryDirectory(prefix="hf_cyclical_") as scratch:
        folders = build_folder(run, Path(scratch), repo_id=repo_id, packed=packed, license=license)
        then = f"; the model is complete in {run}, to try again: {push_command(run, repo_id, **options)}"
        with pushing(repo_id, then, timeout), _patience(timeout):
            url = _create(repo_id, private, packed, timeout)
            _upload_all(folders, repo_id, commit_message)
    return url


def push_command(
    run: str | Path, repo_id: str, *, private: bool = True, packed: bool = False, license: str | None = None
) -> str:
    """What to type for `push` with these arguments."""
    command = ["hf-cyclical", "push", str(run), repo_id]
    command += [] if private else ["--hub_public"]
    command += ["--packed"] if packed else []
    command += ["--license", license] if license else []
    return shlex.join(command)


def create_repository(repo_id: str, *, private: bool = True, packed: bool | None = None) -> str:
    """Make a repository if there is none, and give its whole name; what is wrong shows before a long run.

    Args:
        repo_id: "user/name", or a name alone for one of the user's own.
        private: As of `push`.
        packed: As of `push`; None if that will be known later.

    Raises:
        PruningError: If it cannot be made, is public against `private`, or has a branch against `packed`.
    """
    _refuse_bad_name(repo_id)
    with pushing(repo_id, timeout=TIMEOUT), _patience(TIMEOUT):
        return _create(repo_id, private, packed, TIMEOUT).repo_id


def _refuse_bad_name(repo_id: str) -> None:
    try:
        validate_repo_id(repo_id)
    except errors.HFValidationError as error:
        raise PruningError(f"repository {repo_id!r} is no name of the Hub: give user/name") from error


def _whole_name(repo_id: str, then: str, timeout: float) -> str:
    _refuse_bad_name(repo_id)
    if "/" in repo_id:
        return repo_id
    with pushing(repo_id, then, timeout), _patience(timeout):
        _refuse_no_login(repo_id)
        return f"{HfApi().whoami()['name']}/{repo_id}"


def _refuse_no_login(repo_id: str) -> None:
    address = urlsplit(constants.ENDPOINT)
    if address.scheme == "http" and address.hostname not in _LOOPBACK:
        logger.warning("HF_ENDPOINT %s is not encrypted: your token can be read on the way", address.hostname)
    if get_token() is None:
        raise PruningError(f"there is no token to push to {repo_id!r} with: {LOGIN}")


def _create(repo_id: str, private: bool, packed: bool | None, timeout: float) -> RepoUrl:
    _refuse_no_login(repo_id)
    api = HfApi()
    url = api.create_repo(repo_id, private=private, exist_ok=True)
    branches = _heads(url.repo_id)
    if packed is False and PACKED in branches:
        raise PruningError(
            f"repository {url.repo_id!r} has a branch {PACKED}, which would be of another model: add --packed "
            "(packed=True), or delete the branch"
        )
    info = api.model_info(url.repo_id, timeout=timeout)
    infos = [info]
    if packed and PACKED in branches:
        infos.append(api.model_info(url.repo_id, revision=PACKED, timeout=timeout))
    if others := other_weight_files([file.rfilename for found in infos for file in found.siblings or ()]):
        raise PruningError(
            f"repository {url.repo_id!r} has {others[0]!r:.80}, other weights, which some programs would load: delete "
            "that file on the Hub, or name another repository"
        )
    if info.private == private:
        return url
    if private:
        raise PruningError(
            f"repository {url.repo_id!r} is public, and a push is private unless told: add --hub_public "
            "(private=False), or name another"
        )
    logger.warning("repository %s is private and stays so: its settings on the Hub can change that", url.repo_id)
    return url


def _upload_all(folders: dict[str, Path], repo_id: str, message: str) -> None:
    """Each branch on top of what it is now; one that somebody else changes meanwhile ends it."""
    heads, made = _heads(repo_id), {}
    for branch, folder in folders.items():
        if branch not in heads:  # it begins where main is now; if somebody else has just made it, that is an error
            HfApi().create_branch(repo_id, branch=branch, revision=made[MAIN])
            heads[branch] = made[MAIN]
        made[branch] = _upload(folder, repo_id, branch, heads[branch], message)
    now = _heads(repo_id)
    if changed := [branch for branch in (MAIN, PACKED) if now.get(branch) != made.get(branch)]:
        raise PruningError(f"somebody else pushed to the branch {changed[0]} of {repo_id!r} at the same time")


def _upload(folder: Path, repo_id: str, branch: str, parent: str, message: str) -> str:
    there = {file.name for file in folder.iterdir()}
    done = HfApi().upload_folder(
        repo_id=repo_id,
        folder_path=folder,
        revision=branch,
        parent_commit=parent,
        commit_message=message,
        allow_patterns=list(ALLOWED),
        delete_patterns=[name for name in ALLOWED if name not in there],  # of an earlier push, of another model
    )
    return done.oid


def _heads(repo_id: str) -> dict[str, str]:
    return {branch.name: branch.target_commit for branch in HfApi().list_repo_refs(repo_id).branches}


@contextmanager
def _patience(seconds: float) -> Iterator[None]:
    """The client of huggingface_hub waits for ever unless told."""
    session = get_session()
    before = session.timeout
    session.timeout = seconds
    try:
        yield
    finally:
        session.timeout = before
