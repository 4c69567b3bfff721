"""A file opened to be read: no FIFO is waited for, no device is read for ever."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["ChangedFileError", "IrregularFileError", "blocks_of_file", "regular_file"]

# Not blocking: a FIFO that nobody writes to would be waited for. Not all systems have all of them.
_FLAGS = sum(getattr(os, name, 0) for name in ("O_RDONLY", "O_NONBLOCK", "O_NOCTTY", "O_BINARY"))


class IrregularFileError(OSError):
    """A folder, a FIFO, a device: there is something, and it is no file."""


class ChangedFileError(OSError):
    """The file was written to while it was read."""


@contextmanager
def regular_file(path: Path | str) -> Iterator[int]:
    """A descriptor of a regular file, through links too: what is put at the path later is not what is read.

    Raises `OSError` if it cannot be opened, `IrregularFileError` if it is something else, and `ValueError` for a path
    with a NUL.
    """
    descriptor = os.open(path, _FLAGS)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise IrregularFileError("not a regular file")
        yield descriptor
    finally:
        os.close(descriptor)


def blocks_of_file(path: Path | str, size: int) -> Iterator[bytes]:
    """Yield the content of a regular file in blocks of at most `size` bytes.

    Raises what `regular_file` raises, and at the end `ChangedFileError` if the file is not what was opened.
    """
    with regular_file(path) as descriptor:
        before = os.fstat(descriptor)
        left = before.st_size  # a file that grows all the time would never end
        while block := os.read(descriptor, min(left, size)):
            left -= len(block)
            yield block
        after = os.fstat(descriptor)
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise ChangedFileError(f"{before.st_size} bytes when it was opened, {after.st_size} at the end")
