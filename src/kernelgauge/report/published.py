"""Figures that others published of a suite's workloads, beside those of a run. Nobody judges them."""

from __future__ import annotations

from dataclasses import dataclass

from ..judge import observe
from ..results import Published, Results, WorkloadResult
from ..run import Run, Timer
from .wording import us

__all__ = ["Figure", "FigureTable", "figure_tables"]

_US = {"us": 1.0, "ms": 1000.0}


@dataclass(frozen=True)
class Figure:
    """One figure: as it was published, and as this run has it. `ratio` is empty where nothing can be compared."""

    claim: str
    workload: str
    figure: str
    published: str
    now: str
    ratio: str


@dataclass(frozen=True)
class FigureTable:
    """The figures of one source, measured on one machine."""

    source: str
    url: str
    device: str  # of the source
    here: str  # of the run; empty where nothing was measured
    figures: tuple[Figure, ...]


def figure_tables(results: Results) -> tuple[FigureTable, ...]:
    """One for each source and machine, in the order of the workloads."""
    found: dict[tuple[str, str, str], list[Figure]] = {}
    for workload in results.workloads:
        for one in workload.published:
            found.setdefault((one.source, one.url, one.device), []).append(_figure(workload, one))
    here = results.fingerprint.device if results.fingerprint else ""
    return tuple(FigureTable(*key, here, tuple(figures)) for key, figures in found.items())


def _figure(workload: WorkloadResult, one: Published) -> Figure:
    now = _now(workload.run, one)
    published = _shown(one.value, one.unit)
    if isinstance(now, str):
        return Figure(one.claim, workload.id, one.figure, published, now, "")
    shown = f"{us(now)} us" if one.unit in _US else _shown(now, one.unit)
    ratio = now / (one.value * _US.get(one.unit, 1.0))
    return Figure(
        one.claim, workload.id, one.figure, published, shown, f"{ratio:.2f}" if ratio < 1000 else f"{ratio:.2g}"
    )


def _shown(value: float, unit: str) -> str:
    """A count is a number: the figure's words say of what."""
    return f"{value:g} {unit}" if unit in _US else f"{value:g}"


def _now(run: Run | None, one: Published) -> float | str:
    """The same figure of this run, times in microseconds; or why there is none."""
    if run is None:
        return "not measured"
    if run.fingerprint.arch == "cpu":
        return "not comparable: no GPU"
    times = [kernel.device_time_us for kernel in run.kernels if one.kind in (None, kernel.identity.kind)]
    if one.unit not in _US:
        return float(len(times))
    if one.kind is None:
        sample = run.sample(Timer.DEVICE)
        return observe(sample).mean_us if sample else "not measured"
    return times[one.place] if 0 <= one.place < len(times) else "not comparable: no such kernel"
