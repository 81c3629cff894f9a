"""Algorithm 1 in a plain loop, against the reference and by hand."""

from dataclasses import replace

import pytest
import reference
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.training import (
    NAMES,
    SHARES,
    T,
    Training,
    adamw,
    assert_equal,
    cross_entropy,
    make_batches,
    make_model,
    plain_sgd,
    pruned_values,
    sgd,
)

from hf_cyclical.core import (
    TVPGD,
    Largest,
    PruningError,
    cyclical,
    cyclical_lr,
    gradual,
    gradual_recovery,
    iterative,
    kept,
    lamp,
    magprune,
    one_shot,
    pgd,
    sparsity,
    uniform,
)


@pytest.mark.parametrize("mask_momentum", [False, True])
@pytest.mark.parametrize("share", [*SHARES, lamp])
@pytest.mark.parametrize("make_optimizer", [sgd, adamw])
def test_cyclical_pruning_equals_the_reference(make_optimizer, share, mask_momentum):
    training = Training(cyclical(0.9, T, k=3, delta_t=4), make_optimizer, share, mask_momentum=mask_momentum)
    history = training.run()
    oracle = reference.tv_pgd(
        make_model(),
        [[batch] for batch in make_batches()],
        make_optimizer,
        reference.Cyclical(0.9, T, k=3, delta_t=4),
        names=NAMES,
        loss=cross_entropy,
        share=share.__name__,
        mask_momentum=mask_momentum,
    )
    for masks, expected in zip(history, oracle.history, strict=True):
        assert_equal(masks, expected)
    assert_equal(training.weights(), oracle.weights)


@pytest.mark.parametrize("method", [gradual, gradual_recovery, cyclical_lr, one_shot, iterative, pgd])
def test_every_recipe_equals_the_reference_loop(method):
    recipe = method(0.8, T, delta_t=6) if method in (gradual, gradual_recovery, cyclical_lr) else method(0.8, T)
    training = Training(recipe)
    history = training.run()
    oracle = reference.tv_pgd(
        make_model(),
        [[batch] for batch in make_batches()],
        sgd,
        recipe,
        names=NAMES,
        loss=cross_entropy,
        project_at=recipe.project_at,
    )
    for masks, expected in zip(history, oracle.history, strict=True):
        assert_equal(masks, expected)
    assert_equal(training.weights(), oracle.weights)


def test_the_model_is_theta_times_mask_after_every_update():
    training = Training(cyclical(0.9, T, k=3, delta_t=4))
    for batch in make_batches():
        training.update(batch)
        assert not pruned_values(training).any()


def test_step_says_whether_the_masks_were_chosen_anew():
    recipe = cyclical(0.9, T, k=3, delta_t=4)
    training = Training(recipe)
    assert [training.update(batch) for batch in make_batches()] == [recipe.update_at(t) for t in range(T)]


# The sparsity that is reached ----------------------------------------------------------------------------------------


