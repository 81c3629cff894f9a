import io
from itertools import pairwise

import pytest
import reference
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from hf_cyclical.core import (
    TVPGD,
    PruningError,
    Recipe,
    RecoveryTracker,
    cyclical,
    cyclical_lr,
    freeze,
    gradual,
    gradual_recovery,
    iterative,
    kept,
    lr_constant,
    magprune,
    one_shot,
    pgd,
    prunable_parameters,
    sparsity,
    with_dense_start,
)

T = 40
NAMES = ["0.weight", "3.weight"]
SCOPES = ["local", "global"]


def make_model(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5))


def make_batches(seed=1):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(T, 8, 1, 6, 6, generator=generator)
    labels = torch.randint(5, (T, 8), generator=generator)
    return list(zip(inputs, labels, strict=True))


def sgd(params):
    return torch.optim.SGD(params, lr=0.1, momentum=0.9, weight_decay=1e-2)


def plain_sgd(params):
    return torch.optim.SGD(params, lr=0.1)


def adamw(params):
    return torch.optim.AdamW(params, lr=0.02, weight_decay=0.1)


def cross_entropy(model, inputs, labels):
    return nn.functional.cross_entropy(model(inputs), labels)


class Training:
    """A plain PyTorch loop with TVPGD, one update at a time."""

    def __init__(self, recipe: Recipe, make_optimizer=sgd, scope="local", model=None):
        self.model = make_model() if model is None else model
        self.optimizer = make_optimizer(self.model.parameters())
        self.scheduler = LambdaLR(self.optimizer, recipe.eta)
        self.pruner = TVPGD(prunable_parameters(self.model), recipe, scope=scope)

    def learn(self, batch):
        """Line 3 of Algorithm 1."""
        self.optimizer.zero_grad()
        cross_entropy(self.model, *batch).backward()
        self.optimizer.step()

    def update(self, batch) -> bool:
        self.learn(batch)
        renewed = self.pruner.step()
        self.scheduler.step()
        return renewed

    def run(self, batches=None):
        """The masks after every update."""
        history = []
        for batch in make_batches() if batches is None else batches:
            self.update(batch)
            history.append(self.masks())
        return history

    def masks(self):
        return {name: mask.clone() for name, mask in self.pruner.masks.items()}

    def weights(self):
        return {name: value.clone() for name, value in self.model.state_dict().items()}


def assert_equal(a, b):
    assert a.keys() == b.keys()
    for name, tensor in a.items():
        assert torch.equal(tensor, b[name]), name


def returned(before, after):
    """Number of weights that are pruned in `before` and kept in `after`."""
    return sum(int((after[name] & ~mask).sum()) for name, mask in before.items())


def pruned_values(training):
    return torch.cat([p.detach()[~training.pruner.masks[name]] for name, p in training.pruner.params.items()])


