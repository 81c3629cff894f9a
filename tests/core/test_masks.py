import pytest
import reference
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils import prune

from hf_cyclical.core import (
    PruningError,
    apply_masks_,
    erk,
    kept,
    lamp,
    magprune,
    ranked,
    refuse_non_finite,
    sparsity,
    uniform,
)

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64]
SHARES = [uniform, erk, ranked, lamp]
SMALL, CHUNK = 2**16, 2**20  # sizes at which the selection works differently

# Few values, so that ties abound: zeros of both signs, subnormals, neighbours in float32, the largest of float16.
TIED = [0.0, -0.0, 1e-40, 6e-8, -6e-8, 0.5, -0.5, 0.50000006, 1.0, -1.0, 3.0, 65504.0, -65504.0]

sparsities = st.floats(0, 1)


def tensors(dtype, values):
    return st.lists(values, min_size=1, max_size=40).map(lambda items: torch.tensor(items, dtype=dtype))


def layers(dtypes, values):
    layer = st.sampled_from(dtypes).flatmap(lambda dtype: tensors(dtype, values))
    return st.lists(layer, min_size=1, max_size=4).map(lambda ws: {f"layer{i}": w for i, w in enumerate(ws)})


def random_layer(shape, dtype=torch.float32, *, ties=False, seed=0):
    generator = torch.Generator().manual_seed(seed)
    if ties:
        return torch.randint(-3, 4, shape, generator=generator).to(dtype)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def assert_same_masks(masks, expected):
    assert masks.keys() == expected.keys()
    for name, mask in masks.items():
        assert mask.dtype == torch.bool
        assert torch.equal(mask, expected[name]), name


# Which weights go ----------------------------------------------------------------------------------------------------


def test_the_smallest_magnitudes_go_whatever_their_sign():
    w = torch.tensor([[-4.0, 1.0, -0.5], [3.0, -2.0, 5.0]])
    assert magprune({"w": w}, 0.5)["w"].tolist() == [[True, False, False], [True, False, True]]


def test_of_equal_magnitudes_the_lower_index_goes():
    w = torch.tensor([1.0, -1.0, 0.5, 1.0, -1.0])
    assert magprune({"w": w}, 0.6)["w"].tolist() == [False, False, False, True, True]


def test_all_zero_weights_go_by_index():
    assert magprune({"w": torch.zeros(5)}, 0.6)["w"].tolist() == [False, False, False, True, True]


def test_of_equal_magnitudes_the_earlier_layer_goes_with_a_global_share():
    params = {"a": torch.ones(3), "b": -torch.ones(3)}
    masks = magprune(params, 0.5, ranked)
    # The third to go is the first of b, as a must keep one.
    assert masks["a"].tolist() == [False, False, True]
    assert masks["b"].tolist() == [False, True, True]


def test_the_number_of_weights_that_go_is_rounded_not_cut_off():
    assert kept(magprune({"w": torch.arange(10.0)}, 0.29)) == 7  # 2.9 go
    assert kept(magprune({"w": torch.arange(100.0)}, 0.29)) == 71  # 28.999999999999996 go


def test_a_sparsity_of_0_keeps_everything_also_zeros():
    assert magprune({"w": torch.zeros(7)}, 0.0)["w"].all()


@pytest.mark.parametrize("share", SHARES)
def test_a_sparsity_of_1_keeps_the_largest_weight_of_each_layer(share):
    masks = magprune({"a": torch.tensor([1.0, -9.0, 2.0]), "b": torch.tensor([0.1, 0.1])}, 1.0, share)
    assert masks["a"].tolist() == [False, True, False]
    assert masks["b"].tolist() == [False, True]


@given(layers(DTYPES, st.sampled_from(TIED)), sparsities)
def test_a_uniform_share_drops_exactly_k_of_each_layer(params, s):
    masks = magprune(params, s)
    for name, w in params.items():
        assert int(masks[name].sum()) == max(w.numel() - round(s * w.numel()), 1)


@given(layers(DTYPES, st.sampled_from(TIED)), sparsities)
def test_a_global_share_drops_exactly_k_of_all_and_leaves_one_per_layer(params, s):
    masks = magprune(params, s, ranked)
    total = sum(w.numel() for w in params.values())
    assert kept(masks) == max(total - round(s * total), len(params))
    assert all(mask.any() for mask in masks.values())


@pytest.mark.parametrize("share", SHARES)
@given(params=layers(DTYPES, st.sampled_from(TIED)), s=sparsities)
def test_masks_equal_the_stable_sort_with_ties_and_mixed_dtypes(share, params, s):
    assert_same_masks(magprune(params, s, share), reference.magprune(params, s, share.__name__))


