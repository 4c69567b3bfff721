"""The rule for times (docs/verdicts.md), as pure numbers: slower, faster, the same, undecided, or
not judged.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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
    Observation,
    ProcessTime,
    Timer,
    by_place,
    mean_of,
    on_same_host,
    pick_common_host_speed,
)
from . import Status
from .evidence import Doubt, NoHostReference, Noise, OtherHostSpeed, RelativeChange, Unclear

# At most so many runs of unchanged code may suspect it, however large the suite: a fresh process
# must be suspect too. What no fresh process confirms has the second level (benchmarks/a_year.py).
SUSPECTS_PER_RUN, FALSE_ALARMS_PER_RUN = 0.05, 0.01
# On a machine that the baseline does not know, a fresh process contradicts few alarms of GPU times,
# and half of the host's.
_SUSPECTS_ELSEWHERE = 0.025
_POWER = 0.95  # the sensitivity of a verdict is the slowdown that would fail in this share of runs
# Unchanged code took at most 1.86 times as long end to end, and 1.29 times to dispatch, beyond what
# the host explains: in 115,860 pairs of processes of 20 hosts (benchmarks/noise.py).
FAR_SLOWER = 2.0
# A call of so many kernels, shorter in the mean, may have one that steps: one process shows none.
_FEWEST_STEPS, _SHORT_US = 3, 20.0
_NODES = 150  # of the sum over the spread of a machine: more change no quantile by 0.1 %
# of the ratio of two times that can be measured; exponentials of larger ones overflow
_LARGEST_LOGARITHM = 69.0


class Spreads(msgspec.Struct, frozen=True):
    """What unchanged code showed of one timer.

    Spreads are standard deviations of logarithms (0.01 is 1 %).
    """

    process: float  # between processes on one GPU, in one night
    # degrees of freedom of the factor by which a machine is noisier, in all of its times
    dof: float
    night: float = 0.0  # the variance between nights, as a fraction of that between processes
    # of each kernel by itself, between processes: a part that does not shrink with its time, and
    # that no machine changes. Workloads differ in it: its degrees of freedom
    resolution_us: float = 0.0
    resolution_dof: float = 1.0
    # by which one of a hundred short kernels is slower in some processes, and not in others
    step_us: float = 0.0
    # Between GPUs of other hosts, beyond what a reference explains, by its name; of a host clock
    # that of its ratio to the host reference. Empty: it is judged on known hosts.
    elsewhere: dict[str, float] = {}
    kernel_us: float = 0.0  # and of each kernel, but beyond twins: of all in a call together
    hosts: float = 1.0  # degrees of freedom of these


# `python benchmarks/noise.py` fits them to the recorded processes and writes the file;
# docs/design/times.md has its output.
_FITTED = msgspec.json.decode(get_data(__package__, "noise.json") or b"", type=dict[str, Spreads])
_GPU = _FITTED["GPU time"]
_UNKNOWN_GPU = msgspec.structs.replace(  # the clock of the profiler is alike on all
    _GPU,
    process=UNKNOWN_FACTOR * _GPU.process,
    elsewhere={name: UNKNOWN_FACTOR * spread for name, spread in _GPU.elsewhere.items()},
    dof=4.0,
    resolution_dof=4.0,
    hosts=4.0,
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
# What a GPU time follows to another GPU of the model, and the slope of their logarithms.
TWINS, COPY, GEMM, NOTHING = "twins", "copy", "gemm", "nothing"
SLOPES = {TWINS: 1.0, COPY: 0.8, GEMM: 0.4}
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
    choice = Timer.END_TO_END.timing if is_cpu and timing.is_confirmed else timing
    noise = timing.noise
    if timer is Timer.HOST and trains:
        noise = "dispatch of a training step"
    elif timer is Timer.DEVICE and fingerprint.device not in MEASURED_GPUS:
        noise = "latency" if is_cpu else "unknown GPU"
    gate = asked.gate.get(timer, choice.gate)
    sensitivity = asked.sensitivity.get(timer, choice.sensitivity)
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
    estimates: int = len(CALL_TIMERS),
    kernels: int = 1,
    follows: str = NOTHING,
    shown: Scatter | None = None,
    is_other_software: bool = False,
) -> Decision:
    """Compare a run with the processes of its baseline.

    Args: before: at least one. afters: of one machine: their mean is judged, of a host clock that
        of those at one speed. comparisons: times of the suite: false alarms are controlled over
        all of them. estimates: of noise, that they share: one for a timer. kernels: launches in a
        call. follows: the reference that predicts an unknown GPU. shown: how far other times
        scattered here. is_other_software: then references may have changed, and excuse nothing.
    """
    same = [each for each in before if each.place == afters[0].place]
    known, is_gpu = same or before, not afters[0].is_host_clock
    if not is_gpu:
        known, afters = _at_one_speed(known, afters, is_known=bool(same), noise=prior.noise)
        if not known:
            return _unknown_host(same, before, mean_of(afters))
    after, gate = mean_of(afters), prior.gate
    within, of_replicates = _within(known, afters, prior, kernels, shown if same else None)
    variances, us = [within], after.observation.mean_us
    if same:
        delta, level = after.logarithm - fmean(each.logarithm for each in known), prior.level
    else:  # how much noisier than others an unknown machine is, others do not show
        within = within._replace(dof=min(within.dof, prior.noise.dof))
        names = (TWINS, follows) if is_gpu and not is_other_software else ()
        delta, unknown = _moved_elsewhere(known, after, prior.noise, names, kernels)
        variances, level = [within, unknown], min(prior.level, _SUSPECTS_ELSEWHERE)
    if len(known) == 1 and kernels >= _FEWEST_STEPS and us < kernels * _SHORT_US:
        gate = max(gate, prior.noise.step_us / us)
    moves, machine = (_reference_moves(known, after) if same else None), 0.0
    if moves and is_gpu and not is_other_software:
        machine = _own_speed(moves, prior.gate)
    slower, faster = max(machine, 0.0), min(machine, 0.0)
    estimates = min(estimates, comparisons)
    margin = margin_of(variances, level / estimates, comparisons / estimates)
    needed = max(margin, math.log1p(gate))
    missed = _percent(needed + abs(machine) + margin_of(variances, 1 - _POWER))
    change = relative_change(
        delta, delta - slower - margin, delta - faster + margin, level, missed, gate
    )
    before_us = us / math.exp(delta)
    if after.is_by_host:  # compared at equal host speed, and shown as measured
        before_us = geometric_mean(each.observation.mean_us for each in known)
    scattered = 2 * of_replicates > math.fsum(each.value for each in variances)
    found = Decision(Status.PASS, change, after, before_us, moves, machine, scattered)
    if delta - slower > needed:
        return replace(found, status=Status.REGRESSED)
    if delta - faster < -needed:
        return replace(found, status=Status.IMPROVED)
    if missed is not None and missed <= prior.sensitivity:
        return found
    return _undecided(found, known, prior.sensitivity, is_gpu=abs(machine) > needed)


def _at_one_speed(
    known: Sequence[ProcessTime], afters: Sequence[ProcessTime], *, is_known: bool, noise: Spreads
) -> tuple[list[ProcessTime], list[ProcessTime]]:
    """Return the processes of both sides at the host speed that most of them have.

    Of an unknown machine, those with a ratio to the host reference: no other host clock says
    anything of another host.
    """
    if not is_known:
        has_ratio = afters[0].is_by_host and bool(noise.elsewhere)
        known = [each for each in known if has_ratio and each.observation.control_us is not None]
    usual = pick_common_host_speed(known, afters)
    return on_same_host(known, usual), on_same_host(afters, usual)


def _within(
    known: Sequence[ProcessTime],
    afters: Sequence[ProcessTime],
    prior: Prior,
    kernels: int,
    shown: Scatter | None,
) -> tuple[Variance, float]:
    """Return the variance of the difference of two sides, from processes and nights of a machine,
    and that which their replicates show.

    A process is never steadier than its replicates. One of a baseline may have met another job.
    """
    after, count = mean_of(afters), len(known)
    own = [each.own_variance if math.isfinite(each.own_variance) else 0.0 for each in known]
    process = variance_between_processes(known, prior, kernels, afters, shown)
    _, resolution = expected_variance(prior, kernels, after.observation.mean_us)
    night = prior.noise.night * max(0.0, process.value - resolution)
    stored = fmean(max(process.value, each) for each in own) / count
    stored += night / len({each.night for each in known})
    run = max(process.value / len(afters), after.own_variance) + night
    return Variance(stored + run, process.dof), after.own_variance + fmean(own) / count


def _own_speed(moves: Mapping[str, float], gate: float) -> float:
    """Return by how much the GPU itself changed its speed: none of what a reference kernel moved up
    to the gate, all of it from twice the gate on.
    """
    largest = max(moves.values(), key=abs)
    return math.copysign(max(0.0, min(abs(largest), 2 * (abs(largest) - gate))), largest)


def _undecided(
    found: Decision, before: Sequence[ProcessTime], sensitivity: float, *, is_gpu: bool
) -> Decision:
    """Return the decision on a time whose noise hides more than is asked for.

    Other jobs disturb the host's clocks, and the GPU's times know nothing of them.
    """
    if found.change.low is None:
        return replace(found, status=Status.UNDECIDED, doubt=Unclear("one replicate"))
    if found.after.is_host_clock and (found.scattered or sensitivity >= _NOBODY_ASKS):
        is_slower = bool(before) and _is_far_slower(before, found.after)
        status = Status.REGRESSED if is_slower else Status.NOT_JUDGED
        doubt = Unclear("scattered replicates" if found.scattered else "scattered processes")
        return replace(found, status=status, doubt=doubt)
    noise = Noise(
        "gpu" if is_gpu else "replicates" if found.scattered else "processes", sensitivity
    )
    return replace(found, status=Status.UNDECIDED, doubt=noise)


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

    Infinite if a variance is. The degrees of freedom are those of Satterthwaite, "An approximate
    distribution of estimates of variance components", 1946.
    """
    total = math.fsum(each.value for each in variances)
    if math.isinf(total):
        return math.inf
    dof = total**2 / math.fsum(each.value**2 / each.dof for each in variances)
    return largest_quantile(round(dof, 3), level, comparisons) * math.sqrt(total)


