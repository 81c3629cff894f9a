"""RigL, SNFS, DPF, GraNet and AC/DC in CyclicalPruningTrainer: naive loops, resumed runs, precision, processes."""

import pytest
import reference
import rival_loops
import torch
from safetensors.torch import load_file
from support.processes import on_processes
from support.sharded import ShardedTrainer
from support.tiny import TinyImages, TinyNet, build_trainer, expected_zeros, zeros
from torch.distributed.tensor import DTensor
from transformers import TrainerCallback

from hf_cyclical import PruningConfig, PruningError, prunable_parameters

UPDATES = 40
NAMES = ["conv.weight", "hidden.weight", "head.weight"]
METHODS = ["rigl", "snfs", "dpf", "granet", "acdc"]
ADAM = {"optim": "adamw_torch", "optim_args": None, "learning_rate": 0.01}
SAVES = {"save_strategy": "steps", "save_steps": 1}


def pruning(method, **more):
    own = {"cycles": 3} if method == "acdc" else {"delta_t": 4}
    return {"method": method, "target_sparsity": 0.8, **own, **more}


def naive(method, make_optimizer, accumulation):
    """The naive loop's end, on the trainer's data."""
    model, data = TinyNet(), TinyImages()
    batches = [(data.pixels[i : i + 8], data.labels[i : i + 8]) for i in range(0, len(data), 8)]
    micro = [batches[i % len(batches)] for i in range(UPDATES * accumulation)]
    updates = [micro[i : i + accumulation] for i in range(0, len(micro), accumulation)]
    config = PruningConfig(**pruning(method, row_floor=0))
    options = {"s_t": 0.8, "delta_t": 4}
    if method == "acdc":
        options = {"s_t": 0.8, "phases": [(4, False), (8, True), (9, False), (9, True), (4, False), (6, True)]}
    if method in ("rigl", "snfs"):
        options["first"] = reference.magprune({name: p.detach() for name, p in prunable_parameters(model).items()}, 0.8)
    eta = config.recipe(UPDATES).eta
    return getattr(rival_loops, method)(model, updates, make_optimizer, eta, NAMES, **options)


@pytest.mark.parametrize("accumulation", [1, 3])
@pytest.mark.parametrize(
    ("arguments", "make_optimizer"),
    [
        ({}, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)),
        (ADAM, lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.0)),
    ],
    ids=["sgd", "adamw"],
)
@pytest.mark.parametrize("method", METHODS)
def test_the_trainer_is_the_naive_loop(make_trainer, method, arguments, make_optimizer, accumulation):
    arguments = arguments | {"weight_decay": 0.0}
    uniform = {"share": "global"} if method == "granet" else {}
    trainer = make_trainer(
        pruning(method, row_floor=0, **uniform),
        max_steps=UPDATES,
        gradient_accumulation_steps=accumulation,
        **arguments,
    )
    trainer.train()
    loop = naive(method, make_optimizer, accumulation)
    for name, mask in loop.masks.items():
        assert torch.equal(trainer.pruner.masks[name], mask), name
    for name, p in loop.model.named_parameters():
        torch.testing.assert_close(trainer.model.get_parameter(name), p, rtol=1e-4, atol=1e-6)


class Watch(TrainerCallback):
    """Zeros of the model wherever a callback looks, and whether it has gradients after a step."""

    def __init__(self):
        self.zeros, self.before, self.gradients = [], [], []

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        self.before.append(zeros(model))
        self.gradients.append(all(p.grad is not None for p in model.parameters()))

    def on_optimizer_step(self, args, state, control, model=None, **kwargs):
        self.zeros.append(zeros(model))
        self.gradients.append(all(p.grad is not None for p in model.parameters()))


@pytest.mark.parametrize("method", ["rigl", "snfs"])
def test_the_sparsity_is_that_of_the_target_from_the_first_update_to_the_last(make_trainer, method):
    watch = Watch()
    trainer = make_trainer(pruning(method), max_steps=UPDATES, callbacks=[watch])
    trainer.train()
    kept = sum(int(mask.sum()) for mask in trainer.pruner.masks.values())
    total = sum(mask.numel() for mask in trainer.pruner.masks.values())
    assert {update[1] for update in trainer.report.masks} == {1 - kept / total}
    assert min(watch.zeros) >= total - kept == expected_zeros(trainer.model, 0.8)
    assert all(watch.gradients)
    assert trainer.report.cycles[0].recovered > 0
    assert trainer.report.cycles[0].regrown > 0
    assert trainer.report.mean_density == pytest.approx((1 + (UPDATES - 1) * kept / total) / UPDATES)


def test_the_model_of_dpf_is_masked_outside_the_optimizers_step(make_trainer, tmp_path):
    watch = Watch()
    trainer = make_trainer(pruning("dpf"), max_steps=UPDATES, callbacks=[watch], **SAVES)
    trainer.train()
    assert watch.before[1:] == watch.zeros[:-1]
    assert watch.zeros[-1] == zeros(trainer.model) == expected_zeros(trainer.model, 0.8)
    saved = load_file(tmp_path / "run" / f"checkpoint-{UPDATES}" / "model.safetensors")
    assert sum(int((saved[name] == 0).sum()) for name in NAMES) == zeros(trainer.model)
    hidden = load_file(tmp_path / "run" / f"checkpoint-{UPDATES}" / "pruning_state.safetensors")
    assert all(hidden[f"hidden.{name}"].all() for name in NAMES)


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_a_run_resumed_in_any_phase_goes_on_bit_for_bit(make_trainer, tmp_path, method, bf16):
    arguments = {"max_steps": 20, "bf16": bf16, **ADAM, **SAVES}
    settings = pruning(method, init_masks="random") if method == "rigl" else pruning(method)
    whole = make_trainer(settings, output_dir=str(tmp_path / "whole"), **arguments)
    whole.train()
    for update in (1, 4, 7, 8, 13, 17):
        again = make_trainer(settings, model=TinyNet(seed=9), output_dir=str(tmp_path / f"at-{update}"), **arguments)
        again.train(resume_from_checkpoint=str(tmp_path / "whole" / f"checkpoint-{update}"))
        for name, p in whole.model.state_dict().items():
            assert torch.equal(again.model.state_dict()[name], p), (update, name)
        for name, mask in whole.pruner.masks.items():
            assert torch.equal(again.pruner.masks[name], mask), (update, name)
        assert again.report.to_dict() == whole.report.to_dict()


