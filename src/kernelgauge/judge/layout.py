"""JSON laid out for a reader of diffs: what is short stands on one line."""

from __future__ import annotations

import json
from typing import Any

__all__ = ["laid_out"]

_STEP = "  "
_WIDTH = 120


def laid_out(value: Any, *, indent: str = "") -> str:
    """`value` as JSON: an object or an array that does not fit on a line is spread over several."""
    line = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, (dict, list, tuple)) or len(indent) + len(line) <= _WIDTH:
        return line
    inner = indent + _STEP
    if isinstance(value, dict):
        parts = [
            f"{json.dumps(name, ensure_ascii=False)}: {laid_out(part, indent=inner)}" for name, part in value.items()
        ]
        return "{\n" + ",\n".join(inner + part for part in parts) + f"\n{indent}}}"
    return "[\n" + ",\n".join(inner + laid_out(part, indent=inner) for part in value) + f"\n{indent}]"
