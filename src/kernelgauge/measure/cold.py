"""Proof that a flushed cache is cold: measured on this GPU, in this process, instead of assumed."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle
from statistics import median

import torch

from ..errors import MeasurementError
from ..workload import Workload
from .device import Device
from .instance import Instance, reporting
from .profile import profile_session

__all__ = ["require_cold_cache"]

_ITERATIONS = 10
# Of the difference between a read from the cache and one from memory: what a flushed read must show at least.
_COLD_SHARE = 0.8
# An H200 reads 24 MiB in 13.0 us from its L2 and in 16.2 from memory. With less difference nothing can be proven.
_TELLING = 1.05
_PROBE = Workload(module="read", variant="probe", build=lambda: None, inputs=lambda: (), dtype="fp16")


def require_cold_cache(device: Device, cache_bytes: int) -> None:
    """Compare three reads of a part of the cache's size: just read, flushed, and of memory that was never cached.

    The last one, of buffers that together are four times the cache, does not rely on the flush that is to be proven.

    Raises `MeasurementError` if what was flushed is still warm, `WorkloadError` if it cannot be read.
    """
    elements = int(0.4 * cache_bytes) // 2
    with reporting(_PROBE, "proving that the cache is cold"):
        buffers = torch.randn(elements * 10, device=device.torch_device, dtype=torch.float16).chunk(10)
        probe, turns = buffers[0], cycle(buffers)
        warm_us = _read_us(device, probe.amax, prepare=probe.amax, flush=False)
        flushed_us = _read_us(device, probe.amax, prepare=probe.amax, flush=True)
        cold_us = _read_us(device, lambda: next(turns).amax(), prepare=lambda: None, flush=False)
    if cold_us < _TELLING * warm_us:  # a cache that is no faster than the memory cannot spoil a time either
        return
    if flushed_us < warm_us + _COLD_SHARE * (cold_us - warm_us):
        raise MeasurementError(
            "the cache is not cold when it should be",
            got=f"a flushed read of {elements * 2 >> 20} MiB takes {flushed_us:.2f} us",
            expected=f"about the {cold_us:.2f} us that it takes from memory; from the cache it takes {warm_us:.2f}",
            next_command="open an issue with the name of the GPU: its cache needs another flush",
        )


def _read_us(device: Device, read: Callable[[], object], *, prepare: Callable[[], object], flush: bool) -> float:
    def before() -> None:
        prepare()

    instance = Instance(
        workload=_PROBE,
        call=read,
        prepare=before,
        module=None,
        inputs=(),
        outputs=read,
        _padding=torch.empty(0),
    )
    session = profile_session(device, instance, iterations=_ITERATIONS, warmup=_ITERATIONS, flush=flush)
    return median(sum(each.duration_us for each in executions) for executions in session.executions)
