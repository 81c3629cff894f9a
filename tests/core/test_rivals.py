"""RigL, SNFS, DPF, GraNet and AC/DC against naive loops written from their papers: masks and weights, bit for bit."""

from dataclasses import replace

import pytest
import reference
import rival_loops
import torch
from support.training import NAMES, Training, adamw, assert_equal, make_batches, make_model, sgd

from hf_cyclical.core import (
    TVPGD,
    Largest,
    PruningError,
    acdc,
    dpf,
    granet,
    prunable_parameters,
    random_scores,
    rigl,
    snfs,
)
from hf_cyclical.core.choices import View

UPDATES = 200
OPTIMIZERS = [sgd, adamw]


def batches(n=UPDATES):
    return [batch for seed in range(1, 2 + n // 40) for batch in make_batches(seed)][:n]


def assert_same(training, loop):
    for t, (masks, expected) in enumerate(zip(training.run(batches()), loop.history, strict=True)):
        for name, mask in masks.items():
            assert torch.equal(mask, expected[name]), (t, name)
    assert_equal(training.weights(), loop.model.state_dict())


def first_masks(s=0.8):
    return reference.magprune(dict(prunable_parameters(make_model())), s)


@pytest.mark.parametrize("replaces", [True, False])
@pytest.mark.parametrize("make_optimizer", OPTIMIZERS)
def test_rigl(make_optimizer, replaces):
    recipe = rigl(0.8, UPDATES, delta_t=7, replace_step=replaces)
    loop = rival_loops.rigl(
        make_model(), batches(), make_optimizer, recipe.eta, NAMES, s_t=0.8, delta_t=7, replaces=replaces,
        first=first_masks(),
    )  # fmt: skip
    assert_same(Training(recipe, make_optimizer), loop)
    changed = [t for t in range(1, UPDATES) if not all(torch.equal(a, b) for a, b in pairs(loop, t))]
    assert set(changed) <= set(range(7, 150, 7))
    assert len(changed) > 5


def pairs(loop, t):
    return zip(loop.history[t - 1].values(), loop.history[t].values(), strict=True)


@pytest.mark.parametrize("make_optimizer", OPTIMIZERS)
def test_snfs(make_optimizer):
    recipe = snfs(0.8, UPDATES, delta_t=9)
    loop = rival_loops.snfs(
        make_model(), batches(), make_optimizer, recipe.eta, NAMES, s_t=0.8, delta_t=9, first=first_masks()
    )
    assert_same(Training(recipe, make_optimizer), loop)
    counts = {int(masks["0.weight"].sum()) for masks in loop.history}
    assert len(counts) > 3  # weights did move between the layers


@pytest.mark.parametrize("make_optimizer", OPTIMIZERS)
def test_dpf(make_optimizer):
    recipe = dpf(0.8, UPDATES)
    loop = rival_loops.dpf(make_model(), batches(), make_optimizer, recipe.eta, NAMES, s_t=0.8, delta_t=16)
    training = Training(recipe, make_optimizer)
    assert_same(training, loop)
    hidden = {name: training.pruner.hidden_values(name) for name in NAMES}
    assert_equal(hidden, {name: loop.dense[name][~loop.masks[name]] for name in NAMES})


@pytest.mark.parametrize("make_optimizer", OPTIMIZERS)
def test_granet(make_optimizer):
    recipe = granet(0.8, UPDATES, delta_t=10)
    loop = rival_loops.granet(make_model(), batches(), make_optimizer, recipe.eta, NAMES, s_t=0.8, delta_t=10)
    assert_same(Training(recipe, make_optimizer), loop)


@pytest.mark.parametrize("make_optimizer", OPTIMIZERS)
def test_acdc(make_optimizer):
    """The authors' 100 epochs of ImageNet, 2 updates each: 8 sparse phases, of which the last has 15 epochs."""
    recipe = acdc(0.8, UPDATES, k=8)
    phases = [(20, False), *[(10, i % 2 == 0) for i in range(13)], (20, False), (30, True)]
    loop = rival_loops.acdc(make_model(), batches(), make_optimizer, recipe.eta, NAMES, s_t=0.8, phases=phases)
    assert_same(Training(recipe, make_optimizer), loop)
    dense = [all(mask.all() for mask in masks.values()) for masks in loop.history]
    assert dense == [not sparse for updates, sparse in phases for _ in range(updates)]


# Steps that are left out ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make_optimizer", OPTIMIZERS)
def test_an_exchange_of_rigl_takes_the_place_of_the_optimizers_step(make_optimizer):
    """No kept weight, bias, momentum or counter changes, not even by weight decay; the gradients are back."""
    training = Training(rigl(0.8, 40, delta_t=5), make_optimizer)
    training.run(batches(10))
    old, state = training.weights(), slots(training)
    assert training.update(batches(11)[10])
    kept = {name: training.pruner.masks[name] & (old[name] != 0) for name in NAMES}
    new, biases = training.weights(), [name for name in old if "bias" in name]
    assert_equal({name: new[name] for name in biases}, {name: old[name] for name in biases})
    for name in NAMES:
        assert torch.equal(new[name], old[name].where(kept[name], 0.0))
    for name, p in training.model.named_parameters():
        assert p.grad is not None
        for key, slot in training.optimizer.state[p].items():
            stayed = slot == state[name][key]
            assert stayed[old[name] != 0].all() if slot.dim() else stayed
            if name in NAMES and slot.dim():
                assert not slot[training.pruner.masks[name] & (old[name] == 0)].any()


def slots(training):
    names = {p: name for name, p in training.model.named_parameters()}
    return {names[p]: {k: v.clone() for k, v in state.items()} for p, state in training.optimizer.state.items()}


def test_an_optimizer_that_outlives_a_run_is_left_alone():
    training = Training(dpf(0.8, 40, delta_t=4))
    training.run(batches(20))
    optimizer, model = training.optimizer, training.model
    del training
    before = {name: value.clone() for name, value in model.state_dict().items()}
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    optimizer.step()
    assert_equal(dict(model.state_dict()), before)


@pytest.mark.parametrize("recipe", [rigl(0.8, 40), snfs(0.8, 40), dpf(0.8, 40)])
def test_the_optimizer_is_needed(recipe):
    with pytest.raises(PruningError, match="give TVPGD the optimizer"):
        TVPGD(prunable_parameters(make_model()), recipe)


def test_updates_out_of_order_are_refused():
    training = Training(rigl(0.8, 40))
    training.run(batches(3))
    with pytest.raises(PruningError, match="update 5 comes after update 2: call step once for each"):
        training.pruner.step(5)


@pytest.mark.parametrize(
    ("make_optimizer", "words"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.1), "ranks weights by their momentum has no effect on SGD without momentum"),
        (lambda p: torch.optim.Adagrad(p), "ranks weights by their momentum does not know where Adagrad keeps"),
    ],
)
def test_snfs_needs_a_momentum(make_optimizer, words):
    with pytest.raises(PruningError, match=words):
        Training(snfs(0.8, 40), make_optimizer)


