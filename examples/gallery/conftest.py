"""A suite of other people's kernels, with the public interface alone."""

import pytest

from gallery import WORKLOADS
from kernelgauge import Run, Sibling, Workload


def pytest_kernelgauge_workloads() -> list[Workload]:
    return WORKLOADS


@pytest.fixture
def eager(sibling: Sibling) -> Run:
    """Return the run of the same workload in eager mode."""
    return sibling(variant="eager")
