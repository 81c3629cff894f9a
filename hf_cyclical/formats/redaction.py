"""Text that is published or printed, without the folders of this machine and without tokens."""

import json
import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

MARK = "<path>/"  # in place of the folders: no name on the Hub begins so, and none of timm
_URL = re.compile(r"(?!file:)\b[a-z][\w+.-]+://(?=[^\s/'\"])[^\s'\"]*", re.I)  # of a host: others are paths
_CREDENTIALS = re.compile(  # of an address, also inside of JSON or of another address, or without its scheme
    r"(\b[a-z][\w+.-]*:(?:\\?/){2}|(?<![\w:/])//)"
    r"(?:(?:[^\s/\"]|\"(?![,:}\]]))+|[^\s/:@]+:(?!\d+/)[^\s\"]+)@"  # a password may hold quotes and slashes
    r"|(%3A%2F%2F)(?:(?!%2F|%40)[^\s&'\"])+%40"
    r"|(?<![\w:/@%.+-])()[\w.+-]+:[^\s/:@'\"]+@(?=[\w\[])",
    re.I,
)
_HEADER = re.compile(r"(\bAuthorization['\"]?\s*[:=]\s*+['\"]?)(?!\.\.\.)[^'\"]+|(\bBearer\s+)[\w.~+/=-]{12,}", re.I)
_SIGNED = re.compile(
    r"([?&;#][\w-]*(?:token|key|secret|pass|pwd|signature|\bsig|credential|auth|jwt|session)[\w-]*=)(?!\.\.\.)"
    r"[^\s&;'\"#]+",
    re.I,
)
# What nothing but a path begins with: a scheme, a home, a root, a share, a drive, this folder or the one above.
_ROOT = re.compile(r"(?<![\w.~/\\>-])(?:file:|~(?:[/\\]|$|[a-z_])|/+(?=\S)|\\\\|[a-z]:[/\\]|\.\.?[/\\])", re.I)
_NESTED = re.compile(r"(?:^|(?<=[='\"]))[^='\"/\\]*(?:/[^/\\]*[/\\]|\w\\+\w)")  # deeper than user/name, or of Windows
_HOMES = re.compile(r"(?:^|/)(?:home|users|documents and settings)/*$", re.I)
_SECRET = re.compile(
    r"(?:^|_)(?:api_?key|access_key|secret|secret_key|password|passwd|(?:access|api|auth|hf)_token)$", re.I
)
_LABELS = ("id2label", "label2id", "label_descriptions", "label_names")
TOKEN = re.compile(r"(?:hf_(?:oauth_|jwt_)?|api_org_)[A-Za-z0-9]{30,}")


def public_about(about: dict[str, Any]) -> dict[str, Any]:
    """What a report says about its run, as others may read it: of a path the last part is left, behind `MARK`.

    Its command, if it has one, keeps its form, without the mark; one that no shell could read is left out.
    """
    shown = {hide_paths(key): hide_paths(value) for key, value in about.items()}
    command = about.get("command")
    return shown | {"command": hide_in_command(command)} if isinstance(command, str) else shown


def hide_paths(value: Any) -> Any:
    """The same for any value that JSON can hold, however deep the text is in it."""
    return _everywhere(lambda text: _hide(text, MARK), value)


def hide_in_header(text: str) -> str:
    """The same for a value in the metadata of a file of weights, which may hold JSON."""
    try:
        content = json.loads(text)
        hidden = hide_paths(content)
    except (ValueError, RecursionError):
        return hide_paths(text)
    return text if hidden == content else json.dumps(hidden)


def _everywhere(change: Callable[[str], str], value: Any) -> Any:
    if isinstance(value, dict):
        return {_everywhere(change, key): _everywhere(change, inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_everywhere(change, inner) for inner in value]
    return change(value) if isinstance(value, str) else value


def _without_credentials(text: str) -> str:
    """Text whose addresses have no names, passwords and signatures."""
    text = _CREDENTIALS.sub(lambda found: found[1] or found[2] or "", text)
    text = _HEADER.sub(lambda found: f"{found[1] or found[2]}...", text)
    return _SIGNED.sub(r"\1...", text)


def hide_in_settings(value: Any) -> Any:
    """The same for the settings of a model, whose labels can look like paths, as `/m/01yrx` does."""
    if isinstance(value, dict):
        return {hide_in_settings(key): _hide_in_setting(key, inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [hide_in_settings(inner) for inner in value]
    if not isinstance(value, str):
        return value
    return hide_paths(value) if _ROOT.search(_without_urls(value)) else _without_credentials(value)


def _hide_in_setting(key: str, value: Any) -> Any:
    if isinstance(value, str) and _SECRET.search(key):
        return "..."
    if key in _LABELS:
        return _everywhere(_without_credentials, value)
    return hide_paths(value) if key.endswith("name_or_path") else hide_in_settings(value)


def hide_in_command(command: str) -> str | None:
    """A command with the last parts of its paths; none if a shell may read other words in it than are meant."""
    try:
        words = shlex.split(command)
    except ValueError:
        return None
    if "\\" in command and shlex.join(words) != command:  # paths of Windows, or with blanks, that are not quoted
        return None
    return shlex.join(_hide(word, "") for word in words) or None


def last_part(name: str) -> str:
    """The name of the folder or file that a path ends in; any other text as it is."""
    return _hide(name, "").removeprefix(MARK)


def _hide(text: str, mark: str) -> str:
    """Cut from where the first path begins to the name that the last one ends in.

    As paths may hold blanks, nobody can tell where one ends: rather too much is cut than too little.
    """
    text = _without_credentials(text)
    start = _start(text)
    if start is None:
        return text
    path = re.sub(r"[/\\]+(?=['\"]*$)", "", text[start:])
    folders, found, last = path.replace("\\", "/").rpartition("/")
    if not found or _HOMES.search(folders):  # the name of a home is that of its user
        last = "..."
    return f"{text[:start]}{mark}{last}"


def _start(text: str) -> int | None:
    """Where the first path begins."""
    plain = _without_urls(text)
    if found := _ROOT.search(plain) or _NESTED.search(plain):
        return found.start()
    return 0 if "/" in text and _is_folder(text) else None


def _without_urls(text: str) -> str:
    return _URL.sub(lambda url: "." * len(url[0]), text)


def _is_folder(text: str) -> bool:
    try:
        return Path(text).is_dir()
    except (OSError, ValueError):
        return False


def without_secrets(argv: Sequence[str]) -> list[str]:
    """The command line with tokens hidden, to be printed or stored."""
    shown: list[str] = []
    for word in argv:
        name, equals, _ = word.partition("=")
        if equals and "token" in name:
            word = f"{name}=..."
        elif shown and shown[-1].startswith("--") and "token" in shown[-1]:
            word = "..."
        shown.append(word)
    return shown
