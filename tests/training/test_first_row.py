"""The dense model is the first row of every table, and what is logged on the way is of now."""

import pytest
import torch
from support.tiny import CYCLICAL, TinyImages
from transformers import TrainerCallback

from hf_cyclical.core import mask_distance


@pytest.mark.parametrize("arguments", [{}, {"eval_strategy": "no"}, {"eval_on_start": True}])
def test_the_dense_model_is_evaluated_once_before_any_update(make_trainer, arguments):
    trainer = make_trainer(CYCLICAL, max_steps=12, **arguments)
    before = trainer.evaluate()["eval_accuracy"]
    trainer.train()
    assert trainer.report.dense["accuracy"] == before
    assert [row["update"] for row in trainer.report.evaluations] == [0, 6, 12]
    assert trainer.report.table().splitlines()[2].split()[0] == "dense"
    assert trainer.args.eval_on_start == ("eval_on_start" in arguments)


def test_a_dense_start_has_a_row_before_it_and_one_after_it(make_trainer):
    trainer = make_trainer(CYCLICAL | {"dense_updates": 4}, max_steps=12, learning_rate=0.05)
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    first, second = trainer.report.evaluations[:2]
    assert [row["update"] for row in trainer.report.evaluations] == [0, 4, 8, 12]
    assert first["loss"] == before != second["loss"] == trainer.report.dense["loss"]
    rows = [line.split() for line in trainer.report.table().splitlines()[2:5]]
    assert [row[0] for row in rows] == ["initial", "dense", "cycle"]
    assert [float(row[1]) for row in rows[:2]] == [round(100 * row["accuracy"], 2) for row in (first, second)]


def test_without_an_evaluation_set_there_is_none(make_trainer):
    trainer = make_trainer(CYCLICAL, max_steps=12, eval_dataset=None)
    trainer.train()
    assert trainer.report.evaluations == ()


def test_of_several_sets_of_images_every_row_has_all_metrics(make_trainer):
    sets = {"a": TinyImages(n=48, seed=2), "b": TinyImages(n=40, seed=3)}
    trainer = make_trainer(CYCLICAL, max_steps=12, eval_dataset=sets)
    trainer.train()
    names = {"a_loss", "a_accuracy", "b_loss", "b_accuracy"}
    rows = trainer.report.evaluations
    assert [row["update"] for row in rows] == [0, 6, 12]
    assert all(set(row) == names | {"update"} for row in rows)
    assert {"update": 0, **trainer.report.dense} == rows[0]
    assert [row[1] for row in map(str.split, trainer.report.table().splitlines()[2:3])] == [
        f"{100 * rows[0]['a_accuracy']:.2f}"
    ]


def test_no_image_is_left_out_of_an_evaluation(make_trainer):
    """48 images in batches of 32; the Trainer of transformers measures 32 of them."""
    arguments = {"max_steps": 12, "per_device_eval_batch_size": 32}
    whole, dropping = (make_trainer(CYCLICAL, dataloader_drop_last=drop, **arguments) for drop in (False, True))
    images = TinyImages(n=48, seed=2)
    assert dropping.evaluate()["eval_accuracy"] == whole.evaluate()["eval_accuracy"]
    assert dropping.predict(images).predictions.shape == (48, 3)
    assert dropping.args.dataloader_drop_last
    assert len(dropping.get_train_dataloader()) == 12


class Masks(TrainerCallback):
    def __init__(self):
        self.trainer, self.masks = None, {}

    def on_step_end(self, args, state, control, **kwargs):
        masks = self.trainer.pruner.masks
        self.masks[state.global_step] = {name: mask.clone() for name, mask in masks.items()}


def test_the_mask_distance_that_is_logged_is_that_of_now(make_trainer):
    seen = Masks()
    trainer = make_trainer(CYCLICAL, max_steps=24, logging_strategy="steps", logging_steps=1, callbacks=[seen])
    seen.trainer = trainer
    trainer.train()
    logged = {e["step"]: e["mask_distance"] for e in trainer.state.log_history if "mask_distance" in e}
    assert list(logged) == list(range(12, 25))
    first = seen.masks[12]
    assert logged == {t: pytest.approx(mask_distance(first, seen.masks[t])) for t in logged}
    assert len({round(value, 6) for value in logged.values()}) > 3
    assert not torch.equal(first["hidden.weight"], seen.masks[13]["hidden.weight"])
