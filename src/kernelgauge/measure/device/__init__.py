"""Devices: CUDA and the CPU behind one protocol."""

from __future__ import annotations

from typing import Literal

import torch

from ...errors import KernelgaugeError
from .base import Device, Execution, HostSpeed
from .cpu import CpuDevice
from .cuda import CudaDevice, roof

__all__ = ["CudaDevice", "Device", "DeviceChoice", "Execution", "HostSpeed", "choose_device", "roof"]

DeviceChoice = Literal["auto", "cuda", "cpu"]


def choose_device(choice: DeviceChoice) -> Device:
    """Return the device to measure on. ``auto``: a GPU if there is one. Raises `KernelgaugeError` if ``cuda`` is not there."""
    if choice == "cpu" or (choice == "auto" and not torch.cuda.is_available()):
        return CpuDevice()
    if not torch.cuda.is_available():
        built = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built without CUDA"
        raise KernelgaugeError(
            "no CUDA device",
            got=f"torch {torch.__version__}, {built}; torch.cuda.is_available() is False",
            expected="an NVIDIA GPU, its driver, and a torch built for CUDA",
            next_command="nvidia-smi   (does the driver see the GPU?)   or: pytest perf --perf-device cpu",
        )
    return CudaDevice()
