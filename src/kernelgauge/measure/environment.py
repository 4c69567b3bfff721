"""What the machine is and which software it runs."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TypedDict

import torch

__all__ = ["cpu_name", "software"]


class Software(TypedDict):
    torch: str
    triton: str | None
    liger_kernel: str | None
    python: str
    fp32_matmul: str


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
