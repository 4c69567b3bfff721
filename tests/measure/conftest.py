"""What the tests of measuring share: a workload of a few numbers, and a GPU that only exists in recorded traces."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from kernelgauge import Workload
from kernelgauge.measure.device.cpu import CpuDevice
from kernelgauge.measure.device.cuda import CudaDevice
from kernelgauge.measure.settings import Settings
from kernelgauge.trace import Trace, parse

RECORDED = Path(__file__).parents[1] / "data" / "h200"


class RecordedGpu(CudaDevice):
    """Reads the launches of recorded traces; needs no GPU, because it never touches one."""

    def __init__(self) -> None:
        pass


@pytest.fixture
def cpu() -> CpuDevice:
    return CpuDevice()


@pytest.fixture
def gpu() -> RecordedGpu:
    return RecordedGpu()


@pytest.fixture
def quick() -> Settings:
    """Long enough to have every part of a measurement, and no longer."""
    return Settings(replicates=2, iterations=3, seconds=0.01, warm_up_seconds=0)


@pytest.fixture
def tiny() -> Callable[..., Workload]:
    """Makes a workload: a linear of 4 x 3 on five rows, with the fields that a test is about."""

    def make(**fields: Any) -> Workload:
        linear: dict[str, Any] = {
            "module": "tiny",
            "variant": "eager",
            "build": lambda: nn.Linear(4, 3),
            "inputs": lambda: (torch.randn(5, 4),),
            "dtype": "fp32",
        }
        return Workload(**{**linear, **fields})

    return make


@pytest.fixture
def recorded() -> Callable[[str], dict[str, Any]]:
    """Reads a trace of an H200 as JSON, for a test to damage."""

    def load(name: str) -> dict[str, Any]:
        content: dict[str, Any] = json.loads(gzip.decompress((RECORDED / f"{name}.json.gz").read_bytes()))
        return content

    return load


@pytest.fixture
def as_trace() -> Callable[[dict[str, Any]], Trace]:
    return lambda content: parse(json.dumps(content).encode())
