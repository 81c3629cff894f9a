"""The folder that is pushed, built from that of a finished run.

What goes into it is a list of names, so that nothing else in the run's folder can get out: not the Trainer's arguments
with their token, not pickles, optimizer states, links or dot files. Of what does go in, paths, credentials and the text
in images are left out.
"""

import json
import logging
import re
import shutil
from pathlib import Path

from huggingface_hub import HfApi, errors, get_token

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
    without_text,
)
from hf_cyclical.models import make_portable
from hf_cyclical.reports import FIGURE_NAME, REPORT_NAME, read_finished

from .card import CARD_NAME as CARD
from .measured_speed import read_speed
from .other_weights import LEADS_ELSEWHERE
from .push_settings import MAIN, PACKED
from .record import stamp
from .self_description import card_of

logger = logging.getLogger(__name__)

NEEDED = (WEIGHTS, CONFIG, REPORT_NAME)
COPIED = (*NEEDED, *PROCESSORS, FIGURE_NAME)
ALLOWED = (*COPIED, METADATA_NAME, CARD)
_TOKEN = re.compile(TOKEN.pattern.encode())


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
    _strip_figure(folder / FIGURE_NAME)
    metadata = stamp(folder, report)
    folders = {MAIN: folder}
    files = {"dense": (folder / WEIGHTS).stat().st_size}
    if packed:
        folders[PACKED] = target / PACKED
        files["packed"] = pack_folder(folder, folders[PACKED]).packed_bytes
    license = license or _base_license(metadata["base_model"]["id"])
    speed = read_speed(run)
    card = card_of(folder, report, metadata, repo_id=repo_id, files=files, license=license, speed=speed)
    for made in folders.values():
        (made / CARD).write_text(card, encoding="utf-8")
        _refuse_tokens(run, made)
    return folders


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
    """Others' tools write where a model came from into its settings, and where else there are weights or code of it."""
    for file in (folder / name for name in (CONFIG, *PROCESSORS)):
        if file.exists():
            content = read_json(str(run), file)
            kept = {key: value for key, value in content.items() if key not in LEADS_ELSEWHERE}
            if (hidden := hide_in_settings(kept)) != content:
                file.write_text(json.dumps(hidden, indent=2) + "\n", encoding="utf-8")


def _strip_figure(file: Path) -> None:
    """Programs write who made an image, and where, into its text."""
    if file.exists():
        file.write_bytes(without_text(file.read_bytes(), file.name))


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
