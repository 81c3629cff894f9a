"""`verify` counts what is loaded: a second tensor for one weight, layers that a loader leaves out, numbers that are no
weights."""

import json
import shutil

import pytest
import timm
import torch
from safetensors.torch import load_file
from support.forged import dense_weights, rewrite, stamp_again
from support.stamped import edit_json, save_stamped
from transformers import AutoModelForImageClassification

from hf_cyclical import PruningError
from hf_cyclical.formats import pack_folder
from hf_cyclical.hub import verify
from hf_cyclical.models import load

WEIGHTS, CONFIG = "model.safetensors", "config.json"
PREFIXES = {"ResNet": "resnet.", "ViT": "vit."}
load_auto = AutoModelForImageClassification.from_pretrained


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    for name in (*PREFIXES, "cifar_resnet8"):
        save_stamped(name, folder / name)
    edit_json(folder / "cifar_resnet8" / CONFIG, lambda config: config.setdefault("label_names", ["a", "b", "c"]))
    return folder


@pytest.fixture
def copied(models, tmp_path):
    return lambda name: shutil.copytree(models / name, tmp_path / name)


def share_of_zeros(model):
    weights = [p for p in model.parameters() if p.ndim > 1]
    return sum(int((w == 0).sum()) for w in weights) / sum(w.numel() for w in weights)


def differs(folder, words):
    found = verify(folder)
    assert not found.ok
    assert any(words in line for line in found.differences), found.differences
    return True


class TestTwoTensorsForOneWeight:
    """transformers takes the weights of a model with and without the prefix of its head."""

    @pytest.fixture(params=PREFIXES)
    def doubled(self, request, copied):
        folder, prefix = copied(request.param), PREFIXES[request.param]
        other = {name: w for name, w in dense_weights(folder).items() if name.startswith(prefix)}
        rewrite(folder, lambda t: t.update({name.removeprefix(prefix): w for name, w in other.items()}))
        assert stamp_again(folder)["sparsity"] > 0.89
        return folder

    def test_are_a_difference(self, doubled, tmp_path):
        assert share_of_zeros(load_auto(doubled)) < 0.1
        assert differs(doubled, "values")
        pack_folder(doubled, tmp_path / "packed")
        assert differs(tmp_path / "packed", "values")

    def test_are_not_loaded_by_us(self, doubled, tmp_path):
        pack_folder(doubled, tmp_path / "packed")
        for call, folder in ((load, doubled), (load, tmp_path / "packed"), (load_auto, tmp_path / "packed")):
            with pytest.raises(PruningError, match="values"):
                call(folder)


class TestTimm:
    def test_layers_that_it_takes_for_those_of_another_number_of_classes(self, copied):
        folder = copied("cifar_resnet8")
        layers = [name.removesuffix(".weight") for name in load_file(folder / WEIGHTS) if name.endswith(".weight")]

        def disguise(config):
            config["model_args"] = {"num_classes": config.pop("num_classes")}
            config["pretrained_cfg"] |= {"num_classes": 7, "classifier": layers}

        edit_json(folder / CONFIG, disguise)
        assert share_of_zeros(timm.create_model(f"local-dir:{folder}", pretrained=True)) < 0.1
        assert differs(folder, "tensor 'conv1.weight' is changed by timm")

    def test_input_channels(self, tmp_path):
        save_stamped("test_resnet", tmp_path)
        edit_json(tmp_path / CONFIG, lambda config: config.update(label_names=["a", "b", "c"]))
        assert verify(tmp_path).ok
        edit_json(tmp_path / CONFIG, lambda config: config["pretrained_cfg"].update(input_size=[4, 160, 160]))
        stored = load_file(tmp_path / WEIGHTS)["conv1.0.weight"]
        try:
            loaded = timm.create_model(f"local-dir:{tmp_path}", pretrained=True).conv1[0].weight
        except RuntimeError:  # some versions refuse
            return
        assert torch.equal(loaded, stored) == verify(tmp_path).ok


class TestNumbers:
    def test_statistics_that_are_called_pruned(self, copied):
        folder = copied("ResNet")
        names = [name for name in load_file(folder / WEIGHTS) if name.endswith(("running_mean", "tracked"))]
        rewrite(folder, lambda t: t.update({name: torch.zeros_like(t[name]) for name in names}))
        before = stamp_again(folder)
        assert stamp_again(folder, names)["overall_sparsity"] > before["overall_sparsity"]
        assert differs(folder, f"tensor {names[0]!r} is recorded as pruned, but is no weight")

    @pytest.mark.parametrize("name", ["ResNet", "cifar_resnet8"])
    def test_floats_of_one_byte(self, copied, name, tmp_path):
        folder = copied(name)
        rewrite(folder, lambda t: t.update({n: w.to(torch.float8_e4m3fn) for n, w in t.items() if w.ndim > 1}))
        stamp_again(folder)
        assert differs(folder, "is of float8_e4m3fn, which")
        pack_folder(folder, tmp_path / "packed")
        assert differs(tmp_path / "packed", "is of float8_e4m3fn, which")
        with pytest.raises(PruningError, match="do not fit"):
            load(folder)


class TestConfigs:
    @pytest.mark.parametrize(
        "settings",
        [
            {"quant_method": "bitsandbytes", "load_in_8bit": True},
            {"quant_method": "hf_cyclical", "load_in_4bit": True},
            {"quant_method": "nonsense"},
            {"quant_method": "hf_cyclical", "dequantize": False},
            "hf_cyclical",
            ["hf_cyclical"],
        ],
    )
    def test_other_readers_of_packed_weights(self, models, tmp_path, settings):
        pack_folder(models / "ResNet", tmp_path / "packed")
        assert verify(tmp_path / "packed").ok
        edit_json(tmp_path / "packed" / CONFIG, lambda config: config.update(quantization_config=settings))
        assert differs(tmp_path / "packed", "quantization_config")

    @pytest.mark.parametrize("key", ["_attn_implementation", "attn_implementation", "_experts_implementation"])
    @pytest.mark.parametrize("value", ["evil/kernel", {"": "evil/kernel"}])
    @pytest.mark.parametrize("name", ["cifar_resnet8", "ResNet"])
    def test_code_of_the_hub(self, copied, name, key, value):
        """Also of timm's configs, which transformers reads."""
        folder = copied(name)
        edit_json(folder / CONFIG, lambda config: config.update({key: value}))
        for call in (verify, load):
            with pytest.raises(PruningError, match="implementation"):
                call(folder)

    def test_names_that_differ_in_case_alone(self, copied):
        """Some file systems take one for the other."""
        folder = copied("ResNet")
        (folder / "Config.json").write_text(json.dumps({}))
        assert differs(folder, "Config.json")
