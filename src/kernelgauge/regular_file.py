"""A file opened to be read: no FIFO is waited for, no device is read for ever."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["IrregularFileError", "regular_file"]

# Not blocking: a FIFO that nobody writes to would be waited for. Not all systems have all of them.
_FLAGS = sum(getattr(os, name, 0) for name in ("O_RDONLY", "O_NONBLOCK", "O_NOCTTY", "O_BINARY"))


class IrregularFileError(OSError):
    """A folder, a FIFO, a device: there is something, and it is no file."""


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
