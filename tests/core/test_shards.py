"""Weights on several real processes: the same masks as in one piece, and no silent fork."""

from dataclasses import replace
from itertools import product

import pytest
import torch
import torch.distributed as dist
from support.processes import on_processes
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from hf_cyclical.core import (
    TVPGD,
    Largest,
    PruningError,
    RecoveryTracker,
    Shards,
    cyclical,
    erk,
    gradual_recovery,
    lamp,
    magprune,
    prunable_parameters,
    ranked,
    refuse_non_finite,
    topk,
    uniform,
    whole,
)

SHAPES = {"a": (7, 5), "b": (3,), "c": (64, 3, 3, 3), "d": (1, 11), "e": (300, 300)}
SPARSITIES = {0: [0.0, 0.3, 0.9, 0.999, 1.0], 1: [0.99], 2: [0.99]}  # by the floor of the rows
KINDS = [
    ("gauss", torch.float32), ("ties", torch.float32), ("zeros", torch.float32), ("small", torch.float32),
    ("gauss", torch.bfloat16), ("ties", torch.float64),
]  # fmt: skip
SHARES = [uniform, erk, ranked, lamp]


def some_weights(kind, dtype=torch.float32):
    """Gaussian; or few values (ties), nine of ten zero (zeros), one layer and some rows that would vanish (small)."""
    generator = torch.Generator().manual_seed(0)
    weights = {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}
    if kind == "ties":
        weights = {name: (w * 2).round() / 2 for name, w in weights.items()}
    elif kind == "zeros":
        weights = {name: w * (torch.rand(w.shape, generator=generator) < 0.1) for name, w in weights.items()}
    elif kind == "small":
        weights["a"] *= 1e-6
        weights["e"][100:180] *= 1e-5
    return {name: w.to(dtype) for name, w in weights.items()}


def split(weights, placement):
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return {name: distribute_tensor(w, mesh, [placement]) for name, w in weights.items()}


def compare_with_one_piece(rank):
    """The cases in which the masks of split weights differ from those of whole ones."""
    wrong = []
    for kind, dtype in KINDS:
        weights = some_weights(kind, dtype)
        parts = split(weights, Shard(0))
        for share, (row_floor, sparsities) in product(SHARES, SPARSITIES.items()):
            for s in sparsities:
                expected = magprune(weights, s, share, row_floor=row_floor)
                found = magprune(parts, s, share, row_floor=row_floor)
                same = [torch.equal(whole(found[name], parts[name]), expected[name]) for name in weights]
                if not all(same):
                    wrong.append((kind, dtype, share.__name__, row_floor, s, same))
    return wrong


def non_finite_on_the_last(rank):
    weights = some_weights("gauss")
    weights["c"][-1, -1, -1, -1] = torch.nan
    parts = split(weights, Shard(0))
    messages = []
    for attempt in (
        lambda: magprune(parts, 0.5),
        lambda: magprune(parts, 0.5, ranked),
        lambda: magprune(parts, 0.5, lamp),
        lambda: refuse_non_finite(parts),
    ):
        try:
            attempt()
        except PruningError as error:
            messages.append(str(error))
    return messages


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(1, 6, 3)
        self.hidden = nn.Linear(96, 33)
        self.head = nn.Linear(33, 3)

    def forward(self, x):
        return self.head(self.hidden(self.conv(x).relu().flatten(1)).relu())


