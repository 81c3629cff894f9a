"""What `verify` says ok of is what transformers, timm and `load` load: other weights, and other tensors, are found."""

import json
import shutil

import pytest
import timm
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from support.forged import bomb, dense_weights, rewrite, stamp_again
from support.stamped import edit_json, save_stamped
from transformers import AutoModelForImageClassification

from hf_cyclical import PruningError
from hf_cyclical.formats import pack_folder
from hf_cyclical.hub import verify

WEIGHTS, CONFIG = "model.safetensors", "config.json"
NAMES = {"cifar_resnet8": "conv1.weight", "ResNet": "resnet.embedder.embedder.convolution.weight"}
load_auto = AutoModelForImageClassification.from_pretrained


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    for name in NAMES:
        save_stamped(name, folder / name)
        edit_json(folder / name / CONFIG, lambda c: c.setdefault("label_names", ["a", "b", "c"]))
        pack_folder(folder / name, folder / f"{name}-packed")
    return folder


@pytest.fixture(params=[f"{name}{layout}" for name in NAMES for layout in ("", "-packed")])
def model(request, models, tmp_path):
    folder = shutil.copytree(models / request.param, tmp_path / "model")
    assert verify(folder).ok
    return folder


@pytest.fixture(params=NAMES)
def dense(request, models, tmp_path):
    return shutil.copytree(models / request.param, tmp_path / "model")


def change(folder, **settings):
    edit_json(folder / CONFIG, lambda config: config.update(settings))


def change_source(folder, **settings):
    edit_json(folder / CONFIG, lambda config: config.setdefault("pretrained_cfg", {}).update(settings))


def found(folder, *words):
    result = verify(folder)
    assert not result.ok
    assert result.table().replace("\n", "").isprintable()
    assert "differs" in result.table() or "tensor" in result.table()
    for word in words:
        assert any(word in line for line in result.differences), result.differences
    return True


class TestOtherFiles:
    @pytest.mark.parametrize(
        "name",
        [
            "model.safetensors.index.json",
            "model.fp16.safetensors",
            "model.fp16.safetensors.index.json",
            "other.safetensors",
            "pytorch_model.bin",
            "pytorch_model.bin.index.json",
            "pytorch_model.fp16.bin",
            "model.pth",
            "open_clip_model.safetensors",
            "adapter_config.json",
            "adapter_model.safetensors",
            "adapter_model.bin",
            "shard-00001-model-00001-of-00001.safetensors",
            "tf_model.h5",
            "flax_model.msgpack",
            "MODEL.CKPT",
            "x\x1b[2J.bin",
        ],
    )
    def test_are_found(self, model, name):
        (model / name).write_bytes(b"x")
        assert found(model, "is beside model.safetensors: some loaders take it instead")

    @pytest.mark.parametrize(
        "name", ["training_args.bin", "optimizer.pt", "rng_state_0.pth", "notes.txt", "vocab.json", "model.onnx"]
    )
    def test_what_no_loader_takes(self, model, name):
        (model / name).write_bytes(b"x")
        assert verify(model).ok


def loads_something_else(folder):
    """Whether transformers takes other weights than those in model.safetensors."""
    stored = load_file(folder / WEIGHTS)
    loaded = load_auto(folder).state_dict()
    return any(not torch.equal(loaded[name], stored[name]) for name in stored if name in loaded)


