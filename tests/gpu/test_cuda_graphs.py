"""CUDA graphs as Inductor records them: for the addresses of an instance, and all of them are kept."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from kernelgauge import Workload

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


def test_one_graph_is_recorded_however_many_replicates_are_made() -> None:
    from torch._inductor.cudagraph_trees import get_manager

    from kernelgauge.measure.device import CudaDevice
    from kernelgauge.measure.runner import measure_groups
    from kernelgauge.measure.settings import Settings
    from kernelgauge.measure.subject import Measured

    device = CudaDevice()
    workload = Workload(
        module="linear",
        variant="compiled",
        build=lambda: nn.Sequential(nn.Linear(512, 512), nn.GELU()),
        inputs=lambda: (torch.randn(64, 512),),
        compile={"mode": "reduce-overhead"},
    )
    (group,) = measure_groups([workload], device, device.fingerprint(), Settings(replicates=12))
    result = group.results[workload.id]
    assert isinstance(result, Measured), result
    assert "cudaGraphLaunch" in result.run.launch_apis
    manager = get_manager(torch.cuda.current_device(), create_if_none_exists=False)
    assert manager is not None
    assert len(list(manager.get_roots())) == 1
