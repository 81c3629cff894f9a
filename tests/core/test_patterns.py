"""Patterns: n of every m inputs, and blocks, against loops over single groups."""

import math

import pytest
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.sparse._semi_structured_conversions import sparse_semi_structured_from_dense_cutlass as from_dense
from torch.sparse._semi_structured_conversions import sparse_semi_structured_to_dense_cutlass as to_dense

from hf_cyclical.core import (
    UNSTRUCTURED,
    Blocks,
    Largest,
    NofM,
    PruningError,
    Steered,
    View,
    magprune,
    pattern_of,
    prunable_parameters,
    ranked,
    refuse_transposed,
    refuse_unfit,
    uniform,
)

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64]
TIED = [0.0, -0.0, 1e-40, 0.5, -0.5, 0.50000006, 1.0, -1.0, 3.0, -3.0, 65504.0]
SHAPES = [(8, 4), (6, 8), (5, 7), (3, 3, 2, 2), (4, 5, 3), (7,), (4, 8, 1, 1), (2, 13), (8, 6, 2), (9, 2), (16, 1)]


@st.composite
def layers(draw):
    """Some layers of one to four dimensions, with many ties and zeros; few are divided by what groups them."""
    found = {}
    for i in range(draw(st.integers(1, 4))):
        shape = draw(st.sampled_from(SHAPES))
        n = math.prod(shape)
        values = draw(st.lists(st.sampled_from(TIED), min_size=n, max_size=n))
        w = torch.tensor(values, dtype=draw(st.sampled_from(DTYPES))).view(shape)
        found[f"layer{i}"] = (
            w.contiguous(memory_format=torch.channels_last) if draw(st.booleans()) and w.dim() == 4 else w
        )
    return found


def choose(pattern, params, s, share=uniform, row_floor=0):
    out = {name: torch.empty_like(w, dtype=torch.bool) for name, w in params.items()}
    pattern(params, s, share, row_floor, out)
    return out


# Oracles -------------------------------------------------------------------------------------------------------------


def pieces(w, rows, columns):
    """The part in whole blocks, the inputs beside them, the rows below them; None where there is nothing."""
    if w.dim() < 2 or len(w) < rows or w.shape[1] < columns:
        return None, None, w
    o, i = len(w) // rows * rows, w.shape[1] // columns * columns
    return [part if part.numel() else None for part in (w[:o, :i], w[:o, i:], w[o:])]


def unstructured(parts, s, row_floor):
    """The masks of what fills no block: magprune of all of it, which keeps the floor even if `s` leaves less."""
    if not parts:
        return {}
    held = sum(max(int(reference.row_tops(w, row_floor).sum()), 1) for w in parts.values())
    total = sum(w.numel() for w in parts.values())
    if row_floor and total - round(s * total) < held:
        s = (total - held) / total
    return reference.magprune(parts, s, row_floor=row_floor)


def one_each(parts, masks):
    """Every part keeps its largest weight."""
    for name, mask in masks.items():
        if not mask.any():
            mask.view(-1)[parts[name].flatten().abs().double().argsort(stable=True)[-1]] = True
    return masks


def assembled(params, rows, columns, inside, s, row_floor):
    """Masks from those of the blocks, and of the rest as it is pruned without them."""
    cut = {name: pieces(w, rows, columns) for name, w in params.items()}
    beside, below = ({name: part[i] for name, part in cut.items() if part[i] is not None} for i in (1, 2))
    rest = one_each(beside, unstructured(beside, s, 0)), one_each(below, unstructured(below, s, row_floor))
    masks = {}
    for name, w in params.items():
        o, i = (0, 0) if cut[name][0] is None else cut[name][0].shape[:2]
        mask = torch.zeros(w.shape, dtype=torch.bool)
        if o:
            mask[:o, :i] = inside[name]
        if name in beside:
            mask[:o, i:] = rest[0][name]
        if name in below:
            mask[o:] = rest[1][name]
        masks[name] = mask
    return masks


