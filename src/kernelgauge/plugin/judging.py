"""How a session judges a run: by what its workload declares, by float64, by another variant, and by
its baseline.

Here are all calls of the rules. Nothing here measures a time or keeps a verdict.
"""

from __future__ import annotations

import secrets
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ..errors import BaselineError, KernelgaugeError, OtherKernelsError
from ..judge import DECLARED, NUMERICS, STRUCTURE, Status, Verdict
from ..judge import evidence as e
from ..judge.baseline import Baseline, compare_fingerprints
from ..judge.cause import compile_causes
from ..judge.host import is_no_longer_counted
from ..judge.structure import judge_structure, mismatches, uncompiled
from ..judge.time_verdict import Context, confirm, judge_ratio, judge_time
from ..judge.timing import FAR_SLOWER
from ..run import CALL_TIMERS, Run, Timer
from ..workload import Workload
from .suites import Suites

if TYPE_CHECKING:
    from ..measure.choices import Replay
    from ..measure.device import Device
    from ..measure.numerics import RelativeError


_MOST_INPUTS = 3  # that a result is compared on, if it was compared before
_OF_CALLS = {each.label: each for each in CALL_TIMERS}


def judge_declared(suites: Suites, run: Run, trace: str) -> Verdict:
    """Judge what the workload declares: every expectation that holds for this machine, graph breaks
    and graphs.
    """
    workload = suites.workloads[run.workload]
    holding = [each for each in workload.expectations if each.holds_for(run.fingerprint)]
    wrong: list[e.Reason] = [mismatch for each in holding for mismatch in mismatches(each, run)]
    causes: list[e.Cause] = []
    declare: list[e.Next] = []
    for what, got, expected in (
        ("graph_breaks", run.counts.graph_breaks, workload.graph_breaks),
        ("compiles", run.counts.graphs or 0, workload.compiles),
    ):
        if expected is None or got == expected or (what == "compiles" and got < expected):
            continue
        wrong.append(e.Mismatch(what, got, expected))
        causes = compile_causes(run.compile_events) if got > expected else causes
        declare.append(e.Next(e.Advice.TOLERATE, suites.declaration(workload, f"{what}={got}")))
    if not wrong:
        return Verdict(Status.PASS, workload.id, DECLARED, e.DeclaredCompared())
    reasons = (*causes, *wrong, e.TraceFile(trace), *declare)
    return Verdict(Status.CHANGED, workload.id, DECLARED, e.DeclaredCompared(), reasons)


def judge_result(
    suites: Suites, workload: Workload, device: Device, replay: Replay, *, was_compared: bool
) -> Verdict:
    """Compare the workload with its reference in float64, on random input.

    `was_compared`: when the baseline was recorded. That it cannot be any more is UNDECIDED, after
    `_MOST_INPUTS`: chance may draw a sum of nearly zero, which is all rounding.
    """
    from ..measure.numerics import NotComparedError, compare_with_float64

    must_compare = was_compared or workload.reference is not None or workload.tolerance is not None
    first = secrets.randbits(32) if suites.options.seed is None else suites.options.seed
    for seed in range(first, first + (_MOST_INPUTS if must_compare else 1)):
        try:
            errors = compare_with_float64(workload, device, replay, seed=seed)
        except NotComparedError as error:
            failed = error
        else:
            return _judge_errors(suites, workload, errors, seed)
    # Being faster than what may compute something else says nothing.
    is_needed = workload.id in suites.made and workload.faster_than is not None
    status = Status.UNDECIDED if must_compare else Status.NOT_JUDGED
    status = Status.INVALID if is_needed else status
    so = "not judged" if status is Status.NOT_JUDGED else "results not compared"
    conclusion = e.Failed(failed.what, "results no longer compared" if was_compared else so)
    accept = suites.options.accept_command("-k", suites.selector(workload), "--force")
    steps = [e.Next(e.Advice.ACCEPT, accept)] if was_compared and not is_needed else []
    return Verdict(status, workload.id, NUMERICS, conclusion, (*reasons_of(failed), *steps))


