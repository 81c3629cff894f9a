"""Configs of strangers: what they ask for is refused in one line before it takes memory, and good models still load."""

import json
import time

import pytest
import timm
import torch
from safetensors.torch import save_file
from support.tiny_models import FAMILIES, assert_same_model, images, save_family, save_timm
from torch import nn

from hf_cyclical import PruningError
from hf_cyclical.formats import pack_folder
from hf_cyclical.models import load_packed_model

pytestmark = pytest.mark.usefixtures("little_memory")


def edit(folder, **changes):
    config = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps(config))


def refused(folder, words):
    start = time.process_time()
    with pytest.raises(PruningError, match=words) as caught:
        load_packed_model(folder)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600
    assert time.process_time() - start < 5


class TestTransformers:
    @pytest.mark.parametrize("layout", ["dense", "packed"])
    @pytest.mark.parametrize(
        ("family", "changes"),
        [
            ("ViT", {"hidden_size": 1_000_000}),
            ("ViT", {"hidden_size": 100_000, "num_attention_heads": 1}),
            ("ViT", {"intermediate_size": 1_000_000}),
            ("ViT", {"num_hidden_layers": 1_000_000}),
            ("ViT", {"image_size": 1_000_000}),
            ("Swin", {"embed_dim": 1_000_000}),
            ("Swin", {"depths": [100] * 1000}),
            ("ResNet", {"hidden_sizes": [60_000, 60_000]}),
            ("ResNet", {"depths": [60_000, 60_000]}),
            ("ConvNext", {"depths": [60_000, 60_000]}),
            ("EfficientNet", {"width_coefficient": 1e6}),
            ("EfficientNet", {"depth_coefficient": 1e12}),
        ],
    )
    def test_sizes(self, family, changes, layout, tmp_path):
        save_family(family, tmp_path / "dense")
        pack_folder(tmp_path / "dense", tmp_path / "packed")
        edit(tmp_path / layout, **changes)
        refused(tmp_path / layout, "do not fit its config, which asks for more than")

    @pytest.mark.parametrize(
        "changes",
        [
            {"num_labels": 10**9, "id2label": None, "label2id": None},
            {"hidden_size": 10**30},
            {"hidden_size": -(10**12)},
            {"depths": [10**5, [10**5]]},
            {"depths": [0] * 10**6},
            {"backbone_config": {"model_type": "resnet", "num_labels": 10**12}},
        ],
    )
    def test_numbers_that_nothing_has(self, changes, tmp_path):
        save_family("ViT", tmp_path)
        edit(tmp_path, **changes)
        refused(tmp_path, r"config.json in .* has '(num_labels|hidden_size|depths)' above 1")

    def test_tables_that_are_in_no_file(self, tmp_path):
        """The index of a window of n x n has n**4 entries, its weights 4 n**2."""
        from transformers import SwinConfig, SwinForImageClassification

        fields = FAMILIES["Swin"][0] | {"depths": [1], "num_heads": [1]}
        SwinForImageClassification(SwinConfig(**fields)).save_pretrained(tmp_path)
        edit(tmp_path, window_size=400, image_size=1600)
        refused(tmp_path, "do not fit its config|more than max_bytes")

    def test_tables_of_a_model_that_cannot_be_made(self, tmp_path):
        """It is not tried again in memory, where its tables would be far larger than its weights."""
        save_family("Swin", tmp_path)
        edit(tmp_path, image_size=1280, window_size=160, hidden_act="nothing")
        refused(tmp_path, "nothing")

    def test_loops_over_pairs_of_patches(self, tmp_path):
        from transformers import LevitConfig

        LevitConfig(image_size=4096).save_pretrained(tmp_path)
        save_file({"x": torch.zeros(1)}, tmp_path / "model.safetensors", {"format": "pt"})
        refused(tmp_path, "has 'image_size' above 512")

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"architecture": "hf-hub:someone/else"}, "names the architecture 'hf-hub:someone/else', which timm lacks"),
            ({"architecture": "x" * 10_000}, "names the architecture 'xxx"),
            ({"model_args": {"checkpoint_path": "elsewhere"}}, "model_args with 'checkpoint_path'"),
            ({"model_args": {"embed_dim": 1_000_000}}, "do not fit its config"),
        ],
    )
    def test_the_wrapper_of_timm(self, changes, words, tmp_path):
        save_timm("test_vit", tmp_path)
        edit(tmp_path, model_type="timm_wrapper", **changes)
        refused(tmp_path, words)

    @pytest.mark.parametrize(
        "changes",
        [
            {"attn_implementation": "evil/kernel"},
            {"_attn_implementation": "kernels-community/flash-attn2"},
            {"parts": [{"_experts_implementation": "evil/kernel"}]},
        ],
    )
    def test_code_of_the_hub(self, changes, tmp_path):
        save_family(next(iter(FAMILIES)), tmp_path)
        edit(tmp_path, **changes)
        refused(tmp_path, "_implementation' '(evil|kernels-community)/")

    @pytest.mark.parametrize("family", FAMILIES)
    def test_good_ones(self, family, tmp_path):
        model = save_family(family, tmp_path)
        assert_same_model(load_packed_model(tmp_path), model, images(32))


