"""This suite's workloads. All that it needs to be measured, judged and reported comes from the plugin."""

from collections.abc import Callable, Iterator

import pytest

from kernelgauge import Run, Workload
from kernelgauge.gauge import Gauge
from kernelgauge.measure.compiler import reset_compiler
from workloads import WORKLOADS


def pytest_kernelgauge_workloads() -> list[Workload]:
    return WORKLOADS


@pytest.fixture
def clean_compiler() -> Iterator[None]:
    """Compile from nothing, and leave nothing that another test could run or time instead of its own graph."""
    reset_compiler()
    yield
    reset_compiler()


@pytest.fixture
def eager(workload: Workload, gauge: Gauge, available: Callable[[Callable[[], Run]], Run]) -> Run:
    """The run of the same workload in eager mode."""
    return available(lambda: gauge.observed.run(gauge.suites.sibling(workload, variant="eager")))
