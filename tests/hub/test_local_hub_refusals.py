"""The Hub that the other tests talk to: what it refuses, and the faults that it makes on request."""

import http.client
import json

import pytest
from support.local_hub import READER, WRITER, Huge, ask, run_client
from support.local_hub.raw import commit, large, regular, send, upload_address
from support.local_hub.samples import WEIGHTS, push_folder
from support.patience import HUNG

BAD_CARDS = {
    "number as tag": "tags: [2022]",
    "tags are no list": "tags: pruned",
    "unknown relation": "base_model_relation: pruned",
    "relation is no string": "base_model_relation: [finetune]",
    "unknown licence": "license: mine",
    "no model id": "base_model: 'a model'",
    "dataset is null": "datasets: [null]",
    "index is no list": "model-index: {name: x}",
    "index without name": "model-index: [{results: []}]",
    "results are no list": "model-index: [{name: x, results: {}}]",
    "no task": "model-index: [{name: x, results: [{dataset: {type: a, name: b}, metrics: []}]}]",
    "no dataset name": "model-index: [{name: x, results: [{task: {type: t}, dataset: {type: a}, metrics: []}]}]",
    "no value": (
        "model-index: [{name: x, results: [{task: {type: t}, dataset: {type: a, name: b}, metrics: [{type: m}]}]}]"
    ),
    "key given twice": "license: mit\nlicense: mit",
    "no YAML": "tags: [",
    "no mapping": "- a",
}


