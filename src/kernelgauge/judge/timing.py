"""The rule for times (docs/verdicts.md), as pure numbers: slower, faster, the same, undecided, or not judged."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, geometric_mean
from typing import NamedTuple

import msgspec

from ..run import COMPILE_TIMERS, MEASURED_GPUS, UNKNOWN_FACTOR, Fingerprint, Observation, Timer
from . import Status
from .evidence import Doubt, NoHostReference, Noise, OtherHostSpeed, RelativeChange, Unclear

# What is assumed of a time before a baseline has shown it: `python benchmarks/unchanged.py --spread` prints the spreads
# and degrees of freedom; docs/design/times.md has the sources.
FALSE_ALARMS_PER_RUN = 0.01  # at most one run in a hundred may call unchanged code slower, however large its suite
_POWER = 0.95  # the sensitivity of a verdict is the slowdown that would fail in this share of runs
# Clocks of one host agree within this factor: beyond, its times are another machine's (benchmarks/data/host_states).
_SAME_HOST_FACTOR = 1.28
# How a GPU time follows the reference GEMM between GPUs of one model: mean and standard deviation of the slope of their
# logarithms (MLPs 0.43 to 0.45 on eight H200s, short kernels 0.0 to 0.5).
_GEMM_SLOPE, _GEMM_SLOPE_SPREAD = 0.4, 0.25
# Unchanged code took at most 1.86 times as long end to end, and 1.29 times to dispatch, beyond what the host's own
# speed explains: in 115,860 pairs of recorded processes of 20 hosts (benchmarks/unchanged.py --spread).
_FAR_SLOWER = 2.0
_LARGEST_LOGARITHM = 69.0  # of the ratio of two times that can be measured; exponentials of larger ones overflow


@dataclass(frozen=True)
class Prior:
    """What is expected of one timer on one machine. Spreads are standard deviations of logarithms (0.01 is 1 %)."""

    gate: float  # a smaller change is no finding, as a fraction
    sensitivity: float  # the default for the largest slowdown that a PASS may miss, as a fraction
    process: float  # spread between processes on one GPU
    dof: float  # degrees of freedom that these spreads count as, against those of the baseline
    # A part of each kernel's spread that does not shrink with its time. Between processes the parts are independent;
    # between GPUs all kernels share one.
    resolution_us: float = 0.0
    gpu: float = 0.0  # spread between GPUs of one model, beyond what the reference GEMM explains


# GPU times of 96 processes of seven workloads on 37 H200s. The profiler's clock has steps of 0.032 us.
_H200 = Prior(gate=0.003, sensitivity=0.25, process=0.0006, dof=18.0, resolution_us=0.012, gpu=0.0025)
_UNKNOWN_GPU = replace(_H200, process=UNKNOWN_FACTOR * _H200.process, gpu=UNKNOWN_FACTOR * _H200.gpu, dof=4.0)
# Host clocks of the same processes. Latencies, and times of two CPU cores (benchmarks/data/cpu), spread by 2 to 5 %.
_DISPATCH = Prior(gate=0.05, sensitivity=1.0, process=0.015, dof=10.0)
_LATENCY = replace(_DISPATCH, gate=0.25, process=0.05)
# Starts within one process on an H100 spread by 8 to 20 %, three processes on an H200 by 2 to 11 % (docs/models.md).
_COMPILE = replace(_LATENCY, process=0.1, sensitivity=3.0)


class Limits(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a suite asks of verdicts on times, as fractions by timer. A timer that is missing has the default."""

    gate: dict[Timer, float] = {}  # a smaller change is no finding
    sensitivity: dict[Timer, float] = {}  # the largest slowdown that a PASS may miss


def prior_for(timer: Timer, fingerprint: Fingerprint, limits: Limits | None = None) -> Prior:
    """Return what to expect of a timer on this machine, with the limits that a suite asks for."""
    if timer is Timer.HOST:
        prior = _DISPATCH
    elif timer in COMPILE_TIMERS:
        prior = _COMPILE
    elif timer is Timer.END_TO_END or fingerprint.arch == "cpu":
        prior = _LATENCY
    else:
        prior = _H200 if fingerprint.device in MEASURED_GPUS else _UNKNOWN_GPU
    asked = limits or Limits()
    gate, sensitivity = asked.gate.get(timer, prior.gate), asked.sensitivity.get(timer, prior.sensitivity)
    return replace(prior, gate=gate, sensitivity=sensitivity)


