"""What the paper says of each method, on a small model in training."""

from itertools import pairwise

import pytest
import reference
import torch
from support.training import (
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
    returned,
    sgd,
)

from hf_cyclical.core import (
    RecoveryTracker,
    cyclical,
    cyclical_lr,
    freeze,
    gradual,
    gradual_recovery,
    iterative,
    lr_constant,
    one_shot,
    pgd,
    prunable_parameters,
    with_dense_start,
)


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("make_optimizer", [sgd, adamw])
@pytest.mark.parametrize("method", [one_shot, iterative])
def test_one_shot_and_iterative_pruning_never_recover_a_weight(method, make_optimizer, share):
    history = Training(method(0.9, T), make_optimizer, share).run()
    assert [returned(before, after) for before, after in pairwise(history)] == [0] * (T - 1)


def test_one_shot_prunes_the_weights_as_they_were_given():
    expected = reference.magprune(dict(prunable_parameters(make_model())), 0.9)
    assert_equal(Training(one_shot(0.9, T)).run()[-1], expected)


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("make_optimizer", [sgd, adamw])
def test_cyclical_pruning_recovers_weights_at_every_boundary(make_optimizer, share):
    recipe = cyclical(0.9, T, k=4)
    history = Training(recipe, make_optimizer, share).run()
    for cycle in recipe.cycles[1:]:
        assert returned(history[cycle.start - 1], history[cycle.start]) > 0


def test_cyclical_pruning_has_regrown_weights_from_the_second_cycle_on():
    training = Training(cyclical(0.9, T, k=4))
    tracker = RecoveryTracker(training.pruner.masks)
    regrown = []
    for batch in make_batches():
        if training.update(batch):
            tracker.update(training.pruner.masks)
        regrown.append(tracker.regrown)
    assert min(regrown[10:]) > 0


# Recipes that coincide -----------------------------------------------------------------------------------------------


def assert_same_training(a, b):
    first, second = Training(a), Training(b)
    for masks, others in zip(first.run(), second.run(), strict=True):
        assert_equal(masks, others)
    assert_equal(first.weights(), second.weights())


def test_cyclical_pruning_with_one_cycle_trains_as_gradual_pruning():
    assert_same_training(cyclical(0.9, T, k=1, delta_t=4), gradual(0.9, T, delta_t=4))


def test_pgd_trains_as_tv_pgd_with_constant_functions_and_delta_t_of_1():
    assert_same_training(pgd(0.9, T), cyclical(0.9, T, k=1, delta_t=1, ramp=1.0, shape="constant", lr=lr_constant))


def test_cyclical_lr_trains_as_cyclical_pruning_in_cycle_1_and_keeps_that_mask():
    control, method = Training(cyclical_lr(0.9, T, k=4, delta_t=2)), Training(cyclical(0.9, T, k=4, delta_t=2))
    batches = make_batches()
    control.run(batches[:10])
    method.run(batches[:10])
    assert_equal(control.weights(), method.weights())
    first = control.masks()
    for masks in control.run(batches[10:]):
        assert_equal(masks, first)


# Gradual pruning with recovery ---------------------------------------------------------------------------------------


def test_gradual_recovery_is_dense_between_mask_updates_and_sparse_at_them_and_after_the_last():
    recipe = gradual_recovery(0.9, T, delta_t=8)
    training = Training(recipe)
    for t, batch in enumerate(make_batches()):
        training.update(batch)
        if t < 8:
            continue  # s(0) = 0: the first masks keep everything
        projected = t % 8 == 0 or t >= 32
        assert training.pruner.dense == (not projected)
        assert bool(pruned_values(training).any()) == (not projected)


def test_masked_shows_the_masked_model_and_restores_the_weights():
    training = Training(gradual_recovery(0.9, T, delta_t=8))
    training.run(make_batches()[:20])
    before, masks = training.weights(), training.masks()
    assert pruned_values(training).any()
    with training.pruner.masked():
        for name, p in training.pruner.params.items():
            assert torch.equal(p, before[name].where(masks[name], 0.0))
    assert_equal(training.weights(), before)


def test_masked_restores_the_weights_after_an_error():
    training = Training(gradual_recovery(0.9, T, delta_t=8))
    training.run(make_batches()[:20])
    before = training.weights()
    with pytest.raises(RuntimeError, match="evaluation failed"), training.pruner.masked():
        raise RuntimeError("evaluation failed")
    assert_equal(training.weights(), before)


def test_masked_makes_no_difference_to_training():
    plain, looked_at = Training(gradual_recovery(0.9, T, delta_t=8)), Training(gradual_recovery(0.9, T, delta_t=8))
    plain.run()
    for batch in make_batches():
        looked_at.update(batch)
        with looked_at.pruner.masked():
            assert not pruned_values(looked_at).any()
    assert_equal(plain.weights(), looked_at.weights())


def test_masked_leaves_a_sparse_model_as_it_is():
    training = Training(cyclical(0.9, T, k=2))
    training.run(make_batches()[:10])
    before = training.weights()
    with training.pruner.masked():
        assert_equal(training.weights(), before)
    assert_equal(training.weights(), before)


def test_project_makes_a_dense_model_sparse_for_good():
    training = Training(gradual_recovery(0.9, T, delta_t=8))
    training.run(make_batches()[:20])
    training.pruner.project_()
    assert not pruned_values(training).any()


# Saving and going on -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make_optimizer", [sgd, adamw])
def test_freeze_keeps_the_zeros_of_the_model_and_trains_the_rest(make_optimizer):
    model = make_model()
    zeros = {name: torch.rand(p.shape) < 0.6 for name, p in prunable_parameters(model).items()}
    for name, p in prunable_parameters(model).items():
        p.data[zeros[name]] = 0
    training = Training(freeze(T, k=2), make_optimizer, model=model)
    before = training.weights()
    training.run()
    for name, p in training.pruner.params.items():
        assert torch.equal(p == 0, zeros[name])
        assert not torch.equal(p, before[name])
    assert training.pruner.at_target


def test_a_dense_start_is_dense_training():
    training = Training(with_dense_start(cyclical(0.9, T - 10, k=2), 10))
    training.run(make_batches()[:10])
    dense = make_model()
    optimizer = sgd(dense.parameters())
    for t, batch in enumerate(make_batches()[:10]):
        optimizer.param_groups[0]["lr"] = 0.1 if t < 8 else 0.1 * 0.1
        optimizer.zero_grad()
        cross_entropy(dense, *batch).backward()
        optimizer.step()
    assert_equal(training.weights(), dense.state_dict())
    assert training.pruner.sparsity == 0
    assert not training.pruner.at_target
    assert not training.pruner.dense  # there is nothing that the masks would hide


def test_after_a_dense_start_the_run_is_that_of_the_recipe_alone():
    recipe, batches = cyclical(0.9, T - 10, k=2, delta_t=4), make_batches()
    whole = Training(with_dense_start(recipe, 10), plain_sgd)
    whole.run(batches[:10])
    alone = Training(recipe, plain_sgd, model=make_model(seed=7))
    alone.model.load_state_dict(whole.weights())
    for masks, expected in zip(whole.run(batches[10:]), alone.run(batches[10:]), strict=True):
        assert_equal(masks, expected)
    assert_equal(whole.weights(), alone.weights())


# What is left alone --------------------------------------------------------------------------------------------------
