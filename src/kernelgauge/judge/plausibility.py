"""Times that no undisturbed machine shows. They are neither stored nor compared with: a regression would pass beside them."""

from __future__ import annotations

from collections.abc import Iterator

from ..run import Run, Timer
from .baseline import Baseline, Entry, Process, from_run
from .evidence import Doubt, ImpossibleTime, PartExceedsCall, SlowReference

# Of 533 recorded runs on GPUs and CPUs, busy hosts included (benchmarks/data), none had a GPU time, a CPU time or a
# dispatch time above 1.09 times its latency, and none host references that differ by more than a factor of 4.7.
_LONGEST_PART = 3.0  # times the latency
_SLOWEST_REFERENCE = 10.0  # times the fastest host reference on the same machine
# Launches on several streams, or ops on several threads, add up to more than the latency.
_MOST_STREAMS = 16


def implausible_times(process: Process, launches: int, later: Process | None = None) -> dict[Timer, Doubt]:
    """Return why times of one process cannot be, by timer. `later`: a process that shows how fast the host is."""
    found: dict[Timer, Doubt] = {}
    latency = process.timers.get(Timer.END_TO_END)
    limits = {Timer.DEVICE: _LONGEST_PART * min(launches, _MOST_STREAMS), Timer.HOST: _LONGEST_PART}
    for timer, limit in limits.items() if latency else ():
        part = process.timers.get(timer)
        if part and latency and part.mean_us > limit * latency.mean_us:
            found[timer] = PartExceedsCall(part.mean_us, latency.mean_us)
    references = {timer: each.control_us for timer, each in process.timers.items() if each.control_us is not None}
    others = later.timers.values() if later and later.place and later.place == process.place else ()
    fastest_us = min([*references.values(), *(each.control_us for each in others if each.control_us)], default=0.0)
    for timer, us in references.items():
        if us > _SLOWEST_REFERENCE * fastest_us:
            found.setdefault(timer, SlowReference(us, fastest_us))
    return found


def run_doubts(run: Run) -> Iterator[ImpossibleTime]:
    """Yield which times of a run cannot be, and why."""
    process = from_run(run, suite="").entries[0].processes[0]
    for timer, why in implausible_times(process, run.counts.launches).items():
        yield ImpossibleTime(run.label(timer), why)


def stored_doubt(baseline: Baseline, run: Run, timer: Timer | None = None, entry: Entry | None = None) -> Doubt | None:
    """Return why a stored time that the run would be compared with cannot be. None: it may be.

    `timer`: None: any of them. `entry`: None: of any launch configuration.
    """
    (later,) = from_run(run, suite="").entries[0].processes
    entries = baseline.entries if entry is None or timer is Timer.HOST else (entry,)
    found = (implausible_times(each, baseline.counts.launches, later) for one in entries for each in one.processes)
    return next((why for each in found for of, why in each.items() if timer in (of, None)), None)
