"""What the steady steps of traces showed, as a baseline: one file of `baselines/traces/`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from statistics import fmean, median, stdev
from typing import Literal, TypeAlias

import msgspec

from ..errors import BaselineError
from ..run import Observation
from ..trace import RowRange, StepRow, Steps, StepTrace, alike
from .baseline import Recorded, layout
from .evidence import Move

Job: TypeAlias = Mapping[int, StepTrace]  # the traces of one run, by rank

_LONGEST_US = 1e12  # eleven days
_ONE_STEP = 0.02  # spread between steps where there is but one


class StepRange(msgspec.Struct, frozen=True):
    """The steady steps of one kind on one rank. Tuples of times have one element for each run."""

    steps: int
    wall: tuple[Observation, ...]
    compute: tuple[Observation, ...]
    communication_us: tuple[float, ...]
    exposed_us: tuple[float, ...]
    behind: tuple[int, int]  # the fewest and the most, see `Steps.behind`
    rows: tuple[RowRange, ...]


class TraceBaseline(msgspec.Struct, frozen=True):
    """One file of `baselines/traces/`."""

    schema_version: Literal[1]
    device: str
    world_size: int | None
    found_by: str
    runs: int
    recorded: Recorded
    rows: tuple[StepRow, ...]
    ranks: dict[int, dict[str, StepRange]]  # by kind of step


def decode_trace_baseline(content: bytes, *, where: str) -> TraceBaseline:
    """Parse a baseline. Raises `BaselineError`."""
    try:
        found = msgspec.json.decode(content, type=TraceBaseline)
        of_kinds = [steps for kinds in found.ranks.values() for steps in kinds.values()]
        if not of_kinds or not all(_is_sound(steps, len(found.rows)) for steps in of_kinds):
            raise ValueError(
                "no steps, no runs of them, times of other runs, or a row that is not in the list"
            )
        return found
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        expected = "what `kernelgauge check-trace --update` writes, schema_version 1"
        raise BaselineError(
            "not a baseline of traces", where=where, got=str(error), expected=expected
        ) from error


def _is_sound(steps: StepRange, rows: int) -> bool:
    times = steps.wall, steps.compute
    us = steps.communication_us, steps.exposed_us, *(each.us for each in steps.rows)
    return (
        steps.steps > 0
        and len(set(map(len, (*times, *us)))) == 1  # all of the same runs
        and all(times)
        and all(each.mean_us > 0 and each.replicates > 0 for several in times for each in several)
        and all(
            0 <= each <= _LONGEST_US for each in chain(*us, (one.mean_us for one in chain(*times)))
        )
        and all(
            0 <= each.row < rows and 0 <= each.low <= each.high and each.spread >= 0
            for each in steps.rows
        )
    )


def job_moves(baseline: TraceBaseline, job: Job) -> list[Move]:
    """Return in what a job differs from that of the baseline, so that their kernels cannot be
    compared.
    """
    first = next(iter(job.values()))
    old, new = (
        {
            "device": each.device,
            "world size": each.world_size or "not recorded",
            "ranks": sorted(ranks),
            # As the profiler was asked: other rows would count as other kernels.
            "modules": "recorded" if any(row.module for row in rows) else "not recorded",
            "ops of kernels": "recorded" if any(row.op for row in rows) else "not recorded",
        }
        for each, ranks, rows in (
            (baseline, baseline.ranks, baseline.rows),
            (first, job, first.places),
        )
    )
    return [
        Move(label, f"{old[label]}", f"{new[label]}") for label in old if old[label] != new[label]
    ]


def encode_trace_baseline(baseline: TraceBaseline) -> bytes:
    """Return JSON with a line for each row."""
    return layout(msgspec.to_builtins(baseline, str_keys=True)).encode() + b"\n"


def trace_baseline(jobs: Sequence[Job], recorded: Recorded) -> TraceBaseline:
    """Make a baseline of the runs of unchanged code: all have the same ranks.

    Raises `ValueError` if their kernels are others.
    """
    first = next(iter(jobs[0].values()))
    numbers: dict[StepRow, int] = {}
    ranks: dict[int, dict[str, StepRange]] = {}
    for rank in jobs[0]:
        kinds = dict.fromkeys(kind for job in jobs for kind in job[rank].steps)
        ranks[rank] = {kind: _range([job[rank].steps[kind] for job in jobs if kind in job[rank].steps], numbers)
                       for kind in kinds}  # fmt: skip
    return TraceBaseline(
        1,
        first.device,
        first.world_size,
        first.found_by,
        len(jobs),
        recorded,
        tuple(numbers),
        ranks,
    )


def _range(runs: Sequence[Steps], numbers: dict[StepRow, int]) -> StepRange:
    if not all(alike(Counter(list(runs[0].row_us)), Counter(list(run.row_us))) for run in runs):
        raise ValueError("half of the kernels of one are not in another")
    counts = [step for run in runs for step in run.counts]
    rows = list(dict.fromkeys(row for each in counts for row in each))
    slots = Counter(row.slot for row in rows if len({each[row] for each in counts}) > 1)
    found = []
    for row in [*rows, *slots]:  # a slot in which counts vary has a row of its own, for the sum
        seen = [each[row] for each in counts]
        if not row.name:
            seen = [sum(n for other, n in each.items() if other.slot == row) for each in counts]
        times = tuple(round(run.mean_us(row), 3) for run in runs)
        threads = sorted({each for run in runs for each in run.threads.get(row, ())})
        number, spread = numbers.setdefault(row, len(numbers)), round(_spread(runs, row), 4)
        found.append(RowRange(number, min(seen), max(seen), times, tuple(threads), spread))
    behind = [each for run in runs for each in run.behind]
    return StepRange(
        len(counts),
        tuple(observed(run.wall_us) for run in runs),
        tuple(observed(run.compute_us) for run in runs),
        tuple(round(median(run.communication_us), 3) for run in runs),
        tuple(round(median(run.exposed_us), 3) for run in runs),
        (min(behind), max(behind)),
        tuple(found),
    )


def _spread(runs: Sequence[Steps], row: StepRow) -> float:
    """Return the standard deviation of the time of a row between steps, as a share of its mean."""
    steps = sum(len(run.counts) for run in runs)
    mean_us = sum(run.row_us[row] for run in runs) / steps
    mean_square = sum(run.row_squares[row] for run in runs) / steps
    return math.sqrt(max(0.0, mean_square - mean_us**2)) / mean_us if mean_us else 0.0


def observed(times_us: Sequence[float]) -> Observation:
    """Return the mean and the spread of the times of steps, as those of replicates."""
    logs = [math.log(max(us, 1e-3)) for us in times_us]
    spread = stdev(logs) if len(logs) > 1 else _ONE_STEP
    return Observation(max(1e-3, math.exp(fmean(logs))), spread, len(logs), 1)
