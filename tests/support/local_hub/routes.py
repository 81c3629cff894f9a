"""What the Hub answers: a function for each request, and the table that finds it."""

import hashlib
import hmac
import json
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import unquote

from . import commits, views
from .cards import card_errors, card_warnings
from .store import ORGANISATION, USER, RefusedError, Repo, Store

SECRET = secrets.token_bytes(16)  # signs the addresses that objects are uploaded to, as they are used without a token


@dataclass
class Call:
    """A request, its place in the table behind it."""

    store: Store
    method: str
    path: str
    query: dict[str, list[str]]
    body: bytes
    role: str | None
    address: str
    range: str | None = None
    values: dict[str, str] = field(default_factory=dict)

    @property
    def repo(self) -> Repo:
        return self.store.repos[self.values["repo"]]

    @property
    def at(self):
        return self.repo.at(self.values.get("revision", "main"))

    def json(self) -> dict:
        try:
            data = json.loads(self.body or b"{}")
        except ValueError:
            data = None
        if not isinstance(data, dict):
            raise RefusedError(400, "The body must be a JSON object")
        return data


@dataclass
class Answer:
    body: object = field(default_factory=dict)  # bytes are sent as they are, anything else as JSON
    headers: dict[str, str] = field(default_factory=dict)
    status: int = 200


def whoami(call):
    if call.role is None:
        raise RefusedError(401, "Invalid username or password.")
    token = {"displayName": "test", "role": call.role}
    return {
        "type": "user", "id": "1", "name": USER, "fullname": USER, "isPro": False,
        "orgs": [{"type": "org", "id": "2", "name": ORGANISATION, "roleInOrg": "write"}],
        "auth": {"type": "access_token", "accessToken": token},
    }  # fmt: skip


def create_repo(call):
    asked = call.json()
    if asked.get("type", "model") != "model":
        raise RefusedError(400, "This Hub holds models only")
    repo_id = f"{asked.get('organization') or USER}/{asked.get('name')}"
    check_rights(call, repo_id, f'create a model under the namespace "{repo_id.split("/")[0]}"')
    url = f"{call.address}/{repo_id}"
    if repo_id in call.store.repos:
        raise RefusedError(409, "You already created this model repo", url=url)
    private = asked.get("visibility") == "private" or asked.get("private") is True
    call.store.create(repo_id, private)
    return {"url": url, "name": repo_id, "id": "3", "private": private}


def delete_repo(call):
    asked = call.json()
    repo_id = f"{asked.get('organization') or USER}/{asked.get('name')}"
    find_repo(call, repo_id)
    check_rights(call, repo_id, "delete this repo")
    call.store.delete(repo_id)


def change_settings(call):
    asked = call.json()
    call.repo.private = asked.get("visibility", "private" if call.repo.private else "public") == "private"
    return {"private": call.repo.private}


def validate_yaml(call):
    content = call.json().get("content", "")
    errors = [{"message": message} for message in card_errors(content)]
    warnings = [{"message": message} for message in card_warnings(content)]
    return Answer({"errors": errors, "warnings": warnings}, status=400 if errors else 200)


def preupload(call):
    head = call.repo.branch(call.values["revision"])
    asked = call.json()
    ignored = commits.ignore_rule(asked.get("gitIgnore", ""))
    return {"files": [commits.upload_mode(file, head, ignored) for file in asked["files"]]}


def commit(call):
    if "create_pr" in call.query:
        raise RefusedError(400, "This Hub takes no pull requests")
    made = commits.commit(call.store, call.repo, call.values["revision"], call.body)
    return {"success": True, "commitOid": made.oid, "commitUrl": f"{call.address}/{call.repo.id}/commit/{made.oid}"}


def create_branch(call):
    name = call.values["name"]
    if name.startswith("refs/"):
        raise RefusedError(400, f"Invalid reference for a branch: {name}")
    if name in call.repo.branches:
        raise RefusedError(409, f"Reference already exists: {name}")
    call.repo.branches[name] = call.repo.at(call.json().get("startingPoint", "main"))


