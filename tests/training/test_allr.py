"""ALLR: the learning rate that follows from the norm which pruning takes from the weights."""

import math

import pytest
import torch
from support.processes import on_processes
from support.sharded import ShardedTrainer
from support.tiny import CYCLICAL, TinyNet, Watcher, build_trainer, same_weights

from hf_cyclical import PruningConfig, PruningError, prunable_parameters
from hf_cyclical.core import allr
from hf_cyclical.training import describe_plan

SAVES = {"save_strategy": "steps", "save_steps": 4}
LOWERED = CYCLICAL | {"allr": 0.01, "lr_shape": "constant"}


def part_of(config, *layers):
    params = {f"layer{i}.weight": torch.tensor(values, dtype=torch.float32) for i, values in enumerate(layers)}
    pruning = PruningConfig(**config)
    return allr(params, pruning.choice, pruning.resolved("target_sparsity"), config.get("allr", 0.0))


@pytest.mark.parametrize(
    ("config", "layers", "expected"),
    [
        # Of a norm of 5, sqrt(1 + 4) goes with half of the weights.
        ({"target_sparsity": 0.5}, [[[1, -2], [2, 4]]], math.sqrt(5 / 25) / math.sqrt(0.5)),
        ({"target_sparsity": 0.5, "allr": 0.7}, [[[1, -2], [2, 4]]], 0.7),
        # Equal weights lose as much as there is to lose.
        ({"target_sparsity": 0.5}, [[[3, 3], [3, 3]]], 1.0),
        # Of 81 + 100 + 1 + 4 + 9 + 16 either 9, 1 and 2 go, as every layer loses half, or 1, 2 and 3 of all.
        ({"target_sparsity": 0.5}, [[[9, 10]], [[1, 2, 3, 4]]], math.sqrt(86 / 211 / 0.5)),
        ({"target_sparsity": 0.5, "share": "global"}, [[[9, 10]], [[1, 2, 3, 4]]], math.sqrt(14 / 211 / 0.5)),
        # One of two in each row.
        ({"target_sparsity": 0.5, "pattern": "1:2"}, [[[1, 2], [3, 4]]], math.sqrt(10 / 30 / 0.5)),
    ],
)
def test_hand_worked_parts(config, layers, expected):
    assert part_of(config, *layers) == pytest.approx(expected)


def test_it_is_at_most_the_largest_learning_rate():
    # One of two large weights goes, and one of six small ones: half of the norm, with a quarter of the weights.
    config = {"target_sparsity": 0.17, "layer_sparsity": ["layer0=0.5"], "row_floor": 0}
    assert part_of(config, [[5, 5]], [[1, 1, 1, 1, 1, 1]]) == 1.0


def test_weights_of_zero_lose_nothing():
    assert part_of({"target_sparsity": 0.5, "allr": 0.2}, [[0, 0], [0, 0]]) == 0.2


def test_weights_of_half_precision_have_a_norm():
    weights = torch.randn(400, 500, generator=torch.Generator().manual_seed(0))
    parts = [
        allr({"layer.weight": weights.to(dtype)}, PruningConfig().choice, 0.9)
        for dtype in (torch.float32, torch.float16)  # the sum of squares is 200,000, and the largest half is 65,504
    ]
    assert parts[1] == pytest.approx(parts[0], rel=1e-3)


def by_hand(model, s, least):
    """With every layer losing its smallest weights, as many as round(s * n) says; for layers of some size."""
    lost, total, gone, n = 0.0, 0.0, 0, 0
    for p in prunable_parameters(model).values():
        magnitudes = p.detach().abs().flatten().sort().values
        k = round(s * len(magnitudes))
        lost, total = lost + float((magnitudes[:k] ** 2).sum()), total + float((magnitudes**2).sum())
        gone, n = gone + k, n + len(magnitudes)
    return max(least, math.sqrt(lost / total / (gone / n)))


def test_the_trainer_starts_every_cycle_with_it(make_trainer):
    watcher, part = Watcher(), by_hand(TinyNet(), 0.9, 0.01)
    assert 0.3 < part < 0.95
    trainer = make_trainer(LOWERED, max_steps=12, learning_rate=0.1, callbacks=[watcher])
    trainer.train()
    assert watcher.rates == pytest.approx([0.1 * part] * 12, rel=0.02)
    assert [row.learning_rate for row in trainer.report.cycles] == pytest.approx(watcher.rates[:2])
    assert [rate for _, rate in trainer.report.schedule][:1] == pytest.approx(watcher.rates[:1])


