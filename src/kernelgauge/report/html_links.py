"""Which paths of a results file may become links of the report."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote

__all__ = ["Artifact", "artifacts", "relative_link"]

_TRACE = ".json.gz"
_LONGEST = 1024


@dataclass(frozen=True)
class Artifact:
    """A file beside the report."""

    label: str
    href: str


def relative_link(path: str) -> str | None:
    """`path` as a link to a file below the report's folder; None if it is anything else.

    A results file is untrusted: a path of its may be absolute, climb out, or name another scheme. What is left is
    percent-encoded, colons too, so that no browser takes a part of it for a scheme.
    """
    parts = path.split("/")
    if len(path) > _LONGEST or not path.isprintable() or "\\" in path:
        return None
    if any(part in ("", ".", "..") for part in parts):
        return None
    return quote(path, safe="/")


def artifacts(trace: str | None) -> tuple[Artifact, ...]:
    """The trace, and the profiler's table that a run leaves beside it."""
    if trace is None or not trace.endswith(_TRACE):
        return ()
    found = (("trace", relative_link(trace)), ("table", relative_link(f"{trace.removesuffix(_TRACE)}.txt")))
    return tuple(Artifact(label, href) for label, href in found if href is not None)
