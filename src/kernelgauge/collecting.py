"""From the state of a run of pytest to its results."""

from __future__ import annotations

import platform
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from . import __version__
from .concluding import shown
from .errors import BaselineError
from .results import SCHEMA_VERSION, Results, WorkloadResult

if TYPE_CHECKING:
    from .gauge import Gauge
    from .judge import Baseline
    from .run import Run

__all__ = ["collect"]


def collect(gauge: Gauge, *, started: datetime, ended: datetime, exit_status: int) -> Results:
    """What a run of pytest observed and concluded so far. `started` and `ended` are of one time zone."""
    runs = {run.workload: run for run in gauge.observed.runs()}
    seen = dict.fromkeys([*runs, *(verdict.workload for verdict in gauge.verdicts), *gauge.unavailable])
    return Results(
        schema_version=SCHEMA_VERSION,
        kernelgauge=__version__,
        started_at=started.isoformat(timespec="seconds"),
        seconds=(ended - started).total_seconds(),
        arguments=gauge.options.arguments,
        fingerprint=gauge.observed.fingerprint if runs else None,
        gpu=next((run.gpu for run in runs.values()), None),
        not_watched=gauge.observed.not_watched if runs else "",
        workloads=tuple(_workload(gauge, identifier, runs.get(identifier)) for identifier in seen),
        tests=tuple(gauge.tests),
        warnings=tuple(gauge.warnings),
        exit_status=exit_status,
        host=platform.node(),
        commit=gauge.observed.commit,
        timers=tuple(gauge.observed.device.timers) if runs else (),
        comparisons=gauge.comparisons if runs else 0,
        declared=gauge.suites.declared(),
        baselines=Path(shown(gauge.options.baselines, gauge.options.root)).as_posix(),
    )


def _workload(gauge: Gauge, identifier: str, run: Run | None) -> WorkloadResult:
    workload = gauge.suites.workload(identifier)
    trace = gauge.artifacts.trace(workload)
    return WorkloadResult(
        id=identifier,
        suite=gauge.suites.suite_of(identifier),
        module=workload.module,
        variant=workload.variant,
        dtype=workload.dtype,
        pass_=workload.pass_,
        shape=workload.shape,
        run=run,
        baseline=_baseline(gauge, run) if run else None,
        verdicts=tuple(verdict for verdict in gauge.verdicts if verdict.workload == identifier),
        unavailable=gauge.unavailable.get(identifier),
        trace=trace.relative_to(gauge.artifacts.folder).as_posix() if run and trace.exists() else None,
        sensitivity=gauge.sensitivity(workload),
    )


def _baseline(gauge: Gauge, run: Run) -> Baseline | None:
    try:
        return gauge.store.load(run.fingerprint.device, run.workload)
    except BaselineError:
        return None  # the verdicts say what is wrong with it
