"""Pushing a finished run to the Hub.

What is pushed is built anew from a list of names, so that nothing else in the run's folder can get out: not the
Trainer's arguments with their token, not pickles, optimizer states, links or dot files.
"""

import json
import logging
import re
import shlex
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

from huggingface_hub import HfApi, RepoUrl, constants, errors, get_token
from huggingface_hub.utils import validate_repo_id
from transformers import TrainingArguments

from hf_cyclical.core import PruningError
from hf_cyclical.formats import (
    CONFIG,
    METADATA_NAME,
    PROCESSORS,
    TOKEN,
    WEIGHTS,
    WEIGHTS_INDEX,
    hide_in_settings,
    is_packed,
    pack_folder,
    read_json,
)
from hf_cyclical.models import make_portable
from hf_cyclical.reports import FIGURE_NAME, REPORT_NAME, read_finished

from .card import CARD_NAME as CARD
from .card import render_card
from .errors import LOGIN, pushing
from .record import stamp

__all__ = ["build_folder", "create_repository", "push", "push_command", "refuse_settings"]

logger = logging.getLogger(__name__)

MAIN, PACKED = "main", "packed"  # branches
NEEDED = (WEIGHTS, CONFIG, REPORT_NAME)
COPIED = (*NEEDED, *PROCESSORS, FIGURE_NAME)
ALLOWED = (*COPIED, METADATA_NAME, CARD)
_TOKEN = re.compile(TOKEN.pattern.encode())
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def refuse_settings(args: TrainingArguments) -> None:
    """Refuse what would push something else than the finished model, or write the token down.

    Raises:
        PruningError: If the arguments hold a token or, with `push_to_hub`, ask for pushes during training or to
            another branch.
    """
    if args.hub_token is not None:
        raise PruningError(f"hub_token would be written into training_args.bin, and others may read it: {LOGIN}")
    if args.push_to_hub and args.hub_strategy != "end":
        raise PruningError(
            f"hub_strategy {args.hub_strategy.value!r} pushes models on the way, which are not at the target, with all "
            "that is in output_dir: use hub_strategy 'end'"
        )
    if args.push_to_hub and args.hub_revision not in (None, MAIN):
        raise PruningError(f"hub_revision {args.hub_revision!r}: the model goes to the branch {MAIN}, leave it out")


def build_folder(
    run: Path, target: Path, *, repo_id: str, packed: bool = False, license: str | None = None
) -> dict[str, Path]:
    """Make what is pushed from the folder of a finished run, which stays as it is.

    Args:
        run: The run's folder, with model, config and report.
        target: A folder to make others in.
        repo_id: Where it will be: the card says how to load it from there.
        packed: Whether to make a folder with packed weights, too.
        license: For the card; if not given, that of the base model, as far as the Hub tells it.

    Returns:
        The folder of each branch: `main`, and `packed` if that was asked for.

    Raises:
        PruningError: If the run is not whole, if one of its files is a link, or if one of them holds a token.
    """
    folder = target / MAIN
    folder.mkdir(parents=True)
    _copy(run, folder)
    report = read_finished(run)
    report.save(folder)
    make_portable(folder)
    _hide_paths(run, folder)
    metadata = stamp(folder, report)
    folders = {MAIN: folder}
    files = {"dense": (folder / WEIGHTS).stat().st_size}
    if packed:
        folders[PACKED] = target / PACKED
        files["packed"] = pack_folder(folder, folders[PACKED]).packed_bytes
    config = read_json(str(run), folder / CONFIG)
    library = "transformers" if "model_type" in config else "timm"
    card = render_card(
        report,
        metadata,
        repo_id=repo_id,
        files=files,
        figure=FIGURE_NAME if (folder / FIGURE_NAME).exists() else None,
        license=license or _base_license(metadata["base_model"]["id"]),
        library=library,
        architecture=config.get("architecture"),
        # transformers makes one from the config of timm's models.
        processor=library == "timm" or any((folder / name).exists() for name in PROCESSORS),
    )
    for made in folders.values():
        (made / CARD).write_text(card, encoding="utf-8")
        _refuse_tokens(run, made)
    return folders


