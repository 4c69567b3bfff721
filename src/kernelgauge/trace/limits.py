"""What a GPU can do at most, as its vendor publishes it, and what share of that an op reached."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from types import MappingProxyType

from .work import Work

__all__ = ["DeviceLimits", "LimitShare", "limits_of", "share_of_limit"]


@dataclass(frozen=True)
class DeviceLimits:
    """Published peaks of one GPU: at boost clock, without sparsity, a multiply-add counted as 2."""

    name: str
    memory_gb_per_s: float  # 10^9 bytes
    tflop_per_s: Mapping[str, float]  # by dtype: bf16, fp16, tf32, fp32, fp64, fp8, int8; only what is published
    source: str


@dataclass(frozen=True)
class LimitShare:
    """How near an op came to the limit that binds it."""

    limit: str  # "memory", or the dtype whose arithmetic binds
    share: float  # 1 is the published peak; more if the data came from a cache, or the GPU clocks higher
    achieved: float
    unit: str  # "GB/s" or "TFLOP/s"


def _limits(name: str, memory_gb_per_s: float, source: str, /, **tflop_per_s: float) -> DeviceLimits:
    return DeviceLimits(name, memory_gb_per_s, MappingProxyType(tflop_per_s), source)


# Peaks are those of the matrix units where a type has them (Tensor Cores, Matrix Cores), with sums in fp32: on GeForce
# cards sums in fp16 are twice as fast. Some figures NVIDIA prints only with sparsity, twice as high: "/ 2" is ours.
_SXM_HOPPER = {
    "fp64": 67.0, "fp32": 67.0, "tf32": 989 / 2, "bf16": 1979 / 2, "fp16": 1979 / 2, "fp8": 3958 / 2, "int8": 3958 / 2,
}  # fmt: skip
_A100 = {"fp64": 19.5, "fp32": 19.5, "tf32": 156.0, "bf16": 312.0, "fp16": 312.0, "int8": 624.0}
_A100_SOURCE = "NVIDIA A100 Tensor Core GPU datasheet"
_V100_SOURCE = "NVIDIA V100 Tensor Core GPU datasheet"
_ALL = (
    _limits(
        "NVIDIA B200", 8000,
        # The table for FP8 and memory is of eight GPUs. What other editions disagree on (TF32, FP32, FP64) is left out.
        "NVIDIA DGX B200 datasheet; NVIDIA Blackwell Architecture Technical Brief, HGX B200",
        bf16=4500 / 2, fp16=4500 / 2, fp8=9000 / 2,
    ),
    _limits("NVIDIA H200", 4800, "NVIDIA H200 Tensor Core GPU datasheet, H200 SXM", **_SXM_HOPPER),
    _limits("NVIDIA H100 80GB HBM3", 3350, "NVIDIA H100 Tensor Core GPU datasheet, H100 SXM", **_SXM_HOPPER),
    _limits(
        "NVIDIA H100 PCIe", 2000, "NVIDIA H100 Tensor Core GPU datasheet, H100 PCIe",
        fp64=51, fp32=51, tf32=756 / 2, bf16=1513 / 2, fp16=1513 / 2, fp8=3026 / 2, int8=3026 / 2,
    ),
    _limits("NVIDIA A100-SXM4-80GB", 2039, _A100_SOURCE, **_A100),
    _limits("NVIDIA A100 80GB PCIe", 1935, _A100_SOURCE, **_A100),
    _limits("NVIDIA A100-SXM4-40GB", 1555, _A100_SOURCE, **_A100),
    _limits("NVIDIA A100-PCIE-40GB", 1555, _A100_SOURCE, **_A100),
    _limits(
        "NVIDIA L40S", 864, "NVIDIA L40S GPU datasheet",
        fp32=91.6, tf32=183, bf16=362.05, fp16=362.05, fp8=733, int8=733,
    ),
    _limits(
        "NVIDIA L4", 300, "NVIDIA L4 Tensor Core GPU datasheet",
        fp32=30.3, tf32=120 / 2, bf16=242 / 2, fp16=242 / 2, fp8=485 / 2, int8=485 / 2,
    ),
    _limits(
        "NVIDIA A10", 600, "NVIDIA A10 Tensor Core GPU datasheet", fp32=31.2, tf32=62.5, bf16=125, fp16=125, int8=250,
    ),
    _limits(
        "NVIDIA GeForce RTX 4090", 1008, "NVIDIA Ada GPU Architecture whitepaper v2.02, appendix A",
        fp32=82.6, tf32=82.6, bf16=165.2, fp16=165.2, fp8=330.3, int8=660.6,
    ),
    _limits(
        "NVIDIA GeForce RTX 3090", 936, "NVIDIA Ampere GA102 GPU Architecture whitepaper v2, appendix A",
        fp32=35.6, tf32=35.6, bf16=71, fp16=71, int8=284,
    ),
    # The datasheets of the V100 and the T4 have no bf16, and no TF32.
    _limits("Tesla V100-SXM2-16GB", 900, _V100_SOURCE, fp64=7.8, fp32=15.7, fp16=125),
    _limits("Tesla V100-SXM2-32GB", 900, _V100_SOURCE, fp64=7.8, fp32=15.7, fp16=125),
    _limits("Tesla V100-PCIE-16GB", 900, _V100_SOURCE, fp64=7, fp32=14, fp16=112),
    _limits("Tesla V100-PCIE-32GB", 900, _V100_SOURCE, fp64=7, fp32=14, fp16=112),
    # The datasheet has 300 GB/s, the product page "320+", which is what 256 bits at 10 Gbit/s give.
    _limits("Tesla T4", 320, "NVIDIA T4 Tensor Core GPU datasheet and product page", fp32=8.1, fp16=65, int8=130),
    _limits(
        "AMD Instinct MI300X", 5300, "AMD Instinct MI300X accelerator data sheet",
        fp64=163.4, fp32=163.4, tf32=653.7, bf16=1307.4, fp16=1307.4, fp8=2614.9, int8=2614.9,
    ),
    # The data sheet's figures are of a module; a device of PyTorch is one of its two dies.
    _limits(
        "AMD Instinct MI250X", 3200 / 2, "AMD Instinct MI200 series data sheet, MI250X: half of a module",
        fp64=95.7 / 2, fp32=95.7 / 2, bf16=383 / 2, fp16=383 / 2, int8=383 / 2,
    ),
)  # fmt: skip
_BY_NAME = MappingProxyType({limits.name: limits for limits in _ALL})


def limits_of(device_name: str) -> DeviceLimits | None:
    """Return the peaks of a device by the name in a trace's `deviceProperties`; None for one that is not known.

    Only whole names are known: "NVIDIA H100 PCIe" is another GPU than "NVIDIA H100 80GB HBM3", "NVIDIA A10G" than
    "NVIDIA A10", and "NVIDIA A100-SXM4-40GB MIG 1g.5gb" is a part of one. Old drivers leave out "NVIDIA ".
    """
    name = device_name.strip()
    return _BY_NAME.get(name) or _BY_NAME.get(f"NVIDIA {name}")


def share_of_limit(work: Work, device_time_us: float, dtype: str | None, limits: DeviceLimits) -> LimitShare | None:
    """Return which limit binds an op, and what share of it was reached in `device_time_us` microseconds.

    The limit that binds is the one that takes longer: `work.bytes` at the memory's peak, or `work.flops` at that of
    `dtype` ("fp32" is no Tensor Core's: a product that may use TF32 is "tf32"). None where FLOPs or bytes are not known
    or have no published peak, for what binds is then not known, and where there is no work or no time.
    """
    if work.bytes is None or not 0 < device_time_us < inf:  # NaN fails too
        return None
    memory_us = work.bytes / limits.memory_gb_per_s / 1e3
    if work.flops:
        peak = limits.tflop_per_s.get(dtype) if dtype is not None else None
        if dtype is None or peak is None:
            return None
        compute_us = work.flops / peak / 1e6
        if compute_us > memory_us:
            return LimitShare(dtype, compute_us / device_time_us, work.flops / device_time_us / 1e6, "TFLOP/s")
    if memory_us > 0:
        return LimitShare("memory", memory_us / device_time_us, work.bytes / device_time_us / 1e3, "GB/s")
    return None
