"""CyclicalPruningTrainer with a target of 0 in place of Trainer: the same numbers, events and files, bit by bit."""

from pathlib import Path

import numpy as np
import pytest
import torch
from support.tiny import TinyImages, TinyNet, accuracy, same_weights
from torch.nn.functional import cross_entropy
from transformers import EarlyStoppingCallback, PreTrainedConfig, Trainer, TrainerCallback, TrainingArguments

from hf_cyclical import CyclicalPruningTrainer, PruningConfig

TIMINGS = ("runtime", "per_second", "preparation_time")
EVENTS = [name for name in dir(TrainerCallback) if name.startswith("on_")]
EVALUATE = {"eval_strategy": "steps", "eval_steps": 4}
SAVE = {"save_strategy": "steps", "save_steps": 4}
BEST = EVALUATE | SAVE | {"load_best_model_at_end": True, "metric_for_best_model": "accuracy"}
ADAMW = {"optim": "adamw_torch", "optim_args": None, "learning_rate": 0.01, "weight_decay": 0.1}


def note(event):
    return lambda self, args, state, control, **kwargs: self.seen.append((event, state.global_step, sorted(kwargs)))


class Events(type("AllEvents", (TrainerCallback,), {event: note(event) for event in EVENTS})):
    """Every event in its order, with the update it came at and what came with it."""

    def __init__(self):
        self.seen = []


class Own(EarlyStoppingCallback):
    """One that a pruning run would refuse."""


def drops_kwargs():
    class DropsKwargs(TinyNet):
        def forward(self, pixel_values, labels=None, **kwargs):
            return super().forward(pixel_values, labels)

    return DropsKwargs()


def with_config():
    model = TinyNet()
    model.config = PreTrainedConfig()
    return model


def own_optimizers(model):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    return optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)


def own_loss(outputs, labels, num_items_in_batch=None):
    return cross_entropy(outputs["logits"], labels, reduction="sum") / num_items_in_batch


@pytest.fixture
def pair(tmp_path):
    """`Trainer` and, in its place, `CyclicalPruningTrainer`, each with an output folder of its own."""

    def make(pruning="cyclical", *, model=TinyNet, callbacks=(), optimizers=None, more=None, **arguments):
        made = []
        for name in ("plain", "pruning"):
            defaults = {
                "output_dir": str(tmp_path / name),
                "per_device_train_batch_size": 8,
                "num_train_epochs": 2,
                "learning_rate": 0.1,
                "optim": "sgd",
                "optim_args": "momentum=0.9",
                "max_grad_norm": 0.0,
                "logging_steps": 3,
                "save_strategy": "no",
                "report_to": "none",
                "disable_tqdm": True,
                "use_cpu": True,
                "dataloader_pin_memory": False,
            }
            net = model()
            kwargs = {
                "model": net,
                "args": TrainingArguments(**(defaults | arguments)),
                "train_dataset": TinyImages(),
                "eval_dataset": TinyImages(n=48, seed=2),
                "compute_metrics": accuracy,
                "callbacks": [make_callback() for make_callback in callbacks],
                "optimizers": optimizers(net) if optimizers else (None, None),
            } | (more or {})
            if name == "plain":
                made.append(Trainer(**kwargs))
            else:
                made.append(CyclicalPruningTrainer(**kwargs, pruning=PruningConfig(pruning, target_sparsity=0)))
        return made

    return make


def untimed(entry):
    return {name: value for name, value in entry.items() if not name.endswith(TIMINGS)}


def state_of(trainer):
    """All that the Trainer notes of a run, with paths that do not name the output folder."""
    state = vars(trainer.state) | {"log_history": [untimed(entry) for entry in trainer.state.log_history]}
    folder = trainer.args.output_dir
    return {name: value.removeprefix(folder) if isinstance(value, str) else value for name, value in state.items()}


