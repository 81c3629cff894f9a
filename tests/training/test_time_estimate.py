"""How long a run takes is measured on a copy."""

import re

import pytest
import torch
from support.processes import on_processes
from support.tiny import CYCLICAL, TinyImages, TinyNet, build_trainer

from hf_cyclical.methods import METHODS, applies
from hf_cyclical.training import estimate_time, time_estimate


class Slow(TinyNet):
    """Takes a second an image for training and two for evaluation, by a clock that it moves itself."""

    now = 0.0

    def forward(self, pixel_values, labels=None):
        Slow.now += len(pixel_values) * (1 if self.training else 2)
        return super().forward(pixel_values, labels)


def test_it_counts_updates_and_evaluations(make_trainer, monkeypatch, capsys):
    monkeypatch.setattr(time_estimate.time, "perf_counter", lambda: Slow.now)
    monkeypatch.setattr(time_estimate, "_LONGEST", 1e9)
    trainer = make_trainer(CYCLICAL, model=Slow(), max_steps=24, eval_dataset=TinyImages(n=96))
    before = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    words = estimate_time(trainer)
    # Batches of 8 images take 8 s; 96 images to evaluate on take 192 s, at the start and after each of two cycles.
    assert words == "Estimated time: 12.8 minutes (24 updates of 8 s, 3 evaluations of 3.2 minutes, as measured now)"
    dense = make_trainer(CYCLICAL | {"dense_updates": 8}, model=Slow(), max_steps=24, eval_dataset=TinyImages(n=96))
    assert "4 evaluations of 3.2 minutes" in estimate_time(dense)
    assert all(torch.equal(before[name], value) for name, value in trainer.model.state_dict().items())
    assert trainer.state.global_step == 0
    assert trainer.optimizer is None
    assert capsys.readouterr().out == ""
    trainer = make_trainer(CYCLICAL, model=Slow(), max_steps=24, gradient_accumulation_steps=2, eval_dataset=None)
    assert re.match(
        r"Estimated time: 6.4 minutes \(24 updates of 16 s, as measured now; evaluations", estimate_time(trainer)
    )


@pytest.mark.parametrize("dense_updates", [0, 5])
@pytest.mark.parametrize(
    "arguments",
    [
        {"max_steps": 30},
        {"max_steps": 30, "eval_strategy": "steps", "eval_steps": 4},
        {"max_steps": 30, "eval_strategy": "steps", "eval_steps": 0.3},
        {"max_steps": 30, "eval_strategy": "steps", "logging_steps": 15, "eval_delay": 16},
        {"max_steps": 30, "eval_strategy": "epoch", "num_train_epochs": 100},
        {"num_train_epochs": 2.5, "eval_strategy": "epoch"},
        {"num_train_epochs": 3, "eval_strategy": "epoch", "eval_delay": 2, "eval_on_start": True},
    ],
)
def test_it_counts_the_evaluations_that_a_run_makes(make_trainer, arguments, dense_updates):
    trainer = make_trainer(CYCLICAL | {"dense_updates": dense_updates}, **arguments)
    (count,) = re.findall(r"(\d+) evaluations of", estimate_time(trainer))
    trainer.train()
    assert int(count) == sum("eval_loss" in entry for entry in trainer.state.log_history)


@pytest.mark.parametrize("more", [{}, {"ramp_fraction": 1.0}], ids=["", "ramp 1"])
@pytest.mark.parametrize("method", [name for name, row in METHODS.items() if not row.keeps_zeros])
def test_every_method_has_a_time(make_trainer, method, more):
    """Also those that rank weights by their gradients, of which none are left after an update."""
    if not all(applies(method, name) for name in more):
        pytest.skip("the method has no ramp")
    often = {"delta_t": 3} if applies(method, "delta_t") else {}
    pruning = {"method": method, "target_sparsity": 0.8} | often | more
    assert "Estimated time: " in estimate_time(make_trainer(pruning, max_steps=40))


def test_slow_updates_are_not_measured_for_long(make_trainer, monkeypatch):
    seen = []
    monkeypatch.setattr(time_estimate.time, "perf_counter", lambda: Slow.now)
    model = Slow()
    model.register_forward_hook(lambda module, *_: seen.append(module.training))
    trainer = make_trainer(CYCLICAL, model=model, max_steps=24, per_device_train_batch_size=48)
    estimate_time(trainer)
    assert seen.count(True) == 2


def ends_of(rank, folder):
    """How many updates were measured, where only the first process finds them slow."""
    time_estimate._LONGEST = 0.0 if rank == 0 else 1e9
    clocks = []

    class Clock(time_estimate._Clock):
        def __init__(self):
            super().__init__()
            clocks.append(self)

    time_estimate._Clock = Clock
    estimate_time(build_trainer(folder, CYCLICAL, max_steps=24, per_device_train_batch_size=4))
    return len(clocks[0].ends)


def test_processes_end_their_measurement_together(tmp_path):
    assert on_processes(2, ends_of, tmp_path) == [2, 2]
