"""The CIFAR ResNets of He et al. (2016), with shortcuts that have no parameters."""

from typing import Any

from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from torch import Tensor, nn
from torch.nn import functional as F

from .common import CifarNet, cifar_cfg


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
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)), inplace=True)))
        if self.stride > 1 or self.new_channels:
            half = self.new_channels // 2
            # Every second pixel is a pooling of one, whose gradient, unlike a slice's, keeps the layout of x.
            x = F.pad(F.avg_pool2d(x, 1, self.stride), (0, 0, 0, 0, half, self.new_channels - half))
        y += x
        return F.relu(y, inplace=True)


class CifarResNet(CifarNet):
    """A ResNet of 6n + 2 layers: a 3x3 stem, three stages of n blocks, a linear head."""

    def __init__(
        self, blocks: int, widths: tuple[int, ...] = (16, 32, 64), num_classes: int = 10, in_chans: int = 3
    ) -> None:
        super().__init__()
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
        self.add_head(widths[-1], num_classes)

    def forward_features(self, x: Tensor) -> Tensor:
        return self.layer3(self.layer2(self.layer1(F.relu(self.bn1(self.conv1(x)), inplace=True))))


default_cfgs = generate_default_cfgs({f"cifar_resnet{depth}": cifar_cfg("conv1") for depth in (8, 20, 56)})


@register_model
def cifar_resnet8(pretrained: bool = False, **kwargs: Any) -> CifarResNet:
    """ResNet-8: 75,290 parameters for 10 classes."""
    return build_model_with_cfg(CifarResNet, "cifar_resnet8", pretrained, blocks=1, **kwargs)


@register_model
def cifar_resnet20(pretrained: bool = False, **kwargs: Any) -> CifarResNet:
    """ResNet-20: 269,722 parameters for 10 classes."""
    return build_model_with_cfg(CifarResNet, "cifar_resnet20", pretrained, blocks=3, **kwargs)


@register_model
def cifar_resnet56(pretrained: bool = False, **kwargs: Any) -> CifarResNet:
    """ResNet-56: 853,018 parameters for 10 classes."""
    return build_model_with_cfg(CifarResNet, "cifar_resnet56", pretrained, blocks=9, **kwargs)
