"""Warm-up within a cycle, as a table of values worked out by hand."""

import pytest

from hf_cyclical import PruningConfig, PruningError
from hf_cyclical.core import lr_constant, lr_cosine, lr_drop, lr_linear, lr_warmup


@pytest.mark.parametrize(
    ("lr", "fraction", "T", "expected"),
    [
        # 4 updates rise by fifths, the other 4 have the shape of a cycle of 4.
        (lr_linear, 0.5, 8, [0.2, 0.4, 0.6, 0.8, 1.0, 0.75, 0.5, 0.25]),
        (lr_cosine, 0.5, 8, [0.2, 0.4, 0.6, 0.8, 1.0, 0.8535534, 0.5, 0.1464466]),
        (lr_constant, 0.5, 8, [0.2, 0.4, 0.6, 0.8, 1, 1, 1, 1]),
        (lr_drop(0.75, 0.1), 0.5, 8, [0.2, 0.4, 0.6, 0.8, 1, 1, 1, 0.1]),
        (lr_linear, 0.1, 10, [0.5, *(1 - i / 9 for i in range(9))]),
        (lr_linear, 0.01, 4, [1.0, 0.75, 0.5, 0.25]),  # less than half an update is none
        (lr_linear, 0.99, 4, [0.25, 0.5, 0.75, 1.0]),  # the last update is the shape's
        (lr_linear, 0.5, 1, [1.0]),
    ],
)
def test_rises_by_equal_steps_and_leaves_the_rest_to_the_shape(lr, fraction, T, expected):
    factor = lr_warmup(lr, fraction)(T)
    assert [factor(t) for t in range(T)] == pytest.approx(expected)


def test_every_cycle_and_the_dense_start_have_their_own():
    recipe = PruningConfig(cycles=2, lr_shape="linear", lr_warmup=0.25, dense_updates=4).recipe(12)
    assert [recipe.eta(t) for t in range(12)] == pytest.approx([1 / 2, 1, 2 / 3, 1 / 3] * 3)


def test_none_and_0_leave_the_shape_alone():
    for given in (None, 0):
        recipe = PruningConfig(cycles=2, lr_shape="linear", lr_warmup=given).recipe(8)
        assert [recipe.eta(t) for t in range(8)] == [1.0, 0.75, 0.5, 0.25] * 2


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"lr_warmup": 1}, r"lr_warmup 1 must be in \[0, 1\): use 0.1"),
        ({"lr_warmup": 0.1, "method": "pgd"}, "lr_warmup 0.1 has no meaning for method pgd: leave it out"),
    ],
)
def test_what_means_nothing_is_refused(settings, words):
    with pytest.raises(PruningError, match=words):
        PruningConfig(**settings)
