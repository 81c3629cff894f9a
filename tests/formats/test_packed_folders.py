"""Packed folders: made, turned back, loaded by transformers and timm, and refused by readers that do not know them."""

import json
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import load_file, save_file
from support.sparse_weights import same_tensors
from support.tiny_models import assert_same_model, images, logits, prune, same, save_family, save_timm
from transformers import AutoModelForImageClassification
from transformers.quantizers import auto

from hf_cyclical import PruningError
from hf_cyclical.formats import pack_file, pack_folder, unpack_folder
from hf_cyclical.models import load_packed_model, make_portable

load_auto = AutoModelForImageClassification.from_pretrained


@pytest.fixture(params=["ResNet", "ViT", "DeiT", "cifar_resnet8", "test_vit"])
def model(request, tmp_path):
    """A pruned model in tmp_path/dense and, packed, in tmp_path/packed."""
    return make(request.param, tmp_path)


@pytest.fixture
def resnet(tmp_path):
    return make("ResNet", tmp_path)


@pytest.fixture
def cifar(tmp_path):
    return make("cifar_resnet8", tmp_path)


def make(name, folder):
    if name[0].isupper():
        model = save_family(name, folder / "dense")
        prune(model, 0.9)
        model.save_pretrained(folder / "dense")
    else:
        torch.manual_seed(0)
        model = timm.create_model(name, num_classes=3).eval()
        prune(model, 0.9)
        timm.models.save_for_hf(model, folder / "dense", safe_serialization=True)
        (folder / "dense" / "pytorch_model.bin").unlink(missing_ok=True)
        make_portable(folder / "dense")
    pack_folder(folder / "dense", folder / "packed")
    return model


def edit(folder, **changes):
    config = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps(config))


class TestLoading:
    def test_from_pretrained_in_one_call(self, model, tmp_path):
        loaded, info = load_auto(tmp_path / "packed", output_loading_info=True)
        dense = load_auto(tmp_path / "dense")
        assert same_tensors(loaded.state_dict(), dense.state_dict())
        assert not any(info.values())
        assert all(parameter.requires_grad for parameter in loaded.parameters())
        # From here on nothing tells it from a model that was never packed.
        assert not loaded.is_quantized
        loaded.save_pretrained(tmp_path / "again")
        assert "quantization_config" not in json.loads((tmp_path / "again" / "config.json").read_text())
        assert same_tensors(load_auto(tmp_path / "again").state_dict(), dense.state_dict())

    def test_without_the_internals_of_transformers(self, model, tmp_path):
        for layout in ("packed", "dense"):
            loaded = load_packed_model(tmp_path / layout)
            assert type(loaded) is type(model)
            assert not loaded.training
            assert_same_model(loaded, model, images(32))

    @pytest.mark.parametrize("fields", [{}, {"model_type": "timm_wrapper"}])
    def test_classes_that_are_in_model_args_too(self, fields, tmp_path):
        original = save_timm("test_vit", tmp_path / "dense")
        edit(tmp_path / "dense", model_args={"num_classes": 3, "img_size": [160, 160]}, **fields)
        pack_folder(tmp_path / "dense", tmp_path / "packed")
        for loaded in (
            load_auto(tmp_path / "packed"),
            *map(load_packed_model, (tmp_path / "packed", tmp_path / "dense")),
        ):
            assert same(logits(loaded, images(160)), logits(original, images(160)))

    def test_in_another_dtype(self, resnet, tmp_path):
        loaded = load_auto(tmp_path / "packed", dtype=torch.bfloat16)
        assert {parameter.dtype for parameter in loaded.parameters()} == {torch.bfloat16}
        kernel = resnet.state_dict()["resnet.embedder.embedder.convolution.weight"]
        assert torch.equal(loaded.state_dict()["resnet.embedder.embedder.convolution.weight"], kernel.bfloat16())

    def test_readers_without_this_package_stop(self, resnet, tmp_path, monkeypatch):
        monkeypatch.delitem(auto.AUTO_QUANTIZATION_CONFIG_MAPPING, "hf_cyclical")
        monkeypatch.delitem(auto.AUTO_QUANTIZER_MAPPING, "hf_cyclical")
        with pytest.raises(RuntimeError, match="ignore_mismatched_sizes"):
            load_auto(tmp_path / "packed")

    def test_timm_stops(self, cifar, tmp_path):
        with pytest.raises(RuntimeError, match=r"size mismatch for .*weight"):
            timm.create_model(f"local-dir:{tmp_path / 'packed'}", pretrained=True)