def naive_groups(w, m, gone):
    mask = torch.ones(w.shape, dtype=torch.bool)
    flat, keep = w.reshape(len(w), w.shape[1], -1).double(), mask.view(len(w), w.shape[1], -1)
    for row in range(len(w)):
        for position in range(flat.shape[2]):
            for start in range(0, w.shape[1], m):
                order = sorted(range(start, start + m), key=lambda i: (abs(flat[row, i, position].item()), i))
                for i in order[:gone]:
                    keep[row, i, position] = False
    return mask


def naive_sums(w, rows, columns):
    sums = torch.zeros(len(w) // rows, w.shape[1] // columns, *w.shape[2:], dtype=torch.float64)
    flat, total = w.reshape(*w.shape[:2], -1), sums.view(*sums.shape[:2], -1)
    for r, c, position in torch.cartesian_prod(*(torch.arange(n) for n in total.shape)).tolist():
        block = flat[r * rows : (r + 1) * rows, c * columns : (c + 1) * columns, position]
        total[r, c, position] = sum(abs(value) for value in block.flatten().tolist())
    return sums


def spread(blocks, rows, columns):
    """A mask of blocks as one of their weights."""
    return blocks.repeat_interleave(rows, 0).repeat_interleave(columns, 1)


# n:m -----------------------------------------------------------------------------------------------------------------


def test_two_of_four_by_hand():
    w = torch.tensor([[1.0, -4.0, 3.0, 2.0, 0.1, 0.1, -0.1, 0.1]])
    found = choose(NofM(2, 4), {"w": w}, 0.5)["w"]
    assert found.tolist() == [[False, True, True, False, False, False, True, True]]  # of equal ones the last stay


def test_groups_of_a_convolution_are_channels_at_one_position():
    w = torch.zeros(1, 4, 1, 2)
    w[0, :, 0, 0] = torch.tensor([4.0, 3.0, 2.0, 1.0])
    w[0, :, 0, 1] = torch.tensor([1.0, 2.0, 3.0, 4.0])
    found = choose(NofM(2, 4), {"w": w}, 0.5)["w"]
    assert found[0, :, 0].tolist() == [[True, False], [True, False], [False, True], [False, True]]


@pytest.mark.parametrize(
    ("s", "kept"), [(0.0, 4), (0.12, 4), (0.13, 3), (0.25, 3), (0.37, 3), (0.38, 2), (0.5, 2), (0.9, 2)]
)
def test_the_number_kept_falls_one_by_one_and_never_below_n(s, kept):
    w = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))
    found = choose(NofM(2, 4), {"w": w}, s)["w"]
    assert found.view(6, 2, 4).sum(2).unique().tolist() == [kept]


@settings(max_examples=60)
@given(params=layers(), n=st.integers(1, 4), more=st.integers(1, 4), share=st.floats(0, 1), row_floor=st.integers(0, 1))
def test_n_of_m_is_a_sort_of_every_group(params, n, more, share, row_floor):
    pattern = NofM(n, n + more)
    s = share * pattern.sparsity
    inside = {name: pieces(w, 1, pattern.m)[0] for name, w in params.items()}
    masks = {name: naive_groups(w, pattern.m, round(s * pattern.m)) for name, w in inside.items() if w is not None}
    expected = assembled(params, 1, pattern.m, masks, s, row_floor)
    found = choose(pattern, params, s, row_floor=row_floor)
    for name, mask in found.items():
        assert torch.equal(mask, expected[name]), name
        assert int(mask.sum()) >= (pattern.least(mask.shape, row_floor) if share == 1 else 1)


def test_large_layers_are_pruned_in_parts():
    w = torch.randn(2100, 516, 1, 1, generator=torch.Generator().manual_seed(0)).round(decimals=1)
    mask = choose(NofM(2, 4), {"w": w}, 0.5)["w"].flatten(1)
    order = w.flatten(1).abs().view(2100, 129, 4).argsort(dim=2, stable=True)
    expected = torch.ones_like(order, dtype=torch.bool).scatter_(2, order[..., :2], False)
    assert torch.equal(mask.view(2100, 129, 4), expected)


def test_a_2_of_4_weight_fulfils_the_rule_of_semi_structured_tensors():
    # torch compresses 4 consecutive weights of a row into 2 values and their indices; the tensor itself needs a GPU.
    w = nn.Linear(128, 64).weight.detach().half()
    sparse = w * choose(NofM(2, 4), {"w": w}, 0.5)["w"]
    assert int((sparse.view(64, 32, 4) != 0).sum(2).max()) == 2
    assert torch.equal(to_dense(*from_dense(sparse)), sparse)
    assert not torch.equal(to_dense(*from_dense(w)), w)
    assert NofM(2, 4).broken(sparse) == 0
    assert NofM(1, 4).broken(sparse) == 64 * 32