@pytest.mark.parametrize("share", SHARES)
@given(params=layers([torch.float64], st.floats(allow_nan=False, allow_infinity=False)), s=sparsities)
def test_masks_equal_the_stable_sort_on_any_finite_float64(share, params, s):
    assert_same_masks(magprune(params, s, share), reference.magprune(params, s, share.__name__))


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("ties", [True, False])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_large_layers_equal_the_stable_sort(dtype, ties, share):
    params = {
        "below": random_layer((SMALL,), dtype, ties=ties, seed=1),
        "above": random_layer((257, 256), dtype, ties=ties, seed=2),
    }
    for s in (0.1, 0.3, 0.99):
        assert_same_masks(magprune(params, s, share), reference.magprune(params, s, share.__name__))


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("zeros", [0.5, 0.8])  # some, and so many that the others are set apart
@pytest.mark.parametrize("size", [1000, 100_000, 400_000])
def test_layers_that_are_sparse_already_equal_the_stable_sort(size, zeros, share):
    params = {"first": random_layer((size,), seed=1), "second": random_layer((size // 10,), seed=2)}
    for w in params.values():
        w[torch.randperm(len(w), generator=torch.Generator().manual_seed(3))[: round(len(w) * zeros)]] = 0
    for s in (0.0, zeros / 2, zeros, 0.9):  # no zero, some, all of them, and more
        assert_same_masks(magprune(params, s, share), reference.magprune(params, s, share.__name__))


@pytest.mark.parametrize("share", SHARES)
def test_ties_go_by_index_across_chunks_and_layers(share):
    params = {
        "first": random_layer((CHUNK + CHUNK // 2,), ties=True, seed=1),
        "second": random_layer((CHUNK // 2,), ties=True, seed=2),
    }
    # A quarter cuts the weights of magnitude 1 in the first chunk, 0.95 those of magnitude 3 after it.
    for s in (0.25, 0.95):
        assert_same_masks(magprune(params, s, share), reference.magprune(params, s, share.__name__))


def test_a_large_layer_of_one_value_goes_by_index():
    mask = magprune({"w": torch.full((CHUNK + 10,), -0.25)}, 0.75)["w"]
    first = round(0.75 * (CHUNK + 10))
    assert not mask[:first].any()
    assert mask[first:].all()


def test_large_magnitudes_that_differ_in_their_last_bit_are_told_apart():
    base = torch.tensor(0.7, dtype=torch.float64).view(torch.int64)
    shuffled = torch.randperm(SMALL + 100, generator=torch.Generator().manual_seed(0))
    params = {"w": (base + shuffled).view(torch.float64)}
    assert torch.equal(magprune(params, 0.5)["w"], shuffled >= (SMALL + 100) // 2)


def test_a_large_global_group_of_mixed_dtypes_equals_the_stable_sort():
    params = {str(dtype): random_layer((30_000,), dtype, seed=i) for i, dtype in enumerate(DTYPES)}
    for s in (0.5, 0.97):
        assert_same_masks(magprune(params, s, ranked), reference.magprune(params, s, "ranked"))


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("channels", [8, 128])
def test_memory_layout_makes_no_difference(share, channels):
    w = random_layer((channels, channels, 3, 3), ties=True)
    params = {"conv": w.to(memory_format=torch.channels_last), "linear": w.view(channels, -1).t()}
    assert not any(p.is_contiguous() for p in params.values())
    assert_same_masks(magprune(params, 0.7, share), reference.magprune(params, 0.7, share.__name__))


# At least one weight per layer ---------------------------------------------------------------------------------------


def test_a_tiny_layer_keeps_its_largest_weight_with_a_global_share_and_the_others_make_up_for_it():
    params = {"big": torch.arange(1.0, 1001.0), "tiny": torch.tensor([3e-9, -5e-9, 1e-9])}
    masks = magprune(params, 0.9, ranked)
    assert masks["tiny"].tolist() == [False, True, False]
    assert kept(masks) == 1003 - round(0.9 * 1003)
    assert not masks["big"][:901].any()
    assert masks["big"][901:].all()


def test_several_layers_that_would_vanish_one_after_the_other_all_keep_a_weight():
    params = {f"layer{i}": torch.full((10,), 10.0**i) for i in range(5)}
    masks = magprune(params, 0.9, ranked)
    assert [int(mask.sum()) for mask in masks.values()] == [1, 1, 1, 1, 1]


@pytest.mark.parametrize("share", SHARES)
def test_a_layer_of_a_single_weight_is_never_pruned(share):
    masks = magprune({"one": torch.tensor([1e-9]), "many": torch.arange(1.0, 11.0)}, 0.9, share)
    assert masks["one"].all()


# Other tools ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("s", [0.0, 0.13, 0.5, 0.9])
def test_local_masks_equal_those_of_torch_without_ties(s):
    module = nn.Linear(37, 41)
    masks = magprune({"weight": module.weight}, s)
    prune.l1_unstructured(module, "weight", amount=round(s * 37 * 41))
    assert torch.equal(masks["weight"], module.weight_mask.bool())


@pytest.mark.parametrize("s", [0.13, 0.5, 0.9])
def test_global_masks_equal_those_of_torch_without_ties(s):
    model = nn.Sequential(nn.Linear(37, 41), nn.Linear(41, 300))
    masks = magprune({"0": model[0].weight, "1": model[1].weight}, s, ranked)
    prune.global_unstructured([(m, "weight") for m in model], prune.L1Unstructured, amount=s)
    assert torch.equal(masks["0"], model[0].weight_mask.bool())
    assert torch.equal(masks["1"], model[1].weight_mask.bool())


# Weights without a rank ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("size", [10, SMALL + 10])
@pytest.mark.parametrize("s", [0.0, 0.9])
@pytest.mark.parametrize("bad", [torch.nan, -torch.nan, torch.inf, -torch.inf])
def test_a_weight_that_is_not_finite_is_an_error_that_names_its_layer(bad, s, size, share):
    params = {"good.weight": torch.ones(size), "bad.weight": torch.ones(size), "fine.weight": torch.ones(size)}
    params["bad.weight"][[3, 7]] = bad
    with pytest.raises(PruningError, match=rf"^bad\.weight has 2 NaN or infinite weights of {size}, .*: check"):
        magprune(params, s, share)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_weight_that_is_not_finite_is_found_in_every_dtype(dtype):
    w = torch.ones(10, dtype=dtype)
    w[4] = torch.inf
    with pytest.raises(PruningError, match="w has 1 NaN or infinite"):
        magprune({"w": w}, 0.5)


def test_refuse_non_finite_accepts_every_finite_weight():
    refuse_non_finite({"w": torch.tensor([0.0, -0.0, 1e-45, torch.finfo(torch.float32).max])})


# Masks in place ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("old", [True, False])
def test_out_is_overwritten(old, share):
    params = {
        "linear": random_layer((30, 40)),
        "conv": random_layer((8, 8, 3, 3)).to(memory_format=torch.channels_last),
        "tiny": torch.tensor([1e-9, 2e-9]),
    }
    out = {name: torch.full_like(w, old, dtype=torch.bool) for name, w in params.items()}
    before = dict(out)
    assert magprune(params, 0.9, share, out=out) is out
    assert all(out[name] is before[name] for name in params)
    assert_same_masks(out, reference.magprune(params, 0.9, share.__name__))


def test_the_weights_are_left_alone():
    w = random_layer((30, 40))
    before = w.clone()
    magprune({"w": w}, 0.9)
    assert torch.equal(w, before)


@pytest.fixture(params=[1, 4], ids="{} threads".format)
def threads(request):
    """With few threads masks are applied in another way."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_applied_masks_leave_positive_zeros_and_untouched_weights(dtype):
    w = torch.tensor([-1.5, 2.0, torch.nan, torch.inf, -torch.inf, -0.0, -3.0], dtype=dtype)
    mask = torch.tensor([False, True, False, False, False, False, True])
    apply_masks_({"w": w}, {"w": mask})
    assert w.tolist() == [0.0, 2.0, 0.0, 0.0, 0.0, 0.0, -3.0]
    assert not w[~mask].signbit().any()


@pytest.mark.usefixtures("threads")
def test_masks_are_applied_to_a_parameter_in_place_whatever_its_layout():
    p = nn.Parameter(random_layer((8, 4, 3, 3)).to(memory_format=torch.channels_last))
    address, before = p.data_ptr(), p.detach().clone()
    masks = magprune({"w": p}, 0.75)
    version = p._version
    apply_masks_({"w": p}, masks)
    assert p._version > version  # else autograd would not see that a weight it saved has changed
    assert p.data_ptr() == address
    assert torch.equal(p, before.where(masks["w"], 0.0))
    assert p.is_leaf
    assert p.requires_grad


@pytest.mark.usefixtures("threads")
def test_masks_of_another_layout_than_the_weight_are_applied_by_position():
    w = random_layer((8, 4, 3, 3))
    masks = magprune({"w": w}, 0.75)
    p = w.clone(memory_format=torch.channels_last)
    apply_masks_({"w": p}, masks)
    assert torch.equal(p, w.where(masks["w"], 0.0))


def test_kept_and_sparsity_count_over_all_layers():
    masks = {"a": torch.tensor([True, False, False]), "b": torch.tensor([[True, True], [False, True], [False, False]])}
    assert kept(masks) == 4
    assert sparsity(masks) == pytest.approx(5 / 9)
    assert sparsity({}) == 0.0


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("shape", [(), (0, 3)], ids=str)
def test_masks_are_applied_to_weights_without_rows(shape):
    w = torch.ones(shape)
    apply_masks_({"w": w}, {"w": torch.zeros(shape, dtype=torch.bool)})
    assert torch.equal(w, torch.zeros(shape))


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_a_large_layer_is_masked_by_rows_all_the_same(memory_format):
    w = torch.randn(1500, 90, 3, 3).contiguous(memory_format=memory_format)  # more than 2^20 weights
    mask = torch.rand(w.shape) < 0.5
    expected = w.masked_fill(~mask, 0)
    apply_masks_({"w": w}, {"w": mask.contiguous(memory_format=memory_format)})
    assert torch.equal(w, expected)
