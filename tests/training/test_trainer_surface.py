"""CyclicalPruningTrainer with what else the Trainer offers: precision, optimizers, compilation, restarts."""

import copy

import pytest
import torch
from reference import Cyclical
from safetensors.torch import load_file
from support.tiny import CYCLICAL, TinyNet, Watcher, expected_zeros, zeros
from transformers import TrainerCallback

from hf_cyclical import prunable_parameters

T = 24
NAMES = ["conv.weight", "hidden.weight", "head.weight"]
METHOD = Cyclical(s_t=0.9, T=T, k=2, delta_t=3)  # what CYCLICAL is in a run of T updates


def assert_at_target(trainer, s=0.9):
    assert zeros(trainer.model) == expected_zeros(trainer.model, s)
    for name, p in prunable_parameters(trainer.model).items():
        assert torch.equal(trainer.pruner.masks[name], p != 0), name


def expected_zero_counts():
    """The number of zeros after every update of METHOD, from the paper's formulas."""
    counts, s = [], 0.0
    for t in range(T):
        s = METHOD.s(t) if METHOD.update_at(t) else s
        counts.append(expected_zeros(TinyNet(), s))
    return counts


class PrunedWeights(TrainerCallback):
    """After every update: which weights the masks drop, and whether any of them is not zero."""

    def __init__(self):
        self.trainer, self.dropped, self.nonzero = None, [], []

    def on_optimizer_step(self, args, state, control, model=None, **kwargs):
        dropped = {name: ~mask for name, mask in self.trainer.pruner.masks.items()}
        self.dropped.append(torch.cat([drop.flatten() for drop in dropped.values()]))
        self.nonzero.append(sum(int(model.get_parameter(name)[drop].count_nonzero()) for name, drop in dropped.items()))

    def check(self):
        assert [int(dropped.sum()) for dropped in self.dropped] == expected_zero_counts()
        assert self.nonzero == [0] * T
        for t in range(1, T):
            if not METHOD.update_at(t):
                assert torch.equal(self.dropped[t], self.dropped[t - 1]), t


class TestPrecision:
    def test_bf16_keeps_float32_weights_and_exact_zeros(self, make_trainer):
        seen = PrunedWeights()
        trainer = make_trainer(CYCLICAL, max_steps=T, bf16=True, callbacks=[seen])
        seen.trainer = trainer
        computed = set()
        trainer.model.hidden.register_forward_hook(lambda m, x, y: computed.add(y.dtype))
        trainer.train()
        assert computed == {torch.bfloat16}
        assert {p.dtype for p in trainer.model.parameters()} == {torch.float32}
        seen.check()
        assert_at_target(trainer)

    @pytest.mark.parametrize("optim", ["sgd", "adamw_torch_fused"])
    def test_skipped_steps_leave_every_sparsity_and_learning_rate_as_planned(self, make_trainer, optim):
        skipped = (0, 5, 9, 10, 12, 22)  # 10 and 22: the last choice of masks in a ramp; 12: the start of a cycle

        class Overflow(TrainerCallback):
            def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
                if state.global_step in skipped:
                    model.conv.weight.grad[0] = torch.inf

        watcher = Watcher()
        trainer = make_trainer(
            CYCLICAL, max_steps=T, optim=optim, optim_args=None, callbacks=[Overflow(), watcher], learning_rate=0.01
        )
        trainer.accelerator.scaler = torch.amp.GradScaler("cpu")
        trainer.accelerator.native_amp = True
        trainer.train()
        assert trainer.accelerator.scaler.get_scale() == 2.0 ** (16 - len(skipped))  # each overflow halves it
        assert watcher.rates == pytest.approx([0.01 * METHOD.eta(t) for t in range(T)])
        weights = sum(p.numel() for p in prunable_parameters(trainer.model).values())
        planned = [(t, n / weights) for t, n in enumerate(expected_zero_counts()) if METHOD.update_at(t)]
        assert [row[:2] for row in trainer.report.masks] == planned
        assert_at_target(trainer)


class TestOptimizers:
    @pytest.mark.parametrize(
        ("optim", "optim_args"),
        [
            ("sgd", "momentum=0.9,nesterov=True"),
            ("adamw_torch", None),
            ("adamw_torch_fused", None),
            ("adafactor", None),
        ],
    )
    def test_pruned_weights_stay_zero_between_choices_of_masks(self, make_trainer, optim, optim_args):
        seen = PrunedWeights()
        trainer = make_trainer(
            CYCLICAL, max_steps=T, optim=optim, optim_args=optim_args, learning_rate=0.01, weight_decay=0.01,
            callbacks=[seen],
        )  # fmt: skip
        seen.trainer = trainer
        trainer.train()
        seen.check()
        assert_at_target(trainer)

    def test_a_users_own_optimizer(self, make_trainer):
        seen, model = PrunedWeights(), TinyNet()
        optimizer = torch.optim.RMSprop(model.parameters(), lr=0.003, momentum=0.9)
        trainer = make_trainer(CYCLICAL, model=model, max_steps=T, optimizers=(optimizer, None), callbacks=[seen])
        seen.trainer = trainer
        trainer.train()
        seen.check()
        assert_at_target(trainer)


