"""Every hook of transformers that is not a documented interface, with its signature.

A new version that changes one fails here first, and says what changed: read what calls it before adding the signature.
"""

import inspect

import pytest
from transformers import Trainer
from transformers.core_model_loading import ConversionOps
from transformers.quantizers import HfQuantizer
from transformers.trainer_callback import CallbackHandler, EarlyStoppingCallback, ProgressCallback, TrainerState

from hf_cyclical import CyclicalPruningTrainer

EPOCH = (
    "model epoch train_dataloader steps_in_epoch num_update_steps_per_epoch trial ignore_keys_for_eval start_time "
    "resume_from_checkpoint epochs_trained steps_trained_in_current_epoch"
)
PUSH = "commit_message blocking token revision"
HOOKS = {  # the parameters in every version that is supported
    (Trainer, "_run_epoch"): [EPOCH],
    (Trainer, "_determine_best_metric"): ["metrics trial"],
    (Trainer, "_load_best_model"): [""],
    (Trainer, "_save_optimizer_and_scheduler"): ["output_dir"],
    (Trainer, "_load_optimizer_and_scheduler"): ["checkpoint"],
    (Trainer, "_save_checkpoint"): ["model trial"],
    (Trainer, "_get_output_dir"): ["trial"],
    (Trainer, "_push_from_checkpoint"): ["checkpoint_folder"],
    (Trainer, "_prepare_input"): ["data"],
    (Trainer, "_prepare_inputs"): ["inputs"],
    (Trainer, "_get_collator_with_removed_columns"): ["data_collator description"],
    (Trainer, "_get_grad_norm"): ["model grad_norm"],
    (Trainer, "init_hf_repo"): ["token", "token private"],
    (Trainer, "push_to_hub"): [f"{PUSH} kwargs", f"{PUSH} private kwargs"],
    (Trainer, "save_model"): ["output_dir _internal_call"],
    (Trainer, "set_initial_training_values"): ["args dataloader"],
    (Trainer, "get_optimizer_cls_and_kwargs"): ["args model"],
    (CallbackHandler, "on_push_begin"): ["args state control kwargs"],
    (EarlyStoppingCallback, "__init__"): ["early_stopping_patience early_stopping_threshold"],
    (TrainerState, "save_to_json"): ["json_path"],
    (HfQuantizer, "_process_model_before_weight_loading"): ["model kwargs"],
    (HfQuantizer, "_process_model_after_weight_loading"): ["model kwargs"],
    (HfQuantizer, "get_load_operations"): [""],
    (HfQuantizer, "param_needs_quantization"): ["model param_name kwargs"],
    (ConversionOps, "convert"): ["input_dict source_patterns target_patterns kwargs"],
}


def parameters(owner, name):
    method = getattr(owner, name, None)
    assert method is not None, f"{owner.__name__}.{name} is gone"
    return [p for p in inspect.signature(method).parameters if p != "self"]


@pytest.mark.parametrize(("owner", "name"), HOOKS, ids=lambda value: getattr(value, "__name__", value))
def test_has_the_signature_that_we_were_tested_with(owner, name):
    known = [signature.split() for signature in HOOKS[owner, name]]
    found = parameters(owner, name)
    assert found in known, f"{owner.__name__}.{name} now takes {found}; it took {known}"


@pytest.mark.parametrize("name", ["init_hf_repo", "save_model"])
def test_ours_take_what_theirs_take(name):
    theirs = parameters(Trainer, name)
    assert parameters(CyclicalPruningTrainer, name)[: len(theirs)] == theirs


def test_all_that_are_overridden_are_listed():
    ours = [cls for cls in CyclicalPruningTrainer.__mro__ if cls.__module__.startswith("hf_cyclical.")]
    names = {name for cls in ours for name in vars(cls) if name.startswith("_") and not name.startswith("__")}
    assert {name for name in names if name in vars(Trainer)} <= {name for _, name in HOOKS}


def test_attributes_that_are_read_or_set(make_trainer):
    trainer = make_trainer(None, max_steps=2)
    kinds = {
        "_created_lr_scheduler": bool,
        "_train_batch_size": int,
        "model_accepts_loss_kwargs": bool,
        "is_fsdp_enabled": bool,
        "is_deepspeed_enabled": bool,
        "is_distributed_loading_by_transformers": bool,
    }
    assert {name: type(vars(trainer)[name]) for name in kinds} == kinds
    assert isinstance(trainer.callback_handler.callbacks, list)
    assert "training_bar" in vars(ProgressCallback())
    assert "push_in_progress" in inspect.getsource(Trainer.init_hf_repo)
    values = trainer.set_initial_training_values(trainer.args, trainer.get_train_dataloader())
    assert (values[1], values[-1]) == (12, 2)  # the number of updates of an epoch, and of the run