@lru_cache(maxsize=4096)
def largest_quantile(dof: float, level: float, comparisons: float = 1.0) -> float:
    """Return what the largest of independent normal variables exceeds with a probability of
    `level`, in units of one estimate of their common spread.

    That is the factor of the machine, which the times of a timer share: Bonferroni's correction
    takes each for itself, and is twice as wide with few degrees of freedom. Of one it is Student's
    t. More than 1000 degrees are normal.
    """
    if level <= 0:
        return math.inf
    # A sum over the logarithm of the estimate, whose density is smooth, and negligible at the ends.
    dof = min(dof, 1000.0)
    rare = (math.log(level) - 20) / dof
    first, last = rare - 0.5, math.log(5 - 2 * rare) / 2
    step = (last - first) / _NODES
    scale = math.log(2 * step) + dof / 2 * math.log(dof / 2) - math.lgamma(dof / 2)
    places = [first + step * number for number in range(_NODES)]
    nodes = [(math.exp(u), math.exp(scale + dof * (u - math.exp(2 * u) / 2))) for u in places]

    def excess(limit: float) -> float:  # the logarithm of the probability, less that of `level`
        scaled = limit * math.sqrt(0.5)
        tails = ((math.erfc(scaled * spread) / 2, weight) for spread, weight in nodes)
        found = -math.fsum(w * math.expm1(comparisons * math.log1p(-tail)) for tail, w in tails)
        return math.log(max(found, 1e-300) / level)

    former, limit, before, now = 0.0, 1.0, excess(0.0), excess(1.0)
    while now > 0:
        former, limit, before, now = limit, 2 * limit, now, excess(2 * limit)
    while abs(limit - former) > 1e-11 * limit:  # secants of what is nearly a parabola
        former, limit, before = limit, limit - now * (limit - former) / (now - before), now
        now = excess(limit)
    return limit


