from itertools import pairwise

import pytest
import reference
from hypothesis import example, given
from hypothesis import strategies as st

from hf_cyclical.core import (
    cyclical,
    cyclical_lr,
    freeze,
    gradual,
    gradual_recovery,
    iterative,
    lr_constant,
    lr_cosine,
    lr_drop,
    lr_linear,
    one_shot,
    pgd,
    with_dense_start,
)

SHAPES = ["cubic", "linear", "step", "constant"]

targets = st.floats(0, 1, exclude_max=True)
ramps = st.floats(0.001, 1)
intervals = st.integers(1, 150)


@st.composite
def runs(draw, longest=300):
    """T and k of a run with at least one update in each cycle."""
    T = draw(st.integers(1, longest))
    return T, draw(st.integers(1, min(T, 8)))


def mask_updates(recipe):
    return [t for t in range(recipe.T) if recipe.update_at(t)]


def same(a, b, attribute):
    return [getattr(a, attribute)(t) for t in range(a.T)] == [getattr(b, attribute)(t) for t in range(b.T)]


# Cyclical pruning ----------------------------------------------------------------------------------------------------


def test_cyclical_has_the_papers_sparsities():
    recipe = cyclical(0.8, 200, k=2, delta_t=10)
    # The ramp is 80 of 100 updates: at 40, (1 - 40/80)^3 = 1/8 of the way is left.
    assert [recipe.s(t) for t in (0, 40, 80, 99)] == pytest.approx([0.0, 0.7, 0.8, 0.8])
    assert [recipe.s(t) for t in (100, 140, 180, 199)] == pytest.approx([0.4, 0.75, 0.8, 0.8])


def test_cyclical_chooses_masks_every_delta_t_of_the_ramp_and_never_in_the_fine_tuning():
    recipe = cyclical(0.8, 200, k=2, delta_t=10)
    assert mask_updates(recipe) == [*range(0, 81, 10), *range(100, 181, 10)]


def test_cyclical_also_chooses_masks_at_a_ramp_end_between_two_intervals():
    recipe = cyclical(0.8, 200, k=2, delta_t=30)
    assert mask_updates(recipe) == [0, 30, 60, 80, 100, 130, 160, 180]


def test_a_delta_t_longer_than_the_cycle_leaves_its_start_and_the_ramp_end():
    recipe = cyclical(0.8, 200, k=2, delta_t=1000)
    assert mask_updates(recipe) == [0, 80, 100, 180]


def test_a_ramp_of_1_ends_at_the_last_update_of_the_cycle():
    recipe = cyclical(0.8, 20, k=2, delta_t=4, ramp=1.0)
    assert mask_updates(recipe) == [0, 4, 8, 9, 10, 14, 18, 19]
    assert recipe.s(9) == recipe.s(19) == 0.8


def test_s_init_is_that_of_the_later_cycles_only():
    recipe = cyclical(0.8, 200, k=2, s_init=0.2)
    assert [recipe.s(t) for t in (0, 100, 140)] == pytest.approx([0.0, 0.2, 0.725])


def test_linear_rises_along_the_ramp():
    recipe = cyclical(0.8, 200, k=2, shape="linear")
    assert [recipe.s(t) for t in (0, 20, 80, 99, 100, 120, 180)] == pytest.approx([0, 0.2, 0.8, 0.8, 0.4, 0.5, 0.8])


def test_step_prunes_at_the_halfway_mark_of_the_cycle_not_of_the_ramp():
    recipe = cyclical(0.8, 40, k=2, delta_t=7, shape="step")
    assert [recipe.s(t) for t in range(20)] == [0.0] * 10 + [0.8] * 10
    assert [recipe.s(t) for t in range(20, 40)] == [0.4] * 10 + [0.8] * 10
    # Every 7 updates, at the jump, and at the ramp's end.
    assert mask_updates(recipe) == [0, 7, 10, 14, 16, 20, 27, 30, 34, 36]


def test_step_prunes_at_the_end_of_a_ramp_that_is_shorter_than_half_the_cycle():
    recipe = cyclical(0.8, 20, k=1, delta_t=100, ramp=0.25, shape="step")
    assert [recipe.s(t) for t in (4, 5)] == [0.0, 0.8]
    assert mask_updates(recipe) == [0, 5]


