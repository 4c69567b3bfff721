"""The verdict about one time of a run: the decision in words, with the kernels and the machine behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import geometric_mean

from ..run import Run, Timer
from ..trace.configuration import configuration_change, was_autotuned
from ..trace.diff import align
from ..trace.kernel import KernelRecord
from .attribution import explain
from .baseline import Baseline, Entry, gemm_kernel, references_us
from .configuration import Likeness
from .fingerprint import Comparison
from .observation import observe
from .priors import prior_for
from .timing import Decision, ProcessTime, decide
from .verdict import Reason, RelativeChange, Status, Verdict

__all__ = ["describe_choice", "judge_time", "not_measured"]


@dataclass(frozen=True)
class _Compared:
    """One timer of a run beside the baseline's entry of its launch configuration, or the nearest one."""

    timer: Timer
    run: Run
    baseline: Baseline
    entry: Entry
    decision: Decision
    is_other_choice: bool  # the autotuner's choice, which no entry has


def judge_time(
    timer: Timer,
    run: Run,
    baseline: Baseline,
    comparison: Comparison,
    *,
    comparisons: int = 1,
    sensitivity: float | None = None,
) -> Verdict:
    """Judge one time of a run by the rule of docs/verdicts.md.

    Args:
        comparison: of the two fingerprints.
        comparisons: times that the suite has.
        sensitivity: the slowdown that a PASS may miss, as a fraction; None: the default of the timer.
    """
    if not comparison.comparable:
        return Verdict(Status.INCOMPARABLE, run.workload, timer.label, f"{timer.label} not compared: {comparison}")
    sample = run.sample(timer)
    if sample is None:
        return not_measured(timer, run)
    entry, likeness = baseline.entry_like(run.kernels)
    other_choice = likeness is Likeness.SAME_NAMES and _only_autotuned(entry, run)
    if other_choice and timer is Timer.DEVICE:  # only a choice slower than all known ones is a finding
        entry = max(baseline.entries, key=lambda each: each.device_time_us)
    gemm = gemm_kernel(run.controls)
    before = baseline.times(timer, entry, gemm=gemm)
    if not before:
        return Verdict(Status.NO_BASELINE, run.workload, timer.label, f"the baseline has no {timer.label}")
    after = ProcessTime(
        observe(sample, is_by_host=before[0].is_by_host),
        place=run.gpu or run.host,
        host=run.host,
        is_host_clock=before[0].is_host_clock,
        is_by_host=before[0].is_by_host,
        references_us=references_us(run.controls, gemm),
    )
    if other_choice and timer is Timer.END_TO_END:
        headline = f"{timer.label} {after.observation.mean_us:.1f} us, not judged: the autotuner's choice is not in the baseline"
        return Verdict(Status.NOT_JUDGED, run.workload, timer.label, headline, after_us=after.observation.mean_us)
    decision = decide(
        before,
        after,
        prior_for(timer, run.fingerprint),
        comparisons=comparisons,
        kernels=len(run.kernels),
        sensitivity=sensitivity,
    )
    if other_choice and decision.status is Status.IMPROVED:  # another choice than the slowest is no change of the code
        decision = replace(decision, status=Status.PASS)
    compared = _Compared(timer, run, baseline, entry, decision, other_choice)
    return Verdict(
        status=decision.status,
        workload=run.workload,
        subject=timer.label,
        headline=_headline(compared, after),
        reasons=tuple(_reasons(compared)),
        before_us=decision.before_us,
        after_us=after.observation.mean_us,
        change=decision.change,
    )


def not_measured(timer: Timer, run: Run) -> Verdict:
    """Return the verdict about a time that is missing."""
    why = "" if run.incomplete is None else f": {run.incomplete}"
    return Verdict(Status.INVALID, run.workload, timer.label, f"{timer.label} was not measured{why}")


def _only_autotuned(entry: Entry, run: Run) -> bool:
    """Whether the kernels differ in nothing but what Inductor's autotuner chose."""
    pairs = zip(entry.kernels, run.kernels, strict=True)
    return all(
        before.identity.without_source == after.identity.without_source
        or was_autotuned(before.identity, after.identity)
        for before, after in pairs
    )


def _headline(compared: _Compared, after: ProcessTime) -> str:
    decision, timer = compared.decision, compared.timer
    times = f"{timer.label} {decision.before_us:.1f} -> {after.observation.mean_us:.1f} us"
    if decision.status is Status.NOT_JUDGED:
        return f"{times}, not judged: {decision.reason}"
    host = " at equal host speed" if after.is_by_host else ""
    headline = f"{times}  {_describe(decision.change)}{host}"
    if decision.status is Status.UNDECIDED:
        return f"{headline}: inconclusive: {decision.reason}"
    if decision.status is Status.PASS and decision.change.sensitivity is not None:
        return f"{headline}; {_sensitivity(decision.change.sensitivity)} would have failed"
    return headline


def _sensitivity(fraction: float) -> str:
    return f"+{100 * fraction:.2g} %"


def _describe(change: RelativeChange) -> str:
    estimate = f"{100 * change.estimate:+.2f} %"
    if change.low is None or change.high is None:
        return f"{estimate} (no interval)"
    return f"{estimate} ({100 * change.low:+.2f} … {100 * change.high:+.2f})"


