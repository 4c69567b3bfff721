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


_TYPES = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "int8")


def _limits(name: str, memory_gb_per_s: float, tflop_per_s: str, source: str) -> DeviceLimits:
    peaks = {dtype: float(peak) for dtype, peak in zip(_TYPES, tflop_per_s.split(), strict=True) if peak != "-"}
    return DeviceLimits(name, memory_gb_per_s, MappingProxyType(peaks), source)


# Peaks are those of the matrix units where a type has them (Tensor Cores, Matrix Cores), with sums in fp32: on GeForce
# cards sums in fp16 are twice as fast. Of figures that NVIDIA prints only with sparsity, it is half.
# fmt: off
_ALL = (
    # GB/s; TFLOP/s in fp64, fp32, tf32, bf16, fp16, fp8 and int8
    # The table for FP8 and memory is of eight GPUs. What other editions disagree on (TF32, FP32, FP64) is left out.
    _limits("NVIDIA B200", 8000, "- - - 2250 2250 4500 -",
            "NVIDIA DGX B200 datasheet; NVIDIA Blackwell Architecture Technical Brief, HGX B200"),
    _limits("NVIDIA H200", 4800, "67 67 494.5 989.5 989.5 1979 1979",
            "NVIDIA H200 Tensor Core GPU datasheet, H200 SXM"),
    _limits("NVIDIA H100 80GB HBM3", 3350, "67 67 494.5 989.5 989.5 1979 1979",
            "NVIDIA H100 Tensor Core GPU datasheet, H100 SXM"),
    _limits("NVIDIA H100 PCIe", 2000, "51 51 378 756.5 756.5 1513 1513",
            "NVIDIA H100 Tensor Core GPU datasheet, H100 PCIe"),
    _limits("NVIDIA A100-SXM4-80GB", 2039, "19.5 19.5 156 312 312 - 624", "NVIDIA A100 Tensor Core GPU datasheet"),
    _limits("NVIDIA A100 80GB PCIe", 1935, "19.5 19.5 156 312 312 - 624", "NVIDIA A100 Tensor Core GPU datasheet"),
    _limits("NVIDIA A100-SXM4-40GB", 1555, "19.5 19.5 156 312 312 - 624", "NVIDIA A100 Tensor Core GPU datasheet"),
    _limits("NVIDIA A100-PCIE-40GB", 1555, "19.5 19.5 156 312 312 - 624", "NVIDIA A100 Tensor Core GPU datasheet"),
    _limits("NVIDIA L40S", 864, "- 91.6 183 362.05 362.05 733 733", "NVIDIA L40S GPU datasheet"),
    _limits("NVIDIA L4", 300, "- 30.3 60 121 121 242.5 242.5", "NVIDIA L4 Tensor Core GPU datasheet"),
    _limits("NVIDIA A10", 600, "- 31.2 62.5 125 125 - 250", "NVIDIA A10 Tensor Core GPU datasheet"),
    _limits("NVIDIA GeForce RTX 4090", 1008, "- 82.6 82.6 165.2 165.2 330.3 660.6",
            "NVIDIA Ada GPU Architecture whitepaper v2.02, appendix A"),
    _limits("NVIDIA GeForce RTX 3090", 936, "- 35.6 35.6 71 71 - 284",
            "NVIDIA Ampere GA102 GPU Architecture whitepaper v2, appendix A"),
    # The datasheets of the V100 and the T4 have no bf16, and no TF32.
    _limits("Tesla V100-SXM2-16GB", 900, "7.8 15.7 - - 125 - -", "NVIDIA V100 Tensor Core GPU datasheet"),
    _limits("Tesla V100-SXM2-32GB", 900, "7.8 15.7 - - 125 - -", "NVIDIA V100 Tensor Core GPU datasheet"),
    _limits("Tesla V100-PCIE-16GB", 900, "7 14 - - 112 - -", "NVIDIA V100 Tensor Core GPU datasheet"),
    _limits("Tesla V100-PCIE-32GB", 900, "7 14 - - 112 - -", "NVIDIA V100 Tensor Core GPU datasheet"),
    # The datasheet has 300 GB/s, the product page "320+", which is what 256 bits at 10 Gbit/s give.
    _limits("Tesla T4", 320, "- 8.1 - - 65 - 130", "NVIDIA T4 Tensor Core GPU datasheet and product page"),
    _limits("AMD Instinct MI300X", 5300, "163.4 163.4 653.7 1307.4 1307.4 2614.9 2614.9",
            "AMD Instinct MI300X accelerator data sheet"),
    # The data sheet's figures are of a module; a device of PyTorch is one of its two dies.
    _limits("AMD Instinct MI250X", 1600, "47.85 47.85 - 191.5 191.5 - 191.5",
            "AMD Instinct MI200 series data sheet, MI250X: half of a module"),
)
# fmt: on
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
