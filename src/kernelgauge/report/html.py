"""Results -> one HTML page that needs nothing else: no network, no library, and no script to be read.

The charts are SVG that a template writes, drawn by no library. What is drawn is bars, dots and one line; plotly.js alone
is 4.8 MB minified (its basic bundle 1.2 MB) of a page that may have 2 MB, Vega with Vega-Lite 0.8 MB, and uPlot (51 kB)
draws on a canvas, which neither a screen reader nor a browser without scripts can read. An image for each chart, of
matplotlib's say, would follow neither a dark theme nor a narrow screen.

Every text may come from a stranger's trace. Each one that the templates write passes through `printable` and is escaped,
by the environment and not by the template's author; the page's policy (CSP) allows the one style sheet and the one script
in it by their hashes and nothing else, so that no markup that got in all the same could run or load anything.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from importlib.resources import files
from unicodedata import combining

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from ..printable import printable
from ..results import Results
from .html_charts import shown_us
from .html_page import page

__all__ = ["asset", "environment", "html", "source"]

_PACKAGE = "kernelgauge.report"
_TITLE = "GPU performance report"
# On one letter. No language needs them; 30, which Unicode's stream-safe text allows (UAX #15), are wider than a telephone
# in a font that gives them a width.
_MOST_MARKS = 16


def html(results: Sequence[Results], *, title: str = _TITLE) -> str:
    """The report of one run, or of several: runs or kinds of GPU, the newest last.

    Of each kind of machine the newest run is shown in full; earlier ones are in a list. Links lead
    to files beside the newest run's `results.json`: the page belongs into the same folder.
    """
    style, script = (asset(name) for name in ("report.css", "report.js"))
    policy = f"default-src 'none'; style-src {source(style)}; script-src {source(script)}; base-uri 'none'; form-action 'none'"
    return (
        environment()
        .get_template("page.html")
        .render(page=page(results, title=title), style=Markup(style), script=Markup(script), policy=policy)
    )


def environment() -> Environment:
    """Of every page: escapes by itself, and knows the filters that the templates use."""
    made = Environment(
        loader=PackageLoader(_PACKAGE),
        autoescape=True,
        finalize=_shown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters.update(css=_class_name, us=shown_us)
    made.globals["newline"] = Markup("\n")  # between lines that are untrusted themselves
    return made


def _shown(value: object) -> object:
    """What a template's expression writes: text without a character that steers anything, a number in two decimals."""
    if isinstance(value, Markup):
        return value
    if isinstance(value, str):
        return _breakable(printable(value))
    return round(value, 2) if isinstance(value, float) else value


def _breakable(text: str) -> str:
    """`text` with marks beyond `_MOST_MARKS` as escapes: no line is broken within a letter, however wide its marks make it."""
    if text.isascii():
        return text
    shown: list[str] = []
    marks = 0
    for character in text:
        marks = marks + 1 if combining(character) else 0
        shown.append(character if marks <= _MOST_MARKS else character.encode("unicode_escape").decode())
    return "".join(shown)


def _class_name(text: str) -> str:
    """A status or a kind of kernel as part of a class: one word, whatever it was."""
    return re.sub(r"[^a-z0-9-]", "-", text.lower())[:40]


def asset(name: str) -> str:
    """Text of a style sheet or a script of the templates."""
    return (files(_PACKAGE) / "templates" / name).read_text(encoding="utf-8")


def source(content: str) -> str:
    """How a policy names a style sheet or a script within the page."""
    return f"'sha256-{b64encode(sha256(content.encode()).digest()).decode()}'"
