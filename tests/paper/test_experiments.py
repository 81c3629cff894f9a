"""The paper's tables by name."""

import dataclasses
import json
from pathlib import Path

import pytest

from hf_cyclical.cli import parse_arguments
from hf_cyclical.paper import EXPERIMENTS, Cell, Setting, chosen, epochs_of, load_results, save_results, table
from hf_cyclical.paper.published import ACCURACY, ACCURACY_BY_CYCLE, MASK_DISTANCE
from hf_cyclical.paper.rivals import AUTHORS, TUNED, in_pairs
from hf_cyclical.reports import CycleReport, LayerReport, PruningReport

RESULTS = Path(__file__).parents[2] / "model_cards" / "results"


def report(accuracies, distances=None, seed=1, s=0.9):
    cycles = [
        CycleReport(i, 100 * i, 10.0 * i, s, 0.1, 5, d, 0.01, True, {"accuracy": a})
        for i, (a, d) in enumerate(zip(accuracies, distances or [0.0] * len(accuracies), strict=True), start=1)
    ]
    evaluations = [{"update": c.update, **c.metrics} for c in cycles]
    layers = [LayerReport("conv", [10, 10], 100, round(100 * (1 - s)), 1)]
    return PruningReport(
        {"method": "cyclical"}, cycles[-1].update, 0, 120, cycles=cycles, evaluations=evaluations, layers=layers,
        dense={"accuracy": 0.92}, about={"seed": seed},
    )  # fmt: skip


def setting(name, **more):
    return Setting(
        name, **{"scale": 1.0, "model": "cifar_resnet20", "dataset": "uoft-cs/cifar10", "arguments": []} | more
    )


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_variant_is_a_run_that_the_arguments_accept(name):
    experiment = EXPERIMENTS[name]
    for variant in experiment.variants:
        words = ["--preset", experiment.preset, "--target_sparsity", str(experiment.sparsities[0])]
        for setting_name, value in variant.settings.items():
            words += [f"--{setting_name}", str(value)]
        args = parse_arguments(words, description="")
        assert args.pruning.method == variant.settings["method"]
        assert args.training.num_train_epochs == epochs_of(experiment, variant) + args.pruning.dense_epochs


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_papers_numbers_fit_the_experiment(name):
    experiment = EXPERIMENTS[name]
    labels = {variant.label for variant in experiment.variants}
    if name in ACCURACY:
        assert set(ACCURACY[name]) == labels
        assert {len(row) for row in ACCURACY[name].values()} == {len(experiment.sparsities)}
    for tables in (ACCURACY_BY_CYCLE, MASK_DISTANCE):
        if name in tables:
            assert experiment.by_cycle
            assert set(tables[name]) == labels
            assert {len(row) for row in tables[name].values()} == {5}
    ours = experiment.rivals or experiment.chooses or experiment.levers
    assert name.startswith("digits") or name in ACCURACY or name in ACCURACY_BY_CYCLE or ours


def test_a_table_has_mean_deviation_and_the_papers_row():
    results = {
        Cell("gradual", 0.98, 1): report([0.80], s=0.98),
        Cell("gradual", 0.98, 2): report([0.82], s=0.98),
        Cell("cyclical", 0.98, 1): report([0.5, 0.86], s=0.98),
    }
    text = table(setting("cifar10-resnet20", scale=0.2), results)
    assert text.splitlines() == [
        "Accuracy (%) of cifar_resnet20 on cifar10, mean ± standard deviation of 2 seeds; experiment cifar10-resnet20, "
        "10 / 20 epochs (0.2 of the experiment's); dense 92.00 %.",
        "",
        "| sparsity | gradual | cyclical |",
        "| --- | --- | --- |",
        "| 0.98 | 81.00 ± 1.41 | 86.00 (1) |",
        "| 0.98, paper | 83.44 ± 0.1 | 85.79 ± 0.1 |",
    ]


def test_the_caption_tells_what_else_was_asked_for():
    made = setting("cifar10-resnet20", arguments=["--delta_t", "5"], processes=8)
    assert "dense 92.00 %, with --delta_t 5, on 8 processes." in table(made, {Cell("gradual", 0.9, 1): report([0.8])})


def test_a_sparsity_that_the_paper_lacks_has_no_row_of_it():
    text = table(setting("cifar10-resnet20"), {Cell("gradual", 0.5, 1): report([0.8])})
    assert "paper |" not in text


def test_an_ablation_has_accuracy_and_masks_by_cycle_beside_the_papers():
    results = {Cell("step", 0.99, 1): report([0.4, 0.5], [0.0, 0.25], s=0.99)}
    text = table(setting("cifar10-resnet20-schedules"), results)
    assert text.splitlines()[2:] == [
        "|  |  | cycle 1 | cycle 2 |",
        "| --- | --- | --- | --- |",
        "| step | accuracy | 40.00 | 50.00 |",
        "| step, paper | accuracy | 39.88 ± 0.5 | 47.47 ± 0.4 |",
        "| step | mask distance | 0.00 | 0.25 |",
        "| step, paper | mask distance | 0 | 0.46 |",
        "| step | regrown (%) | 10.00 | 10.00 |",
    ]


def test_a_table_of_many_variants_has_a_row_for_each():
    labels = [variant.label for variant in EXPERIMENTS["digits-scope"].variants]
    results = {Cell(label, 0.95, 1): report([0.9]) for label in labels}
    text = table(setting("digits-scope", model="cifar_resnet8", dataset="digits"), results)
    assert text.splitlines()[2:5] == ["| sparsity | 0.95 |", "| --- | --- |", "| one_shot, local | 90.00 |"]
    assert len(text.splitlines()) == 4 + len(labels)


