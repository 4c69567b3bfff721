"""This suite's workloads.

All that it needs to be measured, judged and reported comes from the plugin.
"""

from collections.abc import Iterator

import pytest
import torch

from kernelgauge import Run, Sibling, Workload
from workloads import WORKLOADS


def pytest_kernelgauge_workloads() -> list[Workload]:
    return WORKLOADS


@pytest.fixture
def clean_compiler() -> Iterator[None]:
    """Compile from nothing, and leave nothing that another test could run or time instead of its
    own graph.
    """
    _reset_compiler()
    yield
    _reset_compiler()


def _reset_compiler() -> None:
    from torch._dynamo.utils import counters

    torch.compiler.reset()
    counters.clear()


@pytest.fixture
def eager(sibling: Sibling) -> Run:
    """Return the run of the same workload in eager mode."""
    return sibling(variant="eager")
