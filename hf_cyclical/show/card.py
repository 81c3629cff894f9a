"""The card of a model as HTML. Whoever wrote the card, it brings no markup, no script and no request to elsewhere."""

import base64
from html import escape
from pathlib import Path
from typing import Any

import yaml
from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token

from hf_cyclical.formats import leads_elsewhere
from hf_cyclical.reports import FIGURE_NAME

from .markup import note, text

CARD_NAME = "README.md"
_MOST_BYTES, _MOST_FIGURE_BYTES, _MOST_YAML = 1 << 20, 8 << 20, 1 << 16
_LINKS = ("https://", "http://", "#")
_FIELDS = ("pipeline_tag", "library_name", "license", "base_model", "datasets", "tags")
_PNG = b"\x89PNG\r\n\x1a\n"


def card_html(folder: Path) -> str:
    """The card in a folder as a page of the Hub shows it, or a sentence if there is none that can be shown."""
    file = folder / CARD_NAME
    if not file.is_file():
        return note("There is no card yet: it is written when the run has ended.")
    if leads_elsewhere(file) or file.stat().st_size > _MOST_BYTES:
        return note(f"{CARD_NAME} is a link to elsewhere, or has more than {_MOST_BYTES:,} bytes, and is not shown.")
    words = file.read_text(encoding="utf-8", errors="replace")
    head, body = _split(words)
    return f"<article class='card'>{_labels(head)}{_markdown(folder).render(body)}</article>"


def _split(words: str) -> tuple[str, str]:
    """The YAML at the top, and the rest."""
    lines = words.replace("\r\n", "\n").split("\n")
    if lines[0].strip() != "---" or "---" not in lines[1:]:
        return "", words
    end = lines.index("---", 1)
    return "\n".join(lines[1:end]), "\n".join(lines[end + 1 :])


def _labels(head: str) -> str:
    """What the Hub shows above a card."""
    try:
        fields = yaml.safe_load(head) if len(head) <= _MOST_YAML else None
    except (yaml.YAMLError, RecursionError, ValueError):
        fields = None
    if not isinstance(fields, dict):
        return ""
    values = [value for name in _FIELDS for value in _texts(fields.get(name))][:40]
    return f"<p class='labels'>{''.join(f'<span>{text(value, most=60)}</span>' for value in values)}</p>"


def _texts(value: Any) -> list[str]:
    return [each for each in (value if isinstance(value, list) else [value]) if isinstance(each, str)]


def _markdown(folder: Path) -> MarkdownIt:
    """CommonMark with tables. HTML is text, a link leads to the web or within the page, an image is the figure."""

    def image(self: RendererHTML, tokens: list[Token], i: int, options: Any, env: Any) -> str:
        words = escape(tokens[i].content)
        source = _figure(folder) if tokens[i].attrGet("src") == FIGURE_NAME else None
        return f"<img alt='{words}' src='{source}'>" if source else f"<em class='missing'>[{words}]</em>"

    def link_open(self: RendererHTML, tokens: list[Token], i: int, options: Any, env: Any) -> str:
        target = str(tokens[i].attrGet("href") or "")
        if not target.startswith(_LINKS):
            return "<a>"
        return f"<a href='{escape(target)}' rel='noopener noreferrer nofollow' target='_blank'>"

    reader = MarkdownIt("commonmark", {"html": False}).enable("table")
    reader.add_render_rule("image", image)
    reader.add_render_rule("link_open", link_open)
    return reader


def _figure(folder: Path) -> str | None:
    """The figure of the run, in the page itself: nothing is served from the folder."""
    file = folder / FIGURE_NAME
    if not file.is_file() or leads_elsewhere(file) or file.stat().st_size > _MOST_FIGURE_BYTES:
        return None
    data = file.read_bytes()
    return f"data:image/png;base64,{base64.b64encode(data).decode()}" if data.startswith(_PNG) else None
