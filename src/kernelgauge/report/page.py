"""A page of lines and tables, in two forms: text for a terminal, and Markdown for a pull request."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from io import StringIO

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from ..errors import printable

_LONGEST_ROW = 1000  # columns
_LONG_WORD = re.compile(r"(\S{38})\S{4,}(\S{19})")  # on a terminal a name of more than 60 characters loses its middle


@dataclass(frozen=True)
class Column:
    """A column of a table. A `number` stands to the right; it is never broken, and nor is a column that `is_whole`."""

    title: str = ""
    number: bool = False
    is_whole: bool = False


@dataclass(frozen=True)
class Grid:
    """A table; a cell may have several lines. `below`: for each row, then of one line, the names that stand under it, whole."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    below: tuple[str, ...] = ()


@dataclass(frozen=True)
class Section:
    """A title, lines, and a table; each may be missing. Texts may come from a trace: they are untrusted."""

    title: str = ""
    lines: tuple[str, ...] = ()
    grid: Grid | None = None


def text(sections: Sequence[Section], *, width: int, color: bool) -> str:
    parts: list[str] = []
    for section in sections:
        above = [section.title, *section.lines] if section.title else section.lines
        lines = [_wrapped(_LONG_WORD.sub(r"\1...\2", printable(line)), width) for line in above]
        if (grid := section.grid) is not None:
            # A row above other lines is one line, on whatever terminal: else they would stand under another row.
            room = max(width, _LONGEST_ROW) if grid.below else width
            rows = render(table(grid.columns, grid.rows, gap=2), width=room, color=color).splitlines()
            head = len(rows) - len(grid.below)
            lines += rows[:head]
            for row, below in zip(rows[head:], grid.below, strict=True):
                lines += [row, *(_wrapped(f"    {printable(line)}", width) for line in below.split("\n"))]
        parts.append("".join(f"{line}\n" for line in lines))
    return "\n".join(parts)


def render(*contents: RenderableType, width: int, color: bool) -> str:
    """Return what rich prints of these, without spaces at the end of a line."""
    stream = StringIO()
    # legacy_windows off: the output is a string, no console is written to.
    console = Console(file=stream, width=width, force_terminal=color, no_color=not color, legacy_windows=False)
    for content in contents:
        console.print(content, overflow="fold")
    return "".join(line.rstrip() + "\n" for line in stream.getvalue().split("\n")[:-1])


def _wrapped(line: str, width: int) -> str:
    words = line.lstrip(" ")
    indent = line[: len(line) - len(words)]
    wrap = textwrap.TextWrapper(max(width, 20), indent, f"{indent}    ", break_on_hyphens=False, break_long_words=False)
    return wrap.fill(words)


def markdown(sections: Sequence[Section]) -> str:
    parts: list[str] = []
    for section in sections:
        if section.title:
            parts.append(f"**{_escaped(section.title)}**")
        if section.lines:
            parts.append("  \n".join(_escaped(line) for line in section.lines))
        if section.grid:
            parts.append(_markdown_table(section.grid))
    return "\n\n".join(parts) + "\n"


def table(columns: Sequence[Column], rows: Iterable[Sequence[str | Text]], *, gap: int = 1) -> Table:
    """Return a table for a terminal. A `Text` is printed in its style; any other cell is untrusted."""
    has_titles = any(column.title for column in columns)
    made = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="bold", show_header=has_titles)
    for column in columns:
        if column.number:
            made.add_column(column.title, justify="right", no_wrap=True)
        else:
            made.add_column(column.title, overflow="fold", no_wrap=column.is_whole)
    for row in rows:
        texts = [cell if isinstance(cell, Text) else Text("\n".join(map(printable, cell.split("\n")))) for cell in row]
        made.add_row(*texts)
    return made


def fenced(text: str) -> str:
    """Return a text for a pull request, as a block of code: in it nothing is markup, a link or a mention."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}text\n{text}{fence}\n"


def _markdown_table(grid: Grid) -> str:
    columns, rows = grid.columns, grid.rows
    if grid.below:
        columns = (*columns, Column("kernel"))
        rows = tuple((*row, names) for row, names in zip(rows, grid.below, strict=True))
    head = [_escaped(column.title.replace("\n", " ")) for column in columns]
    rule = ["---:" if column.number else "---" for column in columns]
    body = [["<br>".join(_escaped(line.strip()) for line in cell.split("\n")) for cell in row] for row in rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, rule, *body))


_MARKUP = re.compile(
    r"[\\`*\[\]|@#~$]"
    r"|(?<!\w)_|_(?!\w)"  # within a word it is none
    r"|:(?=//|[\w+-]+:)"  # a link, an emoji
    r"|(?<=www)\."
    r"|^\s*(?:[-+=>]|\d+[.)](?=\s))"  # a list, a quotation, a heading
)


def _escaped(line: str) -> str:
    """Return a line that is no markup, link or mention in Markdown, nor in the HTML that it becomes.

    GitHub looks for mentions and issues where the backslash is gone (https://github.com/kivikakk/comrak/pull/367). A
    zero-width space behind the character hides them, as it does for Renovate (lib/util/markdown.ts).
    """
    shown = _MARKUP.sub(lambda match: f"{match[0][:-1]}\\{match[0][-1]}", printable(line))
    shown = shown.replace("&", "&amp;").replace("<", "&lt;")
    return re.sub(r"\\(@|#(?=\d))", r"\\\1&#8203;", shown)