class TestFolders:
    def test_comes_back(self, model, tmp_path):
        unpack_folder(tmp_path / "packed", tmp_path / "back")
        assert same_tensors(
            load_file(tmp_path / "back" / "model.safetensors"), load_file(tmp_path / "dense" / "model.safetensors")
        )
        configs = [json.loads((tmp_path / name / "config.json").read_text()) for name in ("back", "dense")]
        assert configs[0] == configs[1]

    def test_copies_what_belongs_to_the_model_alone(self, resnet, tmp_path):
        source = tmp_path / "dense"
        for name in ("README.md", "LICENSE", "figure.png", ".env", "training_args.bin", "optimizer.pt", "a.txt"):
            (source / name).write_text("x")
        (source / "link.png").symlink_to(source / ".env")
        pack_folder(source, tmp_path / "other")
        names = {file.name for file in (tmp_path / "other").iterdir()}
        copied = {"README.md", "LICENSE", "figure.png", "preprocessor_config.json", "processor_config.json"}
        assert names - copied == {"config.json", "model.safetensors"}
        assert {"README.md", "LICENSE", "figure.png"} <= names

    def test_refusals(self, resnet, tmp_path):
        with pytest.raises(PruningError, match="packed already"):
            pack_folder(tmp_path / "packed", tmp_path / "x")
        with pytest.raises(PruningError, match="is not packed"):
            unpack_folder(tmp_path / "dense", tmp_path / "x")
        with pytest.raises(PruningError, match="exists"):
            pack_folder(tmp_path / "dense", tmp_path / "packed")
        (tmp_path / "dense" / "model.safetensors.index.json").write_text("{}")
        with pytest.raises(PruningError, match="several files"):
            pack_folder(tmp_path / "dense", tmp_path / "x")
        with pytest.raises(PruningError, match=r"no config.json"):
            pack_folder(tmp_path, tmp_path / "x")
        (tmp_path / "dense" / "model.safetensors.index.json").unlink()
        (tmp_path / "dense" / "sparsity.json").write_text("{}")
        with pytest.raises(PruningError, match=r"sparsity.json: schema None is unknown"):
            pack_folder(tmp_path / "dense", tmp_path / "x")
        assert {path.name for path in tmp_path.iterdir()} == {"dense", "packed"}

    def test_an_empty_target_stays_the_folder_that_it_is(self, resnet, tmp_path, monkeypatch):
        target = tmp_path / "target"
        target.mkdir()
        before = target.stat().st_ino
        monkeypatch.chdir(target)
        pack_folder(tmp_path / "dense", ".")
        assert target.stat().st_ino == before
        names = {path.name for path in (tmp_path / "packed").iterdir()}
        assert {path.name for path in Path().iterdir()} == names
        assert {path.name for path in tmp_path.iterdir()} == {"dense", "packed", "target"}

    def test_what_looks_like_an_unfinished_target_is_left_alone(self, resnet, tmp_path):
        (tmp_path / ".x.new").mkdir()
        (tmp_path / ".x.new" / "mine").write_text("mine")
        pack_folder(tmp_path / "dense", tmp_path / "x")
        assert (tmp_path / ".x.new" / "mine").read_text() == "mine"

    @pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
    def test_links_to_elsewhere(self, resnet, tmp_path, name):
        (tmp_path / "dense" / name).rename(tmp_path / "elsewhere")
        (tmp_path / "dense" / name).symlink_to(tmp_path / "elsewhere")
        for call in (
            lambda: pack_folder(tmp_path / "dense", tmp_path / "x"),
            lambda: load_packed_model(tmp_path / "dense"),
        ):
            with pytest.raises(PruningError, match=f"{name}' is a link to elsewhere"):
                call()


