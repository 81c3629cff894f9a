"""VGG-16 of Simonyan and Zisserman (2015) for CIFAR: its 13 convolutions and one linear layer."""

from typing import Any

from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from torch import Tensor, nn

from .common import CifarNet, cifar_cfg

STAGES = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))


class CifarVGG(CifarNet):
    """Stages of 3x3 convolutions, each followed by batch norm, each stage by a halving of the image."""

    def __init__(self, stages: tuple[tuple[int, ...], ...] = STAGES, num_classes: int = 10, in_chans: int = 3) -> None:
        super().__init__()
        self.stages = nn.Sequential()
        width_in = in_chans
        for widths in stages:
            stage = nn.Sequential()
            for i, width in enumerate(widths, start=1):
                stage.add_module(f"conv{i}", nn.Conv2d(width_in, width, 3, padding=1, bias=False))
                stage.add_module(f"bn{i}", nn.BatchNorm2d(width))
                stage.add_module(f"relu{i}", nn.ReLU(inplace=True))
                width_in = width
            # The ceiling lets images of fewer than 32 pixels through five halvings; 32 pixels halve evenly.
            stage.add_module("pool", nn.MaxPool2d(2, ceil_mode=True))
            self.stages.append(stage)
        self.add_head(width_in, num_classes)

    def forward_features(self, x: Tensor) -> Tensor:
        return self.stages(x)


default_cfgs = generate_default_cfgs({"cifar_vgg14": cifar_cfg("stages.0.conv1")})


@register_model
def cifar_vgg14(pretrained: bool = False, **kwargs: Any) -> CifarVGG:
    """VGG-14: 14,724,042 parameters for 10 classes."""
    return build_model_with_cfg(CifarVGG, "cifar_vgg14", pretrained, **kwargs)
