"""What Inductor logs of its choices is read as it is written (torch/_inductor/runtime/triton_heuristics.py)."""

from __future__ import annotations

import logging
from types import SimpleNamespace

from autotuner import Told

KERNEL = "triton_poi_fused__unsafe_view_gelu_mul_0"


def record(message: str, *arguments: object) -> logging.LogRecord:
    return logging.LogRecord("torch._inductor", logging.DEBUG, "", 0, message, arguments, None)


def config(xblock: int, warps: int) -> SimpleNamespace:
    return SimpleNamespace(kwargs={"XBLOCK": xblock}, num_warps=warps)


def test_each_configuration_of_a_kernel_is_told_in_microseconds() -> None:
    told = Told()
    told.emit(record("CachingAutotuner gets %d configs for %s", 2, KERNEL))
    told.emit(record("Benchmark all input configs for %s, get:", KERNEL))
    for each, milliseconds in ((config(1024, 4), 0.95), (config(512, 8), 0.125)):
        told.emit(record("%s: %f, nreg %d, nspill %d, #shared-mem %s", each, milliseconds, 32, 0, 0))
    told.emit(record("nothing that has arguments"))
    assert told.timed_us == {KERNEL: {"XBLOCK=1024/4": 950.0, "XBLOCK=512/8": 125.0}}
