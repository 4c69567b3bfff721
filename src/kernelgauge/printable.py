"""Names from traces and files are untrusted: nothing in them may steer a terminal or break a line."""

from __future__ import annotations

__all__ = ["printable"]


def printable(text: str) -> str:
    """`text` with every control, escape, bidirectional and otherwise unprintable character shown as its escape."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)
