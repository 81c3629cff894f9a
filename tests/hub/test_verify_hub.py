"""Verifying and loading from a Hub: what is downloaded, what is not, and what is said of repositories that are bad."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.local_hub import READER, Huge, ask
from support.stamped import save_stamped

from hf_cyclical.formats import pack_folder

WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A stamped model of each library, and a packed one."""
    folder = tmp_path_factory.mktemp("models")
    for name in ("cifar_resnet8", "ResNet"):
        save_stamped(name, folder / name)
    pack_folder(folder / "cifar_resnet8", folder / "cifar_resnet8-packed")
    return folder


def on_the_hub(calls):
    """What `verify` and `load` say of repositories; runs in the client."""
    from huggingface_hub import constants, snapshot_download

    from hf_cyclical import PruningError
    from hf_cyclical.hub import verify
    from hf_cyclical.models import load

    said = []
    for what, *call in calls:
        try:
            if what == "offline":
                constants.HF_HUB_OFFLINE = True
            if what == "snapshot":
                what, call = "verify", [snapshot_download(call[0], revision=call[1])]
            said.append(verify(*call).ok if what == "verify" else type(load(*call)).__name__)
        except PruningError as error:
            said.append(str(error))
    return said


class TestHub:
    def put(self, hub, repo, folder, revision="main", private=False, **files):
        stored = {file.name: file.read_bytes() for file in Path(folder).iterdir()}
        more = {name.replace("__", "."): content for name, content in files.items()}
        hub.put(repo, stored | more, revision, private=private)

    def test_good_models(self, hub, models):
        self.put(hub, "user/timm", models / "cifar_resnet8", private=True, training_args__bin=b"x")
        self.put(hub, "user/timm", models / "cifar_resnet8-packed", "packed", private=True)
        self.put(hub, "user/hf", models / "ResNet")
        self.put(hub, "user/packed", models / "cifar_resnet8-packed")
        calls = [["verify", "user/timm"], ["verify", "user/timm", "packed"], ["verify", "user/hf"]]
        calls += [["snapshot", "user/hf", "main"], ["snapshot", "user/packed", "main"]]
        calls += [
            ["load", "user/timm"],
            ["load", "user/timm", "packed"],
            ["load", "user/hf"],
            ["load", "user/timm", "no"],
        ]
        calls += [["offline", "user/hf"], ["offline", "user/none"]]
        *good, revision, offline, none = ask(hub, on_the_hub, calls, token=READER)
        names = ["CifarResNet", "CifarResNet", "ResNetForImageClassification"]
        assert good == [True] * 5 + names
        assert revision == "model 'user/timm' has no revision 'no': name a branch, tag or commit of it"
        assert offline == names[-1]
        assert "is not in the cache" in none
        assert not hub.asked("GET", r"/resolve/.*[.]bin")

    def test_another_model_on_the_branch_packed(self, hub, models, tmp_path):
        """Each branch agrees with itself."""
        model, packed = models / "cifar_resnet8", models / "cifar_resnet8-packed"
        save_stamped("cifar_resnet8", tmp_path / "other", 0.5)
        pack_folder(tmp_path / "other", tmp_path / "other-packed")
        self.put(hub, "user/weights", model)
        self.put(hub, "user/weights", tmp_path / "other-packed", "packed")
        self.put(hub, "user/config", model)
        config = packed / "config.json"
        self.put(hub, "user/config", packed, "packed", config__json=config.read_bytes().replace(b"{", b'{"x": 1,', 1))
        self.put(hub, "user/dense", model)
        self.put(hub, "user/dense", packed, "packed", model__safetensors=(model / WEIGHTS).read_bytes())
        names = ["user/weights", "user/config", "user/dense"]
        calls = [["verify", name, *more] for name in names for more in ([], ["main"], ["packed"])]
        found = ask(hub, on_the_hub, calls, token=READER)
        assert found == [False, True, True, False, True, True, False, True, False]

    def test_other_weights_beside(self, hub, models):
        pickle = {"pytorch_model__bin": b"\x80\x04."}
        self.put(hub, "user/pickle", models / "cifar_resnet8", **pickle)
        adapter = b'{"base_model_name_or_path": "somebody/else"}'  # which transformers would load instead, with peft
        self.put(hub, "user/adapter", models / "ResNet", adapter_config__json=adapter)
        calls = [[what, repo] for what in ("verify", "load") for repo in ("user/pickle", "user/adapter")]
        names = ["CifarResNet", "ResNetForImageClassification"]
        assert ask(hub, on_the_hub, calls, token=READER) == [False, False, *names]
        assert not hub.asked("GET", r"/resolve/.*([.]bin|adapter)")

    def test_bad_models(self, hub, models, tmp_path):
        model = models / "cifar_resnet8"
        self.put(hub, "user/private", model, private=True)
        self.put(hub, "bad/record", model, sparsity__json=Huge(2**30))
        self.put(hub, "bad/weights", model, model__safetensors=Huge(2**33))
        changed = shutil.copytree(model, tmp_path / "changed")
        tensors = load_file(changed / WEIGHTS)
        tensors["conv1.weight"][0, 0, 0, 0] += 1
        save_file(tensors, changed / WEIGHTS, {"format": "pt"})
        self.put(hub, "bad/changed", changed)
        torch.save(tensors, changed / "pytorch_model.bin")
        (changed / WEIGHTS).unlink()
        self.put(hub, "bad/pickle", changed)
        self.put(hub, "bad/gated", model)
        hub.fail("GET|HEAD", "bad/gated", status=403, times=None, code="GatedRepo")
        self.put(hub, "bad/broken", model)
        hub.fail("GET|HEAD", "^/bad/broken", status=500, times=None)
        names = ["user/private", "user/none", "bad/record", "bad/weights", "bad/pickle", "bad/gated", "bad/broken"]
        calls = [["verify", name] for name in [*names, "bad/../name", "bad/changed"]]
        *said, changed = ask(hub, on_the_hub, calls, token=None, impatient=True)
        private, none, record, weights, pickle, gated, broken, invalid = said
        assert private.endswith("check the spelling, or log in with `hf auth login` if it is private")
        assert none == private.replace("user/private", "user/none")
        assert "sparsity.json of 'bad/record' has 1,073,741,824 bytes, at most 4,194,304 are read" in record
        assert "model.safetensors of 'bad/weights' has 8,589,934,592 bytes" in weights
        assert "no model.safetensors but 'pytorch_model.bin', a pickle" in pickle
        assert "is gated: ask for access" in gated
        assert "the Hub cannot be reached" in broken
        assert "neither a folder here nor a Hub id" in invalid
        assert changed is False
        assert not [line for line in said if "\n" in line]
        # Too large, or not to be opened: not one byte of these was asked for.
        assert not any(hub.asked(method, "^/bad/(record|weights|pickle)/") for method in ("GET", "HEAD"))
