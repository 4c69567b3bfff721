"""What a workload must show, where it holds, and how a mismatch reads."""

from __future__ import annotations

from typing import Any

import pytest

from kernelgauge.judge import Expectation, applicable, mismatches
from kernelgauge.run import Fingerprint
from tests.builders import DOWN, FUSED, GEMM, counts, fingerprint, run

A100 = fingerprint(device="NVIDIA A100-SXM4-80GB", arch="sm_80", sm_count=108, cuda="12.4")
CPU = fingerprint(device="AMD EPYC", arch="cpu", sm_count=None, cuda=None)
GPU = fingerprint()


@pytest.mark.parametrize(
    ("arch", "cuda", "holds"),
    [
        (None, None, [GPU, A100, CPU]),
        ("gpu", None, [GPU, A100]),
        ("cpu", None, [CPU]),
        ("sm_90", None, [GPU]),
        ("sm_80", None, [A100]),
        ("sm_90", "13.0", [GPU]),
        ("sm_90", "12.4", []),
        (None, "12.4", [A100]),
        ("gpu", "13.0", [GPU]),
    ],
)
def test_an_expectation_holds_for_its_architecture_and_cuda(
    arch: str | None, cuda: str | None, holds: list[Fingerprint]
) -> None:
    expectation = Expectation("seen", arch=arch, cuda=cuda)
    assert [machine for machine in (GPU, A100, CPU) if expectation.holds_for(machine)] == holds


def test_only_what_holds_here_is_applicable_in_order() -> None:
    here, there, anywhere = Expectation("a", arch="sm_90"), Expectation("b", arch="sm_80"), Expectation("c")
    assert applicable([here, there, anywhere], GPU) == [here, anywhere]


def test_fields_left_out_expect_nothing() -> None:
    assert mismatches(Expectation("seen"), run()) == []


@pytest.mark.parametrize(
    "expected",
    [
        {"kinds": ("gemm", "gemm", "pointwise", "gemm")},
        {"names": (GEMM, GEMM, FUSED, DOWN)},
        {"names": ("nvjet_*", "*_TNT", "triton_poi_fused_*gelu*_0", "nvjet_sm90_tst_192x128_*")},
        {"memsets": 2},
        {"occupancy_queries": 3},
        {"launch_apis": ("cuLaunchKernelEx", "cuLaunch*")},
    ],
)
def test_what_is_as_declared_is_no_mismatch(expected: dict[str, Any]) -> None:
    observed = run(launch_apis=("cuLaunchKernelEx", "cuLaunchKernel"), occupancy_queries=3)
    assert mismatches(Expectation("seen", **expected), observed) == []


@pytest.mark.parametrize(
    "expected",
    [
        {"kinds": ("gemm", "pointwise", "gemm", "gemm")},
        {"kinds": ("gemm", "gemm", "pointwise")},
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
def test_what_is_otherwise_is_one_mismatch_that_names_its_source(expected: dict[str, Any]) -> None:
    (line,) = mismatches(Expectation("seen on an H200", **expected), run())
    assert line.endswith("\n    source   seen on an H200")


def test_a_name_with_brackets_matches_itself() -> None:
    expectation = Expectation("seen", names=(GEMM, GEMM, "void f<int[2]>(char*)", DOWN))
    kernels = run().kernels
    identity = type(kernels[0].identity)("void f<int[2]>(char*)", "other")
    observed = run(kernels=(*kernels[:2], type(kernels[0])(identity, 1.0), kernels[3]))
    assert mismatches(expectation, observed) == []  # as an fnmatch pattern alone it would not


def test_a_mismatch_lists_each_launch_and_what_was_expected_in_its_place() -> None:
    expectation = Expectation("article", kinds=("gemm", "gemm", "pointwise", "pointwise", "gemm"))
    (mismatch,) = mismatches(expectation, run())
    assert mismatch == (
        "kernel kinds: got 4, expected 5\n"
        "    1. gemm\n"
        "    2. gemm\n"
        "    3. pointwise\n"
        "    4. gemm   <- expected pointwise\n"
        "    5. (nothing)   <- expected gemm\n"
        "    source   article"
    )


def test_a_launch_too_many_is_listed_too() -> None:
    (line,) = mismatches(Expectation("seen", kinds=("gemm", "gemm", "pointwise")), run())
    assert "    4. gemm   <- expected (nothing)" in line


def test_every_mismatch_is_named_not_only_the_first() -> None:
    expectation = Expectation("seen", kinds=("gemm",), names=("*",), memsets=0, occupancy_queries=1)
    lines = mismatches(expectation, run(counts=counts(memsets=2)))
    starts = [line.split("\n")[0] for line in lines]
    assert starts == [
        "kernel kinds: got 4, expected 1",
        "kernel names: got 4, expected 1",
        "memsets: got 2, expected 0",
        "occupancy queries: got 0, expected 1",
    ]
