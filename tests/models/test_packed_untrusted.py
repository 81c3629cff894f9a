"""Packed folders of strangers: `from_pretrained`, `unpack` and `compile` refuse in one line what `load` refuses."""

import json
import subprocess
import sys

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from support.forged import bomb
from support.patience import HUNG
from support.tiny_models import prune, save_family, save_timm
from transformers import (
    AutoModel,
    AutoModelForImageClassification,
    AutoModelForSemanticSegmentation,
    SwinConfig,
    UperNetConfig,
    UperNetForSemanticSegmentation,
)

import hf_cyclical
from hf_cyclical import PruningError
from hf_cyclical.formats import pack_file, pack_folder
from hf_cyclical.models import load, unpack_folder

WEIGHTS = "model.safetensors"
CONV = "resnet.embedder.embedder.convolution.weight"
load_auto = AutoModelForImageClassification.from_pretrained


@pytest.fixture
def resnet(tmp_path):
    model = save_family("ResNet", tmp_path / "dense")
    prune(model, 0.9)
    model.save_pretrained(tmp_path / "dense")
    pack_folder(tmp_path / "dense", tmp_path / "packed")
    return tmp_path / "packed"


@pytest.fixture
def timm_folder(tmp_path):
    save_timm("cifar_resnet8", tmp_path / "dense", label_names=["a", "b", "c"])
    pack_folder(tmp_path / "dense", tmp_path / "packed")
    return tmp_path / "packed"


def edit(folder, **changes):
    config = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps(config))


def refused(call, words, folder, *arguments):
    with pytest.raises(PruningError, match=words) as caught:
        call(folder, *arguments)
    assert "\n" not in str(caught.value)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 600


def replace_in(file, metadata=None, **tensors):
    with safe_open(file, "pt") as opened:
        header = opened.metadata() | (metadata or {})
    save_file(load_file(file) | {name.replace("__", "."): t for name, t in tensors.items()}, file, header)


def repack(folder, **tensors):
    """Pack other tensors with the same config."""
    dense = folder.parent / "dense" / WEIGHTS
    save_file(load_file(dense) | {name.replace("__", "."): t for name, t in tensors.items()}, dense, {"format": "pt"})
    pack_file(dense, folder / WEIGHTS)


@pytest.mark.parametrize("name", ["AutoImageProcessor", "AutoModelForImageClassification", "pipeline", "Trainer"])
def test_any_part_of_transformers_can_be_imported_first(name):
    """The module that registers the loader is imported while transformers is half imported."""
    code = (
        f"import hf_cyclical; from transformers import {name}, quantizers; import transformers.quantizers.auto as a; "
    )
    code += "assert 'hf_cyclical' in a.AUTO_QUANTIZER_MAPPING"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=HUNG)


