"""Requests without a client, for what no client would send."""

import base64
import hashlib
import http.client
import json

from support.patience import HUNG

from .store import WRITER


def send(hub, method, path, body=b"", token=WRITER, **headers):
    """One request without a client: status, headers, body."""
    if isinstance(body, dict):
        body = json.dumps(body).encode()
    connection = http.client.HTTPConnection(hub.url.removeprefix("http://"), timeout=HUNG)
    headers |= {"Authorization": f"Bearer {token}"} if token else {}
    connection.request(method, path, body, headers)
    response = connection.getresponse()
    content = response.read()
    connection.close()
    return response.status, response.headers, content


def commit(hub, *operations, repo="user/model", revision="main", token=WRITER, **header):
    lines = [{"key": "header", "value": {"summary": "test", **header}}]
    lines += [{"key": key, "value": value} for key, value in operations]
    body = b"\n".join(json.dumps(line).encode() for line in lines)
    return send(hub, "POST", f"/api/models/{repo}/commit/{revision}", body, token)


def regular(path, content=b"text"):
    return "file", {"path": path, "content": base64.b64encode(content).decode(), "encoding": "base64"}


def large(path, content):
    return "lfsFile", {"path": path, "algo": "sha256", "oid": hashlib.sha256(content).hexdigest(), "size": len(content)}


def upload_address(hub, content):
    asked = {"operation": "upload", "objects": [{"oid": hashlib.sha256(content).hexdigest(), "size": len(content)}]}
    _, _, answer = send(hub, "POST", "/user/model.git/info/lfs/objects/batch", asked)
    actions = json.loads(answer)["objects"][0].get("actions")
    return actions and actions["upload"]["href"].removeprefix(hub.url)
