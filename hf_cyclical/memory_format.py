"""The layout of images in memory: convolutions on a CPU, and on newer GPUs, are faster with the channels innermost."""

from torch import Tensor, channels_last, nn

__all__ = ["is_convolutional", "with_channels_last"]


_FEWEST = 16  # channels of a strided 1x1 convolution


def is_convolutional(model: nn.Module) -> bool:
    """Whether a model has several 2-D convolutions; the only one of a transformer cuts the image into patches.

    One of a kind that torch 2.15 cannot differentiate on a CPU with the channels innermost (it ends the process) makes
    it False: a strided 1x1 convolution of fewer than 16 channels.
    """
    convolutions = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    return len(convolutions) > 1 and not any(
        conv.kernel_size == (1, 1) and conv.stride != (1, 1) and conv.in_channels < _FEWEST for conv in convolutions
    )


def with_channels_last(values: Tensor) -> Tensor:
    """A batch of images with the channels innermost; other tensors as they are.

    The format of the images is enough: convolutions keep it, and bring their weights into it on the fly. So the
    weights stay as they are, for masks, optimizers, checkpoints and processes that share them.
    """
    return values.contiguous(memory_format=channels_last) if values.dim() == 4 else values
