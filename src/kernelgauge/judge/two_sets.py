"""Two sets of processes of one workload on one machine, and no baseline: the second judged by the first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import msgspec

from ..run import Run, Sample, Timer
from .baseline import Baseline, combined, compare, from_run, likeness
from .structure import judge_structure
from .time_verdict import judge_time, not_measured
from .timing import Limits
from .verdict import MEASUREMENT, Status, Verdict

__all__ = ["FEWEST", "LOOKS", "JudgedSet", "is_decided", "judge_sets", "looks"]

FEWEST = 3  # processes of each side: from then on their own spread says more than what is known of other machines
LOOKS = 3  # at most so many times the rule is asked; each has its share of the false alarms (Bonferroni)
# Smaller changes are no finding, as fractions. Processes of the same minutes agree better than those of different nights.
_GATES = {Timer.DEVICE: 0.002, Timer.HOST: 0.02, Timer.END_TO_END: 0.1}
# A time is decided once this slowdown would have failed in 95 of 100 comparisons, or one of so many microseconds: the
# profiler's clock has steps of 0.032 us. A latency, which is the other two, asks for no further processes.
_WANTED = {Timer.DEVICE.label: 0.005, Timer.HOST.label: 0.05}
_WANTED_US = 0.1


@dataclass(frozen=True)
class JudgedSet:
    """The verdicts on a set of processes.

    Attributes:
        run: one of them, with the samples of all that ran in its launch configuration. None: there is none.
        baseline: of the other set. None: it cannot be one.
    """

    verdicts: tuple[Verdict, ...]
    run: Run | None = None
    baseline: Baseline | None = None


def looks(processes: int) -> set[int]:
    """Return after how many processes of each side the rule is asked: 3, 6 and 12, or as many as there are."""
    return {FEWEST * 2**number for number in range(LOOKS - 1)} | {processes}


def is_decided(verdict: Verdict) -> bool:
    """Tell whether more processes would tell no more: it changed, or as small a change as is wanted would have shown."""
    if (
        verdict.status not in (Status.PASS, Status.UNDECIDED)
        or verdict.change is None
        or verdict.subject not in _WANTED
    ):
        return True
    sensitivity, wanted = verdict.change.sensitivity, _WANTED[verdict.subject]
    if verdict.subject == Timer.DEVICE.label and verdict.before_us:
        wanted = max(wanted, _WANTED_US / verdict.before_us)
    return sensitivity is not None and sensitivity <= wanted


def judge_sets(
    workload: str,
    before: Sequence[Run],
    after: Sequence[Run],
    *,
    comparisons: int,
    suite: str = "",
    limits: Limits | None = None,
    names: tuple[str, str] = ("BASE", "HEAD"),
) -> JudgedSet:
    """Judge the second set of runs of a workload by the first one.

    Args:
        comparisons: how often the rule is asked, over all times.
        limits: what the suite asks for; a gate that it leaves open is smaller here than between nights.
        names: of the sets, for messages.
    """

    def invalid(headline: str) -> JudgedSet:
        return JudgedSet((Verdict(Status.INVALID, workload, MEASUREMENT, headline),))

    if not _timed(before) or not after:
        return invalid(f"{names[1] if _timed(before) else names[0]} could not be measured")
    try:
        baseline = combined([from_run(run, suite=suite) for run in _timed(before)])
    except ValueError as error:
        return invalid(f"the processes of {names[0]} differ: {error}")
    comparison = compare(baseline.fingerprint, after[-1].fingerprint)
    structure = judge_structure(after[-1], baseline, comparison)
    if not _timed(after):  # the structure is sound: it may say why
        return JudgedSet((structure, not_measured(Timer.DEVICE, after[-1])), after[-1], baseline)
    first, *more = alike = _most_alike(_timed(after))
    limits = Limits({**_GATES, **limits.gate}, limits.sensitivity) if limits else Limits(_GATES)
    times = [
        judge_time(timer, first, baseline, comparison, comparisons=comparisons, limits=limits, more=more)
        for timer in first.samples
    ]
    samples = {timer: reduce(Sample.joined, (run.samples[timer] for run in alike)) for timer in first.samples}
    return JudgedSet((structure, *times), msgspec.structs.replace(first, samples=samples), baseline)


def _timed(runs: Sequence[Run]) -> list[Run]:
    """Return the runs whose times were measured in full."""
    return [run for run in runs if run.incomplete is None]


def _most_alike(after: Sequence[Run]) -> list[Run]:
    """Return the runs in the launch configuration that most of them have: the autotuner chooses anew in each process."""
    groups: list[list[Run]] = []
    for run in after:
        alike = (group for group in groups if likeness(group[0].kernels, run.kernels).same_configuration)
        group = next(alike, None)
        if group is None:
            groups.append([run])
        else:
            group.append(run)
    return max(groups, key=len)
