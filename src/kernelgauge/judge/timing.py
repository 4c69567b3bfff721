"""The rule for times (docs/verdicts.md), as pure numbers: slower, faster, the same, undecided, or
not judged.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pkgutil import get_data
from statistics import fmean, geometric_mean
from typing import NamedTuple

import msgspec

from ..run import (
    CALL_TIMERS,
    MEASURED_GPUS,
    UNKNOWN_FACTOR,
    Fingerprint,
    ProcessTime,
    Timer,
    at_shared_speed,
    by_place,
    mean_of,
    on_same_host,
)
from . import Status
from .evidence import Doubt, NoHostReference, Noise, OtherHostSpeed, RelativeChange, Unclear

# At most so many runs of unchanged code may suspect it, however large the suite: a fresh process
# must be suspect too. What no fresh process confirms has the second level (benchmarks/a_year.py).
SUSPECTS_PER_RUN, FALSE_ALARMS_PER_RUN = 0.05, 0.01
_POWER = 0.95  # the sensitivity of a verdict is the slowdown that would fail in this share of runs
# Unchanged code took at most 1.86 times as long end to end, and 1.29 times to dispatch, beyond what
# the host's own speed explains: in 115,860 pairs of recorded processes of 20 hosts
# (benchmarks/noise.py).
FAR_SLOWER = 2.0
_NODES = 64  # of the quadrature over the spread of a machine: more change no quantile by 0.1 %
# of the ratio of two times that can be measured; exponentials of larger ones overflow
_LARGEST_LOGARITHM = 69.0


class Spreads(msgspec.Struct, frozen=True):
    """What unchanged code showed of one timer.

    Spreads are standard deviations of logarithms (0.01 is 1 %).
    """

    process: float  # between processes on one GPU, in one night
    # degrees of freedom of the factor by which a machine is noisier than others, in all of its
    # times
    dof: float
    night: float = 0.0  # the variance between nights, as a fraction of that between processes
    # Parts of each kernel's spread that do not shrink with its time, and that no machine changes:
    # between processes, of each kernel by itself, and between GPUs of other hosts, of all kernels
    # together.
    resolution_us: float = 0.0
    gpu_us: float = 0.0
    # Of the resolution. 3 us kernels scatter alike on 41 H200s; but ten processes may overrule it
    # on the 42nd.
    resolution_dof: float = 18.0
    gpu: float = 0.0  # between GPUs of other hosts, beyond what the reference GEMM explains
    twins: float = 0.0  # likewise, beyond what workloads that run the same kernels explain
    hosts: float = 1.0  # degrees of freedom of these two


# `python benchmarks/noise.py` fits them to the recorded processes and writes the file;
# docs/design/times.md has its output.
_FITTED = msgspec.json.decode(get_data(__package__, "noise.json") or b"", type=dict[str, Spreads])
_GPU = _FITTED["GPU time"]
_SPREADS = ("process", "gpu", "twins")  # the clock of the profiler is alike on all
_UNKNOWN_GPU = msgspec.structs.replace(
    _GPU,
    dof=4.0,
    hosts=4.0,
    resolution_dof=4.0,
    **{name: UNKNOWN_FACTOR * getattr(_GPU, name) for name in _SPREADS},
)
# Compiles within one process on an H100 spread by 8 to 20 %, of three processes on an H200 by 2 to
# 11 % (docs/models.md). Between processes on H200s: kernels of a profile by 0.15 to 0.9 %
# (docs/design/times.md), steps by 7 to 36 % (docs/design/public-traces.md).
NOISES = _FITTED | {
    "unknown GPU": _UNKNOWN_GPU,
    "compile": Spreads(process=0.1, dof=10.0),
    "kernels of a step": Spreads(process=0.01, dof=4.0),
    "step": Spreads(process=0.12, dof=3.0),
}
# How a GPU time follows the reference GEMM between GPUs of one model: mean and standard deviation
# of the slope of their logarithms (MLPs 0.43 to 0.45 on eight H200s, short kernels 0.0 to 0.5).
_GEMM_SLOPE, _GEMM_SLOPE_SPREAD = 0.4, 0.25
TWINS = "twins"  # the reference of workloads that run the same kernels
_TWIN_SLOPE_SPREAD = 0.15  # about a slope of 1: of the three MLPs 0.84, 1.01 and 1.12
# a sensitivity that is the default: a blind verdict on a host's clock is no fault then
_NOBODY_ASKS = 1.0


@dataclass(frozen=True)
class Prior:
    """What is expected of one timer on one machine, and what is asked of a verdict on it."""

    noise: Spreads
    gate: float  # a smaller change is no finding, as a fraction
    sensitivity: float  # the largest slowdown that a PASS may miss, as a fraction
    level: float = SUSPECTS_PER_RUN  # of false alarms
    timer: Timer | None = None  # None: of the steps of a trace


class Limits(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a suite asks of verdicts on times, as fractions by timer.

    A timer that is missing has the default.
    """

    gate: dict[Timer, float] = {}  # a smaller change is no finding
    sensitivity: dict[Timer, float] = {}  # the largest slowdown that a PASS may miss


