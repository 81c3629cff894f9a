"""Recalibration: only statistics change, to a mean and variance computed by hand; what is restored; two processes."""

import random

import numpy as np
import pytest
import torch
from support.processes import on_processes
from support.tiny import CYCLICAL, TinyImages, TinyNet, build_trainer, same_weights
from torch import nn
from torch.utils.data import IterableDataset
from transformers import TrainerCallback

from hf_cyclical import PruningConfig, PruningError
from hf_cyclical.data import TensorImages, ready_batch
from hf_cyclical.training import SetEpochCallback, describe_plan

AGAIN = CYCLICAL | {"recalibrate": 3}


class Normed(TinyNet):
    def __init__(self, seed=0):
        super().__init__(seed)
        self.norm = nn.BatchNorm2d(4)

    def forward(self, pixel_values, labels=None):
        x = self.norm(self.conv(pixel_values)).relu().flatten(1)
        logits = self.head(self.hidden(x).relu())
        loss = None if labels is None else nn.functional.cross_entropy(logits, labels)
        return {"loss": loss, "logits": logits}


def by_hand(model, batches=3, size=8, seed=42):
    """The averages over batches of each channel's mean and unbiased variance."""
    data, means, variances = TinyImages(), [], []
    drawn = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))
    for i in range(batches):
        with torch.no_grad():
            x = model.conv(data.pixels[drawn[i * size : i * size + size]])
        values = x.transpose(0, 1).flatten(1)
        means.append(values.mean(1))
        variances.append(((values - means[-1][:, None]) ** 2).sum(1) / (values.shape[1] - 1))
    return torch.stack(means).mean(0), torch.stack(variances).mean(0)


