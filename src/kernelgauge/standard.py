"""The tests that every suite gets: ``from kernelgauge.standard import *`` in a test file beside its
`conftest.py`.

Their marks select them: ``pytest perf -m "not timing"`` needs no quiet machine. Each mark names the
verdict that its test asks for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from .judge import DECLARED, NUMERICS, RATIO, STRUCTURE
from .plugin.fixtures import replayed_clock
from .run import Timer

__all__ = [
    "test_cold_compile_time",
    "test_device_time",
    "test_end_to_end_latency",
    "test_faster_than_other_variant",
    "test_host_dispatch_time",
    "test_kernels_and_graphs_are_as_declared",
    "test_result_matches_float64",
    "test_structure_is_that_of_the_baseline",
    "test_warm_compile_time",
]
_End = Callable[..., None]  # ends a test with the verdict that its mark names


@pytest.mark.structure(DECLARED)
def test_kernels_and_graphs_are_as_declared(kernelgauge_test: _End) -> None:
    """Every expectation that holds for this machine, and nothing compiled again on fresh
    allocations.
    """
    kernelgauge_test()


@pytest.mark.structure(STRUCTURE)
def test_structure_is_that_of_the_baseline(kernelgauge_test: _End) -> None:
    """Kernels (names, order, launches) and counts, exactly."""
    kernelgauge_test()


@pytest.mark.timing(Timer.DEVICE.label)
def test_device_time(kernelgauge_test: _End) -> None:
    """Sum of kernel durations, cold L2."""
    kernelgauge_test()


@pytest.mark.timing(RATIO)
def test_faster_than_other_variant(kernelgauge_test: _End) -> None:
    """GPU time against that of another variant in this run, for each workload with
    `Workload.faster_than`. No baseline.
    """
    kernelgauge_test()


@pytest.mark.timing(Timer.HOST.label)
def test_host_dispatch_time(kernelgauge_test: _End) -> None:
    """Host time until the call returns, on an idle device."""
    kernelgauge_test()


@pytest.mark.timing(Timer.END_TO_END.label)
@pytest.mark.usefixtures("run")
@pytest.mark.benchmark(timer=replayed_clock, disable_gc=True)
def test_end_to_end_latency(kernelgauge_test: _End, benchmark: Any) -> None:
    """Host time from the call to its synchronised result, cold L2."""
    kernelgauge_test(benchmark)


@pytest.mark.timing(Timer.COLD_COMPILE.label)
def test_cold_compile_time(kernelgauge_test: _End) -> None:
    """Host time of a first call that compiles with empty caches: --perf-compile measures it."""
    kernelgauge_test()


@pytest.mark.timing(Timer.WARM_COMPILE.label)
def test_warm_compile_time(kernelgauge_test: _End) -> None:
    """Host time of a first call that finds its code in the caches: --perf-compile measures it."""
    kernelgauge_test()


@pytest.mark.numerics(NUMERICS)
def test_result_matches_float64(kernelgauge_test: _End) -> None:
    """The workload computes the same function as its reference in float64, on fresh random
    input.
    """
    kernelgauge_test()
