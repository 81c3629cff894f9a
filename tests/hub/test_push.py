"""Finished runs go to the Hub and come back: what is pushed, who can read it, and what loads it."""

import hashlib
import json
import logging
import os
import re

import numpy as np
import pytest
from support.local_hub import READER, ask, run_client
from support.pushing import PUSHED, contents, copy_run, finished_run, logits
from support.stamped import edit_json
from transformers import AutoModelForImageClassification

from hf_cyclical import PruningError
from hf_cyclical.cli import parse_arguments
from hf_cyclical.hub import build_folder, create_repository, push

SECRET = "hf_PlantedSecretOfTheTests0123456789"  # noqa: S105


@pytest.fixture
def copied(run, tmp_path):
    """A run of one's own, to do something to."""
    return copy_run(run, tmp_path)


def load_with_both(name, timm_too):
    """In a client that has nothing of ours."""
    import sys

    import timm
    import torch
    from transformers import AutoModelForImageClassification

    pixels = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(7))
    with torch.no_grad():
        found = [AutoModelForImageClassification.from_pretrained(name).eval()(pixels).logits.tolist()]
        if timm_too:
            found.append(timm.create_model(f"hf-hub:{name}", pretrained=True).eval()(pixels).tolist())
    assert not any(module.startswith("hf_cyclical") for module in sys.modules)
    return found


class TestPush:
    def test_both_libraries_load_what_was_pushed_and_a_second_push_changes_nothing(self, hub, clients, run):
        before = contents(run)
        code, out, err = clients.push(run, "user/model", "--packed")
        assert code == 0, err
        assert out == f"Pushed to {hub.url}/user/model\n"
        assert sorted(hub.files("user/model")) == sorted(hub.files("user/model", "packed")) == PUSHED
        repo = hub.store.repos["user/model"]
        assert repo.private
        assert [commit.title for commit in repo.at("main").history()] == ["Push with hf_cyclical", "initial commit"]
        assert repo.at("packed").parent is repo.at("main")
        for found in ask(hub, load_with_both, "user/model", True):
            expected = logits(AutoModelForImageClassification.from_pretrained(run))
            assert np.allclose(found, expected, atol=1e-6)

        code, _, err = clients.push(run, "user/model", "--packed")
        assert (code, len(hub.asked("POST", "/commit/"))) == (0, 2), err
        assert contents(run) == before

    def test_a_model_of_transformers(self, hub, clients):
        run = finished_run("transformers")
        code, _, err = clients.push(run, "org/model")
        assert code == 0, err
        assert sorted(hub.files("org/model")) == sorted([*PUSHED, "preprocessor_config.json"])
        assert list(hub.store.repos["org/model"].branches) == ["main"]
        assert not hub.received(b"somebody")  # of the model's path, which the report has
        expected = logits(AutoModelForImageClassification.from_pretrained(run))
        assert np.allclose(ask(hub, load_with_both, "org/model", False), [expected], atol=1e-6)

    def test_the_card_is_accepted_and_says_where_the_model_is(self, hub, clients, run):
        def card():
            from huggingface_hub import HfApi, ModelCard

            info = HfApi().model_info("user/model")
            return info.tags, ModelCard.load("user/model").content

        assert clients.push(run, "user/model", "--license", "apache-2.0")[0] == 0
        tags, text = ask(hub, card)
        assert {"timm", "pruned", "license:apache-2.0"} <= set(tags)
        assert "hf-hub:user/model" in text
        assert hub.asked("POST", "/api/validate-yaml")

    def test_the_packed_branch_loads_with_hf_cyclical_and_stops_others(self, hub, clients, run):
        def load():
            import sys

            sys.path.insert(0, "tests")
            from support.pushing import logits
            from transformers import AutoModelForImageClassification

            return logits(AutoModelForImageClassification.from_pretrained("user/model", revision="packed"))

        def load_without():
            from transformers import AutoModelForImageClassification

            AutoModelForImageClassification.from_pretrained("user/model", revision="packed")

        assert clients.push(run, "user/model", "--packed")[0] == 0
        main, packed = hub.files("user/model"), hub.files("user/model", "packed")
        for layout, files in (("dense", main), ("packed", packed)):
            weights = json.loads(files["sparsity.json"])["weights"]
            content = files["model.safetensors"]
            assert (weights["layout"], weights["bytes"]) == (layout, len(content))
            assert weights["sha256"] == hashlib.sha256(content).hexdigest()
            assert json.loads(files["config.json"])["hf_cyclical"]["layout"] == layout
        assert len(packed["model.safetensors"]) < len(main["model.safetensors"]) / 5
        expected = logits(AutoModelForImageClassification.from_pretrained(run))
        assert np.allclose(clients.ask(load), expected, atol=1e-6)
        code, _, err = run_client(hub, load_without)
        assert (code, "ignore_mismatched_sizes" in err) == (1, True)

    def test_a_stranger_can_verify_both_branches(self, clients, run):
        def check():
            import hf_cyclical

            return [hf_cyclical.verify("user/model", revision).differences for revision in (None, "packed")]

        assert clients.push(run, "user/model", "--packed")[0] == 0
        assert clients.ask(check) == [[], []]

    def test_a_packed_branch_of_an_earlier_model_is_not_left_behind(self, hub, clients, run):
        hub.put("user/model", {"config.json": b"{}"}, private=True)
        hub.put("user/model", {"config.json": b"[]"}, revision="packed", private=True)
        code, _, err = clients.push(run, "user/model")
        assert (code, err.count("error: ")) == (2, 1)
        assert "'user/model' has a branch packed, which would be of another model: add --packed (packed=True)" in err
        assert f"to try again: hf-cyclical push {run} user/model\n" in err
        assert not hub.asked("PUT", "/lfs/")
        assert not hub.asked("POST", "/commit/")
        code, _, err = clients.push(run, "user/model", "--packed")
        assert code == 0, err
        assert sorted(hub.files("user/model", "packed")) == PUSHED
        del hub.store.repos["user/model"].branches["packed"]
        code, _, err = clients.push(run, "user/model")
        assert code == 0, err

    def test_what_an_earlier_push_left_goes_and_what_others_put_there_stays(self, hub, clients, run):
        hub.put("user/model", {"preprocessor_config.json": b"{}", "LICENSE": b"mine"}, private=True)
        assert clients.push(run, "user/model")[0] == 0
        assert sorted(hub.files("user/model")) == sorted(["LICENSE", *PUSHED])
        assert len(hub.asked("POST", "/commit/")) == 1