def train(rank, share, make_recipe, stop_at, sharded):
    """Masks and counts of a run whose pruner is replaced half way; every process has the same data."""
    net = Net()
    if sharded:
        fully_shard(net, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    recipe = replace(make_recipe(0.9, 24, delta_t=3), choose=Largest(share=share))
    params = prunable_parameters(net)
    pruner = TVPGD(params, recipe)
    tracker = RecoveryTracker(pruner.masks, params)
    generator = torch.Generator().manual_seed(1)
    for t in range(recipe.T):
        x = torch.randn(16, 1, 6, 6, generator=generator)
        nn.functional.cross_entropy(net(x), x.flatten(1)[:, :3].argmax(1)).backward()
        optimizer.step()
        optimizer.zero_grad()
        if pruner.step(t):
            tracker.update(pruner.masks)
        if t == stop_at:
            state, history = pruner.state_dict(), tracker.state_dict()
            with pruner.masked():
                pass
            pruner = TVPGD(params, recipe)
            pruner.load_state_dict(state)
            tracker = RecoveryTracker(pruner.masks, params)
            tracker.load_state_dict(history)
    end = tracker.end_cycle(pruner.masks)
    weights = {name: p.full_tensor() if sharded else p for name, p in params.items()}
    return {
        "masks": pruner.state_dict()["masks"],
        "weights": {name: w.detach() for name, w in weights.items()},
        "numbers": [
            pruner.sparsity,
            pruner.kept_by_layer(),
            pruner.rows_by_layer(),
            pruner.largest,
            tracker.regrown,
            tracker.regrown_by_layer,
            end,
        ],
    }


class TestSplitWeights:
    @pytest.mark.parametrize("processes", [2, 3])
    def test_masks_are_those_of_weights_in_one_piece(self, processes):
        assert on_processes(processes, compare_with_one_piece) == [[]] * processes

    @pytest.mark.parametrize("row_floor", [1, 2])
    @pytest.mark.parametrize("share", SHARES)
    def test_the_floor_of_the_rows_has_a_part_in_them(self, share, row_floor):
        """Else the cases above would be those without one."""
        for kind, dtype in KINDS:
            weights, s = some_weights(kind, dtype), SPARSITIES[row_floor][-1]
            free, floored = (magprune(weights, s, share, row_floor=n) for n in (0, row_floor))
            assert any(not torch.equal(free[name], mask) for name, mask in floored.items()), kind

    def test_nan_on_one_process_is_the_same_error_on_all(self):
        messages = on_processes(2, non_finite_on_the_last)
        assert messages[0] == messages[1]
        assert [m.split(",")[0] for m in messages[0]] == ["c has 1 NaN or infinite weights of 1728"] * 4

    @pytest.mark.parametrize("share", [uniform, ranked, lamp])
    @pytest.mark.parametrize(("recipe", "stop_at"), [(cyclical, 11), (gradual_recovery, 7)])
    def test_a_run_under_fsdp2_is_that_of_one_process(self, share, recipe, stop_at):
        one = train(0, share, recipe, None, sharded=False)
        for result in on_processes(2, train, share, recipe, stop_at, True):
            assert result["numbers"] == one["numbers"]
            for name, mask in one["masks"].items():
                assert torch.equal(result["masks"][name], mask), name
                torch.testing.assert_close(result["weights"][name], one["weights"][name])

    @pytest.mark.parametrize("placement", [Shard(1), Replicate()])
    def test_another_way_of_splitting_is_refused(self, placement):
        with pytest.raises(PruningError, match="use FSDP2"):
            on_processes(2, _prune_split_otherwise, placement)


def _prune_split_otherwise(rank, placement):
    magprune(split({"w": torch.randn(4, 4)}, placement), 0.5)


class TestCopies:
    def test_drifted_copies_are_an_error_that_names_the_layer(self):
        with pytest.raises(PruningError, match=r"masks of hidden\.weight on process 1 are not those of process 0"):
            on_processes(2, _prune_copies, 0.5)

    def test_equal_copies_are_none(self):
        kept = {"hidden.weight": 33 * 96 * 2 // 3, "head.weight": 3 * 33 * 2 // 3}
        assert on_processes(2, _prune_copies, 0.0) == [kept, kept]


def _prune_copies(rank, drift):
    net = Net()
    with torch.no_grad():
        net.hidden.weight[0] += rank * drift
    pruner = TVPGD(
        prunable_parameters(net, include=["hidden", "head"]), cyclical(1 / 3, 4, k=1), replicas=dist.group.WORLD
    )
    for t in range(4):
        pruner.step(t)
    return pruner.kept_by_layer()


class ManyAlike(Shards):
    """As if `n` processes before and after this one each held the same weights: counts without the memory for them."""

    several = True

    def __init__(self, n, rank):
        self.n, self.rank = n, rank

    def sum(self, counts):
        return counts.mul_(self.n)

    def before(self, counts):
        return counts * self.rank


class TestBeyondTwoToThe31:
    N = 1 << 24  # processes with 1,000 weights each: 1.7e10 weights

    def masks_of(self, k, rank):
        w = torch.arange(1, 1001, dtype=torch.float32)
        found = {"w": torch.empty(1000, dtype=torch.bool)}
        topk.keep_largest({"w": w}, k, found, ManyAlike(self.N, rank))
        return found["w"]

    def test_the_threshold_is_exact(self):
        # 600 values go on every process, and of the next one those on the first 7 processes.
        for rank, gone in ((0, 601), (6, 601), (7, 600), (self.N - 1, 600)):
            assert int((~self.masks_of(600 * self.N + 7, rank)).sum()) == gone

    def test_zeros_are_shared_out_in_order(self):
        found = {"w": torch.empty(4, dtype=torch.bool)}
        for rank, gone in ((0, 2), (1 << 23, 1), ((1 << 23) + 1, 0)):
            topk.keep_largest({"w": torch.tensor([0.0, 1, 0, 2])}, 2 * (1 << 23) + 1, found, ManyAlike(self.N, rank))
            assert int((~found["w"]).sum()) == gone
