"""A regular file, read in blocks, that somebody else may write to."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import IO

import pytest

from kernelgauge.files import ChangedFileError, blocks_of_file

BLOCK = 1 << 16


def written(folder: Path) -> Path:
    (folder / "file").write_bytes(bytes(3 * BLOCK))
    return folder / "file"


def grow(file: IO[bytes]) -> None:
    file.seek(0, os.SEEK_END)
    file.write(bytes(BLOCK))


def rewrite(file: IO[bytes]) -> None:
    file.write(b"x")
    file.flush()
    os.utime(file.name, (1, 1))  # where the clock of the files is too coarse to see it


@pytest.mark.parametrize("change", [grow, rewrite, lambda file: file.truncate(BLOCK + 5)])
def test_blocks_of_changed_file_are_refused(tmp_path: Path, change: Callable[[IO[bytes]], None]) -> None:
    blocks = blocks_of_file(written(tmp_path), BLOCK)
    next(blocks)
    with (tmp_path / "file").open("r+b") as file:
        change(file)
    with pytest.raises(ChangedFileError):
        list(blocks)


def test_blocks_of_growing_file_end(tmp_path: Path) -> None:
    blocks = blocks_of_file(written(tmp_path), BLOCK)
    with (tmp_path / "file").open("ab") as file:
        for _ in range(3):
            file.write(next(blocks) * 2)
            file.flush()
    with pytest.raises(ChangedFileError):
        next(blocks)