class Overflow(TrainerCallback):
    """Gradients that are infinite at some updates: of the first masks, of an exchange, and of a step between."""

    def __init__(self, updates):
        self.updates = updates

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        if state.global_step in self.updates:
            model.conv.weight.grad[0] = torch.inf


@pytest.mark.parametrize("method", METHODS)
def test_a_gradient_scaler_changes_nothing_but_the_steps_that_it_leaves_out(make_trainer, method):
    def run(scaler, *overflows):
        trainer = make_trainer(pruning(method), max_steps=UPDATES, callbacks=[Overflow(overflows)])
        trainer.accelerator.scaler, trainer.accelerator.native_amp = scaler, True
        trainer.train()
        assert scaler is None or scaler.get_scale() == 2.0 ** (16 - len(overflows))
        return trainer

    plain = run(None)
    same, other = run(torch.amp.GradScaler("cpu")), run(torch.amp.GradScaler("cpu"), 0, 8, 13)
    for name, p in plain.model.state_dict().items():
        assert torch.equal(same.model.state_dict()[name], p), name
        assert other.model.state_dict()[name].isfinite().all()
    assert [row[:2] for row in other.report.masks] == [row[:2] for row in plain.report.masks]


@pytest.mark.parametrize("method", METHODS)
def test_the_best_model_is_sparse_whatever_is_loaded(make_trainer, method):
    trainer = make_trainer(
        pruning(method), max_steps=20, save_strategy="steps", save_steps=2, eval_strategy="steps", eval_steps=2,
        load_best_model_at_end=True, metric_for_best_model="loss", greater_is_better=True,
    )  # fmt: skip
    trainer.train()
    assert zeros(trainer.model) >= expected_zeros(trainer.model, 0.8)
    assert all(not p.detach()[~trainer.pruner.masks[name]].any() for name, p in trainer.pruner.params.items())


def test_layers_have_targets_of_their_own(make_trainer):
    for method in ("rigl", "dpf", "granet"):
        trainer = make_trainer(pruning(method, layer_sparsity=["hidden=0.5"]), max_steps=UPDATES)
        trainer.train()
        assert int(trainer.pruner.masks["hidden.weight"].sum()) == 24 * 64 // 2


def test_random_masks_are_those_of_the_seed(make_trainer):
    def masks(**arguments):
        trainer = make_trainer(pruning("rigl", init_masks="random", share="erk"), max_steps=2, **arguments)
        trainer.train()
        return trainer.pruner.masks["hidden.weight"]

    assert torch.equal(masks(seed=1), masks(seed=1, learning_rate=0.01))
    assert not torch.equal(masks(seed=1), masks(seed=2))


def test_snfs_without_momentum_is_refused_before_training(make_trainer):
    trainer = make_trainer(pruning("snfs"), max_steps=4, optim="sgd", optim_args=None)
    with pytest.raises(PruningError, match="ranks weights by their momentum has no effect on SGD without momentum"):
        trainer.plan()


# Two processes -------------------------------------------------------------------------------------------------------


def run(rank, folder, mode, settings):
    kind = ShardedTrainer if mode == "fsdp2" else None
    batch = 8 if mode == "one" else 4
    trainer = build_trainer(folder, settings, kind=kind, max_steps=24, per_device_train_batch_size=batch, **SAVES)
    trainer.train()
    weights = {n: p.full_tensor() if isinstance(p, DTensor) else p for n, p in trainer.pruner.params.items()}
    return trainer.pruner.state_dict()["masks"], {n: w.detach().clone() for n, w in weights.items()}


def resume(rank, folder, mode, settings):
    whole = run(rank, folder / "whole", mode, settings)
    kind = ShardedTrainer if mode == "fsdp2" else None
    trainer = build_trainer(
        folder / "again", settings, kind=kind, model=TinyNet(seed=rank), max_steps=24, per_device_train_batch_size=4,
        **SAVES,
    )  # fmt: skip
    trainer.train(resume_from_checkpoint=str(folder / "whole" / "checkpoint-10"))
    weights = {n: p.full_tensor() if isinstance(p, DTensor) else p for n, p in trainer.pruner.params.items()}
    return whole, (trainer.pruner.state_dict()["masks"], {n: w.detach().clone() for n, w in weights.items()})


@pytest.mark.parametrize("mode", ["ddp", "fsdp2"])
@pytest.mark.parametrize("method", METHODS)
def test_two_processes_are_as_one_and_go_on(tmp_path, method, mode):
    settings = pruning(method, init_masks="random") if method == "rigl" else pruning(method)
    masks, weights = run(0, tmp_path / "one", "one", settings)
    for (found, split), (again, resumed) in on_processes(2, resume, tmp_path / mode, mode, settings):
        for name, mask in masks.items():
            assert torch.equal(found[name], mask), name
            assert torch.equal(again[name], found[name]), name
            torch.testing.assert_close(split[name], weights[name], rtol=1e-4, atol=1e-6)
            assert torch.equal(resumed[name], split[name]), name
