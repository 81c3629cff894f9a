"""The floor of the rows: every filter and every output keeps its largest weights, and the model its exact sparsity."""

from dataclasses import replace

import pytest
import reference
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.processes import on_processes
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from hf_cyclical.config import PruningConfig
from hf_cyclical.core import TVPGD, Largest, PruningError, cyclical, erk, kept, lamp, magprune, ranked, uniform, whole
from hf_cyclical.methods import METHODS, applies

SHARES = [uniform, erk, ranked, lamp]
DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64]
TIED = [0.0, -0.0, 1e-40, 0.5, -0.5, 0.50000006, 1.0, -1.0, 3.0, 65504.0, -65504.0]


@st.composite
def layers(draw):
    """Some layers of two to four dimensions and maybe a vector, with many ties, zeros and whole rows of zeros."""
    found = {}
    for i in range(draw(st.integers(1, 4))):
        shape = draw(st.sampled_from([(1, 1), (1, 7), (6, 1), (5, 4), (3, 2, 2, 2), (8, 3, 1), (4, 9), (5,)]))
        n = torch.Size(shape).numel()
        values = draw(st.lists(st.sampled_from(TIED), min_size=n, max_size=n))
        found[f"layer{i}"] = torch.tensor(values, dtype=draw(st.sampled_from(DTYPES))).view(shape)
    return found


def reachable(params, row_floor, part):
    """The sparsity at this part of the way to the highest that the floor allows."""
    held = sum(max(int(reference.row_tops(w, row_floor).sum()), 1) for w in params.values())
    total = sum(w.numel() for w in params.values())
    return part * (total - held) / total


def sized(seed=0, **shapes):
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def counts(masks):
    return {name: int(mask.sum()) for name, mask in masks.items()}


# Which weights stay --------------------------------------------------------------------------------------------------


def test_a_small_row_keeps_its_largest_and_the_others_lose_one_more():
    w = torch.tensor([[5.0, 4.0, 3.0], [0.1, -0.2, 0.0]])
    assert magprune({"w": w}, 0.5)["w"].tolist() == [[True, True, True], [False, False, False]]
    assert magprune({"w": w}, 0.5, row_floor=1)["w"].tolist() == [[True, True, False], [False, True, False]]
    assert magprune({"w": w}, 2 / 6, row_floor=2)["w"].tolist() == [[True, True, False], [True, True, False]]


def test_of_equal_weights_of_a_row_the_last_stays_also_of_zeros():
    w = torch.tensor([[9.0, 9.0, 9.0], [0.0, 0.0, 0.0], [-1.0, 1.0, 0.5]])
    masks = magprune({"w": w}, 6 / 9, row_floor=1)
    assert masks["w"].tolist() == [[False, False, True], [False, False, True], [False, True, False]]


def test_a_layer_with_fewer_weights_than_rows_keeps_one_a_row_and_the_others_make_up_for_it():
    # conv1 of a ResNet-20 at 0.98: 9 of 432 weights for 16 filters. 2,400 weights in all keep 48: 16 and 32.
    params = sized(conv1=(16, 3, 3, 3), fc=(24, 82))
    masks = magprune(params, 0.98, row_floor=1)
    assert counts(masks) == {"conv1": 16, "fc": 32}
    assert counts(magprune(params, 0.98)) == {"conv1": 9, "fc": 39}


def test_shares_are_apportioned_by_the_largest_remainder():
    # 100, 100 and 101 weights; 30.1 of 301 stay, that is 30: 9.97, 9.97 and 10.07 are 10, 10 and 10.
    params = sized(a=(2, 50), b=(2, 50), c=(1, 101))
    assert counts(magprune(params, 0.9, row_floor=1)) == {"a": 10, "b": 10, "c": 10}
    # 33.1, rounded 33: 10.96, 10.96, 11.07.
    assert counts(magprune(params, 0.89, row_floor=1)) == {"a": 11, "b": 11, "c": 11}


@pytest.mark.parametrize("share", SHARES)
@given(params=layers(), part=st.floats(0, 1), row_floor=st.integers(1, 3))
def test_masks_equal_a_sort_that_spares_the_largest_of_each_row(share, params, part, row_floor):
    s = reachable(params, row_floor, part)
    masks = magprune(params, s, share, row_floor=row_floor)
    expected = reference.magprune(params, s, share.__name__, row_floor=row_floor)
    assert all(torch.equal(mask, expected[name]) for name, mask in masks.items())


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("zeros", [0.0, 0.95])
def test_large_layers_too(share, zeros):
    params = sized(a=(512, 300), b=(40, 3000), c=(700, 2, 3, 3))
    params["a"][:200] *= 1e-4
    params["c"][::3] = 0
    generator = torch.Generator().manual_seed(1)
    params = {name: w * (torch.rand(w.shape, generator=generator) >= zeros) for name, w in params.items()}
    for s in (0.5, 0.97, 0.995):
        masks = magprune(params, s, share, row_floor=1)
        expected = reference.magprune(params, s, share.__name__, row_floor=1)
        assert all(torch.equal(mask, expected[name]) for name, mask in masks.items()), s
        assert kept(masks) == 286_200 - round(s * 286_200)


