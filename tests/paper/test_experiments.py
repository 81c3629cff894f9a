"""The paper's tables by name."""

import dataclasses

import pytest
from support.experiments import report, setting

from hf_cyclical.cli import parse_arguments
from hf_cyclical.paper import EXPERIMENTS, Cell, epochs_of, load_results, save_results, table
from hf_cyclical.paper.published import ACCURACY, ACCURACY_BY_CYCLE, MASK_DISTANCE


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_variant_is_a_run_that_the_arguments_accept(name):
    experiment = EXPERIMENTS[name]
    for variant in experiment.variants:
        words = ["--preset", experiment.preset, "--target_sparsity", str(experiment.sparsities[0])]
        if "allr" in variant.settings:  # needs trained weights, as compare names them
            words += ["--model_name_or_path", "trained"]
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


def test_published_results_are_small_and_have_the_mean_density_though_not_the_choices_of_masks(tmp_path):
    one = dataclasses.replace(report([0.8]), masks=[[i, 0.01 * i, 0.0] for i in range(91)])
    one = dataclasses.replace(one, cycles=[dataclasses.replace(one.cycles[0], layers=one.layers)])
    kept = [1, *(1 - 0.01 * min(i, 90) for i in range(99))]  # before each update
    assert one.mean_density == pytest.approx(sum(kept) / 100)
    made = setting("digits-rivals")
    save_results(tmp_path / "results.json", made, {Cell("gradual", 0.9, 1): one})
    [read] = load_results(tmp_path / "results.json")[1].values()
    assert len(read.masks) == 1
    assert (read.layers, read.cycles[0].layers) == (one.layers, ())  # those of the end are enough
    assert read.mean_density == one.mean_density