@pytest.mark.usefixtures("little_memory")
class TestMemory:
    def test_labels_that_there_are_no_weights_for(self, resnet):
        config = json.loads((resnet / "config.json").read_text())
        config.pop("label2id")
        labels = {str(i): f"L{i}" for i in range(1 << 17)}
        (resnet / "config.json").write_text(json.dumps(config | {"id2label": labels, "hidden_sizes": [8, 8]}))
        refused(load_auto, "do not fit the config, which asks for more than the .* values that there are", resnet)

    def test_layers_that_there_are_no_weights_for(self, resnet):
        edit(resnet, depths=[1, 3])
        refused(load_auto, "do not fit the config, which asks for more than", resnet)
        with pytest.raises(PruningError, match="do not fit"):
            load(resnet)

    def test_layers_of_other_names(self, resnet):
        tensors = load_file(resnet.parent / "dense" / WEIGHTS)
        tensors["junk"] = tensors.pop(CONV)
        save_file(tensors, resnet.parent / "dense" / WEIGHTS, {"format": "pt"})
        pack_file(resnet.parent / "dense" / WEIGHTS, resnet / WEIGHTS)
        refused(
            load_auto,
            f"do not fit the config: 1 tensors are missing or of another dtype, the first is '{CONV}'",
            resnet,
        )

    @pytest.mark.parametrize("shape", [(1 << 28,), (1 << 14, 1 << 14)])
    def test_zeros_that_no_model_has(self, resnet, shape, tmp_path):
        """A gigabyte of zeros in some hundred bytes."""
        bomb(resnet / WEIGHTS, "junk", shape)
        assert (resnet / WEIGHTS).stat().st_size < 50_000
        for call, *more in ((load,), (unpack_folder, tmp_path / "back"), (hf_cyclical.compile,)):
            refused(call, "do not fit its config", resnet, *more)
        refused(load_auto, "more than max_bytes", resnet)
        assert not (tmp_path / "back").exists()

    def test_more_zeros_than_the_layer_has(self, resnet, tmp_path):
        bomb(resnet / WEIGHTS, CONV, (1 << 14, 1 << 14))
        for call, *more in ((load,), (unpack_folder, tmp_path / "back"), (hf_cyclical.compile,)):
            refused(call, "do not fit its config", resnet, *more)
        refused(load_auto, "more than max_bytes", resnet)

    @pytest.mark.parametrize("changes", [{"hidden_sizes": [60_000, 60_000]}, {"depths": [60_000, 60_000]}])
    def test_compile_has_the_limits_of_load(self, resnet, changes):
        edit(resnet, **changes)
        refused(hf_cyclical.compile, "do not fit its config, which asks for more than", resnet)

    def test_unpack_with_a_limit_of_ones_own(self, resnet, tmp_path):
        edit(resnet, depths=[1, 3])
        refused(unpack_folder, "do not fit its config", resnet, tmp_path / "back")
        unpack_folder(resnet, tmp_path / "back", max_bytes=1 << 20)
        assert (tmp_path / "back" / WEIGHTS).is_file()


class TestDamage:
    @pytest.mark.parametrize("place", [0, 3, 9, 40])
    @pytest.mark.parametrize("kind", ["resnet", "timm_folder"])
    def test_headers(self, kind, place, request):
        folder = request.getfixturevalue(kind)
        data = bytearray((folder / WEIGHTS).read_bytes())
        data[place] ^= 0xFF
        (folder / WEIGHTS).write_bytes(data)
        for call in (load_auto, load, hf_cyclical.compile):
            refused(call, "damaged|no safetensors file|fit", folder)

    @pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 1}', "[" * 5000, '{"version":"\\u001b[2J"}'])
    def test_metadata(self, resnet, text):
        replace_in(resnet / WEIGHTS, {"hf_cyclical_packed": text})
        refused(load_auto, "damaged|packed in layout", resnet)

    def test_a_payload_that_the_metadata_does_not_list(self, resnet):
        with safe_open(resnet / WEIGHTS, "pt") as opened:
            metadata = opened.metadata()
        about = json.loads(metadata["hf_cyclical_packed"])
        name = next(iter(about["tensors"]))
        del about["tensors"][name]
        replace_in(resnet / WEIGHTS, {"hf_cyclical_packed": json.dumps(about)})
        refused(load_auto, name, resnet)
        refused(load, name, resnet)

    @pytest.mark.parametrize("dtype", [torch.int8, torch.complex64, torch.uint8])
    def test_numbers_of_another_kind(self, resnet, dtype):
        tensors = load_file(resnet.parent / "dense" / WEIGHTS)
        repack(resnet, **{CONV: tensors[CONV].to(dtype)})
        refused(load, "do not fit its config", resnet)
        refused(load_auto, "dtype, the first is|cannot be", resnet)


