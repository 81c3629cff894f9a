"""What the published tables say is what the files of results beside them give."""

import dataclasses
import re
from pathlib import Path
from statistics import mean, stdev

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import default_collate

from hf_cyclical.config import PruningConfig, current_settings
from hf_cyclical.data import DataArguments, load_image_data
from hf_cyclical.models import load_image_model
from hf_cyclical.paper import load_results, table
from hf_cyclical.paper.rival_table import rival_rows
from hf_cyclical.paper.rivals import TUNED
from hf_cyclical.reports import load_report

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "model_cards" / "results"
RIVALS = ("granet", "cyclical", "rigl")
PUBLISHED = sorted(RESULTS.glob("*.json"))


def page():
    return " ".join((RESULTS / "README.md").read_text().split())


def test_there_are_results():
    assert PUBLISHED


@pytest.mark.parametrize("path", [*PUBLISHED, RESULTS / "choices" / "digits-levers.json"], ids=lambda path: path.stem)
def test_every_table_is_on_the_page_of_results(path):
    caption, _, rows = table(*load_results(path)).partition("\n\n")
    assert " ".join(caption.split()) in page()
    assert " ".join(rows.split()) in page()


@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.stem)
def test_so_are_the_cycles_of_cyclical_pruning(path):
    _, _, rows = table(*load_results(path), by_cycle=True).partition("\n\n")
    starts = ("| cyclical |", "| cyclical, ", "| cubic |", "| s_init ", "| recipe |")
    shown = [" ".join(row.split()) for row in rows.splitlines() if row.startswith(starts)]
    if path.stem == "digits":
        control = [" ".join(row.split()) for row in rows.splitlines() if row.startswith("| cyclical_lr, ")]
        shown += [row for row in control if "| accuracy |" in row]  # its masks do not move
    assert shown
    assert all(row in page() for row in shown)


DENSE = RESULTS / "digits-dense"
FROM_DENSE = sorted(RESULTS.glob("digits*.json"))


def test_there_are_tables_of_the_digits():
    assert RESULTS / "digits.json" in FROM_DENSE


@pytest.mark.parametrize("path", FROM_DENSE, ids=lambda path: path.stem)
def test_the_published_dense_model_is_that_of_its_tables(path):
    data = load_image_data(DataArguments("digits"))
    loaded = load_image_model(str(DENSE), data.labels, image_size=data.image_size)
    _, images = data.for_model(loaded, seed=0)
    batch = default_collate([images[i] for i in range(len(images))])
    labels = batch.pop("labels")
    with torch.no_grad():
        logits = loaded.model.eval()(**batch)["logits"]
    for cell, report in load_results(path)[1].items():
        assert report.dense["accuracy"] == pytest.approx(float((logits.argmax(1) == labels).float().mean())), cell
        assert report.dense["loss"] == pytest.approx(float(cross_entropy(logits, labels)), rel=1e-3), cell


def density_of(report):
    """Weights in each pass, summed update by update: the choices of masks themselves are not published."""
    recipe = PruningConfig(**current_settings(report.config)).recipe(report.updates, report.cycles[-1].epoch)
    kept, total = 1.0, 0.0
    for t in range(recipe.T):
        total += kept if t and recipe.project_at(t - 1) else 1.0
        kept = 1 - recipe.s(t) if recipe.update_at(t) else kept
    return total / recipe.T


@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.stem)
def test_the_published_mean_density_is_that_of_the_schedule(path):
    for cell, report in load_results(path)[1].items():
        assert report.mean_density == pytest.approx(density_of(report), abs=2e-3), cell


def test_what_diverged_is_in_no_column():
    _, results = load_results(RESULTS / "digits.json")
    rows = rival_rows(["gradual"], results)
    cell = next(cell for cell in results if cell.label == "gradual")
    broken = dataclasses.replace(results[cell], about={**results[cell].about, "diverged": "w", "mean_density": 1.0})
    [_, again] = rival_rows(["gradual"], results | {cell: broken})
    assert again[-2:] == rows[1][-2:]
    assert "(4)" in " ".join(again)


def test_the_first_page_has_the_numbers_of_the_table_of_methods():
    *_, rows = table(*load_results(RESULTS / "digits.json")).split("\n\n")
    numbers = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows.splitlines()]
    lines = [line.replace("*", "") for line in (ROOT / "README.md").read_text().splitlines()]
    shown = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| 9")][:3]
    assert [row[0] for row in shown] == [f"{100 * float(row[0]):.0f} %" for row in numbers[2:]]
    assert [row[1:] for row in shown] == [row[1:] for row in numbers[2:]]


