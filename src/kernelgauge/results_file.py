"""Results of a run, read from a file."""

from __future__ import annotations

import os
from pathlib import Path

from .errors import ResultsError
from .printable import printable
from .regular_file import regular_file
from .results import Results, decode_results

__all__ = ["MOST_BYTES", "read_results"]

# The whole suite of this repository makes 0.3 MB. Decoded, a file takes about ten times its size in memory.
MOST_BYTES = 256 << 20


def read_results(path: Path) -> Results:
    """The results in a regular file of at most `MOST_BYTES`. Raises `ResultsError`."""
    where = printable(str(path))
    try:
        content = _content(path, where)
    except (OSError, ValueError) as error:  # a NUL in the path is a ValueError
        missing = isinstance(error, FileNotFoundError)
        raise _unreadable(where, "there is no such file" if missing else printable(str(error))) from error
    return decode_results(content, where=where)


def _content(path: Path, where: str) -> bytes:
    with regular_file(path) as descriptor, os.fdopen(descriptor, "rb", closefd=False) as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise _unreadable(where, f"more than {MOST_BYTES} bytes")
    return content


def _unreadable(where: str, got: str) -> ResultsError:
    return ResultsError(
        "the results cannot be read",
        where=where,
        got=got,
        expected="the results.json that a run has left, such as reports/latest/results.json",
        next_command="pytest perf",
    )