def push(
    run: str | Path,
    repo_id: str,
    *,
    private: bool = True,
    packed: bool = False,
    license: str | None = None,
    commit_message: str = "Push with hf_cyclical",
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

    Returns:
        The address of the repository.

    Raises:
        PruningError: If the run cannot be pushed, or if the Hub or the way to it fails: with the command to try again.
    """
    run = Path(run)
    repo_id = _whole_name(repo_id)
    again = push_command(run, repo_id, private=private, packed=packed, license=license)
    with TemporaryDirectory(prefix="hf_cyclical_") as scratch:
        folders = build_folder(run, Path(scratch), repo_id=repo_id, packed=packed, license=license)
        with pushing(repo_id, f"; the model is whole in {run}, to try again: {again}"):
            url = _create(repo_id, private, packed)
            for branch, folder in folders.items():
                _upload(folder, repo_id, branch, commit_message)
    return url


def push_command(
    run: str | Path, repo_id: str, *, private: bool = True, packed: bool = False, license: str | None = None
) -> str:
    """What to type for `push` with these arguments."""
    command = ["python", "scripts/push.py", str(run), repo_id]
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
    with pushing(repo_id):
        return _create(repo_id, private, packed).repo_id


def _copy(run: Path, folder: Path) -> None:
    if not run.is_dir():
        raise PruningError(f"there is no folder {str(run)!r}: give the folder of a finished run")
    if (run / WEIGHTS_INDEX).exists():
        raise PruningError(f"the weights in {str(run)!r} are in several files: raise max_shard_size at saving")
    for name in COPIED:
        file = run / name
        if file.is_symlink():
            raise PruningError(f"{name} in {str(run)!r} is a link, which is not followed: put the file itself there")
        if file.is_file():
            shutil.copyfile(file, folder / name, follow_symlinks=False)
        elif name in NEEDED:
            raise PruningError(f"there is no {name} in {str(run)!r}: give the folder of a finished run")
    if is_packed(folder / WEIGHTS):
        raise PruningError(f"the weights in {str(run)!r} are packed: unpack them, as {MAIN} holds them unpacked")


def _hide_paths(run: Path, folder: Path) -> None:
    """Others' tools write where a model came from into its settings."""
    for file in (folder / name for name in (CONFIG, *PROCESSORS)):
        if file.exists():
            content = read_json(str(run), file)
            if (hidden := hide_in_settings(content)) != content:
                file.write_text(json.dumps(hidden, indent=2) + "\n", encoding="utf-8")


def _base_license(name: str | None) -> str | None:
    """What the Hub says of the licence of the model that was pruned; nothing if it says nothing that is plain."""
    if name is None or "/" not in name:
        return None
    try:
        card = HfApi().model_info(name, timeout=10).card_data
    except (OSError, ValueError, errors.HTTPError):  # the user can still name it
        logger.info("the Hub does not tell the licence of %s: name it with --license", name)
        return None
    found = card.get("license") if card is not None else None
    return found if isinstance(found, str) and found not in ("other", "unknown") else None


def _refuse_tokens(run: Path, folder: Path) -> None:
    """The last gate: the user's own token, or what looks like one, in any file that is about to go out."""
    own = (get_token() or "").encode()
    for file in folder.iterdir():
        with file.open("rb") as opened:
            size = int.from_bytes(opened.read(8), "little") if file.name == WEIGHTS else -1  # of its header
            content = opened.read(size)
        if _TOKEN.search(content) or (own and own in content):
            raise PruningError(f"{file.name} of {str(run)!r} holds a token: take it out there, and revoke it")


def _refuse_bad_name(repo_id: str) -> None:
    try:
        validate_repo_id(repo_id)
    except errors.HFValidationError as error:
        raise PruningError(f"repository {repo_id!r} is no name of the Hub: give user/name") from error


def _whole_name(repo_id: str) -> str:
    _refuse_bad_name(repo_id)
    if "/" in repo_id:
        return repo_id
    with pushing(repo_id):
        _refuse_no_login(repo_id)
        return f"{HfApi().whoami()['name']}/{repo_id}"


def _refuse_no_login(repo_id: str) -> None:
    address = urlsplit(constants.ENDPOINT)
    if address.scheme == "http" and address.hostname not in _LOOPBACK:
        logger.warning("HF_ENDPOINT %s is not encrypted: your token can be read on the way", address.hostname)
    if get_token() is None:
        raise PruningError(f"there is no token to push to {repo_id!r} with: {LOGIN}")


def _create(repo_id: str, private: bool, packed: bool | None) -> RepoUrl:
    _refuse_no_login(repo_id)
    api = HfApi()
    url = api.create_repo(repo_id, private=private, exist_ok=True)
    if packed is False and any(branch.name == PACKED for branch in api.list_repo_refs(url.repo_id).branches):
        raise PruningError(
            f"repository {url.repo_id!r} has a branch {PACKED}, which would be of another model: add --packed "
            "(packed=True), or delete the branch"
        )
    if api.model_info(url.repo_id).private == private:
        return url
    if private:
        raise PruningError(
            f"repository {url.repo_id!r} is public, and a push is private unless told: add --hub_public "
            "(private=False), or name another"
        )
    logger.warning("repository %s is private and stays so: its settings on the Hub can change that", url.repo_id)
    return url


def _upload(folder: Path, repo_id: str, branch: str, message: str) -> None:
    api = HfApi()
    if branch != MAIN:
        api.create_branch(repo_id, branch=branch, exist_ok=True)
    there = {file.name for file in folder.iterdir()}
    api.upload_folder(
        repo_id=repo_id,
        folder_path=folder,
        revision=branch,
        commit_message=message,
        allow_patterns=list(ALLOWED),
        delete_patterns=[name for name in ALLOWED if name not in there],  # of an earlier push, of another model
    )
