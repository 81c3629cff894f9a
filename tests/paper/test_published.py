"""What the published tables say is what the files of results beside them give."""

import dataclasses
from pathlib import Path

import pytest

from hf_cyclical.config import PruningConfig, current_settings
from hf_cyclical.paper import load_results, table
from hf_cyclical.paper.rival_table import rival_rows

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "model_cards" / "results"
PUBLISHED = sorted(RESULTS.glob("*.json"))


def page():
    return " ".join((RESULTS / "README.md").read_text().split())


def test_there_are_results():
    assert PUBLISHED


@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.stem)
def test_every_table_is_on_the_page_of_results(path):
    caption, _, rows = table(*load_results(path)).partition("\n\n")
    assert " ".join(caption.split()) in page()
    assert " ".join(rows.split()) in page()


@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.stem)
def test_so_are_the_cycles_of_cyclical_pruning(path):
    _, _, rows = table(*load_results(path), by_cycle=True).partition("\n\n")
    starts = "| cyclical |", "| cyclical, ", "| cubic |"
    cyclical = [" ".join(row.split()) for row in rows.splitlines() if row.startswith(starts)]
    assert cyclical
    assert all(row in page() for row in cyclical)


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
