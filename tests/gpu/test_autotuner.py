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


@pytest.mark.parametrize(("memory_to_spare", "least", "most"), [(False, 0, GIB // 64), (True, GIB, 1 << 60)])
def test_how_far_below_its_peak_a_process_is_does_not_depend_on_what_it_did_before(
    memory_to_spare: bool, least: int, most: int
) -> None:
    from kernelgauge.measure.device import CudaDevice
    from kernelgauge.measure.preparing import prepare_together
    from kernelgauge.measure.settings import Settings

    device = CudaDevice()
    torch.empty(2 * GIB, dtype=torch.int8, device=device.torch_device)
    modules: list[Looks] = []

    def build() -> nn.Module:
        modules.append(Looks())
        return modules[-1]

    workload = Workload(module="looks", variant="eager", build=build, inputs=lambda: (torch.randn(1024),))
    prepare_together([workload], device, Settings(memory_to_spare=memory_to_spare), {}, lambda _: None)
    (module,) = modules
    assert module.spare is not None
    assert least <= module.spare <= most
