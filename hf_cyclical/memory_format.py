"""The layout of images in memory: convolutions on a CPU, and on newer GPUs, are faster with the channels innermost."""

from torch import Tensor, channels_last, nn

__all__ = ["is_convolutional", "with_channels_last"]


def is_convolutional(model: nn.Module) -> bool:
    """Whether a model has several 2-D convolutions; the only one of a transformer cuts the image into patches."""
    return sum(isinstance(module, nn.Conv2d) for module in model.modules()) > 1


def with_channels_last(values: Tensor) -> Tensor:
    """A batch of images with the channels innermost; other tensors as they are.

    The format of the images is enough: convolutions keep it, and bring their weights into it on the fly. So the
    weights stay as they are, for masks, optimizers, checkpoints and processes that share them.
    """
    return values.contiguous(memory_format=channels_last) if values.dim() == 4 else values
