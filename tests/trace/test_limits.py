"""Published peaks of GPUs, and what share of them an op reached."""

from __future__ import annotations

import pytest

from kernelgauge.trace.limits import DeviceLimits, limits_of, share_of_limit
from kernelgauge.trace.work import Work

PEAKS = {  # GB/s, and TFLOP/s in bf16 (fp16 where there is none): as the vendors' datasheets have them
    "NVIDIA B200": (8000, 2250), "NVIDIA H200": (4800, 989.5), "NVIDIA H100 80GB HBM3": (3350, 989.5),
    "NVIDIA H100 PCIe": (2000, 756.5), "NVIDIA A100-SXM4-80GB": (2039, 312), "NVIDIA A100 80GB PCIe": (1935, 312),
    "NVIDIA A100-SXM4-40GB": (1555, 312), "NVIDIA A100-PCIE-40GB": (1555, 312), "NVIDIA L40S": (864, 362.05),
    "NVIDIA L4": (300, 121), "NVIDIA A10": (600, 125), "NVIDIA GeForce RTX 4090": (1008, 165.2),
    "NVIDIA GeForce RTX 3090": (936, 71), "Tesla V100-SXM2-16GB": (900, 125), "Tesla V100-SXM2-32GB": (900, 125),
    "Tesla V100-PCIE-16GB": (900, 112), "Tesla V100-PCIE-32GB": (900, 112), "Tesla T4": (320, 65),
    "AMD Instinct MI300X": (5300, 1307.4), "AMD Instinct MI250X": (1600, 191.5),
}  # fmt: skip
ROUND = DeviceLimits("round", 1000, {"bf16": 100.0, "fp32": 10.0, "tf32": 50.0}, "no GPU")  # 1 GB a ms, 100 GFLOP a ms


@pytest.mark.parametrize("name", PEAKS)
def test_limits_are_those_of_the_datasheet(name: str) -> None:
    limits = limits_of(name)
    peaks = limits.tflop_per_s
    assert (limits.memory_gb_per_s, peaks.get("bf16", peaks["fp16"])) == PEAKS[name]
    assert peaks.get("bf16", peaks["fp16"]) == peaks["fp16"]
    assert limits.source.startswith(("NVIDIA ", "AMD "))
    assert set(peaks) <= {"bf16", "fp16", "tf32", "fp32", "fp64", "fp8", "int8"}
    ladder = [peaks[dtype] for dtype in ("fp64", "fp32", "tf32", "fp16", "fp8", "int8") if dtype in peaks]
    assert ladder == sorted(ladder)  # a smaller type is no slower


@pytest.mark.parametrize(
    "name",
    [
        "", "NVIDIA", "NVIDIA H100", "H100", "NVIDIA H100 NVL", "NVIDIA H200 NVL", "NVIDIA H200 MIG 1g.18gb",
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb", "NVIDIA A10G", "NVIDIA L40", "NVIDIA L", "NVIDIA GB200", "NVIDIA T4",
        "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA GeForce RTX 4090 D", "AMD Instinct MI250X/MI250", "nvidia h200",
        "Tesla V100-SXM2-16GB-LS", "\x1b[31mNVIDIA H200",
    ],
)  # fmt: skip
def test_limits_of_a_similar_name_are_unknown(name: str) -> None:
    assert limits_of(name) is None


@pytest.mark.parametrize(
    ("name", "known"), [("A100-SXM4-40GB", "NVIDIA A100-SXM4-40GB"), (" NVIDIA H200\n", "NVIDIA H200")]
)
def test_limits_of_old_or_padded_name_are_known(name: str, known: str) -> None:
    assert limits_of(name) == limits_of(known) is not None


@pytest.mark.parametrize(
    ("work", "dtype", "expected"),
    [
        (Work(1e11, 2e9), "bf16", ("memory", 0.5, 500.0, "GB/s")),  # 1 ms of arithmetic, 2 ms of memory
        (Work(3e11, 2e9), "bf16", ("bf16", 0.75, 75.0, "TFLOP/s")),
        (Work(3e11, 2e9), "tf32", ("tf32", 1.5, 75.0, "TFLOP/s")),
        (Work(3e11, 2e9), "fp32", ("fp32", 7.5, 75.0, "TFLOP/s")),  # as no tensor core would be used
        (Work(None, 2e9), None, ("memory", 0.5, 500.0, "GB/s")),
        (Work(0.0, 2e9), None, ("memory", 0.5, 500.0, "GB/s")),
        *((Work(1e11, 2e9), dtype, None) for dtype in (None, "fp8")),
        *((work, "bf16", None) for work in (Work(1e11, None), Work(None, None), Work(0.0, 0.0), Work(None, 0.0))),
    ],
)
def test_share_is_of_the_limit_that_binds(
    work: Work, dtype: str | None, expected: tuple[str, float, float, str] | None
) -> None:
    found = share_of_limit(work, 4000.0, dtype, ROUND)
    if expected is None or found is None:
        assert found is expected
    else:
        said = (found.limit, pytest.approx(found.share), pytest.approx(found.achieved), found.unit)
        assert said == expected
