"""What would have a loader take other weights than model.safetensors: in the config of a model, or beside it.

transformers takes the file of `transformers_weights`, the config of `configuration_files`, the shards of a distributed
checkpoint and, on the Hub, the base model of an adapter, all of them before model.safetensors; by a variant, or without
safetensors, whatever file there is. timm takes `hf_hub_filename`, and may read a file in a way of its own.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from hf_cyclical.formats import CONFIG, METADATA_NAME, QUANTIZATION_CONFIG, QUANTIZATION_KEY, WEIGHTS, Kind
from hf_cyclical.models import is_of_timm

_WEIGHTS = re.compile(
    r"adapter_config\.json|.*\.(safetensors|bin|pt|pth|pth\.tar|ckpt|h5|msgpack|npz|gguf|distcp)(\.index\.json)?", re.I
)
# What Trainer leaves in a folder.
_OF_TRAINER = re.compile(r"training_args\.bin|(optimizer|scheduler|scaler)\.(bin|pt)|rng_state(_\d+)?\.pth")
_OWN = (CONFIG, METADATA_NAME, WEIGHTS)
LEADS_ELSEWHERE = (  # in config.json
    "auto_map", "configuration_files", "custom_pipelines", "fusion_config", "transformers_weights",
)  # fmt: skip
_SOURCES = ("custom_load", "file", "hf_hub_filename", "hf_hub_id", "label_offset", "source", "state_dict", "url")


def other_weight_files(names: Collection[str]) -> list[str]:
    """The files, of those in the folder of a model, that hold or name other weights."""
    top = (name for name in names if "/" not in name and name not in _OWN)
    return sorted(name for name in top if _is_other(name))


def _is_other(name: str) -> bool:
    if name.lower() in _OWN:  # some file systems take one for the other
        return True
    return _WEIGHTS.fullmatch(name) is not None and _OF_TRAINER.fullmatch(name) is None


def pointers_elsewhere(config: dict[str, Any], *, packed: bool, kinds: Mapping[str, Kind]) -> Iterator[tuple[str, Any]]:
    """The settings by which some loader would take other weights, or take these for something else.

    Args:
        config: The content of config.json.
        packed: Whether the weights are packed.
        kinds: What the tensors are.
    """
    for key in LEADS_ELSEWHERE:
        if config.get(key) and (key, config[key]) != ("transformers_weights", WEIGHTS):
            yield key, config[key]
    quantization = config.get(QUANTIZATION_KEY)
    if not _is_packed(quantization) if packed else quantization:
        yield QUANTIZATION_KEY, quantization
    if not is_of_timm(config):
        yield from ((key, config[key]) for key in ("architecture", "pretrained_cfg") if key in config)
    source = config.get("pretrained_cfg", config if "model_type" not in config else {})
    if isinstance(source, dict):
        yield from ((f"pretrained_cfg {key}", source[key]) for key in _SOURCES if source.get(key))
    else:
        yield "pretrained_cfg", source
    dtypes = {str(kind.dtype).removeprefix("torch.") for kind in kinds.values() if kind.dtype.is_floating_point}
    for where, settings in (("", config), (f"{QUANTIZATION_KEY} ", quantization)):
        for key in ("dtype", "torch_dtype") if isinstance(settings, dict) else ():
            if settings.get(key) is not None and settings[key] not in dtypes:
                yield f"{where}{key}", settings[key]


def several_dtypes(kinds: Mapping[str, Kind]) -> list[str]:
    """The dtypes of floats if there are several, of which transformers takes one for all; none of a byte is taken."""
    dtypes = {kind.dtype for kind in kinds.values() if kind.dtype.is_floating_point and kind.dtype.itemsize > 1}
    return sorted(str(dtype).removeprefix("torch.") for dtype in dtypes) if len(dtypes) > 1 else []


def _is_packed(quantization: Any) -> bool:
    """Whether the settings are those of packed weights and nothing else, by which transformers takes another reader."""
    if not isinstance(quantization, dict):
        return False
    others = {key: value for key, value in quantization.items() if key != "dtype"}
    return QUANTIZATION_CONFIG | others == QUANTIZATION_CONFIG and "quant_method" in others
