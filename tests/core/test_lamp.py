"""LAMP: one rank over all layers by w^2 over the sum of the squares that are not smaller."""

import pytest
import reference
import torch
from hypothesis import given
from hypothesis import strategies as st

from hf_cyclical.core import kept, lamp, magprune, ranked

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64]


def some_layers(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return {f"layer{i}": torch.randn(n, generator=generator) for i, n in enumerate((50, 400, 3000))}


def test_scores_worked_by_hand():
    # a: 1/14, 4/13, 9/9. b: 25/150, 25/125, 100/100. The two lowest are 1/14 and 1/6, then 1/5, then 4/13.
    params = {"a": torch.tensor([2.0, -1.0, 3.0]), "b": torch.tensor([-10.0, 5.0, 5.0])}
    assert [mask.tolist() for mask in magprune(params, 2 / 6, lamp).values()] == [
        [True, False, True],
        [True, False, True],
    ]
    assert [mask.tolist() for mask in magprune(params, 3 / 6, lamp).values()] == [
        [True, False, True],
        [True, False, False],
    ]
    assert [mask.tolist() for mask in magprune(params, 4 / 6, lamp).values()] == [
        [False, False, True],
        [True, False, False],
    ]


def test_the_magnitudes_alone_choose_otherwise():
    params = {"a": torch.tensor([2.0, -1.0, 3.0]), "b": torch.tensor([-10.0, 5.0, 5.0])}
    assert [int(mask.sum()) for mask in magprune(params, 0.5, ranked).values()] == [1, 2]
    assert [int(mask.sum()) for mask in magprune(params, 0.5, lamp).values()] == [2, 1]


@given(st.lists(st.integers(-60, 60), min_size=3, max_size=3), st.floats(0, 1))
def test_the_scale_of_a_layer_makes_no_difference(exponents, s):
    params = some_layers()
    scaled = {name: w * 2.0**e for (name, w), e in zip(params.items(), exponents, strict=True)}
    masks, expected = magprune(scaled, s, lamp), magprune(params, s, lamp)
    assert all(torch.equal(masks[name], expected[name]) for name in params)


@given(st.floats(0, 1), st.integers(0, 5))
def test_exactly_k_weights_go_and_each_layer_keeps_its_largest(s, seed):
    params = some_layers(seed)
    masks = magprune(params, s, lamp)
    assert kept(masks) == max(3450 - round(s * 3450), 3)
    assert all(masks[name][w.abs().argmax()] for name, w in params.items())


def test_a_layer_of_zeros_goes_first_and_keeps_one_weight():
    masks = magprune({"a": torch.tensor([1.0, 2, 3, 4]), "zeros": torch.zeros(4)}, 0.5, lamp)
    assert masks["zeros"].tolist() == [False, False, False, True]
    assert masks["a"].tolist() == [False, True, True, True]


def test_of_equal_scores_those_of_the_earlier_layer_go():
    same = torch.tensor([3.0, 1.0, 2.0])
    masks = magprune({"a": same, "b": -4 * same}, 3 / 6, lamp)
    assert masks["a"].tolist() == [True, False, False]
    assert masks["b"].tolist() == [True, False, True]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_many_weights_of_every_dtype_equal_the_sort_of_their_scores(dtype):
    generator = torch.Generator().manual_seed(3)
    sizes = {"small": 100, "wide": 70_000, "deep": 30_000}
    params = {name: torch.randn(n, generator=generator).mul(n**-0.5).to(dtype) for name, n in sizes.items()}
    for s in (0.2, 0.9, 0.99):
        expected = reference.magprune(params, s, "lamp")
        assert all(torch.equal(mask, expected[name]) for name, mask in magprune(params, s, lamp).items())


@pytest.mark.parametrize("s", [0.1, 0.5, 0.9, 0.999, 1.0])
def test_large_layers_of_any_magnitude_equal_the_sort_of_their_scores(s):
    generator = torch.Generator().manual_seed(4)
    n = 70_000
    wide = torch.randn(n, generator=generator) * 2.0 ** torch.randint(-145, 120, (n,), generator=generator)
    params = {
        "wide": wide,
        "zeros": torch.zeros(n),
        "equal": torch.full((n,), 0.3),
        "heavy": torch.randn(n, generator=generator) ** 9,
    }
    expected = reference.magprune(params, s, "lamp")
    for name, mask in magprune(params, s, lamp).items():
        assert torch.equal(mask, expected[name]), name


def test_squares_beyond_float64_are_ranked_all_the_same():
    params = {
        "huge": torch.tensor([1e300, 2e300, 3e300], dtype=torch.float64),
        "tiny": torch.tensor([1e-300, 2e-300, 3e-300], dtype=torch.float64),
    }
    masks = magprune(params, 2 / 6, lamp)
    assert all(mask.tolist() == [False, True, True] for mask in masks.values())
