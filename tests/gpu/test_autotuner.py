"""What Inductor's autotuner asks of the process: how far below its peak of memory it is when a workload compiles."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from kernelgauge import Workload

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

GIB = 1 << 30


class Looks(nn.Module):
    """Keeps what the autotuner would find when the module is called first (torch/_inductor/runtime/triton_heuristics.py)."""

    spare: int | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.spare is None:
            self.spare = torch.accelerator.max_memory_allocated() - torch.accelerator.memory_allocated()
        return x + 1


def test_peak_of_memory_does_not_depend_on_what_ran_before() -> None:
    from kernelgauge.measure.device import CudaDevice
    from kernelgauge.measure.runner import measure_groups
    from kernelgauge.measure.settings import Settings

    device = CudaDevice()
    torch.empty(2 * GIB, dtype=torch.int8, device=device.torch_device)
    modules: list[Looks] = []

    def build() -> nn.Module:
        modules.append(Looks())
        return modules[-1]

    workload = Workload(module="looks", variant="eager", build=build, inputs=lambda: (torch.randn(1024),))
    list(measure_groups([workload], device, device.fingerprint(), Settings(), timed=False))
    (module,) = modules
    assert module.spare is not None
    assert module.spare <= GIB // 64