def _reasons(compared: _Compared) -> list[Reason]:
    timer, decision = compared.timer, compared.decision
    changed = decision.status in (Status.REGRESSED, Status.IMPROVED)
    reasons = _choice_reasons(compared) if timer is Timer.DEVICE else []
    if timer is Timer.DEVICE and changed:
        named, rest = explain(compared.entry.kernels_in(decision.before_us), compared.run.kernels)
        reasons += [Reason("why", text) for text in named] + ([Reason("rest", rest)] if rest else [])
    elif changed:
        reasons += _host_reasons(compared)
    if timer is Timer.DEVICE and (changed or decision.machine):
        reasons += _machine_reasons(compared)
    if timer is not Timer.DEVICE and compared.run.neighbours and decision.status is not Status.PASS:
        count = compared.run.neighbours
        others = f"{count} other worker{'s' if count > 1 else ''}"
        reasons.append(Reason("host", f"{others} of this run measured on this host at the same time"))
    if decision.status is Status.UNDECIDED:
        reasons.append(Reason("next", "kernelgauge calibrate   (more processes make the verdict sharper)"))
    return reasons


def _machine_reasons(compared: _Compared) -> list[Reason]:
    """Say whether the reference kernels, which no change of the code can touch, moved as well."""
    decision, run = compared.decision, compared.run
    place = run.gpu or run.host
    same = [each for each in decision.before if each.place == place]
    moves = {
        name: time_us / geometric_mean(each.references_us[name] for each in same) - 1
        for name, time_us in references_us(run.controls, gemm_kernel(run.controls)).items()
        if same and all(name in each.references_us for each in same)
    }
    shown = ", ".join(f"{name} {round(100 * move, 1) + 0.0:+.1f} %" for name, move in moves.items())
    if decision.machine:
        return [Reason("machine", f"the GPU itself changed its speed (reference {shown})")]
    if moves:
        return [Reason("machine", f"unchanged (reference {shown})")]
    if not same:
        return [Reason("machine", "this GPU is not in the baseline")]
    return [Reason("machine", "not compared: the reference kernels differ from the baseline's")] if run.controls else []


def _host_reasons(compared: _Compared) -> list[Reason]:
    timer, run, baseline = compared.timer, compared.run, compared.baseline
    reasons = _latency_parts(compared) if timer is Timer.END_TO_END else []
    ops = (baseline.counts.dispatcher_ops, run.counts.dispatcher_ops)
    if ops[0] != ops[1]:
        reasons.append(Reason("why", f"dispatcher ops {ops[0]} -> {ops[1]}"))
    elif timer is Timer.HOST:
        how = "slower" if compared.decision.status is Status.REGRESSED else "faster"
        reasons.append(Reason("why", f"the host is {how} in the same {ops[1]} dispatcher ops, or around them"))
    return reasons


def _latency_parts(compared: _Compared) -> list[Reason]:
    """Split a latency into the time that the GPU is busy and the time that it idles. A CPU idles for nobody."""
    run, decision = compared.run, compared.decision
    latency, device = run.sample(Timer.END_TO_END), run.sample(Timer.DEVICE)
    usual = [each.observation.mean_us for each in compared.baseline.times(Timer.DEVICE, compared.entry)]
    if latency is None or device is None or run.fingerprint.arch == "cpu" or not usual:
        return []
    old, new = geometric_mean(usual), observe(device).mean_us
    old_idle, new_idle = decision.before_us - old, observe(latency).mean_us - new
    bound = "launch-bound" if new_idle > new else "the host, or the launches"
    return [
        Reason("why", f"GPU busy {old:.1f} -> {new:.1f} us ({new - old:+.1f})"),
        Reason("why", f"GPU idle {old_idle:.1f} -> {new_idle:.1f} us ({new_idle - old_idle:+.1f}): {bound}"),
    ]


def _choice_reasons(compared: _Compared) -> list[Reason]:
    """Name the autotuner's choice and its cost, against the fastest choice that the baseline knows."""
    entry = compared.entry
    if not compared.is_other_choice:
        cost = describe_choice(compared.baseline, entry)
        return [] if cost is None or compared.decision.status is Status.REGRESSED else [Reason("tuning", cost)]
    fastest = min(compared.baseline.entries, key=lambda each: each.device_time_us)
    now = sum(kernel.device_time_us for kernel in compared.run.kernels)
    cost = f"{now - fastest.device_time_us:+.1f} us against the fastest that the baseline knows"
    return [
        Reason(
            "tuning",
            f"the autotuner chose a launch configuration that is not in the baseline ({cost})\n{_differences(fastest, compared.run.kernels)}",
        )
    ]


def describe_choice(baseline: Baseline, entry: Entry) -> str | None:
    """Say how much slower a known choice is than the fastest one; None if it is the fastest."""
    fastest = min(baseline.entries, key=lambda each: each.device_time_us)
    cost = entry.device_time_us - fastest.device_time_us
    if cost <= 0:
        return None
    compiles = sum(each.draws for each in baseline.entries)
    return (
        f"the autotuner's choice in {entry.draws} of {compiles} compiles; its fastest "
        f"({fastest.draws} of {compiles}) takes {cost:.1f} us less ({-100 * cost / entry.device_time_us:.1f} %)\n"
        f"{_differences(fastest, entry.kernels)}"
    )


def _differences(entry: Entry, kernels: Sequence[KernelRecord]) -> str:
    return "\n".join(
        f"{change.after.identity.shown}: {configuration}"
        for change in align(entry.kernels, kernels)
        if change.before is not None and change.after is not None
        if (configuration := configuration_change(change.before.identity, change.after.identity))
    )