@dataclass(frozen=True)
class ProcessTime:
    """A time of one process, and what it is compared by."""

    observation: Observation
    place: str | None = None  # the GPU, or on a CPU the host, that it was measured on. None: not known
    host: str | None = None  # GPUs of one host are alike
    is_host_clock: bool = False  # comparable on a known host only
    is_by_host: bool = False  # the host alone fills it: it is compared by its ratio to the host reference
    references_us: Mapping[str, float] = field(default_factory=dict)  # of the reference kernels beside it, by name

    @property
    def logarithm(self) -> float:
        """The value that is compared."""
        unit_us = (self.observation.control_us or 1.0) if self.is_by_host else 1.0
        return math.log(self.observation.mean_us / unit_us)

    @property
    def own_variance(self) -> float:
        """The variance of the mean, by its own replicates. Infinite for a single replicate."""
        spread, count = self.observation.spread, self.observation.replicates
        return math.inf if spread is None else spread**2 / count


@dataclass(frozen=True)
class Decision:
    """The result of one comparison."""

    status: Status
    change: RelativeChange  # as measured, with its interval at the level of the suite and the sensitivity
    after: ProcessTime  # that was judged
    before_us: float  # what the change is relative to
    moves: Mapping[str, float] | None = None  # of each reference kernel. None: the baseline does not know this GPU
    machine: float = 0.0  # how much of that is no change of the code. Both are logarithms
    scattered: bool = False  # most of the noise is that of replicates of one process: the machine was disturbed
    doubt: Doubt | None = None  # why it is not judged or undecided; of REGRESSED, how the host differs all the same


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
) -> Decision:
    """Compare a run with the processes of its baseline.

    Args:
        before: at least one.
        afters: of the processes of the run, on one machine: their mean is judged. Of a host clock, those at one speed.
        prior: the noise to expect, the gate, and the sensitivity that is asked for.
        comparisons: how many times the suite has: false alarms are controlled over all of them (Bonferroni).
        kernels: launches in a call.
    """
    after = mean_of(afters)
    same = [each for each in before if each.place == after.place]
    if after.is_host_clock:
        usual = at_shared_speed(same, afters)
        afters = on_same_host(afters, usual)
        after = mean_of(afters)
        if not on_same_host(same, usual):
            why = _why_unknown_host(same, after)
            before_us = geometric_mean(each.observation.mean_us for each in before)
            change = _relative_change(math.log(after.observation.mean_us / before_us), -math.inf, math.inf, 1)
            is_slower = _is_far_slower(same or before, after)
            status = Status.REGRESSED if is_slower else Status.NOT_JUDGED
            return Decision(status, change, after, before_us, doubt=why)
        same, before = on_same_host(same, usual), on_same_host(before, usual)
    process = variance_between_processes(before, prior, kernels, afters)
    # A process is never steadier than its replicates. One of a baseline may have met another job on the host.
    run = max(process.value / len(afters), after.own_variance)
    if same:
        expected = fmean(each.logarithm for each in same)
        own_variances = [each.own_variance for each in same]
        owns = [own if after.is_host_clock and math.isfinite(own) else 0.0 for own in own_variances]
        stored, own = fmean(max(process.value, each) for each in owns), fmean(owns)
        variances = [Variance(stored / len(same) + run, process.dof)]
    else:
        own = 0.0
        expected, unknown = _expected_of_unknown_gpu(before, after, prior, kernels)
        variances = [Variance(run, process.dof), unknown]
    moves = _reference_moves(same, after) if same else None
    machine = _machine_part(moves, prior.gate) if moves and not after.is_host_clock else 0.0
    delta = after.logarithm - expected
    before_us = after.observation.mean_us / math.exp(delta)
    if after.is_by_host:  # compared at equal host speed, and shown as measured
        before_us = geometric_mean(each.observation.mean_us for each in same)
    margin = _margin(variances, 1 - FALSE_ALARMS_PER_RUN / comparisons)
    needed = max(margin, math.log1p(prior.gate))
    missed = _percent(needed + abs(machine) + _margin(variances, _POWER))
    slower, faster = max(machine, 0.0), min(machine, 0.0)
    change = _relative_change(delta, delta - slower - margin, delta - faster + margin, comparisons, missed)
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
        elif scattered and after.is_host_clock:  # by other jobs, of which the GPU's times know nothing
            status, doubt = Status.NOT_JUDGED, Unclear("scattered replicates")
        else:
            is_gpu = abs(machine) > needed
            doubt = Noise("gpu" if is_gpu else "replicates" if scattered else "processes", prior.sensitivity)
    return Decision(status, change, after, before_us, moves, machine, scattered, doubt)


