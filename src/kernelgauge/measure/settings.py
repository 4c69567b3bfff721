"""How long to measure."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["WARM_UP_CALLS", "WARM_UP_SECONDS", "Settings"]

WARM_UP_CALLS = 3  # CUDA graphs record on the second call and replay from the third
WARM_UP_SECONDS = 0.02


@dataclass(frozen=True)
class Settings:
    """How long to measure.

    Attributes:
        replicates: fresh allocations for each timer.
        iterations: calls in each replicate, at most.
        seconds: time for the calls of one replicate of one timer; fewer calls are made if they are slow.
        warm_up_seconds: time before each replicate, so that the clock is up.
        host_iterations: calls in each replicate of the host dispatch time, at most.
    """

    replicates: int = 4
    iterations: int = 40
    warm_up_seconds: float = WARM_UP_SECONDS
    seconds: float = 1.0
    host_iterations: int = 100

    def iterations_for(self, call_us: float) -> int:
        """At least three, so that a median means something."""
        return max(3, min(self.iterations, self._affordable(call_us)))

    def host_iterations_for(self, call_us: float) -> int:
        """The same for the host dispatch time."""
        return max(3, min(self.host_iterations, self._affordable(call_us)))

    def _affordable(self, call_us: float) -> int:
        return int(self.seconds * 1e6 / max(call_us, 1.0))
