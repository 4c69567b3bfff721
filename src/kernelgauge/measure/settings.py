"""How long to measure."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Settings"]


@dataclass(frozen=True)
class Settings:
    """How long to measure.

    Attributes:
        replicates: fresh allocations for each timer.
        iterations: calls in each replicate, at most.
        seconds: time for the calls of one replicate of one timer; fewer calls are made if they are slow.
        warm_up_seconds: time before each replicate, so that the clock is up.
    """

    replicates: int = 4
    iterations: int = 40
    seconds: float = 1.0
    warm_up_seconds: float = 0.02

    def iterations_for(self, call_us: float) -> int:
        """At least three, so that a median means something."""
        return max(3, min(self.iterations, int(self.seconds * 1e6 / max(call_us, 1.0))))