def decide_ratio(
    other: ProcessTime, this: ProcessTime, prior: Prior, *, by: float, comparisons: int, kernels: tuple[int, int]
) -> Decision:
    """Compare two variants of one run. PASS: the interval shows that `this` takes at least the fraction `by` less.

    REGRESSED: the interval shows that it does not. UNDECIDED: the interval holds both. What one process spreads between
    its runs is not seen in one run: the prior knows it, of each variant apart.

    Args:
        kernels: launches in a call, of `other` and of `this`.
    """
    times = zip((other, this), kernels, strict=True)
    known = [(each, variance_between_processes([each], prior, count)) for each, count in times]
    variances = [Variance(max(between.value, each.own_variance), between.dof) for each, between in known]
    delta, limit = this.logarithm - other.logarithm, math.log1p(-by)
    margin = _margin(variances, 1 - FALSE_ALARMS_PER_RUN / comparisons)
    change = _relative_change(delta, delta - margin, delta + margin, comparisons)
    status, doubt = Status.UNDECIDED, None
    if delta + margin <= limit:
        status = Status.PASS
    elif delta - margin > limit:
        status = Status.REGRESSED
    else:
        doubt = Unclear("both possible" if math.isfinite(margin) else "one replicate")
    return Decision(status, change, this, other.observation.mean_us, doubt=doubt)


def _relative_change(
    delta: float, low: float, high: float, comparisons: int, sensitivity: float | None = None
) -> RelativeChange:
    """Return logarithms as fractions. Each side of the interval is at the level of the suite."""
    confidence = 1 - 2 * FALSE_ALARMS_PER_RUN / comparisons
    return RelativeChange(math.expm1(delta), _percent(low), _percent(high), confidence, sensitivity)


def _percent(logarithm: float) -> float | None:
    return math.expm1(logarithm) if abs(logarithm) <= _LARGEST_LOGARITHM else None


def _margin(variances: Sequence[Variance], probability: float) -> float:
    """Return what a difference of these variances stays below with this probability. Infinite if one of them is.

    Student's t with the degrees of freedom of Satterthwaite, "An approximate distribution of estimates of variance
    components", 1946.
    """
    from scipy.special import stdtrit  # here, because importing scipy costs more than all of kernelgauge.judge

    total = math.fsum(each.value for each in variances)
    if math.isinf(total):
        return math.inf
    dof = total**2 / math.fsum(each.value**2 / each.dof for each in variances)
    return float(stdtrit(dof, probability)) * math.sqrt(total)


def mean_of(processes: Sequence[ProcessTime]) -> ProcessTime:
    """Return one time for several processes of one machine: their geometric mean, with all their replicates."""
    seen = [each.observation for each in processes]
    spreads = [one.spread for one in seen if one.spread is not None]
    controls = [one.control_us for one in seen if one.control_us is not None]
    names = [name for name in processes[0].references_us if all(name in each.references_us for each in processes)]
    whole = msgspec.structs.replace(
        seen[0],
        mean_us=geometric_mean(one.mean_us for one in seen),
        spread=math.sqrt(fmean(spread**2 for spread in spreads)) if len(spreads) == len(seen) else None,
        replicates=sum(one.replicates for one in seen),
        control_us=geometric_mean(controls) if len(controls) == len(seen) else None,
    )
    references = {name: geometric_mean(each.references_us[name] for each in processes) for name in names}
    return replace(processes[0], observation=whole, references_us=references)


def on_same_host(processes: Sequence[ProcessTime], after: ProcessTime) -> list[ProcessTime]:
    """Return the processes at the host speed of `after`. Without host references nothing tells them apart."""
    now = after.observation.control_us

    def is_same(us: float | None) -> bool:
        return us is now or bool(us and now and abs(math.log(now / us)) <= math.log(_SAME_HOST_FACTOR))

    return [each for each in processes if is_same(each.observation.control_us)]


def at_shared_speed(before: Sequence[ProcessTime], afters: Sequence[ProcessTime]) -> ProcessTime:
    """Return the process of `afters` at the host speed that is most frequent on both sides: a host has several."""
    return max(afters, key=lambda each: min(len(on_same_host(side, each)) for side in (before, afters)))


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
    """Return whether a time is above `_FAR_SLOWER` times that of each process, beyond what the host became slower.

    It must also be above the scatter of its own replicates, which another job may cause.
    """
    now = after.observation
    limit = math.log(_FAR_SLOWER)
    if now.replicates > 1 and after.own_variance > 0:
        limit += _margin([Variance(after.own_variance, now.replicates - 1)], 1 - FALSE_ALARMS_PER_RUN)
    for then in (each.observation for each in before):
        if now.control_us is None or then.control_us is None:
            return False
        host = max(0.0, math.log(now.control_us / then.control_us))
        if math.log(now.mean_us / then.mean_us) <= limit + host:
            return False
    return True


