"""How long a run takes is measured on a copy."""

import re

import torch
from support.tiny import CYCLICAL, TinyImages, TinyNet

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


def test_slow_updates_are_not_measured_for_long(make_trainer, monkeypatch):
    seen = []
    monkeypatch.setattr(time_estimate.time, "perf_counter", lambda: Slow.now)
    model = Slow()
    model.register_forward_hook(lambda module, *_: seen.append(module.training))
    trainer = make_trainer(CYCLICAL, model=model, max_steps=24, per_device_train_batch_size=48)
    estimate_time(trainer)
    assert seen.count(True) == 2
