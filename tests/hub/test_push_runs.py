"""Runs that push in the end: `trainer.push_to_hub` and `hf-cyclical prune --push_to_hub`."""

import json
import re
import shlex
from pathlib import Path

import pytest
from support.local_hub import WRITER
from support.pushing import PUSHED, make_trainer
from support.started import SHORT
from transformers.trainer_utils import HubStrategy

from hf_cyclical import PruningError, load_report
from hf_cyclical.cli import parse_arguments

SECRET = "hf_PlantedSecretOfTheTests0123456789"  # noqa: S105


REFUSED = {
    None: [({"repo_id": "user/model"}, "there is no token to push to 'user/model' with")],
    "hf_unknown": [
        ({"repo_id": "user/model"}, "the Hub refuses the token for 'user/model' (401)"),
        ({"repo_id": "model"}, "the Hub refuses the token for 'model' (401)"),
    ],
    WRITER: [
        ({"repo_id": "nobody/model", "private": False}, "does not let the token write to 'nobody/model'"),
        ({"repo_id": "End of training"}, "'End of training' is no name of the Hub: give user/name"),
        ({"repo_id": "user/model", "token": SECRET}, "push_to_hub takes no token"),
        ({"repo_id": "user/model", "blocking": False}, "push_to_hub with blocking=False"),
        ({"repo_id": "user/model", "revision": "dev"}, "push_to_hub with revision 'dev'"),
    ],
}  # by the token: what is asked for, and why it is refused


def train_and_push(folder, pushes):
    """The address or the error of each push of one run."""
    import sys
    import tempfile
    from pathlib import Path

    sys.path.insert(0, "tests")
    from support.pushing import make_trainer

    from hf_cyclical import PruningError

    trainer = make_trainer(folder)
    trainer.train()
    tempfile.tempdir = str(Path(folder).parent)
    said = []
    for arguments in pushes:
        try:
            said.append(trainer.push_to_hub(**arguments))
        except PruningError as error:
            said.append(str(error))
    return said


