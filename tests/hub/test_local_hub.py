"""The Hub that the other tests talk to: the real clients get along with it, and what reached it can be looked at."""

import hashlib
import json

from support.local_hub import WRITER, Huge, LocalHub, ask, client_environment, run_client
from support.local_hub.raw import commit, regular, send, upload_address
from support.local_hub.samples import CARD, WEIGHTS, push_folder


class TestClients:
    def test_a_folder_goes_up_once_and_comes_down(self, hub, folder):
        def twice_up_and_down(folder):
            from pathlib import Path

            from huggingface_hub import HfApi

            api = HfApi()
            assert api.whoami()["name"] == "user"
            assert api.create_repo("user/model", private=True).repo_id == "user/model"
            first = api.upload_folder(repo_id="user/model", folder_path=folder, commit_message="Up")
            again = api.upload_folder(repo_id="user/model", folder_path=folder)
            info = api.model_info("user/model", files_metadata=True)
            assert first.oid == again.oid == info.sha
            assert [c.title for c in api.list_repo_commits("user/model")] == ["Up", "initial commit"]
            assert info.private
            assert info.card_data.base_model == "timm/resnet18.a1_in1k"
            assert {"pruned", "timm", "license:apache-2.0"} <= set(info.tags)
            assert [m.id for m in api.list_models(filter="pruned", author="user")] == ["user/model"]
            assert not list(api.list_models(filter="dense"))
            down = Path(api.snapshot_download("user/model"))
            files = [path for path in Path(folder).rglob("*") if path.is_file()]
            assert all((down / f.relative_to(folder)).read_bytes() == f.read_bytes() for f in files)
            return {s.rfilename: [s.size, s.lfs and s.lfs.sha256] for s in info.siblings}

        siblings = ask(hub, twice_up_and_down, folder)
        names = ["README.md", "config.json", "model.safetensors", "plots/figure.svg"]
        assert sorted(siblings) == [".gitattributes", *names]
        assert siblings["model.safetensors"] == [len(WEIGHTS), hashlib.sha256(WEIGHTS).hexdigest()]
        assert siblings["config.json"] == [2, None]
        assert hub.files("user/model") == {name: (folder / name).read_bytes() for name in names}
        assert len(hub.asked("PUT", "/lfs/")) == len(hub.asked("POST", "/commit/")) == 1

    def test_branches_and_tags(self, hub):
        def branches():
            from pathlib import Path

            from huggingface_hub import HfApi, hf_hub_download

            api = HfApi()
            where = {"repo_id": "user/model"}
            first = api.model_info(**where).sha
            api.create_tag(tag="v1", **where)
            api.create_branch(branch="packed/small", **where)
            api.create_branch(branch="packed/small", exist_ok=True, **where)
            api.upload_file(path_or_fileobj=b"[1]", path_in_repo="config.json", revision="packed/small", **where)
            api.upload_file(path_or_fileobj=b"[2]", path_in_repo="config.json", parent_commit=first, **where)
            refs = api.list_repo_refs(**where)
            assert {b.name for b in refs.branches} == {"main", "packed/small"}
            assert {t.name: t.target_commit for t in refs.tags} == {"v1": first}
            read = [
                Path(hf_hub_download(filename="config.json", revision=r, **where)).read_text()
                for r in ("v1", "packed/small", "main", first)
            ]
            api.delete_tag(tag="v1", **where)
            api.delete_branch(branch="packed/small", **where)
            return read, [b.name for b in api.list_repo_refs(**where).branches]

        hub.put("user/model", {"config.json": b"{}"})
        assert ask(hub, branches) == [["{}", "[1]", "[2]", "{}"], ["main"]]

    def test_listings_and_deletions(self, hub):
        def listings():
            from huggingface_hub import HfApi

            api = HfApi()
            where = {"repo_id": "user/model"}
            assert {e.path for e in api.list_repo_tree(**where)} >= {"plots", "config.json"}
            assert [e.path for e in api.list_repo_tree(path_in_repo="plots", **where)] == ["plots/figure.svg"]
            assert [e.path for e in api.get_paths_info(paths=["plots", "none"], **where)] == ["plots"]
            assert api.get_paths_info(paths="model.safetensors", **where)[0].lfs.size == 512000
            assert api.file_exists(filename="config.json", **where)
            assert not api.file_exists(filename="none.json", **where)
            api.delete_file("config.json", **where)
            api.delete_folder("plots", **where)
            api.update_repo_settings(private=True, **where)
            assert api.model_info(**where).private
            left = api.list_repo_files(**where)
            api.delete_repo(**where)
            assert not api.repo_exists(**where)
            return left

        hub.put("user/model", {"config.json": b"{}", "plots/figure.svg": b"<svg/>", "model.safetensors": WEIGHTS})
        assert ask(hub, listings) == [".gitattributes", "model.safetensors"]

    def test_a_card_is_loaded_and_pushed(self, hub):
        def cards():
            from huggingface_hub import ModelCard, metadata_update

            card = ModelCard.load("user/model")
            assert card.data.eval_results[0].metric_value == 0.5
            card.data.tags.append("more")
            card.push_to_hub("user/model")
            metadata_update("user/model", {"license": "mit"}, overwrite=True)
            return ModelCard.load("user/model").data.to_dict()

        hub.put("user/model", {"README.md": CARD.encode()})
        data = ask(hub, cards)
        assert data["tags"] == ["pruned", "sparsity-90", "more"]
        assert data["license"] == "mit"
        assert b"- more" in hub.files("user/model")["README.md"]

    def test_transformers_pushes_and_loads(self, hub):
        def round_trip():
            import torch
            from huggingface_hub import get_safetensors_metadata
            from transformers import AutoModelForImageClassification, ResNetConfig, ResNetForImageClassification

            config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 8], depths=[1, 1], layer_type="basic")
            model = ResNetForImageClassification(config).eval()
            model.push_to_hub("user/model", private=True)
            again = AutoModelForImageClassification.from_pretrained("user/model").eval()
            pixels = torch.randn(1, 3, 32, 32)
            assert torch.allclose(model(pixels).logits, again(pixels).logits, atol=1e-6)
            metadata = get_safetensors_metadata("user/model").files_metadata["model.safetensors"]
            return sorted(metadata.tensors) == sorted(model.state_dict())

        assert ask(hub, round_trip)
        assert {"README.md", "config.json", "model.safetensors"} <= set(hub.files("user/model"))
        ranges = [r.headers["range"] for r in hub.requests if "range" in r.headers and r.status == 206]
        assert "bytes=0-100000" in ranges

    def test_what_timm_pushes_is_loaded_by_timm_and_by_us(self, hub):
        def round_trip():
            import timm
            import torch

            from hf_cyclical import load
            from hf_cyclical.models import load_image_model

            model = timm.create_model("test_resnet", num_classes=3).eval()
            timm.models.push_to_hf_hub(model, "user/model", private=True, safe_serialization=True)
            pixels = torch.randn(1, 3, 64, 64)
            again = timm.create_model("hf-hub:user/model", pretrained=True).eval()
            trainable = load_image_model("user/model", ["a", "b", "c"]).model.eval()
            outputs = (again(pixels), load("user/model")(pixels), trainable(pixels).logits)
            return [torch.allclose(model(pixels), output, atol=1e-6) for output in outputs]

        assert ask(hub, round_trip) == [True] * 3
        assert sorted(hub.files("user/model")) == ["README.md", "config.json", "model.safetensors"]

    def test_an_interpreter_with_nothing_imported_is_a_client_too(self, hub):
        code = "import sys; assert 'torch' not in sys.modules\nfrom huggingface_hub import whoami; print(whoami())"
        code, out, err = run_client(hub, code, fork=False)
        assert (code, "'name': 'user'" in out) == (0, True), err

    def test_a_client_knows_nothing_of_the_developers_login(self, hub, monkeypatch):
        monkeypatch.setenv("HF_TOKEN", "hf_of_the_developer")
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        assert "hf_of_the_developer" not in client_environment(hub, None).values()
        code, _, err = run_client(hub, "from huggingface_hub import whoami; whoami()", token=None)
        assert (code, "LocalTokenNotFoundError" in err) == (1, True)
        code, out, _ = run_client(hub, "import os, sys; print(os.environ['A']); sys.exit(3)", env={"A": "b"})
        assert (code, out) == (3, "b\n")

    def test_a_client_that_hangs_is_ended(self, hub):
        code, _, err = run_client(hub, "import time; time.sleep(3600)", timeout=0.5)
        assert code == 1
        assert "Timeout" in err