def test_a_second_training_starts_from_the_given_rate_again(make_trainer):
    watcher = Watcher()
    trainer = make_trainer(LOWERED | {"allr": 0.5}, max_steps=6, callbacks=[watcher], learning_rate=0.1)
    trainer.train()
    first = watcher.rates.copy()
    trainer.train()  # of weights that lose nothing to the same pruning
    assert first[0] > 0.05
    assert watcher.rates[6:] == pytest.approx([0.05] * 6)


@pytest.mark.parametrize("resumed_at", [4, 8])
def test_a_resumed_run_has_the_rate_that_it_started_with(make_trainer, tmp_path, resumed_at):
    pruning, arguments = LOWERED | {"lr_shape": "cosine"}, {"max_steps": 18, "shuffle": True, **SAVES}
    first = make_trainer(pruning, **arguments)
    first.train()
    again = make_trainer(pruning, model=TinyNet(seed=5), output_dir=str(tmp_path / "again"), **arguments)
    again.train(resume_from_checkpoint=str(tmp_path / "run" / f"checkpoint-{resumed_at}"))
    assert same_weights(again.model, first.model)
    assert again.report.schedule == first.report.schedule
    assert [row.learning_rate for row in again.report.cycles] == [row.learning_rate for row in first.report.cycles]


def rates_on_a_process(rank, folder, batch_size):
    watcher, model = Watcher(), TinyNet(seed=rank)  # DDP starts from the first one's weights
    arguments = {"max_steps": 6, "per_device_train_batch_size": batch_size, "callbacks": [watcher]}
    build_trainer(folder, LOWERED, model=model, **arguments).train()
    return watcher.rates


def test_all_processes_have_the_rate_of_the_first(tmp_path):
    one = rates_on_a_process(0, tmp_path / "one", 8)
    assert on_processes(2, rates_on_a_process, tmp_path / "two", 4) == [pytest.approx(one)] * 2


def test_the_plan_has_the_rates_of_the_run_and_says_why(make_trainer):
    watcher = Watcher()
    trainer = make_trainer(LOWERED, max_steps=12, learning_rate=0.1, callbacks=[watcher])
    text = describe_plan(trainer)
    trainer.train()
    [told] = [line.rsplit(maxsplit=1)[1] for line in text.splitlines() if line.strip().startswith("cycle 1 ")]
    assert float(told) == pytest.approx(watcher.rates[0], rel=1e-3)
    share = f"ALLR: {watcher.rates[0] / 0.1:.3g} of the learning rate 0.1"
    assert share in text
    assert "ALLR" not in describe_plan(make_trainer(CYCLICAL, max_steps=12))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"allr": 1.5}, r"allr 1.5 must be in \[0, 1\]: use 0.1, or leave it out"),
        ({"allr": 0.1, "target_sparsity": 0}, "allr 0.1 has no effect where nothing is pruned"),
        ({"allr": 0.1, "method": "freeze"}, "allr 0.1 has no meaning for method freeze: leave it out"),
        ({"allr": 0.1, "dense_updates": 4}, "allr 0.1 needs trained weights, and dense_updates trains them first"),
        ({"allr": 0.1, "dense_epochs": 2}, "allr 0.1 needs trained weights, and dense_epochs trains them first"),
    ],
)
def test_what_has_no_such_norm_is_refused_in_one_line(settings, words):
    with pytest.raises(PruningError, match=words):
        PruningConfig(**settings)


def test_split_weights_are_refused(make_trainer):
    with pytest.raises(PruningError, match="allr is not made for weights that FSDP splits: use DDP"):
        make_trainer(LOWERED, max_steps=4, kind=ShardedTrainer)


def test_with_all_of_the_rate_it_is_the_run_without_it(make_trainer):
    runs = [make_trainer(CYCLICAL | more, max_steps=12) for more in ({}, {"allr": 1.0})]
    for trainer in runs:
        trainer.train()
    assert same_weights(runs[0].model, runs[1].model)
