"""A file's content in blocks, decompressed where it is gzip. Bounded in memory, whatever the file holds."""

from __future__ import annotations

import os
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from ..errors import TraceError

__all__ = ["BLOCK_BYTES", "file_blocks"]

# Large enough that what is done once for each block costs nothing, small enough not to show in the memory used.
BLOCK_BYTES = 1 << 20
_GZIP = b"\x1f\x8b"
_GZIP_WINDOW = 31  # zlib: the largest window, and gzip's own header
# The profiler's JSON shrinks 10 to 40 times (the recorded ones: 14 to 27); deflate can reach 1030. What claims more
# than this is no trace, and is refused before it fills the memory.
_MOST_RATIO = 200
_RATIO_FROM = 64 << 20


def file_blocks(path: Path | str) -> Iterator[bytes]:
    """The content of a regular file, gzip or not, in blocks of about `BLOCK_BYTES`.

    Raises `TraceError` if it is no regular file, cannot be read or decompressed, decompresses to far more than a trace
    would, or changed while it was read.
    """
    where = str(path)
    try:
        # Not blocking: a FIFO that nobody writes to would be waited for.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        try:
            before = os.fstat(descriptor)
            if not stat.S_ISREG(before.st_mode):
                raise TraceError("cannot read the trace", where=where, got="not a regular file", expected="a file")
            with open(descriptor, "rb", buffering=0, closefd=False) as file:
                yield from _blocks(file, where)
            after = os.fstat(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise TraceError("cannot read the trace", where=where, got=str(error)) from error
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise TraceError(
            "the trace changed while it was read",
            where=where,
            got=f"{before.st_size} bytes when it was opened, {after.st_size} at the end",
            expected="a file that nobody writes to",
        )


def _blocks(file: IO[bytes], where: str) -> Iterator[bytes]:
    first = file.read(BLOCK_BYTES)
    if first[:2] == _GZIP:
        yield from _decompressed(first, file, where)
        return
    while first:
        yield first
        first = file.read(BLOCK_BYTES)


def _decompressed(block: bytes, file: IO[bytes], where: str) -> Iterator[bytes]:
    """One gzip member after another; zeros between and behind them are padding."""
    engine = zlib.decompressobj(_GZIP_WINDOW)
    read, made = len(block), 0
    while True:
        try:
            piece = engine.decompress(block, BLOCK_BYTES)
        except zlib.error as error:
            raise TraceError("cannot read the trace", where=where, got=f"damaged gzip: {error}") from error
        made += len(piece)
        if made > max(_RATIO_FROM, _MOST_RATIO * read):
            raise TraceError(
                "cannot read the trace",
                where=where,
                got=f"{made} bytes out of {read} compressed ones",
                expected=f"at most {_MOST_RATIO} times as many: this is no trace",
            )
        yield piece
        block = engine.unconsumed_tail
        if engine.eof:
            block = (engine.unused_data or file.read(BLOCK_BYTES)).lstrip(b"\0")
            if not block:
                return
            engine = zlib.decompressobj(_GZIP_WINDOW)
        elif not block:
            block = file.read(BLOCK_BYTES)
            read += len(block)
            if not block and not piece:  # with no input left, what it still holds comes out first
                raise TraceError("cannot read the trace", where=where, got="the gzip stream ends in the middle")