def prior_for(
    timer: Timer, fingerprint: Fingerprint, limits: Limits | None = None, *, trains: bool = False
) -> Prior:
    """Return what to expect of a timer on this machine, with the limits that a suite asks for.

    `trains`: whether a call runs a backward: on the host that is work of other threads.
    """
    timing, asked, is_cpu = timer.timing, limits or Limits(), fingerprint.arch == "cpu"
    noise, choice = (
        timing.noise,
        Timer.END_TO_END.timing if is_cpu and timing.is_confirmed else timing,
    )
    if timer is Timer.HOST and trains:
        noise = "dispatch of a training step"
    elif timer is Timer.DEVICE and fingerprint.device not in MEASURED_GPUS:
        noise = "latency" if is_cpu else "unknown GPU"
    gate, sensitivity = (
        asked.gate.get(timer, choice.gate),
        asked.sensitivity.get(timer, choice.sensitivity),
    )
    return Prior(NOISES[noise], gate, sensitivity, timer=timer)


@dataclass(frozen=True)
class Decision:
    """The result of one comparison."""

    status: Status
    # as measured, with its interval at the level of the suite and the sensitivity
    change: RelativeChange
    after: ProcessTime  # that was judged
    before_us: float  # what the change is relative to
    # of each reference kernel. None: the baseline does not know this GPU
    moves: Mapping[str, float] | None = None
    machine: float = 0.0  # how much of that is no change of the code. Both are logarithms
    # most of the noise is that of replicates of one process: the machine was disturbed
    scattered: bool = False
    # why it is not judged or undecided; of REGRESSED, how the host differs all the same
    doubt: Doubt | None = None
    # how far the workloads moved by which an unknown GPU is judged, as a fraction
    twins: float | None = None


class Variance(NamedTuple):
    """A variance, and the degrees of freedom that it is known with."""

    value: float
    dof: float


