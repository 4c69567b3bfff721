"""How fast the host is right now.

A virtual machine's cores change speed by a factor of two for tenths of a second to many seconds, whatever runs on them: a
neighbour on the sibling hyperthread, say. A fixed piece of dispatch work, timed beside each measurement, shows it. What
is discarded is chosen by that control alone, never by the time that is being measured.
"""

from __future__ import annotations

import time
from statistics import quantiles

import torch

__all__ = ["HostSpeed"]

_OPS = 10  # dispatcher calls in one control: about 14 us where an H200's host is fast, 25 to 30 where it is slow
_SAMPLES = 10
# Fast processes on one machine spread by 23 % (13.2 to 16.2 us), the slow mode starts at 70 % more.
_SLOW = 1.3
_PAUSE_SECONDS = 0.05


class HostSpeed:
    """The control, and the fastest that it was in this session. `patience_seconds`: for all waiting of the session."""

    def __init__(self, *, patience_seconds: float = 10.0) -> None:
        self.fastest_us = float("inf")
        self._patience_seconds = patience_seconds
        self._tensor = torch.zeros(1)

    def control_us(self) -> float:
        """Lower decile of a few controls, in microseconds."""
        durations = []
        for _ in range(_SAMPLES):
            start = time.perf_counter_ns()
            for _ in range(_OPS):
                self._tensor.view(1)
            durations.append(time.perf_counter_ns() - start)
        lowest = quantiles(durations, n=10, method="inclusive")[0] / 1000
        self.fastest_us = min(self.fastest_us, lowest)
        return lowest

    def is_slow(self, control_us: float) -> bool:
        return control_us > _SLOW * self.fastest_us

    def wait_until_fast(self) -> float:
        """Wait while the host is slow, as long as the session's patience lasts; returns the last control."""
        control = self.control_us()
        while self.is_slow(control) and self.pause():
            control = self.control_us()
        return control

    def pause(self) -> bool:
        """Wait a moment, out of the session's patience; False, at once, if none is left."""
        if self._patience_seconds <= 0:
            return False
        self._patience_seconds -= _PAUSE_SECONDS
        time.sleep(_PAUSE_SECONDS)
        return True
