"""A longer last cycle: which updates it has, that none is lost, and that every cycle ends at the target."""

from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from hf_cyclical import PruningConfig, PruningError
from hf_cyclical.core import cyclical


def mask_updates(recipe):
    return [t for t in range(recipe.T) if recipe.update_at(t)]


def test_a_hand_worked_run():
    # 40 of 200 updates are the tail. The other 160 are a cycle and a ramp of 0.6: L = 160 / 1.6 = 100.
    recipe = cyclical(0.8, 200, k=2, delta_t=20, ramp=0.6, tail=0.2)
    assert recipe.cycles == (range(100), range(100, 200))
    assert mask_updates(recipe) == [0, 20, 40, 60, 100, 120, 140, 160]
    # 84 = 2 * 30 + 0.8 * 30
    recipe = cyclical(0.8, 100, k=3, delta_t=8, tail=0.16)
    assert recipe.cycles == (range(30), range(30, 60), range(60, 100))
    assert mask_updates(recipe) == [0, 8, 16, 24, 30, 38, 46, 54, 60, 68, 76, 84]
    assert [recipe.s(t) for t in (60, 72, 84, 99)] == pytest.approx([0.4, 0.75, 0.8, 0.8])


def test_a_single_cycle_rises_until_the_tail():
    recipe = cyclical(0.8, 100, k=1, delta_t=30, tail=0.3)
    assert mask_updates(recipe) == [0, 30, 60, 70]
    assert recipe.s(70) == 0.8


def test_the_learning_rate_of_the_last_cycle_takes_all_of_it():
    recipe = PruningConfig(cycles=3, lr_shape="linear", tail=0.16, delta_t=1).recipe(100)
    assert [recipe.eta(t) for t in (0, 15, 30, 60, 80)] == [1.0, 0.5, 1.0, 1.0, 0.5]


@given(
    T=st.integers(2, 400),
    k=st.integers(1, 8),
    ramp=st.integers(1, 100).map(lambda n: n / 100),
    tail=st.integers(1, 99).map(lambda n: n / 100),
    delta_t=st.integers(1, 150),
    shape=st.sampled_from(["cubic", "linear", "step", "constant"]),
)
def test_invariants(T, k, ramp, tail, delta_t, shape):
    fixed = max(1, round(tail * T))
    assume(k <= T - fixed)
    recipe = cyclical(0.9, T, k=k, delta_t=delta_t, ramp=ramp, tail=tail, shape=shape)
    assert [t for cycle in recipe.cycles for t in cycle] == list(range(T))
    assert len(recipe.cycles) == k
    updates = mask_updates(recipe)
    assert max(updates) == T - fixed if shape != "step" else max(updates) <= T - fixed
    for cycle in recipe.cycles:
        assert recipe.s(cycle[-1]) == 0.9
        assert recipe.s(max(t for t in updates if t in cycle)) == 0.9
    lengths = [len(cycle) for cycle in recipe.cycles[:-1]]
    assert max(lengths, default=0) - min(lengths, default=0) <= 1
    if fixed >= (1 - Fraction(str(ramp))) * (T - fixed) / (k - 1 + Fraction(str(ramp))):  # (1 - ramp) L
        assert all(len(recipe.cycles[-1]) >= length - 1 for length in lengths)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"tail": 1}, r"tail 1 must be in \[0, 1\): use 0.2"),
        ({"tail": 0.2, "method": "cyclical_lr"}, "tail 0.2 has no meaning for method cyclical_lr: leave it out"),
    ],
)
def test_what_means_nothing_is_refused(settings, words):
    with pytest.raises(PruningError, match=words):
        PruningConfig(**settings)


def test_a_tail_that_leaves_no_update_for_a_cycle_is_refused():
    with pytest.raises(PruningError, match=r"tail=0\.9 leaves 4 of 40 updates for 5 cycles: lower it or train longer"):
        PruningConfig(tail=0.9, cycles=5).recipe(40)
