"""The rivals beside the paper's methods: their settings, the choice of those that suit them, and their table."""

import dataclasses
import json
from pathlib import Path

import pytest
from support.experiments import intervals, report, setting

from hf_cyclical.paper import EXPERIMENTS, Cell, chosen, epochs_of, load_results, table
from hf_cyclical.paper.choice import wanted
from hf_cyclical.paper.rivals import AUTHORS, TUNED, in_pairs

RESULTS = Path(__file__).parents[2] / "model_cards" / "results"
RIVALS = ["digits-rivals", "cifar10-resnet20-rivals"]


@pytest.mark.parametrize("name", RIVALS)
def test_rivals_are_compared_at_the_papers_sparsities(name):
    experiment = EXPERIMENTS[name]
    ours, authors = ["one_shot", "gradual", "cyclical", "cyclical_lr"], ["rigl", "snfs", "dpf", "acdc", "granet"]
    labels = [variant.label for variant in experiment.variants]
    assert [label for label in labels if not label.endswith(", tuned")] == ours + authors
    for i, label in enumerate(labels):
        assert not label.endswith(", tuned") or labels[i - 1] == label.removesuffix(", tuned")
    assert experiment.sparsities == (0.9, 0.95, 0.98, 0.99)
    assert len({epochs_of(experiment, variant) for variant in experiment.variants}) == 1


@pytest.mark.parametrize("name", RIVALS)
def test_settings_are_chosen_on_images_that_are_held_out_of_the_training_images(name):
    experiment = EXPERIMENTS[f"{name}-choice"]
    assert {variant.settings["holdout"] for variant in experiment.variants} == {0.2}
    assert experiment.dense["holdout"] == 0.2  # else the dense model would have seen them
    assert not any("holdout" in variant.settings for variant in EXPERIMENTS[name].variants)
    assert {variant.settings["method"] for variant in experiment.variants} == {
        variant.settings["method"] for variant in EXPERIMENTS[name].variants
    }


def chosen_of(results):
    made = table(setting("digits-rivals-choice", model="cifar_resnet8", dataset="digits"), results)
    *_, missing, _, best = made.splitlines()
    missing = missing.removeprefix("Not all is tried yet of ").removesuffix(".")
    return json.loads(best.removeprefix("Best on the images held out: ")), missing


def test_a_choice_ends_with_the_best_settings_of_each_method_that_was_searched():
    rates = {0.02: 0.5, 0.05: 0.6, 0.1: 0.84, 0.2: 0.7}
    results = {Cell(f"rigl, lr {rate:g}, erk", 0.98, 1): report([a], s=0.98) for rate, a in rates.items()}
    results |= {
        Cell("rigl, lr 0.1, uniform", 0.98, 1): report([0.9], s=0.98),
        Cell("rigl, lr 0.1, global", 0.98, 1): report([0.86], s=0.98),
        Cell("dpf, lr 0.2, global", 0.98, 1): report([0.7], s=0.98),
    }
    assert chosen_of(results) == ({"rigl": {"learning_rate": 0.1, "share": "uniform"}}, "dpf")
    second = {dataclasses.replace(cell, seed=2): report([0.8], s=0.98) for cell in results if "rigl" in cell.label}
    second[Cell("rigl, lr 0.1, global", 0.98, 2)] = report([0.9], s=0.98)  # 0.88 in the mean, and uniform 0.85
    assert chosen_of(results | second)[0] == {"rigl": {"learning_rate": 0.1, "share": "global"}}
    del second[Cell("rigl, lr 0.1, uniform", 0.98, 2)]  # another command is at it: one seed does not count beside two
    assert chosen_of(results | second) == ({}, "rigl, dpf")


@pytest.mark.parametrize(("best", "further"), [(0.05, []), (0.02, [0.01]), (0.2, [0.4])])
def test_further_rates_are_tried_where_the_best_is_the_lowest_or_the_highest(best, further):
    def results(rates):
        return {Cell(f"snfs, lr {r:g}, uniform", 0.98, 1): report([0.9 - abs(r - best)], s=0.98) for r in rates}

    first = [0.02, 0.05, 0.1, 0.2]
    cells = [Cell(v.label, 0.98, 1) for v in EXPERIMENTS["digits-rivals-choice"].variants if v.label[:4] == "snfs"]
    assert {cell.label for cell in wanted(cells, {})} == {cell.label for cell in results(first)}
    next_ones = [cell.label for cell in wanted(cells, results(first))]
    shares = [f"snfs, lr {best:g}, {share}" for share in ("erk", "global")]
    assert next_ones == ([f"snfs, lr {rate:g}, uniform" for rate in further] or shares)
    assert [cell.label for cell in wanted(cells, results(first + further))] == shares


@pytest.mark.parametrize("name", TUNED)
def test_the_second_rows_are_what_the_choice_has_found(name):
    settings = {variant.label: variant.settings for variant in EXPERIMENTS[name].variants}
    assert set(TUNED[name]) == {variant.settings["method"] for variant in EXPERIMENTS[name].variants}
    setting, results = load_results(RESULTS / "choices" / f"{name}.json")
    assert setting.experiment == f"{name}-choice"
    for method, found in chosen(results).items():
        assert settings[f"{method}, tuned"].items() >= {"method": method, **found}.items()
        assert "holdout" not in settings[f"{method}, tuned"]