@pytest.mark.parametrize(
    "make_recipe",
    [
        lambda: rigl(0.8, 40, delta_t=0),
        lambda: rigl(0.8, 40, fraction=1.5),
        lambda: snfs(0.8, 40, delta_t=0),
        lambda: snfs(0.8, 40, fraction=0.001),
        lambda: granet(0.8, 40, fraction=2),
    ],
)
def test_numbers_that_cannot_work_are_refused(make_recipe):
    with pytest.raises(PruningError, match="cannot work"):
        make_recipe()


# Random masks --------------------------------------------------------------------------------------------------------


def random_masks(seed, s=0.8, share=None):
    params = prunable_parameters(make_model())
    masks = {name: torch.empty_like(p, dtype=torch.bool) for name, p in params.items()}
    Largest(score=random_scores(seed))(View(params, masks, 0), s, masks)
    return masks


def test_random_masks_follow_from_the_seed_and_the_name_alone():
    torch.manual_seed(1)
    one = random_masks(3)
    torch.manual_seed(2)
    assert_equal(one, random_masks(3))
    assert not torch.equal(one["3.weight"], random_masks(4)["3.weight"])
    assert int(one["3.weight"].sum()) == 320 - 256
    assert not torch.equal(one["3.weight"], first_masks()["3.weight"])


def test_overflowed_gradients_exchange_nothing():
    """As after a step that a gradient scaler has left out."""
    training = Training(rigl(0.8, 40, delta_t=5))
    training.run(batches(5))
    before = training.masks()
    for p in training.model.parameters():
        p.grad = torch.full_like(p, torch.inf)
    assert training.pruner.step(5)
    assert_equal(training.masks(), before)


def test_a_floor_of_the_rows_holds_in_every_exchange():
    for make in (rigl, snfs, granet):
        recipe = make(0.9, UPDATES, delta_t=5).pruning_by(Largest(row_floor=2), 2)
        for masks in Training(replace(recipe), sgd).run(batches()):
            assert all((mask.flatten(1).sum(1) >= 2).all() for mask in masks.values())
