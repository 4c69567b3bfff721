"""Liger's Triton kernels, compiled for GPUs by their names: on any machine, without a GPU and
without a clock.
"""

from __future__ import annotations

from typing import Any

import pytest

from gallery import TRITON_KERNELS
from kernelgauge import Workload

pytest.importorskip("liger_kernel")


@pytest.mark.parametrize("target", ["sm_90", "sm_100"])
@pytest.mark.parametrize("kernels", TRITON_KERNELS, ids=lambda each: each.module)
def test_code(kernelgauge: Any, kernels: Workload, target: str) -> None:
    """Registers, spills, shared memory and occupancy are those of the baseline."""
    kernelgauge.using(target=target)(kernels)
