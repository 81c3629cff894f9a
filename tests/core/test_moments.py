"""Masks on the optimizer's momentum, too."""

import pytest
import torch
from support.training import T, Training, assert_equal, make_batches
from torch import nn

from hf_cyclical.core import KEEP, MASK, TVPGD, PruningError, Recipe, cyclical, gradual_recovery, with_dense_start


def pushed(masked):
    """Weights 3, 2, 1 and gradients of -0.1 for 6 updates at a rate of 1; s is 1/3 from update 0 on, 0 from 5 on."""
    model = nn.Linear(3, 1, bias=False)
    model.weight.data = torch.tensor([[3.0, 2.0, 1.0]])
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)
    recipe = Recipe(
        s=lambda t: 1 / 3 if t < 5 else 0.0,
        eta=lambda t: 1.0,
        update_at=lambda t: t in (0, 5),
        cycles=(range(6),),
        moments=MASK if masked else KEEP,
    )
    pruner = TVPGD({"weight": model.weight}, recipe, optimizer=optimizer)
    for t in range(6):
        model.weight.grad = torch.full((1, 3), -0.1)
        optimizer.step()
        pruner.step(t)
    return model.weight.tolist()[0]


def test_a_weight_returns_with_one_gradient_step_and_not_with_the_sum_of_many():
    *_, masked = pushed(True)
    assert masked == pytest.approx(0.1)
    *_, unmasked = pushed(False)
    assert unmasked == pytest.approx(0.1 * sum(0.9**i for i in range(6)))  # 0.469


def test_kept_weights_keep_their_momentum():
    assert pushed(True)[:2] == pytest.approx(pushed(False)[:2])


def momenta_of_pruned(training):
    found = []
    for name, p in training.pruner.params.items():
        state = training.optimizer.state[p]
        momentum = state["momentum_buffer" if "momentum_buffer" in state else "exp_avg"]
        found.append(momentum[~training.pruner.masks[name]])
    return torch.cat(found)


def test_momentum_is_masked_whenever_the_weights_are():
    training = Training(gradual_recovery(0.9, T, delta_t=8), mask_momentum=True)
    for t, batch in enumerate(make_batches()):
        training.update(batch)
        if t >= 8:
            assert bool(momenta_of_pruned(training).any()) == training.pruner.dense


def test_a_dense_start_is_left_alone():
    recipe = with_dense_start(cyclical(0.9, T - 10, k=2), 10)
    plain, masked = Training(recipe), Training(recipe, mask_momentum=True)
    plain.run(make_batches()[:10])
    masked.run(make_batches()[:10])
    assert_equal(plain.weights(), masked.weights())


@pytest.mark.parametrize(
    ("make_optimizer", "words"),
    [
        (
            lambda p: torch.optim.SGD(p, lr=0.1),
            "no effect on SGD without momentum: use sgd with momentum or adamw_torch",
        ),
        (lambda p: torch.optim.Adam(p, betas=(0.0, 0.9)), "no effect on Adam without momentum"),
        (lambda p: torch.optim.Adagrad(p), "does not know where Adagrad keeps its momentum"),
    ],
)
def test_an_optimizer_without_momentum_that_we_know_is_refused(make_optimizer, words):
    with pytest.raises(PruningError, match=words):
        Training(cyclical(0.9, T), make_optimizer, mask_momentum=True)


def test_weights_that_are_not_pruned_may_do_without_momentum():
    def make_optimizer(params):
        params = list(params)
        groups = [
            {"params": [p for p in params if p.dim() == 1]},
            {"params": [p for p in params if p.dim() > 1], "momentum": 0.9},
        ]
        return torch.optim.SGD(groups, lr=0.1)

    training = Training(cyclical(0.9, T, k=2), make_optimizer, mask_momentum=True)
    training.run()
    assert not momenta_of_pruned(training).any()


@pytest.mark.parametrize(
    "kind", [torch.optim.RMSprop, torch.optim.AdamW, torch.optim.Adamax, torch.optim.NAdam, torch.optim.RAdam]
)
def test_every_optimizer_that_we_know(kind):
    options = {"momentum": 0.9} if kind is torch.optim.RMSprop else {}
    training = Training(cyclical(0.9, T, k=2), lambda p: kind(p, lr=0.01, **options), mask_momentum=True)
    training.run()
    assert not momenta_of_pruned(training).any()
