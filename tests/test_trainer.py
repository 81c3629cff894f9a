"""CyclicalPruningTrainer against Algorithm 1 as a naive loop, and against the Trainer that it extends."""

import inspect
import json
from pathlib import Path

import pytest
import torch
from conftest import TinyImages, TinyNet
from reference import reference_run
from torch import nn
from transformers import EarlyStoppingCallback, Trainer, TrainerCallback

from hf_cyclical import PruningError, prunable_parameters
from hf_cyclical.callback import PruningProgressCallback, StopOnSignalCallback

CYCLICAL = {"target_sparsity": 0.9, "cycles": 2, "delta_t": 3}


def zeros(model: nn.Module) -> int:
    return sum(int((p == 0).sum()) for p in prunable_parameters(model).values())


def expected_zeros(model: nn.Module, s: float) -> int:
    return sum(round(s * p.numel()) for p in prunable_parameters(model).values())


def same_weights(a: nn.Module, b: nn.Module) -> bool:
    return all(torch.equal(p, q) for p, q in zip(a.state_dict().values(), b.state_dict().values(), strict=True))


class Watcher(TrainerCallback):
    """Notes what every event after an optimizer step sees."""

    def __init__(self):
        self.sparsities, self.rates, self.at_step = [], [], []

    def on_optimizer_step(self, args, state, control, model=None, optimizer=None, **kwargs):
        params = prunable_parameters(model).values()
        self.sparsities.append(sum(int((p == 0).sum()) for p in params) / sum(p.numel() for p in params))
        self.rates.append(optimizer.param_groups[0]["lr"])
        self.at_step.append(state.global_step)


class TestEqualsTheReference:
    @pytest.mark.parametrize("accumulation", [1, 3])
    @pytest.mark.parametrize(
        ("optim", "make_optimizer"),
        [
            ({"optim": "sgd", "optim_args": "momentum=0.9"}, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)),
            ({"optim": "adamw_torch", "optim_args": None}, lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.0)),
        ],
        ids=["sgd", "adamw"],
    )
    def test_masks_and_weights(self, make_trainer, optim, make_optimizer, accumulation):
        updates = 24
        trainer = make_trainer(CYCLICAL, max_steps=updates, gradient_accumulation_steps=accumulation, **optim)
        trainer.train()

        model, data = TinyNet(), TinyImages()
        batches = [(data.pixels[i : i + 8], data.labels[i : i + 8]) for i in range(0, len(data), 8)]
        micro = [batches[i % len(batches)] for i in range(updates * accumulation)]
        masks, _ = reference_run(
            model,
            [micro[i : i + accumulation] for i in range(0, len(micro), accumulation)],
            make_optimizer,
            s_t=0.9,
            k=2,
            delta_t=3,
            names=["conv.weight", "hidden.weight", "head.weight"],
        )

        for name, mask in masks.items():
            assert torch.equal(trainer.pruner.masks[name], mask), name
        for name, p in model.named_parameters():
            torch.testing.assert_close(trainer.model.get_parameter(name), p, rtol=1e-5, atol=1e-6)

    def test_batch_32_equals_8_by_accumulation_of_4(self, make_trainer):
        whole = make_trainer(CYCLICAL, max_steps=12, per_device_train_batch_size=32)
        parts = make_trainer(CYCLICAL, max_steps=12, per_device_train_batch_size=8, gradient_accumulation_steps=4)
        whole.train()
        parts.train()
        for name, mask in whole.pruner.masks.items():
            assert torch.equal(mask, parts.pruner.masks[name])
            torch.testing.assert_close(whole.pruner.params[name], parts.pruner.params[name], rtol=1e-4, atol=1e-6)


class TestEqualsTrainerWithoutATarget:
    @pytest.mark.parametrize(
        "arguments",
        [
            {},
            {"lr_scheduler_type": "cosine", "warmup_steps": 3, "max_grad_norm": 1.0},
            {"gradient_accumulation_steps": 2, "optim": "adamw_torch", "optim_args": None, "weight_decay": 0.1},
            {"eval_strategy": "epoch", "save_strategy": "epoch", "load_best_model_at_end": True},
        ],
        ids=["plain", "cosine", "accumulation", "best"],
    )
    def test_weights_and_logs(self, make_trainer, arguments, tmp_path):
        logs = []
        weights = []
        for name, pruning in (("plain", None), ("pruning", {"target_sparsity": 0})):
            trainer = make_trainer(
                pruning, num_train_epochs=2, logging_strategy="steps", logging_steps=4, shuffle=True,
                output_dir=str(tmp_path / name), **arguments,
            )  # fmt: skip
            trainer.train()
            weights.append(trainer.model)
            timing = ("runtime", "per_second")
            logs.append([{k: v for k, v in e.items() if not k.endswith(timing)} for e in trainer.state.log_history])
        assert same_weights(*weights)
        assert logs[0] == logs[1]