def _judge_errors(
    suites: Suites, workload: Workload, errors: Sequence[RelativeError], seed: int
) -> Verdict:
    wrong, reference = [error for error in errors if not error.within_bound], errors[0].reference
    if not wrong:
        judged = [error for error in errors if error.is_judged]
        worst = max(judged or errors, key=lambda each: each.error / each.bound)
        conclusion = e.NumericsCompared(reference, str(worst), len(errors) - len(judged))
        return Verdict(Status.PASS, workload.id, NUMERICS, conclusion)
    largest = 1.5 * max(each.error for each in wrong)
    tolerance = suites.declaration(workload, f"tolerance={largest:.1g}")
    allow = [e.Next(e.Advice.TOLERATE, tolerance)] if largest < 1 else []
    why = (e.Detail("why", str(error)) for error in wrong)
    reasons = (*why, e.Detail("seed", f"--perf-seed {seed}"), *allow)
    return Verdict(Status.INVALID, workload.id, NUMERICS, e.NumericsCompared(reference), reasons)


def judge_variants(
    run: Run, other: Run, variant: str, traces: Iterable[str], *, by: float, comparisons: int
) -> Verdict:
    """Judge the GPU time of a workload against that of the variant that it says it is faster than."""
    verdict = judge_ratio(run, other, variant, by=by, comparisons=comparisons)
    if verdict.status is Status.PASS:
        return verdict
    return verdict.because(e.Next(e.Advice.COMMAND, shlex.join(["kernelgauge", "trace", *traces])))


# -- against the baseline --------------------------------------------------------------------------


def judge_by_baseline(
    suites: Suites,
    run: Run,
    baseline: Baseline,
    timers: Iterable[Timer],
    context: Context,
    problem: str = "",
) -> list[Verdict]:
    """Return the verdict on the structure of a run, which depends on its times, and those on the
    times.

    `problem`: why something of the run was not counted.
    """
    limits = suites.limits(suites.workloads[run.workload])
    times = [judge_time(timer, [run], baseline, context, limits) for timer in timers]
    structure = judge_structure(
        run, baseline, [each for each in times if each.subject in _OF_CALLS]
    )
    if problem and structure.status is Status.PASS and is_no_longer_counted(baseline, run):
        lost = e.Failed(problem, "host work no longer compared")
        structure = replace(structure, status=Status.UNDECIDED, conclusion=lost)
    return [structure, *times]


def confirmed(
    suites: Suites,
    verdict: Verdict,
    run: Run,
    fresh: Run | KernelgaugeError,
    baseline: Baseline,
    context: Context,
) -> Verdict:
    """Return the verdict on a slower time after a fresh process has measured it too, or could not."""
    if isinstance(fresh, KernelgaugeError):
        last = str(fresh.got or "").strip().rpartition("\n")[2]  # of its output
        return verdict.because(
            e.NoFreshProcess("failed", ": ".join(filter(None, (fresh.what, last))))
        )
    limits = suites.limits(suites.workloads[run.workload])
    return confirm(verdict, _OF_CALLS[verdict.subject], run, fresh, baseline, context, limits)


def needs_confirmation(verdict: Verdict, run: Run) -> bool:
    """Return whether a fresh process must find a time slower too. None changes a time by chance to
    more than twice itself.

    On a CPU other jobs do.
    """
    low = (
        verdict.change.low if verdict.change is not None and run.fingerprint.arch != "cpu" else None
    )
    is_far = low is not None and 1 + low > FAR_SLOWER
    return verdict.status is Status.REGRESSED and verdict.subject in _OF_CALLS and not is_far


