"""The verdict on one time of a run: the decision, and why: kernels, the autotuner's choice, the
host, the machine.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from statistics import fmean, geometric_mean

import msgspec

from ..run import (
    CALL_TIMERS,
    COMPILE_TIMERS,
    Lack,
    ProcessTime,
    Run,
    Sample,
    Timer,
    least_of_most,
    observe,
    on_same_host,
)
from ..trace import KernelIdentity, KernelRecord, Kind, are_alike, diff
from . import RATIO, Status, Verdict
from . import evidence as e
from .baseline import (
    COMPILE_COUNTS,
    Baseline,
    Process,
    compare_fingerprints,
    gemm_kernel,
    process_of,
    times_of,
)
from .cause import at_edited_lines, compare_launches, compile_causes, find_causes
from .structure import judge_structure, kernel_changes
from .timing import (
    COPY,
    FALSE_ALARMS_PER_RUN,
    GEMM,
    NOTHING,
    SUSPECTS_PER_RUN,
    TWINS,
    Decision,
    Limits,
    Prior,
    Scatter,
    Variance,
    decide,
    margin_of,
    prior_for,
    relative_change,
    scatter,
    variance_between_processes,
)

# What is known of other machines, beside two sets of processes that show their own spread.
# Simulated (tests/judge/test_revisions.py): with ten times the expected noise, three processes of
# each side raise no more false alarms than they may.
_DOF_BESIDE_TWO_SETS = 2.0
# Kernels that compute for so long follow the reference GEMM to another GPU. All others follow the
# copy, short GEMMs too.
_COMPUTES, _LONG_US = (Kind.GEMM.value, Kind.ATTENTION.value, Kind.CONVOLUTION.value), 20.0
_SHARED = 0.5  # of the GPU time of a workload is in kernels that its twin runs too
_TWINS = 2  # one alone may have changed itself
# three standard deviations of the difference of two twins on GPUs of other hosts (noise.json)
_TWINS_AGREE = 0.006
_SHOWN_TRANSFERS = 0.1  # of the time without kernels: less is not what a call waits for
# Of 533 recorded runs on GPUs and CPUs, busy hosts included (benchmarks/data), none had a GPU time,
# a CPU time or a dispatch time above 1.09 times its latency, and none host references that differ
# by more than a factor of 4.7.
_LONGEST_PART = 3.0  # times the latency
_SLOWEST_REFERENCE = 10.0  # times the fastest host reference on the same machine
# launches on several streams, or ops on several threads, add up to more than the latency
_MOST_STREAMS = 16


class Context:
    """What the verdicts on all times of a run share: how many they are, and what the other
    workloads show of the machine.

    Attributes: comparisons: times that the suite has: false alarms are controlled over all of them
        together. level: of false alarms, over all of these. is_alone: each shows its own noise.
            Otherwise those of a timer share the estimate of it.
    """

    def __init__(
        self,
        comparisons: int,
        judged: Iterable[tuple[Run, Baseline]] = (),
        *,
        level: float = SUSPECTS_PER_RUN,
        is_alone: bool = False,
    ) -> None:
        self.comparisons, self.level, self.is_alone = comparisons, level, is_alone
        self._known: dict[str, tuple[Run, Baseline]] = {}
        for run, baseline in judged:
            if not compare_fingerprints(baseline.fingerprint, run.fingerprint).foreign:
                self._known[run.workload] = (run, baseline)
        self._scatters: dict[tuple[str, Timer, str | None], Scatter] = {}

    def prior(
        self, timer: Timer, run: Run, limits: Limits | None, *, are_two_sets: bool = False
    ) -> Prior:
        """Return what to expect of a time of a run.

        `are_two_sets`: of one night, which show their own spread.
        """
        prior = prior_for(timer, run.fingerprint, limits, trains=run.trains)
        if are_two_sets:
            noise = msgspec.structs.replace(
                prior.noise, dof=min(prior.noise.dof, _DOF_BESIDE_TWO_SETS), night=0.0
            )
            prior = replace(prior, noise=noise)
        is_final = are_two_sets or not timer.timing.is_confirmed
        return replace(prior, level=FALSE_ALARMS_PER_RUN if is_final else self.level)

    def of_each(self, runs: Sequence[object], *, with_others: bool) -> Context:
        """Return the context of one of several runs that are judged together."""
        found = copy(self) if with_others else Context(self.comparisons, level=self.level)
        found.comparisons *= len(runs)
        return found

    def scatter(self, timer: Timer, run: Run) -> Scatter:
        """Return how far the baselines of the others scatter on this machine, together."""
        found = [
            self._scatter(name, timer, run.place) for name in self._known if name != run.workload
        ]
        return Scatter(*map(math.fsum, zip(*found, strict=True))) if found else Scatter()

    def _scatter(self, name: str, timer: Timer, place: str | None) -> Scatter:
        key = (name, timer, place)
        if key not in self._scatters:
            run, baseline = self._known[name]
            times = [each for each in baseline.times(timer) if each.place == place]
            if times and times[0].is_host_clock:
                times = on_same_host(times, times[-1])
            prior = prior_for(timer, run.fingerprint, trains=run.trains)
            self._scatters[key] = scatter(times, prior, len(run.kernels)) if times else Scatter()
        return self._scatters[key]

    def twins(
        self, run: Run, before: Sequence[ProcessTime], afters: Sequence[ProcessTime]
    ) -> tuple[tuple[list[ProcessTime], list[ProcessTime]], float | None]:
        """Return both sides with its twins as a reference, and how far their kernels moved, as a
        fraction.

        A twin is a workload that runs the same kernels: those in which `run` spends at least half
        of its time. It must have the software of its baseline. None: there are not two of them on
        each GPU of the baseline that agree.
        """
        found = list(self._twins(run, {each.place for each in before}))
        moves = [move for _, _, move in found]
        if len(found) < _TWINS or max(moves) - min(moves) > _TWINS_AGREE:
            return (list(before), list(afters)), None
        usual_us = {
            each.place: math.exp(fmean(usual[each.place] for usual, _, _ in found))
            for each in before
        }
        now_us = math.exp(fmean(now for _, now, _ in found))
        return (
            [
                replace(each, references_us={**each.references_us, TWINS: usual_us[each.place]})
                for each in before
            ],
            [replace(each, references_us={**each.references_us, TWINS: now_us}) for each in afters],
        ), math.expm1(fmean(moves))

    def _twins(
        self, run: Run, places: set[str | None]
    ) -> Iterator[tuple[dict[str | None, float], float, float]]:
        """Yield what a workload does on each place and now, as its twin does, and how far this
        moved: logarithms.
        """
        for name, (twin, baseline) in self._known.items():
            shared = {each.identity for each in twin.kernels} & {
                each.identity for each in run.kernels
            }
            is_same = compare_fingerprints(baseline.fingerprint, twin.fingerprint).identical
            if (
                name == run.workload
                or Timer.DEVICE not in twin.samples
                or not is_same
                or _part(run.kernels, shared) < _SHARED
            ):
                continue
            if not are_alike(baseline.kernels, twin.kernels):
                continue
            logs: dict[str | None, list[float]] = {place: [] for place in places}
            for process in baseline.processes:
                if process.place in places and Timer.DEVICE in process.timers:
                    logs[process.place].append(math.log(process.timers[Timer.DEVICE].mean_us))
            if all(logs.values()):
                usual = {place: fmean(values) for place, values in logs.items()}
                now = math.log(twin.time_us(Timer.DEVICE))
                yield usual, now, now - fmean(usual.values())


def _part(kernels: Sequence[KernelRecord], identities: set[KernelIdentity]) -> float:
    """Return the part of the GPU time that is spent in kernels of these identities."""
    whole_us = math.fsum(each.device_time_us for each in kernels)
    return math.fsum(each.device_time_us for each in kernels if each.identity in identities) / (
        whole_us or 1.0
    )


def followed_reference(kernels: Sequence[KernelRecord]) -> str:
    """Return the reference kernel that a GPU time follows to another GPU: the GEMM if it mostly
    computes, else the copy.
    """
    long = (each for each in kernels if each.device_time_us > _LONG_US)
    computes = {each.identity for each in long if each.identity.kind in _COMPUTES}
    return GEMM if 2 * _part(kernels, computes) > 1 else COPY


def judge(
    before: Sequence[ProcessTime],
    after: Sequence[ProcessTime],
    prior: Prior,
    context: Context,
    *,
    run: Run | None = None,
    kernels: Sequence[KernelRecord] | None = None,
    shown: Scatter | None = None,
    is_other_software: bool = False,
) -> Decision:
    """Hold processes to earlier ones, by the rule for times. Every verdict on a time comes from
    here.

    Args: after: of one machine, with the same kernels: their mean is judged. run: the first of
        `after`, where a workload ran: those beside it show its machine. None: the `kernels` of a
        call (of a trace None), and the scatter that others have `shown`. is_other_software: than
        that of `before`.
    """
    if run is not None and prior.timer is not None:
        kernels, shown = run.kernels, context.scatter(prior.timer, run)
    rule = partial(
        decide,
        prior=prior,
        comparisons=context.comparisons,
        estimates=context.comparisons if context.is_alone else len(CALL_TIMERS),
        kernels=1 if kernels is None else len(kernels),
        follows=NOTHING if kernels is None else followed_reference(kernels),
        shown=shown,
        is_other_software=is_other_software,
    )
    decision = rule(before, after)
    is_unknown_gpu = decision.moves is None and not after[0].is_host_clock
    # twins excuse no red time
    if run is None or not is_unknown_gpu or decision.status is Status.REGRESSED:
        return decision
    sides, twins = context.twins(run, before, after)
    return decision if twins is None else replace(rule(*sides), twins=twins)


def time_of(
    run: Run, timer: Timer, is_by_host: bool = False, gemm: str | None = None
) -> ProcessTime:
    """Return a time of a run as one process of a side.

    The other arguments are those of `times_of`.
    """
    now = observe(run.samples[timer], is_by_host=is_by_host)
    process = Process(run.gpu, {timer: now}, run.controls, run.host, run.day)
    (time,) = times_of([process], timer, is_by_host, gemm)
    return replace(time, most_us=least_of_most(run.samples[timer]))


def judge_time(
    timer: Timer,
    runs: Sequence[Run],
    baseline: Baseline,
    context: Context,
    limits: Limits | None = None,
) -> Verdict:
    """Judge one time by the rule of docs/verdicts.md.

    Args: runs: of one machine, with the same kernels. The mean of their times is judged; the first
        one has measured all. limits: gates and sensitivity that the suite asks for. None: the
        defaults.
    """
    run = runs[0]
    if (comparison := compare_fingerprints(baseline.fingerprint, run.fingerprint)).foreign:
        return Verdict(
            Status.INCOMPARABLE, run.workload, timer.label, e.NotCompared(comparison.moves)
        )
    if timer not in run.samples:
        return not_measured(timer, run)
    gemm = gemm_kernel(run.controls)
    before = baseline.times(timer, gemm=gemm)
    if not before:
        return Verdict(Status.NO_BASELINE, run.workload, timer.label, e.NoBaseline(is_partial=True))
    if why := stored_doubt(baseline, run, timer):
        found = Verdict(
            Status.NOT_JUDGED,
            run.workload,
            timer.label,
            e.TimeDoubted(why),
            after_us=run.time_us(timer),
        )
        return found.because(why, e.Next(e.Advice.REPLACE))
    after = [
        time_of(each, timer, before[0].is_by_host, gemm) for each in runs if timer in each.samples
    ]
    prior = context.prior(timer, run, limits, are_two_sets=len(runs) > 1)
    decision = judge(
        before, after, prior, context, run=run, is_other_software=bool(comparison.moved)
    )
    after_us = decision.after.observation.mean_us
    reasons = tuple(_reasons(timer, run, baseline, decision))
    conclusion = e.TimeCompared(decision.after.is_by_host, decision.doubt)
    return Verdict(
        decision.status,
        run.workload,
        timer.label,
        conclusion,
        reasons,
        decision.before_us,
        after_us,
        decision.change,
    )


def confirm(
    verdict: Verdict,
    timer: Timer,
    run: Run,
    fresh: Run,
    baseline: Baseline,
    context: Context,
    limits: Limits | None = None,
) -> Verdict:
    """Return the verdict on a slower time after a fresh process has measured it too. It stays, or
    is NOT_JUDGED.

    A process that passes contradicts the first one. By the clock of a host, so does one that
    decides nothing: unchanged calls take more than twice as long there at times. One of another
    structure contradicts nothing. What makes a run suspect makes the fresh process suspect too.
    """
    structure = judge_structure(fresh, baseline)
    if structure.status is not Status.PASS or kernel_changes(diff(run.kernels, fresh.kernels)):
        return verdict.because(e.NoFreshProcess("other structure"))
    found = judge_time(timer, [fresh], baseline, context, limits)
    if found.change is None or found.after_us is None:
        return verdict.because(e.NoFreshProcess("not measured"))
    measured = e.FreshProcess(found.after_us, found.change, found.status.value)
    is_host, is_red = timer.timing.is_host_clock, found.status is Status.REGRESSED
    if not (found.status in (Status.PASS, Status.IMPROVED) or (is_host and not is_red)):
        return verdict.because(measured)
    reasons = tuple(each for each in verdict.reasons if not isinstance(each, e.Next))
    conclusion = msgspec.structs.replace(verdict.conclusion, doubt=measured)
    return replace(verdict, status=Status.NOT_JUDGED, conclusion=conclusion, reasons=reasons)


def judge_ratio(run: Run, other: Run, variant: str, *, by: float, comparisons: int) -> Verdict:
    """Judge whether a run takes at least the fraction `by` less GPU time than the run of another
    variant beside it.

    PASS: the interval shows it. REGRESSED: it shows that it does not. UNDECIDED: the interval holds
    both. What one process spreads between its runs is not seen in one run: the prior knows it, of
    each variant apart. No baseline is needed. On a CPU it is the time of the ops.
    """
    timer = Timer.DEVICE
    for each in (run, other):
        if timer not in each.samples:
            missing = not_measured(timer, each, side="" if each is run else variant)
            return replace(missing, workload=run.workload, subject=RATIO)
    prior, variances, times = (
        prior_for(timer, run.fingerprint, trains=run.trains),
        list[Variance](),
        list[ProcessTime](),
    )
    for each in (other, run):
        times.append(time := time_of(each, timer))
        between = variance_between_processes([time], prior, len(each.kernels))
        variances.append(Variance(max(between.value, time.own_variance), between.dof))
    then, now = times
    delta, limit, level = (
        now.logarithm - then.logarithm,
        math.log1p(-by),
        FALSE_ALARMS_PER_RUN / comparisons,
    )
    margin = margin_of(variances, level)
    change = relative_change(delta, delta - margin, delta + margin, level)
    status, reasons = Status.UNDECIDED, tuple[e.Reason, ...]()
    if delta + margin <= limit:
        status = Status.PASS
    elif delta - margin > limit:
        status = Status.REGRESSED
    else:
        reasons = (e.Unclear("both possible" if math.isfinite(margin) else "one replicate"),)
    label, times_us = (
        timer.label_on(run.fingerprint),
        (now.observation.mean_us, then.observation.mean_us),
    )
    return Verdict(
        status, run.workload, RATIO, e.RatioCompared(label, variant, by, *times_us, change), reasons
    )


def not_measured(timer: Timer, run: Run, side: str = "") -> Verdict:
    """Return the verdict about a time that is missing. `side`: of which variant or revision."""
    why, reasons = run.incomplete or "", list[e.Reason]()
    if run.lack is Lack.OTHER_KERNELS:
        kernels = e.KernelMoved(None, run.other_kernels)
        reasons = [*compile_causes(run.compile_events), kernels, e.Next(e.Advice.SAME_LAUNCHES)]
    elif run.gpu and why:
        reasons = [e.Next(e.Advice.LOOK_AT_GPU)]
    conclusion = e.NotMeasured(timer.label_on(run.fingerprint), why, side)
    return Verdict(Status.INVALID, run.workload, timer.label, conclusion, tuple(reasons))


def is_as_fast(latency: Sample, baseline: Baseline, limits: Limits) -> bool:
    """Return whether a short look finds no end-to-end latency that is above that of a baseline by
    more than the gate, neither by the clock nor by the host's speed: no structure tells which values
    code works on.
    """
    timer = Timer.END_TO_END
    # a time that was accepted alone is of a process of its own
    known = [each for each in baseline.processes if timer in each.timers]
    now, most = observe(latency), 1 + limits.gate.get(timer, timer.timing.gate)

    def is_at_most(old_us: float, reference: float | None) -> bool:
        return now.mean_us <= most * old_us and (
            reference is None
            or now.control_us is None
            or now.mean_us / now.control_us <= most * old_us / reference
        )

    return bool(known) and all(
        is_at_most(each.timers[timer].mean_us, each.host_references_us.get(timer)) for each in known
    )


def same_code(timer: Timer, run: Run) -> Verdict:
    """Return the verdict about a time that is known: code that runs as before takes as long."""
    known = e.NotMeasured(run.label(timer), is_known=True)
    return Verdict(Status.PASS, run.workload, timer.label, known)


def _reasons(
    timer: Timer,
    run: Run,
    baseline: Baseline,
    decision: Decision,
) -> Iterator[e.Reason]:
    """Yield why a time is judged so."""
    has_moved = decision.status in (Status.REGRESSED, Status.IMPROVED)
    if decision.status is Status.NOT_JUDGED and decision.doubt is not None:
        yield decision.doubt
    if has_moved:
        yield from _causes(timer, run, baseline, decision)
    if timer is Timer.DEVICE and (has_moved or decision.machine):
        limits_ms = tuple(((run.conditions and run.conditions.throttled_ms) or {}).items())
        if decision.moves is None:
            yield e.Machine(None, twins=decision.twins, limits_ms=limits_ms)
        elif decision.moves:
            moves = tuple((name, math.expm1(move)) for name, move in decision.moves.items())
            yield e.Machine(moves, is_own=bool(decision.machine), limits_ms=limits_ms)
    if timer is not Timer.DEVICE and run.neighbours and decision.status is not Status.PASS:
        yield e.Neighbours(run.neighbours)
    if decision.status is Status.UNDECIDED and decision.change.low is None:
        yield e.Next(e.Advice.REPLICATES)
    elif decision.status is Status.UNDECIDED and not decision.scattered and not decision.machine:
        yield e.Next(e.Advice.CALIBRATE)


def _causes(timer: Timer, run: Run, baseline: Baseline, decision: Decision) -> Iterator[e.Reason]:
    """Yield what changed: of the GPU time its kernels; of the host's times its work, and where the
    time went.
    """
    run = at_edited_lines(run, baseline)
    if timer is Timer.DEVICE:
        # What the GPU's own change of speed did to every kernel is no reason: `Machine` names it.
        usual = baseline.entry.kernels_in(decision.before_us * math.exp(decision.machine))
        compared = compare_launches(baseline, usual, run)
        yield from find_causes(run, baseline, compared, is_timed=True)
        return
    compared = compare_launches(baseline, baseline.kernels, run)
    causes = find_causes(run, baseline, compared, is_timed=False)
    yield from causes
    if timer in COMPILE_TIMERS:
        sides = baseline.counts, run.counts
        counts = ((name, *(getattr(each, name) for each in sides)) for name in COMPILE_COUNTS)
        yield from (e.CountMoved(*each) for each in counts if each[1] != each[2])
        return
    ops = (baseline.counts.dispatcher_ops, run.counts.dispatcher_ops)
    if ops[0] != ops[1] or (timer is Timer.HOST and not causes):
        yield e.DispatcherOps(*ops, is_slower=decision.status is Status.REGRESSED)
    gpu_us = [each.observation.mean_us for each in baseline.times(Timer.DEVICE)]
    if timer is not Timer.END_TO_END or Timer.DEVICE not in run.samples or not gpu_us:
        return
    # A latency is the time that the GPU is busy, and the time that it idles.
    old, new = geometric_mean(gpu_us), run.time_us(Timer.DEVICE)
    if run.fingerprint.arch == "cpu":
        yield e.PartOfLatency("ops", old, new)
        return
    old_idle, new_idle = decision.before_us - old, run.time_us(Timer.END_TO_END) - new
    transfers_us = run.transfers_us if run.transfers_us >= _SHOWN_TRANSFERS * new_idle else 0.0
    yield e.PartOfLatency("kernels", old, new)
    yield e.PartOfLatency(
        "without kernels", old_idle, new_idle, transfers_us, is_launch_bound=new_idle > new
    )


# -- times that no undisturbed machine shows: a regression would pass beside them, so they are not c


def _impossible_times(
    process: Process, launches: int, later: Process | None = None
) -> dict[Timer, e.Doubt]:
    """Return why times of one process cannot be, by timer.

    `later`: a process that shows how fast the host is.
    """
    found: dict[Timer, e.Doubt] = {}
    latency = process.timers.get(Timer.END_TO_END)
    limits = {Timer.DEVICE: _LONGEST_PART * min(launches, _MOST_STREAMS), Timer.HOST: _LONGEST_PART}
    for timer, limit in limits.items() if latency else ():
        part = process.timers.get(timer)
        if part and latency and part.mean_us > limit * latency.mean_us:
            found[timer] = e.PartExceedsCall(part.mean_us, latency.mean_us)
    references_us = process.host_references_us
    others = (
        later.host_references_us if later and later.place and later.place == process.place else {}
    )
    fastest_us = min((*references_us.values(), *others.values()), default=0.0)
    for timer, us in references_us.items():
        if us > _SLOWEST_REFERENCE * fastest_us:
            found.setdefault(timer, e.SlowReference(us, fastest_us))
    return found


def run_doubts(run: Run) -> Iterator[e.ImpossibleTime]:
    """Yield which times of a run cannot be, and why."""
    for timer, why in _impossible_times(process_of(run), run.counts.launches).items():
        yield e.ImpossibleTime(timer.label_on(run.fingerprint), why)


def stored_doubt(baseline: Baseline, run: Run, timer: Timer | None = None) -> e.Doubt | None:
    """Return why a stored time that the run would be compared with cannot be. None: it may be.

    `timer`: None: any of them.
    """
    return doubt_of(baseline.processes, baseline.counts.launches, run, timer)


def doubt_of(
    processes: Iterable[Process], launches: int, run: Run, timer: Timer | None
) -> e.Doubt | None:
    """Return why a time of these processes cannot be, which the run would be compared with.

    None: it may be.
    """
    later = process_of(run)
    found = (_impossible_times(each, launches, later) for each in processes)
    return next((why for each in found for of, why in each.items() if timer in (of, None)), None)
