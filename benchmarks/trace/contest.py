"""Answers about a trace and what they cost: read, compared and laid out as Markdown. Nothing is run here."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

__all__ = ["Answer", "Kernel", "Measured", "differences", "growth", "markdown", "read_answer", "seconds_per_megabyte"]

RELATIVE_TOLERANCE = 1e-6  # sums of the same numbers in another order
_LINEAR = 1.1  # the exponent of size up to which time is called linear
_SHOWN = 3  # differences of one tool that are spelt out
_NO_DATA = "-"


@dataclass(frozen=True)
class Kernel:
    """All launches of one kernel name."""

    name: str
    launches: int
    device_time_us: float


@dataclass(frozen=True)
class Answer:
    """What one tool said of one trace: kernels by device time, and how long it worked, its own start apart."""

    kernels: tuple[Kernel, ...]
    work_seconds: float


@dataclass(frozen=True)
class Measured:
    """One process of one tool on one trace; `seconds` is the process from its start to its end."""

    tool: str
    file_mb: float
    seconds: float
    work_seconds: float
    peak_rss_mb: float


def read_answer(text: str) -> Answer:
    """Of {"kernels": [{"name", "launches", "device_time_us", ...}, ...], "work_seconds"}; a name may come twice.

    Raises ValueError, KeyError or TypeError for anything else. Without "work_seconds" that is NaN.
    """
    said = json.loads(text)
    found: dict[str, Kernel] = {}
    for one in said["kernels"]:
        name = str(one["name"])
        before = found.get(name, Kernel(name, 0, 0.0))
        found[name] = Kernel(
            name, before.launches + int(one["launches"]), before.device_time_us + float(one["device_time_us"])
        )
    kernels = sorted(found.values(), key=lambda kernel: (-kernel.device_time_us, kernel.name))
    return Answer(tuple(kernels), float(said.get("work_seconds", math.nan)))


def differences(ours: Answer, theirs: Answer) -> list[str]:
    """In what `theirs` differs from `ours`, over every kernel: a name, a count, or a time beyond rounding."""
    mine, other = ({kernel.name: kernel for kernel in answer.kernels} for answer in (ours, theirs))
    found = [f"has no {name}" for name in mine if name not in other]
    found += [f"has {name}" for name in other if name not in mine]
    for name in mine.keys() & other.keys():
        expected, got = mine[name], other[name]
        if got.launches != expected.launches:
            found.append(f"{got.launches} launches instead of {expected.launches}: {name}")
        elif not math.isclose(got.device_time_us, expected.device_time_us, rel_tol=RELATIVE_TOLERANCE):
            found.append(f"{got.device_time_us:.3f} us instead of {expected.device_time_us:.3f}: {name}")
    found.sort()
    return found if len(found) <= _SHOWN else [*found[:_SHOWN], f"and {len(found) - _SHOWN} more"]


def seconds_per_megabyte(runs: Iterable[Measured]) -> dict[float, float]:
    """Of one tool: size of the file in MB -> median seconds of work for each of them."""
    sizes: dict[float, list[float]] = {}
    for run in runs:
        sizes.setdefault(run.file_mb, []).append(run.work_seconds / run.file_mb)
    return {size: median(found) for size, found in sorted(sizes.items())}


def growth(per_megabyte: Mapping[float, float]) -> float | None:
    """Return the exponent of the file's size with which the work's time grows, from the smallest to the largest: 1 is linear.

    None for fewer than two sizes or for times that are not known.
    """
    if len(per_megabyte) < 2:
        return None
    (small, first), *_, (large, last) = per_megabyte.items()
    if not (first > 0 and last > 0):
        return None
    return 1 + math.log(last / first) / math.log(large / small)


def markdown(runs: Sequence[Measured], missing: Mapping[str, str], tools: Sequence[str]) -> str:
    """Two tables: what each size cost, and how it grows. `missing`: tool -> why it has no row of its own, or not all.

    `tools` are in the order of the rows; all others are relative to the first.
    """
    sizes = sorted({run.file_mb for run in runs})
    by_size = [row for size in sizes for row in _size_rows(size, [run for run in runs if run.file_mb == size], tools)]
    head = ["file MB", "tool", "seconds", "of which work", "MB/s", "peak RSS MB", "x file", f"x {tools[0]}"]
    parts = [_table(head, by_size)]
    grown = [_growth_row(tool, [run for run in runs if run.tool == tool], sizes) for tool in tools]
    parts.append(_table(["tool", *(f"work, ms per MB of {size:.0f}" for size in sizes), "grows with", "linear"], grown))
    parts += [f"{tool}: {why}" for tool, why in missing.items()]
    return "\n\n".join(parts) + "\n"


def _size_rows(size: float, runs: Sequence[Measured], tools: Sequence[str]) -> list[list[str]]:
    ours = [run.seconds for run in runs if run.tool == tools[0]]
    return [[f"{size:.0f}", tool, *_cost(size, [run for run in runs if run.tool == tool], ours)] for tool in tools]


def _cost(size: float, runs: Sequence[Measured], ours: Sequence[float]) -> list[str]:
    """Seconds as median (least-most). Memory is the most of all repetitions."""
    if not runs:
        return [_NO_DATA] * 6
    seconds = [run.seconds for run in runs]
    middle, peak = median(seconds), max(run.peak_rss_mb for run in runs)
    work = median(run.work_seconds for run in runs)
    return [
        f"{middle:.2f} ({min(seconds):.2f}-{max(seconds):.2f})",
        _NO_DATA if math.isnan(work) else f"{work:.2f}",
        f"{size / middle:.0f}",
        f"{peak:.0f}",
        f"{peak / size:.2f}",
        f"{middle / median(ours):.2f}" if ours else _NO_DATA,
    ]


def _growth_row(tool: str, runs: Sequence[Measured], sizes: Sequence[float]) -> list[str]:
    per_megabyte = seconds_per_megabyte(runs)
    exponent = growth(per_megabyte)
    cells = [
        f"{1e3 * per_megabyte[size]:.2f}" if not math.isnan(per_megabyte.get(size, math.nan)) else _NO_DATA
        for size in sizes
    ]
    if exponent is None:
        return [tool, *cells, _NO_DATA, _NO_DATA]
    return [tool, *cells, f"size^{exponent:.2f}", "yes" if exponent <= _LINEAR else "no"]


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