def delete_branch(call):
    if call.values["name"] == "main":
        raise RefusedError(403, "The main branch cannot be deleted")
    call.repo.branch(call.values["name"])
    del call.repo.branches[call.values["name"]]


def create_tag(call):
    name = call.json()["tag"]
    if name in call.repo.tags:
        raise RefusedError(409, f"Tag already exists: {name}")
    call.repo.tags[name] = call.at


def delete_tag(call):
    if call.repo.tags.pop(call.values["revision"], None) is None:
        raise RefusedError(404, "No such tag", "RevisionNotFound")


def lfs_batch(call):
    held, objects = call.store.lfs[call.repo.id], []
    for asked in call.json()["objects"]:
        oid, size = asked["oid"], asked["size"]
        if not re.fullmatch(r"[0-9a-f]{64}", oid):
            raise RefusedError(422, f"Not a sha256: {oid!r}")
        objects.append({"oid": oid, "size": size})
        if oid not in held:
            call.store.announced[call.repo.id][oid] = size
            upload = f"{call.address}/lfs/{call.repo.id}/{oid}?signature={sign(call.repo.id, oid)}"
            verify = f"{call.address}/{call.repo.id}.git/info/lfs/objects/verify"
            objects[-1]["actions"] = {"upload": {"href": upload}, "verify": {"href": verify}}
    return {"transfer": "basic", "objects": objects}


def lfs_upload(call):
    repo_id, oid = call.values["any_repo"], call.values["oid"]
    if not hmac.compare_digest(call.query.get("signature", [""])[0], sign(repo_id, oid)):
        raise RefusedError(403, "The signature of the address is wrong")
    size = call.store.announced.get(repo_id, {}).get(oid)
    if size != len(call.body) or hashlib.sha256(call.body).hexdigest() != oid:
        raise RefusedError(400, "The content is not what was announced")
    call.store.lfs[repo_id][oid] = call.body


def lfs_verify(call):
    asked = call.json()
    held = call.store.lfs[call.repo.id].get(asked.get("oid"))
    if held is None or len(held) != asked.get("size"):
        raise RefusedError(404, "The object was not uploaded")


def resolve(call):
    file = call.at.files.get(call.values["path"])
    if file is None:
        raise RefusedError(404, "Entry not found", "EntryNotFound", headers={"X-Repo-Commit": call.at.oid})
    headers = {"X-Repo-Commit": call.at.oid, "Accept-Ranges": "bytes", "Content-Type": "application/octet-stream"}
    headers["ETag"] = f'"{file.sha256 if file.lfs else file.git_oid}"'
    if file.lfs:
        headers |= {"X-Linked-Etag": headers["ETag"], "X-Linked-Size": str(file.size)}
    if not call.range:
        return Answer(file.content, headers)
    start, stop = byte_range(call.range, len(file.content))
    headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(file.content)}"
    return Answer(file.content[start:stop], headers, 206)


def byte_range(text: str, size: int) -> tuple[int, int]:
    match = re.fullmatch(r"bytes=(\d*)-(\d*)", text)
    first, last = match.groups() if match else ("", "")
    if first:
        start, stop = int(first), min(int(last) + 1 if last else size, size)
    else:
        start, stop = max(0, size - int(last or 0)), size
    if start >= stop:
        raise RefusedError(416, "Range not satisfiable", headers={"Content-Range": f"bytes */{size}"})
    return start, stop


def sign(repo_id: str, oid: str) -> str:
    return hmac.new(SECRET, f"{repo_id}/{oid}".encode(), "sha256").hexdigest()


def find_repo(call: Call, repo_id: str) -> None:
    """Whoever may not see a repository is told what is said of one that does not exist."""
    repo = call.store.repos.get(repo_id)
    own = repo_id.split("/")[0] in (USER, ORGANISATION)
    if repo is None or (repo.private and (call.role is None or not own)):
        raise RefusedError(401 if call.role is None else 404, "Repository not found", "RepoNotFound")


