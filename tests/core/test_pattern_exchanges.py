"""Drop-and-grow with patterns, in RigL, SNFS and GraNet, against lists of single units."""

import math

import pattern_units
import pytest
import rival_loops
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.training import Training, adamw, assert_equal, sgd
from torch import nn

from hf_cyclical.core import Largest, View, granet, pattern_of, prunable_parameters, ranked, rigl, snfs
from hf_cyclical.core.regrowth import Regrowth, Within
from hf_cyclical.core.snfs import ByMomentum

UPDATES = 200
TIED = [0.0, -0.0, 0.5, -0.5, 0.50000006, 1.0, -1.0, 3.0, -3.0, 7.0]
SHAPES = [(8, 4), (6, 8), (5, 7), (3, 3, 2, 2), (4, 5, 3), (7,), (4, 8, 1, 1), (2, 13), (8, 6, 2), (9, 2), (16, 1)]
PATTERNS = ["2:4", "1:4", "1:2", "3:5", "4x1", "1x4", "2x2", "2x3"]


@st.composite
def cases(draw):
    """Weights and scores with many ties, of layers that few patterns divide."""
    shapes = {f"layer{i}": draw(st.sampled_from(SHAPES)) for i in range(draw(st.integers(1, 3)))}

    def values(shape):
        n = math.prod(shape)
        return torch.tensor(draw(st.lists(st.sampled_from(TIED), min_size=n, max_size=n))).view(shape)

    return [{name: values(shape) for name, shape in shapes.items()} for _ in range(2)]


@given(cases(), st.sampled_from(PATTERNS), st.floats(0.05, 1), st.integers(0, 1), st.booleans())
def test_an_exchange_is_that_of_single_units(case, text, fraction, floor, moves):
    weights, scores = case
    pattern = pattern_of(text)
    s = pattern.sparsity if pattern.sparsity is not None else 0.4
    masks = pattern_units.prune(weights, s, text)
    out = {name: mask.clone() for name, mask in masks.items()}
    exchange = ByMomentum() if moves else Within()
    choice = Regrowth(lambda t: fraction, lambda view: scores, exchange, row_floor=floor, pattern=pattern)
    choice(View(weights, masks, 1, s=s), s, out)
    same = pattern_units.same_layer(lambda kept: math.floor(fraction * kept))
    plan = pattern_units.by_momentum(fraction) if moves else same
    assert_equal(out, pattern_units.exchange(weights, masks, scores, text, plan, floor))
    assert sum(int(mask.sum()) for mask in out.values()) == sum(int(mask.sum()) for mask in masks.values())


def test_an_exchange_within_groups_by_hand():
    w = torch.tensor([[5.0, 0.0, 0.0, 4.0, 0.0, 1.0, 2.0, 0.0]])
    score = torch.tensor([[9.0, 1.0, 3.0, 9.0, 7.0, 8.0, 9.0, 6.0]])
    mask, new = w != 0, (w != 0).clone()
    half = Regrowth(lambda t: 0.5, lambda view: {"w": score}, pattern=pattern_of("2:4"))
    half(View({"w": w}, {"w": mask}, 1, s=0.5), 0.5, {"w": new})
    # 1 and 2, the smallest, go; in their group the scores are 7, 8, 9 and 6, so that both come back.
    assert torch.equal(new, mask)
    score[0, 5] = 0.1
    half(View({"w": w}, {"w": mask}, 1, s=0.5), 0.5, {"w": new})
    assert new.int().tolist() == [[1, 0, 0, 1, 1, 0, 1, 0]]


def test_an_exchange_of_blocks_by_hand():
    """2x1: sums 3, 0, 5 and 0 of the first two rows, which have weights; scores 1, 6, 2 and 4."""
    w = torch.tensor([[1.0, 0, -5, 0], [2.0, 0, 0, 0]])
    score = torch.tensor([[1.0, 3, 2, -4], [0.0, -3, 0, 0]])
    new = torch.tensor([[True, False, True, False]] * 2)
    half = Regrowth(lambda t: 0.5, lambda view: {"w": score}, pattern=pattern_of("2x1"))
    half(View({"w": w}, {"w": new.clone()}, 1, s=0.5), 0.5, {"w": new})
    assert new.int().tolist() == [[0, 1, 1, 0]] * 2