@given(
    st.integers(1, 40).flatmap(lambda T: st.tuples(st.just(T), st.integers(1, min(T, 5)))),
    st.floats(0, 1, exclude_max=True),
    st.integers(1, 50),
    st.floats(0.01, 1),
    st.sampled_from(["cubic", "linear", "step", "constant"]),
    st.sampled_from(SHARES),
)
def test_the_sparsity_is_exactly_the_target_at_the_end_of_every_cycle(run, s_t, delta_t, ramp, shape, share):
    T, k = run
    generator = torch.Generator().manual_seed(0)
    params = {name: torch.randn(n, generator=generator) for name, n in {"a": 37, "b": 10}.items()}
    recipe = cyclical(s_t, T, k=k, delta_t=delta_t, ramp=ramp, shape=shape)
    pruner = TVPGD(params, replace(recipe, choose=Largest(share=share)))
    ends = {(c + 1) * T // k - 1 for c in range(k)}
    for t in range(T):
        for p in params.values():
            p += torch.randn(p.shape, generator=generator)
        pruner.step(t)
        if t in ends:
            zeros = {name: int((p == 0).sum()) for name, p in params.items()}
            assert pruner.at_target
            if share is uniform:
                assert zeros == {"a": min(round(s_t * 37), 36), "b": min(round(s_t * 10), 9)}
            else:
                assert sum(zeros.values()) == min(round(s_t * 47), 45)


@pytest.mark.parametrize("method", [cyclical, gradual, gradual_recovery, cyclical_lr, one_shot, iterative, pgd])
def test_every_method_ends_at_the_target(method):
    training = Training(method(0.9, T))
    training.run()
    for p in training.pruner.params.values():
        assert int((p == 0).sum()) == round(0.9 * p.numel())
    assert training.pruner.at_target
    assert training.pruner.sparsity == sparsity(training.pruner.masks)


def test_at_target_is_false_on_the_way_to_the_target():
    training = Training(cyclical(0.9, T, k=2, delta_t=4))
    reached = []
    for batch in make_batches():
        training.update(batch)
        reached.append(training.pruner.at_target)
    # The ramp of a cycle of 20 updates ends at 16.
    assert reached == ([False] * 16 + [True] * 4) * 2


# Weights that return -------------------------------------------------------------------------------------------------


def test_falling_sparsity_returns_the_weights_with_the_largest_updates():
    w = torch.tensor([1.0, 2.0, 30.0, 3.0, 4.0, -40.0, 5.0, 6.0])
    pruner = TVPGD({"w": w}, cyclical(0.75, 4, k=2, ramp=0.5))
    pruner.step(0)
    pruner.step(1)
    assert w.tolist() == [0, 0, 30, 0, 0, -40, 0, 0]
    w += torch.tensor([0.1, -0.7, 1.0, 0.2, 0.6, 1.0, -0.3, 0.5])
    pruner.step(2)
    # s falls from 0.75 to 0.375: 3 of 8 weights stay pruned, 3 of the 6 pruned ones return with what they learned.
    assert w.tolist() == pytest.approx([0, -0.7, 31, 0, 0.6, -39, 0, 0.5])


@pytest.mark.parametrize("share", SHARES)
def test_in_training_the_pruned_weights_with_the_largest_gradients_return(share):
    training = Training(cyclical(0.9, T, k=2), plain_sgd, share)
    batches = make_batches()
    training.run(batches[:20])
    before, params = training.masks(), training.pruner.params
    training.update(batches[20])
    total = sum(p.numel() for p in params.values())
    if share is uniform:
        expected = sum(round(0.9 * p.numel()) - round(0.45 * p.numel()) for p in params.values())
    else:
        expected = round(0.9 * total) - round(0.45 * total)
    assert kept(training.pruner.masks) - kept(before) == expected
    for names in [[name] for name in NAMES] if share is uniform else [NAMES]:
        gradients = torch.cat([params[name].grad[~before[name]].abs() for name in names])
        back = torch.cat([training.pruner.masks[name][~before[name]] for name in names])
        assert back.any()
        assert gradients[back].min() >= gradients[~back].max()


@pytest.mark.parametrize("make_optimizer", [sgd, adamw])
def test_momentum_and_weight_decay_never_revive_a_pruned_weight_between_mask_updates(make_optimizer):
    recipe = cyclical(0.9, T, k=2, delta_t=5)
    training = Training(recipe, make_optimizer)
    revived = 0
    for t, batch in enumerate(make_batches()):
        before = training.masks()
        training.learn(batch)
        revived += bool(pruned_values(training).any())
        training.pruner.step(t)
        training.scheduler.step()
        assert not pruned_values(training).any()
        if not recipe.update_at(t):
            assert_equal(training.pruner.masks, before)
    assert revived > 20  # the optimizer does move pruned weights: the projection is what keeps them at zero


def test_nothing_is_attached_to_the_model():
    training = Training(cyclical(0.9, T, k=2))
    training.run()
    fresh = make_model()
    assert training.model.state_dict().keys() == fresh.state_dict().keys()
    assert not any(m._forward_hooks or m._forward_pre_hooks or m._backward_hooks for m in training.model.modules())
    assert [type(m) for m in training.model.modules()] == [type(m) for m in fresh.modules()]


def test_biases_are_never_pruned():
    training = Training(cyclical(0.9, T, k=2))
    training.run()
    assert training.model[0].bias.all()
    assert training.model[3].bias.all()


def test_gradients_are_not_masked():
    training = Training(cyclical(0.9, T, k=2))
    training.run()
    assert any(p.grad[~training.pruner.masks[name]].any() for name, p in training.pruner.params.items())


def test_a_nan_in_training_is_an_error_that_names_the_layer_when_masks_are_chosen():
    training = Training(pgd(0.9, T))
    training.run(make_batches()[:3])
    with torch.no_grad():
        training.model[3].weight[0, 0] = torch.nan
    with pytest.raises(PruningError, match=r"^3\.weight has 1 NaN or infinite weights of 320"):
        training.pruner.step(3)


def test_masks_are_those_of_magprune_on_the_updated_weights():
    training = Training(pgd(0.7, T))
    for t, batch in enumerate(make_batches()):
        training.learn(batch)
        expected = magprune(training.pruner.params, 0.7)
        training.pruner.step(t)
        assert_equal(training.pruner.masks, expected)


def test_filters_without_any_weight_are_counted():
    conv, linear = torch.nn.Conv2d(1, 3, 2, bias=False), torch.nn.Linear(4, 2, bias=False)
    with torch.no_grad():
        conv.weight.copy_(torch.tensor([[9.0, 8, 7, 6], [1, 2, 3, 4], [0, 5, 0, 0]]).view(3, 1, 2, 2))
        linear.weight.copy_(torch.tensor([[1.0, 1, 2, 2], [3, 3, 3, 3]]))
    pruner = TVPGD({"conv": conv.weight, "linear": linear.weight}, one_shot(7 / 12, 2))
    assert {name: rows.empty for name, rows in pruner.rows_by_layer().items()} == {"conv": 0, "linear": 0}
    pruner.step(0)
    empty = {name: rows.empty for name, rows in pruner.rows_by_layer().items()}
    assert empty == {"conv": 1, "linear": 1}  # five of conv stay, 9 to 5; three of linear
