"""The floor of the rows: every filter and every output keeps its largest weights, and the model its exact sparsity."""

import hashlib

import numpy as np
import pytest
import reference
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from hf_cyclical.config import PruningConfig
from hf_cyclical.core import TVPGD, PruningError, Regrowth, View, erk, kept, lamp, magprune, ranked, uniform
from hf_cyclical.methods import METHODS, applies
from hf_cyclical.methods import SHARES as NAMED_SHARES

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


# Without a floor -----------------------------------------------------------------------------------------------------

SHAPES = [(7,), (1, 9), (12, 1), (6, 10), (16, 3, 3, 3), (8, 16, 1, 1), (20, 33), (5, 4, 2), (32, 8, 3, 3)]
SPARSITIES = [0.0, 0.3, 0.5, 0.9, 0.97, 0.995, 1.0]
# SHA-256 of the masks that the version before row_floor (commit a139eae^) has made: in the scopes local, global with a
# layer_floor of 0, and lamp.
BEFORE = {
    uniform: "e011033282d839143c0f197d6ed8c48effd5868b25636bb9385347a4df1563cf",
    ranked: "2359c8b85799962d821edcf69991d427dcabf4af1e3128f09201fbb1c591efe8",
    lamp: "e6cff6774e58adab5f317e798268d5360423bb2d063a52fe2ea85681d754faa9",
}


def made_layer(bits, shape, kind, dtype):
    """From raw bits of PCG64 and exact arithmetic, so that no version of torch or numpy makes other weights."""
    n = torch.Size(shape).numel()
    x = ((bits.random_raw(n) >> np.uint64(40)).astype(np.int64) - (1 << 23)) / float(1 << 23)
    values = {"cubes": x * x * x, "ties": np.round(x * 3) / 4, "zeros": np.where(np.abs(x) < 0.9, 0.0, x)}[kind]
    w = torch.from_numpy(values).view(shape)
    return w if dtype == torch.float64 else w.float().to(dtype)


def made_models():
    """Some layers each, 250 of them small and some large, with the sparsities to prune them to."""
    bits = np.random.PCG64(1)
    for i in range(100):
        kind, layers = ("cubes", "ties", "zeros")[i % 3], {}
        for j in range(1 + i % 4):
            w = made_layer(bits, SHAPES[(i + 2 * j) % len(SHAPES)], kind, DTYPES[(i // 3 + j) % 4]) * 2.0**-j
            if i % 2 and w.dim() == 4:
                w = w.to(memory_format=torch.channels_last)
            layers[str(j)] = w.t().contiguous().t() if i % 2 and w.dim() == 2 else w
        yield layers, (SPARSITIES[i % 7], SPARSITIES[(i + 3) % 7])
    for kind in ("cubes", "zeros"):
        shapes = {(600, 500): torch.float32, (64, 128, 3, 3): torch.bfloat16, (40, 50): torch.float64}
        yield {str(shape): made_layer(bits, shape, kind, dtype) for shape, dtype in shapes.items()}, (0.5, 0.97)


@pytest.mark.parametrize("share", BEFORE)
def test_none_is_as_before_there_was_one_bit_for_bit(share):
    found = hashlib.sha256()
    for params, sparsities in made_models():
        for s in sparsities:
            for mask in magprune(params, s, share, row_floor=0).values():
                found.update(mask.contiguous().numpy())
    assert found.hexdigest() == BEFORE[share]


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


def test_an_exchange_leaves_a_row_what_it_has_also_where_that_is_zero():
    """A pruned weight of the row, as large, is none that can be spared."""
    masks = {"w": torch.tensor([[True, False, False], [True, True, False]])}
    weights, scores = torch.tensor([[0.0, 0.0, 0.0], [3.0, 2.0, 0.0]]), torch.tensor([[0.0, 1.0, 2.0], [0.0, 3.0, 4.0]])
    exchange = Regrowth(lambda t: 1.0, lambda view: {"w": scores}, row_floor=1)
    exchange(View({"w": weights}, masks, t=4, s=0.5), 0.5, masks)
    assert masks["w"].tolist() == [[True, False, False], [True, False, True]]


@pytest.mark.parametrize("share", NAMED_SHARES)
@pytest.mark.parametrize("method", [name for name, row in METHODS.items() if not row.keeps_zeros])
def test_no_row_is_empty_after_any_update_of_any_method(method, share):
    """Nor are its weights all zero, although those that come back in an exchange may be.

    What rigl, snfs and granet grow starts at zero, and is kept by the masks before a step has moved it. But the floor
    spares what was the largest of the row before, so that a row never has only such weights.
    """
    delta_t = {"delta_t": 4} if applies(method, "delta_t") else {}
    recipe = PruningConfig(method=method, target_sparsity=0.99, share=share, **delta_t).recipe(40, 6)
    at_floor = 0
    for pruner in pruners_of(recipe):
        masks, weights = pruner.masks.values(), pruner.params.values()
        assert all(tensor.flatten(1).any(1).all() for tensor in (*masks, *weights))
        total = sum(p.numel() for p in weights)
        assert kept(pruner.masks) == total - round(pruner.s_now * total)
        at_floor += sum(int((mask.flatten(1).sum(1) == 1).sum()) for mask in masks)
    assert at_floor > 0
