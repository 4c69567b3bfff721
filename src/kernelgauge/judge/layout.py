"""JSON laid out for a reader of diffs: what is short stands on one line."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

__all__ = ["laid_out"]

_STEP = "  "
_WIDTH = 120


def laid_out(value: Any, *, a_line_each: Collection[str] = (), indent: str = "") -> str:
    """`value` as JSON: an object or an array that does not fit on a line is spread over several.

    `a_line_each`: names of arrays whose elements stand on a line each, however long: one more is one more line of a diff.
    """
    line = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, (dict, list, tuple)) or len(indent) + len(line) <= _WIDTH:
        return line
    inner = indent + _STEP
    if isinstance(value, dict):
        parts = [
            f"{json.dumps(name, ensure_ascii=False)}: "
            + (_lines(part, inner) if name in a_line_each else laid_out(part, a_line_each=a_line_each, indent=inner))
            for name, part in value.items()
        ]
        return "{\n" + ",\n".join(inner + part for part in parts) + f"\n{indent}}}"
    parts = [laid_out(part, a_line_each=a_line_each, indent=inner) for part in value]
    return "[\n" + ",\n".join(inner + part for part in parts) + f"\n{indent}]"


def _lines(values: Any, indent: str) -> str:
    if not values:
        return "[]"
    lines = [json.dumps(value, ensure_ascii=False) for value in values]
    return "[\n" + ",\n".join(indent + _STEP + line for line in lines) + f"\n{indent}]"