@given(params=layers())
def test_broken_groups_are_counted(params):
    for w in params.values():
        inside, expected = pieces(w, 1, 4)[0], 0
        if inside is not None:
            groups = inside.reshape(len(inside), -1, 4, math.prod(w.shape[2:]))
            expected = sum(int((groups[o, g, :, p] != 0).sum()) > 2 for o in range(groups.shape[0])
                           for g in range(groups.shape[1]) for p in range(groups.shape[3]))  # fmt: skip
        assert NofM(2, 4).broken(w) == expected


# Blocks --------------------------------------------------------------------------------------------------------------


def test_blocks_go_by_the_sum_of_their_magnitudes():
    # Sums 4, 3.5, 2.5 and 4: the largest weight of all is in the block that goes first.
    w = torch.tensor([[1.0, 3.0, 2.4, 1.0], [-1.0, 0.5, 0.1, 1.0], [1.0, 0.0, 0.0, 1.0], [1.0, 0.0, 0.0, 1.0]])
    found = choose(Blocks(4, 1), {"w": w}, 0.25)["w"]
    assert found.tolist() == [[True, True, False, True]] * 4
    assert choose(Blocks(4, 1), {"w": w}, 0.75)["w"].tolist() == [[False, False, False, True]] * 4  # of ties the last


def test_the_floor_spares_the_largest_block_of_a_row_of_blocks():
    w = torch.tensor([[5.0, 4.0, 3.0]] * 2 + [[0.1, 0.2, 0.0]] * 2)
    assert choose(Blocks(2, 1), {"w": w}, 0.5)["w"].sum(1).tolist() == [3, 3, 0, 0]
    assert choose(Blocks(2, 1), {"w": w}, 0.5, row_floor=1)["w"].tolist() == (
        [[True, True, False]] * 2 + [[False, True, False]] * 2
    )
    # Blocks of 3 inputs: a floor of 2 weights is one block.
    assert choose(Blocks(1, 3), {"w": torch.ones(2, 6)}, 0.5, row_floor=2)["w"].sum(1).tolist() == [3, 3]


@pytest.mark.parametrize(("share", "scope"), [(uniform, "local"), (ranked, "global")])
@settings(max_examples=60)
@given(
    params=layers(),
    rows=st.integers(1, 4),
    columns=st.integers(1, 3),
    part=st.floats(0, 1),
    row_floor=st.integers(0, 2),
)
def test_blocks_are_magprune_of_their_sums(share, scope, params, rows, columns, part, row_floor):
    if rows * columns == 1:
        return
    pattern, floor = Blocks(rows, columns), math.ceil(row_floor / columns)
    inside = {name: pieces(w, rows, columns)[0] for name, w in params.items()}
    sums = {name: naive_sums(w, rows, columns) for name, w in inside.items() if w is not None}
    total = sum(w.numel() for w in sums.values())
    held = sum(max(int(reference.row_tops(w, floor).sum()), 1) for w in sums.values())
    s = part * (total - held) / total if total else part
    blocks = magprune(sums, s, share, row_floor=floor) if sums else {}
    found = choose(pattern, params, s, share, row_floor)
    for name, w in params.items():
        if name in sums:
            o, i = inside[name].shape[:2]
            assert torch.equal(found[name][:o, :i], spread(blocks[name], rows, columns))
        elif scope == "local":
            assert torch.equal(found[name], assembled(params, rows, columns, {k: spread(v, rows, columns) for k, v in
                               blocks.items()}, s, row_floor)[name])  # fmt: skip
        kept = found[name].flatten(1).sum(1) if w.dim() > 1 else found[name].sum()[None]
        assert (kept >= (min(row_floor, w[0].numel()) if w.dim() > 1 else 1)).all()
    if row_floor and sums:
        assert sum(int(mask.sum()) for mask in blocks.values()) == total - round(s * total)  # exact, ties or not