class TestHostile:
    @pytest.mark.parametrize("load", [load_auto, load_packed_model])
    def test_damaged_weights(self, resnet, tmp_path, load):
        file = tmp_path / "packed" / "model.safetensors"
        data = bytearray(file.read_bytes())
        data[-40] ^= 1
        file.write_bytes(data)
        with pytest.raises(PruningError) as caught:
            load(tmp_path / "packed")
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize("load", [load_auto, load_packed_model])
    @pytest.mark.parametrize("name", ["classifier.1.weight", "classifier.1.bias"])
    def test_wrong_shapes(self, resnet, tmp_path, load, name):
        tensors = load_file(tmp_path / "dense" / "model.safetensors")
        tensors[name] = torch.zeros(40, 7)
        save_file(tensors, tmp_path / "dense" / "model.safetensors", {"format": "pt"})
        pack_file(tmp_path / "dense" / "model.safetensors", tmp_path / "packed" / "model.safetensors")
        with pytest.raises(PruningError, match=name):
            load(tmp_path / "packed")

    def test_bomb_is_bounded_by_the_model(self, resnet, tmp_path):
        tensors = load_file(tmp_path / "dense" / "model.safetensors")
        tensors["classifier.1.weight"] = torch.zeros(5_000_000)
        save_file(tensors, tmp_path / "dense" / "model.safetensors", {"format": "pt"})
        pack_file(tmp_path / "dense" / "model.safetensors", tmp_path / "packed" / "model.safetensors")
        with pytest.raises(PruningError, match="more than max_bytes"):
            load_auto(tmp_path / "packed")

    def test_dense_weights_that_are_called_packed(self, resnet, tmp_path):
        edit(tmp_path / "dense", quantization_config={"quant_method": "hf_cyclical", "dequantize": False})
        with pytest.raises(PruningError, match="is not packed"):
            load_auto(tmp_path / "dense")

    @pytest.mark.parametrize(
        ("changes", "why"),
        [
            ({"architecture": "hf-hub:someone/else"}, "architecture"),
            ({"architecture": "local-dir:elsewhere"}, "architecture"),
            ({"architecture": ["cifar_resnet8"]}, "architecture"),
            ({"model_args": {"checkpoint_path": "elsewhere"}}, "checkpoint_path"),
            ({"model_args": {"pretrained": True}}, "pretrained"),
            ({"model_args": {"unknown": 1}}, "cannot be made"),
            ({"model_args": [1]}, "cannot be made"),
            ({"num_classes": 7}, "do not fit its config"),
            ({"num_classes": "x"}, "cannot be made"),
            ({"architecture": "cifar_resnet20"}, "do not fit its config"),
            ({"quantization_config": {"quant_method": "bitsandbytes"}}, "quantized in another way"),
            ({"model_type": "bert"}, "no image classifier"),
            ({"model_type": "unknown"}, "cannot be made"),
            ({"model_type": "dinat"}, "cannot be made|do not fit"),  # needs a library of its own
            ({"x": "y" * 5_000_000}, "more than 4,194,304"),
        ],
    )
    def test_configs(self, cifar, tmp_path, changes, why):
        edit(tmp_path / "packed", **changes)
        with pytest.raises(PruningError, match=why) as caught:
            load_packed_model(tmp_path / "packed")
        assert "\n" not in str(caught.value)

    def test_pickle_in_place_of_safetensors(self, resnet, tmp_path):
        torch.save({"w": torch.zeros(3)}, tmp_path / "packed" / "model.safetensors")
        with pytest.raises(PruningError, match="no safetensors file"):
            load_packed_model(tmp_path / "packed")
