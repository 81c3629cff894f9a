"""How many multiply-adds a model takes for one image, and how many are left without those by zero."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from hf_cyclical.core import PruningError, first_line
from hf_cyclical.formats import CONFIG, read_json
from hf_cyclical.models import load_image_processor, load_packed_model, processor_settings

logger = logging.getLogger(__name__)

_FORWARD = {F.linear, F.conv1d, F.conv2d, F.conv3d}
_TRANSPOSED = {F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d}


@dataclass(frozen=True)
class MultiplyAdds:
    """Multiply-adds of the convolutions and linear layers for one image; those on padding count, too.

    Attributes:
        dense: All of them.
        sparse: Those by weights that are not zero.
        shape: Channels, height and width of the image.
    """

    dense: int
    sparse: int
    shape: tuple[int, int, int]


def count_multiply_adds(model: nn.Module, shape: tuple[int, int, int]) -> MultiplyAdds:
    """Run a model once, and count what its convolutions and linear layers do.

    What counts are the weights that are multiplied by, so that a layer that computes them from its parameters (weight
    standardisation, for one) is as dense as what it computes. Products of activations, as in attention, do not count.

    Args:
        model: The model; it is left in evaluation mode.
        shape: Channels, height and width of an image.
    """
    parameter = next(model.parameters())
    with torch.no_grad(), _Counter() as counter:
        model.eval()(torch.zeros(1, *shape, dtype=parameter.dtype, device=parameter.device))
    return MultiplyAdds(counter.dense, counter.sparse, shape)


def count_in_folder(folder: Path) -> MultiplyAdds | None:
    """The same for a saved model, at the size of the images that it is meant for; None if that cannot be told."""
    try:
        model = load_packed_model(folder)
        counted = count_multiply_adds(model, _image_shape(folder, model))
        return counted if counted.dense else None
    except (PruningError, ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        logger.info("the card does not tell the multiply-adds, as the model cannot be run: %s", first_line(error))
        return None


def _image_shape(folder: Path, model: nn.Module) -> tuple[int, int, int]:
    config = read_json(str(folder), folder / CONFIG)
    if source := config.get("pretrained_cfg"):
        channels, height, width = source["input_size"]
        return channels, height, width
    processor = load_image_processor(str(folder), folder, model.config, None)
    side = processor_settings(str(folder), processor, model.config).size
    return config.get("num_channels", 3), side, side


class _Counter(TorchFunctionMode):
    dense = sparse = 0

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in _FORWARD | _TRANSPOSED:
            given = dict(enumerate(args)) | (kwargs or {})
            images, weight = given.get(0, given.get("input")), given.get(1, given.get("weight"))
            self._count(images if func in _TRANSPOSED else result, weight)
        return result

    def _count(self, places: Tensor, weight: Tensor) -> None:
        """Every weight is used once at each place: of the output, or of the input if that is spread out."""
        times = places.numel() // weight.shape[0]
        self.dense += times * weight.numel()
        self.sparse += times * int(weight.count_nonzero())
