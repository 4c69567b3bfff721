"""Results -> text. Nothing here writes a file or a terminal."""

from .rows import Row, rows
from .terminal import conditions_text, describe, notes, plan_text, remarks, summary_text

__all__ = ["Row", "conditions_text", "describe", "notes", "plan_text", "remarks", "rows", "summary_text"]
