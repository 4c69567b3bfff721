"""A pytest plugin that makes the MLPs slower: one more kernel behind each call, SLOWER_PERCENT of its GPU time long."""

from __future__ import annotations

import os
from typing import Any

import torch

from kernelgauge.measure import instance, runner, subject

_GPU_TIME_US = {"mlp-eager": 235.0, "mlp-compiled": 223.0, "mlp-liger": 213.0}  # on an H200
_CYCLES_PER_US = 1980  # its clock
_BUILD = instance.build


def _build(workload: Any, *arguments: Any, **named: Any) -> Any:
    made = _BUILD(workload, *arguments, **named)
    time_us = next((us for name, us in _GPU_TIME_US.items() if workload.id.startswith(name)), None)
    if time_us is None:
        return made
    cycles = round(float(os.environ["SLOWER_PERCENT"]) / 100 * time_us * _CYCLES_PER_US)
    call = made.call

    def slower() -> object:
        result = call()
        torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]
        return result

    made.call = slower
    return made


for module in (runner, subject):
    module.build = _build  # type: ignore[attr-defined]