@pytest.mark.parametrize("share", SHARES)
@given(params=layers(), part=st.floats(0, 1), row_floor=st.integers(1, 3))
def test_the_model_loses_exactly_k_and_no_row_is_below_the_floor(share, params, part, row_floor):
    s = reachable(params, row_floor, part)
    masks = magprune(params, s, share, row_floor=row_floor)
    total = sum(w.numel() for w in params.values())
    assert kept(masks) == total - round(s * total)
    for mask in masks.values():
        rows = mask.flatten(1) if mask.dim() > 1 else mask[None]
        assert (rows.sum(1) >= min(row_floor if mask.dim() > 1 else 1, rows.shape[1])).all()


@pytest.mark.parametrize("share", [ranked, lamp])
@given(params=layers(), part=st.floats(0, 1))
def test_where_no_row_is_empty_it_changes_nothing(share, params, part):
    s = reachable(params, 1, part)
    free = magprune(params, s, share)
    if all(mask.flatten(1).any(1).all() for mask in free.values() if mask.dim() > 1):
        masks = magprune(params, s, share, row_floor=1)
        assert all(torch.equal(mask, free[name]) for name, mask in masks.items())


@pytest.mark.parametrize("share", SHARES)
def test_memory_format_makes_no_difference(share):
    params = sized(a=(64, 16, 3, 3), b=(32, 64, 3, 3), c=(10, 32))
    params["a"][:20] *= 1e-5
    last = {name: w.to(memory_format=torch.channels_last) if w.dim() == 4 else w for name, w in params.items()}
    masks, expected = magprune(last, 0.97, share, row_floor=1), magprune(params, 0.97, share, row_floor=1)
    assert all(torch.equal(mask, expected[name]) for name, mask in masks.items())


# Several processes ---------------------------------------------------------------------------------------------------


def compare_with_one_piece(rank):
    params = sized(a=(7, 5), c=(64, 3, 3, 3), d=(1, 11), e=(300, 300))
    params["e"][100:180] *= 1e-5
    params["c"] = (params["c"] * 2).round() / 2
    params["b"] = torch.randn(3, generator=torch.Generator().manual_seed(3))
    mesh = init_device_mesh("cpu", (2,))
    parts = {name: distribute_tensor(w, mesh, [Shard(0)]) for name, w in params.items()}
    wrong = []
    for share in SHARES:
        for s in (0.0, 0.5, 0.97, 0.99):
            expected, found = (magprune(weights, s, share, row_floor=1) for weights in (params, parts))
            if any(not torch.equal(whole(found[name], parts[name]), expected[name]) for name in params):
                wrong.append((share.__name__, s))
    return wrong


def test_weights_that_are_split_get_the_masks_of_whole_ones():
    assert on_processes(2, compare_with_one_piece) == [[], []]


# Refusals and runs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", SHARES)
def test_a_sparsity_that_leaves_fewer_weights_than_the_floor_is_refused(share):
    message = (
        r"^sparsity 0.995 leaves 10 of 2,000 weights, and row_floor 1 keeps 40: use a sparsity of at most 0.98, or "
        r"row_floor 0$"
    )
    with pytest.raises(PruningError, match=message):
        magprune(sized(w=(40, 50)), 0.995, share, row_floor=1)
    assert kept(magprune(sized(w=(40, 50)), 0.98, share, row_floor=1)) == 40


def test_a_negative_floor_is_refused():
    with pytest.raises(PruningError, match=r"^row_floor -1 is below 0: give the weights that every row keeps"):
        magprune(sized(w=(4, 5)), 0.5, row_floor=-1)


def pruners_of(recipe):
    """The pruner of a small network after each update, at a high learning rate."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 36, 10))
    params = {"0.weight": model[0].weight, "4.weight": model[4].weight}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    pruner = TVPGD(params, recipe, optimizer=optimizer)
    for t in range(recipe.T):
        nn.functional.cross_entropy(model(torch.randn(8, 1, 8, 8)), torch.randint(10, (8,))).backward()
        optimizer.step()
        pruner.step(t)
        optimizer.zero_grad()
        yield pruner


@pytest.mark.parametrize("share", SHARES)
def test_no_row_is_empty_after_any_update_of_a_run(share):
    recipe = replace(cyclical(0.98, 60, k=3, delta_t=4), choose=Largest(share=share, row_floor=1))
    for pruner in pruners_of(recipe):
        params = pruner.params.values()
        total = sum(p.numel() for p in params)
        assert all(p.flatten(1).any(1).all() for p in params)
        assert kept(pruner.masks) == total - round(pruner.s_now * total)


@pytest.mark.parametrize("method", [name for name, row in METHODS.items() if not row.keeps_zeros])
def test_nor_is_one_in_the_masks_of_any_method(method):
    delta_t = {"delta_t": 4} if applies(method, "delta_t") else {}
    recipe = PruningConfig(method=method, target_sparsity=0.98, **delta_t).recipe(60, 6)
    for pruner in pruners_of(recipe):
        assert all(mask.flatten(1).any(1).all() for mask in pruner.masks.values())
    assert sum(layer.at_floor for layer in pruner.rows_by_layer(1).values()) > 0