def assert_by_hand(norm, model):
    mean, variance = by_hand(model)
    torch.testing.assert_close(norm["running_mean"], mean, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(norm["running_var"], variance, rtol=1e-4, atol=1e-5)


class Look(TrainerCallback):
    """Statistics and convolution at each evaluation, and the statistics before each update."""

    def __init__(self):
        self.evaluated, self.trained = {}, []

    def on_prediction_step(self, args, state, control, model=None, **kwargs):
        self.evaluated[state.global_step] = {name: value.clone() for name, value in model.state_dict().items()}

    def on_step_begin(self, args, state, control, model=None, **kwargs):
        assert model.norm.momentum == 0.1
        self.trained.append({name: value.clone() for name, value in model.state_dict().items()})


def statistics(state):
    return {name.removeprefix("norm."): value for name, value in state.items() if "running" in name}


def test_what_is_evaluated_has_the_statistics_by_hand_and_the_result_too(make_trainer):
    look = Look()
    trainer = make_trainer(AGAIN, model=Normed(), max_steps=12, callbacks=[look])
    trainer.train()
    for update in (6, 12):
        model = Normed()
        model.load_state_dict(look.evaluated[update])
        assert_by_hand(statistics(look.evaluated[update]), model)
    assert_by_hand(statistics(trainer.model.state_dict()), trainer.model)
    assert trainer.evaluate()["eval_loss"] == trainer.report.evaluations[-1]["loss"]
    assert trainer.model.norm.momentum == 0.1


def test_nothing_else_changes_in_the_run(make_trainer, tmp_path):
    """Images are shuffled, and each is read with random numbers of every kind: training goes on with its own."""

    class Noisy(TinyImages):
        def __getitem__(self, i):
            noise = random.random() + float(np.random.random()) + torch.rand(())
            return {"pixel_values": self.pixels[i] + 0.1 * noise, "labels": self.labels[i]}

    runs = []
    for i, pruning in enumerate((AGAIN, CYCLICAL)):
        look = Look()
        trainer = make_trainer(
            pruning, model=Normed(), max_steps=12, callbacks=[look], shuffle=True, train_dataset=Noisy(),
            eval_strategy="steps", eval_steps=2, output_dir=str(tmp_path / str(i)),
        )  # fmt: skip
        trainer.train()
        runs.append((look.trained, trainer.model.state_dict()))
    (trained, result), (plain, other) = runs
    for one, two in zip(trained, plain, strict=True):
        assert all(torch.equal(value, two[name]) for name, value in one.items())  # the statistics came back, too
    same = {name for name, value in result.items() if torch.equal(value, other[name])}
    assert result.keys() - same == {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}


def test_the_dense_model_is_evaluated_as_it_is(make_trainer):
    look, model = Look(), Normed()
    trainer = make_trainer(AGAIN, model=model, max_steps=12, callbacks=[look], eval_on_start=True)
    trainer.train()
    assert torch.equal(look.evaluated[0]["norm.running_mean"], torch.zeros(4))


def test_data_of_less_than_that_is_used_once(make_trainer):
    trainer = make_trainer(CYCLICAL | {"recalibrate": 1000}, model=Normed(), max_steps=12)
    trainer.train()
    assert trainer.model.norm.num_batches_tracked == 96 // 8


def test_an_average_of_the_weights_gets_statistics_of_its_own(make_trainer):
    trainer = make_trainer(AGAIN | {"ema_decay": 0.75}, model=Normed(), max_steps=40)
    trainer.train()
    assert_by_hand(statistics(trainer.model.state_dict()), trainer.model)


def test_a_resumed_run_is_the_same(make_trainer, tmp_path):
    arguments = {"max_steps": 12, "shuffle": True, "save_strategy": "steps", "save_steps": 4}
    first = make_trainer(AGAIN, model=Normed(), **arguments)
    first.train()
    again = make_trainer(AGAIN, model=Normed(seed=5), output_dir=str(tmp_path / "again"), **arguments)
    again.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-8"))
    assert same_weights(again.model, first.model)


def augmented():
    """Images that are shifted by the epoch, as those of the commands are."""
    pixels = (TinyImages().pixels * 40 + 128).clamp(0, 255).to(torch.uint8)
    return TensorImages(pixels, TinyImages().labels, padding=2)


def augmenting(make_trainer, images, **arguments):
    trainer = make_trainer(
        AGAIN, model=Normed(), max_steps=36, train_dataset=images, eval_dataset=augmented(),
        callbacks=[SetEpochCallback(images)], save_strategy="steps", save_steps=12,
        remove_unused_columns=False, **arguments,
    )  # fmt: skip
    trainer.data_collator = ready_batch
    return trainer


def test_the_images_are_those_of_one_epoch_whichever_is_on(make_trainer, tmp_path):
    """A run that is resumed at its end has no epoch left, and has the same statistics."""
    first = augmenting(make_trainer, augmented())
    first.train()
    again = augmenting(make_trainer, augmented(), output_dir=str(tmp_path / "again"))
    again.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-36"))
    assert same_weights(again.model, first.model)


def train_on_a_process(rank, folder):
    look = Look()
    trainer = build_trainer(
        folder, AGAIN, model=Normed(), max_steps=12, per_device_train_batch_size=4, callbacks=[look],
        ddp_broadcast_buffers=False,
    )  # fmt: skip
    trainer.train()
    return look.evaluated[6], trainer.model.state_dict()


def test_two_processes_have_the_same_statistics(tmp_path):
    one, two = on_processes(2, train_on_a_process, tmp_path)
    for state, other in zip(one, two, strict=True):
        assert all(torch.equal(value, other[name]) for name, value in state.items())
        model = Normed()
        model.load_state_dict(state)
        mean, variance = by_hand(model, size=4)
        torch.testing.assert_close(state["norm.running_mean"], mean, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(state["norm.running_var"], variance, rtol=1e-4, atol=1e-5)


def test_a_model_without_batch_norm_gets_one_line(make_trainer, caplog):
    trainer = make_trainer(AGAIN, max_steps=12)
    trainer.train()
    lines = [record.getMessage() for record in caplog.records if "recalibrate" in record.getMessage()]
    assert lines == ["recalibrate 3 has no effect, as the model has no statistics of BatchNorm"]
    assert "Recalibration" not in describe_plan(trainer)


def test_the_plan_says_so(make_trainer):
    text = describe_plan(make_trainer(AGAIN, model=Normed(), max_steps=12))
    assert "statistics of BatchNorm from 3 training batches for each evaluation and for the result." in text


def test_the_plan_says_how_many_batches_there_are(make_trainer):
    """The 96 images fill two batches of 40."""
    trainer = make_trainer(CYCLICAL | {"recalibrate": 50}, model=Normed(), max_steps=12, per_device_train_batch_size=40)
    assert "statistics of BatchNorm from 2 training batches for each" in describe_plan(trainer)
    trainer.train()
    assert trainer.model.norm.num_batches_tracked == 2


def test_streams_and_numbers_without_a_meaning_are_refused(make_trainer):
    class Stream(IterableDataset):
        def __iter__(self):
            yield from TinyImages()

    with pytest.raises(PruningError, match="recalibrate 3 draws from all training images, and a stream has no length"):
        make_trainer(AGAIN, model=Normed(), max_steps=12, train_dataset=Stream(), shuffle=True).train()
    with pytest.raises(PruningError, match="recalibrate -1 must be a whole number of at least 0: use 50"):
        PruningConfig(recalibrate=-1)


def test_0_is_none(make_trainer):
    trainer = make_trainer(CYCLICAL | {"recalibrate": 0}, model=Normed(), max_steps=12)
    assert "Recalibration" not in describe_plan(trainer)
    trainer.train()
    assert trainer.model.norm.num_batches_tracked == 12
