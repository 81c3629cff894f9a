import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hf_cyclical.core import TVPGD, RecoveryTracker, cyclical, mask_distance

SIZES = {"first": 5, "second": 3}

masks_of_sizes = st.fixed_dictionaries(
    {name: st.lists(st.booleans(), min_size=size, max_size=size).map(torch.tensor) for name, size in SIZES.items()}
)


def masks(*bits):
    """One layer's masks from 0s and 1s."""
    return {"w": torch.tensor(bits, dtype=torch.bool)}


def keeps(layers):
    """The kept weights as a set of (layer, index)."""
    return {(name, i) for name, mask in layers.items() for i, bit in enumerate(mask.tolist()) if bit}


EVERY = keeps({name: torch.ones(size) for name, size in SIZES.items()})


# Regrown weights -----------------------------------------------------------------------------------------------------


def test_a_weight_is_regrown_while_it_is_kept_and_was_ever_pruned_before():
    tracker = RecoveryTracker(masks(1, 1, 1, 1))
    regrown = []
    for chosen in [(1, 1, 1, 1), (0, 0, 1, 1), (1, 0, 0, 1), (1, 1, 0, 1), (0, 1, 0, 1), (1, 1, 1, 1)]:
        tracker.update(masks(*chosen))
        regrown.append(tracker.regrown)
    assert regrown == [0, 0, 1 / 4, 2 / 4, 1 / 4, 3 / 4]


def test_weights_pruned_by_the_first_masks_count_as_pruned():
    tracker = RecoveryTracker(masks(1, 1))
    tracker.update(masks(0, 1))
    tracker.update(masks(1, 1))
    assert tracker.regrown == 1 / 2


@given(st.lists(masks_of_sizes, min_size=1, max_size=12))
def test_regrown_weights_are_those_of_the_papers_definition(sequence):
    tracker = RecoveryTracker(sequence[0])
    for now, chosen in enumerate(sequence):
        tracker.update(chosen)
        ever_pruned = set().union(*(EVERY - keeps(earlier) for earlier in sequence[:now]))
        regrown = ever_pruned & keeps(chosen)
        assert tracker.regrown_by_layer == {name: sum(layer == name for layer, _ in regrown) for name in SIZES}
        assert tracker.regrown == len(regrown) / len(EVERY)


def test_weights_pruned_in_earlier_cycles_stay_regrown_after_the_end_of_a_cycle():
    tracker = RecoveryTracker(masks(1, 1, 1, 1))
    for chosen in [(0, 0, 1, 1), (1, 0, 0, 1)]:
        tracker.update(masks(*chosen))
    tracker.end_cycle(masks(1, 0, 0, 1))
    assert tracker.regrown == 1 / 4
    tracker.update(masks(1, 1, 1, 0))  # the first returned in cycle 1, the next two return now
    assert tracker.regrown == 3 / 4
    tracker.end_cycle(masks(1, 1, 1, 0))
    tracker.update(masks(1, 1, 0, 0))
    assert tracker.regrown == 2 / 4


# Cycles --------------------------------------------------------------------------------------------------------------


def test_recovered_weights_are_counted_once_in_each_cycle_they_return_in():
    tracker = RecoveryTracker(masks(1, 1, 1))
    for chosen in [(0, 0, 1), (1, 0, 1), (0, 0, 1), (1, 0, 1), (0, 0, 1)]:
        tracker.update(masks(*chosen))
    assert tracker.end_cycle(masks(0, 0, 1)).recovered == 1
    for chosen in [(1, 1, 1), (1, 0, 0)]:
        tracker.update(masks(*chosen))
    assert tracker.end_cycle(masks(1, 0, 0)).recovered == 2
    tracker.update(masks(1, 0, 0))
    assert tracker.end_cycle(masks(1, 0, 0)).recovered == 0


