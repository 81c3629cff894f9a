"""Tiny models of every family that the package loads, and what tests do with them."""

import timm
import torch
import transformers
from support.sparse_weights import same_tensors

from hf_cyclical import magprune, prunable_parameters
from hf_cyclical.core import apply_masks_
from hf_cyclical.models import ImageSettings

LABELS = ["cat", "dog", "frog"]
IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
NORM = {"image_mean": list(IMAGENET["mean"]), "image_std": list(IMAGENET["std"])}
SQUARE = {"height": 32, "width": 32}
VIT = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
VIT |= {"image_size": 32, "patch_size": 8}
# A tiny model of each family of transformers, its processor, and the settings that the processor stands for.
FAMILIES = {
    "ResNet": (
        {"embedding_size": 8, "hidden_sizes": [8, 8], "depths": [1, 1], "layer_type": "basic"},
        transformers.ConvNextImageProcessor(size={"shortest_edge": 28}, crop_pct=0.875, resample=3, **NORM),
        ImageSettings(28, interpolation="bicubic", **IMAGENET),
    ),
    "ConvNext": (
        {"hidden_sizes": [8, 8], "depths": [1, 1], "num_stages": 2, "image_size": 384},
        transformers.ConvNextImageProcessor(size={"shortest_edge": 384}, crop_pct=0.875, resample=2, **NORM),
        ImageSettings(384, interpolation="bilinear", **IMAGENET),
    ),
    "ViT": (
        VIT,
        transformers.ViTImageProcessor(size=SQUARE, resample=2),
        ImageSettings(32, (0.5,) * 3, (0.5,) * 3, "bilinear"),
    ),
    "Swin": (
        {"embed_dim": 8, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4, "image_size": 32, "patch_size": 4},
        transformers.ViTImageProcessor(size=SQUARE, resample=0, do_normalize=False),
        ImageSettings(32, (0.0,) * 3, (1.0,) * 3, "nearest"),
    ),
    "DeiT": (
        VIT,
        transformers.DeiTImageProcessor(size={"height": 40, "width": 40}, crop_size=SQUARE, resample=3, **NORM),
        ImageSettings(32, interpolation="bicubic", **IMAGENET),
    ),
    "MobileNetV2": (
        {"depth_multiplier": 0.25, "image_size": 32},
        transformers.MobileNetV2ImageProcessor(size={"shortest_edge": 64}, crop_size=SQUARE, resample=2),
        ImageSettings(32, (0.5,) * 3, (0.5,) * 3, "bilinear"),
    ),
    "EfficientNet": (
        {"width_coefficient": 0.25, "depth_coefficient": 0.1, "hidden_dim": 320, "image_size": 32},
        # The published configs hold the root of the deviation, because this processor divides by it twice.
        transformers.EfficientNetImageProcessor(
            size=SQUARE, resample=0, image_mean=NORM["image_mean"], image_std=[s**0.5 for s in NORM["image_std"]]
        ),
        ImageSettings(32, interpolation="nearest", **IMAGENET),
    ),
}
TIMM = ["test_resnet", "test_vit", "test_convnext", "test_efficientnet", "cifar_resnet8", "cifar_resnet20"]
TIMM += ["cifar_vgg14", "cifar_mobilenet"]


def save_family(family, folder, labels=LABELS):
    fields, processor, _ = FAMILIES[family]
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**fields, id2label=dict(enumerate(labels)))
    model = getattr(transformers, f"{family}ForImageClassification")(config).eval()
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return model


def save_timm(name, folder, num_classes=3, **config):
    """A folder as timm itself writes it."""
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=num_classes).eval()
    timm.models.save_for_hf(model, folder, model_config=config, safe_serialization=True)
    return model


def images(size, n=2):
    return torch.randn(n, 3, size, size, generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def logits(model, pixels):
    output = model.eval()(pixels)
    return getattr(output, "logits", output)


def same(a, b):
    return torch.allclose(a, b, rtol=1e-4, atol=1e-5)


def assert_same_model(a, b, pixels):
    """Equal bit for bit in what is saved. What comes out may be rounded otherwise if memory is aligned otherwise."""
    assert same_tensors(a.state_dict(), b.state_dict())
    expected = logits(b, pixels)
    torch.testing.assert_close(logits(a, pixels), expected, rtol=0, atol=1e-4 * float(expected.abs().max()))


def prune(model, s=0.5):
    params = prunable_parameters(model)
    apply_masks_(params, magprune(params, s))
    return {name: int((p == 0).sum()) for name, p in params.items()}


def save_pruned(family, folder, s=0.9):
    """Save a model of a family in which a part `s` of the weights is zero, and give the folder."""
    model = save_family(family, folder)
    prune(model, s)
    model.save_pretrained(folder)
    return folder


def zeros(model, names):
    params = dict(model.named_parameters())
    return {name: int((params[name] == 0).sum()) for name in names}
