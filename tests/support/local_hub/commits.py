"""What an upload consists of: how each file is to be sent, and the commit in the end."""

import base64
import binascii
import fnmatch
import json
from collections.abc import Callable

from .store import MAX_REGULAR, Commit, File, RefusedError, Repo, Store, check_path, goes_to_lfs, is_binary


def ignore_rule(git_ignore: str) -> Callable[[str], bool]:
    """Plain patterns only, which is what tests need of the format."""
    patterns = [line.strip() for line in git_ignore.splitlines() if line.strip() and not line.startswith("#")]
    return lambda path: any(fnmatch.fnmatch(path, p) or fnmatch.fnmatch(path, f"{p.rstrip('/')}/*") for p in patterns)


def upload_mode(asked: dict, head: Commit, ignored: Callable[[str], bool]) -> dict:
    path = check_path(asked["path"])
    lfs = goes_to_lfs(path, decode(asked["sample"]), asked["size"])
    held = head.files.get(path)
    return {
        "path": path,
        "uploadMode": "lfs" if lfs else "regular",
        "shouldIgnore": ignored(path),
        "oid": held and (held.sha256 if held.lfs else held.git_oid),
    }


def commit(store: Store, repo: Repo, branch: str, body: bytes) -> Commit:
    """Read the lines of a commit, check them all, and only then make it."""
    head = repo.branch(branch)
    try:
        lines = [json.loads(line) for line in body.splitlines() if line.strip()]
    except ValueError as error:
        raise RefusedError(400, f"Not NDJSON: {error}") from error
    if not lines or lines[0]["key"] != "header" or not lines[0]["value"].get("summary"):
        raise RefusedError(400, "A commit begins with a header and its summary")
    header = lines[0]["value"]
    if not head.oid.startswith(header.get("parentCommit") or head.oid):
        raise RefusedError(412, "A commit has happened since. Please refresh and try again.")
    files = dict(head.files)
    for line in lines[1:]:
        change(store.lfs[repo.id], files, line["key"], line["value"])
    return repo.commit(branch, files, header["summary"], header.get("description", ""))


def change(held: dict[str, bytes], files: dict[str, File], key: str, value: dict) -> None:
    path = check_path(value["path"].removesuffix("/") if key == "deletedFolder" else value["path"])
    if key == "file":
        files[path] = regular_file(value)
    elif key == "lfsFile":
        content = held.get(value["oid"])
        if value["algo"] != "sha256" or content is None or len(content) != value.get("size", len(content)):
            raise RefusedError(400, f"LFS object of {path} does not exist")
        files[path] = File(content, True)
    elif key == "deletedFile":
        if files.pop(path, None) is None:
            raise RefusedError(404, f"Entry not found: {path}", "EntryNotFound")
    elif key == "deletedFolder":
        inside = [name for name in files if name.startswith(f"{path}/")]
        if not inside:
            raise RefusedError(404, f"Entry not found: {path}", "EntryNotFound")
        for name in inside:
            del files[name]
    else:
        raise RefusedError(400, f"Unknown operation: {key}")


def regular_file(value: dict) -> File:
    content = decode(value["content"]) if value.get("encoding") == "base64" else value["content"].encode()
    if len(content) > MAX_REGULAR or is_binary(content[:512]):
        raise RefusedError(400, f"{value['path']} is binary or larger than 10 MiB: it must be sent through LFS")
    return File(content, False)


def decode(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise RefusedError(400, f"Not base64: {error}") from error
