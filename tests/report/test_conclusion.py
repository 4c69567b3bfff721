"""What came of one trace in another, in one sentence."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from kernelgauge.report.conclusion import Comparison, compare_traces, conclusion
from kernelgauge.trace.summary import Summary, summarize_trace
from tests.builders import recorded, trace_of


@cache
def summary(name: str) -> Summary:
    return summarize_trace(recorded(name))


def compared(before: str, after: str) -> Comparison:
    return compare_traces(summary(before), summary(after))


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (
            "mlp-eager",
            "mlp-compiled",
            (
                "compile fused 2 pointwise kernels into 1 and left the 3 GEMMs untouched; "
                "device time 233.9 -> 205.1 us (-12.3 %)"
            ),
        ),
        (
            "mlp-eager",
            "mlp-liger",
            (
                "Liger fused 2 pointwise kernels into 1 and left the 3 GEMMs untouched; "
                "device time 233.9 -> 210.5 us (-10.0 %)"
            ),
        ),
        (
            "mlp-compiled",
            "mlp-compiled-other-autotune",
            (
                "Inductor's autotuner chose another launch configuration for 1 kernel (+18.1 us) and left the 3 GEMMs "
                "untouched; 1 of the others faster (-1.4 us); device time 205.1 -> 218.8 us (+6.7 %)"
            ),
        ),
        (
            "linear-eager",
            "linear-compiled",
            "nothing on the GPU changed: compile only removed dispatch; device time 2.7 -> 2.7 us (-0.4 %)",
        ),
        (
            "matmul_add-eager",
            "matmul_add-compiled",
            "1 pointwise kernel went into the epilogue of 1 GEMM; device time 4.4 -> 2.6 us (-40.6 %)",
        ),
        (
            "mlp-compiled",
            "mlp-eager",
            ("1 pointwise kernel split into 2 and left the 3 GEMMs untouched; device time 205.1 -> 233.9 us (+14.0 %)"),
        ),
        (
            "mlp-eager",
            "mlp-eager",
            "nothing on the GPU changed, nor on the host; device time 233.9 -> 233.9 us (+0.0 %)",
        ),
    ],
)
def test_the_recorded_traces_of_an_h200_are_told_apart_in_one_sentence(before: str, after: str, said: str) -> None:
    assert conclusion(compared(before, after)) == said


@pytest.mark.parametrize(
    ("before", "after", "changed"),
    [
        ("mlp-eager", "mlp-compiled", True),
        ("linear-eager", "linear-compiled", False),
        ("mlp-eager", "mlp-eager", False),
    ],
)
def test_other_kernels_are_a_change_and_other_ops_of_the_host_are_none(before: str, after: str, changed: bool) -> None:
    assert compared(before, after).gpu_changed is changed


def test_the_same_kernels_that_are_slower_are_no_unchanged_gpu() -> None:
    before = summary("mlp-compiled")
    kernels = tuple(
        replace(kernel, durations_us=tuple(1.8 * us for us in kernel.durations_us)) for kernel in before.lane.kernels
    )
    after = replace(before, lane=replace(before.lane, kernels=kernels))
    assert conclusion(compare_traces(before, after)) == (
        "the same kernels ran, 4 of them slower (+164.1 us), nor on the host; device time 205.1 -> 369.2 us (+80.0 %)"
    )


def test_two_traces_without_kernels_are_compared_too() -> None:
    empty = summarize_trace(trace_of())
    assert conclusion(compare_traces(empty, empty)) == "neither trace has kernels; device time 0.0 -> 0.0 us"