class TestNames:
    @pytest.mark.parametrize("name", ["_attn_implementation", "attn_implementation"])
    @pytest.mark.parametrize("kernel", ["evil/kernel", "flash_attention_2", "paged|sdpa", "evil/x@main:y\x1b[2J"])
    def test_kernels(self, resnet, name, kernel):
        edit(resnet, **{name: kernel})
        refused(load_auto, "the config asks for the implementation '(evil/|flash|paged)", resnet)
        refused(load, "asks for", resnet)

    def test_of_tensors_are_not_printed(self, resnet, capfd):
        repack(resnet, **{"a\x1b[2Jb": torch.zeros(40)})
        refused(load_auto, "which is no name", resnet)
        refused(load, "do not fit", resnet)
        assert "\x1b[2J" not in "".join(capfd.readouterr())

    def test_what_transformers_quotes_before_anybody_has_looked_is_printable(self, resnet):
        edit(resnet, quantization_config={"quant_method": "a\x1b[2Jb"})
        code = (
            "import contextlib, sys, hf_cyclical; from transformers import AutoModel\n"
            "with contextlib.suppress(Exception): AutoModel.from_pretrained(sys.argv[1])"
        )
        said = subprocess.run([sys.executable, "-c", code, resnet], capture_output=True, text=True, timeout=HUNG)
        assert "a?[2Jb" in said.stderr  # it does quote it
        assert "\x1b[2J" not in said.stdout + said.stderr

    def test_a_model_without_its_head(self, resnet):
        assert AutoModel.from_pretrained(resnet).embedder is not None

    def test_a_timm_folder_keeps_its_dtype(self, tmp_path):
        save_timm("cifar_resnet8", tmp_path / "dense", label_names=["a", "b", "c"])
        tensors = load_file(tmp_path / "dense" / WEIGHTS)
        half = {name: t.bfloat16() if t.is_floating_point() else t for name, t in tensors.items()}
        save_file(half, tmp_path / "dense" / WEIGHTS, {"format": "pt"})
        pack_folder(tmp_path / "dense", tmp_path / "packed")
        assert {p.dtype for p in load_auto(tmp_path / "packed").parameters()} == {torch.bfloat16}

    @pytest.mark.parametrize("place", [0, 3, 9, 40])
    def test_damaged_headers_of_folders_from_before_the_dtype_was_stored(self, timm_folder, place):
        edit(timm_folder, quantization_config={"quant_method": "hf_cyclical", "dequantize": True})
        assert {p.dtype for p in load_auto(timm_folder).parameters()} == {torch.float32}
        data = bytearray((timm_folder / WEIGHTS).read_bytes())
        data[place] ^= 0xFF
        (timm_folder / WEIGHTS).write_bytes(data)
        refused(load_auto, "damaged|no safetensors file|fit", timm_folder)


@pytest.mark.usefixtures("little_memory")
class TestBeforeTheModelIsMade:
    @pytest.mark.parametrize("layout", ["dense", "packed"])
    def test_more_tensors_than_any_model_has(self, resnet, layout):
        """Each takes some bytes in the file, and far more where it is looked at."""
        folder = resnet.parent / layout
        replace_in(folder / WEIGHTS, **{f"x{i}": torch.zeros(0) for i in range(20_001)})
        calls = (load, hf_cyclical.compile, *([load_auto] if layout == "packed" else []))
        for call in calls:
            refused(call, "holds 20,039 tensors, more than any model", folder)

    @pytest.mark.parametrize(
        "changes", [{"depths": [60_000, 60_000]}, {"hidden_sizes": [1 << 30, 8]}, {"embedding_size": 1 << 40}]
    )
    def test_numbers_that_no_model_has(self, resnet, changes):
        edit(resnet, **changes)
        refused(load_auto, "more than any model", resnet)
        refused(load, "more than any model|do not fit", resnet)

    @pytest.mark.parametrize("backbone", ["evil/model", "hf-hub:evil/model", "local-dir:/tmp"])
    def test_backbones_of_the_hub(self, backbone, tmp_path):
        """transformers would make the model as another repository says."""
        inner = SwinConfig(
            embed_dim=8, depths=[1, 1], num_heads=[2, 2], window_size=4, image_size=32, out_features=["stage2"]
        )
        config = UperNetConfig(backbone_config=inner, hidden_size=8, pool_scales=[1], use_auxiliary_head=False)
        model = UperNetForSemanticSegmentation(config)
        prune(model, 0.9)
        model.save_pretrained(tmp_path / "dense")
        pack_folder(tmp_path / "dense", tmp_path / "packed")
        assert load(tmp_path / "packed") is not None
        edit(tmp_path / "packed", backbone_config={"model_type": "timm_backbone", "backbone": backbone})
        refused(load, "asks for 'backbone'", tmp_path / "packed")
        refused(AutoModelForSemanticSegmentation.from_pretrained, "asks for 'backbone'", tmp_path / "packed")
