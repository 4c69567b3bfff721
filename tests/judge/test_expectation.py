"""What a workload must show, where it holds, and how a mismatch reads."""

from __future__ import annotations

from typing import Any

import pytest

from kernelgauge.judge import Expectation, applicable, mismatches
from tests.builders import DOWN, FUSED, GEMM, counts, fingerprint, launched, run

A100 = fingerprint(device="NVIDIA A100-SXM4-80GB", arch="sm_80", sm_count=108, cuda="12.4")
CPU = fingerprint(device="AMD EPYC", arch="cpu", sm_count=None, cuda=None)
H200 = fingerprint()
BRACKETS = "void f<int[2]>(char*)"  # as an fnmatch pattern alone it would not match itself


@pytest.mark.parametrize(
    ("where", "holds"),
    [
        ({}, [H200, A100, CPU]),
        ({"arch": "gpu"}, [H200, A100]),
        ({"arch": "cpu"}, [CPU]),
        ({"arch": "sm_90"}, [H200]),
        ({"arch": "sm_90", "cuda": "13.0"}, [H200]),
        ({"arch": "sm_90", "cuda": "12.4"}, []),
        ({"cuda": "12.4"}, [A100]),
        ({"arch": "gpu", "cuda": "13.0"}, [H200]),
    ],
)
def test_expectation_applies_to_its_arch_and_cuda(where: Any, holds: list[Any]) -> None:
    expectation, anywhere = Expectation("seen", **where), Expectation("anywhere")
    for machine in (H200, A100, CPU):
        expected = [expectation, anywhere] if machine in holds else [anywhere]
        assert applicable([expectation, anywhere], machine) == expected


@pytest.mark.parametrize(
    "expected",
    [
        {},
        {"kinds": ("gemm", "gemm", "pointwise", "gemm")},
        {"names": (GEMM, GEMM, FUSED, DOWN)},
        {"names": ("nvjet_*", "*_TNT", "triton_poi_fused_*gelu*_0", "nvjet_sm90_tst_192x128_*")},
        {"memsets": 2},
        {"occupancy_queries": 3},
        {"launch_apis": ("cuLaunchKernelEx", "cuLaunch*")},
    ],
)
def test_mismatches_of_declared_run_are_none(expected: dict[str, Any]) -> None:
    observed = run(launch_apis=("cuLaunchKernelEx", "cuLaunchKernel"), occupancy_queries=3)
    assert mismatches(Expectation("seen", **expected), observed) == []


def test_mismatches_of_name_with_brackets_are_none() -> None:
    assert mismatches(Expectation("seen", names=(BRACKETS,)), run(kernels=(launched(BRACKETS, 1.0),))) == []


@pytest.mark.parametrize(
    "expected",
    [
        {"kinds": ("gemm", "pointwise", "gemm", "gemm")},
        {"kinds": ()},
        {"names": (GEMM, GEMM, FUSED, GEMM)},
        {"names": (GEMM, GEMM, FUSED)},
        {"names": (GEMM.upper(), GEMM, FUSED, DOWN)},
        {"names": ("nvjet", "*", "*", "*")},
        {"memsets": 0},
        {"occupancy_queries": 1},
        {"launch_apis": ("cudaLaunchKernel",)},
    ],
)
def test_mismatch_names_its_source(expected: dict[str, Any]) -> None:
    (line,) = mismatches(Expectation("seen on an H200", **expected), run())
    assert line.endswith("\n    source   seen on an H200")


@pytest.mark.parametrize(
    ("kinds", "lines"),
    [
        (("gemm", "gemm", "pointwise", "pointwise", "gemm"), ["4. gemm   <- expected pointwise", "5. (nothing)   <- expected gemm"]),
        (("gemm", "gemm", "pointwise"), ["4. gemm   <- expected (nothing)"]),
    ],
)  # fmt: skip
def test_mismatch_lists_each_launch(kinds: tuple[str, ...], lines: list[str]) -> None:
    (mismatch,) = mismatches(Expectation("article", kinds=kinds), run())
    shown = [f"kernel kinds: got 4, expected {len(kinds)}", "1. gemm", "2. gemm", "3. pointwise", *lines]
    assert mismatch == "\n    ".join([*shown, "source   article"])


def test_mismatches_are_all_named() -> None:
    expectation = Expectation("seen", kinds=("gemm",), names=("*",), memsets=0, occupancy_queries=1)
    lines = mismatches(expectation, run(counts=counts(memsets=2)))
    assert [line.split("\n")[0] for line in lines] == [
        "kernel kinds: got 4, expected 1",
        "kernel names: got 4, expected 1",
        "memsets: got 2, expected 0",
        "occupancy queries: got 0, expected 1",
    ]