class TestRefusals:
    @pytest.mark.parametrize("name", BAD_CARDS)
    def test_a_bad_card(self, hub, name):
        hub.put("user/model", {})
        card = f"---\n{BAD_CARDS[name]}\n---\n"
        status, _, body = send(hub, "POST", "/api/validate-yaml", {"content": card, "repoType": "model"}, token=None)
        assert status == 400
        assert json.loads(body)["errors"][0]["message"]
        assert commit(hub, regular("README.md", card.encode()))[0] == 400
        assert hub.files("user/model") == {}

    def test_a_card_without_metadata_is_warned_of(self, hub):
        status, _, body = send(hub, "POST", "/api/validate-yaml", {"content": "# Title"})
        assert (status, len(json.loads(body)["warnings"])) == (200, 1)

    def test_a_bad_card_stops_the_client_before_it_uploads(self, hub, folder):
        (folder / "README.md").write_text("---\ntags: [1]\n---\n")
        code, _, err = run_client(hub, push_folder, folder)
        assert code == 1
        assert 'ValueError: Invalid metadata in README.md.\n- "tags[0]" must be a string' in err
        assert not hub.asked("PUT", "/lfs/")

    def test_objects_that_were_never_uploaded_or_are_not_what_they_say(self, hub):
        hub.put("user/model", {})
        assert commit(hub, regular("a.txt"), large("model.safetensors", WEIGHTS))[0] == 400
        assert hub.files("user/model") == {}  # all or nothing
        address = upload_address(hub, WEIGHTS)
        assert send(hub, "PUT", address, WEIGHTS[:-1] + b"x", token=None)[0] == 400
        assert send(hub, "PUT", address, WEIGHTS + b"x", token=None)[0] == 400
        assert send(hub, "PUT", address.partition("?")[0], WEIGHTS)[0] == 403
        announced = large("", WEIGHTS)[1]
        assert send(hub, "POST", "/user/model.git/info/lfs/objects/verify", announced)[0] == 404
        assert send(hub, "PUT", address, WEIGHTS, token=None)[0] == 200
        assert send(hub, "POST", "/user/model.git/info/lfs/objects/verify", announced)[0] == 200
        assert upload_address(hub, WEIGHTS) is None
        assert commit(hub, large("model.safetensors", WEIGHTS))[0] == 200
        hub.put("user/other", {})
        assert commit(hub, large("model.safetensors", WEIGHTS), repo="user/other")[0] == 400

    @pytest.mark.parametrize("content", [b"\0binary", b"a" * (10 * 2**20 + 1)], ids=["binary", "large"])
    def test_what_must_go_through_lfs(self, hub, content):
        hub.put("user/model", {})
        assert commit(hub, regular("file.txt", content))[0] == 400

    def test_a_stale_parent(self, hub):
        first = hub.put("user/model", {"a.txt": b"1"})
        second = hub.put("user/model", {"a.txt": b"2"})
        assert commit(hub, regular("a.txt"), parentCommit=first)[0] == 412
        assert hub.files("user/model") == {"a.txt": b"2"}
        assert commit(hub, regular("a.txt"), parentCommit=second[:7])[0] == 200

    @pytest.mark.parametrize(("token", "status"), [(READER, 403), (None, 401), ("hf_unknown", 401)])
    def test_a_token_that_may_not_write(self, hub, token, status):
        hub.put("user/model", {"a.txt": b"1"})
        model = "/api/models/user/model"
        for method, path in [
            ("POST", "/api/repos/create"), ("DELETE", "/api/repos/delete"), ("PUT", f"{model}/settings"),
            ("POST", f"{model}/preupload/main"), ("POST", f"{model}/commit/main"), ("POST", f"{model}/branch/b"),
            ("DELETE", f"{model}/branch/main"), ("POST", f"{model}/tag/main"), ("DELETE", f"{model}/tag/t"),
            ("POST", "/user/model.git/info/lfs/objects/batch"),
        ]:  # fmt: skip
            assert send(hub, method, path, {"name": "model"}, token)[0] == status, path
        assert hub.files("user/model") == {"a.txt": b"1"}

    def test_a_readers_token_stops_the_client(self, hub, folder):
        hub.put("user/model", {}, private=True)
        code, _, err = run_client(hub, push_folder, folder, token=READER)
        assert code == 1
        assert "403 Forbidden: You need a token with the role write" in err

    def test_a_private_repository(self, hub):
        def read():
            from huggingface_hub import hf_hub_download, model_info
            from huggingface_hub.errors import RepositoryNotFoundError

            for function in (lambda: model_info("user/model"), lambda: hf_hub_download("user/model", "a.txt")):
                try:
                    function()
                except RepositoryNotFoundError as error:
                    return error.response.status_code

        hub.put("user/model", {"a.txt": b"1"}, private=True)
        assert ask(hub, read, token=None) == 401
        assert ask(hub, read, token=READER) is None
        hub.put("other/model", {"a.txt": b"1"}, private=True)
        assert send(hub, "GET", "/other/model/resolve/main/a.txt")[0] == 404
        assert send(hub, "GET", "/api/models/other/model")[0] == 404
        assert json.loads(send(hub, "GET", "/api/models", token=None)[2]) == []

    def test_names_that_are_not_ours(self, hub):
        def create(name):
            from huggingface_hub import create_repo

            create_repo(name, exist_ok=True)

        code, _, err = run_client(hub, create, "nobody/model")
        assert code == 1
        assert 'You don\'t have the rights to create a model under the namespace "nobody"' in err
        hub.put("other/model", {})
        assert commit(hub, regular("a.txt"), repo="other/model")[0] == 403
        body = {"name": "model", "organization": "org"}
        assert [send(hub, "POST", "/api/repos/create", body)[0] for _ in range(2)] == [200, 409]
        assert send(hub, "POST", "/api/repos/create", {"name": "../model"})[0] == 400
        assert send(hub, "POST", "/api/repos/create", {"name": "model", "type": "dataset"})[0] == 400

    @pytest.mark.parametrize("path", ["../a", "/a", "a/../b", "a//b", ".", "", ".git/config", "a\\b", "a\n", 3])
    def test_paths_that_lead_elsewhere(self, hub, path):
        hub.put("user/model", {})
        assert commit(hub, regular(path))[0] == 400
        files = {"files": [{"path": path, "sample": "", "size": 1}]}
        assert send(hub, "POST", "/api/models/user/model/preupload/main", files)[0] == 400
        assert hub.files("user/model") == {}

    def test_what_is_not_there(self, hub):
        def missing():
            from huggingface_hub import hf_hub_download

            codes = []
            for repo, name, revision in [("user/none", "a", None), ("user/model", "b", None), ("user/model", "a", "c")]:
                try:
                    hf_hub_download(repo, name, revision=revision)
                except Exception as error:
                    codes.append(type(error).__name__)
            return codes

        hub.put("user/model", {"a": b"1"})
        assert ask(hub, missing) == ["RepositoryNotFoundError", "RemoteEntryNotFoundError", "RevisionNotFoundError"]
        assert send(hub, "GET", "/user/model/resolve/main/../../../etc/passwd")[0] == 404
        assert commit(hub, regular("a"), revision="none")[1]["X-Error-Code"] == "RevisionNotFound"
        assert commit(hub, ("deletedFile", {"path": "none"}))[1]["X-Error-Code"] == "EntryNotFound"
        assert send(hub, "GET", "/api/unheard-of")[0] == 404

    @pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"key": "file"}', b'{"key": "header", "value": {}}'])
    def test_a_malformed_commit(self, hub, body):
        hub.put("user/model", {})
        assert send(hub, "POST", "/api/models/user/model/commit/main", body)[0] == 400

    def test_ranges(self, hub):
        hub.put("user/model", {"a.bin": b"0123456789"})
        for asked, got in [("0-3", b"0123"), ("8-", b"89"), ("-3", b"789"), ("5-99", b"56789")]:
            status, headers, body = send(hub, "GET", "/user/model/resolve/main/a.bin", Range=f"bytes={asked}")
            assert (status, body) == (206, got)
            assert headers["Content-Range"].endswith("/10")
        assert send(hub, "GET", "/user/model/resolve/main/a.bin", Range="bytes=10-")[0] == 416
        status, headers, body = send(hub, "HEAD", "/user/model/resolve/main/a.bin")
        assert (status, headers["Content-Length"], headers["X-Linked-Size"], body) == (200, "10", "10", b"")


