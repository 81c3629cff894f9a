"""How transformers' own `from_pretrained` loads packed weights: as a quantized model that is dequantized at once.

Importing this module registers it. What it needs of transformers beyond the registration is not a stable interface;
`load_packed_model` does without.
"""

import copy
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers.core_model_loading import ConversionOps
from transformers.quantizers import HfQuantizer, register_quantization_config, register_quantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from hf_cyclical.core import PruningError
from hf_cyclical.formats import (
    KEY,
    QUANTIZATION_KEY,
    QUANTIZATION_METHOD,
    WEIGHTS,
    decode,
    iterate_packed,
    packed_names,
    read_kinds,
)

from .silence import print_safely

if TYPE_CHECKING:  # at run time transformers is half imported here
    from transformers import PreTrainedConfig, PreTrainedModel

print_safely()

_WIDEST = 8  # bytes of the largest dtype that can be packed


@register_quantization_config(QUANTIZATION_METHOD)
class PackedConfig(QuantizationConfigMixin):
    """What a packed model's config.json says of its weights."""

    def __init__(self, dtype: Any = None, **_: Any) -> None:
        super().__init__(quant_method=QUANTIZATION_METHOD)
        self.dtype = dtype  # of the weights, for a config that does not tell
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

    def update_attn_implementation(self, config: "PreTrainedConfig") -> "PreTrainedConfig":
        """The first look at the config, before the model is made: nothing of the Hub, no huge sizes, and its dtype."""
        from .untrusted_config import MOST_LAYERS, refuse_large_numbers, refuse_other_backbones

        _refuse_kernels(config)
        settings = {key: value for key, value in config.to_dict().items() if key != KEY}
        refuse_other_backbones(config.name_or_path, settings)
        refuse_large_numbers(config.name_or_path, settings, most_layers=MOST_LAYERS)
        if config.dtype is None:  # transformers would look for it in a file that may be damaged
            config.dtype = _known_dtype(self.quantization_config.dtype, Path(config.name_or_path) / WEIGHTS)
        return config

    def _process_model_before_weight_loading(
        self, model: "PreTrainedModel", checkpoint_files: list[str] | None = None, **_: Any
    ) -> None:
        # Errors of a conversion become a long report, so what is damaged has to be found before.
        if checkpoint_files is None or len(checkpoint_files) != 1:
            raise PruningError("packed weights must be in one file: pack the model again")
        file = checkpoint_files[0]
        state = model.state_dict()
        self.max_bytes = _WIDEST * sum(tensor.numel() for tensor in state.values())
        names = packed_names(file)
        _refuse_misfits(model, file, self.max_bytes)
        for _name, _tensor in iterate_packed(file, max_bytes=self.max_bytes):
            pass
        self.serialized_names = {leaf: [leaf] for leaf in sorted({name.rpartition(".")[2] for name in names})}

    def get_load_operations(self) -> dict[str, type[ConversionOps]]:
        return {"dequantize": Unpack}

    def param_needs_quantization(self, model: nn.Module, param_name: str, **_: Any) -> bool:
        # Of weights that are stored quantized, transformers asks this only to know who checks their shapes: we do.
        return True

    def is_serializable(self) -> bool:
        return True

    @property
    def is_trainable(self) -> bool:
        return True


def _refuse_misfits(model: "PreTrainedModel", file: str, max_bytes: int) -> None:
    """Refuse what does not fit, before it takes memory; what only another head has may be left over."""
    from .fitting import compare_loaded

    kinds = read_kinds(file, max_bytes=max_bytes)
    if strange := [name for name in kinds if not name.isprintable()]:  # transformers would print it
        raise PruningError(f"{file!r} has a tensor {strange[0]!r:.80}, which is no name: pack the model again")
    stored = sum(prod(kind.shape) for kind in kinds.values())
    if sum(parameter.numel() for parameter in model.parameters()) > stored:
        raise PruningError(
            f"the packed weights in {file!r} do not fit the config, which asks for more than the {stored:,} values "
            "that there are: load the model as it was packed"
        )
    config = copy.deepcopy(model.config)
    delattr(config, QUANTIZATION_KEY)
    fit = compare_loaded(type(model), config, kinds, model)
    if fit.misshapen:
        name, what = fit.misshapen[0]
        raise PruningError(f"tensor {name!r} {what}: load the model as it was packed, or unpack it first")
    strangers = {name for name, _ in fit.not_floats} - set(fit.unknown)
    if fit.missing or strangers:
        first = min({*fit.missing, *strangers})
        raise PruningError(
            f"the packed weights in {file!r} do not fit the config: {len(fit.missing) + len(strangers)} tensors are "
            f"missing or of another dtype, the first is {first!r:.80}: load the model as it was packed"
        )
    fit.refuse_surplus(file)


def _known_dtype(name: Any, file: Path) -> torch.dtype | None:
    """The dtype of the weights, by what the config says or, if it was written before that was stored, by their file."""
    if isinstance(name, str) and isinstance(getattr(torch, name, None), torch.dtype):
        return getattr(torch, name)
    kinds = read_kinds(file).values() if file.is_file() else ()
    return next((kind.dtype for kind in kinds if kind.dtype.is_floating_point), None)


def _refuse_kernels(config: "PreTrainedConfig") -> None:
    """Of a config and of those in it: code of the Hub, which transformers would fetch and run."""
    from .untrusted_config import IMPLEMENTATIONS

    named = config._attn_implementation
    named = list(named.values()) if isinstance(named, dict) else [named]
    asked = [name for name in named if name not in IMPLEMENTATIONS]
    if "/" in str(config._experts_implementation):
        asked.append(config._experts_implementation)
    if asked:
        raise PruningError(f"the config asks for the implementation {str(asked[0])[:80]!r}: remove it, or unpack")
    for name in config.sub_configs:
        inner = getattr(config, name, None)
        if inner is not None and not isinstance(inner, dict):
            _refuse_kernels(inner)
