#!/usr/bin/env python3
"""Which part of the suite a change can have moved: changed files in, a `-k` expression of pytest out.

    git diff --name-only --no-renames -z HEAD^1 HEAD | python3 changed.py --map perf-map.txt

prints two lines, as GitHub Actions wants the outputs of a step:

    run=some                     # or: all, nothing
    expression=mlp or linear     # empty: the whole suite, as `pytest -k ""` takes it

and on the standard error why. The map is read line by line, and all lines that match a file add up:

    <glob> -> <expression>       # these workloads
    <glob> -> *                  # the whole suite
    <glob> -> -                  # nothing: the file cannot change a time

`*` and `?` stay within one folder, `**` crosses folders, and a glob matches the whole path. A file that no line
matches runs the whole suite, and so does the map itself: what is not known could matter.

Exit code 0: answered. 2: not answered (no map, a line that cannot be read); then nothing is printed that could be
taken for an answer. Needs Python 3.10 and nothing else, so that it can be copied beside a workflow.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["MapError", "Rule", "Selection", "main", "matches", "read_rules", "select"]

WHOLE_SUITE = "*"
NOTHING = "-"

# What names of workloads and pytest's `and`, `or`, `not` are written with. Nothing here means anything to a shell.
_EXPRESSION = re.compile(r"[\w\-.\[\]:+() ]+", re.ASCII)
_PARTS_OF_A_GLOB = re.compile(r"\*\*/|\*\*|\*|\?|[^*?]+")
_MEANING = {"**/": r"(?:[^/]+/)*", "**": r".*", "*": r"[^/]*", "?": r"[^/]"}


class MapError(Exception):
    """A map that cannot be read: its line, what stands there, and what was expected."""


@dataclass(frozen=True)
class Rule:
    """One line of the map."""

    glob: str
    expression: str  # of pytest's -k, or WHOLE_SUITE, or NOTHING


@dataclass(frozen=True)
class Selection:
    """What is to be run. `reasons`: one line for each changed file."""

    run: str  # "all", "some" or "nothing"
    expression: str
    reasons: tuple[str, ...]


def read_rules(text: str, *, where: str) -> list[Rule]:
    """The rules of a map. Raises `MapError`."""
    rules = []
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        glob, arrow, expression = (part.strip() for part in stripped.partition(" -> "))
        readable = expression in (WHOLE_SUITE, NOTHING) or _EXPRESSION.fullmatch(expression)
        if not (glob and arrow and readable):
            raise MapError(
                f"a line of the map cannot be read\n  where    {where}, line {number}\n  got      {json.dumps(stripped)}\n"
                f"  expected <glob> -> <expression of pytest's -k>, or * for the whole suite, or - for nothing"
            )
        rules.append(Rule(glob, expression))
    return rules


def matches(glob: str, path: str) -> bool:
    """Whether a glob matches the whole of a path."""
    pattern = "".join(_MEANING.get(part) or re.escape(part) for part in _PARTS_OF_A_GLOB.findall(glob))
    return re.fullmatch(pattern, path, re.DOTALL) is not None


def select(changed: Iterable[str], rules: Sequence[Rule], *, map_path: str) -> Selection:
    """What these changed files can have moved."""
    wanted: dict[str, None] = {}  # in order, each once
    reasons = []
    for path in changed:
        found = [rule.expression for rule in rules if matches(rule.glob, path)]
        if path == map_path:
            found, why = [WHOLE_SUITE], "the map itself"
        elif not found:
            found, why = [WHOLE_SUITE], "no line of the map knows it"
        else:
            why = "the map"
        wanted.update(dict.fromkeys(found))
        said = ", ".join(dict.fromkeys(_said(expression) for expression in found))
        reasons.append(f"{json.dumps(path)}: {said} ({why})")  # quoted: a name may hold any character
    if not reasons:
        wanted, reasons = {WHOLE_SUITE: None}, ["no changed file was named: whole suite"]
    if WHOLE_SUITE in wanted:
        return Selection("all", "", tuple(reasons))
    chosen = [expression for expression in wanted if expression != NOTHING]
    if not chosen:
        return Selection("nothing", "", tuple(reasons))
    return Selection("some", _any_of(chosen), tuple(reasons))


def _said(expression: str) -> str:
    return {WHOLE_SUITE: "whole suite", NOTHING: "nothing"}.get(expression, f"-k {expression}")


def _any_of(expressions: Sequence[str]) -> str:
    if len(expressions) == 1:
        return expressions[0]
    return " or ".join(f"({each})" if " " in each else each for each in expressions)


def _names(data: bytes) -> list[str]:
    """The changed files: each ended by NUL (`git diff -z`), or a line each where there is no NUL."""
    separator = b"\0" if b"\0" in data else b"\n"
    return [name.decode("utf-8", "surrogateescape") for name in data.split(separator) if name]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="From changed files (standard input) to a -k expression of pytest.")
    parser.add_argument("--map", required=True, metavar="FILE", help="lines of: <glob> -> <expression>, * or -")
    options = parser.parse_args(arguments)
    try:
        rules = read_rules(Path(options.map).read_text(encoding="utf-8"), where=options.map)
    except (MapError, OSError) as error:
        sys.stderr.write(f"changed.py: {error}\n")
        return 2
    except UnicodeDecodeError as error:
        sys.stderr.write(f"changed.py: {options.map} is no UTF-8: {error}\n")
        return 2
    selection = select(_names(sys.stdin.buffer.read()), rules, map_path=Path(options.map).as_posix())
    sys.stderr.write("".join(f"{reason}\n" for reason in selection.reasons))
    sys.stdout.write(f"run={selection.run}\nexpression={selection.expression}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
