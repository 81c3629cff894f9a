import doctest
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_cyclical.core import schedules
from hf_cyclical.core.schedules import after, constant, cosine, cubic, cyclical, linear, split, step, zero_first

fractions = st.floats(0, 1)
lengths = st.integers(0, 300)


def values(schedule, updates):
    return [schedule(t) for t in updates]


def test_the_examples_in_the_docstrings_hold():
    results = doctest.testmod(schedules)
    assert results.attempted > 0
    assert results.failed == 0


def test_cubic_is_equation_1():
    # s_t + (s_init - s_t) * (1 - t/4)^3 with (1 - t/4)^3 = 1, 27/64, 8/64, 1/64, 0
    assert values(cubic(0.0, 0.8, T=4), range(5)) == pytest.approx([0.0, 0.4625, 0.7, 0.7875, 0.8])
    assert values(cubic(0.4, 0.8, T=4), range(5)) == pytest.approx([0.4, 0.63125, 0.75, 0.79375, 0.8])


def test_linear_rises_by_equal_steps():
    assert values(linear(0.0, 0.8, T=4), range(5)) == pytest.approx([0.0, 0.2, 0.4, 0.6, 0.8])
    assert values(linear(1.0, 0.0, T=4), range(5)) == pytest.approx([1.0, 0.75, 0.5, 0.25, 0.0])


def test_step_jumps_at_its_update_and_not_before():
    assert values(step(0.4, 0.8, at=3), range(6)) == [0.4, 0.4, 0.4, 0.8, 0.8, 0.8]


def test_constant_never_changes():
    assert values(constant(0.9), (0, 1, 1000)) == [0.9, 0.9, 0.9]


def test_cosine_is_half_a_period():
    # (1 + cos(pi t/4)) / 2
    assert values(cosine(1.0, 0.0, T=4), range(5)) == pytest.approx([1.0, 0.8535534, 0.5, 0.1464466, 0.0])


def test_zero_first_changes_only_the_first_update():
    assert values(zero_first(step(1.0, 0.1, at=2)), range(4)) == [0.0, 1.0, 0.1, 0.1]


@pytest.mark.parametrize("shape", [cubic, linear, cosine])
@given(start=fractions, end=fractions, T=lengths, beyond=st.integers(0, 1000))
def test_a_shape_is_exactly_at_its_end_from_T_on(shape, start, end, T, beyond):
    assert shape(start, end, T)(T + beyond) == end


@pytest.mark.parametrize("shape", [cubic, linear, cosine])
@given(start=fractions, end=fractions, T=st.integers(1, 300))
def test_a_shape_goes_from_start_to_end_without_turning_back(shape, start, end, T):
    schedule = shape(start, end, T)
    assert schedule(0) == pytest.approx(start)
    path = values(schedule, range(T + 1))
    way = 1 if end >= start else -1
    assert all(way * (later - earlier) >= -1e-12 for earlier, later in pairwise(path))


@given(st.data())
def test_split_loses_no_update_and_makes_cycles_of_equal_length(data):
    T = data.draw(st.integers(1, 500))
    k = data.draw(st.integers(1, T))
    cycles = split(T, k)
    assert [t for cycle in cycles for t in cycle] == list(range(T))
    lengths = {len(cycle) for cycle in cycles}
    assert len(cycles) == k
    assert max(lengths) - min(lengths) <= 1


def test_split_cuts_at_the_floors_of_cT_over_k():
    assert split(10, 4) == (range(0, 2), range(2, 5), range(5, 7), range(7, 10))


def test_cyclical_runs_each_cycle_in_its_own_time():
    s = cyclical([cubic(0.0, 0.8, T=2), cubic(0.4, 0.8, T=2)], split(7, 2))
    # cycles of 3 and 4 updates; (1 - 1/2)^3 = 1/8
    assert values(s, range(7)) == pytest.approx([0.0, 0.7, 0.8, 0.4, 0.75, 0.8, 0.8])


def test_cyclical_stays_in_the_last_cycle_after_the_run():
    s = cyclical([constant(0.1), linear(0.0, 0.8, T=4)], split(4, 2))
    assert values(s, (2, 3, 4, 5, 6, 100)) == pytest.approx([0.0, 0.2, 0.4, 0.6, 0.8, 0.8])


@given(st.data())
def test_cyclical_is_local_time_in_every_cycle(data):
    T = data.draw(st.integers(1, 200))
    k = data.draw(st.integers(1, T))
    cycles = split(T, k)
    pairs = cyclical([lambda t, c=c: (c, t) for c in range(k)], cycles)
    assert [pairs(t) for t in range(T)] == [(c, t) for c, cycle in enumerate(cycles) for t in range(len(cycle))]


def test_after_starts_the_second_schedule_at_its_own_zero():
    schedule = after(3, constant(0.0), linear(0.5, 1.0, T=2))
    assert values(schedule, range(7)) == [0.0, 0.0, 0.0, 0.5, 0.75, 1.0, 1.0]