class TestTrainer:
    def test_pushes_the_finished_model_and_nothing_else(self, hub, clients, tmp_path):
        def train(folder, secret):
            import sys
            import tempfile
            from pathlib import Path

            sys.path.insert(0, "tests")
            from support.pushing import make_trainer

            trainer = make_trainer(folder)
            trainer.train()
            trainer.args.hub_token = secret  # set so late that nothing has refused it
            Path(folder).mkdir(exist_ok=True)
            Path(folder, ".env").write_text(secret)
            tempfile.tempdir = str(Path(folder).parent)
            address = trainer.push_to_hub("user/model", packed=True, license="mit", tags=["a"])
            trainer.push_to_hub(repo_id="user/model", packed=True, license="mit", commit_message="Again")
            return address, sorted(path.name for path in Path(folder).parent.iterdir())

        address, left = clients.ask(train, tmp_path / "run", SECRET)
        assert address == f"{hub.url}/user/model"
        assert left == ["run"]
        assert sorted(hub.files("user/model")) == sorted(hub.files("user/model", "packed")) == PUSHED
        assert len(hub.asked("POST", "/commit/")) == 2
        assert hub.store.repos["user/model"].private
        assert not hub.received(SECRET.encode())
        report = json.loads(hub.files("user/model")["pruning_report.json"])
        assert report["about"]["model"] == "test_resnet"

    def test_keeps_the_model_where_it_can_be_pushed_from_if_it_fails(self, hub, clients, tmp_path):
        hub.fail("POST", "/commit/")
        error = clients.ask(train_and_push, tmp_path / "run", [{"repo_id": "user/model"}])[0]
        arguments = error.partition("to try again: hf-cyclical push ")[2].split()
        kept = Path(arguments[0])
        assert kept.parent == tmp_path
        assert not (kept / "training_args.bin").exists()
        code, _, err = clients.push(*arguments)
        assert code == 0, err
        assert sorted(hub.files("user/model")) == PUSHED

    @pytest.mark.parametrize("token", REFUSED)
    def test_whatever_is_refused_the_model_is_kept(self, hub, clients, tmp_path, token):
        pushes, reasons = zip(*REFUSED[token], strict=True)
        errors = clients.ask(train_and_push, tmp_path / "run", pushes, token=token)
        assert not hub.asked("POST", "/commit/")
        folders = set()
        for arguments, reason, error in zip(pushes, reasons, errors, strict=True):
            assert reason in error
            assert SECRET not in error
            _, kept, command = re.fullmatch(r"(.*); the model is complete in (\S+), to try again: (.*)", error).groups()
            options = ["--hub_public"] if "private" in arguments else []
            assert shlex.split(command) == ["hf-cyclical", "push", kept, arguments["repo_id"], *options]
            folders.add(Path(kept))
        assert folders == set(tmp_path.glob("pruned_*"))
        assert len(folders) == len(errors)
        code, _, err = clients.push(folders.pop(), "user/later")
        assert code == 0, err

    def test_what_stops_a_push_otherwise_says_where_the_model_is_too(self, tmp_path, monkeypatch):
        def stop(*_, **__):
            raise KeyboardInterrupt

        monkeypatch.setattr("hf_cyclical.hub.push", stop)
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        trainer = make_trainer(tmp_path / "run")
        trainer.train()
        with pytest.raises(KeyboardInterrupt) as raised:
            trainer.push_to_hub("user/model", packed=True, license="mit", commit_message="Up")
        (kept,) = tmp_path.glob("pruned_*")
        command = f"hf-cyclical push {kept} user/model --packed --license mit"
        assert raised.value.__notes__ == [f"the model is complete in {kept}, to try again: {command}"]

    def test_a_name_alone_is_one_of_the_users_own_also_for_the_command(self, hub, clients, tmp_path):
        hub.fail("POST", "/commit/")
        error, address = clients.ask(train_and_push, tmp_path / "run", [{"repo_id": "mine"}, {"repo_id": "mine"}])
        assert address == f"{hub.url}/user/mine"
        assert b"hf-hub:user/mine" in hub.files("user/mine")["README.md"]
        code, out, err = clients.push(*error.partition("hf-cyclical push ")[2].split())
        assert (code, out) == (0, f"Pushed to {hub.url}/user/mine\n"), err
        assert list(hub.store.repos) == ["user/mine"]

    def test_the_record_names_the_commit_that_was_pruned(self, hub, clients, tmp_path, run):
        def load_and_push(folder):
            import sys

            sys.path.insert(0, "tests")
            from support.pushing import LABELS, make_trainer

            from hf_cyclical.models import load_image_model

            loaded = load_image_model("org/base", LABELS)
            trainer = make_trainer(folder, model=loaded.model, processor=loaded.processor)
            trainer.train()
            trainer.push_to_hub("user/model")

        hub.put("org/base", {name: (run / name).read_bytes() for name in ("config.json", "model.safetensors")})
        clients.ask(load_and_push, tmp_path / "run")
        base = json.loads(hub.files("user/model")["sparsity.json"])["base_model"]
        assert base == {"id": "org/base", "revision": hub.store.repos["org/base"].at("main").oid}
        assert b"_commit_hash" not in hub.files("user/model")["config.json"]

    def test_with_push_to_hub_it_makes_a_private_repository_first_and_pushes_what_is_saved(
        self, hub, clients, tmp_path
    ):
        def train(folder):
            import sys

            sys.path.insert(0, "tests")
            from support.pushing import make_trainer

            trainer = make_trainer(folder, push_to_hub=True, hub_strategy="end", save_strategy="steps", save_steps=4)
            trainer.save_model()
            trainer.train()
            before = trainer.hub_model_id
            trainer.save_model()
            return before

        assert clients.ask(train, tmp_path / "named") == "user/named"
        assert hub.store.repos["user/named"].private
        assert hub.asked("POST", "/api/repos/create")[0].status == 200
        assert len(hub.asked("POST", "/commit/")) == 1
        assert sorted(hub.files("user/named")) == PUSHED
        assert (tmp_path / "named" / "model.safetensors").exists()

    @pytest.mark.parametrize("setting", [None, True, False])
    def test_the_argument_of_init_hf_repo_decides_who_reads_it(self, hub, clients, tmp_path, setting):
        def make_repositories(folder, setting):
            import sys

            sys.path.insert(0, "tests")
            from support.pushing import make_trainer

            for private in (None, True, False):
                trainer = make_trainer(folder, hub_private_repo=setting, hub_model_id=f"user/{private}")
                trainer.init_hf_repo(private=private)

        clients.ask(make_repositories, tmp_path / "run", setting)
        private = {name: repo.private for name, repo in hub.store.repos.items()}
        assert private == {"user/None": setting is not False, "user/True": True, "user/False": False}

    def test_refuses_before_training_what_would_push_on_the_way_or_write_the_token_down(self, tmp_path):
        for strategy in set(HubStrategy) - {HubStrategy.END}:
            with pytest.raises(PruningError, match=f"hub_strategy '{strategy.value}'"):
                make_trainer(tmp_path, push_to_hub=True, hub_strategy=strategy)
        with pytest.raises(PruningError, match="hub_revision 'dev'"):
            make_trainer(tmp_path, push_to_hub=True, hub_strategy="end", hub_revision="dev")
        with pytest.raises(PruningError, match="hub_token would be written") as raised:
            make_trainer(tmp_path, hub_token=SECRET)
        assert SECRET not in str(raised.value)

    def test_a_dense_model_is_not_pushed_and_its_token_is_not_written_down(self, tmp_path):
        with pytest.raises(PruningError, match="hub_token would be written") as raised:
            make_trainer(tmp_path, target=0, hub_token=SECRET)
        assert SECRET not in str(raised.value)
        with pytest.raises(PruningError, match=r"only pruned ones are pushed.*: use trainer.model.push_to_hub$"):
            make_trainer(tmp_path, target=0, push_to_hub=True, hub_strategy="end", hub_model_id="user/model")
        trainer = make_trainer(tmp_path, target=0)
        for arguments in ((), ("user/model",)):
            with pytest.raises(PruningError, match="target_sparsity 0 leaves a dense model"):
                trainer.push_to_hub(*arguments)

    def test_refuses_what_is_not_trained(self, tmp_path):
        trainer = make_trainer(tmp_path)
        with pytest.raises(PruningError, match=r"no finished run to push: call train\(\) first"):
            trainer.push_to_hub("user/model")


