"""Masks follow from a weight's values and indices, however the weight lies in memory."""

import itertools
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.training import assert_equal

from hf_cyclical.core import (
    KEEP,
    MASK,
    TVPGD,
    RecoveryTracker,
    apply_masks_,
    cyclical,
    erk,
    gradual_recovery,
    lamp,
    magprune,
    ranked,
    uniform,
)

SHARES = [uniform, erk, ranked, lamp]
TIED = [0.0, -0.0, 1e-40, 0.5, -0.5, 1.0, -1.0, 3.0]
NAMES = ["stem", "deep", "point", "head"]
SHAPES = [(5, 3, 3, 3), (6, 4, 3, 2), (7, 5, 1, 1), (4, 9)]


def innermost(w):
    """The same weight with its channels innermost, or transposed if it is a matrix."""
    return w.contiguous(memory_format=torch.channels_last) if w.dim() == 4 else w.t().contiguous().t()


def spaced(w):
    """The same weight as a part of a larger tensor: neither contiguous nor dense."""
    return torch.stack([w, torch.zeros_like(w)], dim=-1)[..., 0]


def flipped(w):
    """The same weight with its dimensions in memory in the opposite order."""
    dims = list(reversed(range(w.dim())))
    return w.permute(dims).contiguous().permute(dims)


LAYOUTS = [innermost, spaced, flipped]


def in_layout(layout, params):
    return {name: layout(w) for name, w in params.items()}


@st.composite
def weights(draw):
    """Layers of a few values, so that ties abound."""
    shapes = draw(st.lists(st.sampled_from(SHAPES), min_size=1, max_size=4))
    seed, values = draw(st.integers(0, 2**31)), torch.tensor(TIED)
    generator = torch.Generator().manual_seed(seed)
    picked = [values[torch.randint(len(values), shape, generator=generator)] for shape in shapes]
    return {f"layer{i}": w for i, w in enumerate(picked)}


def large_weights(*, ties=False):
    """Layers above the sizes at which the selection works in another way, and in more than one piece."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(64, 16, 3, 3), (256, 128, 3, 3), (300, 1000)]
    params = {f"layer{i}": torch.randn(shape, generator=generator) for i, shape in enumerate(shapes)}
    return {name: (w * 2).round() for name, w in params.items()} if ties else params


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("layout", LAYOUTS)
@given(params=weights(), s=st.floats(0, 1))
def test_masks_are_those_of_contiguous_weights(layout, share, params, s):
    assert_equal(magprune(in_layout(layout, params), s, share), magprune(params, s, share))


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("ties", [False, True])
def test_masks_of_large_layers_are_those_of_contiguous_weights(layout, share, ties):
    params = large_weights(ties=ties)
    for s in (0.1, 0.5, 0.9):
        assert_equal(magprune(in_layout(layout, params), s, share), magprune(params, s, share))


@pytest.mark.parametrize(
    ("layout", "mask_layout"), list(itertools.permutations([*LAYOUTS, torch.Tensor.contiguous], 2))
)
def test_masks_in_a_layout_of_their_own_are_overwritten_and_applied(layout, mask_layout):
    params = large_weights(ties=True)
    expected = magprune(params, 0.7)
    out = in_layout(mask_layout, {name: torch.ones_like(w, dtype=torch.bool) for name, w in params.items()})
    laid_out = in_layout(layout, params)
    assert_equal(magprune(laid_out, 0.7, out=out), expected)
    apply_masks_(laid_out, out)
    apply_masks_(params, expected)
    assert_equal(laid_out, params)
    assert not any(torch.signbit(w[~expected[name]]).any() for name, w in laid_out.items())


def test_masks_have_the_layout_of_their_weights():
    params = in_layout(innermost, large_weights())
    pruner = TVPGD(params, cyclical(0.9, 8, k=2, delta_t=1))
    pruner.step(0)
    flags = RecoveryTracker(pruner.masks).flags
    for name, w in params.items():
        assert pruner.masks[name].stride() == flags[name].stride() == w.stride()


def run(layout, recipe, updates=range(24), state=None, mask_momentum=True):
    """A run on random gradients, the same in every layout: pruner, tracker and momenta at its end."""
    generator = torch.Generator().manual_seed(0)
    start = {name: torch.randn(shape, generator=generator) for name, shape in zip(NAMES, SHAPES, strict=True)}
    gradients = [{name: torch.randn(w.shape, generator=generator) for name, w in start.items()} for _ in range(24)]
    params = {name: torch.nn.Parameter(layout(w)) for name, w in start.items()}
    optimizer = torch.optim.SGD(params.values(), lr=0.05, momentum=0.9)
    pruner = TVPGD(params, replace(recipe, moments=MASK if mask_momentum else KEEP), optimizer=optimizer)
    tracker = RecoveryTracker(pruner.masks)
    if state is not None:
        for name, p in params.items():
            p.data.copy_(state["params"][name])
        optimizer.load_state_dict(state["optimizer"])
        pruner.load_state_dict(state["pruner"])
        tracker.load_state_dict(state["tracker"])
    for t in updates:
        for name, p in params.items():
            p.grad = layout(gradients[t][name])
        optimizer.step()
        if pruner.step(t):
            tracker.update(pruner.masks)
    return params, optimizer, pruner, tracker


def saved(params, optimizer, pruner, tracker):
    with pruner.masked():
        held = {name: p.detach().clone() for name, p in params.items()}
    return {
        "params": held,
        "optimizer": optimizer.state_dict(),
        "pruner": pruner.state_dict(),
        "tracker": tracker.state_dict(),
    }


def assert_same_run(one, other):
    assert_equal(one[0], other[0])
    assert_equal(one[2].masks, other[2].masks)
    assert_equal(one[3].flags, other[3].flags)
    assert one[3].regrown_by_layer == other[3].regrown_by_layer
    assert one[2].rows_by_layer() == other[2].rows_by_layer()
    assert one[3].end_cycle(one[2].masks) == other[3].end_cycle(other[2].masks)
    momenta = [[state["momentum_buffer"] for state in run[1].state.values()] for run in (one, other)]
    assert all(torch.equal(a, b) for a, b in zip(*momenta, strict=True))


RECIPES = [cyclical(0.8, 24, k=2, delta_t=3), gradual_recovery(0.8, 24, delta_t=5)]


@pytest.mark.parametrize("recipe", RECIPES, ids=["cyclical", "gradual_recovery"])
@pytest.mark.parametrize("layout", [innermost, flipped])
def test_a_run_is_the_same_in_every_layout(layout, recipe):
    assert_same_run(run(layout, recipe), run(torch.Tensor.contiguous, recipe))


@pytest.mark.parametrize("recipe", RECIPES, ids=["cyclical", "gradual_recovery"])
@pytest.mark.parametrize(
    ("before", "after"),
    [(innermost, torch.Tensor.contiguous), (torch.Tensor.contiguous, innermost), (innermost, innermost)],
)
def test_a_state_of_one_layout_goes_on_in_another(before, after, recipe):
    state = saved(*run(before, recipe, range(13)))
    assert_same_run(run(after, recipe, range(13, 24), state), run(torch.Tensor.contiguous, recipe))
