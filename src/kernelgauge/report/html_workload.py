"""One workload as the HTML report shows it: its kernels, its three timers, its verdicts and its tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..judge import RelativeChange, Status, Verdict, observe
from ..results import TestResult, WorkloadResult
from ..run import Run, Timer
from .html_charts import Distribution, Interval, distribution, interval
from .html_kernels import KernelRow, Lanes, against_baseline, kernel_changes, kernel_rows, limit_texts, stored_kernels
from .html_links import Artifact, artifacts
from .html_problems import Problem, problems
from .html_tests import TestView, VerdictView, clipped, test_views, verdict_view
from .wording import status_text, us

__all__ = ["TimerView", "WorkloadView", "axis_limit", "change_percent", "workload_view"]

_MOST_KERNELS = 40
_LEAST_AXIS = 0.01  # a change of 1 % is never drawn as a large one


@dataclass(frozen=True)
class TimerView:
    """One of the three times. `change`: as text, empty where nothing is compared."""

    label: str
    verdict: VerdictView | None
    now_us: float
    before_us: float | None
    change: str
    interval: Interval | None
    distribution: Distribution
    note: str


@dataclass(frozen=True)
class WorkloadView:
    """All of it. `source`: what it is made from."""

    source: WorkloadResult
    anchor: str
    name: str
    status: str
    unavailable: str  # why it cannot run here; empty if it can
    problems: tuple[Problem, ...]
    timers: tuple[TimerView, ...]
    verdicts: tuple[VerdictView, ...]  # of what is no timer
    kernels: tuple[KernelRow, ...]
    kernels_left_out: int
    lanes: Lanes | None  # baseline and this run
    conditions: tuple[tuple[str, str], ...]
    counts: tuple[tuple[str, str, str], ...]  # what, baseline, now
    tests: tuple[TestView, ...]
    links: tuple[Artifact, ...]

    @property
    def moved(self) -> bool:
        """Whether there is something to see in the lanes: other kernels, or another device time."""
        device = self.timer(Timer.DEVICE.label)
        judged = device.verdict.status if device and device.verdict else Status.PASS.value
        return any(kernel.moved for kernel in self.kernels) or judged != Status.PASS.value

    def timer(self, label: str) -> TimerView | None:
        return next((timer for timer in self.timers if timer.label == label), None)


def workload_view(
    source: WorkloadResult,
    tests: Sequence[TestResult],
    *,
    anchor: str,
    linked: bool,
) -> WorkloadView:
    """`linked`: the report lies beside this workload's trace."""
    run = source.run
    timers = _timers(source, run) if run else ()
    shown = {timer.label for timer in timers} | {test.name for test in tests if test.outcome == "failed"}
    stored = stored_kernels(source)
    changes = kernel_changes(source, stored)
    rows = kernel_rows(changes, compared=source.baseline is not None, limits=limit_texts(source))
    return WorkloadView(
        source=source,
        anchor=anchor,
        name=clipped(source.id),
        status=status_text(source),
        unavailable=clipped(source.unavailable or "", 1000),
        problems=problems(source.verdicts, tests),
        timers=timers,
        verdicts=tuple(verdict_view(one) for one in source.verdicts if one.subject not in shown),
        kernels=rows[:_MOST_KERNELS],
        kernels_left_out=max(0, len(rows) - _MOST_KERNELS),
        lanes=against_baseline(source, stored, changes, status=status_text(source)),
        conditions=_conditions(run) if run else (),
        counts=_counts(source),
        tests=tuple(test_views(tests, source.verdicts, unavailable=source.unavailable)),
        links=artifacts(source.trace) if linked else (),
    )


def change_percent(change: RelativeChange | None) -> str:
    return "" if change is None else f"{100 * change.estimate:+.2f} %"


def axis_limit(changes: Sequence[RelativeChange]) -> float:
    """Both ends of an axis that holds all of these, as a fraction."""
    ends = [abs(end) for one in changes for end in (one.estimate, one.low, one.high) if end is not None]
    return max([_LEAST_AXIS, *(1.1 * end for end in ends)])


def _timers(source: WorkloadResult, run: Run) -> tuple[TimerView, ...]:
    judged = {timer: source.verdict(timer.label) for timer in Timer}
    limit = axis_limit([one.change for one in judged.values() if one is not None and one.change is not None])
    views: list[TimerView] = []
    for timer, verdict in judged.items():
        sample = run.sample(timer)
        if sample is None:
            continue
        mean_us = observe(sample).mean_us
        change = verdict.change if verdict else None
        views.append(
            TimerView(
                label=timer.label,
                verdict=verdict_view(verdict) if verdict else None,
                now_us=mean_us,
                before_us=verdict.before_us if verdict else None,
                change=change_percent(change),
                interval=interval(change, limit=limit) if change else None,
                distribution=distribution(timer, run, sample, mean_us, source.baseline),
                note=_timer_note(sample.iterations, verdict, bool(sample.controls_us)),
            )
        )
    return tuple(views)


def _timer_note(iterations: int, verdict: Verdict | None, has_control: bool) -> str:
    calls = f"{iterations} calls in each replicate"
    judged = verdict is not None and verdict.change is not None
    return f"{calls}; times as measured, the change at equal host speed" if has_control and judged else calls


def _counts(source: WorkloadResult) -> tuple[tuple[str, str, str], ...]:
    if source.run is None:
        return ()
    stored = source.baseline.counts if source.baseline else None
    return tuple(
        (
            name.replace("_", " "),
            _count(getattr(stored, name)) if stored else "",
            _count(getattr(source.run.counts, name)),
        )
        for name in source.run.counts.__struct_fields__
    )


def _count(value: int | None) -> str:
    return "not known" if value is None else f"{value:,}"


def _conditions(run: Run) -> tuple[tuple[str, str], ...]:
    seen = run.conditions
    pairs: list[tuple[str, str]] = [("incomplete", clipped(run.incomplete, 600))] if run.incomplete else []
    if seen is None:
        return (*pairs, ("GPU", "not watched"))
    clocks = [f"{seen.median_sm_clock_mhz:.0f} MHz median"] if seen.median_sm_clock_mhz is not None else []
    clocks += [f"{seen.lowest_sm_clock_mhz} lowest"] if seen.lowest_sm_clock_mhz is not None else []
    slowed = ", ".join(f"{cause} for {ms:.0f} ms" for cause, ms in (seen.throttled_ms or {}).items() if ms >= 1)
    pairs += [("SM clock", ", ".join(clocks))] if clocks else []
    pairs += [("slowed by", clipped(slowed))] if slowed else []
    pairs += [("temperature", f"{seen.max_temperature_c} C at most")] if seen.max_temperature_c is not None else []
    pairs += [("power", f"{seen.max_power_watts:.0f} W at most")] if seen.max_power_watts is not None else []
    if seen.other_processes is not None:
        pairs.append(("other processes", str(seen.other_processes)))
    pairs += [(f"control {clipped(name, 30)}", f"{us(one.device_time_us)} us") for name, one in run.controls.items()]
    return tuple(pairs)
