"""Patterns in training: what holds after every update, whatever the method, on one process and on several."""

from collections import deque

import pytest
import torch
import torch.distributed as dist
from support.processes import on_processes
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor

from hf_cyclical import PruningConfig
from hf_cyclical.core import TVPGD, Blocks, NofM, PruningError, prunable_parameters, ranked, uniform, whole
from hf_cyclical.methods import METHODS, applies

T = 36
PATTERNED = [method for method in METHODS if applies(method, "pattern")]


class Net(nn.Module):
    """Layers that 2:4 and 4x1 divide, and a first and a last that they do not."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv2d(3, 8, 3)
        self.second = nn.Conv2d(8, 12, 3)
        self.hidden = nn.Linear(48, 16)
        self.head = nn.Linear(16, 6)

    def forward(self, x):
        return self.head(self.hidden(self.second(self.first(x).relu()).relu().flatten(1)).relu())


def config(method, **settings):
    settings |= {"delta_t": 3} if applies(method, "delta_t") else {}
    settings |= {"cycles": 2} if applies(method, "cycles") else {}
    return PruningConfig(method=method, **settings)


def train(settings, replaced_at=None, sharded=False):
    """The pruner after each update; with `replaced_at`, a new one goes on from its state after that update."""
    net = Net()
    if sharded:
        fully_shard(net, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    recipe, params = settings.recipe(T), prunable_parameters(net, settings.include)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, recipe.eta)
    pruner = TVPGD(params, recipe, optimizer=optimizer)
    generator = torch.Generator().manual_seed(1)
    for t in range(T):
        x = torch.randn(8, 3, 6, 6, generator=generator)
        nn.functional.cross_entropy(net(x), x.flatten(1)[:, :6].argmax(1)).backward()
        optimizer.step()
        pruner.step(t)
        scheduler.step()
        optimizer.zero_grad()
        if t == replaced_at:
            state = pruner.state_dict()
            pruner = TVPGD(params, recipe, optimizer=optimizer)
            pruner.load_state_dict(state)
        yield pruner


def groups(mask, m=4):
    """How many of each group of `m` inputs stay."""
    return mask.unflatten(1, (-1, m)).sum(2)


# n:m -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", PATTERNED)
def test_every_group_of_every_layer_keeps_the_same_after_every_update(method):
    kept = []
    for pruner in train(config(method, pattern="2:4")):
        counts = [groups(pruner.masks[name]).unique().tolist() for name in ("second.weight", "hidden.weight")]
        assert counts[0] == counts[1] == [*{n for layer in counts for n in layer}]  # one number
        kept.append(counts[0][0])
    assert kept[-1] == 2
    assert set(kept) <= {2, 3, 4}
    # What 4 does not divide has the same sparsity: 27 x 8 and 16 x 6 weights.
    final = pruner.kept_by_layer()
    assert final == {"first.weight": 108, "second.weight": 432, "hidden.weight": 384, "head.weight": 48}
    for name, p in pruner.params.items():
        assert int(p.count_nonzero()) <= final[name]
    assert all(NofM(2, 4).broken(pruner.params[name].detach()) == 0 for name in ("second.weight", "hidden.weight"))


def kept_after(method, **settings):
    return [int(groups(p.masks["hidden.weight"]).max()) for p in train(config(method, pattern="2:4", **settings))]


def test_cyclical_2_of_4_falls_one_by_one_and_goes_back_up_between_cycles():
    kept = kept_after("cyclical", schedule="linear")
    first, second = kept[:18], kept[18:]
    assert [first[0], first[-1], second[0], second[-1]] == [4, 2, 3, 2]  # s_init is 0.25: 3:4
    assert sorted(first, reverse=True) == first
    assert sorted(second, reverse=True) == second
    assert set(first) == {4, 3, 2}
    assert kept_after("cyclical", schedule="linear", init_sparsity=0.0)[18] == 4


def test_gradual_2_of_4_never_goes_back_up_and_one_shot_starts_there():
    gradual = kept_after("gradual")
    assert sorted(gradual, reverse=True) == gradual
    assert set(gradual) == {4, 3, 2}
    assert set(kept_after("one_shot")) == {2}


def test_weights_return_at_the_start_of_a_cycle():
    masks = [pruner.masks["hidden.weight"].clone() for pruner in train(config("cyclical", pattern="2:4"))]
    returned = masks[18] & ~masks[17]
    assert int(returned.sum()) >= 16 * 12  # at least one in each group


# Blocks --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", ["uniform", "global", "lamp", "erk"])
@pytest.mark.parametrize("method", PATTERNED)
def test_blocks_are_whole_after_every_update(method, share):
    for pruner in train(config(method, pattern="4x1", target_sparsity=0.75, share=share)):
        blocks = {name: mask[: len(mask) // 4 * 4] for name, mask in pruner.masks.items()}
        for mask in blocks.values():
            rows = mask.unflatten(0, (-1, 4)).sum(1)
            assert ((rows == 0) | (rows == 4)).all()
            assert mask.flatten(1).any(1).all()  # the floor of the rows
    # 54 + 216 + 192 + 16 blocks of 4, and 2 rows of 16 weights of the head.
    assert sum(int(mask.sum()) for mask in blocks.values()) == 4 * (478 - round(0.75 * 478))
    assert int(pruner.masks["head.weight"][4:].sum()) == 32 - 24


# Resume and several processes ----------------------------------------------------------------------------------------

BOTH = [{"pattern": "2:4"}, {"pattern": "1x4", "target_sparsity": 0.75, "share": "global"}]


EXCHANGING = [{"method": method, **settings} for method in ("rigl", "snfs", "granet") for settings in BOTH]


def final(rank, settings, replaced_at, sharded):
    # Only the last is kept: one that was replaced would still see the optimizer's steps.
    [pruner] = deque(train(config(**{"method": "cyclical", **settings}), replaced_at, sharded), maxlen=1)
    return pruner.state_dict()["masks"]


@pytest.mark.parametrize("settings", [*BOTH, *EXCHANGING], ids=str)
def test_another_pruner_goes_on_from_the_state_of_the_first(settings):
    expected = final(0, settings, None, False)
    for at in (10, 17, 25):
        found = final(0, settings, at, False)
        assert all(torch.equal(mask, expected[name]) for name, mask in found.items())


@pytest.mark.parametrize(
    "settings", [*BOTH, *EXCHANGING, {"pattern": "4x1", "target_sparsity": 0.75, "include": ["hidden"]}], ids=str
)
def test_a_run_under_fsdp2_is_that_of_one_process(settings):
    expected = final(0, settings, None, False)
    for found in on_processes(2, final, settings, 17, True):
        assert all(torch.equal(mask, expected[name]) for name, mask in found.items())


def compare_with_one_piece(rank):
    """The cases in which the masks of split weights differ from those of weights in one piece."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    generator = torch.Generator().manual_seed(0)
    shapes = {"a": (16, 9), "b": (8, 6, 3, 3), "c": (8, 3), "d": (7, 8), "e": (13,)}
    wrong = []
    for decimals in (1, 5):  # many ties, and none
        weights = {n: torch.randn(shape, generator=generator).round(decimals=decimals) for n, shape in shapes.items()}
        parts = {name: distribute_tensor(w, mesh, [Shard(0)]) for name, w in weights.items()}
        for pattern, share in (
            (NofM(2, 4), uniform), (NofM(1, 2), uniform), (Blocks(4, 1), uniform), (Blocks(4, 2), ranked),
            (Blocks(1, 3), ranked),
        ):  # fmt: skip
            for s, row_floor in ((0.3, 0), (0.5, 1)):
                whole_masks = {name: torch.empty_like(w, dtype=torch.bool) for name, w in weights.items()}
                pattern(weights, s, share, row_floor, whole_masks)
                found = {name: torch.empty_like(p.to_local(), dtype=torch.bool) for name, p in parts.items()}
                pattern(parts, s, share, row_floor, found)
                wrong += [
                    (str(pattern), s, name) for name in weights
                    if not torch.equal(whole(found[name], parts[name]), whole_masks[name])
                ]  # fmt: skip
    return wrong


def test_masks_of_split_weights_are_those_of_weights_in_one_piece():
    assert on_processes(2, compare_with_one_piece) == [[], []]


def test_blocks_that_fsdp2_would_cut_are_refused():
    words = r"pattern 4x1 would be cut: second\.weight has 12 rows, 6 of them on each of 2 processes \(FSDP2\): use DDP"
    with pytest.raises(PruningError, match=words):
        on_processes(2, final, {"pattern": "4x1", "include": ["second"]}, None, True)
