"""What the Hub says about the repositories it holds."""

from urllib.parse import parse_qs

from .cards import card_data
from .store import ORGANISATION, POINTER_SIZE, USER, Commit, File, RefusedError, Repo


def models(call):
    """The models that the asker may see, by tag and by author."""
    found = []
    for repo in call.store.repos.values():
        owner = repo.id.split("/")[0]
        if repo.private and (call.role is None or owner not in (USER, ORGANISATION)):
            continue
        shown = describe(repo, repo.branches["main"])
        wanted = set(call.query.get("filter", []))
        if wanted <= set(shown["tags"]) and owner in call.query.get("author", [owner]):
            found.append(shown)
    return found


def model(call):
    shown = describe(call.repo, call.at)
    if call.query.get("blobs", [""])[0].lower() in ("true", "1"):
        shown["siblings"] = [blob(path, file) for path, file in sorted(call.at.files.items())]
    return shown


def describe(repo: Repo, commit: Commit) -> dict:
    readme = commit.files.get("README.md")
    card = card_data(readme.content[:100_000].decode(errors="replace")) if readme else {}
    tags = [tag for tag in card.get("tags") or [] if isinstance(tag, str)]
    tags += [card[key] for key in ("library_name", "pipeline_tag") if isinstance(card.get(key), str)]
    if isinstance(card.get("license"), str):
        tags.append(f"license:{card['license']}")
    return {
        "id": repo.id, "modelId": repo.id, "author": repo.id.split("/")[0], "sha": commit.oid, "private": repo.private,
        "gated": False, "disabled": False, "downloads": 0, "likes": 0, "tags": list(dict.fromkeys(tags)),
        "lastModified": commit.date, "createdAt": commit.history()[-1].date, "cardData": card,
        "library_name": card.get("library_name"), "pipeline_tag": card.get("pipeline_tag"),
        "model-index": card.get("model-index"), "siblings": [{"rfilename": path} for path in sorted(commit.files)],
    }  # fmt: skip


def blob(path: str, file: File) -> dict:
    shown = {"rfilename": path, "size": file.size, "blobId": file.git_oid}
    if file.lfs:
        shown["lfs"] = {"sha256": file.sha256, "size": file.size, "pointerSize": POINTER_SIZE}
    return shown


def entry(path: str, file: File) -> dict:
    shown = {"type": "file", "path": path, "size": file.size, "oid": file.git_oid}
    if file.lfs:
        shown["lfs"] = {"oid": file.sha256, "size": file.size, "pointerSize": POINTER_SIZE}
    return shown


def folders(commit: Commit) -> list[str]:
    return sorted({"/".join(parts[:n]) for parts in map(split, commit.files) for n in range(1, len(parts))})


def split(path: str) -> list[str]:
    return path.split("/")


def tree(call):
    """Files and folders below a path, all the way down or one step."""
    commit, top = call.at, call.values.get("path", "")
    if top and top not in folders(commit):
        raise RefusedError(404, "Entry not found", "EntryNotFound")
    start = f"{top}/" if top else ""
    shown = [folder(path) for path in folders(commit)] + [entry(*item) for item in sorted(commit.files.items())]
    shown = [each for each in shown if each["path"].startswith(start)]
    if call.query.get("recursive", [""])[0].lower() in ("true", "1"):
        return shown
    return [each for each in shown if "/" not in each["path"].removeprefix(start)]


def folder(path: str) -> dict:
    return {"type": "directory", "path": path, "size": 0, "oid": "0" * 40}


def paths_info(call):
    """Of each path that exists; it is asked for by a form."""
    asked = parse_qs(call.body.decode()).get("paths") or call.json().get("paths", [])
    files = [entry(path, call.at.files[path]) for path in asked if path in call.at.files]
    return files + [folder(path) for path in folders(call.at) if path in asked]


def refs(call):
    def show(kind, heads):
        return [{"name": name, "ref": f"refs/{kind}/{name}", "targetCommit": c.oid} for name, c in heads.items()]

    shown = {"branches": show("heads", call.repo.branches), "tags": show("tags", call.repo.tags), "converts": []}
    return shown | ({"pullRequests": []} if "include_prs" in call.query else {})


def commits(call):
    return [
        {"id": c.oid, "title": c.title, "message": c.message, "date": c.date, "authors": [{"user": USER}]}
        for c in call.at.history()
    ]
