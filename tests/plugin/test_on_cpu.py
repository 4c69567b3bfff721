"""What runs where there is no GPU: workloads sized for a CPU, and no test that needs a GPU."""

from __future__ import annotations

import pytest

SUITE = """
import pytest
from kernelgauge import Workload

def linear(variant, rows, on_cpu=None, **fields):
    return Workload("linear", variant, build=lambda: None, inputs=tuple, shape=(rows,), on_cpu=on_cpu, **fields)

def pytest_kernelgauge_workloads():
    return [
        linear("eager", 4096, linear("eager", 16, "the size of a GPU", dtype="fp32"), matrix="full"),
        linear("compiled", 4096, linear("compiled", 16, dtype="fp32"), faster_than="eager"),
        linear("triton", 4096, "Triton code"),
        linear("compiled", 8192, linear("compiled", 16, dtype="fp32")),  # the same form
        linear("any", 8),
    ]
"""

TESTS = """
import pytest

def test_any(workload):
    assert not workload.variant == "triton"

@pytest.mark.gpu
def test_on_a_gpu(workload):
    pass

@pytest.mark.gpu  # of another project
def test_of_nothing():
    pass
"""


@pytest.fixture
def suite(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makeconftest(SUITE)
    pytester.makepyfile(TESTS)
    return pytester


@pytest.mark.parametrize(
    ("arguments", "ids"),
    [
        ((), ["compiled-fp32-16", "any-bf16-8"]),
        (("--perf-matrix", "full"), ["eager-fp32-16", "compiled-fp32-16", "any-bf16-8"]),
        (("--perf-strict",), ["compiled-fp32-16", "triton-bf16-4096", "any-bf16-8"]),
    ],
)
def test_cpu_gets_the_workloads_sized_for_it(
    suite: pytest.Pytester, arguments: tuple[str, ...], ids: list[str]
) -> None:
    result = suite.runpytest("--perf-device", "cpu", "--collect-only", "-q", *arguments)
    tests = [line.partition("::")[2] for line in result.outlines if "::" in line]
    assert tests == [*(f"test_any[linear-{each}]" for each in ids), "test_of_nothing"]