def decide(
    before: Sequence[ProcessTime],
    afters: Sequence[ProcessTime],
    prior: Prior,
    *,
    comparisons: int = 1,
    kernels: int = 1,
    shown: Scatter | None = None,
    is_other_software: bool = False,
) -> Decision:
    """Compare a run with the processes of its baseline.

    Args: before: at least one. afters: of the processes of the run, on one machine: their mean is
        judged. Of a host clock, those at one speed. prior: the noise to expect, the gate, and the
        sensitivity that is asked for. comparisons: how many times the suite has: false alarms are
        controlled over all of them (Bonferroni). kernels: launches in a call. shown: how far other
        times scattered on this machine. is_other_software: then the references may have changed
        with it, and excuse nothing.
    """
    after = mean_of(afters)
    same = [each for each in before if each.place == after.place]
    if after.is_host_clock:
        usual = at_shared_speed(same, afters)
        afters = on_same_host(afters, usual)
        after = mean_of(afters)
        if not on_same_host(same, usual):
            before_us = geometric_mean(each.observation.mean_us for each in before)
            moved = math.log(after.observation.mean_us / before_us)
            change = relative_change(moved, -math.inf, math.inf, FALSE_ALARMS_PER_RUN)
            status = (
                Status.REGRESSED if _is_far_slower(same or before, after) else Status.NOT_JUDGED
            )
            return Decision(status, change, after, before_us, doubt=_why_unknown_host(same, after))
        same, before = on_same_host(same, usual), on_same_host(before, usual)
    noise = prior.noise
    process = variance_between_processes(
        same or before, prior, kernels, afters, shown if same else None
    )
    # A process is never steadier than its replicates. One of a baseline may have met another job.
    night = noise.night * max(
        0.0, process.value - expected_variance(prior, kernels, after.observation.mean_us)[1]
    )
    run = max(process.value / len(afters), after.own_variance) + night
    if same:
        expected = fmean(each.logarithm for each in same)
        owns = [each.own_variance if math.isfinite(each.own_variance) else 0.0 for each in same]
        stored, own = fmean(max(process.value, each) for each in owns), fmean(owns)
        nights = len({each.night for each in same})
        variances = [Variance(stored / len(same) + night / nights + run, process.dof)]
    else:  # how much noisier than others an unknown machine is, others do not show
        own = 0.0
        expected, unknown = _expected_of_unknown_gpu(
            before, after, prior, kernels, is_other_software=is_other_software
        )
        variances = [Variance(run, min(process.dof, noise.dof)), unknown]
    moves = _reference_moves(same, after) if same else None
    largest = (
        max(moves.values(), key=abs)
        if moves and not after.is_host_clock and not is_other_software
        else 0.0
    )
    # None of what a reference kernel moved up to the gate, all of it from twice the gate on.
    machine = math.copysign(max(0.0, min(abs(largest), 2 * (abs(largest) - prior.gate))), largest)
    delta = after.logarithm - expected
    before_us = after.observation.mean_us / math.exp(delta)
    if after.is_by_host:  # compared at equal host speed, and shown as measured
        before_us = geometric_mean(each.observation.mean_us for each in same)
    # Each timer has its share. On an unknown GPU only one is judged, and a fresh process of that
    # GPU contradicts little.
    timers = min(comparisons, len(CALL_TIMERS))
    level = prior.level if same else FALSE_ALARMS_PER_RUN
    margin = margin_of(variances, level / timers if same else level, comparisons / timers)
    needed = max(margin, math.log1p(prior.gate))
    missed = _percent(needed + abs(machine) + margin_of(variances, 1 - _POWER))
    slower, faster = max(machine, 0.0), min(machine, 0.0)
    change = relative_change(
        delta, delta - slower - margin, delta - faster + margin, level, missed, prior.gate
    )
    own = after.own_variance + own / max(1, len(same))
    scattered = 2 * own > math.fsum(each.value for each in variances)
    status = Status.PASS
    doubt: Doubt | None = None
    if delta - slower > needed:
        status = Status.REGRESSED
    elif delta - faster < -needed:
        status = Status.IMPROVED
    elif missed is None or missed > prior.sensitivity:
        status = Status.UNDECIDED
        if not math.isfinite(margin):
            doubt = Unclear("one replicate")
        elif after.is_host_clock and (scattered or prior.sensitivity >= _NOBODY_ASKS):
            # By other jobs, of which the GPU's times know nothing.
            status = Status.REGRESSED if same and _is_far_slower(same, after) else Status.NOT_JUDGED
            doubt = Unclear("scattered replicates" if scattered else "scattered processes")
        else:
            is_gpu = abs(machine) > needed
            doubt = Noise(
                "gpu" if is_gpu else "replicates" if scattered else "processes", prior.sensitivity
            )
    return Decision(status, change, after, before_us, moves, machine, scattered, doubt)


def relative_change(
    delta: float,
    low: float,
    high: float,
    level: float,
    sensitivity: float | None = None,
    gate: float | None = None,
) -> RelativeChange:
    """Return logarithms as fractions.

    Each side of all such intervals of a run holds with a probability of 1 - `level`.
    """
    return RelativeChange(
        math.expm1(delta), _percent(low), _percent(high), 1 - 2 * level, sensitivity, gate
    )


def _percent(logarithm: float) -> float | None:
    return math.expm1(logarithm) if abs(logarithm) <= _LARGEST_LOGARITHM else None