def _unknown_host(
    same: Sequence[ProcessTime], before: Sequence[ProcessTime], after: ProcessTime
) -> Decision:
    """Return the decision on a host clock that cannot be compared with that of any process."""
    controls = [each.observation.control_us for each in same]
    then, now = [us for us in controls if us is not None], after.observation.control_us
    doubt: Doubt = Unclear("unknown machine")
    if then and now:
        doubt = OtherHostSpeed(geometric_mean(then), now)
    elif same:
        doubt = NoHostReference("run" if then else "baseline")
    before_us = geometric_mean(each.observation.mean_us for each in before)
    moved = math.log(after.observation.mean_us / before_us)
    change = relative_change(moved, -math.inf, math.inf, FALSE_ALARMS_PER_RUN)
    status = Status.REGRESSED if _is_far_slower(same or before, after) else Status.NOT_JUDGED
    return Decision(status, change, after, before_us, doubt=doubt)


def _is_far_slower(before: Sequence[ProcessTime], after: ProcessTime) -> bool:
    """Return whether three of four replicates are above `FAR_SLOWER` times each process, beyond
    what the host became slower.

    However they scatter: another job slows some of them, and what the call itself does in some of
    its calls most.
    """
    now, most_us = after.observation, after.most_us or after.observation.mean_us

    def is_far(then: Observation) -> bool:
        if now.control_us is None or then.control_us is None:
            return False
        host = max(0.0, math.log(now.control_us / then.control_us))
        return math.log(most_us / then.mean_us) > math.log(FAR_SLOWER) + host

    return all(is_far(each.observation) for each in before)


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
    groups = [[each.logarithm for each in group] for group in by_place(processes)]
    squares = math.fsum((it - fmean(each)) ** 2 for each in groups for it in each)
    return Scatter(squares / expected, len(processes) - len(groups))


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
    found = [_squares(side, expected) for side in (before, after) if side]
    is_fine = 2 * resolution > expected  # then neither the others nor the machine say anything
    found += [shown] if shown and not is_fine else []
    squares, dof = (math.fsum(each) for each in zip(*found, strict=True))
    own = prior.noise.resolution_dof if is_fine else prior.noise.dof
    factor = (own + squares) / (own + dof)
    fixed = 0.0 if is_fine else resolution
    return Variance(factor * (expected - fixed) + fixed, own + dof)