# Algorithm 1 ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("make_optimizer", [sgd, adamw])
def test_cyclical_pruning_equals_the_reference(make_optimizer, scope):
    training = Training(cyclical(0.9, T, k=3, delta_t=4), make_optimizer, scope)
    history = training.run()
    oracle = reference.tv_pgd(
        make_model(),
        [[batch] for batch in make_batches()],
        make_optimizer,
        reference.Cyclical(0.9, T, k=3, delta_t=4),
        names=NAMES,
        loss=cross_entropy,
        scope=scope,
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
    st.sampled_from(SCOPES),
)
def test_the_sparsity_is_exactly_the_target_at_the_end_of_every_cycle(run, s_t, delta_t, ramp, shape, scope):
    T, k = run
    generator = torch.Generator().manual_seed(0)
    params = {name: torch.randn(n, generator=generator) for name, n in {"a": 37, "b": 10}.items()}
    pruner = TVPGD(params, cyclical(s_t, T, k=k, delta_t=delta_t, ramp=ramp, shape=shape), scope=scope)
    ends = {(c + 1) * T // k - 1 for c in range(k)}
    for t in range(T):
        for p in params.values():
            p += torch.randn(p.shape, generator=generator)
        pruner.step()
        if t in ends:
            zeros = {name: int((p == 0).sum()) for name, p in params.items()}
            assert pruner.at_target
            if scope == "local":
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
    pruner.step()
    pruner.step()
    assert w.tolist() == [0, 0, 30, 0, 0, -40, 0, 0]
    w += torch.tensor([0.1, -0.7, 1.0, 0.2, 0.6, 1.0, -0.3, 0.5])
    pruner.step()
    # s falls from 0.75 to 0.375: 3 of 8 weights stay pruned, 3 of the 6 pruned ones return with what they learned.
    assert w.tolist() == pytest.approx([0, -0.7, 31, 0, 0.6, -39, 0, 0.5])


@pytest.mark.parametrize("scope", SCOPES)
def test_in_training_the_pruned_weights_with_the_largest_gradients_return(scope):
    training = Training(cyclical(0.9, T, k=2), plain_sgd, scope)
    batches = make_batches()
    training.run(batches[:20])
    before, params = training.masks(), training.pruner.params
    training.update(batches[20])
    total = sum(p.numel() for p in params.values())
    if scope == "local":
        expected = sum(round(0.9 * p.numel()) - round(0.45 * p.numel()) for p in params.values())
    else:
        expected = round(0.9 * total) - round(0.45 * total)
    assert kept(training.pruner.masks) - kept(before) == expected
    for names in [[name] for name in NAMES] if scope == "local" else [NAMES]:
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
        training.pruner.step()
        training.scheduler.step()
        assert not pruned_values(training).any()
        if not recipe.update_at(t):
            assert_equal(training.pruner.masks, before)
    assert revived > 20  # the optimizer does move pruned weights: the projection is what keeps them at zero


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("make_optimizer", [sgd, adamw])
@pytest.mark.parametrize("method", [one_shot, iterative])
def test_one_shot_and_iterative_pruning_never_recover_a_weight(method, make_optimizer, scope):
    history = Training(method(0.9, T), make_optimizer, scope).run()
    assert [returned(before, after) for before, after in pairwise(history)] == [0] * (T - 1)


def test_one_shot_prunes_the_weights_as_they_were_given():
    expected = reference.magprune(dict(prunable_parameters(make_model())), 0.9)
    assert_equal(Training(one_shot(0.9, T)).run()[-1], expected)


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("make_optimizer", [sgd, adamw])
def test_cyclical_pruning_recovers_weights_at_every_boundary(make_optimizer, scope):
    recipe = cyclical(0.9, T, k=4)
    history = Training(recipe, make_optimizer, scope).run()
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


def saved(training):
    """All of a run as bytes, the weights under `masked`."""
    file = io.BytesIO()
    state = {"pruner": training.pruner.state_dict()}
    with training.pruner.masked():
        state |= {part: getattr(training, part).state_dict() for part in ("model", "optimizer", "scheduler")}
        torch.save(state, file)
    file.seek(0)
    return file


@pytest.mark.parametrize(
    "recipe",
    [
        cyclical(0.9, T, k=3, delta_t=4),
        gradual_recovery(0.9, T, delta_t=8),
        cyclical_lr(0.9, T, k=3, delta_t=4),
        iterative(0.9, T, k=4),
        with_dense_start(gradual_recovery(0.9, 30, delta_t=8), 10),
    ],
    ids=["cyclical", "gradual_recovery", "cyclical_lr", "iterative", "dense_start"],
)
@pytest.mark.parametrize("stop", [5, 20, 37])
def test_a_resumed_run_continues_bit_for_bit(recipe, stop):
    batches = make_batches()
    whole = Training(recipe, adamw)
    whole.run(batches[:stop])
    state = torch.load(saved(whole))
    resumed = Training(recipe, adamw, model=make_model(seed=7))
    for part in ("model", "optimizer", "scheduler", "pruner"):
        getattr(resumed, part).load_state_dict(state[part])
    assert_equal(resumed.weights(), whole.weights())
    for masks, expected in zip(resumed.run(batches[stop:]), whole.run(batches[stop:]), strict=True):
        assert_equal(masks, expected)
    assert_equal(resumed.weights(), whole.weights())


def test_a_run_saved_while_dense_is_sparse_on_disk_and_dense_again_when_loaded():
    training = Training(gradual_recovery(0.9, T, delta_t=8))
    training.run(make_batches()[:20])
    assert training.pruner.dense
    state = torch.load(saved(training))
    for name, mask in training.pruner.masks.items():
        assert not state["model"][name][~mask].any()
    resumed = Training(gradual_recovery(0.9, T, delta_t=8), model=make_model(seed=7))
    resumed.model.load_state_dict(state["model"])
    resumed.pruner.load_state_dict(state["pruner"])
    assert resumed.pruner.dense
    assert_equal(resumed.weights(), training.weights())


@pytest.mark.parametrize(
    ("here", "there", "message"),
    [
        ({"a": (4,)}, {"a": (5,)}, r"a has shape \(4,\) here, \(5,\) there"),
        ({"a": (4,), "b": (2,)}, {"a": (4,)}, r"b has shape \(2,\) here, no mask there"),
        ({"a": (4,)}, {"a": (4,), "b": (2,)}, "b there, not among the pruned weights here"),
    ],
)
def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(here, there, message):
    pruner, other = (TVPGD({n: torch.randn(s) for n, s in x.items()}, one_shot(0.5, 4)) for x in (here, there))
    other.step()
    with pytest.raises(PruningError, match=f"^the state does not fit: {message}$"):
        pruner.load_state_dict(other.state_dict())
    assert pruner.t == 0
    assert all(mask.all() for mask in pruner.masks.values())


# Zeros that are there, and a dense start -----------------------------------------------------------------------------


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
        training.pruner.step()


def test_masks_are_those_of_magprune_on_the_updated_weights():
    training = Training(pgd(0.7, T))
    for batch in make_batches():
        training.learn(batch)
        expected = magprune(training.pruner.params, 0.7)
        training.pruner.step()
        assert_equal(training.pruner.masks, expected)
