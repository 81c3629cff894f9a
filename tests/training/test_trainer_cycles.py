"""What CyclicalPruningTrainer does at the end of cycles, and which model it calls the best."""

import json
from typing import ClassVar

import pytest
import torch
from safetensors.torch import load_file
from support.tiny import CYCLICAL, TinyImages, Watcher, expected_zeros, same_weights, zeros
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn
from transformers import EarlyStoppingCallback, PreTrainedConfig, TrainerCallback

from hf_cyclical import PruningError
from hf_cyclical.training.callbacks import PruningProgressCallback

GRADUAL_RECOVERY = {"method": "gradual_recovery", "target_sparsity": 0.9, "delta_t": 5}


class ThreeClasses(nn.Module):
    """With as many filters as classes, rows of one weight, the largest negative, and biases larger than all weights."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.config = PreTrainedConfig(num_labels=3)
        self.first = nn.Conv2d(1, 3, 3, padding=1)
        self.depthwise = nn.Conv2d(3, 3, 1, groups=3)
        self.hidden = nn.Linear(3 * 16, 24)
        self.head = nn.Linear(24, 3)
        nn.init.constant_(self.depthwise.weight[:1], -1.5)
        nn.init.constant_(self.head.bias, 9.0)

    def forward(self, pixel_values, labels=None):
        x = self.depthwise(self.first(pixel_values)).relu().flatten(1)
        logits = self.head(self.hidden(x).relu())
        return {"loss": None if labels is None else nn.functional.cross_entropy(logits, labels), "logits": logits}


class TestCycleEnds:
    def test_each_cycle_is_evaluated_and_logged_once(self, make_trainer):
        trainer = make_trainer(CYCLICAL | {"cycles": 3}, num_train_epochs=3, eval_strategy="epoch")
        trainer.train()
        evaluated = [e["step"] for e in trainer.state.log_history if "eval_accuracy" in e]
        assert evaluated == [0, 12, 24, 36]  # the dense model first
        logged = [e for e in trainer.state.log_history if "regrown" in e]
        assert [e["cycle"] for e in logged] == [1, 2, 3]
        for entry, cycle in zip(logged, trainer.report.cycles, strict=True):
            assert entry["sparsity"] == pytest.approx(0.9, abs=2e-3)
            assert entry["learning_rate"] == pytest.approx(0.01)
            assert entry["regrown"] == cycle.regrown
            assert entry["mask_distance"] == cycle.mask_distance

    def test_the_report_says_what_the_masks_did(self, make_trainer):
        trainer = make_trainer(CYCLICAL | {"cycles": 3}, num_train_epochs=6, eval_on_start=True)
        trainer.train()
        report = trainer.report
        assert report.dense["accuracy"] == report.evaluations[0]["accuracy"]
        assert report.evaluations[0]["update"] == 0
        assert [c.metrics["accuracy"] for c in report.cycles] == [e["accuracy"] for e in report.evaluations[1:]]
        assert report.cycles[0].mask_distance == 0
        assert all(0 < c.mask_distance < 1 and c.recovered > 0 for c in report.cycles[1:])
        assert sum(layer.kept for layer in report.layers) == report.parameters - 31 - zeros(trainer.model)  # 31 biases
        assert report.sparsity == pytest.approx(zeros(trainer.model) / sum(layer.weights for layer in report.layers))

    def test_the_report_has_the_layers_of_each_cycle(self, make_trainer, tmp_path):
        """Counted here from the weights in the checkpoint of each cycle."""
        pruning = CYCLICAL | {"cycles": 3, "share": "global", "row_floor": 1}
        trainer = make_trainer(pruning, num_train_epochs=6, save_strategy="steps", save_steps=1000)
        trainer.train()
        for cycle in trainer.report.cycles:
            weights = load_file(tmp_path / "run" / f"checkpoint-{cycle.update}" / "model.safetensors")
            kept = {name: (weights[name] != 0).flatten(1).sum(1) for name in ("conv.weight", "hidden.weight")}
            layers = {layer.name: layer for layer in cycle.layers}
            assert [*layers] == ["conv.weight", "hidden.weight", "head.weight"]
            for name, rows in kept.items():
                assert layers[name].kept == rows.sum()
                assert (layers[name].empty, layers[name].at_floor) == ((rows == 0).sum(), (rows == 1).sum())
        assert trainer.report.cycles[-1].layers == trainer.report.layers

    @pytest.mark.parametrize(
        ("share", "row_floor", "target", "exclude"),
        [
            ("uniform", 0, 0.97, None),
            ("global", 0, 0.97, None),
            ("uniform", 1, 0.95, None),
            ("global", 1, 0.95, ["head"]),
            ("global", 2, 0.9, None),
        ],
    )
    def test_the_rows_and_the_largest_weight_of_each_cycle(
        self, make_trainer, tmp_path, share, row_floor, target, exclude
    ):
        """Counted here one by one, from the weights in the checkpoint of each cycle."""
        pruning = {"target_sparsity": target, "share": share, "row_floor": row_floor, "exclude": exclude}
        arguments = {"num_train_epochs": 6, "save_strategy": "steps", "save_steps": 1000}
        trainer = make_trainer(CYCLICAL | pruning | {"cycles": 3}, model=ThreeClasses(), **arguments)
        trainer.train()
        names = ["first.weight", "depthwise.weight", "hidden.weight", *([] if exclude else ["head.weight"])]
        assert len(trainer.report.cycles) == 3
        for cycle in trainer.report.cycles:
            weights = load_file(tmp_path / "run" / f"checkpoint-{cycle.update}" / "model.safetensors")
            rows = {name: weights[name].flatten(1).tolist() for name in names}
            kept = [(sum(w != 0 for w in row), len(row)) for name in names for row in rows[name]]
            assert cycle.empty_rows == sum(n == 0 for n, _ in kept)
            assert cycle.floor_rows == sum(0 < n == row_floor < columns for n, columns in kept)
            assert cycle.largest == max(abs(w) for name in names for row in rows[name] for w in row)
            assert cycle.classes == (None if exclude else sum(any(row) for row in rows["head.weight"]))
            assert bool(cycle.empty_rows) == (row_floor == 0)
            assert bool(cycle.floor_rows) == (row_floor > 0)
        if (share, row_floor) == ("uniform", 0):
            assert 0 < trainer.report.cycles[-1].classes < 3  # of which two weights are left

    @pytest.mark.parametrize("resume", [False, True])
    def test_regrown_weights_are_counted_from_the_first_update_on(self, make_trainer, tmp_path, resume):
        """Not from the start of the cycle, whose column of the table they are: counted here from all masks."""

        class History(TrainerCallback):
            masks: ClassVar[dict[int, dict]] = {}

            def on_step_end(self, args, state, control, **kwargs):
                self.masks[state.global_step] = {name: mask.clone() for name, mask in trainer.pruner.masks.items()}

        arguments = {"num_train_epochs": 6, "save_strategy": "steps", "save_steps": 30, "callbacks": [History()]}
        trainer = make_trainer(CYCLICAL | {"cycles": 3}, **arguments)
        trainer.train()
        if resume:
            trainer = make_trainer(CYCLICAL | {"cycles": 3}, **arguments)
            trainer.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-30"))
        for cycle in trainer.report.cycles:
            now, weights, regrown = History.masks[cycle.update], 0, 0
            for name, mask in now.items():
                ever_pruned = torch.stack([~History.masks[t][name] for t in range(1, cycle.update)]).any(dim=0)
                regrown += int((ever_pruned & mask).sum())
                weights += mask.numel()
            assert cycle.regrown == pytest.approx(regrown / weights)
        assert [cycle.regrown > 0 for cycle in trainer.report.cycles] == [False, True, True]

    def test_a_dense_start_is_the_dense_row(self, make_trainer):
        trainer = make_trainer(CYCLICAL | {"dense_epochs": 1}, num_train_epochs=3)
        trainer.train()
        assert trainer.report.dense_updates == 12
        assert trainer.report.evaluations[1]["update"] == 12
        assert trainer.report.dense["accuracy"] == trainer.report.evaluations[1]["accuracy"]
        assert [c.update for c in trainer.report.cycles] == [24, 36]

    def test_tensorboard_gets_them(self, make_trainer, tmp_path, monkeypatch):
        monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "logs"))
        make_trainer(CYCLICAL, max_steps=12, report_to="tensorboard").train()
        events = EventAccumulator(str(next((tmp_path / "logs").rglob("events*")).parent))
        events.Reload()
        assert {"train/cycle", "train/sparsity", "train/regrown", "train/mask_distance", "eval/sparsity"} <= set(
            events.Tags()["scalars"]
        )
        assert [e.value for e in events.Scalars("train/cycle")] == [1, 2]

    def test_the_progress_bar_shows_cycle_and_sparsity(self, make_trainer, capsys):
        trainer = make_trainer(CYCLICAL, max_steps=12, disable_tqdm=False)
        assert any(isinstance(c, PruningProgressCallback) for c in trainer.callback_handler.callbacks)
        trainer.train()
        assert "cycle 2/2, sparsity 0.9" in capsys.readouterr().err

    def test_works_without_an_evaluation_set(self, make_trainer):
        trainer = make_trainer(CYCLICAL, max_steps=12)
        trainer.eval_dataset = None
        trainer.train()
        assert [c.metrics for c in trainer.report.cycles] == [{}, {}]


class TestEvaluationsOutsideTheRun:
    def test_before_training_it_works_as_in_trainer(self, make_trainer):
        assert "eval_accuracy" in make_trainer(CYCLICAL, max_steps=12).evaluate()

    def test_after_training_the_report_stays_as_it_is(self, make_trainer):
        trainer = make_trainer(CYCLICAL, max_steps=12)
        trainer.train()
        before = json.dumps(trainer.report.to_dict())
        trainer.evaluate(TinyImages(n=20, seed=5))
        trainer.evaluate(metric_key_prefix="test")
        assert json.dumps(trainer.report.to_dict()) == before


def test_where_the_run_saves_it_saves_at_every_cycles_end_and_once(make_trainer, tmp_path):
    saves = []

    class Saves(TrainerCallback):
        def on_save(self, args, state, control, **kwargs):
            saves.append(state.global_step)

    make_trainer(
        CYCLICAL, num_train_epochs=2, save_strategy="epoch", eval_strategy="epoch", callbacks=[Saves()]
    ).train()
    assert saves == [12, 24]
    saves.clear()
    make_trainer(CYCLICAL, max_steps=20, save_strategy="steps", save_steps=1000, callbacks=[Saves()]).train()
    assert saves == [10, 20]


def test_ending_short_of_the_target_is_said(make_trainer, caplog):
    class Stop(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            control.should_training_stop = state.global_step == 14

    make_trainer(CYCLICAL, max_steps=24, callbacks=[Stop()]).train()
    assert "short of the target 0.9" in caplog.text


class TestBestModel:
    def test_is_chosen_at_the_target_only(self, make_trainer):
        trainer = make_trainer(
            {"target_sparsity": 0.95, "cycles": 2, "delta_t": 2, "dense_updates": 48}, max_steps=96,
            eval_strategy="steps", eval_steps=2, save_strategy="steps", save_steps=2, load_best_model_at_end=True,
            metric_for_best_model="accuracy",
        )  # fmt: skip
        trainer.train()
        denser = max(e["eval_accuracy"] for e in trainer.state.log_history if e.get("eval_at_target") == 0)
        assert denser > trainer.state.best_metric  # the stock rule would have taken a model short of the target
        assert zeros(trainer.model) == expected_zeros(trainer.model, 0.95)
        assert trainer.report.chosen_update == trainer.state.best_global_step
        assert trainer.report.sparsity == pytest.approx(0.95, abs=2e-3)
        for name, p in trainer.pruner.params.items():
            assert int((p[~trainer.pruner.masks[name]] != 0).sum()) == 0

    def test_early_stopping_counts_only_evaluations_at_the_target(self, make_trainer):
        # Patience 2 would end the run inside the first ramp, where every evaluation is worse than the first.
        trainer = make_trainer(
            CYCLICAL | {"cycles": 2, "dense_updates": 12}, max_steps=48, learning_rate=0.05, eval_strategy="steps",
            eval_steps=2, save_strategy="steps", save_steps=2, load_best_model_at_end=True,
            metric_for_best_model="accuracy", callbacks=[EarlyStoppingCallback(early_stopping_patience=2)],
        )  # fmt: skip
        trainer.train()
        assert zeros(trainer.model) == expected_zeros(trainer.model, 0.9)
        stopped = trainer.state.global_step
        counted = [e for e in trainer.state.log_history if e.get("eval_at_target") == 1 and e["step"] <= stopped]
        assert len(counted) >= 3

    def test_early_stopping_added_later_is_gated_too(self, make_trainer):
        trainer = make_trainer(CYCLICAL, max_steps=12)
        trainer.add_callback(EarlyStoppingCallback)
        assert not any(type(c) is EarlyStoppingCallback for c in trainer.callback_handler.callbacks)

    def test_an_early_stopping_of_the_users_own_must_know_the_target(self, make_trainer):
        class Own(EarlyStoppingCallback):
            pass

        with pytest.raises(PruningError, match="Own would count models short of the target"):
            make_trainer(CYCLICAL, max_steps=12, callbacks=[Own()])


class TestGradualRecovery:
    def test_is_evaluated_and_saved_masked_but_trained_dense(self, make_trainer, tmp_path):
        watcher = Watcher()
        trainer = make_trainer(
            GRADUAL_RECOVERY | {"mask_momentum": False}, max_steps=20, eval_strategy="steps", eval_steps=7,
            save_strategy="steps", save_steps=7, callbacks=[watcher],
        )  # fmt: skip
        seen = []  # the fraction of zeros in the weights whenever the model is asked for an evaluation
        trainer.model.register_forward_pre_hook(lambda m, _: None if m.training else seen.append(zeros(m)))
        trainer.train()
        saved = load_file(tmp_path / "run" / "checkpoint-7" / "model.safetensors")
        evaluated = next(e for e in trainer.state.log_history if e.get("step") == 7 and "eval_sparsity" in e)
        zero = sum(int((saved[f"{n}.weight"] == 0).sum()) for n in ("conv", "hidden", "head"))
        weights = sum(saved[f"{n}.weight"].numel() for n in ("conv", "hidden", "head"))
        assert zero / weights == pytest.approx(evaluated["eval_sparsity"])
        assert seen[2] == zero  # after the two batches of the dense model
        assert watcher.sparsities[6] < 0.1 < zero / weights  # dense between the mask updates, but for dead units
        assert zeros(trainer.model) == expected_zeros(trainer.model, 0.9)

    def test_evaluating_does_not_change_the_training(self, make_trainer):
        quiet = make_trainer(GRADUAL_RECOVERY, max_steps=20)
        watched = make_trainer(GRADUAL_RECOVERY, max_steps=20, eval_strategy="steps", eval_steps=1)
        quiet.train()
        watched.train()
        assert same_weights(quiet.model, watched.model)


class Passes(TrainerCallback):
    """The share of the weights in the passes of each update: all of them, where any that the masks drop is not zero."""

    def __init__(self):
        self.trainer, self.shares = None, []

    def on_step_begin(self, args, state, control, **kwargs):
        pruner = self.trainer.pruner
        dense = any(p[~pruner.masks[name]].any() for name, p in pruner.params.items())
        self.shares.append(1.0 if dense else 1 - pruner.sparsity)


@pytest.mark.parametrize("method", ["gradual", "gradual_recovery"])
@pytest.mark.parametrize("start", [0, 5])
def test_the_mean_density_is_that_of_the_passes(make_trainer, method, start):
    pruning = {"method": method, "target_sparsity": 0.9, "delta_t": 4, "dense_updates": start}
    watch = Passes()
    watch.trainer = trainer = make_trainer(pruning, max_steps=40, callbacks=[watch])
    trainer.train()
    assert trainer.report.mean_density == pytest.approx(sum(watch.shares) / 40)
    said = "Training used" if method == "gradual_recovery" else "The masks kept"
    assert f"\n{said} {100 * trainer.report.mean_density:.2f} % of them in the mean" in trainer.report.summary()