def test_constant_is_at_the_target_throughout():
    recipe = cyclical(0.8, 40, k=2, shape="constant")
    assert {recipe.s(t) for t in range(40)} == {0.8}


def test_no_update_is_lost_when_k_does_not_divide_T():
    recipe = cyclical(0.8, 10, k=3, delta_t=1)
    assert recipe.cycles == (range(0, 3), range(3, 6), range(6, 10))
    assert recipe.T == 10
    # Ramp ends at round(0.8 * 3) = 2 and round(0.8 * 4) = 3.
    assert mask_updates(recipe) == list(range(10))
    assert [recipe.s(t) for t in (2, 5, 9)] == [0.8, 0.8, 0.8]


@given(runs(), targets, intervals, ramps, st.none() | st.floats(0, 1))
def test_cyclical_equals_the_reference(run, s_t, delta_t, ramp, s_init):
    T, k = run
    recipe = cyclical(s_t, T, k=k, delta_t=delta_t, ramp=ramp, s_init=s_init)
    oracle = reference.Cyclical(s_t, T, k, delta_t, ramp, s_init)
    assert same(recipe, oracle, "s")
    assert same(recipe, oracle, "eta")
    assert same(recipe, oracle, "update_at")


@given(runs(), targets, intervals, ramps, st.sampled_from(SHAPES))
def test_the_last_masks_of_every_cycle_are_exactly_at_the_target(run, s_t, delta_t, ramp, shape):
    T, k = run
    recipe = cyclical(s_t, T, k=k, delta_t=delta_t, ramp=ramp, shape=shape)
    for cycle in recipe.cycles:
        last = max(t for t in cycle if recipe.update_at(t))
        assert recipe.s(last) == s_t
        assert recipe.s(cycle.stop - 1) == s_t


@given(runs(), targets, intervals, ramps, st.sampled_from(SHAPES))
def test_s_never_falls_inside_a_cycle(run, s_t, delta_t, ramp, shape):
    T, k = run
    recipe = cyclical(s_t, T, k=k, delta_t=delta_t, ramp=ramp, shape=shape)
    for cycle in recipe.cycles:
        path = [recipe.s(t) for t in cycle]
        assert all(later >= earlier - 1e-12 for earlier, later in pairwise(path))


# The learning rate ---------------------------------------------------------------------------------------------------


def test_eta_drops_tenfold_at_three_quarters_of_each_cycle():
    recipe = cyclical(0.8, 40, k=2)
    assert [recipe.eta(t) for t in range(40)] == ([1.0] * 15 + [0.1] * 5) * 2


def test_eta_can_drop_elsewhere_and_otherwise():
    recipe = gradual(0.8, 10, lr=lr_drop(0.5, 0.2))
    assert [recipe.eta(t) for t in range(10)] == [1.0] * 5 + [0.2] * 5


@pytest.mark.parametrize(
    ("lr", "expected"),
    [
        (lr_constant, [1.0, 1.0, 1.0, 1.0]),
        (lr_linear, [1.0, 0.75, 0.5, 0.25]),
        (lr_cosine, [1.0, 0.8535534, 0.5, 0.1464466]),
    ],
)
def test_other_learning_rates_restart_with_each_cycle(lr, expected):
    recipe = cyclical(0.8, 8, k=2, lr=lr)
    assert [recipe.eta(t) for t in range(8)] == pytest.approx(expected * 2)


# The other methods ---------------------------------------------------------------------------------------------------


def test_gradual_is_cyclical_with_one_cycle():
    one, other = gradual(0.9, 123, delta_t=10), cyclical(0.9, 123, k=1, delta_t=10)
    assert one.cycles == other.cycles == (range(123),)
    assert all(same(one, other, attribute) for attribute in ("s", "eta", "update_at", "project_at"))


def test_gradual_equals_the_reference_with_one_cycle():
    recipe, oracle = gradual(0.9, 123, delta_t=10), reference.Cyclical(0.9, 123, k=1, delta_t=10)
    assert all(same(recipe, oracle, attribute) for attribute in ("s", "eta", "update_at"))


