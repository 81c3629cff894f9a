"""What the networks of this package share, and what timm asks of a network."""

from typing import Any

import torch
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from torch import Tensor, nn


class CifarNet(nn.Module):
    """Features, their mean over the image, and one linear layer.

    A subclass makes its layers, ends its `__init__` with `add_head`, and defines `forward_features`.
    """

    def add_head(self, num_features: int, num_classes: int) -> None:
        """The last layer, and the initial weights of all layers."""
        self.num_features = self.head_hidden_size = num_features
        self.reset_classifier(num_classes)
        for module in self.modules():
            if isinstance(module, (nn.Conv2d, nn.Linear)):
                nn.init.kaiming_normal_(module.weight)

    def get_classifier(self) -> nn.Module:
        return self.fc

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        self.num_classes = num_classes
        self.fc = nn.Linear(self.num_features, num_classes) if num_classes else nn.Identity()

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        # A mean has a contiguous gradient. Where the channels are innermost it must be contiguous in that order, or the
        # shortcuts would carry it back through all blocks in another layout than their activations have.
        innermost = x.is_contiguous(memory_format=torch.channels_last)
        pooled = x.permute(0, 2, 3, 1).mean(dim=(1, 2)) if innermost else x.mean(dim=(2, 3))
        return pooled if pre_logits else self.fc(pooled)

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(x))


def cifar_cfg(first_conv: str) -> dict[str, Any]:
    """The description that timm wants of a network for CIFAR images, without published weights."""
    return {
        "num_classes": 10,
        "input_size": (3, 32, 32),
        "pool_size": None,
        "crop_pct": 1.0,
        "interpolation": "bilinear",
        "mean": IMAGENET_DEFAULT_MEAN,
        "std": IMAGENET_DEFAULT_STD,
        "first_conv": first_conv,
        "classifier": "fc",
        "min_input_size": (3, 8, 8),
    }