class TestClock:
    def test_every_event_after_the_step_sees_masked_weights(self, make_trainer):
        watcher = Watcher()
        trainer = make_trainer({"target_sparsity": 0.8, "method": "one_shot"}, max_steps=6, callbacks=[watcher])
        trainer.train()
        assert watcher.sparsities == pytest.approx([trainer.sparsity] * 6)

    def test_the_learning_rate_follows_the_recipe(self, make_trainer):
        watcher = Watcher()
        trainer = make_trainer(CYCLICAL, max_steps=20, callbacks=[watcher])
        trainer.train()
        # Two cycles of 10; the drop comes at round(0.75 * 10) = 8.
        assert watcher.rates == pytest.approx(([0.1] * 8 + [0.01] * 2) * 2)

    def test_one_update_per_accumulation_window(self, make_trainer):
        watcher = Watcher()
        make_trainer(CYCLICAL, max_steps=6, gradient_accumulation_steps=2, callbacks=[watcher]).train()
        assert watcher.at_step == list(range(6))

    def test_a_users_own_optimizer_is_pruned_too(self, make_trainer):
        model = TinyNet()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        trainer = make_trainer(CYCLICAL, model=model, max_steps=12, optimizers=(optimizer, None))
        trainer.train()
        assert zeros(trainer.model) == expected_zeros(model, 0.9)
        assert trainer.report.cycles[-1].learning_rate == pytest.approx(0.005)

    def test_a_second_train_starts_a_new_run(self, make_trainer):
        trainer = make_trainer(CYCLICAL, max_steps=12)
        trainer.train()
        trainer.train()
        assert zeros(trainer.model) == expected_zeros(trainer.model, 0.9)
        assert [c.update for c in trainer.report.cycles] == [6, 12]

    @pytest.mark.parametrize("optim", ["sgd", "adamw_torch_fused"])
    def test_a_step_that_the_scaler_skips_loses_neither_masks_nor_learning_rate(self, make_trainer, optim):
        class Overflow(TrainerCallback):
            def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
                if state.global_step in (0, 4, 8):  # 4 and 8: the end of the ramp of each cycle of 5
                    model.head.weight.grad.fill_(torch.inf)

        watcher = Watcher()
        trainer = make_trainer(
            {"target_sparsity": 0.9, "cycles": 2, "delta_t": 2}, max_steps=10, optim=optim, optim_args=None,
            callbacks=[Overflow(), watcher],
        )  # fmt: skip
        trainer.accelerator.scaler = torch.amp.GradScaler("cpu")
        trainer.accelerator.native_amp = True
        trainer.train()
        assert watcher.rates == pytest.approx(([0.1] * 4 + [0.01]) * 2)
        assert [c.sparsity for c in trainer.report.cycles] == pytest.approx([0.9, 0.9], abs=1e-3)
        assert zeros(trainer.model) == expected_zeros(trainer.model, 0.9)


class TestCycleEnds:
    def test_each_cycle_is_evaluated_and_logged_once(self, make_trainer):
        trainer = make_trainer(CYCLICAL | {"cycles": 3}, num_train_epochs=3, eval_strategy="epoch")
        trainer.train()
        evaluated = [e["step"] for e in trainer.state.log_history if "eval_accuracy" in e]
        assert evaluated == [12, 24, 36]
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

    def test_a_dense_start_is_the_dense_row(self, make_trainer):
        trainer = make_trainer(CYCLICAL | {"dense_epochs": 1}, num_train_epochs=3)
        trainer.train()
        assert trainer.report.dense_updates == 12
        assert trainer.report.evaluations[0]["update"] == 12
        assert trainer.report.dense["accuracy"] == trainer.report.evaluations[0]["accuracy"]
        assert [c.update for c in trainer.report.cycles] == [24, 36]

    def test_tensorboard_gets_them(self, make_trainer, tmp_path, monkeypatch):
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

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


class TestBestModel:
    def test_is_chosen_at_the_target_only(self, make_trainer):
        trainer = make_trainer(
            {"target_sparsity": 0.95, "cycles": 2, "delta_t": 2, "dense_updates": 48}, max_steps=96, eval_strategy="steps",
            eval_steps=2,
            save_strategy="steps", save_steps=2, load_best_model_at_end=True, metric_for_best_model="accuracy",
        )  # fmt: skip
        trainer.train()
        denser = max(e["eval_accuracy"] for e in trainer.state.log_history if e.get("eval_at_target") == 0)
        assert denser > trainer.state.best_metric  # the stock rule would have taken a model short of the target
        assert zeros(trainer.model) == expected_zeros(trainer.model, 0.95)
        assert trainer.report.chosen_update == trainer.state.best_global_step
        assert trainer.report.sparsity == pytest.approx(0.95, abs=2e-3)

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


