"""The CIFAR ResNets of He et al. (2016), with shortcuts that have no parameters."""

from typing import Any

import torch
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from torch import Tensor, nn
from torch.nn import functional as F


class Block(nn.Module):
    """Two 3x3 convolutions and a shortcut: every second pixel, and zeros for the channels that are new."""

    def __init__(self, width_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width_in, width, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.stride = stride
        self.new_channels = width - width_in

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        half = self.new_channels // 2
        shortcut = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, half, self.new_channels - half))
        return F.relu(y + shortcut)


class CifarResNet(nn.Module):
    """A ResNet of 6n + 2 layers: a 3x3 stem, three stages of n blocks, a linear head."""

    def __init__(
        self, blocks: int, widths: tuple[int, ...] = (16, 32, 64), num_classes: int = 10, in_chans: int = 3
    ) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.num_features = self.head_hidden_size = widths[-1]
        self.conv1 = nn.Conv2d(in_chans, widths[0], 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(widths[0])
        stages, width_in = [], widths[0]
        for i, width in enumerate(widths):
            strides = [1 if i == 0 else 2] + [1] * (blocks - 1)
            stages.append(
                nn.Sequential(*(Block(width_in if j == 0 else width, width, s) for j, s in enumerate(strides)))
            )
            width_in = width
        self.layer1, self.layer2, self.layer3 = stages
        self.fc = nn.Linear(self.num_features, num_classes)
        for module in self.modules():
            if isinstance(module, (nn.Conv2d, nn.Linear)):
                nn.init.kaiming_normal_(module.weight)

    def get_classifier(self) -> nn.Module:
        return self.fc

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        self.num_classes = num_classes
        self.fc = nn.Linear(self.num_features, num_classes) if num_classes else nn.Identity()

    def forward_features(self, x: Tensor) -> Tensor:
        return self.layer3(self.layer2(self.layer1(F.relu(self.bn1(self.conv1(x))))))

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        pooled = torch.mean(x, dim=(2, 3))
        return pooled if pre_logits else self.fc(pooled)

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(x))


def _cfg() -> dict[str, Any]:
    return {
        "num_classes": 10,
        "input_size": (3, 32, 32),
        "pool_size": None,
        "crop_pct": 1.0,
        "interpolation": "bilinear",
        "mean": IMAGENET_DEFAULT_MEAN,
        "std": IMAGENET_DEFAULT_STD,
        "first_conv": "conv1",
        "classifier": "fc",
        "min_input_size": (3, 8, 8),
    }


default_cfgs = generate_default_cfgs({"cifar_resnet8.untrained": _cfg()})


def _create(variant: str, pretrained: bool, **kwargs: Any) -> CifarResNet:
    return build_model_with_cfg(CifarResNet, variant, pretrained, **kwargs)


@register_model
def cifar_resnet8(pretrained: bool = False, **kwargs: Any) -> CifarResNet:
    """ResNet-8: 75,290 parameters."""
    return _create("cifar_resnet8", pretrained, blocks=1, **kwargs)