def _reference_moves(before: Sequence[ProcessTime], after: ProcessTime) -> dict[str, float]:
    """Return how far each reference kernel moved, as a logarithm, by name: those that all of the
    processes have.
    """
    return {
        name: math.log(time_us) - fmean(math.log(each.references_us[name]) for each in before)
        for name, time_us in after.references_us.items()
        if name != TWINS and all(name in each.references_us for each in before)
    }


def _moved_elsewhere(
    before: Sequence[ProcessTime],
    after: ProcessTime,
    noise: Spreads,
    names: Sequence[str],
    kernels: int,
) -> tuple[float, Variance]:
    """Return how far the logarithm on an unknown machine is from its prediction, by the machines
    that the baseline knows and the first of these references that all have.

    Each host has one vote, since its GPUs are alike. Hosts are the degrees of freedom, and the
    scatter within them a part of one.
    """
    known = (name for name in names if all(name in it.references_us for it in (*before, after)))
    name = next(known, NOTHING)

    def rest_of(each: ProcessTime) -> float:
        return each.logarithm - SLOPES.get(name, 0) * math.log(each.references_us.get(name, 1))

    rests: dict[str | None, list[float]] = {}
    for gpu in by_place(before):
        rests.setdefault(gpu[0].host or gpu[0].place, []).append(fmean(map(rest_of, gpu)))
    mean = fmean(map(fmean, rests.values()))
    squares = math.fsum(fmean((it - mean) ** 2 for it in each) for each in rests.values())
    # GPUs of one host have a degree of freedom: more of them would only widen the interval
    dof = noise.hosts + len(rests) - fmean(1 / len(each) for each in rests.values())
    of_kernels = 0.0 if name == TWINS else kernels * noise.kernel_us / after.observation.mean_us
    of_one = (noise.hosts * (noise.elsewhere[name] ** 2 + of_kernels**2) + squares) / dof
    return rest_of(after) - mean, Variance(of_one * (1 + 1 / len(rests)), dof)
