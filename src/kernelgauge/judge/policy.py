"""When a change of a timer matters, and how noisy a timer is before anything is known about this machine."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from ..run import Fingerprint, Timer
from ..trace import KernelRecord
from .slope import DISPATCH_SLOPE, LATENCY_SLOPE, SlopePrior
from .stats import Source

__all__ = ["DEFAULT_POLICIES", "FALSE_ALARMS_PER_SUITE", "Policy", "Prior", "policies_for", "policy_for"]

# At most one suite run in a hundred may call unchanged code slower: the probability is shared out over all comparisons
# of the run (Bonferroni), so that a suite of a hundred workloads cries wolf no more often than one of five.
FALSE_ALARMS_PER_SUITE = 0.01


# The latency of an MLP of 200 us, of which an eighth is the host's, spreads by 0.3 to 0.5 % between processes: a quarter
# of what a latency spreads by that is all the host's.
_STEADIEST_SHARE = 0.25

# In deviations: with a baseline of two processes the interval of an unchanged run rarely reaches further.
_NARROW_BLIND = 6
# Of the multiprocessors. On an H200, which has 132, kernels of 64 blocks and more are steady, of 48 and fewer they are not.
_NARROW_SHARE = 0.4


@dataclass(frozen=True)
class Prior:
    """Noise that is expected of a timer. What a baseline shows of its own noise is weighed against it.

    Attributes:
        relative: standard deviation of the logarithm.
        absolute_us: and a part that does not grow with the time: what one kernel's duration can be resolved to.
        degrees: how many observations it counts as.
    """

    relative: float
    absolute_us: float = 0.0
    degrees: float = 10.0

    def weighed(self, mean_us: float, observed: float, degrees: float, *, besides: float = 0.0) -> Source:
        """A variance that was observed and the one expected (`besides` added), weighed by their degrees of freedom.

        The shrinkage of Smyth, "Linear models and empirical Bayes methods for assessing differential expression", 2004.
        """
        total = self.degrees + degrees
        expected = self.variance(mean_us) + besides
        return Source((self.degrees * expected + degrees * observed) / total, total)

    def times(self, share: float) -> Prior:
        return replace(self, relative=share * self.relative)

    def of_each(self, count: int) -> Prior:
        """The same of so many kernels that differ together."""
        return replace(self, absolute_us=count * self.absolute_us)

    def variance(self, mean_us: float) -> float:
        """Of the logarithm of a time of this size."""
        return math.hypot(self.relative, self.absolute_us / mean_us) ** 2


@dataclass(frozen=True)
class Policy:
    """What is asked of one timer. All three gates must agree before anything is called slower or faster.

    Attributes:
        tolerance: relative gate: smaller changes are nobody's concern.
        floor_us: absolute gate, in microseconds: what the timer itself cannot resolve.
        blind: if a slowdown of this fraction *and* of `blind_us` cannot be excluded, nothing was decided.
        blind_us: see `blind`.
        blind_elsewhere_us: the same on a machine that the baseline does not know, if it is more.
        replicate: between replicates of one process.
        process: between processes on one machine, beyond what their replicates show.
        machine: between machines (GPUs, for device time) of one kind; its absolute part is one kernel's.
        beyond_gemm: the same, beyond what the control GEMM tells of a GPU's speed; None: it tells nothing.
        narrow_us: between processes, of each kernel of few blocks, in microseconds: it takes another time in a process that
            did other things before (docs/verdicts.md). A kernel on all multiprocessors waits for the slowest anyway.
        of_the_host: whether these priors are those of a time that is all the host's.
        slope: how the host's part of the time follows the host's speed.

    The third gate is statistical: the interval, at the level of `FALSE_ALARMS_PER_SUITE`, must exclude zero.
    """

    tolerance: float
    floor_us: float
    blind: float
    blind_us: float
    replicate: Prior
    process: Prior
    machine: Prior
    beyond_gemm: Prior | None = None
    narrow_us: float = 0.0
    blind_elsewhere_us: float = 0.0
    of_the_host: bool = True
    slope: SlopePrior = DISPATCH_SLOPE

    def for_share(self, host_share: float) -> Policy:
        """The policy for a time of which only a part is the host's: what the device fills is far steadier."""
        if not self.of_the_host:
            return self
        share = max(host_share, _STEADIEST_SHARE)
        return replace(
            self,
            replicate=self.replicate.times(share),
            process=self.process.times(share),
            machine=self.machine.times(share),
        )

    def for_kernels(self, count: int) -> Policy:
        """The policy for a call of so many kernels: a GPU on which one of them takes longer has the same of each.

        Over 18 H200s, the one kernel of the linear differs by 0.015 us and the two of `x @ w + b` by 0.030 (docs/verdicts.md).
        """
        if count < 2 or not self.machine.absolute_us:
            return self
        return replace(
            self,
            machine=self.machine.of_each(count),
            beyond_gemm=self.beyond_gemm and self.beyond_gemm.of_each(count),
            blind_elsewhere_us=count * self.blind_us,
        )

    def for_narrow(self, count: int) -> Policy:
        """The policy for a call with so many kernels of few blocks."""
        if not count or not self.narrow_us:
            return self
        narrow_us = math.sqrt(count) * self.narrow_us
        return replace(
            self,
            process=replace(self.process, absolute_us=math.hypot(self.process.absolute_us, narrow_us)),
            blind_us=self.blind_us + _NARROW_BLIND * narrow_us,
        )

    def blind_fraction(self, mean_us: float, *, elsewhere: bool = False) -> float:
        blind_us = max(self.blind_us, self.blind_elsewhere_us) if elsewhere else self.blind_us
        return max(self.blind, blind_us / mean_us)