class TestFaults:
    def test_an_error_on_commit_and_a_second_try(self, hub, folder):
        fault = hub.fail("POST", "/commit/", status=500)
        code, _, err = run_client(hub, push_folder, folder)
        assert (code, fault.hits) == (1, 1)
        assert "500 Internal Server Error" in err
        assert hub.files("user/model") == {}
        oid = ask(hub, push_folder, folder)
        assert hub.files("user/model", oid)["model.safetensors"] == WEIGHTS
        assert len(hub.asked("PUT", "/lfs/")) == 1  # what was uploaded before stays

    def test_a_token_that_is_refused_half_way(self, hub, folder):
        hub.fail("POST", "/commit/", status=401, message="Invalid credentials in Authorization header")
        code, _, err = run_client(hub, push_folder, folder)
        assert code == 1
        assert "401 Unauthorized" in err
        assert WRITER not in err

    def test_an_upload_that_is_cut_once_is_tried_again(self, hub, folder):
        fault = hub.drop("PUT", "/lfs/", after_bytes=100_000)
        ask(hub, push_folder, folder, impatient=True)
        cut, whole = hub.asked("PUT", "/lfs/")
        assert [cut] == fault.requests
        assert (cut.body, cut.complete, cut.status) == (WEIGHTS[:100_000], False, None)
        assert (whole.body, whole.complete, whole.status) == (WEIGHTS, True, 200)

    def test_an_upload_that_is_always_cut_fails(self, hub, folder):
        fault = hub.drop("PUT", "/lfs/", after_bytes=100_000, times=None)
        code, _, err = run_client(hub, push_folder, folder, impatient=True)
        assert (code, fault.hits) == (1, 6)
        assert "Error" in err.splitlines()[-1]
        assert not hub.asked("POST", "/commit/")

    def test_a_download_that_is_cut_goes_on_where_it_was(self, hub):
        def read():
            from pathlib import Path

            from huggingface_hub import hf_hub_download

            return len(Path(hf_hub_download("user/model", "a.bin")).read_bytes())

        hub.put("user/model", {"a.bin": Huge(12 * 2**20)})
        fault = hub.drop("GET", "/resolve/", after_bytes=11 * 2**20)
        assert (ask(hub, read, impatient=True), fault.hits) == (12 * 2**20, 1)
        assert hub.requests[-1].headers["range"] == f"bytes={10 * 2**20}-"  # it writes 10 MiB at a time

    def test_an_answer_that_is_lost(self, hub, folder):
        hub.lose_answer("POST", "/commit/")
        code, _, err = run_client(hub, push_folder, folder)
        assert (code, "RemoteProtocolError" in err or "ReadError" in err) == (1, True)
        assert hub.files("user/model")["model.safetensors"] == WEIGHTS
        ask(hub, push_folder, folder)
        assert len(hub.asked("POST", "/commit/")) == 1  # it finds nothing to change

    def test_a_gated_repository(self, hub):
        hub.put("user/model", {"a.txt": b"1"})
        hub.fail("GET|HEAD", "^/user/model", status=403, times=None, code="GatedRepo")
        code, _, err = run_client(hub, "from huggingface_hub import hf_hub_download as get; get('user/model', 'a.txt')")
        assert (code, "GatedRepoError" in err) == (1, True)

    def test_an_error_ends_the_connection(self, hub):
        connection = http.client.HTTPConnection(hub.url.removeprefix("http://"), timeout=HUNG)
        for path, body, kept in [("/api/validate-yaml", b"{}", True), ("/api/none", b"unread" * 1000, False)]:
            connection.request("POST", path, body)
            response = connection.getresponse()
            response.read()
            assert (response.headers["Connection"] != "close") == kept
        connection.close()
