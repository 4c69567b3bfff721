"""Published peaks of GPUs, and what share of them an op reached."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan

import pytest

from kernelgauge.trace.limits import Limits, Share, limits_of, share_of_limit
from kernelgauge.trace.work import Work
from tests.builders import recorded

NAMES = [
    "NVIDIA B200", "NVIDIA H200", "NVIDIA H100 80GB HBM3", "NVIDIA H100 PCIe", "NVIDIA A100-SXM4-80GB",
    "NVIDIA A100 80GB PCIe", "NVIDIA A100-SXM4-40GB", "NVIDIA A100-PCIE-40GB", "NVIDIA L40S", "NVIDIA L4", "NVIDIA A10",
    "NVIDIA GeForce RTX 4090", "NVIDIA GeForce RTX 3090", "Tesla V100-SXM2-16GB", "Tesla V100-SXM2-32GB",
    "Tesla V100-PCIE-16GB", "Tesla V100-PCIE-32GB", "Tesla T4", "AMD Instinct MI300X", "AMD Instinct MI250X",
]  # fmt: skip


def known(name: str) -> Limits:
    limits = limits_of(name)
    assert limits is not None
    return limits


H200 = known("NVIDIA H200")
ROUND = Limits("round", 1000, {"bf16": 100.0, "fp32": 10.0, "tf32": 50.0}, "no GPU")  # 1 GB a ms, 100 GFLOP a ms


def test_the_device_of_the_recorded_traces_is_known() -> None:
    (device,) = recorded("mlp-eager").device_properties
    limits = limits_of(str(device["name"]))
    assert limits is not None
    assert (limits.memory_gb_per_s, limits.tflop_per_s["bf16"]) == (4800, 989.5)


@pytest.mark.parametrize("name", NAMES)
def test_every_gpu_has_a_source_and_peaks_that_rise_as_types_shrink(name: str) -> None:
    limits = known(name)
    peaks = limits.tflop_per_s
    assert limits.name == name
    assert limits.source.startswith(("NVIDIA ", "AMD "))
    assert set(peaks) <= {"bf16", "fp16", "tf32", "fp32", "fp64", "fp8", "int8"}
    assert peaks.get("bf16", peaks["fp16"]) == peaks["fp16"]
    ladder = [peaks[dtype] for dtype in ("fp64", "fp32", "tf32", "fp16", "fp8", "int8") if dtype in peaks]
    assert ladder == sorted(ladder)
    assert ladder[0] > 0


@pytest.mark.parametrize(
    "name",
    [
        "", "NVIDIA", "NVIDIA H100", "H100", "NVIDIA H100 NVL", "NVIDIA H200 NVL", "NVIDIA H200 MIG 1g.18gb",
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb", "NVIDIA A10G", "NVIDIA L40", "NVIDIA L", "NVIDIA GB200", "NVIDIA T4",
        "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA GeForce RTX 4090 D", "AMD Instinct MI250X/MI250", "nvidia h200",
        "Tesla V100-SXM2-16GB-LS", "\x1b[31mNVIDIA H200",
    ],
)  # fmt: skip
def test_a_name_that_is_only_like_one_is_not_known(name: str) -> None:
    assert limits_of(name) is None


def test_names_of_old_drivers_and_padded_names_are_known() -> None:
    assert limits_of("A100-SXM4-40GB") is known("NVIDIA A100-SXM4-40GB")
    assert limits_of(" NVIDIA H200\n") is H200


def test_gpus_of_one_family_keep_their_own_limits() -> None:
    memory = [known(f"NVIDIA A100{kind}").memory_gb_per_s for kind in ("-SXM4-80GB", " 80GB PCIe", "-PCIE-40GB")]
    assert memory == [2039, 1935, 1555]
    sxm, pcie = known("NVIDIA H100 80GB HBM3"), known("NVIDIA H100 PCIe")
    assert (sxm.memory_gb_per_s, pcie.memory_gb_per_s) == (3350, 2000)
    assert (sxm.tflop_per_s["bf16"], pcie.tflop_per_s["bf16"]) == (989.5, 756.5)
    assert sxm.tflop_per_s == H200.tflop_per_s


def test_types_that_a_gpu_does_not_have_are_not_there() -> None:
    assert "bf16" not in known("Tesla V100-SXM2-32GB").tflop_per_s
    assert "fp8" not in known("NVIDIA A100-SXM4-80GB").tflop_per_s
    with pytest.raises(TypeError):
        H200.tflop_per_s["fp4"] = 1.0  # type: ignore[index]


# -- shares ---------------------------------------------------------------------------------------------------------


def test_the_gate_of_the_mlp_is_bound_by_arithmetic_on_an_h200() -> None:
    # 38.65 GFLOP at 989.5 TFLOP/s take 39.06 us, 67.6 MB at 4.8 TB/s take 14.09 us.
    gate = Work(38_654_705_664.0, 67_633_152.0)
    found = share_of_limit(gate, 50.0, "bf16", H200)
    assert found is not None
    assert (found.limit, found.unit) == ("bf16", "TFLOP/s")
    assert found.share == pytest.approx(39.065 / 50, rel=1e-4)
    assert found.achieved == pytest.approx(773.09, rel=1e-4)


def test_the_gelu_of_the_mlp_is_bound_by_memory() -> None:
    found = share_of_limit(Work(None, 100_663_296.0), 30.0, "bf16", H200)
    assert found is not None
    assert (found.limit, found.unit) == ("memory", "GB/s")
    assert found.achieved == pytest.approx(3355.44, rel=1e-5)
    assert found.share == pytest.approx(3355.44 / 4800, rel=1e-5)


@pytest.mark.parametrize(
    ("work", "dtype", "expected"),
    [
        (Work(1e11, 2e9), "bf16", Share("memory", 0.5, 500.0, "GB/s")),  # 1 ms of arithmetic, 2 ms of memory
        (Work(3e11, 2e9), "bf16", Share("bf16", 0.75, 75.0, "TFLOP/s")),
        (Work(3e11, 2e9), "tf32", Share("tf32", 1.5, 75.0, "TFLOP/s")),
        (Work(3e11, 2e9), "fp32", Share("fp32", 7.5, 75.0, "TFLOP/s")),  # as no tensor core would be used
        (Work(None, 2e9), None, Share("memory", 0.5, 500.0, "GB/s")),
        (Work(0.0, 2e9), None, Share("memory", 0.5, 500.0, "GB/s")),
    ],
)
def test_the_limit_that_takes_longer_binds(work: Work, dtype: str | None, expected: Share) -> None:
    found = share_of_limit(work, 4000.0, dtype, ROUND)
    assert found is not None
    assert found == replace(expected, share=pytest.approx(expected.share), achieved=pytest.approx(expected.achieved))


@pytest.mark.parametrize(
    ("work", "dtype"),
    [
        (Work(1e11, 2e9), None),
        (Work(1e11, 2e9), "fp8"),
        (Work(1e11, None), "bf16"),
        (Work(None, None), "bf16"),
        (Work(0.0, 0.0), "bf16"),
        (Work(None, 0.0), None),
    ],
)
def test_without_both_sides_nothing_is_said_of_what_binds(work: Work, dtype: str | None) -> None:
    assert share_of_limit(work, 4000.0, dtype, ROUND) is None


@pytest.mark.parametrize("time", [0.0, -1.0, inf, nan])
def test_a_time_that_is_none_has_no_share(time: float) -> None:
    assert share_of_limit(Work(1e11, 2e9), time, "bf16", ROUND) is None