# Priors of processes and machines: docs/measuring.md and docs/verdicts.md, with the commands. Of replicates: the spreads in
# benchmarks/data/host_states (0.1 to 0.3 % of 200 us, 1 % of 3 us; 1 to 2 % of host clocks).
DEFAULT_POLICIES: Mapping[Timer, Policy] = MappingProxyType(
    {
        Timer.DEVICE: Policy(
            tolerance=0.003,
            floor_us=0.03,
            blind=0.02,
            blind_us=0.15,
            replicate=Prior(0.002, absolute_us=0.03, degrees=8.0),
            process=Prior(0.0005, absolute_us=0.012, degrees=20.0),
            machine=Prior(0.0035, absolute_us=0.015, degrees=12.0),
            of_the_host=False,
            beyond_gemm=Prior(0.0022, absolute_us=0.015, degrees=20.0),
            narrow_us=0.045,
        ),
        Timer.END_TO_END: Policy(
            tolerance=0.04,
            floor_us=2.0,
            blind=0.25,
            blind_us=10.0,
            replicate=Prior(0.015, degrees=4.0),
            process=Prior(0.02),
            machine=Prior(0.03),
            slope=LATENCY_SLOPE,
        ),
        Timer.HOST: Policy(
            tolerance=0.03,
            floor_us=1.0,
            blind=0.25,
            blind_us=5.0,
            replicate=Prior(0.017, degrees=4.0),
            process=Prior(0.015),
            machine=Prior(0.02),
        ),
    }
)

# A processor runs other programs too, and nothing is held equal: eight processes of the suite's linears on two cores of a virtual
# machine spread by 4 to 5 % (benchmarks/data/cpu). By the policies of a GPU, 13 % of these comparisons were false alarms.
_ON_A_CPU = Policy(
    tolerance=0.05,
    floor_us=5.0,
    blind=0.5,
    blind_us=20.0,
    replicate=Prior(0.02, degrees=4.0),
    process=Prior(0.05),
    machine=Prior(0.1),
    of_the_host=False,
)
_CPU_POLICIES: Mapping[Timer, Policy] = MappingProxyType(
    {**DEFAULT_POLICIES, Timer.DEVICE: _ON_A_CPU, Timer.END_TO_END: _ON_A_CPU}
)


def policies_for(arch: str) -> Mapping[Timer, Policy]:
    """Of a machine with this architecture (`Fingerprint.arch`)."""
    return _CPU_POLICIES if arch == "cpu" else DEFAULT_POLICIES


def policy_for(timer: Timer, fingerprint: Fingerprint, *launched: Sequence[KernelRecord]) -> Policy:
    """Of a time on this machine; `launched`: the kernels of a call, of each side that is compared."""
    policy, multiprocessors = policies_for(fingerprint.arch)[timer], fingerprint.sm_count or 0
    policy = policy.for_kernels(max(map(len, launched)))
    return policy.for_narrow(max(_narrow(kernels, _NARROW_SHARE * multiprocessors) for kernels in launched))


def _narrow(kernels: Sequence[KernelRecord], blocks: float) -> int:
    grids = [kernel.identity.grid for kernel in kernels]
    return sum(grid is not None and math.prod(grid) < blocks for grid in grids)
