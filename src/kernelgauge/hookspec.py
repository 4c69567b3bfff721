"""The hook by which a suite declares its workloads, and names that `plugin.py` shares with what it loads later."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .workload import Workload


__all__ = ["SENSITIVITY", "SESSION_KEY", "pytest_kernelgauge_workloads"]

SENSITIVITY = "kernelgauge_sensitivity"  # an ini option
SESSION_KEY = pytest.StashKey[pytest.Session]()


@pytest.hookspec
def pytest_kernelgauge_workloads(config: pytest.Config) -> Iterable[Workload]:  # type: ignore[empty-body]
    """Return the workloads of a suite. Implement it in the `conftest.py` of the suite's folder, or in a plugin.

    `config` may be left out, as in any hook of pytest.
    """
