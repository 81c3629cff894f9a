"""A part of the training images in place of those to evaluate on."""

import logging

import pytest
import torch
from support.made_data import folder_of, load, pixels, rows

from hf_cyclical.core import PruningError
from hf_cyclical.data import DataArguments


def seen(split):
    return {image.numpy().tobytes() for image in split.images}


@pytest.fixture
def path(tmp_path):
    train = rows(pixels(60), [0] * 30 + [1] * 20 + [2] * 10)
    return folder_of(tmp_path / "d", train=train, test=rows(pixels(9, seed=1)))


def test_training_images_are_held_out_and_no_other_is_looked_at(path):
    without, data = load(path), load(path, holdout=0.2)
    assert data.eval.labels.bincount().tolist() == [6, 4, 2]
    assert data.train.labels.bincount().tolist() == [24, 16, 8]
    assert seen(data.train) | seen(data.eval) == seen(without.train)
    assert not seen(data.eval) & seen(without.eval)
    assert data.eval_from == "20% of the training images, held out"
    assert data.labels == without.labels


def test_every_seed_has_the_same(path):
    first, second = (load(path, holdout=0.2, seed=seed) for seed in (0, 1))
    assert torch.equal(first.eval.images, second.eval.images)
    assert torch.equal(first.train.images, second.train.images)
    assert seen(load(path, holdout=0.1).eval) < seen(first.eval)  # a smaller part is a part of a larger one


def test_the_digits():
    without, data = load("digits"), load("digits", holdout=0.25, seed=5)
    assert len(data.eval.labels) + len(data.train.labels) == 898
    counts, of = data.eval.labels.bincount(), without.train.labels.bincount()
    assert all(abs(int(n) - int(total) / 4) <= 0.5 for n, total in zip(counts, of, strict=True))
    # Some digits are equal pixel by pixel, so positions and not images are compared.
    assert torch.equal(torch.cat([data.train.labels, data.eval.labels]).bincount(), of)
    assert seen(data.train) | seen(data.eval) == seen(without.train)
    assert torch.equal(load("digits", holdout=0.25, seed=6).eval.images, data.eval.images)


def test_where_the_evaluation_images_are_a_part_of_the_training_split(tmp_path):
    """They are put aside first, the same ones for every seed."""
    path = folder_of(tmp_path / "d", train=rows(pixels(60)))
    without, data = load(path, eval_fraction=0.5), load(path, eval_fraction=0.5, holdout=0.2, seed=3)
    assert (len(data.train.labels), len(data.eval.labels)) == (24, 6)
    assert seen(data.train) | seen(data.eval) == seen(without.train)
    assert not (seen(data.train) | seen(data.eval)) & seen(without.eval)


def test_fewer_images_and_small_classes(path, tmp_path, caplog):
    data = load(path, holdout=0.2, max_train_samples=10, max_eval_samples=5)
    assert (len(data.train.labels), len(data.eval.labels)) == (10, 5)
    assert seen(data.eval) < seen(load(path, holdout=0.2).eval)
    few = folder_of(tmp_path / "e", train=rows(pixels(13), [0] * 10 + [1] * 2 + [2]), test=rows(pixels(3)))
    data = load(few, holdout=0.01)
    assert data.eval.labels.tolist() == [0, 1]  # one of each class that can spare it
    data = load(few, holdout=0.99)
    assert data.train.labels.tolist() == [0, 1, 2]
    with caplog.at_level(logging.INFO, "hf_cyclical"), pytest.raises(PruningError, match="every class has one only"):
        load(folder_of(tmp_path / "f", train=rows(pixels(3)), test=rows(pixels(3))), holdout=0.5)


def test_what_it_contradicts():
    with pytest.raises(PruningError, match=r"holdout is 1.0: give a number between 0 and 1"):
        DataArguments("digits", holdout=1.0)
    with pytest.raises(PruningError, match=r"holdout 0.1 contradicts eval_split 'test': give one of them"):
        DataArguments("x/y", holdout=0.1, eval_split="test")
    with pytest.raises(PruningError, match=r"holdout 0.1 cannot be made of a stream: turn streaming off"):
        DataArguments("x/y", holdout=0.1, streaming=True)
