"""Exports of Nsight Systems in files of their own, and the traces that are read of them."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import pytest

from kernelgauge.trace.nsys import read_nsys
from tests.trace.nsys_exports import (
    written,
)


@pytest.fixture
def export(tmp_path: Path) -> Any:
    names = (f"{number}.sqlite" for number in count())
    return lambda *rows, **more: written(tmp_path / next(names), *rows, **more)


@pytest.fixture
def trace(export: Any) -> Any:
    return lambda *rows, **more: read_nsys(export(*rows, **more))