def variance_between_processes(
    before: Sequence[ProcessTime], prior: Prior, kernels: int, after: Sequence[ProcessTime] = ()
) -> Variance:
    """Estimate the variance of one process's mean, each about the mean of its side and GPU, shrunk to the prior.

    Smyth, "Linear models and empirical Bayes methods for assessing differential expression", 2004.
    """
    places = [*by_place(before), *by_place(after)]
    squares = [(each.logarithm - fmean(one.logarithm for one in group)) ** 2 for group in places for each in group]
    expected = expected_variance(prior, kernels, before[0].observation.mean_us)
    return _shrunk(expected, prior.dof, math.fsum(squares), len(squares) - len(places))


def expected_variance(prior: Prior, kernels: int, us: float) -> float:
    """Return the variance between processes that the prior expects of a time."""
    return prior.process**2 + kernels * (prior.resolution_us / us) ** 2


def _shrunk(expected: float, dof: float, squares: float, own: float) -> Variance:
    return Variance((dof * expected + squares) / (dof + own), dof + own)


def by_place(processes: Sequence[ProcessTime]) -> list[list[ProcessTime]]:
    groups: dict[str | None, list[ProcessTime]] = {}
    for each in processes:
        groups.setdefault(each.place, []).append(each)
    return list(groups.values())


def _machine_part(moves: Mapping[str, float], gate: float) -> float:
    """Return the larger move of the reference kernels: none of it up to the gate, all of it from twice the gate on."""
    largest = max(moves.values(), key=abs)
    return math.copysign(max(0.0, min(abs(largest), 2 * (abs(largest) - gate))), largest)


def _reference_moves(before: Sequence[ProcessTime], after: ProcessTime) -> dict[str, float]:
    """Return how far each reference kernel moved, as a logarithm, by name: those that all of the processes have."""
    return {
        name: math.log(time_us) - fmean(math.log(each.references_us[name]) for each in before)
        for name, time_us in after.references_us.items()
        if all(name in each.references_us for each in before)
    }


def _expected_of_unknown_gpu(
    before: Sequence[ProcessTime], after: ProcessTime, prior: Prior, kernels: int
) -> tuple[float, Variance]:
    """Predict the logarithm on an unknown GPU, from the GPUs that the baseline knows and the reference GEMM.

    A regression of the GPUs' times on the GEMM, with a prior on the slope (ridge regression: Hoerl and Kennard, 1970).
    Each host has one vote, since its GPUs are alike. Hosts are the degrees of freedom, and the scatter within them a part of one.
    """
    has_gemm = all("gemm" in each.references_us for each in (*before, after))

    def gemm_of(each: ProcessTime) -> float:
        return math.log(each.references_us["gemm"]) if has_gemm else 0.0

    gpus = by_place(before)
    hosts = [each[0].host if each[0].host is not None else each[0].place for each in gpus]
    count = len(set(hosts))
    weights = [1 / count / hosts.count(host) for host in hosts]
    times = [fmean(each.logarithm for each in gpu) for gpu in gpus]
    gemms = [fmean(map(gemm_of, gpu)) for gpu in gpus]
    time, gemm = (math.fsum(map(float.__mul__, weights, values)) for values in (times, gemms))
    points = [(weight, x - gemm, y - time) for weight, x, y in zip(weights, gemms, times, strict=True)]
    expected = prior.gpu**2 + (kernels * prior.resolution_us / before[0].observation.mean_us) ** 2
    if not has_gemm:  # then nothing is known of a GPU's speed
        expected *= UNKNOWN_FACTOR**2
    ridge = expected / _GEMM_SLOPE_SPREAD**2
    along = ridge + count * math.fsum(weight * x**2 for weight, x, _ in points)
    slope = (ridge * _GEMM_SLOPE + count * math.fsum(weight * x * y for weight, x, y in points)) / along
    rest = count * math.fsum(weight * (y - slope * x) ** 2 for weight, x, y in points)
    moved = gemm_of(after) - gemm
    # The scatter of GPUs of one host is in `rest`. Without a degree of freedom for it, more GPUs would only widen the interval.
    of_one = _shrunk(expected, prior.dof, rest, count - fmean(1 / hosts.count(host) for host in set(hosts)))
    return time + slope * moved, Variance(of_one.value * (1 + 1 / count + moved**2 / along), of_one.dof)
