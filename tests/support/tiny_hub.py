"""A Hub on this machine, just large enough to download from: the far edge of the network, and nothing nearer."""

import json
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

COMMIT = "0" * 39 + "1"


@contextmanager
def serve_models(models: dict[str, Path | str]):
    """Serve folders by Hub id; a string in place of a folder is the error code that the Hub would answer with.

    Gives the address and the list of the files that were asked for.
    """
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            path = self.path.partition("?")[0].strip("/")
            is_listing = path.startswith("api/models/")
            owner, repository, *rest = path.removeprefix("api/models/").split("/")
            folder = models.get(f"{owner}/{repository}", "RepoNotFound")
            if isinstance(folder, str):
                return self.answer(403 if folder == "GatedRepo" else 404, {"X-Error-Code": folder})
            if is_listing:
                files = sorted(folder.iterdir())
                info = {
                    "id": f"{owner}/{repository}",
                    "sha": COMMIT,
                    "siblings": [{"rfilename": f.name} for f in files],
                }
                tree = [{"type": "file", "path": f.name, "size": f.stat().st_size, "oid": COMMIT} for f in files]
                listing = json.dumps(tree if rest[0] == "tree" else info).encode()
                return self.answer(200, {"Content-Type": "application/json"}, listing)
            content = (folder / rest[-1]).read_bytes()
            if self.command == "GET":
                asked.append(rest[-1])
            return self.answer(200, {"X-Repo-Commit": COMMIT, "ETag": f'"{hash(content):x}"'}, content)

        def do_HEAD(self):
            self.do_GET()

        def answer(self, status, headers, body=b""):
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()
