"""How long to measure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

__all__ = ["Settings"]

# No GPU workload takes a second; a GEMM in bf16 on a processor that has none takes several.
_SLOW_CALL_US = 1e6
_SLOW_REPLICATES = 2  # the fewest that show a spread
_FEWEST_CALLS = 3  # so that there is a middle
_WARM_UP_SHARE = 2  # half as many calls again come before those that count
# However heavy they are: the lower decile of three calls lies far above that of thirty, and their middle half is all of them.
_FEWEST_HEAVY_CALLS = 8


@dataclass(frozen=True)
class Settings:
    """How long to measure.

    Many short replicates: an H200 changes its speed by 0.1 to 0.2 % about every tenth of a second and keeps it in between,
    so that of an MLP more calls in one replicate tell little that is new, and another replicate does; of kernels of 3 us, whose
    replicates differ more, that is as good (docs/measuring.md).

    Attributes:
        replicates: fresh allocations for each timer, at least.
        most_replicates: and at most.
        precision: no more of them are made once the standard error of the device time is below this fraction of it
            and of `precision_us`, whichever is larger.
        budget_seconds: for the replicates of one workload; none are added beyond it.
        iterations: calls in each replicate, at most.
        seconds: time for the calls of one replicate of one timer; fewer calls are made if they are slow.
        busy_seconds: and time for those calls that keep a device busy, in a row; eight are made all the same.
        warm_up_seconds: time before each replicate, so that the clock is up.
        host_iterations: calls in each replicate of the host dispatch time, at most.
        latency_replicates, latency_iterations: the same for the end-to-end latency.
    """

    replicates: int = 12
    most_replicates: int = 32
    precision: float = 0.0003
    precision_us: float = 0.006
    budget_seconds: float = 1.5
    iterations: int = 12
    warm_up_seconds: float = 0.005
    seconds: float = 1.0
    busy_seconds: float = math.inf
    host_iterations: int = 30
    latency_replicates: int = 8
    latency_iterations: int = 20

    @classmethod
    def of(cls, replicates: int | None) -> Settings:
        """So many replicates of every timer that count; None: the usual."""
        if replicates is None:
            return cls()
        return cls(
            replicates=replicates,
            most_replicates=replicates,
            latency_replicates=replicates,
            budget_seconds=math.inf,
        )

    def limited(self, most_replicates: int | None, most_busy_seconds: float) -> Settings:
        """Within what a device allows of the device and the dispatch time; None: as many as there are.

        Where a number of replicates was asked for, they are made.
        """
        if most_replicates is None or math.isinf(self.budget_seconds):
            most_replicates = self.most_replicates
        most = min(self.most_replicates, most_replicates)
        return replace(
            self,
            replicates=min(self.replicates, most),
            most_replicates=most,
            busy_seconds=min(self.busy_seconds, most_busy_seconds),
        )

    def for_call(self, call_us: float) -> Settings:
        """Fewer replicates of a call that takes seconds: the usual ones would take a quarter of an hour.

        Where a number of replicates was asked for, they are made.
        """
        if call_us < _SLOW_CALL_US or math.isinf(self.budget_seconds):
            return self
        few = min(self.replicates, _SLOW_REPLICATES)
        latency = min(self.latency_replicates, _SLOW_REPLICATES)
        return replace(self, replicates=few, most_replicates=few, latency_replicates=latency)

    def iterations_for(self, call_us: float) -> int:
        """Return the calls in a replicate of the device time, where one takes so long."""
        return self._calls(self.iterations, call_us, self.busy_seconds)

    def warm_up_calls_for(self, call_us: float) -> int:
        """Return the calls in a session before those: the clock fell while it was started."""
        return 1 if call_us >= _SLOW_CALL_US else 1 + self.iterations_for(call_us) // _WARM_UP_SHARE

    def host_iterations_for(self, call_us: float) -> int:
        """Return the same for the host dispatch time."""
        return self._calls(self.host_iterations, call_us, self.busy_seconds)

    def latency_iterations_for(self, call_us: float) -> int:
        """Return the same for the end-to-end latency."""
        return self._calls(self.latency_iterations, call_us)

    def is_enough(self, times_us: Sequence[float], seconds: float) -> bool:
        """Whether these replicates, which took so many seconds, pin the mean down or have used up the budget.

        It stops on the width of the interval, never on where it lies, so it favours no verdict: Chow and Robbins, "On the
        asymptotic theory of fixed-width sequential confidence intervals", 1965. (Their result is for many replicates; with
        few, the spread that stopped it is a little too small, and the prior on it makes up for that.)
        """
        count = len(times_us)
        if count < self.replicates:
            return False
        if count >= self.most_replicates or seconds * (count + 1) / count > self.budget_seconds:
            return True
        mean = math.fsum(times_us) / count
        error = math.sqrt(math.fsum((time - mean) ** 2 for time in times_us) / (count - 1) / count)
        return error <= max(self.precision * mean, self.precision_us)

    def _calls(self, most: int, call_us: float, busy_seconds: float = math.inf) -> int:
        call_s = max(call_us, 1.0) / 1e6
        few_enough = max(_FEWEST_HEAVY_CALLS, busy_seconds / call_s)
        return max(_FEWEST_CALLS, int(min(most, self.seconds / call_s, few_enough)))
