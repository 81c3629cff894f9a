"""The guard of global scope: every layer keeps a part of an equal share of the weights that stay."""

import pytest
import reference
import torch
from hypothesis import given
from hypothesis import strategies as st

from hf_cyclical.core import LAYER_FLOOR, TVPGD, PruningError, kept, magprune, one_shot

VALUES = [0.0, -0.0, 1e-6, -1e-6, 0.5, -0.5, 1.0, 3.0, -3.0]
layers = st.lists(
    st.tuples(st.lists(st.sampled_from(VALUES), min_size=1, max_size=60), st.sampled_from([1e-4, 1.0, 1e4])),
    min_size=1,
    max_size=5,
).map(lambda items: {f"layer{i}": torch.tensor(values) * scale for i, (values, scale) in enumerate(items)})
fractions = st.floats(0, 1)


def least(params, s, floor):
    total = sum(w.numel() for w in params.values())
    share = (total - round(s * total)) / len(params)
    return {name: min(max(int(floor * share), 1), w.numel()) for name, w in params.items()}


def unequal(n):
    return {"large": torch.arange(1.0, 1001.0), "small": torch.arange(1.0, n + 1.0) * 1e-6}


def test_a_small_layer_keeps_its_part_and_the_others_make_up_for_it():
    masks = magprune(unequal(200), 0.9, "global", layer_floor=0.25)
    # 120 stay, so that an equal share is 60, and a quarter of it 15.
    assert masks["small"].nonzero().flatten().tolist() == list(range(185, 200))
    assert masks["large"].nonzero().flatten().tolist() == list(range(895, 1000))


def test_a_layer_with_fewer_weights_keeps_all():
    masks = magprune(unequal(10), 0.9, "global", layer_floor=0.25)
    assert masks["small"].all()
    assert masks["large"].nonzero().flatten().tolist() == list(range(909, 1000))


def test_without_a_floor_one_weight_stays():
    assert int(magprune(unequal(200), 0.9, "global", layer_floor=0)["small"].sum()) == 1


def test_it_is_on_unless_told_also_in_a_run():
    expected = int(60 * LAYER_FLOOR)
    assert int(magprune(unequal(200), 0.9, "global")["small"].sum()) == expected > 1
    for floor, n in ((None, expected), (0.25, 15), (0.0, 1)):
        pruner = TVPGD(unequal(200), one_shot(0.9, 4), scope="global", layer_floor=floor)
        pruner.step()
        assert pruner.kept_by_layer()["small"] == n


def test_layers_that_fall_below_it_one_after_the_other_are_all_held():
    params = {f"layer{i}": torch.full((100,), 10.0**i) for i in range(5)}
    masks = magprune(params, 0.8, "global", layer_floor=0.5)
    assert [int(mask.sum()) for mask in masks.values()] == [10, 10, 10, 10, 60]


@given(layers, fractions, fractions)
def test_masks_equal_a_sort_that_spares_the_largest_of_each_layer(params, s, floor):
    masks, expected = magprune(params, s, "global", layer_floor=floor), reference.magprune(params, s, "global", floor)
    assert all(torch.equal(mask, expected[name]) for name, mask in masks.items())


@given(layers, fractions, fractions)
def test_exactly_k_go_in_all_and_no_layer_is_below_its_floor(params, s, floor):
    masks = magprune(params, s, "global", layer_floor=floor)
    total, floors = sum(w.numel() for w in params.values()), least(params, s, floor)
    assert kept(masks) == max(total - round(s * total), len(params))
    assert all(int(mask.sum()) >= floors[name] for name, mask in masks.items())


@given(layers, fractions, fractions)
def test_where_no_layer_is_below_its_floor_nothing_changes(params, s, floor):
    free = magprune(params, s, "global", layer_floor=0)
    if all(int(free[name].sum()) >= n for name, n in least(params, s, floor).items()):
        masks = magprune(params, s, "global", layer_floor=floor)
        assert all(torch.equal(mask, free[name]) for name, mask in masks.items())


@pytest.mark.parametrize("floor", [-0.1, 1.5, float("nan")])
def test_a_floor_outside_0_to_1_is_refused(floor):
    with pytest.raises(PruningError, match=r"^layer_floor .* is outside \[0, 1\]: give a fraction"):
        magprune({"w": torch.ones(3)}, 0.5, "global", layer_floor=floor)


def test_a_floor_is_refused_in_local_scope():
    with pytest.raises(PruningError, match=r"^layer_floor 0.1 has no meaning for scope local: leave it out$"):
        magprune({"w": torch.ones(3)}, 0.5, layer_floor=0.1)
