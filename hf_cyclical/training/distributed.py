"""How the Trainer runs on several processes."""

import torch.distributed as dist
from accelerate import DistributedType
from transformers import Trainer

from hf_cyclical.core import several_processes

TESTED = {
    DistributedType.NO: "one process",
    DistributedType.MULTI_CPU: "DDP",
    DistributedType.MULTI_GPU: "DDP",
    DistributedType.FSDP: "FSDP2",
}


def prepare_for_fsdp(trainer: Trainer) -> None:
    """What FSDP2 needs for image models, which Accelerate takes for language models."""
    if not trainer.is_fsdp_enabled:
        return
    plugin, model = trainer.accelerator.state.fsdp_plugin, trainer.model
    # Saving gathers the weights; else `save_model` would write none.
    plugin.state_dict_config = plugin.optim_state_dict_config = None  # or those of the type before would stay
    plugin.set_state_dict_type("FULL_STATE_DICT")
    # Some models list blocks that only their larger variants have.
    if plugin.transformer_cls_names_to_wrap is None:
        here = {type(module).__name__ for module in model.modules()}
        plugin.transformer_cls_names_to_wrap = sorted(here & set(getattr(model, "_no_split_modules", None) or ()))
    # Patch embeddings are no table of tokens: they are inside such blocks already, or the model has none to tell of.
    model.get_input_embeddings = model.get_output_embeddings = _no_embeddings


def describe_processes(trainer: Trainer) -> str:
    """How many processes there really are, and how they work together."""
    n, kind = trainer.args.world_size, trainer.accelerator.distributed_type
    return "1 process" if n == 1 else f"{n} processes ({TESTED.get(kind, kind.value)})"


def copies(trainer: Trainer) -> dist.ProcessGroup | None:
    """The processes that each hold a copy of the weights, if there are several."""
    return dist.group.WORLD if several_processes() and not trainer.is_fsdp_enabled else None


def _no_embeddings() -> None:
    return None
