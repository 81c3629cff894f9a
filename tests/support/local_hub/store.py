"""Repositories as the Hub keeps them: files in commits, commits under branches and tags. All in memory."""

import hashlib
import re
import secrets
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property

from .cards import card_errors

USER, ORGANISATION = "user", "org"
WRITER, READER = "hf_writer", "hf_reader"
ROLES = {WRITER: "write", READER: "read"}

LFS_SUFFIXES = (".bin", ".gz", ".h5", ".msgpack", ".npy", ".npz", ".onnx", ".pickle", ".pkl", ".pt", ".pth", ".safetensors", ".zip")  # fmt: skip  # noqa: E501
MAX_REGULAR = 10 * 2**20  # the Hub takes larger files through LFS only
POINTER_SIZE = 134


class RefusedError(Exception):
    """An answer other than success; `code` is what the clients look at."""

    def __init__(self, status: int, message: str, code: str = "", **fields):
        super().__init__(message)
        self.status, self.message, self.code, self.fields = status, message, code, fields


@dataclass(frozen=True)
class Huge:
    """Content too large to hold: spaces, made while they are sent. `claimed` is the size that the listings give."""

    size: int
    claimed: int | None = None

    def __len__(self):
        return self.size

    def __getitem__(self, part: slice) -> bytes:
        start, stop, _ = part.indices(self.size)
        return b" " * (stop - start)


@dataclass(frozen=True)
class File:
    content: bytes | Huge
    lfs: bool

    @property
    def size(self) -> int:
        claimed = getattr(self.content, "claimed", None)
        return len(self.content) if claimed is None else claimed

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256(_bytes(self.content)).hexdigest()

    @cached_property
    def git_oid(self) -> str:
        """Of the content, or of the pointer that git holds in its place."""
        content = _bytes(self.content)
        if self.lfs:
            content = (
                f"version https://git-lfs.github.com/spec/v1\noid sha256:{self.sha256}\nsize {self.size}\n".encode()
            )
        return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


@dataclass(frozen=True)
class Commit:
    files: dict[str, File]
    title: str
    message: str = ""
    parent: "Commit | None" = None
    oid: str = field(default_factory=lambda: secrets.token_hex(20))
    date: str = field(default_factory=lambda: datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z"))

    def history(self) -> list["Commit"]:
        commits = [self]
        while commits[-1].parent:
            commits.append(commits[-1].parent)
        return commits


@dataclass
class Repo:
    id: str
    private: bool
    branches: dict[str, Commit]
    tags: dict[str, Commit] = field(default_factory=dict)

    @classmethod
    def new(cls, repo_id: str, private: bool) -> "Repo":
        attributes = "".join(f"*{suffix} filter=lfs diff=lfs merge=lfs -text\n" for suffix in LFS_SUFFIXES)
        first = Commit({".gitattributes": File(attributes.encode(), False)}, "initial commit")
        return cls(repo_id, private, {"main": first})

    def at(self, revision: str) -> Commit:
        if commit := self.branches.get(revision) or self.tags.get(revision):
            return commit
        for head in [*self.branches.values(), *self.tags.values()]:
            for commit in head.history():
                if commit.oid == revision:
                    return commit
        raise RefusedError(404, f"Invalid rev id: {revision}", "RevisionNotFound")

    def branch(self, name: str) -> Commit:
        if name not in self.branches:
            raise RefusedError(404, f"Invalid rev id: {name}", "RevisionNotFound")
        return self.branches[name]

    def commit(self, branch: str, files: dict[str, File], title: str, message: str = "") -> Commit:
        """Make `files` the whole content of a branch."""
        readme = files.get("README.md")
        if readme and readme != self.branch(branch).files.get("README.md"):
            errors = card_errors(_bytes(readme.content).decode(errors="replace"))
            if errors:
                raise RefusedError(
                    400, "Your push was rejected during YAML metadata verification: " + "; ".join(errors)
                )
        self.branches[branch] = Commit(files, title, message, self.branch(branch))
        return self.branches[branch]


class Store:
    """Every repository, and the LFS objects that were uploaded to each."""

    def __init__(self):
        self.repos: dict[str, Repo] = {}
        self.lfs: dict[str, dict[str, bytes]] = {}
        self.announced: dict[str, dict[str, int]] = {}

    def create(self, repo_id: str, private: bool) -> Repo:
        check_name(repo_id)
        self.repos[repo_id] = Repo.new(repo_id, private)
        self.lfs[repo_id], self.announced[repo_id] = {}, {}
        return self.repos[repo_id]

    def delete(self, repo_id: str) -> None:
        for table in (self.repos, self.lfs, self.announced):
            del table[repo_id]

    def put(self, repo_id: str, files: dict[str, bytes | Huge], revision: str, private: bool) -> str:
        """Store files as they are: unlike a commit, this checks nothing."""
        repo = self.repos.get(repo_id) or self.create(repo_id, private)
        repo.private = private
        head = repo.branches.get(revision) or repo.branches["main"]
        added = {path: File(content, goes_to_lfs(path, content[:512], len(content))) for path, content in files.items()}
        repo.branches[revision] = Commit(head.files | added, "put", "", head)
        return repo.branches[revision].oid


def goes_to_lfs(path: str, sample: bytes, size: int) -> bool:
    return size > 0 and (path.endswith(LFS_SUFFIXES) or size > MAX_REGULAR or is_binary(sample))


def is_binary(sample: bytes) -> bool:
    return b"\0" in sample or any(byte < 7 for byte in sample)


def check_name(repo_id: str) -> None:
    if not re.fullmatch(r"[\w.-]{1,96}/[\w.-]{1,96}", repo_id, re.ASCII) or "--" in repo_id or ".." in repo_id:
        raise RefusedError(400, f"Invalid repo name: {repo_id}")


def check_path(path: object) -> str:
    parts = path.split("/") if isinstance(path, str) else [""]
    if "\\" in str(path) or any(part in ("", ".", "..", ".git") for part in parts) or not str(path).isprintable():
        raise RefusedError(400, f"Invalid path in repo: {path!r}")
    return str(path)


def _bytes(content: bytes | Huge) -> bytes:
    """What stands for the content in a hash."""
    return repr(content).encode() if isinstance(content, Huge) else content
