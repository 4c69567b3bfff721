"""A suite of other people's kernels, with the public interface alone."""

from importlib.util import find_spec

import pytest

from gallery import WORKLOADS
from kernelgauge import Run, Sibling, Workload


def pytest_kernelgauge_workloads() -> list[Workload]:
    return WORKLOADS


def pytest_report_header() -> list[str]:
    return (
        []
        if find_spec("flash_attn")
        else ["flash-attn is not installed: attention goes without its variant"]
    )


@pytest.fixture
def eager(sibling: Sibling) -> Run:
    """Return the run of the same workload in eager mode."""
    return sibling(variant="eager")