def unusable(suites: Suites, run: Run, stored: KernelgaugeError | None, path: str) -> Verdict:
    """Return the verdict on all that is compared with a baseline, where that is missing or cannot
    be used.
    """
    if stored is None:
        found = (
            e.Detail("found", text)
            for text in suites.of_other_threads(run.fingerprint.device, [run.workload])
        )
        record = e.Next(e.Advice.RECORD, suites.command(suites.workloads[run.workload]))
        unchosen = [each for each in run.choices if not each.config]
        lost = (it for each in unchosen for it in uncompiled(each, each.times_us))
        reasons = (e.BaselineFile(path, None), *found, *lost, record)
        return Verdict(Status.NO_BASELINE, run.workload, "", e.NoBaseline(), reasons)
    status = Status.INVALID
    if isinstance(stored, BaselineError):
        # An update is about to replace the file, so it is no reason to refuse the run.
        status, stored.where = Status.NO_BASELINE if suites.options.accepts else status, path
    return Verdict(status, run.workload, "", e.Failed(stored.what), reasons_of(stored))


def advised(
    suites: Suites,
    verdict: Verdict,
    run: Run,
    baseline: Baseline,
    path: str,
    declared: Verdict | None,
    *,
    is_same_code: bool,
) -> Verdict:
    """Return a verdict with its baseline and what to do next.

    `declared`: that on what the workload declares, if asked for. `is_same_code`: whether structure
    passes. Then a host's clock that is faster may be noise, as no fresh process confirms it.
    """
    workload = suites.workloads[run.workload]
    verdict = replace(
        verdict, reasons=tuple(_with_command(suites, each, workload) for each in verdict.reasons)
    )
    if verdict.status in (Status.PASS, Status.NOT_JUDGED):
        return verdict
    comparison = compare_fingerprints(baseline.fingerprint, run.fingerprint)
    verdict = verdict.because(e.BaselineFile(path, (*comparison.foreign, *comparison.moved)))
    if verdict.status not in (Status.UNDECIDED, Status.INVALID):
        if declared is not None and declared.status.fails:
            return verdict.because(e.Next(e.Advice.MEND))
        is_by_clock = verdict.subject not in (STRUCTURE, Timer.DEVICE.label)
        if verdict.status is Status.IMPROVED and is_by_clock and is_same_code:
            return verdict
        accept = suites.options.accept_command("-k", suites.selector(workload))
        is_complete = run.is_timed or run.incomplete is None
        measure = "" if is_complete else suites.command(workload, update=False)
        return verdict.because(e.Next(e.Advice.ACCEPT, accept, measure))
    has_step = any(isinstance(reason, e.Next) for reason in verdict.reasons)
    # A quiet machine counts no more than this one.
    is_final = has_step or verdict.subject == STRUCTURE
    return verdict if is_final else verdict.because(e.Next(e.Advice.AGAIN))


def _with_command(suites: Suites, reason: e.AnyReason, workload: Workload) -> e.AnyReason:
    """Return a next step with the command that takes it for this workload alone, and as it was
    measured.
    """
    if not isinstance(reason, e.Next):
        return reason
    if reason.step is e.Advice.CALIBRATE:
        measure = suites.command(workload, update=False).removeprefix("pytest ")
        return e.Next(reason.step, f"kernelgauge calibrate -- {measure}")
    if reason.step is e.Advice.REPLACE:
        return e.Next(reason.step, suites.options.accept_command("-k", suites.selector(workload)))
    return reason


# -- what could not be measured --------------------------------------------------------------------


def reasons_of(error: KernelgaugeError) -> tuple[e.Reason, ...]:
    command = [e.Next(e.Advice.COMMAND, error.next_command)] if error.next_command else []
    return (*(e.Detail(*each) for each in error.details), *command)


def not_judged(run: Run, timer: Timer, error: KernelgaugeError) -> Verdict:
    """Return the verdict on a time that cannot be compared with the baseline."""
    # What a compiler chose anew is no fault of the code, nor of the machine: the time that was
    # asked for is not known.
    is_chosen = isinstance(error, OtherKernelsError)
    why = error.what.removeprefix(f"{run.workload}: ")  # the verdict says it
    conclusion = e.Failed(why, f"{timer.label} {'not compared' if is_chosen else 'not measured'}")
    status = Status.UNDECIDED if is_chosen else Status.INVALID
    return Verdict(status, run.workload, timer.label, conclusion, reasons_of(error))
