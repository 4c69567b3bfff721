"""Names from traces and files are untrusted: nothing in them may steer a terminal or break a line."""

from __future__ import annotations

import re

__all__ = ["printable", "printable_url"]


def printable(text: str) -> str:
    """Return the text with every control, escape, bidirectional and otherwise unprintable character escaped."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


def printable_url(text: str) -> str:
    """Return a URL, or a message with one, for a terminal: without its password."""
    return printable(re.sub(r"//[^/@\s]*@", "//***@", text))
