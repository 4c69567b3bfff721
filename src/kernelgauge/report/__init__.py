"""Results -> text. Nothing here writes a file or a terminal."""

from .rows import Row, rows
from .terminal import describe, notes, plan_text, summary_text

__all__ = ["Row", "describe", "notes", "plan_text", "rows", "summary_text"]
