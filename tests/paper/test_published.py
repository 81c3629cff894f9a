"""What the README says of results is what the files of results give."""

from pathlib import Path

import pytest

from hf_cyclical.paper import load_results, table

ROOT = Path(__file__).parents[2]
PUBLISHED = sorted((ROOT / "model_cards" / "results").glob("*.json"))


def test_there_are_results():
    assert PUBLISHED


@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.stem)
def test_every_published_table_is_in_the_readme(path):
    readme = " ".join((ROOT / "README.md").read_text().split())
    caption, _, rows = table(*load_results(path)).partition("\n\n")
    assert " ".join(caption.split()) in readme
    assert " ".join(rows.split()) in readme


def test_the_cycles_of_cifar_are_in_the_readme():
    readme = " ".join((ROOT / "README.md").read_text().split())
    results = load_results(ROOT / "model_cards" / "results" / "cifar10-resnet20.json")
    assert " ".join(table(*results, by_cycle=True).split()) in readme