class TestConfigs:
    def test_weights_that_transformers_is_told_to_take(self, models, tmp_path):
        folder = shutil.copytree(models / "ResNet", tmp_path / "model")
        assert not loads_something_else(folder)
        (folder / "sub").mkdir()
        save_file(dense_weights(folder), folder / "sub" / "w.safetensors", {"format": "pt"})
        change(folder, transformers_weights="sub/w.safetensors")
        assert loads_something_else(folder)
        assert found(folder, "transformers_weights sub/w.safetensors")

    def test_a_config_that_transformers_is_told_to_take(self, models, tmp_path):
        folder = shutil.copytree(models / "ResNet", tmp_path / "model")
        (folder / "sub").mkdir()
        save_file(dense_weights(folder), folder / "sub" / "w.safetensors", {"format": "pt"})
        other = json.loads((folder / CONFIG).read_text()) | {"transformers_weights": "sub/w.safetensors"}
        (folder / "config.4.0.0.json").write_text(json.dumps(other))
        change(folder, configuration_files=["config.4.0.0.json"])
        assert loads_something_else(folder)
        assert found(folder, "configuration_files")

    @pytest.mark.parametrize("name", ["model.safetensors", None])
    def test_the_same_weights_by_name(self, models, tmp_path, name):
        folder = shutil.copytree(models / "ResNet", tmp_path / "model")
        change(folder, **({"transformers_weights": name} if name else {}))
        assert verify(folder).ok

    @pytest.mark.parametrize(
        "settings",
        [
            {"transformers_weights": "a\x1b[2Jb.safetensors"},
            {"transformers_weights": ["x"]},
            {"auto_map": {"AutoModelForImageClassification": "evil.Model"}},
            {"configuration_files": ["config.4.0.0.json"]},
            {"fusion_config": {"patch_embeddings": True}},
            {"custom_pipelines": {"image-classification": {"impl": "evil.Pipeline"}}},
            {"dtype": "float16"},
            {"torch_dtype": "int8"},
        ],
    )
    def test_settings(self, model, settings):
        change(model, **settings)
        assert found(model, f"config.json has {next(iter(settings))} ")

    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("hf_hub_filename", "dense.safetensors"),
            ("hf_hub_id", "somebody/else"),
            ("file", "dense.safetensors"),
            ("url", "https://example.com/dense.pth"),
            ("source", "url"),
            ("custom_load", "hf"),
            ("state_dict", {"x": 1}),
            ("label_offset", 1),
        ],
    )
    def test_sources_of_timm(self, model, key, value):
        change_source(model, **{key: value})
        assert found(model, "pretrained_cfg")

    def test_a_config_of_both_libraries(self, models, tmp_path):
        folder = shutil.copytree(models / "ResNet", tmp_path / "model")
        change(folder, architecture="resnet18")
        assert found(folder, "config.json has architecture resnet18")

    def test_layouts_that_the_config_does_not_tell(self, models, tmp_path):
        folder = shutil.copytree(models / "ResNet", tmp_path / "model")
        change(folder, quantization_config={"quant_method": "hf_cyclical"})
        assert found(folder, "quantization_config")
        packed = shutil.copytree(models / "ResNet-packed", tmp_path / "packed")
        edit_json(packed / CONFIG, lambda config: config.pop("quantization_config"))
        assert found(packed, "quantization_config")
        change(packed, quantization_config={"quant_method": "hf_cyclical", "dtype": "float16"})
        assert found(packed, "quantization_config dtype float16")


def packed_or_not(folder, layout):
    if layout == "dense":
        return folder
    pack_folder(folder, folder.parent / "packed")
    return folder.parent / "packed"


@pytest.mark.parametrize("layout", ["dense", "packed"])
class TestTensors:
    """Every file of these agrees with the others, and the weights: only the model does not."""

    def test_zeros_that_nothing_uses(self, dense, layout):
        before = stamp_again(dense)
        rewrite(dense, lambda t: t.update({"extra.weight": torch.zeros(1000, 1000)}))
        after = stamp_again(dense, ["extra.weight"])
        assert after["overall_sparsity"] > 0.95 > before["overall_sparsity"]
        assert found(packed_or_not(dense, layout), "tensor 'extra.weight' is in the weights, but not in the model")

    @pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.complex64, torch.bool])
    def test_layers_that_are_not_stored_as_floats(self, dense, layout, dtype):
        name = NAMES.get(json.loads((dense / CONFIG).read_text()).get("architecture"), NAMES["ResNet"])
        rewrite(dense, lambda t: t.update({name: t[name].to(dtype)}))
        stamp_again(dense)
        assert found(packed_or_not(dense, layout), f"{name!r} is of {str(dtype).removeprefix('torch.')}, which")

    def test_dense_layers_that_do_not_count(self, dense, layout):
        """As integers, biases and norms were left out of the parameters, and the others looked sparser."""
        small = [name for name in load_file(dense / WEIGHTS) if name.endswith("bias")]
        rewrite(dense, lambda t: t.update({name: t[name].to(torch.int32) for name in small}))
        stamp_again(dense)
        assert found(packed_or_not(dense, layout), "is of int32, which")

    def test_tensors_that_are_missing(self, dense, layout):
        gone = next(name for name in load_file(dense / WEIGHTS) if name.endswith("bias"))
        rewrite(dense, lambda t: t.pop(gone))
        stamp_again(dense)
        assert found(packed_or_not(dense, layout), f"tensor {gone!r} of the model of config.json is not in the weights")

    def test_half_precision_is_fine(self, dense, layout):
        rewrite(dense, lambda t: t.update({name: w.half() for name, w in t.items() if w.is_floating_point()}))
        edit_json(dense / CONFIG, lambda config: config.update(dtype="float16") if "dtype" in config else None)
        stamp_again(dense)
        assert verify(packed_or_not(dense, layout)).ok