class TestGradualRecovery:
    CONFIG = {"method": "gradual_recovery", "target_sparsity": 0.9, "delta_t": 5}

    def test_is_evaluated_and_saved_masked_but_trained_dense(self, make_trainer, tmp_path):
        from safetensors.torch import load_file

        watcher = Watcher()
        trainer = make_trainer(
            self.CONFIG, max_steps=20, eval_strategy="steps", eval_steps=7, save_strategy="steps", save_steps=7,
            callbacks=[watcher],
        )  # fmt: skip
        trainer.train()
        saved = load_file(tmp_path / "run" / "checkpoint-7" / "model.safetensors")
        evaluated = next(e for e in trainer.state.log_history if e.get("step") == 7 and "eval_sparsity" in e)
        zero = sum(int((saved[f"{n}.weight"] == 0).sum()) for n in ("conv", "hidden", "head"))
        weights = sum(saved[f"{n}.weight"].numel() for n in ("conv", "hidden", "head"))
        assert zero / weights == pytest.approx(evaluated["eval_sparsity"])
        assert watcher.sparsities[6] < 0.1 < zero / weights  # dense between the mask updates, but for dead units
        assert zeros(trainer.model) == expected_zeros(trainer.model, 0.9)

    def test_evaluating_does_not_change_the_training(self, make_trainer):
        quiet = make_trainer(self.CONFIG, max_steps=20)
        watched = make_trainer(self.CONFIG, max_steps=20, eval_strategy="steps", eval_steps=1)
        quiet.train()
        watched.train()
        assert same_weights(quiet.model, watched.model)


class TestResume:
    @pytest.mark.parametrize("at", [4, 12, 22], ids=["ramp", "boundary", "tail"])
    @pytest.mark.parametrize("method", ["cyclical", "gradual_recovery"])
    def test_goes_on_as_if_nothing_had_happened(self, make_trainer, tmp_path, at, method):
        pruning = {"method": method, "target_sparsity": 0.9, "delta_t": 3} | (
            {"cycles": 2} if method == "cyclical" else {}
        )
        arguments = {"num_train_epochs": 2, "shuffle": True, "save_strategy": "steps", "save_steps": at}
        whole = make_trainer(pruning, output_dir=str(tmp_path / "whole"), **arguments)
        whole.train()

        resumed = make_trainer(pruning, model=TinyNet(seed=7), output_dir=str(tmp_path / "resumed"), **arguments)
        resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / f"checkpoint-{at}"))
        assert same_weights(whole.model, resumed.model)
        assert all(torch.equal(whole.pruner.masks[n], resumed.pruner.masks[n]) for n in whole.pruner.masks)
        assert resumed.report.to_dict() == whole.report.to_dict()

    def test_a_foreign_checkpoint_is_refused(self, make_trainer, tmp_path):
        make_trainer(max_steps=4, save_strategy="steps", save_steps=4).train()
        with pytest.raises(PruningError, match="holds no masks"):
            make_trainer(CYCLICAL, max_steps=12).train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-4"))

    def test_a_signal_saves_and_stops(self, make_trainer, tmp_path):
        import os
        import signal

        class CtrlC(TrainerCallback):
            def on_substep_end(self, args, state, control, **kwargs):
                if state.global_step == 6:
                    os.kill(os.getpid(), signal.SIGINT)

        stop = StopOnSignalCallback()
        arguments = {"max_steps": 12, "gradient_accumulation_steps": 2}
        trainer = make_trainer(CYCLICAL, callbacks=[stop, CtrlC()], **arguments)
        trainer.train()
        assert stop.stopped
        assert trainer.state.global_step == 7
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

        whole = make_trainer(CYCLICAL, output_dir=str(tmp_path / "whole"), **arguments)
        whole.train()
        trainer.remove_callback(CtrlC)
        trainer.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-7"))
        assert same_weights(whole.model, trainer.model)