def check_rights(call: Call, repo_id: str, action: str) -> None:
    if call.role is None:
        raise RefusedError(401, "Invalid username or password.")
    if call.role != "write":
        raise RefusedError(403, f"You need a token with the role write to {action}")
    if repo_id.split("/")[0] not in (USER, ORGANISATION):
        raise RefusedError(403, f"You don't have the rights to {action}")


MODEL = "/api/models/{repo}"
READ, WRITE = "read", "write"  # what is checked before a function that takes a repository is called
ROUTES: list[tuple[str, str, Callable, str]] = [
    ("GET", "/api/whoami-v2", whoami, READ),
    ("POST", "/api/validate-yaml", validate_yaml, READ),
    ("POST", "/api/repos/create", create_repo, WRITE),
    ("DELETE", "/api/repos/delete", delete_repo, WRITE),
    ("GET", "/api/models", views.models, READ),
    ("GET", MODEL, views.model, READ),
    ("GET", MODEL + "/revision/{revision}", views.model, READ),
    ("GET", MODEL + "/tree/{revision}", views.tree, READ),
    ("GET", MODEL + "/tree/{revision}/{path}", views.tree, READ),
    ("POST", MODEL + "/paths-info/{revision}", views.paths_info, READ),
    ("GET", MODEL + "/refs", views.refs, READ),
    ("GET", MODEL + "/commits/{revision}", views.commits, READ),
    ("PUT", MODEL + "/settings", change_settings, WRITE),
    ("POST", MODEL + "/preupload/{revision}", preupload, WRITE),
    ("POST", MODEL + "/commit/{revision}", commit, WRITE),
    ("POST", MODEL + "/branch/{name}", create_branch, WRITE),
    ("DELETE", MODEL + "/branch/{name}", delete_branch, WRITE),
    ("POST", MODEL + "/tag/{revision}", create_tag, WRITE),
    ("DELETE", MODEL + "/tag/{revision}", delete_tag, WRITE),
    ("POST", "/{repo}.git/info/lfs/objects/batch", lfs_batch, WRITE),
    ("POST", "/{repo}.git/info/lfs/objects/verify", lfs_verify, WRITE),
    ("PUT", "/lfs/{any_repo}/{oid}", lfs_upload, READ),
    ("GET", "/{repo}/resolve/{revision}/{path}", resolve, READ),
]
PARTS = {"repo": "[^/]+/[^/]+?", "any_repo": "[^/]+/[^/]+", "path": ".+"}
TABLE = [
    (
        method,
        re.compile(re.sub(r"{(\w+)}", lambda m: f"(?P<{m[1]}>{PARTS.get(m[1], '[^/]+')})", path)),
        function,
        access,
    )
    for method, path, function, access in ROUTES
]  # the dot of ".git" matches any character, which no client sends


def answer(call: Call) -> Answer:
    """The answer to a call; raises `RefusedError`."""
    method = "GET" if call.method == "HEAD" else call.method
    for wanted, pattern, function, access in TABLE:
        if wanted == method and (match := pattern.fullmatch(call.path)):
            call.values = {name: unquote(value) for name, value in match.groupdict().items()}
            if repo_id := call.values.get("repo"):
                find_repo(call, repo_id)
                if access == WRITE:
                    check_rights(call, repo_id, "write to this repo")
            try:
                result = function(call)
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                raise RefusedError(400, f"Malformed request: {error!r}") from error
            return result if isinstance(result, Answer) else Answer({} if result is None else result)
    if call.path.startswith("/api/models/") or "/resolve/" in call.path:
        raise RefusedError(401 if call.role is None else 404, "Repository not found", "RepoNotFound")
    raise RefusedError(404, f"No such route: {call.method} {call.path}")