class TestScript:
    def test_pushes_the_folder_that_it_leaves(self, hub, clients, tmp_path):
        arguments = [*SHORT, "--output_dir", tmp_path / "out", "--push_to_hub", "--hub_model_id", "user/digits"]
        hub.fail("POST", "/commit/packed")
        code, out, err = clients.command("prune", *arguments, "--hub_public", "--packed")
        line = [line for line in err.splitlines() if line.startswith("error: ")]
        assert (code, len(line)) == (2, 1), err
        command = f"hf-cyclical push {tmp_path / 'out'} user/digits --hub_public --packed"
        assert line[0].endswith(f"to try again: {command}")
        assert f"are in {tmp_path / 'out'}" in out
        assert load_report(tmp_path / "out").layers
        assert "hf_writer" not in (tmp_path / "out" / "pruning_report.json").read_text() + out + err

        code, out, err = clients.command(*command.split()[1:])
        assert (code, out) == (0, f"Pushed to {hub.url}/user/digits\n"), err
        assert not hub.store.repos["user/digits"].private
        assert sorted(hub.files("user/digits")) == sorted(hub.files("user/digits", "packed")) == PUSHED
        assert len(hub.asked("POST", "/commit/main")) == 1
        assert not hub.received(str(tmp_path).encode())

    @pytest.mark.parametrize(
        ("name", "words"),
        [
            ("nobody/digits", "does not let the token write to 'nobody/digits'"),
            ("user/digits", "'user/digits' has a branch packed"),
        ],
    )
    def test_says_before_training_that_it_could_not_push(self, hub, clients, tmp_path, name, words):
        hub.put("user/digits", {"config.json": b"{}"}, revision="packed", private=True)
        arguments = [*SHORT, "--output_dir", tmp_path / "out", "--push_to_hub", "--hub_model_id", name]
        code, out, err = clients.command("prune", *arguments)
        assert (code, err.count("error: ")) == (2, 1)
        assert words in err
        assert "The model, " not in out
        assert not (tmp_path / "out" / "model.safetensors").exists()
        hub.requests.clear()
        assert clients.command("prune", *arguments, "--plan")[0] == 0
        assert not hub.requests

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (["--push_to_hub"], "push_to_hub needs a repository: add --hub_model_id user/name"),
            (["--hub_model_id", "user/a"], "hub_model_id user/a has no effect without push_to_hub"),
            (["--packed"], "packed True has no effect"),
            (["--hub_public"], "hub_public True has no effect"),
            (
                ["--push_to_hub", "--hub_model_id", "user/a", "--hub_strategy", "every_save"],
                "hub_strategy 'every_save'",
            ),
            (["--push_to_hub", "--hub_model_id", "user/a", "--target_sparsity", "0"], "only pruned models are pushed"),
            (["--hub_token", SECRET], "hub_token would be written into training_args.bin"),
        ],
    )
    def test_refuses_contradictions_in_one_line(self, arguments, words, tmp_path, capsys):
        with pytest.raises(SystemExit) as exit_:
            parse_arguments([*arguments, "--output_dir", str(tmp_path / "out")], description="")
        assert exit_.value.code == 2
        _, err = capsys.readouterr()
        assert (err.count("\n"), words in err, SECRET in err) == (1, True, False), err