class TestRecord:
    SECRET = b"hf_planted_secret"

    def test_a_secret_is_found_however_it_is_sent(self, hub):
        hub.put("user/model", {})
        send(hub, "GET", "/api/whoami-v2")
        assert not hub.received(WRITER.encode())  # its own header does not count
        assert not hub.received(self.SECRET)
        secret = b"\n..." + self.SECRET + b"..."
        for attempt in [
            lambda: commit(hub, regular("a.txt", secret)),
            lambda: commit(hub, description=secret.decode()),
            lambda: send(hub, "PUT", "/lfs/user/model/0", b"\0\xff" + secret),
            lambda: send(hub, "GET", f"/api/models?search={self.SECRET.decode()}"),
            lambda: send(hub, "GET", "/api/models", **{"User-Agent": self.SECRET.decode()}),
            lambda: send(hub, "POST", "/api/validate-yaml", {"content": secret.decode()}),
        ]:
            hub.requests.clear()
            attempt()
            assert hub.received(self.SECRET)

    def test_a_secret_in_an_uploaded_folder_is_found(self, hub, folder):
        (folder / "notes.txt").write_bytes(self.SECRET)
        ask(hub, push_folder, folder)
        assert hub.received(self.SECRET)

    def test_the_token_that_the_plain_trainer_publishes_is_found(self, hub, tmp_path):
        def train(folder, token):
            from transformers import ResNetConfig, ResNetForImageClassification, Trainer, TrainingArguments

            config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 8], depths=[1, 1], layer_type="basic")
            args = {"push_to_hub": True, "hub_model_id": "user/model", "report_to": "none", "use_cpu": True}
            args = TrainingArguments(folder, hub_token=token, **args)
            Trainer(ResNetForImageClassification(config), args).push_to_hub()

        ask(hub, train, tmp_path, WRITER)
        assert {"model.safetensors", "training_args.bin"} <= set(hub.files("user/model"))
        assert hub.received(WRITER.encode())

    def test_a_body_in_chunks_is_read_whole(self, hub):
        hub.put("user/model", {})
        pieces = iter([WEIGHTS[:1000], WEIGHTS[1000:]])
        assert send(hub, "PUT", upload_address(hub, WEIGHTS), pieces)[0] == 200
        assert hub.requests[-1].headers["transfer-encoding"] == "chunked"
        assert hub.requests[-1].body == WEIGHTS

    def test_nothing_is_left_for_the_next_test(self, hub):
        hub.put("user/model", {})
        hub.fail("GET", "/", times=None)
        assert send(hub, "GET", "/api/whoami-v2")[0] == 500
        hub.reset()
        assert send(hub, "GET", "/api/whoami-v2")[0] == 200
        assert send(hub, "GET", "/api/models/user/model")[0] == 404
        assert len(hub.requests) == 2


def test_hostile_repositories_are_stored_as_they_are():
    with LocalHub() as hub:
        hub.put("bad/model", {"../evil": b"1", "README.md": b"---\ntags: [1]\n---"})
        hub.put("bad/model", {"sparsity.json": Huge(2**30, claimed=10)})
        hub.put("bad/model", {"a.txt": b"2"}, revision="packed")
        tree = json.loads(send(hub, "GET", "/api/models/bad/model/tree/main?recursive=true")[2])
        assert {"../evil": 1, "sparsity.json": 10}.items() <= {e["path"]: e["size"] for e in tree}.items()
        assert sorted(hub.files("bad/model", "packed")) == ["../evil", "README.md", "a.txt", "sparsity.json"]
        status, headers, _ = send(hub, "HEAD", "/bad/model/resolve/main/sparsity.json")
        assert (status, headers["Content-Length"], headers["X-Linked-Size"]) == (200, str(2**30), "10")
        body = send(hub, "GET", "/bad/model/resolve/main/sparsity.json", Range="bytes=5-9")[2]
        assert body == b" " * 5