class TestTimm:
    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"model_args": {"embed_dim": 1_000_000}}, "do not fit its config, which asks for more than"),
            ({"model_args": {"embed_dim": 20_000}}, "do not fit its config, which asks for more than"),
            ({"model_args": {"depth": 1_000_000}}, "do not fit its config, which asks for more than"),
            ({"model_args": {"img_size": 1_000_000}}, "do not fit its config, which asks for more than"),
            ({"num_classes": 1_000_000}, "do not fit its config"),
            ({"num_classes": 10**9}, "'num_classes' above 1,048,576"),
            ({"model_args": {"num_classes": 4}}, "has num_classes 3, and in model_args '4'"),
            ({"model_args": {"num_classes": 10**9}, "num_classes": None}, "'num_classes' above 1,048,576"),
        ],
    )
    def test_sizes(self, changes, words, tmp_path):
        save_timm("test_vit", tmp_path)
        edit(tmp_path, **changes)
        refused(tmp_path, words)

    @pytest.mark.parametrize("name", ["test_vit", "test_convnext", "test_efficientnet", "cifar_mobilenet"])
    def test_good_ones(self, name, tmp_path):
        model = save_timm(name, tmp_path)
        assert_same_model(load_packed_model(tmp_path), model, images(64))


class Peculiar(nn.Module):
    """Looks at values when it is made, which a tensor of the meta device has none of."""

    def __init__(self, width=8, num_classes=3, **_):
        super().__init__()
        rates = [rate.item() for rate in torch.arange(3) / 4]
        self.dropout = nn.Dropout(rates[1])
        self.fc = nn.Linear(3, width)
        self.table = nn.Parameter(torch.ones(width, width))
        self.head = nn.Linear(width, num_classes)
        self.pretrained_cfg = {
            "architecture": "peculiar_model", "num_classes": num_classes, "input_size": (3, 8, 8)
        }  # fmt: skip
        self.num_classes, self.num_features = num_classes, width

    def forward(self, x):
        return self.head(self.fc(x.mean((2, 3))) @ self.table)


class TestModelsThatCannotBeSketched:
    @pytest.fixture(autouse=True)
    def register(self, monkeypatch):
        from timm.models import _registry

        monkeypatch.setitem(_registry._model_entrypoints, "peculiar_model", make_peculiar)

    def test_load(self, tmp_path):
        model = save_timm("peculiar_model", tmp_path)
        with pytest.raises(RuntimeError, match="meta"), torch.device("meta"):
            timm.create_model("peculiar_model")
        assert_same_model(load_packed_model(tmp_path), model, images(8))

    @pytest.mark.parametrize("width", [30_000, 1_000_000])
    def test_are_bounded_too(self, width, tmp_path):
        save_timm("peculiar_model", tmp_path)
        edit(tmp_path, model_args={"width": width})
        refused(tmp_path, "do not fit its config, which asks for more than")


def make_peculiar(pretrained=False, pretrained_cfg=None, pretrained_cfg_overlay=None, cache_dir=None, **kwargs):
    return Peculiar(**kwargs)
