"""MobileNet of Howard et al. (2017) for CIFAR: its stem does not halve the image."""

from typing import Any

from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from torch import Tensor, nn
from torch.nn import functional as F

from .common import CifarNet, cifar_cfg

# Width and stride of each block.
BLOCKS = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *((512, 1),) * 5, (1024, 2), (1024, 1))


class SeparableBlock(nn.Module):
    """A 3x3 convolution within each channel, then a 1x1 convolution across channels."""

    def __init__(self, width_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width_in, width_in, 3, stride=stride, padding=1, groups=width_in, bias=False)
        self.bn1 = nn.BatchNorm2d(width_in)
        self.pointwise = nn.Conv2d(width_in, width, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.depthwise(x)), inplace=True)
        return F.relu(self.bn2(self.pointwise(x)), inplace=True)


class CifarMobileNet(CifarNet):
    """A 3x3 stem, separable blocks, a linear head."""

    def __init__(
        self,
        stem: int = 32,
        blocks: tuple[tuple[int, int], ...] = BLOCKS,
        num_classes: int = 10,
        in_chans: int = 3,
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_chans, stem, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(stem)
        self.blocks = nn.Sequential()
        width_in = stem
        for width, stride in blocks:
            self.blocks.append(SeparableBlock(width_in, width, stride))
            width_in = width
        self.add_head(width_in, num_classes)

    def forward_features(self, x: Tensor) -> Tensor:
        return self.blocks(F.relu(self.bn1(self.conv1(x)), inplace=True))


default_cfgs = generate_default_cfgs({"cifar_mobilenet": cifar_cfg("conv1")})


@register_model
def cifar_mobilenet(pretrained: bool = False, **kwargs: Any) -> CifarMobileNet:
    """MobileNet: 3,217,226 parameters for 10 classes."""
    return build_model_with_cfg(CifarMobileNet, "cifar_mobilenet", pretrained, **kwargs)