def test_shares_other_than_uniform_work_on_blocks():
    params = {"a": torch.randn(8, 8, generator=torch.Generator().manual_seed(0)), "b": torch.ones(8, 8) * 1e-3}
    found = choose(Blocks(4, 1), params, 0.5, ranked, row_floor=1)
    assert {name: int(mask.sum()) for name, mask in found.items()} == {"a": 56, "b": 8}


def test_layers_with_targets_of_their_own_have_blocks_too():
    params = {"a.weight": torch.rand(8, 8) + 1, "b.weight": torch.rand(8, 8)}
    masks = {name: torch.ones_like(w, dtype=torch.bool) for name, w in params.items()}
    choice = Steered(Largest(pattern=Blocks(4, 1)), (("b", 0.25),), 0.75)
    choice(View(params, masks, 0), 0.75, masks)
    assert [int(mask.sum()) for mask in masks.values()] == [16, 48]
    for mask in masks.values():
        assert set(mask.view(2, 4, 8).sum(1).unique().tolist()) <= {0, 4}


# Names and refusals --------------------------------------------------------------------------------------------------


def test_names():
    assert pattern_of("2:4") == NofM(2, 4)
    assert pattern_of("16x1") == Blocks(16, 1)
    assert pattern_of(None) is UNSTRUCTURED
    assert [str(pattern_of(text)) for text in ("2:4", "4x1")] == ["2:4", "4x1"]
    assert (NofM(2, 4).sparsity, NofM(1, 3).sparsity, Blocks(4, 1).sparsity) == (0.5, 2 / 3, None)


@pytest.mark.parametrize("text", ["124", "2:4:8", "x4", "2x", "2 :4", "", "4*1", "-1:4", "2:4x1", "99999:4"])
def test_other_names_are_refused(text):
    with pytest.raises(PruningError, match="is neither n:m nor a block: write 2:4 or 4x1"):
        pattern_of(text)


@pytest.mark.parametrize("text", ["4:4", "5:4", "0:4", "2:65"])
def test_groups_that_keep_nothing_or_all_are_refused(text):
    with pytest.raises(PruningError, match=f"pattern '{text}' must keep 1 or more of 2 to 64, and not all: write 2:4"):
        pattern_of(text)


@pytest.mark.parametrize("text", ["1x1", "0x4", "4x0"])
def test_blocks_of_no_or_one_weight_are_refused(text):
    with pytest.raises(PruningError, match=f"pattern '{text}' is no block of several weights: write 4x1"):
        pattern_of(text)


def test_nan_is_an_error_that_names_the_layer():
    params = {"a": torch.ones(4, 4), "b": torch.full((4, 4), torch.nan)}
    for pattern in (NofM(2, 4), Blocks(4, 1)):
        with pytest.raises(PruningError, match="b has 16 NaN or infinite weights of 16"):
            choose(pattern, params, 0.5)


def test_what_cannot_be_is_refused():
    w = {"w": torch.randn(8, 8)}
    with pytest.raises(PruningError, match="pattern 2:4 prunes every layer alike: use share uniform"):
        choose(NofM(2, 4), w, 0.5, ranked)
    with pytest.raises(PruningError, match="row_floor 3 is more than pattern 2:4 keeps: use 2 at most"):
        choose(NofM(2, 4), w, 0.5, row_floor=3)
    with pytest.raises(PruningError, match=r"sparsity 0\.9 leaves 2 of 16 blocks of 4x1, and row_floor 2 keeps 4: use"):
        choose(Blocks(4, 1), w, 0.9, row_floor=2)
    with pytest.raises(PruningError, match=r"sparsity 1.5 is outside \[0, 1\]"):
        choose(Blocks(4, 1), w, 1.5)
    with pytest.raises(PruningError, match=r"pattern 16x1 fits into no layer .w 8x8.: use a smaller one, or none"):
        refuse_unfit(Blocks(16, 1), w)
    model = nn.Sequential(nn.Linear(4, 4), nn.ConvTranspose2d(4, 4, 2))
    with pytest.raises(PruningError, match="pattern does not fit 1, a transposed convolution: exclude it"):
        refuse_transposed(model, prunable_parameters(model))
    refuse_transposed(model, prunable_parameters(model, exclude=["1"]))
