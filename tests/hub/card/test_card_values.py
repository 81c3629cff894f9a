"""Cards of hostile values, and those of real runs."""

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from huggingface_hub import ModelCard
from support.card_reading import HASH, assert_whole, front, rows, sections
from support.made_reports import with_metric

from hf_cyclical import PruningError, load_report
from hf_cyclical.formats import read_metadata
from hf_cyclical.hub import render_card
from hf_cyclical.hub.markdown import block, cell, code, percent, size, word

MODEL_CARDS = Path(__file__).parents[3] / "model_cards"
HOSTILE = "a`b``c|d\\|e\n# Owned\n---\n<script>alert(1)</script> [x](http://evil) *b* {{ 7 * 7 }} \u202e: 'q' \"r\" -"


# Hostile values ------------------------------------------------------------------------------------------------------


def test_hostile_names_stay_text(report, metadata):
    plain = render_card(report, metadata, license="mit")
    about = {"model": HOSTILE, "dataset": HOSTILE, "command": shlex.join(["run", HOSTILE]), "seed": HOSTILE}
    about = {**report.about, **about, "versions": {HOSTILE: HOSTILE}}
    report = replace(report, about=about, config={**report.config, "exclude": [HOSTILE]})
    metadata["tensors"][0]["name"] = HOSTILE
    metadata["mask_sha256"] = metadata["base_model"]["revision"] = HOSTILE
    card = render_card(with_metric(report, f"{HOSTILE} accuracy"), metadata, license=HOSTILE)
    assert ModelCard(card).content == card
    assert front(card)["license"].startswith("a`b``c|d")
    assert sections(card) == sections(plain)
    body = card.split("\n---\n", 1)[1]
    assert len(re.findall("^# ", body, re.MULTILINE)) == 1
    assert "\u202e" not in body
    assert "49" not in body.replace(HASH, "")
    assert "<script>" not in without_code(body)
    assert "evil" not in without_code(body)
    for section in ("Dense against pruned", "How it went", "Layers"):
        assert [len(row) for row in rows(card, section)] == [len(row) for row in rows(plain, section)]


def without_code(text):
    """Markdown without its blocks and spans of code, as CommonMark finds them."""
    text = re.sub(r"^(`{3,})[^`\n]*\n.*?^\1$", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"(?<!`)(`+)(?!`)(.*?)(?<!`)\1(?!`)", "", text)


@pytest.mark.parametrize(
    ("text", "span"),
    [
        ("conv.weight", "`conv.weight`"),
        ("a`b", "``a`b``"),
        ("``a", "``` ``a ```"),
        ("a\n\tb\x00c", "`a b c`"),
        ("a|b", "`a|b`"),
        ("", ""),
    ],
)
def test_code(text, span):
    assert code(text) == span


def test_cells_words_blocks():
    assert cell("a|b") == cell("a\\|b") == cell("a\\\\|b") == r"`a\|b`"
    assert word("top5_accuracy") == "top5_accuracy"
    assert word("a*b") == "`a*b`"
    assert block("a ```` b\n```", "bash") == "`````bash\na ```` b ```\n`````"


def test_numbers():
    assert [percent(x) for x in (0.9, 0.12345, 0.999999, 1)] == ["90 %", "12.35 %", "99.99 %", "100 %"]
    assert percent(0.9, ".2f") == "90.00 %"
    assert [size(n) for n in (999, 306_744, 44_800_000, 10**9)] == ["999 bytes", "306.7 kB", "44.8 MB", "1.0 GB"]


@pytest.mark.parametrize("repo_id", ["name", "a/b/c", 'me/x")', "me/a--b", "me/x\n", ""])
def test_a_bad_repository_name_is_refused(report, metadata, repo_id):
    with pytest.raises(PruningError, match="repo_id"):
        render_card(report, metadata, repo_id=repo_id)


@pytest.mark.parametrize("config", [{}, {"method": "magic"}])
def test_another_method_is_refused(report, metadata, config):
    report = replace(report, config=config)
    with pytest.raises(PruningError, match="is unknown to cards: use one of cyclical, "):
        render_card(report, metadata)


def test_another_library_is_refused(report, metadata):
    with pytest.raises(PruningError, match="timm or transformers"):
        render_card(report, metadata, library="keras")


# model_cards/ --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", sorted(p.parent for p in MODEL_CARDS.glob("*/card.json")), ids=lambda p: p.name)
def test_the_cards_of_real_runs_come_from_their_reports(folder):
    report, metadata = load_report(folder), read_metadata((folder / "sparsity.json").read_bytes())
    card = render_card(report, metadata, **json.loads((folder / "card.json").read_text()))
    assert card.encode() == (folder / "README.md").read_bytes()
    assert_whole(card)
    assert metadata["achieved"]["prunable_zeros"] == report.pruned
    assert metadata["achieved"]["parameters"] == report.parameters
    assert (folder / "pruning_run.png").read_bytes().startswith(b"\x89PNG")
    for file in folder.iterdir():
        assert not re.search(rb"/(home|root|tmp|usr|work|Users)/", file.read_bytes()), file.name
