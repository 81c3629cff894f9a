"""How transformers' own `from_pretrained` loads packed weights: as a quantized model that is dequantized at once.

Importing this module registers it. What it needs of transformers beyond the registration is not a stable interface;
`load_packed_model` does without.
"""

from typing import Any

import torch
from torch import nn
from transformers.core_model_loading import ConversionOps
from transformers.quantizers import HfQuantizer, register_quantization_config, register_quantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from hf_cyclical.core import PruningError
from hf_cyclical.formats import QUANTIZATION_METHOD, decode, iterate_packed, packed_names

_WIDEST = 8  # bytes of the largest dtype that can be packed


@register_quantization_config(QUANTIZATION_METHOD)
class PackedConfig(QuantizationConfigMixin):
    """What a packed model's config.json says of its weights."""

    def __init__(self, **_: Any) -> None:
        super().__init__(quant_method=QUANTIZATION_METHOD)
        self.dequantize = True  # there is no other way: after loading the model is an ordinary one


class Unpack(ConversionOps):
    """Replaces payloads by the tensors that they hold; what is no payload stays as it is."""

    def __init__(self, quantizer: "PackedQuantizer") -> None:
        self.max_bytes = quantizer.max_bytes

    def convert(
        self, input_dict: dict[str, Any], full_layer_name: str = "", model: nn.Module | None = None, **_: Any
    ) -> dict[str, Any]:
        return {
            pattern: [self._unpack(tensor, full_layer_name, model) for tensor in tensors]
            for pattern, tensors in input_dict.items()
        }

    def _unpack(self, tensor: torch.Tensor, name: str, model: nn.Module) -> torch.Tensor:
        if tensor.dtype != torch.uint8:
            return tensor
        decoded = decode(tensor.cpu(), name, max_bytes=self.max_bytes).to(tensor.device)
        expected = model.state_dict().get(name)  # None for a part that transformers merges with others
        return decoded if expected is None else decoded.to(expected.dtype)

    @property
    def reverse_op(self) -> ConversionOps:
        return _Nothing()


class _Nothing(ConversionOps):
    """A model that was unpacked is saved as it is."""

    def convert(self, input_dict: dict[str, Any], **_: Any) -> dict[str, Any]:
        return input_dict


@register_quantizer(QUANTIZATION_METHOD)
class PackedQuantizer(HfQuantizer):
    """Checks a packed file as a whole, then has its tensors unpacked one by one."""

    def _process_model_before_weight_loading(
        self, model: nn.Module, checkpoint_files: list[str] | None = None, **_: Any
    ) -> None:
        # Errors of a conversion become a long report, so what is damaged has to be found before.
        if checkpoint_files is None or len(checkpoint_files) != 1:
            raise PruningError("packed weights must be in one file: pack the model again")
        file = checkpoint_files[0]
        state = model.state_dict()
        self.max_bytes = _WIDEST * sum(tensor.numel() for tensor in state.values())
        for _name, _tensor in iterate_packed(file, max_bytes=self.max_bytes):
            pass
        leaves = {name.rpartition(".")[2] for name in packed_names(file)}
        self.serialized_names = {leaf: [leaf] for leaf in sorted(leaves)}
        self._shapes = {name: tensor.shape for name, tensor in state.items()}

    def get_load_operations(self) -> dict[str, type[ConversionOps]]:
        return {"dequantize": Unpack}

    def _process_model_after_weight_loading(self, model: nn.Module, **_: Any) -> nn.Module:
        # For quantized weights transformers takes any shape.
        for name, tensor in model.state_dict().items():
            if tensor.shape != self._shapes[name]:
                raise PruningError(
                    f"the packed weights of {name} have shape {tuple(tensor.shape)}, the config wants "
                    f"{tuple(self._shapes[name])}: load the model as it was packed, or unpack it first"
                )
        return model

    def param_needs_quantization(self, model: nn.Module, param_name: str, **_: Any) -> bool:
        # Of weights that are stored quantized, transformers asks this only to know who checks their shapes: we do.
        return True

    def is_serializable(self) -> bool:
        return True

    @property
    def is_trainable(self) -> bool:
        return True
