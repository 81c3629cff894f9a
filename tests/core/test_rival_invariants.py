"""What holds after every update of RigL, SNFS, DPF, GraNet and AC/DC, whatever the layers; weights split or whole."""

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from support.processes import on_processes
from support.training import NAMES, Training, adamw, sgd
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from hf_cyclical.core import (
    TVPGD,
    Largest,
    PruningError,
    acdc,
    dpf,
    erk,
    granet,
    prunable_parameters,
    random_scores,
    rigl,
    snfs,
    uniform,
    whole,
)

T = 24
FEW = settings(max_examples=12)


def small_net(channels, classes, seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(1, channels, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16 * channels, classes))


def images(classes, seed, n=T):
    generator = torch.Generator().manual_seed(seed)
    return [
        (torch.randn(8, 1, 6, 6, generator=generator), torch.randint(classes, (8,), generator=generator))
        for _ in range(n)
    ]


@st.composite
def runs(draw):
    """A model, its data, an optimizer and a sparsity."""
    channels, classes, seed = draw(st.integers(1, 7)), draw(st.integers(2, 6)), draw(st.integers(0, 99))
    made = small_net(channels, classes, seed), images(classes, seed)
    return *made, draw(st.sampled_from([sgd, adamw])), draw(st.floats(0.1, 0.8)), draw(st.integers(1, 6))


def counts(masks):
    return [int(mask.sum()) for mask in masks.values()]


@FEW
@given(runs(), st.sampled_from([uniform, erk]), st.sampled_from([0, 1]), st.booleans())
def test_rigl_has_one_sparsity_in_every_layer_from_the_first_update_on(run, share, floor, by_chance):
    model, data, make_optimizer, s, delta_t = run
    prune = Largest(share=share, row_floor=floor, **({"score": random_scores(1)} if by_chance else {}))
    history = Training(rigl(s, T, delta_t=delta_t).pruning_by(prune, floor), make_optimizer, model=model).run(data)
    assert all(counts(masks) == counts(history[0]) for masks in history)
    assert not floor or all(mask.flatten(1).any(1).all() for masks in history for mask in masks.values())


@FEW
@given(runs(), st.sampled_from([0, 1]))
def test_snfs_has_one_sparsity_from_the_first_update_on(run, floor):
    model, data, make_optimizer, s, delta_t = run
    recipe = snfs(s, T, delta_t=delta_t).pruning_by(Largest(row_floor=floor), floor)
    history = Training(recipe, make_optimizer, model=model).run(data)
    assert {sum(counts(masks)) for masks in history} == {sum(counts(history[0]))}
    assert not floor or all(mask.flatten(1).any(1).all() for masks in history for mask in masks.values())


@FEW
@given(runs())
def test_granet_has_the_sparsity_of_its_schedule(run):
    model, data, make_optimizer, s, delta_t = run
    recipe = granet(s, T, delta_t=delta_t).pruning_by(Largest(row_floor=1), 1)
    training, s_now = Training(recipe, make_optimizer, model=model), 0.0
    total = sum(p.numel() for p in training.pruner.params.values())
    for t, masks in enumerate(training.run(data)):
        s_now = recipe.s(t) if recipe.update_at(t) else s_now
        assert sum(counts(masks)) == total - round(s_now * total)
        assert all(mask.flatten(1).any(1).all() for mask in masks.values())


@FEW
@given(runs())
def test_dpf_never_zeroes_its_dense_weights_and_the_model_is_always_masked(run):
    model, data, make_optimizer, s, delta_t = run
    training = Training(dpf(s, T, delta_t=delta_t), make_optimizer, model=model)
    for batch in data:
        training.update(batch)
        for name in NAMES:
            mask, w = training.pruner.masks[name], training.pruner.params[name].detach()
            assert not w[~mask].any()
            assert w[mask].all()
            assert training.pruner.hidden_values(name).all()


@FEW
@given(runs(), st.integers(2, 4))
def test_acdc_is_dense_exactly_in_its_dense_phases(run, k):
    model, data, make_optimizer, s, _ = run
    recipe = acdc(s, T, k=k)
    history = Training(recipe, make_optimizer, model=model).run(data)
    dense = [all(mask.all() for mask in masks.values()) for masks in history]
    assert dense == [recipe.s(t) == 0 for t in range(T)]
    starts = [t for t in range(1, T) if dense[t - 1] and not dense[t]]
    assert len(starts) == k
    assert dense[0]
    assert not dense[-1]


def test_gradients_that_are_gone_are_refused():
    training = Training(rigl(0.5, T, delta_t=5))
    for batch in images(5, 1, 6):
        training.learn(batch)
        gone = training.pruner.t == 5
        if gone:
            training.pruner._line3.end()
            training.optimizer.zero_grad()
            with pytest.raises(PruningError, match="no gradients to rank weights by: call the pruner's step before"):
                training.pruner.step(5)
        else:
            training.pruner.step(training.pruner.t)


RECIPES = {"rigl": rigl, "snfs": snfs, "dpf": dpf, "granet": granet}


def train(rank, method, floor, sharded):
    """A run whose pruner is replaced half way; every process has the same data."""
    net = small_net(5, 3, 0)
    if sharded:
        fully_shard(net, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    optimizer, params = adamw(net.parameters()), prunable_parameters(net)
    prune = Largest(row_floor=floor, score=random_scores(7)) if method == "rigl" else Largest(row_floor=floor)
    recipe = RECIPES[method](0.7, T, delta_t=3).pruning_by(prune, floor)
    pruner = TVPGD(params, recipe, optimizer=optimizer)
    for t, (x, y) in enumerate(images(3, 1)):
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
        pruner.step(t)
        optimizer.zero_grad()
        if t == T // 2:
            state = pruner.state_dict()
            pruner = TVPGD(params, recipe, optimizer=optimizer)
            pruner.load_state_dict(state)
    state = pruner.state_dict()
    weights = {name: whole(p.to_local(), p) if sharded else p.detach() for name, p in params.items()}
    return state["masks"], weights, state["hidden"]


@pytest.mark.parametrize("floor", [0, 1])
@pytest.mark.parametrize("method", RECIPES)
def test_a_run_under_fsdp2_is_that_of_one_process(method, floor):
    masks, weights, hidden = train(0, method, floor, sharded=False)
    for found, split, aside in on_processes(2, train, method, floor, True):
        for name, mask in masks.items():
            assert torch.equal(found[name], mask), name
            torch.testing.assert_close(split[name], weights[name])
        assert hidden.keys() == aside.keys()
        for name, values in hidden.items():
            torch.testing.assert_close(aside[name], values)