class TestCompile:
    def test_masks_are_those_of_the_plain_model_and_choosing_them_compiles_nothing(self, make_trainer, tmp_path):
        graphs = []

        class CountGraphs(TrainerCallback):
            def on_step_end(self, args, state, control, **kwargs):
                graphs.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])

        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        compiled = make_trainer(
            CYCLICAL | {"delta_t": 1}, max_steps=T, torch_compile=True, torch_compile_backend="aot_eager",
            save_strategy="steps", save_steps=T, callbacks=[CountGraphs()],
        )  # fmt: skip
        compiled.train()
        torch._dynamo.reset()
        plain = make_trainer(CYCLICAL | {"delta_t": 1}, max_steps=T, output_dir=str(tmp_path / "plain"))
        plain.train()

        assert graphs == [1] * T
        for name, mask in plain.pruner.masks.items():
            assert torch.equal(compiled.pruner.masks[name], mask), name
        assert_at_target(compiled)
        checkpoint = tmp_path / "run" / f"checkpoint-{T}"
        assert load_file(checkpoint / "model.safetensors").keys() == TinyNet().state_dict().keys()
        masks = {name for name in load_file(checkpoint / "pruning_state.safetensors") if name.startswith("mask.")}
        assert masks == {f"mask.{name}" for name in NAMES}

    def test_a_model_that_the_user_has_compiled_is_pruned_under_its_own_names(self, make_trainer):
        model = TinyNet()
        trainer = make_trainer(
            CYCLICAL, model=torch.compile(model, backend="eager"), max_steps=12, remove_unused_columns=False,
            label_names=["labels"],
        )  # fmt: skip
        trainer.train()
        assert list(trainer.pruner.masks) == NAMES
        assert zeros(model) == expected_zeros(model, 0.9)


class CleanStart(TrainerCallback):
    """Every run must begin with all weights kept and nothing noted."""

    def __init__(self):
        self.trainer, self.starts = None, 0

    def on_train_begin(self, args, state, control, **kwargs):
        self.starts += 1
        assert all(mask.all() for mask in self.trainer.pruner.masks.values())
        assert not any(flags.any() for flags in self.trainer.run.tracker.flags.values())
        report = self.trainer.report
        assert (report.masks, report.cycles, report.evaluations, self.trainer.run.sparsity) == ((), (), (), 0.0)


class TestRestarts:
    def test_out_of_memory_starts_a_run_of_its_own(self, make_trainer, tmp_path):
        class RunsOut(CleanStart):
            model = None

            def on_step_end(self, args, state, control, model=None, **kwargs):
                if self.starts == 1 and state.global_step == 11:  # at the target, the learning rate has dropped
                    assert zeros(model) == expected_zeros(model, 0.9)
                    self.model = copy.deepcopy(model)
                    raise RuntimeError("CUDA out of memory.")

        runs_out, watcher = RunsOut(), Watcher()
        arguments = {"num_train_epochs": 2, "optim_args": None}  # no momentum: attempts share the weights only
        trainer = make_trainer(
            CYCLICAL,
            auto_find_batch_size=True,
            per_device_train_batch_size=8,
            callbacks=[runs_out, watcher],
            **arguments,
        )
        runs_out.trainer = trainer
        trainer.train()
        assert runs_out.starts == 2
        after, rates = trainer.state.train_batch_size, watcher.rates[11:]
        assert after < 8
        assert_at_target(trainer)

        watcher = Watcher()
        alone = make_trainer(
            CYCLICAL, model=runs_out.model, per_device_train_batch_size=after, callbacks=[watcher],
            output_dir=str(tmp_path / "alone"), **arguments,
        )  # fmt: skip
        alone.train()
        assert alone.report.to_dict() == trainer.report.to_dict()
        assert rates == watcher.rates
        for name, p in alone.model.state_dict().items():
            assert torch.equal(trainer.model.state_dict()[name], p), name

    def test_a_second_train_is_planned_as_the_first(self, make_trainer):
        watcher, clean = Watcher(), CleanStart()
        trainer = make_trainer(CYCLICAL, max_steps=T, callbacks=[watcher, clean])
        clean.trainer = trainer
        trainer.train()
        first = trainer.report
        trainer.train()
        assert clean.starts == 2
        assert trainer.report is not first
        assert first.start_sparsity == 0
        assert trainer.report.start_sparsity == pytest.approx(first.sparsity)
        assert [row[:2] for row in trainer.report.masks] == [row[:2] for row in first.masks]
        assert [c.update for c in trainer.report.cycles] == [T // 2, T]
        assert watcher.rates == [0.1 * METHOD.eta(t) for t in range(T)] * 2
        assert_at_target(trainer)
