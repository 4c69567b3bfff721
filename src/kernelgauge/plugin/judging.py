"""How a session judges a run: by what its workload declares, by float64, by another variant, and by its baseline."""

from __future__ import annotations

import os
import secrets
import shlex
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from ..baselines import BaselineStore
from ..errors import BaselineError, KernelgaugeError, OtherKernelsError, SuitesError
from ..judge import DECLARED, NUMERICS, STRUCTURE, Status, Verdict
from ..judge import evidence as e
from ..judge.baseline import Baseline, compare
from ..judge.cause import compile_causes
from ..judge.structure import judge_structure, mismatches
from ..judge.time_verdict import Context, confirm, judge_ratio, judge_time
from ..judge.timing import FALSE_ALARMS_PER_RUN, SUSPECTS_PER_RUN, Limits
from ..results import Artifacts
from ..run import COMPILE_TIMERS, Fingerprint, Run, Timer
from ..workload import Workload
from .options import Options
from .suites import Suites

if TYPE_CHECKING:
    from ..measure.device import Device
    from ..measure.subject import Measured


class Judge:
    """Judges runs, and says what to do next. It times nothing.

    Attributes:
        has_timing_tests: whether a test of a suite judges or reads times.
        without_times: workloads that their tests want no times of.
        left_out: those whose times ``-m`` leaves out.
    """

    def __init__(self, options: Options, suites: Suites, artifacts: Artifacts) -> None:
        self.options, self.suites, self.artifacts = options, suites, artifacts
        self.store = BaselineStore(options.baselines)
        self._stored: dict[str, Baseline | None] = {}  # of the workloads measured so far, as they were then
        self.has_timing_tests = False
        self.without_times: set[str] = set()
        self.left_out: set[str] = set()

    def is_timed(self, workload: Workload) -> bool:
        """Whether the session times a workload."""
        if workload.id in self.suites.made:
            return workload.id not in self.without_times | self.left_out
        return self.has_timing_tests

    def declared(self, workload: Workload, run: Run) -> Verdict:
        """Judge what the workload declares: every expectation that holds for this machine, graph breaks and graphs."""
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
            declare.append(e.Next(e.Step.TOLERATE, self._option(workload, f"{what}={got}")))
        if not wrong:
            return Verdict(Status.PASS, workload.id, DECLARED, e.DeclaredCompared())
        reasons = (*causes, *wrong, e.Detail("trace", self.artifacts.trace_name(workload)), *declare)
        return Verdict(Status.CHANGED, workload.id, DECLARED, e.DeclaredCompared(), reasons)

    def _option(self, workload: Workload, option: str) -> str:
        """Return how an option is declared, in the form that the workload has."""
        if workload.id not in self.suites.made:
            return f"Workload(..., {option})"
        has_benchmark = "--perf-benchmark" in self.options.repeated  # its fixture takes no option
        return f"@pytest.mark.kernelgauge({option})" if has_benchmark else f"kernelgauge.using({option})(f, x)"

    def numerics(self, workload: Workload, device: Device) -> Verdict:
        """Compare the workload with its reference in float64, on random input."""
        from ..measure.numerics import NotComparedError, compare_with_float64

        seed = secrets.randbits(32) if self.options.seed is None else self.options.seed
        try:
            errors = compare_with_float64(workload, device, seed=seed)
        except NotComparedError as error:
            # Being faster than what may compute something else says nothing.
            is_needed = workload.id in self.suites.made and workload.faster_than is not None
            failed = e.Failed(error.what, "results not compared" if is_needed else "not judged")
            status = Status.INVALID if is_needed else Status.NOT_JUDGED
            return Verdict(status, workload.id, NUMERICS, failed, reasons_of(error))
        wrong, reference = [error for error in errors if not error.within_bound], errors[0].reference
        if not wrong:
            judged = [error for error in errors if error.is_judged]
            worst = max(judged or errors, key=lambda each: each.error / each.bound)
            conclusion = e.NumericsCompared(reference, str(worst), len(errors) - len(judged))
            return Verdict(Status.PASS, workload.id, NUMERICS, conclusion)
        largest = 1.5 * max(each.error for each in wrong)
        allow = [e.Next(e.Step.TOLERATE, self._option(workload, f"tolerance={largest:.1g}"))] if largest < 1 else []
        why = (e.Detail("why", str(error)) for error in wrong)
        reasons = (*why, e.Detail("seed", f"--perf-seed {seed}"), *allow)
        return Verdict(Status.INVALID, workload.id, NUMERICS, e.NumericsCompared(reference), reasons)

    def ratio(self, workload: Workload, run: Run, other: Workload, beside: Run, device: Device) -> Verdict:
        """Judge the GPU time of a workload against that of the variant that it says it is faster than."""
        comparisons = self.comparisons(device) + len(self.suites.made)  # any test may make one
        verdict = judge_ratio(run, beside, other.variant, by=workload.by, comparisons=comparisons)
        if verdict.status is Status.PASS:
            return verdict
        traces = (self.options.shown(self.artifacts.trace(each)) for each in (other, workload))
        return verdict.because(e.Next(e.Step.COMMAND, shlex.join(["kernelgauge", "diff", *traces])))

    def context(self, measured: Mapping[str, Measured | KernelgaugeError], device: Device) -> Context:
        """Return what the verdicts on times share: what was measured, with those of the baselines that can be used."""
        runs = {name: each.run for name, each in measured.items() if not isinstance(each, KernelgaugeError)}
        for name in runs.keys() - self._stored.keys():
            self._stored[name] = None
            with suppress(BaselineError):
                self._stored[name] = self.store.load(runs[name].fingerprint.device, name)
        pairs = ((run, self._stored[name]) for name, run in runs.items())
        level = SUSPECTS_PER_RUN if self.options.confirms else FALSE_ALARMS_PER_RUN
        known = ((run, baseline) for run, baseline in pairs if baseline is not None)
        return Context(self.comparisons(device), known, level=level)

    def by_baseline(
        self, run: Run, timer: Timer | None, device: Device, context: Context, *, declared: Verdict | None = None
    ) -> Verdict:
        """Judge a time of a run, or its structure, and say where its baseline is and what to do next.

        A baseline that cannot be used is INVALID, one that is missing NO_BASELINE. `declared`: the verdict on what the
        workload declares, if there is one.
        """
        workload, subject = self.suites.workloads[run.workload], STRUCTURE if timer is None else timer.label
        path = self.options.shown(self.store.path(run.fingerprint.device, run.workload))
        try:
            baseline = self.store.load(run.fingerprint.device, run.workload)
            self.suites.require_own(baseline)
        except SuitesError as error:
            return Verdict(Status.INVALID, run.workload, subject, e.Failed(error.what), reasons_of(error))
        except BaselineError as error:
            # An update is about to replace the file, so it is no reason to refuse the run.
            status = Status.NO_BASELINE if self.options.accepts else Status.INVALID
            error.where = path
            return Verdict(status, run.workload, subject, e.Failed(error.what), reasons_of(error))
        if baseline is None:
            record = e.Next(e.Step.RECORD, self.suites.command(workload))
            found = (e.Detail("found", text) for text in self._of_other_threads(run.fingerprint.device, [run.workload]))
            missing = (e.Detail("expected", path), *found, record)
            return Verdict(Status.NO_BASELINE, run.workload, subject, e.NoBaseline(), missing)
        # The verdict on structure depends on those of the times.
        timers = [timer] if timer is not None else [each for each in device.timers if run.sample(each)]
        times = [judge_time(each, [run], baseline, context, self.limits(workload)) for each in timers]
        verdict = judge_structure(run, baseline, times) if timer is None else times[0]
        verdict = replace(verdict, reasons=tuple(self._with_command(each, workload) for each in verdict.reasons))
        if verdict.status in (Status.PASS, Status.NOT_JUDGED):
            return verdict
        comparison = compare(baseline.fingerprint, run.fingerprint)
        verdict = verdict.because(e.BaselineFile(path, (*comparison.foreign, *comparison.moved)))
        if verdict.status not in (Status.UNDECIDED, Status.INVALID):
            if declared is not None and declared.status.fails:
                return verdict.because(e.Next(e.Step.MEND))
            accept = self.options.accept_command("-k", self.suites.selector(workload))
            is_complete = self.is_timed(workload) or run.workload in self.without_times
            measure = "" if is_complete else self.suites.command(workload, update=False)
            return verdict.because(e.Next(e.Step.ACCEPT, accept, measure))
        has_step = any(isinstance(reason, e.Next) for reason in verdict.reasons)
        return verdict if has_step else verdict.because(e.Next(e.Step.AGAIN))

    def _with_command(self, reason: e.AnyReason, workload: Workload) -> e.AnyReason:
        """Return a next step with the command that takes it for this workload alone, and as it was measured."""
        if not isinstance(reason, e.Next):
            return reason
        if reason.step is e.Step.CALIBRATE:
            measure = self.suites.command(workload, update=False).removeprefix("pytest ")
            return e.Next(reason.step, f"kernelgauge calibrate -- {measure}")
        if reason.step is e.Step.REPLACE:
            return e.Next(reason.step, self.options.accept_command("-k", self.suites.selector(workload)))
        return reason

    def confirmed(
        self, verdict: Verdict, timer: Timer, fresh: Run | KernelgaugeError, run: Run, context: Context
    ) -> Verdict:
        """Return the verdict on a slower time after a fresh process has measured it too, or could not."""
        if isinstance(fresh, KernelgaugeError):
            last = str(fresh.got or "").strip().rpartition("\n")[2]  # of its output
            return verdict.because(e.NoFreshProcess("failed", ": ".join(filter(None, (fresh.what, last)))))
        baseline = self.store.load(run.fingerprint.device, run.workload)
        assert baseline is not None  # the time is slower than its
        limits = self.limits(self.suites.workloads[run.workload])
        return confirm(verdict, timer, run, fresh, baseline, context, limits)

    def fails(self, verdict: Verdict) -> bool:
        """Whether a verdict fails its test, with the strictness that is asked for."""
        if self.options.accepts and verdict.is_by_baseline:
            return verdict.status is Status.INVALID  # what differs is about to be accepted; what is not valid cannot be
        return verdict.status.fails or (self.options.strict and not verdict.status.decided)

    def comparisons(self, device: Device) -> int:
        """Return how many times and ratios the suites have, selected or not: `-k` changes no verdict."""
        workloads, made = self.suites.workloads.values(), self.suites.made
        planned = sum(map(self.suites.is_in_matrix, workloads))
        ratios = sum(workload.faster_than is not None and workload.id not in made for workload in workloads)
        compiled = [each for each in workloads if each.compile is not None and self.suites.is_in_matrix(each)]
        compiles = len(compiled) if self.options.compiles else 0
        return max(1, planned) * len(device.timers) + ratios + len(COMPILE_TIMERS) * compiles

    def limits(self, workload: Workload) -> Limits:
        """Return the workload's limits, and the project's where it has none."""
        project = self.options.limits
        return Limits(
            gate={**project.gate, **{Timer(name): value for name, value in workload.gate.items()}},
            sensitivity={**project.sensitivity, **{Timer(name): value for name, value in workload.sensitivity.items()}},
        )

    def how_to_record(self, verdicts: Iterable[Verdict], fingerprint: Fingerprint, suites: Iterable[str] = ()) -> str:
        """Return which baselines these verdicts miss, or which times in them, and the command that records them."""
        missing = [each for each in verdicts if each.status is Status.NO_BASELINE]
        files = {
            why.text
            for each in missing
            for why in each.reasons
            if isinstance(why, e.Detail) and why.label == "expected"
        }
        files = files or {self.options.shown(self.store.path(fingerprint.device, "x"))}
        folder = "/, ".join(sorted({os.path.dirname(each) for each in files}))
        command = self.suites.command(suites=suites)
        if all(isinstance(each.conclusion, e.NoBaseline) and each.conclusion.is_partial for each in missing):
            times = " and ".join(dict.fromkeys(each.subject for each in missing))
            return f"the baselines in {folder}/ have no {times}; record them with: {command}"
        others = self._of_other_threads(fingerprint.device, dict.fromkeys(each.workload for each in missing))
        return "; ".join([f"no baseline in {folder}/", *others, f"record one with: {command}"])

    def _of_other_threads(self, device: str, workloads: Iterable[str]) -> list[str]:
        """Return which folders have baselines of these workloads on this kind of CPU with another number of threads."""
        found: dict[str, str] = {}
        for workload in workloads:
            own = self.store.path(device, workload)
            kind = own.parent.name.removesuffix("-threads").rpartition("-")[0]
            is_cpu = own.parent.name.endswith("-threads")
            for file in sorted(self.store.root.glob(f"{kind}-*-threads/{own.name}")) if is_cpu else ():
                count = file.parent.name.removeprefix(f"{kind}-").removesuffix("-threads")
                if file != own and count.isdecimal():
                    found[self.options.shown(file.parent)] = count
        return [f"{folder} has one: OMP_NUM_THREADS={count}" for folder, count in found.items()]


def reasons_of(error: KernelgaugeError) -> tuple[e.Reason, ...]:
    return tuple(e.Detail(label, text) for label, text in error.details)


def not_judged(run: Run, timer: Timer, what: str, error: KernelgaugeError) -> Verdict:
    """Return the verdict on a time that cannot be compared with the baseline."""
    # What a compiler chose anew is no fault of the code, nor of the machine: the time that was asked for is not known.
    status = Status.UNDECIDED if isinstance(error, OtherKernelsError) else Status.INVALID
    why = error.what.removeprefix(f"{run.workload}: ")  # the verdict says it
    conclusion = e.Failed(why, f"{timer.label} {what}")
    return Verdict(status, run.workload, timer.label, conclusion, reasons_of(error))