def test_pgd_is_tv_pgd_with_delta_t_of_1_and_constant_functions():
    one = pgd(0.9, 50)
    other = cyclical(0.9, 50, k=1, delta_t=1, ramp=1.0, shape="constant", lr=lr_constant)
    assert mask_updates(one) == list(range(50))
    assert {one.s(t) for t in range(50)} == {0.9}
    assert {one.eta(t) for t in range(50)} == {1.0}
    assert all(same(one, other, attribute) for attribute in ("s", "eta", "update_at", "project_at"))


def test_cyclical_lr_prunes_in_the_first_cycle_only_and_restarts_the_learning_rate():
    control, method = cyclical_lr(0.8, 60, k=3, delta_t=4), cyclical(0.8, 60, k=3, delta_t=4)
    assert mask_updates(control) == [t for t in mask_updates(method) if t < 20]
    assert [control.s(t) for t in range(20)] == [method.s(t) for t in range(20)]
    assert {control.s(t) for t in range(20, 60)} == {0.8}
    assert same(control, method, "eta")
    assert control.cycles == method.cycles


def test_one_shot_prunes_once_before_any_learning():
    recipe = one_shot(0.9, 8)
    assert mask_updates(recipe) == [0]
    assert recipe.s(0) == 0.9
    assert [recipe.eta(t) for t in range(8)] == [0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.1, 0.1]


def test_iterative_prunes_by_equal_steps_before_any_learning_of_the_cycle():
    recipe = iterative(0.9, 12, k=3)
    assert mask_updates(recipe) == [0, 4, 8]
    assert [recipe.s(t) for t in (0, 3, 4, 7, 8, 11)] == pytest.approx([0.3, 0.3, 0.6, 0.6, 0.9, 0.9])
    assert [recipe.eta(t) for t in range(12)] == [0.0, 1.0, 1.0, 0.1] * 3


@given(runs(), targets)
@example((9, 3), 0.95)
def test_iterative_ends_at_exactly_the_target(run, s_t):
    T, k = run
    recipe = iterative(s_t, T, k=k)
    assert recipe.s(recipe.cycles[-1].start) == s_t
    assert recipe.s_t == s_t


def test_gradual_recovery_projects_only_with_new_masks_until_the_last_ones():
    recipe = gradual_recovery(0.8, 20, delta_t=5)
    assert mask_updates(recipe) == [0, 5, 10, 15, 16]
    assert [t for t in range(20) if recipe.project_at(t)] == [0, 5, 10, 15, 16, 17, 18, 19]
    assert all(same(recipe, gradual(0.8, 20, delta_t=5), attribute) for attribute in ("s", "eta", "update_at"))


def test_freeze_never_chooses_masks():
    recipe = freeze(40, k=2)
    assert mask_updates(recipe) == []
    assert recipe.keep_zeros
    assert [recipe.eta(t) for t in range(40)] == ([1.0] * 15 + [0.1] * 5) * 2


@pytest.mark.parametrize("method", [cyclical, gradual, gradual_recovery, cyclical_lr, one_shot, iterative, pgd])
def test_the_target_of_a_recipe_is_its_last_sparsity(method):
    assert method(0.9, 50).s_t == 0.9


# Dense start ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [cyclical, gradual_recovery, one_shot, iterative, pgd])
def test_a_dense_start_shifts_the_whole_recipe(method):
    recipe = method(0.9, 50)
    later = with_dense_start(recipe, 8)
    assert later.T == 58
    assert later.s_t == 0.9
    assert [list(cycle) for cycle in later.cycles] == [[t + 8 for t in cycle] for cycle in recipe.cycles]
    for attribute in ("s", "eta", "update_at", "project_at"):
        before, after = getattr(recipe, attribute), getattr(later, attribute)
        assert [after(t + 8) for t in range(50)] == [before(t) for t in range(50)]


def test_a_dense_start_neither_prunes_nor_projects_and_has_its_own_learning_rate_cycle():
    recipe = with_dense_start(cyclical(0.9, 50), 8)
    assert not any(recipe.update_at(t) or recipe.project_at(t) for t in range(8))
    assert {recipe.s(t) for t in range(8)} == {0.0}
    assert [recipe.eta(t) for t in range(8)] == [1.0] * 6 + [0.1] * 2


def test_a_dense_start_of_no_updates_is_none():
    recipe = cyclical(0.9, 50)
    assert with_dense_start(recipe, 0) is recipe