def margin_of(variances: Sequence[Variance], level: float, comparisons: float = 1.0) -> float:
    """Return what no one of so many differences of these variances exceeds, but for a probability
    of `level`.

    Infinite if a variance is. Student's t with the degrees of freedom of Satterthwaite, "An
    approximate distribution of estimates of variance components", 1946.
    """
    total = math.fsum(each.value for each in variances)
    if math.isinf(total):
        return math.inf
    dof = total**2 / math.fsum(each.value**2 / each.dof for each in variances)
    return _quantile(round(dof, 3), level, comparisons) * math.sqrt(total)


@lru_cache(maxsize=4096)
def _quantile(dof: float, level: float, comparisons: float) -> float:
    """Return the quantile of the largest of independent normal variables over one estimate of their
    common spread.

    That is the factor of the machine, which all times of a timer share: Bonferroni's correction
    takes each for itself, and is twice as wide with few degrees of freedom. For one comparison it
    is Student's t.
    """
    import numpy as np  # here, because importing scipy costs more than all of kernelgauge.judge
    from scipy.special import chdtri, log_ndtr, stdtrit

    if comparisons <= 1:
        return float(stdtrit(dof, 1 - level))
    places, weights = np.polynomial.legendre.leggauss(_NODES)
    # the small quantiles of the spread count: their squares are dense there
    roots = (places + 1) / 2
    spreads = np.sqrt(chdtri(dof, 1 - roots**2) / dof)
    low, high = 0.0, float(stdtrit(dof, 1 - level / comparisons))  # Bonferroni's
    while high - low > 1e-3 * high:
        middle = (low + high) / 2
        exceeded = -np.expm1(comparisons * log_ndtr(middle * spreads)) @ (roots * weights)
        low, high = (middle, high) if exceeded > level else (low, middle)
    return high


def _why_unknown_host(same: Sequence[ProcessTime], after: ProcessTime) -> Doubt:
    """Return why a host clock cannot be compared with that of any process."""
    then = [each.observation.control_us for each in same if each.observation.control_us is not None]
    now = after.observation.control_us
    if not same:
        return Unclear("unknown machine")
    if not then or now is None:
        return NoHostReference("run" if then else "baseline")
    return OtherHostSpeed(geometric_mean(then), now)


def _is_far_slower(before: Sequence[ProcessTime], after: ProcessTime) -> bool:
    """Return whether three of four replicates are above `FAR_SLOWER` times each process, beyond
    what the host became slower.

    However they scatter: another job slows some of them, and what the call itself does in some of
    its calls most.
    """
    now, most_us = after.observation, after.most_us or after.observation.mean_us
    for then in (each.observation for each in before):
        if now.control_us is None or then.control_us is None:
            return False
        host = max(0.0, math.log(now.control_us / then.control_us))
        if math.log(most_us / then.mean_us) <= math.log(FAR_SLOWER) + host:
            return False
    return True


class Scatter(NamedTuple):
    """How far processes of one machine scatter: squares over what is expected of each, and their
    degrees of freedom.
    """

    squares: float = 0.0
    dof: float = 0.0


def scatter(processes: Sequence[ProcessTime], prior: Prior, kernels: int) -> Scatter:
    """Return how far processes scatter, each about the mean of its GPU. What nights add to that
    counts with it.

    A time that is little but the resolution of its kernels says nothing of the machine: then it is
    empty.
    """
    expected, resolution = expected_variance(prior, kernels, processes[0].observation.mean_us)
    return Scatter() if 2 * resolution > expected else _squares(processes, expected)


def _squares(processes: Sequence[ProcessTime], expected: float) -> Scatter:
    groups = by_place(processes)
    squares = (
        (it.logarithm - fmean(each.logarithm for each in group)) ** 2
        for group in groups
        for it in group
    )
    return Scatter(math.fsum(squares) / expected, len(processes) - len(groups))


def expected_variance(prior: Prior, kernels: int, us: float) -> tuple[float, float]:
    """Return the variance between processes that is expected of a time, and the part of it that is
    resolution.
    """
    resolution = kernels * (prior.noise.resolution_us / us) ** 2
    return prior.noise.process**2 + resolution, resolution


