"""Builds, profiles and times workloads. Here is the GPU, and here is the clock.

This module says how long to measure. It imports no torch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev

from ..run import Timer

# No GPU workload takes a second; a GEMM in bf16 on a processor that has none takes several.
_SLOW_CALL_US = 1e6
_SLOW_REPLICATES = 2  # the fewest that show a spread
_FEWEST_CALLS = 3  # so that there is a middle
_WARM_UP_SHARE = 2  # half as many calls again come before those that count
# or as many as take so long: starting the profiler leaves the device idle, and its clock falls
_WARM_UP_SECONDS = 0.05
# However heavy they are. More change neither the mean of the device and dispatch time of a model
# nor their spread (docs/design/measuring.md); the lower decile of three calls lies far above that
# of thirty.
_FEWEST_HEAVY_CALLS = 5
_FEWEST_LATENCY_CALLS = 8
# of a GPU's workload that is over its budget: a decode of a whole model, or a training step
_FEWEST_REPLICATES = 4


@dataclass(frozen=True)
class Settings:
    """How long to measure.

    Many short replicates: an H200 changes its speed by 0.1 to 0.2 % about every tenth of a second
    and keeps it in between, so that more calls in one replicate tell little that is new, and
    another replicate does (docs/design/measuring.md).
    """

    replicates: int = 12  # fresh allocations for each timer, at least
    most_replicates: int = 32
    # the standard error of the device time, as a share of it, below which no more are made
    precision: float = 0.0003
    precision_us: float = 0.006  # the same in microseconds: the larger one counts
    budget_seconds: float = 1.5  # for the replicates of one workload; beyond it four are enough
    iterations: int = 12  # calls in each replicate, at most
    warm_up_seconds: float = 0.005  # before each replicate, so that the clock is up
    # for the calls of one replicate of one timer: fewer are made if they are slow
    seconds: float = 1.0
    # for those that keep a device busy, in a row; five are made all the same
    busy_seconds: float = math.inf
    host_iterations: int = 30  # calls in each replicate of the host dispatch time, at most
    latency_replicates: int = 8
    latency_iterations: int = 20
    # for the calls of one replicate of the latency; if eight take longer, four replicates
    latency_seconds: float = 0.1

    @classmethod
    def of(cls, replicates: int | None) -> Settings:
        """Return settings for so many replicates of every timer, whatever they cost; None: the
        usual.
        """
        if replicates is None:
            return cls()
        return cls(replicates, replicates, latency_replicates=replicates, budget_seconds=math.inf)

    def limited(self, most_replicates: int | None, most_busy_seconds: float) -> Settings:
        """Return these within the limits that a device sets; None: no limit."""
        busy = replace(self, busy_seconds=min(self.busy_seconds, most_busy_seconds))
        return busy if most_replicates is None else busy._with_fewer(most_replicates)

    def for_call(self, call_us: float) -> Settings:
        """Return these with few replicates of a call that takes seconds: the usual ones would take
        a quarter of an hour.
        """
        if call_us >= _SLOW_CALL_US:
            return self._with_fewer(_SLOW_REPLICATES, latency=_SLOW_REPLICATES)
        # so is each replicate of its latency
        is_heavy = _FEWEST_LATENCY_CALLS * call_us > 1e6 * self.latency_seconds
        return (
            self._with_fewer(self.most_replicates, latency=_FEWEST_REPLICATES) if is_heavy else self
        )

    def _with_fewer(self, most: int, *, latency: int | None = None) -> Settings:
        if math.isinf(self.budget_seconds):
            return self  # the number was asked for
        return replace(
            self,
            replicates=min(self.replicates, most),
            most_replicates=min(self.most_replicates, most),
            latency_replicates=min(self.latency_replicates, latency or self.latency_replicates),
        )

    def iterations_for(self, call_us: float, timer: Timer = Timer.DEVICE) -> int:
        """Return the calls in a replicate of a timer, where one takes so long."""
        call_s = max(call_us, 1.0) / 1e6
        heavy = max(_FEWEST_HEAVY_CALLS, self.busy_seconds / call_s)
        most = {
            Timer.DEVICE: min(self.iterations, heavy),
            Timer.HOST: min(self.host_iterations, heavy),
            Timer.END_TO_END: min(
                self.latency_iterations, max(_FEWEST_LATENCY_CALLS, self.latency_seconds / call_s)
            ),
        }
        return max(_FEWEST_CALLS, int(min(most[timer], self.seconds / call_s)))

    def warm_up_calls_for(self, call_us: float) -> int:
        """Return the calls in a session before those of the device time."""
        most = math.ceil(_WARM_UP_SECONDS * 1e6 / max(call_us, 1.0))
        return (
            1
            if call_us >= _SLOW_CALL_US
            else 1 + min(self.iterations_for(call_us) // _WARM_UP_SHARE, most)
        )

    def is_enough(self, times_us: Sequence[float], seconds: float) -> bool:
        """Whether these replicates, which took so many seconds, pin the mean down or have used up
        the budget.

        It stops on the width of the interval, never on where it lies, so it favours no verdict:
        Chow and Robbins, "On the asymptotic theory of fixed-width sequential confidence intervals",
        1965.
        """
        count = len(times_us)
        is_over = count > 0 and seconds * (count + 1) / count > self.budget_seconds
        if count < (min(self.replicates, _FEWEST_REPLICATES) if is_over else self.replicates):
            return False
        if count >= self.most_replicates or is_over:
            return True
        error = stdev(times_us) / math.sqrt(count)
        return error <= max(self.precision * fmean(times_us), self.precision_us)
