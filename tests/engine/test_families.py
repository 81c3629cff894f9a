"""Models of every family give what torch gives, in the original's output type."""

import pytest
import timm
import torch
import transformers
from engine.checks import assert_same_as_torch, images, sparsify
from support.tiny_models import FAMILIES

from hf_cyclical.engine.graph import build_graph
from hf_cyclical.engine.native import host

TIMM = {
    "cifar_resnet20": 32,
    "cifar_vgg14": 32,
    "cifar_mobilenet": 32,
    "resnet18": 65,
    "resnet50": 64,
    "mobilenetv2_050": 64,
    "efficientnet_lite0": 64,
    "test_resnet": 64,
    "test_vit": 160,
    "test_convnext": 64,
    "test_efficientnet": 64,
    "mobilenetv3_small_050": 64,
}


@pytest.mark.parametrize("name", TIMM)
def test_models_of_timm(name):
    torch.manual_seed(0)
    model = sparsify(timm.create_model(name, num_classes=7), 0.9)
    assert_same_as_torch(model, images(2, 3, TIMM[name], TIMM[name]))


@pytest.mark.parametrize("family", FAMILIES)
def test_models_of_transformers(family):
    torch.manual_seed(0)
    fields = FAMILIES[family][0]
    config = getattr(transformers, f"{family}Config")(**fields, num_labels=5)
    model = sparsify(getattr(transformers, f"{family}ForImageClassification")(config), 0.9)
    pixels = images(2, 3, 32, 32)
    assert_same_as_torch(model, pixels, native=family in ("ResNet", "ConvNext", "ViT", "DeiT"))
    graph = build_graph(model, (3, 32, 32), host(), 1)
    with torch.no_grad():
        assert type(graph.run(pixels)) is type(model(pixels))


def test_a_model_with_windows_runs_its_attention_in_torch():
    torch.manual_seed(0)
    fields = {"image_size": 32, "window_size": 4, "depths": [1, 1], "num_heads": [2, 4], "embed_dim": 16}
    model = transformers.SwinForImageClassification(transformers.SwinConfig(**fields, num_labels=5))
    graph = assert_same_as_torch(sparsify(model, 0.9), images(2, 3, 32, 32), native=False)
    assert "aten.linear.default" not in graph.torch_nodes
    assert {choice.path for choice in graph.choices} <= {"sparse", "dense"}
