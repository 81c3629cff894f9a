"""CyclicalPruningTrainer against Algorithm 1 as a naive loop, and against the Trainer that it extends."""

import inspect

import pytest
import torch
from reference import reference_run
from tiny import CYCLICAL, TinyImages, TinyNet, Watcher, expected_zeros, same_weights, zeros
from transformers import Trainer, TrainerCallback


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


def test_scope_and_patterns_reach_the_pruner(make_trainer):
    trainer = make_trainer(
        {
            "target_sparsity": 0.8,
            "method": "one_shot",
            "scope": "global",
            "include": ["conv", "hidden"],
            "exclude": ["conv"],
        },
        max_steps=4,
    )
    trainer.train()
    assert list(trainer.pruner.masks) == ["hidden.weight"]
    both = make_trainer({"target_sparsity": 0.8, "method": "one_shot", "scope": "global"}, max_steps=4)
    both.train()
    kept = {name: mask.float().mean() for name, mask in both.pruner.masks.items()}
    assert max(kept.values()) - min(kept.values()) > 0.1  # a rank over all layers keeps more of some
    assert both.sparsity == pytest.approx(0.8, abs=1e-3)
