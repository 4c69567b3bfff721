"""Numbers, units, plurals and names as text; and lines and tables as text for a terminal, or as
Markdown for a pull request.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from io import StringIO
from typing import NamedTuple

from markupsafe import Markup
from rich.console import Console
from rich.style import Style
from rich.table import Table
from rich.text import Text

from ..errors import printable
from ..judge.evidence import RelativeChange

_LONGEST_LINE = 300  # characters of a name or a reason; results.json has all of it
_LONGEST_ROW = 1000  # columns
_LABEL = 8  # columns
_MOST_WORKLOADS = 8  # of one reason
# no time that was measured: a damaged file has it, and 300 digits say no more than three
_HUGE = 1e12
# on a terminal a name of more than 60 characters loses its middle
_LONG_WORD = re.compile(r"(\S{38})\S{4,}(\S{19})")
_SHOWN_DIGITS = 10  # of a commit
_SHORTEST_NAME = 20  # characters of a name that lost its middle


# -- numbers and names -----------------------------------------------------------------------------


def us(value: float) -> str:
    """Return two decimals for a short time: a profiler tells 2.98 from 3.01 us, and so must its
    reader.
    """
    if abs(value) < 10:
        return f"{value:.2f}"
    return f"{value:{'.1f' if abs(value) < 100_000 else '.0f' if abs(value) < _HUGE else '.3g'}}"


def time_text(value_us: float) -> str:
    """Return ``205.1 us``, ``98.59 ms`` or ``12.92 s``: four digits."""
    for unit, size in (("s", 1e6), ("ms", 1e3)):
        if abs(value_us) >= size:
            value = value_us / size
            digits = ".2f" if abs(value) < 100 else ".1f" if abs(value) < _HUGE else ".3g"
            return f"{value:{digits}} {unit}"
    return f"{value_us:.1f} us"


def time_change(before_us: float, after_us: float) -> str:
    """Return ``175.0 -> 140.0 ms``; a unit that both have stands once, and so do two times that
    read the same.
    """
    old, new = time_text(before_us), time_text(after_us)
    return new if old == new else f"{old.removesuffix(new[new.index(' ') :])} -> {new}"


def megabytes(count: int) -> str:
    """Return ``5.8 MB``: of a million bytes; fewer than a thousand as they are."""
    return (
        f"{count / 1e6:.1f} MB"
        if count >= 1e6
        else f"{count / 1e3:.1f} kB"
        if count >= 1000
        else f"{count} bytes"
    )


def bytes_change(before: int, after: int) -> str:
    """Return ``1.6 MB -> 2.4 MB (+800.0 kB)``; of two that would read the same, all digits."""
    old, new, sign = megabytes(before), megabytes(after), "+" if after > before else "-"
    pair = f"{old} -> {new}" if old != new else f"{before:,} -> {after:,} bytes"
    return f"{pair} ({sign}{megabytes(abs(after - before))})"


def percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.1 else f"{100 * share:.1f} %"


def interval_text(change: RelativeChange) -> str:
    """Return ``+8.10 % (+7.90 … +8.40)``."""
    return f"{100 * change.estimate:+.2f} % ({bounds_text(change)})"


def bounds_text(change: RelativeChange) -> str:
    """Return ``+7.90 … +8.40``."""
    if change.low is None or change.high is None:
        return "no interval"
    return f"{100 * change.low:+.2f} … {100 * change.high:+.2f}"


def sensitivity_text(change: RelativeChange) -> str:
    """Return the sensitivity in percent with two digits, rounded up: no smaller slowdown is
    promised.
    """
    if change.sensitivity is None:
        return "-"
    percent = 100 * change.sensitivity
    unit = 10.0 ** (math.floor(math.log10(percent)) - 1)
    rounded = math.ceil(percent / unit) * unit
    return f"+{rounded:.0f} %" if rounded >= 100 else f"+{rounded:.3g} %"


def ranges(numbers: Sequence[int]) -> str:
    """Return ``0 to 2, 7`` for 0, 1, 2 and 7."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]} to {run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def counted(count: int, noun: str) -> str:
    """Return ``1 kernel``, ``2 kernels``, ``2 launches``, ``2 processes``."""
    plural = "es" if noun.endswith(("ch", "s")) else "s"
    return f"{count} {noun}" + ("" if count == 1 else plural)


def first(texts: Sequence[str], most: int) -> list[str]:
    """Return the first texts, and how many more there are."""
    left = len(texts) - most
    return [*texts[:most], *([f"and {left} more"] if left > 0 else [])]


def named(workloads: Iterable[str]) -> str:
    """Return ``a, b``: the first eight workloads, and how many more there are."""
    return ", ".join(first([*workloads], _MOST_WORKLOADS))


def times(names: Iterable[tuple[str, int]]) -> list[str]:
    """Return ``aten::t x3`` and ``aten::view`` of names and how often each occurs."""
    return [f"{name} x{count}" if count > 1 else name for name, count in names]