class TestVisibility:
    def test_private_unless_told(self, hub, clients, run):
        def read():
            from huggingface_hub import hf_hub_download
            from huggingface_hub.errors import RepositoryNotFoundError

            try:
                hf_hub_download("user/model", "config.json")
            except RepositoryNotFoundError:
                return False
            return True

        assert clients.push(run, "user/model")[0] == 0
        assert (ask(hub, read, token=None), ask(hub, read, token=READER)) == (False, True)
        hub.reset()
        assert clients.push(run, "user/model", "--hub_public")[0] == 0
        assert not hub.store.repos["user/model"].private
        assert ask(hub, read, token=None)

    def test_a_public_repository_is_not_pushed_to_unless_told(self, hub, clients, run):
        hub.put("user/model", {"a.txt": b"1"})
        code, _, err = clients.push(run, "user/model")
        assert (code, err.count("error: ")) == (2, 1)
        assert "'user/model' is public" in err
        assert hub.files("user/model") == {"a.txt": b"1"}
        assert clients.push(run, "user/model", "--hub_public")[0] == 0
        assert not hub.store.repos["user/model"].private

    def test_a_private_repository_stays_private(self, hub, clients, run):
        hub.put("user/model", {}, private=True)
        code, _, err = clients.push(run, "user/model", "--hub_public")
        assert (code, "user/model is private and stays so" in err) == (0, True)
        assert hub.store.repos["user/model"].private
        assert sorted(hub.files("user/model")) == PUSHED


class TestSecrets:
    def test_nothing_else_in_the_folder_gets_out(self, hub, clients, copied, tmp_path_factory):
        outside = tmp_path_factory.mktemp("outside") / "secret"
        outside.write_text(SECRET)
        (copied / ".env").write_text(SECRET)
        (copied / "training_args.bin").write_text(SECRET)
        (copied / "link.json").symlink_to(outside)
        (copied / "checkpoint-5").mkdir()
        (copied / "checkpoint-5" / "optimizer.pt").write_text(SECRET)
        (copied / "README.md").write_text(SECRET)
        (copied / "notes.txt").write_text(SECRET)
        code, out, err = clients.push(copied, "user/model", "--packed", env={"AWS_SECRET": SECRET})
        assert code == 0, err
        assert sorted(hub.files("user/model")) == sorted(hub.files("user/model", "packed")) == PUSHED
        assert not hub.received(SECRET.encode())
        assert not hub.received(b"hf_writer")
        assert "hf_writer" not in out + err
        assert not hub.received(b"somebody")  # of a path on this machine

    @pytest.mark.parametrize("name", ["model.safetensors", "config.json", "pruning_report.json", "pruning_run.png"])
    def test_a_link_is_refused(self, name, copied, tmp_path_factory):
        target = tmp_path_factory.mktemp("outside") / name
        os.replace(copied / name, target)
        (copied / name).symlink_to(target)
        with pytest.raises(PruningError, match=f"^{name} in .* is a link"):
            build_folder(copied, copied / "built", repo_id="user/model")

    @pytest.mark.parametrize("token", [SECRET, "hf_short"])
    def test_a_token_in_a_file_stops_the_push(self, token, copied, monkeypatch):
        monkeypatch.setenv("HF_TOKEN", "hf_short")
        report = json.loads((copied / "pruning_report.json").read_text())
        report["about"]["command"] += f" --hub_token {token}"
        (copied / "pruning_report.json").write_text(json.dumps(report))
        with pytest.raises(PruningError, match="holds a token") as raised:
            build_folder(copied, copied / "built", repo_id="user/model")
        assert token not in str(raised.value)

    @pytest.mark.parametrize("option", ["--hub_token", "--token", "--hub-token"])
    @pytest.mark.parametrize("equals", [False, True])
    def test_no_script_takes_a_token(self, option, equals, copied, capsys):
        words = [f"{option}={SECRET}"] if equals else [option, SECRET]
        with pytest.raises(SystemExit) as exit_:
            parse_arguments([*words, "--output_dir", str(copied / "out")], description="")
        assert exit_.value.code == 2
        _, err = capsys.readouterr()
        assert (err.count("error: "), SECRET in err) == (1, False)
        assert option == "--token" or "hf auth login" in err


