"""What the tests of baselines on a disk share."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelgauge.baselines import BaselineStore
from kernelgauge.judge.review import Action, PlannedChange
from tests.builders import baseline

DEVICE = "NVIDIA H200"


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def create(workload: str, **changes: object) -> PlannedChange:
    return PlannedChange(Action.CREATE, workload, baseline(workload=workload, **changes))  # type: ignore[arg-type]


@pytest.fixture
def store(tmp_path: Path) -> BaselineStore:
    return BaselineStore(tmp_path / "baselines")