@pytest.mark.parametrize("dtype", [None, "float16", "float32"])
def test_layers_of_several_dtypes(models, tmp_path, dtype):
    """transformers makes them all of one, in which small weights are zeros."""
    folder = shutil.copytree(models / "ResNet", tmp_path / "model")
    rewrite(folder, lambda t: t.update({NAMES["ResNet"]: t[NAMES["ResNet"]].half()}))
    stamp_again(folder)
    change(folder, dtype=dtype)
    assert found(folder, "has tensors of float16 and float32: some loaders")


class TestPacked:
    def test_a_payload_that_is_not_listed(self, models, tmp_path):
        folder = shutil.copytree(models / "cifar_resnet8-packed", tmp_path / "model")
        with safe_open(folder / WEIGHTS, "pt") as file:
            header = file.metadata()
        about = json.loads(header["hf_cyclical_packed"])
        about["tensors"].pop(NAMES["cifar_resnet8"])
        save_file(load_file(folder / WEIGHTS), folder / WEIGHTS, header | {"hf_cyclical_packed": json.dumps(about)})
        assert found(folder, "tensor 'conv1.weight' has shape", "tensor 'conv1.weight' is of uint8, which")

    @pytest.mark.usefixtures("little_memory")
    @pytest.mark.parametrize("name", ["conv1.weight", "junk"])
    def test_zeros_take_no_memory(self, models, tmp_path, name):
        folder = shutil.copytree(models / "cifar_resnet8-packed", tmp_path / "model")
        bomb(folder / WEIGHTS, name, (1 << 28,))
        assert (folder / WEIGHTS).stat().st_size < 150_000
        assert found(folder, f"tensor {name!r}")


class TestTimm:
    def test_takes_the_file_that_its_config_names(self, hub, models, clients):
        """The card's own command, on the Hub."""

        def share_of_zeros(repo):
            import timm

            import hf_cyclical  # noqa: F401 - registers cifar_resnet8
            from hf_cyclical import verify

            model = timm.create_model(f"hf-hub:{repo}", pretrained=True)
            return [float((model.conv1.weight == 0).float().mean()), verify(repo).ok]

        folder = models / "cifar_resnet8"
        files = {file.name: file.read_bytes() for file in folder.iterdir()}
        hub.put("user/good", files)
        assert clients.ask(share_of_zeros, "user/good") == [pytest.approx(0.9, abs=0.01), True]
        config = json.loads(files[CONFIG])
        config["pretrained_cfg"]["hf_hub_filename"] = "sub/w.safetensors"
        from safetensors.torch import save

        other = {"sub/w.safetensors": save(dense_weights(folder)), CONFIG: json.dumps(config).encode()}
        hub.put("user/bad", files | other)
        assert clients.ask(share_of_zeros, "user/bad") == [0.0, False]

    def test_changes_tensors_for_another_size_of_images(self, tmp_path):
        save_stamped("test_vit", tmp_path)
        edit_json(tmp_path / CONFIG, lambda config: config.update(label_names=["a", "b", "c"]))
        stored = load_file(tmp_path / WEIGHTS)["pos_embed"]
        assert torch.equal(timm.create_model(f"local-dir:{tmp_path}", pretrained=True).pos_embed, stored)
        assert verify(tmp_path).ok
        change_source(tmp_path, input_size=[3, 320, 320], fixed_input_size=True)
        edit_json(tmp_path / CONFIG, lambda config: config.get("model_args", {}).pop("img_size", None))
        assert timm.create_model(f"local-dir:{tmp_path}", pretrained=True).pos_embed.shape != stored.shape
        assert found(tmp_path, "tensor 'pos_embed' is changed by timm")

    def test_would_make_a_far_larger_model(self, tmp_path):
        save_stamped("test_vit", tmp_path)
        change_source(tmp_path, input_size=[3, 1 << 14, 1 << 14], fixed_input_size=True)
        edit_json(tmp_path / CONFIG, lambda config: config.get("model_args", {}).pop("img_size", None))
        with pytest.raises(PruningError, match="do not fit its config, which asks for more than"):
            verify(tmp_path)

    def test_takes_the_file_in_a_folder(self, models):
        model = timm.create_model(f"local-dir:{models / 'cifar_resnet8'}", pretrained=True)
        stored = load_file(models / "cifar_resnet8" / WEIGHTS)
        assert all(torch.equal(tensor, stored[name]) for name, tensor in model.state_dict().items())
