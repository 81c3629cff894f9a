"""How tests read a card."""

import re

import yaml
from huggingface_hub import ModelCard
from support.local_hub.cards import card_errors, card_warnings

HASH = "ab" * 32  # stands for that of any masks


def front(card):
    return yaml.safe_load(card.split("---\n")[1])


def sections(card):
    return re.findall(r"^## (.*)$", card, re.MULTILINE)


def rows(card, section):
    """The cells of the tables of a section, without the lines below the heads."""
    text = card.split(f"## {section}\n")[1].split("\n## ")[0]
    table = [line for line in text.splitlines() if line.startswith("|") and not re.fullmatch("[-:| ]+", line)]
    return [[c.strip() for c in re.split(r"(?<!\\)\|", line)[1:-1]] for line in table]


def assert_whole(card):
    """Valid for the Hub and for huggingface_hub, and without any gap."""
    assert card_errors(card) == card_warnings(card) == []
    parsed = ModelCard(card, ignore_metadata_errors=False)
    assert parsed.content == card
    assert yaml.safe_load(parsed.data.to_yaml()) == front(card)
    assert not re.search(r"(?i:more information needed|undefined)|\bNone\b|\{\{|\{%", card)
    assert not re.search(r"\n\n\n|[ \t]\n", card)
    assert re.search(r"[^\n]\n\Z", card)
