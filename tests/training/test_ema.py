"""The moving average of the weights: what it is, where it is used, and that it is masked."""

import pytest
import torch
from safetensors.torch import load_file
from support.tiny import CYCLICAL, TinyNet, same_weights
from transformers import TrainerCallback

from hf_cyclical import PruningConfig, PruningError, prunable_parameters

DECAY = 0.4
AVERAGED = CYCLICAL | {"ema_decay": DECAY}


class ByHand(TrainerCallback):
    """a <- d a + (1 - d) theta after each update, from theta itself where it restarts.

    n updates after a restart d is 0.4, or (1 + n) / (10 + n) where that is less.
    """

    def __init__(self, restarts):
        self.restarts = restarts
        self.average, self.evaluated = {}, {}

    def on_optimizer_step(self, args, state, control, model=None, **kwargs):
        n = min((state.global_step - t for t in self.restarts if t <= state.global_step), default=None)
        if n is None:
            return
        decay = min(DECAY, (1 + n) / (10 + n)) if n else 0.0
        for name, p in model.state_dict().items():
            self.average[name] = decay * self.average.get(name, 0.0) + (1 - decay) * p.double()

    def on_prediction_step(self, args, state, control, model=None, **kwargs):
        self.evaluated = {name: p.clone() for name, p in model.state_dict().items()}


def expected(by_hand, masks):
    return {name: (value * masks[name] if name in masks else value).float() for name, value in by_hand.average.items()}


def assert_close(a, b):
    for name, value in b.items():
        torch.testing.assert_close(a[name], value, rtol=1e-5, atol=1e-6)


class TestAverage:
    def test_is_what_is_evaluated_saved_and_left(self, make_trainer, tmp_path):
        by_hand = ByHand(restarts=(0, 12, 20, 32))  # the choices of masks: cycles of 20 updates, ramps of 12
        pruning = AVERAGED | {"delta_t": 12, "ramp_fraction": 0.6}
        trainer = make_trainer(pruning, max_steps=40, callbacks=[by_hand])
        trainer.train()
        wanted = expected(by_hand, trainer.pruner.masks)
        assert_close(by_hand.evaluated, wanted)
        assert_close(trainer.model.state_dict(), wanted)
        trainer.save_model(str(tmp_path / "saved"))
        assert_close(load_file(tmp_path / "saved" / "model.safetensors"), wanted)

    def test_is_masked_and_not_the_last_weights(self, make_trainer):
        trainer, plain = make_trainer(AVERAGED, max_steps=40), make_trainer(CYCLICAL, max_steps=40)
        trainer.train()
        plain.train()
        assert not same_weights(trainer.model, plain.model)
        for name, p in prunable_parameters(trainer.model).items():
            assert torch.equal(trainer.pruner.masks[name], plain.pruner.masks[name])
            assert not p[~trainer.pruner.masks[name]].any()
        assert trainer.report.layers == plain.report.layers

    def test_training_goes_on_from_the_weights_and_not_from_the_average(self, make_trainer, tmp_path):
        arguments = {"max_steps": 40, "save_strategy": "steps", "save_steps": 8, "shuffle": True}
        averaged, short = AVERAGED | {"ramp_fraction": 0.5}, CYCLICAL | {"ramp_fraction": 0.5}  # last masks at 30
        trainer = make_trainer(averaged, eval_strategy="steps", eval_steps=1, **arguments)
        plain = make_trainer(short, output_dir=str(tmp_path / "plain"), **arguments)
        trainer.train()
        plain.train()
        for step in (8, 16, 40):
            weights = [
                load_file(tmp_path / run / f"checkpoint-{step}" / "model.safetensors") for run in ("run", "plain")
            ]
            assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])

        resumed = make_trainer(
            averaged, model=TinyNet(seed=5), eval_strategy="steps", eval_steps=1, output_dir=str(tmp_path / "again"),
            **arguments,
        )  # fmt: skip
        resumed.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-32"))
        assert same_weights(resumed.model, trainer.model)
        assert resumed.report.to_dict() == trainer.report.to_dict()

    def test_the_best_model_is_the_averaged_one_that_was_evaluated(self, make_trainer):
        trainer = make_trainer(
            AVERAGED, max_steps=24, eval_strategy="steps", eval_steps=2, save_strategy="steps", save_steps=2,
            load_best_model_at_end=True, metric_for_best_model="loss",
        )  # fmt: skip
        trainer.train()
        rows = [row for row in trainer.report.evaluations if row["update"] == trainer.state.best_global_step]
        assert trainer.evaluate()["eval_loss"] == pytest.approx(rows[-1]["loss"], rel=1e-6)

    def test_of_a_best_model_without_its_state(self, make_trainer):
        trainer = make_trainer(
            AVERAGED | {"row_floor": 0, "mask_momentum": False}, max_steps=24, eval_strategy="steps", eval_steps=2,
            save_strategy="steps", save_steps=2, load_best_model_at_end=True, metric_for_best_model="loss",
            greater_is_better=True, save_only_model=True,
        )  # fmt: skip
        trainer.train()
        assert trainer.state.best_global_step < 24
        assert trainer.evaluate()["eval_loss"] == pytest.approx(trainer.state.best_metric, rel=1e-6)

    @pytest.mark.parametrize(
        ("pruning", "last"),
        [
            ({"method": "cyclical", "target_sparsity": 0.9, "cycles": 2, "delta_t": 3}, 18),  # the second cycle's 0.8
            ({"method": "gradual", "target_sparsity": 0.9, "delta_t": 3, "dense_updates": 2}, 16),
            ({"method": "gradual_recovery", "target_sparsity": 0.9, "delta_t": 3}, 16),
            ({"method": "cyclical_lr", "target_sparsity": 0.9, "cycles": 2, "delta_t": 3}, 10),  # none in cycle 2
        ],
    )
    def test_is_only_of_weights_with_the_last_masks_and_of_the_last_cycle(self, make_trainer, pruning, last):
        by_hand = ByHand(restarts=(last,))
        trainer = make_trainer(pruning | {"ema_decay": DECAY}, max_steps=20, callbacks=[by_hand])
        trainer.train()
        assert_close(trainer.model.state_dict(), expected(by_hand, trainer.pruner.masks))

    @pytest.mark.parametrize("stopped", [False, True])
    def test_the_dense_model_of_a_dense_start_has_its_own_weights(self, make_trainer, stopped):
        class Stop(TrainerCallback):
            def on_step_end(self, args, state, control, **kwargs):
                control.should_training_stop |= stopped and state.global_step == 4

        start = {"dense_updates": 6}
        trainer = make_trainer(AVERAGED | start, max_steps=46, callbacks=[Stop()])
        plain = make_trainer(CYCLICAL | start, max_steps=46, callbacks=[Stop()])
        trainer.train()
        plain.train()
        assert trainer.report.dense == plain.report.dense
        assert bool(trainer.report.cycles) != stopped
        assert same_weights(trainer.model, plain.model) == stopped

    def test_without_pruning_is_refused(self):
        with pytest.raises(PruningError, match=r"ema_decay 0.9 has no effect where nothing is pruned"):
            PruningConfig(target_sparsity=0, ema_decay=0.9)

    @pytest.mark.parametrize("decay", [0, 1, -0.5, "0.9", float("nan")])
    def test_a_decay_that_means_nothing_is_refused(self, decay):
        with pytest.raises(PruningError, match=r"ema_decay .* must be in \(0, 1\): use 0.999"):
            PruningConfig(ema_decay=decay)