@given(st.lists(st.lists(masks_of_sizes.filter(keeps), min_size=1, max_size=5), min_size=1, max_size=4))
def test_cycles_equal_a_count_by_sets(cycles):
    tracker = RecoveryTracker(cycles[0][0])
    previous, ever_pruned = EVERY, set()
    for cycle in cycles:
        recovered = set()
        for chosen in cycle:
            tracker.update(chosen)
            recovered |= keeps(chosen) - previous
            previous = keeps(chosen)
            assert tracker.regrown == len(ever_pruned & previous) / len(EVERY)
            ever_pruned |= EVERY - previous
        result = tracker.end_cycle(cycle[-1])
        first, last = keeps(cycles[0][-1]), keeps(cycle[-1])
        assert result.recovered == len(recovered)
        assert result.mask_distance == pytest.approx(1 - len(first & last) / len(first | last))


def test_the_distance_of_the_first_cycle_to_itself_is_0():
    tracker = RecoveryTracker(masks(1, 1, 1))
    tracker.update(masks(0, 1, 1))
    assert tracker.end_cycle(masks(0, 1, 1)).mask_distance == 0


def test_the_distance_between_masks_that_keep_nothing_is_0():
    tracker = RecoveryTracker(masks(0, 0, 0))
    assert tracker.end_cycle(masks(0, 0, 0)).mask_distance == mask_distance(masks(0, 0, 0), masks(0, 0, 0)) == 0


def test_a_loaded_history_goes_on_as_if_never_interrupted():
    sequence = [masks(0, 0, 1, 1), masks(1, 0, 1, 0), masks(0, 1, 1, 0), masks(1, 1, 0, 0)]
    whole = RecoveryTracker(sequence[0])
    for chosen in sequence[:2]:
        whole.update(chosen)
    whole.end_cycle(sequence[1])
    resumed = RecoveryTracker(sequence[0])
    resumed.load_state_dict(whole.state_dict())
    assert resumed.regrown == whole.regrown
    for tracker in (whole, resumed):
        for chosen in sequence[2:]:
            tracker.update(chosen)
    assert resumed.regrown_by_layer == whole.regrown_by_layer
    assert resumed.end_cycle(sequence[-1]) == whole.end_cycle(sequence[-1])


# Jaccard distance ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("a", "b", "distance"),
    [
        ((1, 1, 0, 0), (1, 1, 0, 0), 0),
        ((1, 1, 0, 0), (0, 0, 1, 1), 1),
        ((1, 1, 0, 0), (1, 0, 1, 0), 2 / 3),  # 1 shared of 3
        ((1, 1, 1, 0), (1, 1, 0, 1), 1 / 2),  # 2 shared of 4
        ((0, 0, 0, 0), (0, 0, 0, 0), 0),
    ],
)
def test_mask_distance_is_one_minus_shared_over_either(a, b, distance):
    assert mask_distance(masks(*a), masks(*b)) == pytest.approx(distance)
    assert mask_distance(masks(*b), masks(*a)) == pytest.approx(distance)


def test_mask_distance_is_over_all_layers_together():
    a = {"x": torch.tensor([True, False]), "y": torch.tensor([True, True, True])}
    b = {"x": torch.tensor([False, True]), "y": torch.tensor([True, True, False])}
    assert mask_distance(a, b) == pytest.approx(1 - 2 / 5)


# Memory --------------------------------------------------------------------------------------------------------------


def test_masks_and_history_take_at_most_two_bytes_per_weight():
    pruner = TVPGD({"conv": torch.randn(8, 4, 3, 3), "linear": torch.randn(30, 20)}, cyclical(0.9, 20, k=2))
    tracker = RecoveryTracker(pruner.masks)
    for t in range(20):
        pruner.step(t)
        tracker.update(pruner.masks)
    stored = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors_in([pruner, tracker])}
    weights = {p.untyped_storage().data_ptr() for p in pruner.params.values()}
    extra = sum(nbytes for address, nbytes in stored.items() if address not in weights)
    assert extra <= 2 * sum(p.numel() for p in pruner.params.values())


def tensors_in(values):
    """All the tensors that are reachable through attributes, dicts and lists."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, dict):
            yield from tensors_in(value.values())
        elif isinstance(value, list | tuple):
            yield from tensors_in(value)
        elif isinstance(value, TVPGD | RecoveryTracker):
            yield from tensors_in(vars(value).values())
