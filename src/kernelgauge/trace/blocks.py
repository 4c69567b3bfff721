"""A file's content in blocks, decompressed where it is gzip. Bounded in memory, whatever the file holds."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from ..errors import TraceError
from ..regular_file import IrregularFileError, regular_file

__all__ = ["BLOCK_BYTES", "file_blocks", "of_one_size"]

# Large enough that what is done once for each block costs nothing, small enough not to show in the memory used.
BLOCK_BYTES = 1 << 18
# Small, because zlib copies what stands behind a member, and a file may have a member in every 20 bytes.
_GZIP_BYTES = 1 << 14
_GZIP = b"\x1f\x8b"
_GZIP_WINDOW = 31  # zlib: the largest window, and gzip's own header
# The profiler's JSON shrinks 10 to 40 times (the recorded ones: 14 to 27); deflate can reach 1030. What claims more
# than this is no trace, and is refused before it fills the memory.
_MOST_RATIO = 200
_RATIO_FROM = 64 << 20


def file_blocks(path: Path | str) -> Iterator[bytes]:
    """The content of a regular file, gzip or not, in blocks of at most `BLOCK_BYTES`.

    Raises `TraceError` if it is no regular file, cannot be read or decompressed, decompresses to far more than a trace
    would, or changed while it was read.
    """
    where = str(path)
    try:
        with regular_file(path) as descriptor:
            before = os.fstat(descriptor)
            yield from _content(descriptor, before.st_size, where)
            after = os.fstat(descriptor)
    except IrregularFileError as error:
        raise _unreadable(where, str(error), "a file") from error
    except (OSError, ValueError) as error:  # a NUL in the path is a ValueError
        raise _unreadable(where, str(error), "a file that can be read") from error
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise TraceError(
            "the trace changed while it was read",
            where=where,
            got=f"{before.st_size} bytes when it was opened, {after.st_size} at the end",
            expected="a file that nobody writes to",
        )


def of_one_size(blocks: Iterable[bytes], size: int) -> Iterator[bytes]:
    """The same bytes in blocks of `size`, but for the last: a member of gzip may hold a single byte, or a block all."""
    held: list[bytes] = []
    room = size
    for block in blocks:
        start = 0
        while len(block) - start >= room:
            held.append(block[start : start + room])
            yield b"".join(held)
            start += room
            held, room = [], size
        if start < len(block):
            held.append(block[start:])
            room -= len(block) - start
    if held:
        yield b"".join(held)


def _content(descriptor: int, size: int, where: str) -> Iterator[bytes]:
    is_gzip = os.read(descriptor, len(_GZIP)) == _GZIP
    os.lseek(descriptor, 0, os.SEEK_SET)
    if is_gzip:
        return _decompressed(_read(descriptor, size, _GZIP_BYTES), where)
    return _read(descriptor, size, BLOCK_BYTES)


def _read(descriptor: int, size: int, at_once: int) -> Iterator[bytes]:
    """No more than the file had when it was opened: one that grows all the time would never end."""
    while block := os.read(descriptor, min(size, at_once)):
        size -= len(block)
        yield block


def _decompressed(blocks: Iterable[bytes], where: str) -> Iterator[bytes]:
    """One gzip member after another; zeros between and behind them are padding."""
    engine = zlib.decompressobj(_GZIP_WINDOW)
    read = made = 0
    for block in blocks:
        read += len(block)
        left = block
        while True:
            if engine.eof:
                left = left.lstrip(b"\0")
                if not left:
                    break
                engine = zlib.decompressobj(_GZIP_WINDOW)
            try:
                piece = engine.decompress(left, BLOCK_BYTES)
            except zlib.error as error:
                raise _unreadable(where, f"damaged gzip: {error}", "a whole gzip file") from error
            made += len(piece)
            if made > max(_RATIO_FROM, _MOST_RATIO * read):
                most = f"at most {_MOST_RATIO} times as many: this is no trace"
                raise _unreadable(where, f"{made} bytes out of {read} compressed ones", most)
            left = engine.unused_data if engine.eof else engine.unconsumed_tail
            if piece:
                yield piece
            elif not left:  # with no input left, what it still holds comes out first
                break
    if not engine.eof:
        raise _unreadable(where, "the gzip stream ends in the middle", "a whole gzip file")


def _unreadable(where: str, got: str, expected: str) -> TraceError:
    return TraceError("cannot read the trace", where=where, got=got, expected=expected)
