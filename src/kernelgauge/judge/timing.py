"""A time of a run against its baseline: the decision, in words, with its causes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import geometric_mean

import msgspec

from ..run import Run, Timer
from ..trace.kernel import KernelRecord
from .attribution import explain
from .baseline import Baseline, Entry
from .configuration import Likeness
from .decision import Decision, decide
from .fingerprint import Comparison
from .lottery import choice
from .machine import MachineChange, gemm_kernel, gemm_us
from .observation import observe
from .policy import Policy, policy_for
from .seen import Seen, comparable_to, compared_mean_us
from .stats import RelativeChange
from .verdict import Reason, Status, Verdict

__all__ = ["judge_time", "not_measured"]


def judge_time(
    timer: Timer,
    run: Run,
    baseline: Baseline,
    comparison: Comparison,
    *,
    comparisons: int = 1,
    policy: Policy | None = None,
) -> Verdict:
    """REGRESSED or IMPROVED if all gates agree, UNDECIDED if a change that matters cannot be excluded, else PASS.

    A run is compared with the entry of its own launch configuration. `comparisons`: how many this suite run makes.
    """
    if not comparison.comparable:
        return Verdict(Status.INCOMPARABLE, run.workload, timer.label, f"{timer.label} not compared: {comparison}")
    sample = run.sample(timer)
    if sample is None:
        return not_measured(timer, run)
    entry, likeness = baseline.entry_like(run.kernels)
    gemm = gemm_kernel(run.controls) if timer is not Timer.HOST else None
    before = baseline.seen(timer, entry, gemm=gemm)
    if not before:
        return Verdict(Status.NO_BASELINE, run.workload, timer.label, f"the baseline has no {timer.label}")
    share = entry.host_share(timer)
    after = Seen(observe(sample, host_share=share), run.gpu, share, gemm_us(run.controls, gemm))
    machine = baseline.machine_change(entry, run.gpu, run.controls)
    if timer is not Timer.HOST and machine.is_another:
        return _lying_machine(run, timer, machine)
    decision = decide(
        before,
        after,
        policy or policy_for(timer, run.fingerprint, entry.kernels, run.kernels),
        comparisons=comparisons,
        explained=machine.explained(host_share=share),
    )
    return Verdict(
        status=decision.status,
        workload=run.workload,
        subject=timer.label,
        headline=_headline(timer, decision, after, machine, measured=len(sample.replicates_us)),
        reasons=_reasons(timer, run, baseline, entry, likeness, decision, machine),
        before_us=decision.compared_us,
        after_us=after.observation.mean_us,
        change=decision.change,
        suspicious=decision.suspicious,
    )


def not_measured(timer: Timer, run: Run) -> Verdict:
    """What is said of a time that is not there."""
    why = "" if run.incomplete is None else f": {run.incomplete}"
    return Verdict(Status.INVALID, run.workload, timer.label, f"{timer.label} was not measured{why}")


def _lying_machine(run: Run, timer: Timer, machine: MachineChange) -> Verdict:
    return Verdict(
        Status.INVALID,
        run.workload,
        timer.label,
        f"the machine is not the one of the baseline: its control pair moved ({machine})",
        (Reason("why", "a copy and a GEMM of our own, which no change of the code can touch"),),
    )


def _control_us(seen: Sequence[Seen]) -> float | None:
    controls = [each.observation.control_us for each in seen if each.observation.control_us is not None]
    return geometric_mean(controls) if controls else None


def _headline(timer: Timer, decision: Decision, after: Seen, machine: MachineChange, *, measured: int) -> str:
    headline = f"{timer.label} {decision.compared_us:.1f} -> {after.observation.mean_us:.1f} us  "
    headline += _describe(decision.change, at_equal_host_speed=bool(after.host_share))
    if timer is not Timer.DEVICE and after.observation.control_us is not None:
        usual = _control_us(decision.before)
        if usual is not None and abs(after.observation.control_us / usual - 1) > 0.05:  # else not worth a word
            headline += f", the host itself {usual:.1f} -> {after.observation.control_us:.1f} us (control)"
    if decision.status is Status.UNDECIDED:
        for_each = measured / after.observation.replicates  # those on a slow host are measured, and not kept
        same_gpu = comparable_to(after, decision.before)
        headline += f": {_what_would_decide(decision, same_gpu, machine, for_each)}"
    return headline


def _what_would_decide(decision: Decision, same_gpu: list[Seen], machine: MachineChange, for_each: float) -> str:
    if decision.change.low is None:
        return "too little is known of the noise: one replicate, or no control of the host"
    if decision.explained and not machine.moved:
        return "the host's own speed may be all of it"
    if decision.explained:
        return f"the control pair moved too ({machine}): the machine, which may be all of it"
    if decision.missing_replicates is not None:
        more = math.ceil(for_each * decision.missing_replicates)
        return (
            f"too noisy to tell; about {more} more replicate{'s' if more > 1 else ''} would decide (--perf-replicates)"
        )
    if decision.disturbed:
        return "the host was disturbed while it measured: its replicates scatter by far more than usual"
    where = "between processes" if same_gpu else "between machines"
    return f"no number of replicates decides: the noise {where} is too large; kernelgauge calibrate measures it"


def _describe(change: RelativeChange, *, at_equal_host_speed: bool) -> str:
    estimate = f"{100 * change.estimate:+.2f} %" + (" at equal host speed" if at_equal_host_speed else "")
    if change.low is None or change.high is None:
        return f"{estimate} [no interval]"
    return f"{estimate} [{100 * change.confidence:.2f} % CI {100 * change.low:+.2f}, {100 * change.high:+.2f}]"


def _reasons(
    timer: Timer,
    run: Run,
    baseline: Baseline,
    entry: Entry,
    likeness: Likeness,
    decision: Decision,
    machine: MachineChange,
) -> tuple[Reason, ...]:
    reasons: list[Reason] = []
    if decision.status in (Status.REGRESSED, Status.IMPROVED):
        if timer is Timer.DEVICE:
            reasons += _device_reasons(run, entry.kernels_in(decision.compared_us), machine)
        else:
            reasons += _host_reasons(timer, run, baseline, entry, decision.before)
    if timer is Timer.DEVICE:
        reasons += _tuning(baseline, entry, likeness, decision)
    elif run.neighbours and decision.status is not Status.PASS:
        others = f"{run.neighbours} other worker{'s' if run.neighbours > 1 else ''}"
        reasons.append(Reason("host", f"{others} of this run measured on this host at the same time"))
    return tuple(reasons)


def _device_reasons(run: Run, stored: Sequence[KernelRecord], machine: MachineChange) -> list[Reason]:
    named, rest = explain(stored, run.kernels)
    reasons = [Reason("why", text) for text in named]
    if rest:
        reasons.append(Reason("rest", rest))
    if run.controls and not machine.changes:
        reasons.append(Reason("machine", "the control pair runs other kernels than then: the machine was not compared"))
    if machine.changes:
        reasons.append(Reason("machine", _said_of_the_machine(machine)))
    return reasons


def _said_of_the_machine(machine: MachineChange) -> str:
    if not machine.same_gpu and not machine.moved:
        return f"another GPU of the kind, as fast in the copy as one that the baseline knows ({machine})"
    says = "moved too: the machine, in part" if machine.moved else "did not: it is not the machine"
    return f"{'' if machine.same_gpu else 'another GPU of the kind: '}the control pair ({machine}) {says}"


def _host_reasons(timer: Timer, run: Run, baseline: Baseline, entry: Entry, held: Sequence[Seen]) -> list[Reason]:
    """What the host does more, and for a latency, which part of it the device has."""
    reasons: list[Reason] = []
    if timer is Timer.END_TO_END:
        reasons += _latency_parts(run, baseline, entry, held)
    ops = (baseline.counts.dispatcher_ops, run.counts.dispatcher_ops)
    if ops[0] != ops[1]:
        reasons.append(Reason("why", f"dispatcher ops {ops[0]} -> {ops[1]}"))
    elif timer is Timer.HOST:
        reasons.append(Reason("why", f"the host is slower in the same {ops[1]} dispatcher ops, or around them"))
    return reasons


def _latency_parts(run: Run, baseline: Baseline, entry: Entry, held: Sequence[Seen]) -> list[Reason]:
    """Latency = device time + time in which the GPU waits for the host: the two changes sum to the latency's.

    A processor waits for no other one: its device time is part of the latency, and no more is to be told apart.
    """
    latency, device = run.sample(Timer.END_TO_END), run.sample(Timer.DEVICE)
    if latency is None or device is None or run.fingerprint.arch == "cpu":
        return []
    gemm = gemm_kernel(run.controls)
    entry = _with_latencies(entry, held)
    before = [baseline.seen(timer, entry, gemm=gemm) for timer in (Timer.END_TO_END, Timer.DEVICE)]
    after = [Seen(observe(sample), run.gpu, gemm_us=gemm_us(run.controls, gemm)) for sample in (latency, device)]
    if not all(before):
        return []
    old_latency, old_device = map(compared_mean_us, before, after)
    new_latency, new_device = (seen.observation.mean_us for seen in after)
    busy, idle = new_device - old_device, (new_latency - new_device) - (old_latency - old_device)
    bound = "launch-bound" if new_latency - new_device > new_device else "the host, or the launches"
    return [
        Reason("why", f"GPU busy {old_device:.1f} -> {new_device:.1f} us ({busy:+.1f})"),
        Reason(
            "why",
            f"GPU idle {old_latency - old_device:.1f} -> {new_latency - new_device:.1f} us ({idle:+.1f}): {bound}",
        ),
    ]


def _with_latencies(entry: Entry, held: Sequence[Seen]) -> Entry:
    """The entry with those of its processes that these latencies are of."""
    observed = [seen.observation for seen in held]
    processes = [process for process in entry.processes if process.timers.get(Timer.END_TO_END) in observed]
    return msgspec.structs.replace(entry, processes=tuple(processes))


def _tuning(baseline: Baseline, entry: Entry, likeness: Likeness, decision: Decision) -> list[Reason]:
    """What the autotuner's choice costs: said of a run that is otherwise as it was."""
    if not likeness.same_configuration:
        if likeness is Likeness.SAME_NAMES and decision.status is Status.PASS:
            return [Reason("tuning", "a launch configuration that no baseline has; it takes as long")]
        return []
    cost = choice(baseline, entry)
    return [] if cost is None else [Reason("tuning", cost)]
