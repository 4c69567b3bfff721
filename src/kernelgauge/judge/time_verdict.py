"""The verdict on one time of a run: the decision in words, and why: kernels, the autotuner's choice, the host, the machine."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import geometric_mean

from ..errors import OTHER_KERNELS
from ..run import Run, Timer, observe
from .baseline import Baseline, Entry, Likeness, compare, gemm_kernel, references_us
from .cause import cause_reasons, compile_causes, find_causes
from .plausibility import stored_doubt
from .structure import kernel_changes
from .timing import Decision, Limits, ProcessTime, decide, decide_ratio, prior_for
from .verdict import RATIO, Reason, Status, Verdict

# What is known of other machines, beside two sets of processes that show their own spread. Simulated (tests/judge/test_two_sets.py):
# with noise of ten times what is expected, three processes of each side raise no more false alarms than they may.
_DOF_BESIDE_TWO_SETS = 2.0
_WHAT_DIFFERS = (
    "make each call launch the same: look for a recompile, for a branch or\n"
    "shape that depends on data, and for an autotuner (cudnn.benchmark)"
)
_SHOWN_TRANSFERS = 0.1  # of the time without kernels: less is not what a call waits for


def judge_time(
    timer: Timer,
    run: Run,
    baseline: Baseline,
    *,
    comparisons: int = 1,
    limits: Limits | None = None,
    more: Sequence[Run] = (),
) -> Verdict:
    """Judge one time of a run by the rule of docs/verdicts.md.

    Args:
        more: of other processes on the same machine, with the same kernels: their mean with the run's is judged.
        comparisons: times that the suite has.
        limits: gates and sensitivity that the suite asks for; None: the defaults.
    """
    label = run.label(timer)
    if (comparison := compare(baseline.fingerprint, run.fingerprint)).foreign:
        return Verdict(Status.INCOMPARABLE, run.workload, label, f"{label} not compared: {comparison}")
    if run.sample(timer) is None:
        return not_measured(timer, run)
    entry, likeness = baseline.entry_like(run.kernels)
    is_other_choice = likeness is Likeness.OTHER_CHOICE
    if is_other_choice and timer is Timer.DEVICE:  # only a choice slower than all known ones is a finding
        entry = max(baseline.entries, key=lambda each: each.device_time_us)
    gemm = gemm_kernel(run.controls)
    before = baseline.times(timer, entry, gemm=gemm)
    if not before:
        return Verdict(Status.NO_BASELINE, run.workload, label, f"the baseline has no {label}")
    if why := stored_doubt(baseline, run, timer, entry):
        headline = f"{label} {run.time_us(timer):.1f} us, not judged: that of the baseline cannot be"
        command = Reason("next", "kernelgauge accept   (replaces it, as pytest --perf-update does)")
        reasons = (Reason("why", why), command)
        return Verdict(Status.NOT_JUDGED, run.workload, label, headline, reasons, after_us=run.time_us(timer))
    afters = [
        replace(
            before[0],
            observation=observe(each.samples[timer], is_by_host=before[0].is_by_host),
            place=each.place,
            host=each.host,
            references_us=references_us(each.controls, gemm),
        )
        for each in (run, *more)
        if timer in each.samples
    ]
    prior = prior_for(timer, run.fingerprint, limits)
    if more:
        prior = replace(prior, dof=min(prior.dof, _DOF_BESIDE_TWO_SETS))
    decision = decide(before, afters, prior, comparisons=comparisons, kernels=len(run.kernels))
    after_us = decision.after.observation.mean_us
    if is_other_choice and timer is Timer.END_TO_END:
        unknown = Reason("why", "the autotuner's choice is not in the baseline")
        headline = f"{label} {after_us:.1f} us, not judged: {unknown.text}"
        return Verdict(Status.NOT_JUDGED, run.workload, label, headline, (unknown,), after_us=after_us)
    if is_other_choice and decision.status is Status.IMPROVED:  # it is compared with the slowest of the known ones
        decision = replace(decision, status=Status.PASS)
    said = _ComparedTime(timer, run, baseline, entry, decision, is_other_choice)
    times = (decision.before_us, after_us, decision.change)
    return Verdict(decision.status, run.workload, label, said.headline(), tuple(said.reasons()), *times)


def judge_ratio(run: Run, other: Run, variant: str, *, by: float, comparisons: int = 1) -> Verdict:
    """Judge whether a run takes at least the fraction `by` less GPU time than the run of another variant beside it.

    On a CPU it is the time of the ops. No baseline is needed; docs/verdicts.md has the rule.
    """
    timer = Timer.DEVICE
    for each in (run, other):
        if each.sample(timer) is None:
            missing = not_measured(timer, each)
            headline = missing.headline if each is run else f"{variant}: {missing.headline}"
            return replace(missing, workload=run.workload, subject=RATIO, headline=headline)
    now, then = (ProcessTime(observe(each.samples[timer])) for each in (run, other))
    prior, kernels = prior_for(timer, run.fingerprint), (len(other.kernels), len(run.kernels))
    decision = decide_ratio(then, now, prior, by=by, comparisons=comparisons, kernels=kernels)
    asked = f"{100 * by:g} % faster than {variant}" if by else f"faster than {variant}"
    is_so = {Status.PASS: "", Status.REGRESSED: "not "}.get(decision.status, "not known to be ")
    times = f"{now.observation.mean_us:.1f} us against {then.observation.mean_us:.1f} us"
    headline = f"{is_so}{asked}: {run.label(timer)} {times}, {decision.change}"
    reasons = (Reason("why", decision.reason),) if decision.reason else ()
    return Verdict(decision.status, run.workload, RATIO, headline, reasons)


def not_measured(timer: Timer, run: Run) -> Verdict:
    """Return the verdict about a time that is missing."""
    why, reasons = run.incomplete or "", []
    if why.startswith(OTHER_KERNELS):
        why, _, kernels = why.partition(": ")
        recompiles = cause_reasons(compile_causes(run.compile_events))
        reasons = [*recompiles, Reason("kernels", kernels), Reason("next", _WHAT_DIFFERS)]
    elif run.gpu and why:
        reasons = [Reason("next", "nvidia-smi -q -d PERFORMANCE,PIDS   (throttled, or shared?)")]
    headline = f"{run.label(timer)} was not measured" + (f": {why}" if why else "")
    return Verdict(Status.INVALID, run.workload, run.label(timer), headline, tuple(reasons))


# -- why --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _ComparedTime:
    """One timer of a run beside the baseline's entry of its launch configuration, or the nearest one."""

    timer: Timer
    run: Run
    baseline: Baseline
    entry: Entry
    decision: Decision
    is_other_choice: bool  # the autotuner's choice, which no entry has

    def headline(self) -> str:
        decision, after = self.decision, self.decision.after
        times = f"{self.run.label(self.timer)} {decision.before_us:.1f} -> {after.observation.mean_us:.1f} us"
        if decision.status is Status.NOT_JUDGED:
            return f"{times}, not judged: {decision.reason}"
        if decision.status is Status.REGRESSED and decision.reason:
            return f"{times}  {100 * decision.change.estimate:+.0f} %, far more than hosts differ: {decision.reason}"
        headline = f"{times}  {decision.change}{' at equal host speed' if after.is_by_host else ''}"
        if decision.status is Status.UNDECIDED:
            return f"{headline}: inconclusive: {decision.reason}"
        if decision.status is Status.PASS and not self.is_other_choice:
            return f"{headline}; {decision.change.shown_sensitivity} or more would have failed"
        return headline

    def reasons(self) -> list[Reason]:
        decision, workers = self.decision, self.run.neighbours
        reasons = self._choice() if self.is_other_choice and self.timer is Timer.DEVICE else []
        if decision.status is Status.NOT_JUDGED:
            reasons.insert(0, Reason("why", decision.reason))
        if decision.status in (Status.REGRESSED, Status.IMPROVED):
            reasons += self._causes()
        reasons += self._machine() if self.timer is Timer.DEVICE else []
        if self.timer is not Timer.DEVICE and workers and decision.status is not Status.PASS:
            reasons.append(Reason("host", f"other workers of this run that measured on this host as well: {workers}"))
        if decision.status is Status.UNDECIDED and decision.change.low is None:
            reasons.append(Reason("next", "measure at least two replicates: pytest -o kernelgauge_replicates=2"))
        elif decision.status is Status.UNDECIDED and not decision.scattered and not decision.machine:
            reasons.append(Reason("next", "kernelgauge calibrate   (more processes make the verdict sharper)"))
        return reasons

    def _choice(self) -> list[Reason]:
        """Name the autotuner's choice and its cost, against the fastest choice that the baseline knows."""
        fastest = min(self.baseline.entries, key=lambda each: each.device_time_us)
        now = sum(kernel.device_time_us for kernel in self.run.kernels)
        cost = f"{now - fastest.device_time_us:+.1f} us against the fastest that the baseline knows"
        lines = [f"the autotuner chose a launch configuration that is not in the baseline ({cost})"]
        return [Reason("tuning", "\n".join([*lines, *kernel_changes(fastest.kernels, self.run.kernels)]))]

    def _causes(self) -> list[Reason]:
        """Name what changed: of the GPU time its kernels; of the host's times what else the host does, and where the time went."""
        timer, run, baseline, decision = self.timer, self.run, self.baseline, self.decision
        is_timed = timer is Timer.DEVICE
        # What the GPU's own change of speed did to every kernel is no reason: `_machine` names it.
        usual = self.entry.kernels_in(decision.before_us * math.exp(decision.machine) if is_timed else None)
        causes, rest = find_causes(run, baseline, usual, is_timed=is_timed)
        reasons = cause_reasons(causes)
        if is_timed:
            return [*reasons, *([Reason("rest", rest)] if rest else [])]
        ops = (baseline.counts.dispatcher_ops, run.counts.dispatcher_ops)
        if ops[0] != ops[1]:
            reasons.append(Reason("why", f"dispatcher ops {ops[0]} -> {ops[1]}"))
        elif timer is Timer.HOST and not reasons:
            how = "slower" if decision.status is Status.REGRESSED else "faster"
            reasons.append(Reason("why", f"the host is {how} in the same {ops[1]} dispatcher ops, or around them"))
        return [*reasons, *(self._parts_of_latency() if timer is Timer.END_TO_END else [])]

    def _parts_of_latency(self) -> list[Reason]:
        """Split a latency into the time that the GPU is busy and the time that it idles; on a CPU, say the time of its ops."""
        run, decision = self.run, self.decision
        usual = [each.observation.mean_us for each in self.baseline.times(Timer.DEVICE, self.entry)]
        if Timer.DEVICE not in run.samples or not usual:
            return []
        old, new = geometric_mean(usual), run.time_us(Timer.DEVICE)
        if run.fingerprint.arch == "cpu":
            return [Reason("why", f"CPU time {old:.1f} -> {new:.1f} us ({new - old:+.1f}): its test names the ops")]
        old_idle, new_idle = decision.before_us - old, run.time_us(Timer.END_TO_END) - new
        bound = "launch-bound" if new_idle > new else "host-bound or launch-bound"
        if run.transfers_us >= _SHOWN_TRANSFERS * new_idle:
            bound = f"{run.transfers_us:.1f} us of it in copies and memsets"
        return [
            Reason("why", f"kernels {old:.1f} -> {new:.1f} us ({new - old:+.1f})"),
            Reason("why", f"without kernels {old_idle:.1f} -> {new_idle:.1f} us ({new_idle - old_idle:+.1f}): {bound}"),
        ]

    def _machine(self) -> list[Reason]:
        """Say whether the reference kernels, which no change of the code can touch, moved as well."""
        decision = self.decision
        if decision.status not in (Status.REGRESSED, Status.IMPROVED) and not decision.machine:
            return []
        if decision.moves is None:
            return [Reason("machine", "this GPU is not in the baseline")]
        moves = decision.moves.items()
        shown = ", ".join(f"{name} {round(100 * math.expm1(move), 1) + 0.0:+.1f} %" for name, move in moves)
        said = "the GPU itself changed its speed" if decision.machine else "unchanged"
        return [Reason("machine", f"{said} (reference {shown})")] if moves else []