def cut(text: str, longest: int = _LONGEST_LINE) -> str:
    """Return `text` in one line, and not too long."""
    line = printable(text)
    return line if len(line) <= longest else f"{line[: longest - 3]}..."


def short_commit(commit: str | None) -> str:
    """Return a commit as reports show it, with the mark of local changes."""
    if not commit:
        return "not known"
    sha, changed, _ = commit.partition("+")
    return sha[:_SHOWN_DIGITS] + changed


# -- sections, and their renderers -----------------------------------------------------------------


class Line(NamedTuple):
    """A label and its text, which may have several lines. Spaces before the label stand before all
    of them.

    Without a label, the text is never shortened.
    """

    label: str
    text: str


@dataclass(frozen=True)
class Column:
    """A column of a table. A `number` stands to the right; it is never broken, and nor is a column
    that `is_whole`.

    On a terminal, one that `is_optional` is left out where it is empty, or would break a row; and
    the names of one that `is_cut` lose their middle where they would break it. A column of dashes
    is left out.
    """

    title: str = ""
    number: bool = False
    is_whole: bool = False
    is_optional: bool = False
    is_cut: bool = False


@dataclass(frozen=True)
class Section:
    """A title, lines, a block of code, a table, and on a page of HTML a picture above them; each
    may be missing.

    Texts may come from a trace: they are untrusted. A cell may have several lines; a `Text`, which
    is a status, has a style on a terminal. `below`: for each row, then of one line, the names that
    stand under it, whole. `gap`: spaces between columns.
    """

    title: str = ""
    lines: Sequence[str | Line] = ()
    columns: Sequence[Column] = ()
    rows: Sequence[Sequence[str | Text]] = ()
    below: Sequence[str] = ()
    gap: int = 2
    style: str = ""  # of the title on a terminal
    code: str = ""
    language: str = "text"  # of the code, as Markdown calls it
    is_folded: bool = False
    status: str = ""  # before the title, on a page of HTML
    picture: Markup = Markup()  # noqa: RUF009
    anchor: str = ""  # of HTML


def as_text(sections: Sequence[Section], *, width: int, color: bool, is_dense: bool = False) -> str:
    """Return text for a terminal.

    If it `is_dense`, no blank line stands between sections, and no line is broken.
    """
    longest = None if is_dense else width
    parts: list[str] = []
    for section in sections:
        lines = [_line_text(line, longest) for line in section.lines]
        if section.title:
            style = Style.parse(section.style if color else "")
            lines.insert(0, style.render(_wrapped(section.title, longest)))
        lines += section.code.split("\n") if section.code else []
        if section.columns:
            # A row above other lines is one line, on whatever terminal: else they would stand under
            # another row.
            room = max(width, _LONGEST_ROW) if section.below else width
            rows = _table(section, width=room, color=color)
            head = len(rows) - len(section.below)
            lines += rows[:head]
            for row, below in zip(rows[head:], section.below, strict=True):
                lines += [
                    row,
                    *(_wrapped(f"    {line}", width, is_whole=True) for line in below.split("\n")),
                ]
        parts.append("".join(f"{line}\n" for line in lines))
    return ("" if is_dense else "\n").join(parts)


def _line_text(line: str | Line, width: int | None) -> str:
    if isinstance(line, str):
        return _wrapped(line, width)
    return (
        "\n".join(labelled(line, width))
        if line.label
        else _wrapped(line.text, width, is_whole=True)
    )


def labelled(line: Line, width: int | None = None) -> list[str]:
    """Return the rows of a line for a terminal: its text stands beside its label."""
    indent = len(line.label) - len(line.label.lstrip(" "))
    label = f"{printable(line.label):<{indent + _LABEL}} "
    rows = [printable(text) for text in line.text.split("\n")]
    if width is not None:
        room = max(width - len(label), 20)
        rows = [
            each
            for row in rows
            for each in textwrap.wrap(row, room, break_on_hyphens=False) or [""]
        ]
    found = [f"{' ' * len(label) if number else label}{row}" for number, row in enumerate(rows)]
    return found if width is None else [row.rstrip() for row in found]


def _shown(section: Section) -> list[int]:
    """Return the places of the columns that say something."""
    found = []
    for place, column in enumerate(section.columns):
        cells = {str(row[place]) for row in section.rows}
        if not cells or cells - {"-", "" if column.is_optional else "-"}:
            found.append(place)
    return found


def _table(section: Section, *, width: int, color: bool) -> list[str]:
    columns, kept = section.columns, _shown(section)
    if _excess(section, kept, width) > 0:  # a row would be broken
        kept = [place for place in kept if not columns[place].is_optional]
    cut = next((place for place in kept if columns[place].is_cut), None)
    if cut is not None and (excess := _excess(section, kept, width)) > 0:
        room = max(_widest(section, cut) - excess, _SHORTEST_NAME)
        rows = [
            [*row[:cut], _without_middle(str(row[cut]), room), *row[cut + 1 :]]
            for row in section.rows
        ]
        section = replace(section, rows=rows)
    return _rendered(section, kept, width=width, color=color)


