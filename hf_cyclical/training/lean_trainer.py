"""A Trainer that saves time in every update."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import Trainer

__all__ = ["LeanTrainer", "is_convolutional"]

_FEWEST = 16  # channels of a strided 1x1 convolution


class LeanTrainer(Trainer):
    """Gives convolutions their images in the layout that is fastest for them, and leaves out what nobody sees.

    The layout of the images is enough: convolutions keep it, and bring their weights into it on the fly. So the weights
    stay as they are, for masks, optimizers, checkpoints and the processes that share them.

    Attributes:
        channels_last: Whether images go into the model with their channels innermost.
    """

    def __init__(self, *args: Any, channels_last: bool = False, **kwargs: Any) -> None:
        self.channels_last = channels_last
        super().__init__(*args, **kwargs)

    def _prepare_input(self, data: Any) -> Any:
        data = super()._prepare_input(data)
        images = self.channels_last and isinstance(data, Tensor) and data.dim() == 4
        return data.contiguous(memory_format=torch.channels_last) if images else data

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Any:
        """As in Trainer, which measures it in every update, also where nothing is clipped or logged."""
        unseen = grad_norm is None and self.args.logging_strategy == "no"
        return None if unseen else super()._get_grad_norm(model, grad_norm)


def is_convolutional(model: nn.Module) -> bool:
    """Whether a model has several 2-D convolutions; the only one of a transformer cuts the image into patches.

    One of a kind that torch 2.15 cannot differentiate on a CPU with the channels innermost (it ends the process) makes
    it False: a strided 1x1 convolution of fewer than 16 channels.
    """
    convolutions = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    return len(convolutions) > 1 and not any(
        conv.kernel_size == (1, 1) and conv.stride != (1, 1) and conv.in_channels < _FEWEST for conv in convolutions
    )
