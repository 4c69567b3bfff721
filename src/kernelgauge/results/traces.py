"""Trace files, read."""

from __future__ import annotations

from pathlib import Path

from ..errors import TraceError
from ..files import ChangedFileError, IrregularFileError, blocks_of_file
from ..trace import Trace, parse_blocks
from ..trace.reader import FILE_BLOCK_BYTES

__all__ = ["read_trace"]


def read_trace(path: Path | str) -> Trace:
    """Read a trace of torch.profiler, gzip or JSON.

    Raises `TraceError` if the file is missing, changes while it is read, is not gzip or JSON, or is JSON of something
    else.
    """
    where = str(path)
    try:
        return parse_blocks(blocks_of_file(path, FILE_BLOCK_BYTES), where=where)
    except ChangedFileError as error:
        what, got, expected = "the trace changed while it was read", str(error), "a file that nobody writes to"
        raise TraceError(what, where=where, got=got, expected=expected) from error
    except IrregularFileError as error:
        got, expected = str(error), "a file"
        raise TraceError("cannot read the trace", where=where, got=got, expected=expected) from error
    except (OSError, ValueError) as error:  # a NUL in the path is a ValueError
        got, expected = str(error), "a file that can be read"
        raise TraceError("cannot read the trace", where=where, got=got, expected=expected) from error
