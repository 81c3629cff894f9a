"""The card as HTML: what it has, and what it cannot have, whoever wrote it."""

import base64
from html.parser import HTMLParser

import pytest

pytest.importorskip("markdown_it", reason='needs the extra: pip install "hf_cyclical[show]"')
from hf_cyclical.show.card import card_html

ALLOWED = {
    *("article", "p", "span", "a", "em", "strong", "code", "pre", "img", "ul", "ol", "li", "blockquote", "hr", "br"),
    *("h1", "h2", "h3", "table", "thead", "tbody", "tr", "th", "td"),
}
PNG = b"\x89PNG\r\n\x1a\n and so on"


class Reader(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.text = [], ""

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data


def read(tmp_path, card):
    (tmp_path / "README.md").write_text(card)
    reader = Reader()
    reader.feed(card_html(tmp_path))
    return reader


def test_headings_tables_labels_and_the_figure(tmp_path):
    (tmp_path / "pruning_run.png").write_bytes(PNG)
    found = read(
        tmp_path,
        "---\nlicense: mit\ntags:\n- sparse\n- '2:4'\n---\n# Name\n\n| a | b |\n| --- | ---: |\n| 1 | 2 |\n\n"
        "![The run](pruning_run.png) [paper](https://arxiv.org/abs/2202.01290)",
    )
    tags = [tag for tag, _ in found.tags]
    assert ("h1" in tags, tags.count("td"), tags.count("span")) == (True, 2, 3)
    assert "mitsparse2:4Name" in found.text.replace("\n", "")
    (image,) = (attributes for tag, attributes in found.tags if tag == "img")
    assert image == {"alt": "The run", "src": "data:image/png;base64," + base64.b64encode(PNG).decode()}
    (link,) = (attributes for tag, attributes in found.tags if tag == "a")
    assert link["href"] == "https://arxiv.org/abs/2202.01290"


@pytest.mark.parametrize(
    "card",
    [
        "<script>alert(1)</script>",
        "a <img src=x onerror=alert(1)> b",
        "<svg/onload=alert(1)>",
        "[x](javascript:alert(1)) [y](JaVaScRiPt:alert(1)) [z](data:text/html,<script>alert(1)</script>)",
        "[x](https://a'onmouseover='alert(1)) [y](<https://a' onclick='alert(1)>)",
        "![x' onerror='alert(1)](pruning_run.png)",
        "![x](https://tracker.example/pixel.png) ![y](../../secret.png) ![z](//tracker.example/a.png)",
        "<style>body{display:none}</style><iframe src=https://example.org></iframe>",
        "---\ntags: ['<script>alert(1)</script>']\n---\n",
        "---\nlicense: !!python/object/apply:os.system ['true']\n---\ntext",
        "---\na: &a [x, x]\nb: &b [*a, *a]\ntags: [*b, *b]\n---\ntext",
        "`</code><script>alert(1)</script>` ``${alert(1)}`` {{constructor.constructor('alert(1)')()}}",
        "```html' onclick='alert(1)\n<script>alert(1)</script>\n```",
        "| <b onclick=alert(1)>a</b> |\n| --- |\n| <script>alert(1)</script> |",
        "&lt;script&gt;alert(1)&lt;/script&gt;",
    ],
)
def test_nothing_that_a_stranger_writes_becomes_markup(tmp_path, card):
    (tmp_path / "pruning_run.png").write_bytes(PNG)
    found = read(tmp_path, card)
    assert {tag for tag, _ in found.tags} <= ALLOWED
    for _, attributes in found.tags:
        assert set(attributes) <= {"class", "href", "src", "alt", "rel", "target", "style", "start"}
        assert (attributes.get("style") or "text-align:") in ("text-align:", "text-align:right", "text-align:left")
        assert (attributes.get("href") or "https://").startswith(("https://", "http://", "#"))
        assert (attributes.get("src") or "data:image/png;base64,").startswith("data:image/png;base64,")


def test_what_is_not_there_not_a_picture_or_elsewhere_is_not_shown(tmp_path):
    assert "There is no card yet" in card_html(tmp_path)
    (tmp_path / "pruning_run.png").write_bytes(b"<svg onload='alert(1)'/>")
    assert "img" not in [tag for tag, _ in read(tmp_path, "![x](pruning_run.png)").tags]
    (tmp_path / "README.md").unlink()
    (tmp_path / "secret").write_text("secret words")
    (tmp_path / "README.md").symlink_to(tmp_path / "secret")
    assert "secret words" not in card_html(tmp_path)
    (tmp_path / "README.md").unlink()
    (tmp_path / "README.md").write_text("x" * ((1 << 20) + 1))
    assert "is not shown" in card_html(tmp_path)
