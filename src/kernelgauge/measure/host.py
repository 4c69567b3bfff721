"""How fast the host is right now.

A virtual machine's cores change speed by a factor of two for tenths of a second to many seconds, whatever runs on them. Another
machine's work on the sibling hyperthread is one reason. A fixed piece of work, the host reference, is timed beside each
measurement and shows it. It alone decides what is discarded, never the time that is being measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import quantiles

__all__ = ["HostSpeed"]

_SAMPLES = 10
# Fast processes on one machine spread by 25 %, the slow mode starts at 60 % more.
_SLOW = 1.3
_PAUSE_SECONDS = 0.05


class HostSpeed:
    """The control, and the fastest that it was so far in this process.

    Args:
        work: what is timed. It does not depend on any workload.
        wait: makes the device idle before each, if there is one.
        patience_seconds: for all waiting of the session; what is left of it.
    """

    def __init__(
        self, work: Callable[[], None], *, wait: Callable[[], None] = lambda: None, patience_seconds: float = 3.0
    ) -> None:
        self.fastest_us = float("inf")
        self._work = work
        self._wait = wait
        self.patience_seconds = patience_seconds

    def once_us(self) -> float:
        """One control, in microseconds."""
        self._wait()
        start = time.perf_counter_ns()
        self._work()
        return (time.perf_counter_ns() - start) / 1000

    def round_trip_us(self) -> float:
        """One control and the wait for its end, in microseconds: what a latency has of the host."""
        self._wait()
        start = time.perf_counter_ns()
        self._work()
        self._wait()
        return (time.perf_counter_ns() - start) / 1000

    def control_us(self) -> float:
        """Lower decile of a few controls, in microseconds."""
        lowest = quantiles([self.once_us() for _ in range(_SAMPLES)], n=10, method="inclusive")[0]
        self.fastest_us = min(self.fastest_us, lowest)
        return lowest

    def wait_until_fast(self) -> None:
        """Wait while the host is slow, as long as the session's patience lasts."""
        while self.control_us() > _SLOW * self.fastest_us and self.patience_seconds > 0:
            self.patience_seconds -= _PAUSE_SECONDS
            time.sleep(_PAUSE_SECONDS)