class TestRefusals:
    @pytest.mark.parametrize("name", ["model.safetensors", "config.json", "pruning_report.json"])
    def test_a_run_that_is_not_whole(self, name, copied):
        (copied / name).unlink()
        with pytest.raises(PruningError, match=f"there is no {name} in"):
            build_folder(copied, copied / "built", repo_id="user/model")

    def test_weights_in_several_files_or_packed(self, run, copied, tmp_path_factory):
        built = build_folder(run, tmp_path_factory.mktemp("built"), repo_id="user/model", packed=True)
        with pytest.raises(PruningError, match="are packed: unpack them"):
            build_folder(built["packed"], copied / "again", repo_id="user/model")
        (copied / "model.safetensors.index.json").write_text("{}")
        with pytest.raises(PruningError, match="in several files"):
            build_folder(copied, copied / "built", repo_id="user/model")

    @pytest.mark.parametrize("text", ["{", "[]", "{}", '{"schema": 1}', "\udcff"])
    def test_a_report_that_is_none(self, text, copied):
        (copied / "pruning_report.json").write_bytes(text.encode(errors="surrogateescape"))
        with pytest.raises(PruningError, match="report"):
            build_folder(copied, copied / "built", repo_id="user/model")

    @pytest.mark.parametrize(
        ("part", "value", "words"),
        [
            ("about", [], "not a complete report, see its about"),
            ("about", {"model": 5}, "see its about model"),
            ("about", {"command": ["prune.py"]}, "see its about command"),
            ("about", {"versions": ["torch"]}, "see its about versions"),
            ("config", {}, "has the method None, which is unknown here: upgrade"),
            ("config", {"method": "magic"}, "has the method 'magic'"),
            ("config", {"method": ["cyclical"]}, "has the method ['cyclical']"),
            ("config", "cyclical", "see its config"),
            ("dense", [0.5], "see its dense"),
            ("dense", {"accuracy": "good"}, "see its dense"),
            ("cycles", [{"cycle": 1}], "not a complete report: take another copy"),
            ("layers", None, "not a complete report: take another copy"),
            ("layers", [], "has not ended: finish it first"),
            ("layers", [dict.fromkeys(("name", "shape", "weights", "kept", "regrown"), 1)], "see its layers"),
            ("evaluations", [{"accuracy": 0.5}], "see its evaluations"),
            ("masks", [[]], "see its masks"),
            ("masks", [0], "see its masks"),
            ("updates", "many", "see its updates"),
            ("parameters", None, "see its parameters"),
        ],
    )
    def test_a_report_that_lacks_something(self, part, value, words, copied):
        edit_json(copied / "pruning_report.json", lambda report: report.update({part: value}))
        with pytest.raises(PruningError, match=f"^pruning_report.json in '.*' .*{re.escape(words)}"):
            build_folder(copied, copied / "built", repo_id="user/model")

    @pytest.mark.parametrize("part", ["config", "layers", "cycles", "updates", "parameters", "dense_updates"])
    def test_a_report_without_a_part(self, part, copied):
        edit_json(copied / "pruning_report.json", lambda report: report.pop(part))
        with pytest.raises(PruningError, match=r"is not a complete report: take another copy$"):
            build_folder(copied, copied / "built", repo_id="user/model")

    @pytest.mark.parametrize("name", ["a/b/c", "user/", "us er/model", "user/mo--del", "End of training"])
    def test_names_that_are_none(self, name, run):
        with pytest.raises(PruningError, match=r"give user/name$"):
            push(run, name)

    def test_no_folder(self, tmp_path):
        with pytest.raises(PruningError, match="there is no folder"):
            push(tmp_path / "none", "user/model")

    def test_an_address_that_is_not_encrypted_is_warned_of(self, monkeypatch, caplog):
        monkeypatch.setattr("hf_cyclical.hub.upload.get_token", lambda: None)
        for address, warned in [("http://hub.example", True), ("http://127.0.0.1:1", False), ("https://x.y", False)]:
            monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
            caplog.clear()
            with caplog.at_level(logging.WARNING), pytest.raises(PruningError, match="hf auth login"):
                create_repository("user/model")
            assert ("is not encrypted" in caplog.text) == warned
