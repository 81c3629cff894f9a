"""Settings that follow from the length of a run: `cycles auto` and `delta_t auto`."""

import pytest

from hf_cyclical import PruningConfig, PruningError
from hf_cyclical.core import automatic
from hf_cyclical.training import describe_plan

# A cycle has 2,000 updates at least; there are 5 at most, as in the paper, or what the method has by default.
CYCLES = [
    ("cyclical", 1, 1),
    ("cyclical", 1_960, 1),  # 10 epochs of CIFAR-10
    ("cyclical", 3_999, 1),
    ("cyclical", 4_000, 2),
    ("cyclical", 5_880, 2),  # 30 epochs
    ("cyclical", 9_999, 4),
    ("cyclical", 10_005, 5),  # the digits
    ("cyclical", 19_600, 5),  # the paper's 100 epochs
    ("cyclical", 1_000_000, 5),
    ("cyclical_lr", 6_000, 3),
    ("iterative", 6_000, 3),
    ("acdc", 500, 2),  # it needs two
    ("acdc", 3_999, 2),
    ("acdc", 40_000, 8),
    ("freeze", 40_000, 1),
]


@pytest.mark.parametrize(("method", "updates", "cycles"), CYCLES)
def test_cycles_follow_from_the_number_of_updates(method, updates, cycles):
    fitted = PruningConfig(method=method, cycles="auto").fitted(updates)
    assert fitted.cycles == cycles
    assert updates == 1 or updates == fitted.recipe(updates).T


def test_dense_updates_are_no_part_of_a_cycle():
    config = PruningConfig(cycles="auto", dense_epochs=20)
    assert config.fitted(6_000, epochs=30).cycles == 1  # 2,000 are left
    assert PruningConfig(cycles="auto", dense_updates=1_000).fitted(7_000).cycles == 3


# 31 choices of masks while the sparsity rises, as the paper has: 16 epochs of 196 updates, one in 100 of them.
DELTA_T = [
    ({}, 19_600, 100),  # 3,136 / 31 = 101: never above the paper's
    ({}, 1_960, 10),  # 313.6 / 31 = 10.1
    ({}, 10_005, 52),  # 1,600.8 / 31 = 51.6
    ({"cycles": 1}, 1_960, 51),  # 1,568 / 31 = 50.6
    ({}, 20, 1),
    ({"ramp_fraction": 0.4}, 1_960, 5),  # 156.8 / 31 = 5.06
    ({"cycles": 2, "ramp_fraction": 0.6, "tail": 0.2}, 2_000, 19),  # L = 1,600 / 1.6 = 1,000: 600 / 31 = 19.4
    ({"cycles": 1, "tail": 0.5}, 3_100, 50),  # rises until the tail: 1,550 / 31
    ({"method": "gradual"}, 1_960, 51),
    ({"method": "rigl"}, 1_240, 30),  # masks change in three quarters of the run: 930 / 31
    ({"method": "snfs"}, 1_240, 40),  # in all of it
]


@pytest.mark.parametrize(("settings", "updates", "delta_t"), DELTA_T)
def test_delta_t_follows_from_the_length_of_a_cycle(settings, updates, delta_t):
    assert PruningConfig(delta_t="auto", **settings).fitted(updates).delta_t == delta_t


def test_both_together():
    fitted = PruningConfig(cycles="auto", delta_t="auto").fitted(5_880)
    assert (fitted.cycles, fitted.delta_t) == (2, 76)  # 0.8 * 2,940 / 31 = 75.9


@pytest.mark.parametrize("updates", [100, 1_960, 5_880, 19_600])
def test_the_recipe_is_that_of_the_numbers(updates):
    auto = PruningConfig(cycles="auto", delta_t="auto")
    fitted = auto.fitted(updates)
    mine, its = auto.recipe(updates), PruningConfig(cycles=fitted.cycles, delta_t=fitted.delta_t).recipe(updates)
    assert mine.cycles == its.cycles
    assert [mine.update_at(t) for t in range(updates)] == [its.update_at(t) for t in range(updates)]
    assert [mine.s(t) for t in range(updates)] == [its.s(t) for t in range(updates)]
    assert 20 <= sum(map(mine.update_at, mine.cycles[0])) <= 50  # about 31


def test_a_config_without_auto_is_as_it_was():
    config = PruningConfig(cycles=3)
    assert config.fitted(100) is config


def test_a_single_cycle_needs_no_start_of_the_others():
    assert PruningConfig(cycles="auto", init_sparsity=0.3).fitted(1_000).init_sparsity is None
    assert PruningConfig(cycles="auto", init_sparsity=0.3).fitted(4_000).init_sparsity == 0.3
    stored = PruningConfig(cycles="auto").to_dict()
    assert PruningConfig(**stored).fitted(1_000).to_dict()["init_sparsity"] is None


def test_numbers_may_be_text_as_in_an_environment():
    assert PruningConfig(cycles="3").cycles == 3


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"cycles": "many"}, "cycles 'many' must be a whole number of at least 1, or auto: use 1 for a single cycle"),
        ({"delta_t": "-5"}, "delta_t '-5' must be a whole number of at least 1, or auto: use 100 as the paper does"),
        ({"method": "gradual", "cycles": "auto"}, "cycles 'auto' has no meaning for method gradual: leave it out"),
    ],
)
def test_what_is_neither_a_number_nor_auto_is_refused(settings, words):
    with pytest.raises(PruningError, match=words):
        PruningConfig(**settings)


AUTO = {"target_sparsity": 0.5, "cycles": "auto", "delta_t": "auto"}


@pytest.fixture
def short_cycles(monkeypatch):
    monkeypatch.setattr(automatic, "CYCLE", 10)
    monkeypatch.setattr(automatic, "CHOICES", 4)


def test_report_and_plan_say_what_was_chosen(make_trainer, short_cycles):
    trainer = make_trainer(AUTO, max_steps=24)  # 2 cycles of 12, of which 9.6 updates rise
    assert "2 cycles and masks every 2 updates, which suit 24 updates of pruning (auto)." in describe_plan(trainer)
    trainer.train()
    config = trainer.report.config
    assert (config["cycles"], config["delta_t"], config["init_sparsity"]) == (2, 2, 0.25)
    assert [row.update for row in trainer.report.cycles] == [12, 24]
    assert "(auto)" not in describe_plan(make_trainer({"target_sparsity": 0.5, "cycles": 2}, max_steps=24))


@pytest.mark.parametrize("again", [AUTO, AUTO | {"cycles": 2, "delta_t": 2}])
def test_a_run_resumes_with_auto_or_with_what_it_chose(make_trainer, short_cycles, tmp_path, again):
    first = make_trainer(AUTO, max_steps=24, save_strategy="steps", save_steps=6, output_dir=tmp_path)
    first.train()
    second = make_trainer(again, max_steps=24, save_strategy="steps", save_steps=6, output_dir=tmp_path)
    second.train(resume_from_checkpoint=str(tmp_path / "checkpoint-6"))
    assert second.report.cycles == first.report.cycles


def test_or_is_refused_with_other_numbers(make_trainer, short_cycles, tmp_path):
    make_trainer(AUTO, max_steps=24, save_strategy="steps", save_steps=6, output_dir=tmp_path).train()
    other = make_trainer(AUTO | {"cycles": 3}, max_steps=24, output_dir=tmp_path)
    with pytest.raises(PruningError, match="the checkpoint is of another run: cycles is 2 there, 3 here"):
        other.train(resume_from_checkpoint=str(tmp_path / "checkpoint-6"))