def variance_between_processes(
    before: Sequence[ProcessTime],
    prior: Prior,
    kernels: int,
    after: Sequence[ProcessTime] = (),
    shown: Scatter | None = None,
) -> Variance:
    """Estimate the variance of one process's mean: what is expected of it, by the factor that this
    machine shows.

    The factor is shrunk to 1 (Smyth, "Linear models and empirical Bayes methods for assessing
    differential expression", 2004). It is one for all times of a timer: `shown` are the others.
    """
    expected, resolution = expected_variance(prior, kernels, before[0].observation.mean_us)
    own = [_squares(side, expected) for side in (before, after) if side]
    squares, dof = (math.fsum(each) for each in zip(*own, strict=True))
    if 2 * resolution > expected:
        count = prior.noise.resolution_dof + dof
        return Variance((prior.noise.resolution_dof + squares) / count * expected, count)
    squares, dof = squares + (shown.squares if shown else 0.0), dof + (shown.dof if shown else 0.0)
    count = prior.noise.dof + dof
    factor = (prior.noise.dof + squares) / count
    return Variance(factor * (expected - resolution) + resolution, count)


def _reference_moves(before: Sequence[ProcessTime], after: ProcessTime) -> dict[str, float]:
    """Return how far each reference kernel moved, as a logarithm, by name: those that all of the
    processes have.
    """
    return {
        name: math.log(time_us) - fmean(math.log(each.references_us[name]) for each in before)
        for name, time_us in after.references_us.items()
        if name != TWINS and all(name in each.references_us for each in before)
    }


def _expected_of_unknown_gpu(
    before: Sequence[ProcessTime],
    after: ProcessTime,
    prior: Prior,
    kernels: int,
    *,
    is_other_software: bool,
) -> tuple[float, Variance]:
    """Predict the logarithm on an unknown GPU, from the GPUs that the baseline knows and a
    reference.

    A regression of the GPUs' times on the reference, with a prior on the slope (ridge regression:
    Hoerl and Kennard, 1970). Each host has one vote, since its GPUs are alike. Hosts are the
    degrees of freedom, and the scatter within them a part of one.
    """
    names = (
        name
        for name in (TWINS, "gemm")
        if all(name in each.references_us for each in (*before, after))
    )
    name = None if is_other_software else next(names, None)

    def reference_of(each: ProcessTime) -> float:
        return math.log(each.references_us[name]) if name else 0.0

    gpus = by_place(before)
    hosts = [each[0].host if each[0].host is not None else each[0].place for each in gpus]
    count = len(set(hosts))
    weights = [1 / count / hosts.count(host) for host in hosts]
    times = [fmean(each.logarithm for each in gpu) for gpu in gpus]
    references = [fmean(map(reference_of, gpu)) for gpu in gpus]
    time, reference = (
        math.fsum(map(float.__mul__, weights, values)) for values in (times, references)
    )
    points = [
        (weight, x - reference, y - time)
        for weight, x, y in zip(weights, references, times, strict=True)
    ]
    noise, resolution = prior.noise, kernels * prior.noise.gpu_us / before[0].observation.mean_us
    slope, slope_spread = (
        (1.0, _TWIN_SLOPE_SPREAD) if name == TWINS else (_GEMM_SLOPE, _GEMM_SLOPE_SPREAD)
    )
    expected = (noise.twins if name == TWINS else noise.gpu) ** 2 + resolution**2
    if name is None:  # then nothing is known of a GPU's speed
        expected *= UNKNOWN_FACTOR**2
    ridge = expected / slope_spread**2
    along = ridge + count * math.fsum(weight * x**2 for weight, x, _ in points)
    slope = (ridge * slope + count * math.fsum(weight * x * y for weight, x, y in points)) / along
    rest = count * math.fsum(weight * (y - slope * x) ** 2 for weight, x, y in points)
    moved = reference_of(after) - reference
    # The scatter of GPUs of one host is in `rest`. Without a degree of freedom for it, more GPUs
    # would only widen the interval.
    dof = count - fmean(1 / hosts.count(host) for host in set(hosts))
    of_one = (noise.hosts * expected + rest) / (noise.hosts + dof)
    return time + slope * moved, Variance(
        of_one * (1 + 1 / count + moved**2 / along), noise.hosts + dof
    )
