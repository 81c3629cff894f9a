"""A run that is saved goes on as if nothing had happened."""

import io

import pytest
import torch
from support.training import T, Training, adamw, assert_equal, make_batches, make_model

from hf_cyclical.core import (
    TVPGD,
    PruningError,
    acdc,
    cyclical,
    cyclical_lr,
    dpf,
    gradual_recovery,
    granet,
    iterative,
    one_shot,
    rigl,
    snfs,
    with_dense_start,
)


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
        rigl(0.8, T, delta_t=4),
        snfs(0.8, T, delta_t=4),
        dpf(0.8, T, delta_t=4),
        granet(0.8, T, delta_t=4),
        acdc(0.8, T, k=3),
        with_dense_start(rigl(0.8, 30, delta_t=4), 10),
        with_dense_start(dpf(0.8, 30, delta_t=4), 10),
    ],
    ids=[
        *("cyclical", "gradual_recovery", "cyclical_lr", "iterative", "dense_start", "rigl", "snfs", "dpf", "granet"),
        *("acdc", "rigl_dense_start", "dpf_dense_start"),
    ],
)
@pytest.mark.parametrize("stop", [1, 5, 12, 20, 37])
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
    other.step(0)
    with pytest.raises(PruningError, match=f"^the state does not fit: {message}$"):
        pruner.load_state_dict(other.state_dict())
    assert pruner.t == 0
    assert all(mask.all() for mask in pruner.masks.values())


# Zeros that are there, and a dense start -----------------------------------------------------------------------------