class TestRefusals:
    @pytest.mark.parametrize(
        ("pruning", "arguments", "words"),
        [
            (CYCLICAL, {"lr_scheduler_type": "cosine"}, "lr_scheduler_type .* lr_shape"),
            (CYCLICAL, {"warmup_steps": 10}, "warmup_steps .* lr_shape"),
            (CYCLICAL | {"cycles": 9}, {"max_steps": 10}, "cycles 9 takes at least 18 updates .* has 10"),
            (CYCLICAL | {"dense_epochs": 1}, {"max_steps": 10}, "dense_epochs 1 .* dense_updates"),
            (CYCLICAL | {"exclude": ["heat"]}, {}, "exclude pattern 'heat' matches no layer: near names are head"),
            ({"method": "freeze"}, {}, "freeze.* has none"),
        ],
    )
    def test_one_line_before_training(self, make_trainer, pruning, arguments, words):
        before = TinyNet()
        model = TinyNet()
        with pytest.raises(PruningError, match=words) as caught:
            make_trainer(pruning, model=model, **arguments).train()
        assert "\n" not in str(caught.value)
        assert same_weights(before, model)

    def test_nan_weights_name_the_layer(self, make_trainer):
        model = TinyNet()
        with torch.no_grad():
            model.hidden.weight[3, 3] = torch.nan
        with pytest.raises(PruningError, match=r"hidden\.weight has 1 NaN"):
            make_trainer(CYCLICAL, model=model, max_steps=12).train()

    def test_a_users_own_scheduler(self, make_trainer):
        model = TinyNet()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: 1.0)
        with pytest.raises(PruningError, match="recipe sets the learning rate"):
            make_trainer(CYCLICAL, model=model, optimizers=(optimizer, scheduler))


def test_freeze_keeps_the_zeros_of_a_sparse_model(make_trainer):
    model = TinyNet()
    with torch.no_grad():
        model.hidden.weight[::2] = 0
    trainer = make_trainer({"method": "freeze"}, model=model, max_steps=12)
    trainer.train()
    assert int((model.hidden.weight[::2] != 0).sum()) == 0
    assert int((model.hidden.weight[1::2] == 0).sum()) == 0
    assert not torch.equal(model.hidden.weight[1::2], TinyNet().hidden.weight[1::2])


def test_auto_find_batch_size_restarts_from_clean_masks(make_trainer):
    class FirstTryRunsOut(TrainerCallback):
        tried = False

        def on_step_end(self, args, state, control, **kwargs):
            if not self.tried and state.global_step == 5:
                self.tried = True
                raise RuntimeError("CUDA out of memory.")

    trainer = make_trainer(
        CYCLICAL,
        num_train_epochs=2,
        auto_find_batch_size=True,
        per_device_train_batch_size=16,
        callbacks=[FirstTryRunsOut()],
    )
    trainer.train()
    cycles = trainer.report.cycles
    assert [c.update for c in cycles] == [trainer.state.max_steps // 2, trainer.state.max_steps]
    assert trainer.state.max_steps > 12
    assert trainer.report.masks[0][0] == 0
    assert zeros(trainer.model) == expected_zeros(trainer.model, 0.9)


def test_the_loss_is_not_scaled_by_accumulation_for_heads_that_drop_kwargs(make_trainer):
    class DropsKwargs(TinyNet):
        def forward(self, pixel_values, labels=None, **kwargs):
            return super().forward(pixel_values, labels)

    first = {}
    for accumulation, batch in ((1, 32), (4, 8)):
        trainer = make_trainer(
            CYCLICAL, model=DropsKwargs(), max_steps=12, logging_strategy="steps", logging_steps=1,
            per_device_train_batch_size=batch, gradient_accumulation_steps=accumulation,
        )  # fmt: skip
        trainer.train()
        first[accumulation] = trainer.state.log_history[0]["loss"]
    assert first[4] == pytest.approx(first[1], rel=1e-3)


def test_the_private_hooks_of_trainer_are_still_there():
    signatures = {
        "_determine_best_metric": ["self", "metrics", "trial"],
        "_load_best_model": ["self"],
        "_save_optimizer_and_scheduler": ["self", "output_dir"],
        "_load_optimizer_and_scheduler": ["self", "checkpoint"],
    }
    for name, parameters in signatures.items():
        assert list(inspect.signature(getattr(Trainer, name)).parameters) == parameters


def test_a_checkpoint_holds_no_pickle_of_ours(make_trainer, tmp_path):
    make_trainer(CYCLICAL, max_steps=12, save_strategy="steps", save_steps=12).train()
    folder = Path(tmp_path / "run" / "checkpoint-12")
    state = json.loads((folder / "pruning_state.json").read_text())
    assert state["t"] == 12
    packed = (folder / "pruning_state.safetensors").stat().st_size
    weights = sum(p.numel() for p in prunable_parameters(TinyNet()).values())
    assert packed < weights  # 5 bits a weight and a header
