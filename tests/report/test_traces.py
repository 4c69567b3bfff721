"""What changed between two traces, in one sentence."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from kernelgauge.report.traces import TraceComparison, compare_traces, conclusion
from kernelgauge.trace.summary import Summary, summarize_trace
from tests.builders import recorded, trace_of


@cache
def summary(name: str) -> Summary:
    return summarize_trace(recorded(name))


def compared(before: str, after: str) -> TraceComparison:
    return compare_traces(summary(before), summary(after))


TUNED = "Inductor's autotuner chose another launch configuration for 1 kernel (+18.1 us)"
UNTOUCHED = "left the 3 GEMMs untouched"


@pytest.mark.parametrize(
    ("before", "after", "said", "time"),
    [
        ("mlp-eager", "mlp-compiled", f"compile fused 2 pointwise kernels into 1 and {UNTOUCHED}", "233.9 -> 205.1"),
        ("mlp-eager", "mlp-liger", f"Liger fused 2 pointwise kernels into 1 and {UNTOUCHED}", "233.9 -> 210.5"),
        ("mlp-compiled", "mlp-eager", f"1 pointwise kernel split into 2 and {UNTOUCHED}", "205.1 -> 233.9"),
        ("mlp-eager", "mlp-eager", "nothing on the GPU changed, nor on the host", "233.9 -> 233.9"),
        ("linear-eager", "linear-compiled", "nothing on the GPU changed: compile only removed dispatch", "2.7 -> 2.7"),
        (
            "mlp-compiled",
            "mlp-compiled-other-autotune",
            f"{TUNED} and {UNTOUCHED}; 1 of the others faster (-1.4 us)",
            "205.1 -> 218.8",
        ),
        (
            "matmul_add-eager",
            "matmul_add-compiled",
            "1 pointwise kernel went into the epilogue of 1 GEMM",
            "4.4 -> 2.6",
        ),
    ],
)
def test_conclusion_of_recorded_traces(before: str, after: str, said: str, time: str) -> None:
    sentence, _, times = conclusion(compared(before, after)).rpartition("; ")
    assert (sentence, times.partition(" us")[0]) == (said, f"device time {time}")


def test_conclusion_same_kernels_slower_says_so() -> None:
    before = summary("mlp-compiled")
    kernels = tuple(
        replace(kernel, durations_us=tuple(1.8 * us for us in kernel.durations_us)) for kernel in before.lane.kernels
    )
    after = replace(before, lane=replace(before.lane, kernels=kernels))
    assert conclusion(compare_traces(before, after)) == (
        "the same kernels ran, 4 of them slower (+164.1 us), nor on the host; device time 205.1 -> 369.2 us (+80.0 %)"
    )


def test_conclusion_without_kernels_says_so() -> None:
    empty = summarize_trace(trace_of())
    assert conclusion(compare_traces(empty, empty)) == "neither trace has kernels; device time 0.0 -> 0.0 us"


@pytest.mark.parametrize(
    ("before", "after", "changed"),
    [
        ("mlp-eager", "mlp-compiled", True),
        ("linear-eager", "linear-compiled", False),
        ("mlp-eager", "mlp-eager", False),
    ],
)
def test_gpu_changed_ignores_the_host(before: str, after: str, changed: bool) -> None:
    assert compared(before, after).gpu_changed is changed