def test_the_first_page_has_what_the_main_job_gives_over_five_seeds():
    shown = " ".join((ROOT / "README.md").read_text().split())
    ends = {}
    for method in ("cyclical", "gradual", "cyclical_lr"):
        reports = [load_report(RESULTS / "main-job" / f"{method}-seed{seed}.json") for seed in range(1, 6)]
        assert [report.config["method"] for report in reports] == [method] * 5
        assert [report.about["seed"] for report in reports] == [1, 2, 3, 4, 5]
        ends[method] = [[100 * cycle.metrics["accuracy"] for cycle in report.cycles] for report in reports]
    dense = [100 * report.dense["accuracy"] for report in reports]
    assert f"the dense models have {mean(dense):.2f} ± {stdev(dense):.2f} %" in shown
    cycles = [f"{mean(values):.2f}" for values in zip(*ends["cyclical"], strict=True)]
    last = stdev(values[-1] for values in ends["cyclical"])
    assert f"the cycles end at {', '.join(cycles[:-1])} and {cycles[-1]} ± {last:.2f} %" in shown
    for method in ("gradual", "cyclical_lr"):
        values = [each[-1] for each in ends[method]]
        assert re.search(rf"`--method {method}`[a-z ]* at {mean(values):.2f} ± {stdev(values):.2f} %", shown)


@pytest.mark.parametrize("method", ["cyclical", "cyclical_lr", "gradual"])
def test_the_page_has_each_cycle_of_the_main_job(method):
    reports = [load_report(RESULTS / "main-job" / f"{method}-seed{seed}.json") for seed in range(1, 6)]
    columns = zip(*([100 * c.metrics["accuracy"] for c in report.cycles] for report in reports), strict=True)
    assert f"| {method} | {' | '.join(f'{mean(v):.2f} ± {stdev(v):.2f}' for v in columns)} |" in page()


def test_the_page_has_the_settings_that_were_chosen_for_the_second_rows():
    chosen = TUNED["digits-rivals"]
    assert f"| | {' | '.join(chosen)} |" in page()
    for name, label in (("learning_rate", "rate"), ("share", "share")):
        assert f"| {label} | {' | '.join(str(row[name]) for row in chosen.values())} |" in page()


def test_the_first_page_has_the_main_job_with_its_first_seed():
    report = load_report(RESULTS / "main-job" / "cyclical-seed1.json")
    *cycles, last = (f"{100 * cycle.metrics['accuracy']:.2f}" for cycle in report.cycles)
    shown = f"{100 * report.dense['accuracy']:.2f} % and the cycles end at {', '.join(cycles)} and {last} %"
    assert shown in " ".join((ROOT / "README.md").read_text().split())


def test_runs_that_are_of_no_table_are_on_the_page():
    """With the recipe's settings or near them, whose reports are of cards, and with first and last layer dense."""
    for name, label in (("-95", "the recipe, 0.95"), ("-pruned98", "twice its rate, 0.98")):
        report = load_report(RESULTS.parent / f"cifar_resnet20-cifar10{name}")
        first, last = (f"{100 * cycle.metrics['accuracy']:.2f}" for cycle in report.cycles)
        assert f"| {label}, accuracy | 30 | {first} | **{last}** |" in page()
        assert f"| {label}, mask distance | 30 | 0.00 | {report.cycles[1].mask_distance:.2f} |" in page()
    [cycle] = load_report(RESULTS / "first-last-dense").cycles
    assert f"ends at {100 * cycle.metrics['accuracy']:.2f} %" in page()


def test_and_the_numbers_of_the_rivals_and_of_cifar():
    shown = " ".join((ROOT / "README.md").read_text().split())

    def ends(path, label, s):
        results = load_results(RESULTS / path)[1]
        return [
            100 * r.cycles[-1].metrics["accuracy"] for c, r in results.items() if (c.label, c.sparsity) == (label, s)
        ]

    pairs = {name: [f"{mean(ends('digits-rivals.json', name, s)):.2f}" for s in (0.98, 0.99)] for name in RIVALS}
    assert f"`granet` has {' and '.join(pairs['granet'])} %" in shown
    assert f"`cyclical` {' and '.join(pairs['cyclical'])}, `rigl` {' and '.join(pairs['rigl'])};" in shown
    for name in ("cyclical", "rigl", "granet", "gradual"):
        values = ends("digits-rivals.json", f"{name}, tuned", 0.99)
        assert f"`{name}` {mean(values):.2f} ± {stdev(values):.2f}" in shown
    paths = ("cifar10-resnet20.json", "cifar10-resnet20-as-printed.json")
    (gradual, cyclical), printed = ([ends(path, name, 0.98)[0] for name in ("gradual", "cyclical")] for path in paths)
    assert f"`gradual` {gradual:.1f}, `cyclical` {cyclical:.1f} % (paper: 83.4 and 85.8 %;" in shown
    assert f"as printed, see below: {printed[0]:.1f} and {printed[1]:.1f} %" in shown
