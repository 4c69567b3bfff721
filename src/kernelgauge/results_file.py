"""Results of a run, found and read from a file."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from .errors import ResultsError
from .files import regular_file
from .printable import printable
from .results import Results, decode_results

__all__ = ["MOST_BYTES", "NAME", "find_results", "is_of_something_else", "read_results"]

NAME = "results.json"
# The whole suite of this repository makes 0.3 MB. Decoded, a file takes about ten times its size in memory.
MOST_BYTES = 256 << 20
# Folders in folders: of machines in the reports of a shard, in the folder of its artifact.
_DEEPEST = 3


def find_results(path: Path) -> list[Path]:
    """The results at a path: the file itself, that in the folder, or those in its subfolders, sorted.

    Links to folders are not followed. Where a folder has none, the file that it should have: reading says so. A folder
    that cannot be listed stands for itself, and a link to nothing is a file: reading says what is wrong with them.
    """
    if not os.path.isdir(path):  # that of a Path fails where a folder above cannot be read, or a name is too long
        return [path]
    return _below(path, _DEEPEST) or [path / NAME]


def _below(folder: Path, depth: int) -> list[Path]:
    if _may_be_there(folder / NAME):
        return [folder / NAME]
    if not depth:
        return []
    try:
        with os.scandir(folder) as listed:
            inside = sorted(Path(each.path) for each in listed if each.is_dir(follow_symlinks=False))
    except OSError:  # a folder of somebody else's: there may be results in it
        return [folder]
    return [found for each in inside for found in _below(each, depth - 1)]


def _may_be_there(file: Path) -> bool:
    """Whether there is a file, a link to nowhere, or what cannot be told."""
    try:
        file.lstat()
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return True


def is_of_something_else(path: Path) -> bool:
    """Whether a file is whole JSON without what all results say of themselves, in any version."""
    try:
        document = msgspec.json.decode(_content(path, printable(str(path))))
    except (OSError, ValueError, msgspec.DecodeError, RecursionError, ResultsError):
        return False
    return not (isinstance(document, dict) and {"schema_version", "kernelgauge"} <= document.keys())


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
