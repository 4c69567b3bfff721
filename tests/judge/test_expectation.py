"""What a workload must show, where it holds, and how a mismatch reads."""

from __future__ import annotations

from typing import Any

import pytest

from kernelgauge.judge.structure import Expectation, mismatches
from tests.builders import DOWN, FUSED, GEMM, counts, fingerprint, launched, run

A100 = fingerprint(device="NVIDIA A100-SXM4-80GB", arch="sm_80", sm_count=108, cuda="12.4")
CPU = fingerprint(device="AMD EPYC", arch="cpu", sm_count=None, cuda=None)
H200 = fingerprint()
BRACKETS = "void f<int[2]>(char*)"  # as an fnmatch pattern alone it would not match itself
APIS = {"launch_apis": ("cuLaunchKernelEx", "cuLaunchKernel"), "occupancy_queries": 3}


@pytest.mark.parametrize(
    ("where", "holds"),
    [
        ({}, [H200, A100, CPU]),
        ({"arch": "gpu"}, [H200, A100]),
        ({"arch": "cpu"}, [CPU]),
        ({"arch": "sm_90", "cuda": "13.0"}, [H200]),
        ({"arch": "sm_90", "cuda": "12.4"}, []),
        ({"cuda": "12.4"}, [A100]),
    ],
)
def test_expectation_applies_to_its_arch_and_cuda(where: Any, holds: list[Any]) -> None:
    expectation = Expectation("seen", **where)
    assert [machine for machine in (H200, A100, CPU) if expectation.holds_for(machine)] == holds


@pytest.mark.parametrize(
    ("expected", "changes"),
    [
        ({}, {}),
        ({"kinds": ("gemm", "gemm", "pointwise", "gemm")}, {}),
        ({"names": (GEMM, GEMM, FUSED, DOWN)}, {}),
        ({"names": ("nvjet_*", "*_TNT", "triton_poi_fused_*gelu*_0", "nvjet_sm90_tst_192x128_*")}, {}),
        ({"names": (BRACKETS,)}, {"kernels": (launched(BRACKETS, 1.0),)}),
        ({"memsets": 2, "occupancy_queries": 3, "launch_apis": ("cuLaunchKernelEx", "cuLaunch*")}, APIS),
    ],
)
def test_mismatches_of_declared_run_are_none(expected: dict[str, Any], changes: dict[str, Any]) -> None:
    assert mismatches(Expectation("seen", **expected), run(**changes)) == []


@pytest.mark.parametrize(
    "expected",
    [
        {"kinds": ("gemm", "pointwise", "gemm", "gemm")},
        {"kinds": ()},
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


def test_mismatches_list_each_launch_and_count() -> None:
    kinds = ("gemm", "gemm", "pointwise", "pointwise", "gemm")
    found = mismatches(Expectation("article", kinds=kinds, names=("*",), memsets=0), run(counts=counts(memsets=3)))
    launches = "1. gemm|2. gemm|3. pointwise|4. gemm   <- expected pointwise|5. (nothing)   <- expected gemm"
    assert found[0] == "\n    ".join(["kernel kinds: got 4, expected 5", *launches.split("|"), "source   article"])
    assert found[1].startswith("kernel names: got 4, expected 1\n")
    assert "\n    4. nvjet_sm90_tst_192x128_64x5_1x2_h_bz_coopB_TNT   <- expected (nothing)\n" in found[1]
    assert found[2] == "memsets: got 3, expected 0\n    source   article"