def files(trainer):
    folder = Path(trainer.args.output_dir)
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def assert_equal_runs(plain, pruning, **train_arguments):
    outputs = [untimed(trainer.train(**train_arguments).metrics) for trainer in (plain, pruning)]
    assert outputs[0] == outputs[1]
    assert same_weights(plain.model, pruning.model)
    assert state_of(plain) == state_of(pruning)
    assert len(plain.state.log_history) > 1
    assert not same_weights(plain.model, TinyNet())
    assert files(plain) == files(pruning)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"lr_scheduler_type": "cosine", "warmup_steps": 3},
        {"lr_scheduler_type": "reduce_lr_on_plateau"} | EVALUATE,
        {"gradient_accumulation_steps": 5} | ADAMW,
        {"gradient_accumulation_steps": 4, "model": drops_kwargs},
        {"max_grad_norm": 0.3},
        {"label_smoothing_factor": 0.1, "model": with_config},
        {"bf16": True},
        {"max_steps": 17},
        {"num_train_epochs": 1.5, "dataloader_drop_last": True, "per_device_train_batch_size": 9},
        {"eval_on_start": True, "eval_strategy": "epoch", "logging_strategy": "epoch"},
        {"save_only_model": True, "save_total_limit": 2} | SAVE,
        {"save_strategy": "best", "metric_for_best_model": "accuracy"} | EVALUATE,
        BEST | {"save_total_limit": 1},
        BEST | {"callbacks": [lambda: EarlyStoppingCallback(2)], "num_train_epochs": 4},
        {"optimizers": own_optimizers},
        {"more": {"compute_loss_func": own_loss}, "gradient_accumulation_steps": 2} | SAVE,
        {"more": {"eval_dataset": {"a": TinyImages(n=24, seed=3), "b": TinyImages(n=24, seed=4)}}} | EVALUATE,
    ],
    ids=[
        "plain", "cosine", "plateau", "accumulation", "accumulation_without_kwargs", "clipping", "smoothing", "bf16",
        "max_steps", "part_of_an_epoch", "epochs", "save_only_model", "save_best", "best", "early_stopping",
        "own_optimizers", "own_loss", "two_evaluation_sets",
    ],
)  # fmt: skip
def test_training(pair, arguments):
    assert_equal_runs(*pair(**arguments))


@pytest.mark.parametrize("kind", [EarlyStoppingCallback, Own])
def test_early_stopping_added_later_stops_both(pair, kind):
    plain, pruning = pair(num_train_epochs=4, **BEST)
    for trainer in (plain, pruning):
        trainer.add_callback(kind)
    assert_equal_runs(plain, pruning)
    assert plain.state.global_step < plain.state.max_steps
    assert any(type(callback) is kind for callback in pruning.callback_handler.callbacks)


@pytest.mark.parametrize("method", ["gradual_recovery", "iterative", "one_shot", "pgd"])
def test_whatever_the_method_a_target_of_0_prunes_nothing(pair, method):
    assert_equal_runs(*pair(method, max_steps=5, logging_steps=1))


@pytest.mark.parametrize("quiet", [True, False])
def test_callbacks_see_the_same_events_in_the_same_order(pair, quiet):
    plain, pruning = pair(callbacks=[Events], gradient_accumulation_steps=2, disable_tqdm=quiet, **BEST)
    assert_equal_runs(plain, pruning)
    for trainer in (plain, pruning):
        trainer.evaluate()
        trainer.predict(TinyImages(n=10))
    kinds = [[type(callback) for callback in trainer.callback_handler.callbacks] for trainer in (plain, pruning)]
    assert kinds[0] == kinds[1]
    seen = [trainer.pop_callback(Events).seen for trainer in (plain, pruning)]
    assert seen[0] == seen[1]
    assert {event for event, *_ in seen[0]} == set(EVENTS) - {"on_push_begin"}


@pytest.mark.parametrize("at", [5, 12], ids=["inside_an_epoch", "between_epochs"])
def test_each_resumes_from_the_checkpoint_of_the_other(pair, tmp_path, at):
    whole = pair(save_strategy="steps", save_steps=at, lr_scheduler_type="cosine")
    assert_equal_runs(*whole)
    resumed = pair(save_strategy="steps", save_steps=at, lr_scheduler_type="cosine")
    for trainer, other in zip(resumed, ("pruning", "plain"), strict=True):
        trainer.train(resume_from_checkpoint=str(tmp_path / other / f"checkpoint-{at}"))
        assert same_weights(trainer.model, whole[0].model)
    assert state_of(resumed[0]) == state_of(resumed[1])
    assert files(resumed[0]) == files(resumed[1])


def test_a_missing_checkpoint_is_the_trainers_own_error(pair):
    for trainer in pair():
        with pytest.raises(ValueError, match="No valid checkpoint found"):
            trainer.train(resume_from_checkpoint=True)


def test_evaluate_and_predict(pair):
    trainers = pair(per_device_eval_batch_size=7)
    for _ in ("before", "after"):
        metrics = [untimed(trainer.evaluate()) for trainer in trainers]
        assert metrics[0] == metrics[1]
        assert metrics[0].keys() >= {"eval_loss", "eval_accuracy"}
        tested = [trainer.predict(TinyImages(n=10, seed=9)) for trainer in trainers]
        assert np.array_equal(tested[0].predictions, tested[1].predictions)
        assert np.array_equal(tested[0].label_ids, tested[1].label_ids)
        assert untimed(tested[0].metrics) == untimed(tested[1].metrics)
        for trainer in trainers:
            trainer.train()


def test_a_second_train_and_saving(pair):
    plain, pruning = pair(**SAVE)
    assert_equal_runs(plain, pruning)
    assert_equal_runs(plain, pruning)
    for trainer in (plain, pruning):
        trainer.save_model()
        trainer.save_state()
    assert files(plain) == files(pruning)
    assert "model.safetensors" in files(plain)


def test_model_init(pair):
    plain, pruning = pair(more={"model": None, "model_init": lambda: TinyNet(seed=3)}, seed=7)
    assert_equal_runs(plain, pruning)
