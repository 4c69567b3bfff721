"""What the machine is and which software it runs."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypedDict

import torch

__all__ = ["GpuSettings", "cpu_name", "gpu_settings", "software"]


class Software(TypedDict):
    torch: str
    triton: str | None
    liger_kernel: str | None
    python: str
    fp32_matmul: str


@dataclass(frozen=True)
class GpuSettings:
    """What only NVML knows. None: there is no NVML, or it does not say."""

    driver: str | None = None
    power_limit_watts: float | None = None
    mig: bool | None = None


def software() -> Software:
    """Return the versions and settings that decide which kernels run."""
    return {
        "torch": str(torch.__version__),  # a TorchVersion, which is no plain string
        "triton": _version("triton"),
        "liger_kernel": _version("liger-kernel"),
        "python": ".".join(platform.python_version_tuple()[:2]),  # a patch release changes no kernel
        "fp32_matmul": torch.get_float32_matmul_precision(),
    }


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def gpu_settings(uuid: str) -> GpuSettings:
    """Read the settings of one GPU, found by UUID: NVML's index is not CUDA's (nsight-python#35)."""
    try:
        import pynvml
    except ImportError:
        return GpuSettings()
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return GpuSettings()
    try:
        driver = pynvml.nvmlSystemGetDriverVersion()
        try:
            handle, is_mig = _handle(pynvml, uuid)
        except pynvml.NVMLError:
            return GpuSettings(driver=driver)
        return GpuSettings(
            driver=driver,
            power_limit_watts=_power_limit(pynvml, handle),
            mig=is_mig or _mig_mode(pynvml, handle),
        )
    except pynvml.NVMLError:
        return GpuSettings()
    finally:
        pynvml.nvmlShutdown()


def _handle(pynvml: Any, uuid: str) -> tuple[Any, bool]:  # pynvml has no types
    """The device of that UUID, and whether it is a slice of a GPU."""
    try:
        return pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}"), False
    except pynvml.NVMLError:
        return pynvml.nvmlDeviceGetHandleByUUID(f"MIG-{uuid}"), True


def _power_limit(pynvml: Any, handle: Any) -> float | None:
    try:
        return float(pynvml.nvmlDeviceGetEnforcedPowerLimit(handle)) / 1000  # milliwatts
    except pynvml.NVMLError:
        return None


def _mig_mode(pynvml: Any, handle: Any) -> bool:
    try:
        current, _pending = pynvml.nvmlDeviceGetMigMode(handle)
        return bool(current)
    except pynvml.NVMLError:  # a GPU without MIG says so by an error
        return False


def cpu_name() -> str:
    """The processor's name as the system gives it."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name" and value.strip():
                return value.strip()
    except OSError:
        pass  # not Linux
    return platform.processor() or platform.machine() or "unknown"
