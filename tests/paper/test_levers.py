"""The tables of levers: one added at a time, each alone, and what users get."""

from pathlib import Path

import pytest
from support.experiments import intervals, setting

from hf_cyclical.methods import applies
from hf_cyclical.paper import EXPERIMENTS, Cell, Comparison, Facts, recommended

LEVERS = ["digits-levers", "cifar10-resnet20-levers"]


@pytest.mark.parametrize("name", LEVERS)
def test_levers_are_added_one_at_a_time_to_the_papers_settings_and_tried_alone(name):
    rows = {variant.label: variant.settings for variant in EXPERIMENTS[name].variants}
    added = [label for label in rows if label.startswith("+ ")]
    assert added[:5] == ["+ floor", "+ momentum", "+ rate", "+ warm-up", "+ lamp"]
    paper = {"learning_rate": 0.01, "lr_shape": "drop", "share": "uniform", "row_floor": 0, "mask_momentum": False}
    assert rows["paper"] == {"method": "cyclical", **paper}
    before, changed = rows["paper"], {}
    for label in added:
        changed[label[2:]] = {key: value for key, value in rows[label].items() if before.get(key) != value}
        before = rows[label]
    assert all(changed.values())
    assert sum(map(len, changed.values())) == len({key for own in changed.values() for key in own})  # none undoes one
    assert changed["tail"] == {"tail": 0.2}
    for label in added[1:]:
        assert rows[f"only {label[2:]}"] == rows["paper"] | changed[label[2:]]
    assert rows["all, gradual"] == {
        **{key: value for key, value in before.items() if key != "tail"}, "method": "gradual"
    }  # fmt: skip
    assert rows["all, erk"] == before | {"share": "erk"}


@pytest.mark.parametrize(("name", "rate"), [("digits-levers", 0.024206), ("cifar10-resnet20-levers", 0.05)])
def test_a_row_of_the_levers_is_what_users_get(name, rate):
    """0.05 for 256 images; digits have 60, and 0.05 * (60 / 256) ** 0.5 = 0.024206."""
    [row] = [variant.settings for variant in EXPERIMENTS[name].variants if variant.label == "recipe"]
    got = recommended(Facts({}, images=50_000, side=32, batch_norm=True))
    expected = {key: value for key, (value, _) in got.items() if key in row} | {"learning_rate": rate}
    assert row == expected | {"row_floor": 1, "mask_momentum": True}  # the last two are on by themselves
    assert set(got) - set(row) == {"optim", "weight_decay", "pruning_epochs"}


def test_no_two_rows_of_the_levers_are_the_same():
    for name in LEVERS:
        rows = [{**variant.settings} for variant in EXPERIMENTS[name].variants]
        assert all(row not in rows[:i] for i, row in enumerate(rows))


def test_short_runs_of_the_levers_choose_masks_as_often_as_long_ones():
    full, tenth = intervals("cifar10-resnet20-levers"), intervals("cifar10-resnet20-levers", scale=0.1)
    assert (full["+ lamp"], tenth["+ lamp"], tenth["all, gradual"]) == (100, 10, 10)
    assert tenth["recipe"] == tenth["all, delta_t"] == "auto"


@pytest.mark.parametrize("name", [name for name, experiment in EXPERIMENTS.items() if experiment.updates])
def test_short_runs_have_no_setting_that_their_method_has_not(name):
    comparison = Comparison(setting(name, scale=0.1), Path("out"), (), {}, trains_dense=False)
    for variant in EXPERIMENTS[name].variants:
        names = comparison.settings(Cell(variant.label, 0.98, 1), "model")
        assert applies(variant.settings["method"], "delta_t") or "delta_t" not in names


@pytest.mark.parametrize("name", LEVERS)
def test_levers_are_chosen_on_images_that_are_held_out_of_the_training_images(name):
    experiment, choice = EXPERIMENTS[name], EXPERIMENTS[f"{name}-choice"]
    assert choice.dense == experiment.dense | {"holdout": 0.2}  # else the dense model would have seen them
    assert [(v.label, v.settings) for v in choice.variants] == [
        (v.label, v.settings | {"holdout": 0.2}) for v in experiment.variants
    ]