def test_an_ablation_at_another_sparsity_has_no_row_of_the_paper():
    text = table(setting("cifar10-resnet20-schedules"), {Cell("step", 0.5, 1): report([0.4, 0.5], s=0.5)})
    assert "paper |" not in text


def test_without_results_there_is_no_table():
    assert table(setting("digits"), {}) == "No cell is finished yet."


def test_stages_on_the_way_to_the_target_are_no_cycles():
    stages = report([0.9, 0.8])
    first = dataclasses.replace(stages.cycles[0], at_target=False)  # as iterative pruning has them
    stages = dataclasses.replace(stages, cycles=(first, *stages.cycles[1:]))
    results = {Cell("gradual", 0.9, 1): report([0.8]), Cell("iterative", 0.9, 1): stages}
    none = "No finished cell has more than one cycle to the target."
    assert table(setting("digits"), results, by_cycle=True) == none
    both = table(setting("digits"), {**results, Cell("cyclical", 0.9, 1): report([0.7, 0.8])}, by_cycle=True)
    assert "| cyclical | accuracy | 70.00 | 80.00 |" in both
    assert "iterative" not in both


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


def test_a_choice_ends_with_the_best_settings_of_each_method_that_was_searched():
    rates = {0.02: 0.5, 0.05: 0.6, 0.1: 0.84, 0.2: 0.7}
    results = {Cell(f"rigl, lr {rate:g}, erk", 0.98, 1): report([a], s=0.98) for rate, a in rates.items()}
    results |= {
        Cell("rigl, lr 0.1, uniform", 0.98, 1): report([0.9], s=0.98),
        Cell("rigl, lr 0.1, global", 0.98, 1): report([0.86], s=0.98),
        Cell("rigl, lr 0.1, global", 0.95, 1): report([0.99], s=0.95),  # 0.925 in the mean
        Cell("dpf, lr 0.2, global", 0.98, 1): report([0.7], s=0.98),
    }
    made = table(setting("digits-rivals-choice", model="cifar_resnet8", dataset="digits"), results)
    *_, missing, _, best = made.splitlines()
    assert missing == "Not all is tried yet of dpf."
    assert json.loads(best.removeprefix("Best on the images held out: ")) == {
        "rigl": {"learning_rate": 0.1, "share": "global"}
    }


@pytest.mark.parametrize("name", TUNED)
def test_the_second_rows_are_what_the_choice_has_found(name):
    settings = {variant.label: variant.settings for variant in EXPERIMENTS[name].variants}
    assert set(TUNED[name]) == {variant.settings["method"] for variant in EXPERIMENTS[name].variants}
    setting, results = load_results(RESULTS / f"{name}-choice.json")
    assert setting.experiment == f"{name}-choice"
    for method, found in chosen(results).items():
        assert settings[f"{method}, tuned"].items() >= {"method": method, **found}.items()
        assert "holdout" not in settings[f"{method}, tuned"]


def test_the_authors_rates_are_for_their_batches():
    """RigL: 0.1 for 128 images; SNFS and GraNet: 0.1 for 100; DPF: 0.2 for 128; AC/DC: 0.256 for 256."""
    rates = {
        name: {v.label: v.settings["learning_rate"] for v in EXPERIMENTS[name].variants if v.label in AUTHORS}
        for name in RIVALS
    }
    by_hand = {"rigl": 0.0469, "snfs": 0.06, "dpf": 0.0938, "acdc": 0.06, "granet": 0.06}  # 60 images
    assert rates["digits-rivals"] == by_hand
    by_hand = {"rigl": 0.2, "snfs": 0.256, "dpf": 0.4, "acdc": 0.256, "granet": 0.256}  # 256 images
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
    assert lines[2:4] == ["First at 0.9: rigl.", "First at 0.95: rigl."]
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


def test_published_results_have_the_mean_density_though_not_the_choices_of_masks(tmp_path):
    one = dataclasses.replace(report([0.8]), masks=[[i, 0.01 * i, 0.0] for i in range(91)])
    kept = [1, *(1 - 0.01 * min(i, 90) for i in range(99))]  # before each update
    assert one.mean_density == pytest.approx(sum(kept) / 100)
    made = setting("digits-rivals")
    save_results(tmp_path / "results.json", made, {Cell("gradual", 0.9, 1): one})
    [read] = load_results(tmp_path / "results.json")[1].values()
    assert len(read.masks) == 1
    assert read.mean_density == one.mean_density


LEVERS = ["digits-levers", "cifar10-resnet20-levers"]


@pytest.mark.parametrize("name", LEVERS)
def test_levers_are_added_one_at_a_time_to_the_papers_settings_and_tried_alone(name):
    rows = {variant.label: variant.settings for variant in EXPERIMENTS[name].variants}
    added = [label for label in rows if label.startswith("+ ")]
    assert added[:5] == ["+ floor", "+ rate", "+ warm-up", "+ lamp", "+ tail"]
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
        **{key: value for key, value in before.items() if key not in ("tail", "cycles")}, "method": "gradual"
    }  # fmt: skip
    assert rows["all, erk"] == before | {"share": "erk"}


@pytest.mark.parametrize("name", LEVERS)
def test_levers_are_chosen_on_images_that_are_held_out_of_the_training_images(name):
    experiment, choice = EXPERIMENTS[name], EXPERIMENTS[f"{name}-choice"]
    assert choice.dense == experiment.dense | {"holdout": 0.2}  # else the dense model would have seen them
    assert [(v.label, v.settings) for v in choice.variants] == [
        (v.label, v.settings | {"holdout": 0.2}) for v in experiment.variants
    ]