def _excess(section: Section, places: Sequence[int], width: int) -> int:
    """Return by how much a table is wider than a terminal."""
    return sum(_widest(section, place) + section.gap for place in places) - section.gap - width


def _widest(section: Section, place: int) -> int:
    cells = [section.columns[place].title, *(str(row[place]) for row in section.rows)]
    return max(len(line) for cell in cells for line in printable_lines(cell))


def printable_lines(text: str) -> list[str]:
    return list(map(printable, text.split("\n")))


def _without_middle(name: str, room: int) -> str:
    """Return a name that fits: its end tells it from others with the same beginning."""
    end = room // 2
    return name if len(name) <= room else f"{name[: room - end - 1]}…{name[-end:]}"


def _rendered(section: Section, places: Sequence[int], *, width: int, color: bool) -> list[str]:
    columns = [section.columns[place] for place in places]
    has_titles = any(column.title for column in columns)
    made = Table(
        box=None,
        pad_edge=False,
        padding=(0, section.gap, 0, 0),
        header_style="bold",
        show_header=has_titles,
    )
    for column in columns:
        if column.number:
            made.add_column(column.title, justify="right", no_wrap=True)
        else:
            made.add_column(column.title, overflow="fold", no_wrap=column.is_whole)
    for row in section.rows:
        cells = [row[place] for place in places]
        made.add_row(
            *(
                each if isinstance(each, Text) else Text("\n".join(printable_lines(each)))
                for each in cells
            )
        )
    stream = StringIO()
    # legacy_windows off: the output is a string, no console is written to.
    console = Console(
        file=stream, width=width, force_terminal=color, no_color=not color, legacy_windows=False
    )
    console.print(made, overflow="fold")
    return [line.rstrip() for line in stream.getvalue().split("\n")[:-1]]


def _wrapped(line: str, width: int | None, *, is_whole: bool = False) -> str:
    """Return a line, broken between words. Unless it `is_whole`, long words lose their middle."""
    if width is None:
        return printable(line)
    line = printable(line) if is_whole else _LONG_WORD.sub(r"\1...\2", printable(line))
    words = line.lstrip(" ")
    indent = line[: len(line) - len(words)]
    wrap = textwrap.TextWrapper(
        max(width, 20), indent, f"{indent}    ", break_on_hyphens=False, break_long_words=False
    )
    return wrap.fill(words)


def as_markdown(sections: Sequence[Section]) -> str:
    return "\n\n".join(filter(None, map(_markdown, sections))) + "\n"


def _markdown(section: Section) -> str:
    parts: list[str] = []
    if section.title and not section.is_folded:
        parts.append(f"**{_escaped(section.title)}**")
    if section.lines:
        texts = (
            line if isinstance(line, str) else f"{line.label} {line.text}".strip()
            for line in section.lines
        )
        parts.append("  \n".join(map(_escaped, texts)))
    if section.code:  # in it nothing is markup, a link or a mention
        fence = "`" * max(3, 1 + max(map(len, re.findall("`+", section.code)), default=0))
        parts.append(f"{fence}{section.language}\n{section.code}\n{fence}")
    if section.columns:
        parts.append(_markdown_table(section))
    content = "\n\n".join(parts)
    if section.is_folded:
        return f"<details>\n<summary>{_escaped(section.title)}</summary>\n\n{content}\n\n</details>"
    return content


def _markdown_table(section: Section) -> str:
    shown = _shown(section)
    columns = [section.columns[place] for place in shown]
    rows = [[row[place] for place in shown] for row in section.rows]
    if section.below:
        columns = [*columns, Column("kernel")]
        rows = [[*row, names] for row, names in zip(rows, section.below, strict=True)]
    head = [_escaped(column.title.replace("\n", " ")) for column in columns]
    rule = ["---:" if column.number else "---" for column in columns]
    body = [
        ["<br>".join(_escaped(line.strip()) for line in str(cell).split("\n")) for cell in row]
        for row in rows
    ]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, rule, *body))


_MARKUP = re.compile(
    r"[\\`*\[\]|@#~$]"
    r"|(?<!\w)_|_(?!\w)"  # within a word it is none
    r"|:(?=//|[\w+-]+:)"  # a link, an emoji
    r"|(?<=www)\."
    r"|^\s*(?:[-+=>]|\d+[.)](?=\s))"  # a list, a quotation, a heading
)


def _escaped(line: str) -> str:
    """Return a line that is no markup, link or mention in Markdown, nor in the HTML that it
    becomes.

    GitHub looks for mentions and issues where the backslash is gone
    (https://github.com/kivikakk/comrak/pull/367). A zero-width space behind the character hides
    them, as it does for Renovate (lib/util/markdown.ts).
    """
    shown = _MARKUP.sub(lambda match: f"{match[0][:-1]}\\{match[0][-1]}", printable(line))
    shown = shown.replace("&", "&amp;").replace("<", "&lt;")
    return re.sub(r"\\(@|#(?=\d))", r"\\\1&#8203;", shown)
