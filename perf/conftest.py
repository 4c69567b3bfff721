"""This suite's workloads. All that it needs to be measured, judged and reported comes from the plugin."""

from collections.abc import Callable

import pytest

from kernelgauge import Run, Workload
from kernelgauge.gauge import Gauge
from workloads import WORKLOADS


def pytest_kernelgauge_workloads() -> list[Workload]:
    return WORKLOADS


@pytest.fixture
def eager(workload: Workload, gauge: Gauge, available: Callable[[Callable[[], Run]], Run]) -> Run:
    """The run of the same workload in eager mode."""
    return available(lambda: gauge.run(gauge.sibling(workload, variant="eager")))
