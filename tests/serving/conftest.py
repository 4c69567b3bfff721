"""The files that are served."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.serving.served import MEGABYTE, TRACE


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "mlp.json"
    path.write_bytes(TRACE)
    return path


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """More than the buffers of a connection hold; sparse."""
    path = tmp_path / "large.json"
    path.touch()
    os.truncate(path, 64 * MEGABYTE)
    return path