def test_large_layers_are_exchanged_in_parts():
    generator = torch.Generator().manual_seed(0)
    w, score = (torch.randn(2100, 256, generator=generator) for _ in range(2))
    new = torch.empty_like(w, dtype=torch.bool)
    pattern = pattern_of("2:4")
    pattern({"w": w}, 0.5, Largest().share, 0, {"w": new})
    old = new.clone()
    Regrowth(lambda t: 0.3, lambda view: {"w": score}, pattern=pattern)(
        View({"w": w}, {"w": old}, 1, s=0.5), 0.5, {"w": new}
    )
    assert (new.view(2100, 64, 4).sum(2) == 2).all()
    order = w.abs().where(old, torch.inf).flatten().argsort(stable=True)
    stay = old.flatten().clone()
    stay[order[: int(0.3 * int(old.sum()))]] = False
    came = new.flatten() & ~stay
    assert int(came.sum()) == int(0.3 * int(old.sum()))
    assert not (stay & ~new.flatten()).any()
    # In every group the least score that came is at least the largest that did not.
    groups = score.abs().view(-1, 4)
    least = groups.where(came.view(-1, 4), torch.inf).amin(1)
    most = groups.where(~new.view(-1, 4), -torch.inf).amax(1)
    assert (least >= most).all()


# Runs ----------------------------------------------------------------------------------------------------------------

NAMES = ["0.weight", "2.weight", "5.weight"]


def make_model():
    """2:4, 4x1 and 1x3 divide none of the layers, or one of them."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Conv2d(6, 5, 3), nn.ReLU(), nn.Flatten(), nn.Linear(20, 5)
    )  # fmt: skip


def batches():
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(8, 3, 6, 6, generator=generator), torch.randint(5, (8,), generator=generator))
        for _ in range(UPDATES)
    ]


def compare(recipe, loop, make_optimizer):
    training = Training(recipe, make_optimizer, model=make_model())
    for t, (masks, expected) in enumerate(zip(training.run(batches()), loop.history, strict=True)):
        for name, mask in masks.items():
            assert torch.equal(mask, expected[name]), (t, name)
    assert_equal(training.weights(), loop.model.state_dict())
    changed = [t for t in range(1, UPDATES) if any((loop.history[t][n] != loop.history[t - 1][n]).any() for n in NAMES)]
    assert len(changed) > 3


@pytest.mark.parametrize("make_optimizer", [sgd, adamw])
@pytest.mark.parametrize("text", ["2:4", "4x1", "1x3"])
@pytest.mark.parametrize("method", ["rigl", "snfs"])
def test_constant_sparsity_with_a_pattern_is_the_naive_loop(method, text, make_optimizer):
    make, pattern = {"rigl": rigl, "snfs": snfs}[method], pattern_of(text)
    s = 0.5 if ":" in text else 0.7
    recipe = make(s, UPDATES, delta_t=9).pruning_by(Largest(pattern=pattern), 0, pattern)
    params = {name: p.detach() for name, p in prunable_parameters(make_model()).items()}
    first = pattern_units.prune(params, s, text)
    loop = getattr(rival_loops, method)(
        make_model(), batches(), make_optimizer, recipe.eta, NAMES, s_t=s, delta_t=9, first=first, pattern=text
    )
    compare(recipe, loop, make_optimizer)


@pytest.mark.parametrize("make_optimizer", [sgd, adamw])
@pytest.mark.parametrize("text", ["2:4", "4x1", "1x3"])
def test_granet_with_a_pattern_is_the_naive_loop(text, make_optimizer):
    pattern, groups = pattern_of(text), ":" in text
    s, share = (0.5, "uniform") if groups else (0.7, "ranked")
    prune = Largest(pattern=pattern) if groups else Largest(pattern=pattern, share=ranked)
    recipe = granet(s, UPDATES, delta_t=10).pruning_by(prune, 0, pattern)
    loop = rival_loops.granet(
        make_model(), batches(), make_optimizer, recipe.eta, NAMES, s_t=s, delta_t=10, pattern=text, share=share
    )
    compare(recipe, loop, make_optimizer)