@pytest.mark.parametrize("name", RIVALS)
def test_no_rival_ends_at_a_higher_rate_than_the_others(name):
    """The paper's own rows keep the paper's shape of the learning rate, and nothing else does."""
    for experiment in (name, f"{name}-choice"):
        for variant in EXPERIMENTS[experiment].variants:
            own = variant.label in ("one_shot", "gradual", "cyclical", "cyclical_lr")
            assert ("lr_shape" in variant.settings) != own
            assert own or variant.settings["lr_shape"] == "cosine"


def test_short_runs_choose_masks_as_often_where_the_interval_is_no_rule_of_the_authors():
    """CIFAR: 19,600 updates, of which GraNet's 72 choices are every 272nd; digits: 10,005."""
    fixed = {"rigl": 100, "snfs": 196, "dpf": 16}  # SNFS: an epoch, and at least a hundredth of the run
    full = intervals("cifar10-resnet20-rivals")
    assert {label: full[label] for label in (*fixed, "cyclical", "granet")} == fixed | {"cyclical": 100, "granet": 272}
    fifth = {"gradual": 20, "cyclical": 20, "cyclical_lr": 20, "granet": 54}
    for budget in ({"scale": 0.2}, {"updates": 3920}):
        found = intervals("cifar10-resnet20-rivals", **budget)
        assert {label: found[label] for label in fixed | fifth} == fixed | fifth
    assert {name: intervals("digits-rivals")[name] for name in ("granet", "snfs")} == {"granet": 139, "snfs": 100}
    assert intervals("digits-rivals", updates=6)["granet"] == 1
    assert intervals("digits-rivals", scale=0.1)["snfs"] == 10
    tried = intervals("cifar10-resnet20-rivals-choice", scale=0.2)
    assert {tried[f"{method}, lr 0.1, uniform"] for method in fifth} == {20, 54}
    assert tried["rigl, lr 0.1, uniform"] == 100


def test_the_authors_rates_are_for_their_batches():
    """RigL: 0.1 for 128 images; SNFS and GraNet: 0.1 for 100; DPF: 0.2 for 128; AC/DC: 0.1 for 128."""
    rates = {
        name: {v.label: v.settings["learning_rate"] for v in EXPERIMENTS[name].variants if v.label in AUTHORS}
        for name in RIVALS
    }
    by_hand = {"rigl": 0.0469, "snfs": 0.06, "dpf": 0.0938, "acdc": 0.0469, "granet": 0.06}  # 60 images
    assert rates["digits-rivals"] == by_hand
    by_hand = {"rigl": 0.2, "snfs": 0.256, "dpf": 0.4, "acdc": 0.2, "granet": 0.256}  # 256 images
    assert rates["cifar10-resnet20-rivals"] == by_hand


def test_the_rows_of_a_method_follow_each_other():
    rows = in_pairs({"gradual": 1, "rigl": 2}, {"rigl, tuned": 4, "gradual, tuned": 3})
    assert list(rows.items()) == [("gradual", 1), ("gradual, tuned", 3), ("rigl", 2), ("rigl, tuned", 4)]
    assert list(in_pairs({"gradual": 1, "rigl": 2}, {"rigl, tuned": 4})) == ["gradual", "rigl", "rigl, tuned"]


def rivals_table(results):
    return table(setting("digits-rivals", model="cifar_resnet8", dataset="digits"), results).splitlines()


def test_a_table_of_rivals_has_their_cost_and_the_papers_table_4_as_printed():
    timed = {"seed": 1, "seconds per update": 0.3, "dense seconds per update": 0.2}
    one = dataclasses.replace(report([0.8]), masks=[[0, 0.9, 0.0]], about=timed)
    other = dataclasses.replace(report([0.7]), masks=[[0, 0.0, 0.0], [49, 0.9, 0.0]])
    sparser = dataclasses.replace(report([0.6]), masks=[[0, 0.95, 0.0]], about=timed | {"seconds per update": 0.2})
    lines = rivals_table({Cell("rigl", 0.9, 1): one, Cell("gradual", 0.9, 1): other, Cell("rigl", 0.95, 1): sparser})
    one_seed = "rigl (one seed, so that its spread is not known)."
    assert lines[2:4] == [f"First at 0.9: {one_seed}", f"First at 0.95: {one_seed}"]
    assert lines[5:9] == [
        "| method | 0.9 | 0.95 | mean density (%) | time per update |",
        "| --- | --- | --- | --- | --- |",
        "| gradual | 70.00 |  | 55.0 / - |  |",
        "| rigl | 80.00 | 60.00 | 10.9 / 6.0 | 1.25 |",
    ]
    assert "| SNFS (100 epochs) | 72.4 % | 75.95 | 74.59 | -1.36 |" in lines
    assert "| RigL (500 epochs) | 80.0 % | 76.80 | 76.60 | -0.2 |" in lines


def test_who_is_first_and_who_is_as_good_stands_above_the_table():
    accuracies = {"cyclical": (0.92, 0.94), "rigl": (0.93, 0.95), "dpf": (0.90, 0.94), "acdc": (0.96, 0.60)}
    cells = {Cell(label, 0.9, seed): a for label, pair in accuracies.items() for seed, a in enumerate(pair)}
    results = {cell: report([a], seed=cell.seed) for cell, a in cells.items()}
    # Means 93, 94, 92 and 78; the first's deviation is 1.41, whatever the others' are.
    assert rivals_table(results)[2] == "First at 0.9: rigl; within its spread: cyclical."
    lost = Cell("rigl", 0.9, 1)
    diverged = dataclasses.replace(results[lost], cycles=(), evaluations=(), about={"diverged": "w", "seed": 1})
    line = "First at 0.9: cyclical; within its spread: dpf. Not ranked, with fewer seeds: rigl."
    assert rivals_table(results | {lost: diverged})[2] == line
