"""The hook by which a suite declares its workloads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .workload import Workload


@pytest.hookspec
def pytest_kernelgauge_workloads() -> Iterable[Workload]:  # type: ignore[empty-body]  # a specification has none
    """Return the workloads of the suite in this folder. Implement it in the folder's `conftest.py`."""
