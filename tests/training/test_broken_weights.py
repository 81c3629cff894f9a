"""Weights, data and settings with which a run cannot end well: one clear line each, as early as it can be known."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.pushing import copy_run, finished_run
from support.tiny import CYCLICAL, TinyImages, TinyNet
from torch import nn
from torch.utils.data import Subset
from transformers import TrainerCallback

from hf_cyclical import PruningError
from hf_cyclical.hub import build_folder


def refusal(action, *args, **kwargs):
    with pytest.raises(PruningError) as error:
        action(*args, **kwargs)
    assert "\n" not in str(error.value)
    return str(error.value)


class Spoil(TrainerCallback):
    """Does something to the model after an update."""

    def __init__(self, update, spoil):
        self.update, self.spoil = update, spoil

    def on_optimizer_step(self, args, state, control, model=None, **kwargs):
        if state.global_step == self.update:
            with torch.no_grad():
                self.spoil(model)


def nan_bias(model):
    model.head.bias[0] = torch.nan


class TestNaN:
    def test_after_the_last_choice_of_masks_ends_the_run_at_its_evaluation(self, make_trainer):
        trainer = make_trainer(CYCLICAL, max_steps=12, callbacks=[Spoil(11, nan_bias)])
        message = refusal(trainer.train)
        assert message.startswith("head.bias is NaN or infinite after update 12: lower the learning rate")
        assert not trainer.report.layers

    def test_ends_it_without_an_evaluation_too_and_nothing_is_saved_or_pushed(self, make_trainer, tmp_path):
        trainer = make_trainer(CYCLICAL, max_steps=12, callbacks=[Spoil(11, nan_bias)], eval_dataset=None)
        assert "head.bias is NaN or infinite" in refusal(trainer.train)
        assert "no finished run to push" in refusal(trainer.push_to_hub, "user/model")
        assert "no finished run to save" in refusal(trainer.save_pruned, tmp_path / "saved")

    def test_that_comes_later_is_seen_at_the_push(self, make_trainer):
        trainer = make_trainer(CYCLICAL, max_steps=12)
        trainer.train()
        with torch.no_grad():
            nan_bias(trainer.model)
        assert "head.bias is NaN or infinite" in refusal(trainer.push_to_hub, "user/model")

    def test_in_a_saved_model_is_seen_before_it_is_pushed(self, tmp_path):
        run = copy_run(finished_run(), tmp_path / "run")
        weights = load_file(run / "model.safetensors")
        name = next(name for name in weights if name.endswith("bias"))
        weights[name][0] = torch.inf
        save_file(weights, run / "model.safetensors", {"format": "pt"})
        message = refusal(build_folder, run, tmp_path / "pushed", repo_id="user/model")
        assert message.startswith(f"{name} in ")
        assert "NaN or infinite" in message


class Normalised(TinyNet):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm2d(1)

    def forward(self, pixel_values, labels=None):
        return super().forward(self.norm(pixel_values), labels)


def infinite_statistics(model):
    model.norm.running_var[0] = torch.inf


@pytest.mark.parametrize("evaluated", [True, False])
def test_statistics_count_as_weights(make_trainer, evaluated):
    images = {} if evaluated else {"eval_dataset": None}
    trainer = make_trainer(
        CYCLICAL, model=Normalised(), max_steps=12, callbacks=[Spoil(11, infinite_statistics)], **images
    )
    assert refusal(trainer.train).startswith("norm.running_var is NaN or infinite after update 12")


def test_a_checkpoint_of_broken_weights_takes_the_place_of_none(make_trainer, tmp_path):
    """The remedy is to start from a checkpoint before."""
    trainer = make_trainer(
        CYCLICAL, max_steps=12, callbacks=[Spoil(10, nan_bias)], output_dir=str(tmp_path), eval_dataset=None,
        save_strategy="steps", save_steps=1, save_total_limit=1,
    )  # fmt: skip
    assert "head.bias is NaN or infinite" in refusal(trainer.train)
    assert [folder.name for folder in tmp_path.glob("checkpoint-*")] == ["checkpoint-10"]
    weights = load_file(tmp_path / "checkpoint-10" / "model.safetensors")
    assert all(bool(w.isfinite().all()) for w in weights.values())


def test_a_weight_that_was_replaced_during_training(make_trainer):
    def replace(model):
        model.hidden.weight = nn.Parameter(model.hidden.weight.clone())

    trainer = make_trainer(CYCLICAL, max_steps=12, callbacks=[Spoil(2, replace)])
    assert refusal(trainer.train).startswith("hidden.weight was replaced during training")


class Empty(TinyNet):
    def __init__(self):
        super().__init__()
        self.nothing = nn.Linear(0, 3)


class Complex(TinyNet):
    def __init__(self):
        super().__init__()
        self.phases = nn.Linear(3, 3, dtype=torch.complex64)


@pytest.mark.filterwarnings("ignore:Initializing zero-element")
@pytest.mark.parametrize(
    ("model", "line"),
    [
        (Empty, "nothing.weight has no weights: exclude it"),
        (Complex, "phases.weight has complex weights, which masks are not made for: exclude it"),
    ],
)
def test_weights_that_cannot_be_pruned_are_named(make_trainer, model, line):
    assert refusal(make_trainer(CYCLICAL, model=model(), max_steps=12).plan) == line


def test_complex_weights_beside_those_that_are_pruned(make_trainer):
    model = Complex()
    make_trainer(CYCLICAL | {"exclude": ["phases"]}, model=model, max_steps=12).train()
    spoilt = Spoil(11, lambda model: model.phases.bias.fill_(complex(0, torch.nan)))
    trainer = make_trainer(CYCLICAL | {"exclude": ["phases"]}, model=Complex(), max_steps=12, callbacks=[spoilt])
    assert "phases.bias is NaN or infinite" in refusal(trainer.train)


def test_weights_without_values_are_named(make_trainer):
    trainer = make_trainer(CYCLICAL, max_steps=12)
    trainer.model.hidden.to("meta")
    assert refusal(trainer.plan).startswith("hidden.weight is on the meta device, without values")


@pytest.mark.parametrize("row_floor", [0, 1])
def test_a_target_that_the_layers_cannot_reach(make_trainer, row_floor):
    trainer = make_trainer(CYCLICAL | {"target_sparsity": 0.9999, "row_floor": row_floor}, max_steps=12)
    message = refusal(trainer.plan)
    assert "0.9999 leaves 0 of 1,644 weights" in message
    assert refusal(trainer.train) == message


def test_fewer_images_than_a_batch_that_must_be_complete(make_trainer):
    few = Subset(TinyImages(), range(5))
    trainer = make_trainer(CYCLICAL, max_steps=12, train_dataset=few, dataloader_drop_last=True)
    assert refusal(trainer.train).startswith("the 5 training images do not fill a batch of 8, and dataloader_drop_last")


@pytest.mark.parametrize("dense_updates", [0, 4])
@pytest.mark.parametrize("several", [False, True])
def test_a_metric_that_nothing_computes_is_refused_before_the_first_update(make_trainer, dense_updates, several):
    images = {"eval_dataset": {"a": TinyImages(n=8), "b": TinyImages(n=8)}} if several else {}
    pruning = CYCLICAL | {"dense_updates": dense_updates}
    trainer = make_trainer(pruning, max_steps=16, metric_for_best_model="f1", eval_strategy="no", **images)
    message = refusal(trainer.train)
    names = "a_loss, a_accuracy" if several else "loss, accuracy"
    assert message.startswith(f"metric_for_best_model 'f1' is not computed by the evaluation: use one of {names}")
    assert trainer.state.global_step == 0


def test_a_metric_that_nothing_computes_is_refused_before_a_run_is_resumed(make_trainer, tmp_path):
    run = {"max_steps": 12, "save_strategy": "steps", "save_steps": 4}
    whole = make_trainer(CYCLICAL, **run)
    whole.train()
    checkpoint = str(tmp_path / "run" / "checkpoint-4")
    trainer = make_trainer(CYCLICAL, metric_for_best_model="f1", **run)
    assert refusal(trainer.train, checkpoint).startswith("metric_for_best_model 'f1' is not computed by the evaluation")
    assert trainer.state.global_step == 4
    trainer = make_trainer(CYCLICAL, metric_for_best_model="accuracy", **run)
    trainer.train(checkpoint)
    assert trainer.report == whole.report
    assert [e["step"] for e in trainer.state.log_history if "eval_loss" in e] == [0, 6, 12]
