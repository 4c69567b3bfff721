"""What a session may store: its runs as baselines, or as a file for a calibration."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import BaselineError, NewerBaselineError, UpdateRefused
from .gauge import DECLARED
from .judge import PlannedChange, from_run, plan_update
from .runs_file import RunsFile, write_runs

if TYPE_CHECKING:
    from .gauge import Gauge
    from .run import Run

__all__ = ["refusals", "save_runs", "update"]


def update(gauge: Gauge, show: Callable[[list[PlannedChange]], None]) -> list[PlannedChange]:
    """Plan the update of the baselines, show the plan, and apply it.

    Raises `UpdateRefused` if there is nothing that may be stored, `StorageError` if it cannot be written.
    """
    acceptable = [run for run in gauge.runs() if not refusals(gauge, run)]
    if not acceptable:
        raise UpdateRefused(
            "nothing to store: no workload was measured in full and passed its claims",
            next_command=gauge.suites.command(),
        )
    device = gauge.fingerprint.device
    with gauge.store.locked():
        observed = [from_run(run, suite=gauge.suites.suite_of(run.workload)) for run in acceptable]
        plan = plan_update(observed, gauge.store.stored(device), gauge.suites.declared())
        show(plan)
        gauge.store.apply(device, plan)
    return plan


def refusals(gauge: Gauge, run: Run) -> list[str]:
    """Why a run may not become a baseline; empty if it may."""
    reasons = [f"{test} failed" for test in gauge.failed.get(run.workload, [])]
    try:
        gauge.store.load(run.fingerprint.device, run.workload)
    except NewerBaselineError as error:
        reasons.append(f"{error.where}: {error.one_line}")
    except BaselineError:
        pass  # what cannot be read is what an update replaces
    if not any((verdict.workload, verdict.subject) == (run.workload, DECLARED) for verdict in gauge.verdicts):
        reasons.append("what it declares was not checked (was the test deselected?)")
    missing = [timer.label for timer in gauge.device.timers if run.sample(timer) is None]
    return reasons + [f"{label} was not measured (was its test deselected?)" for label in missing]


def save_runs(gauge: Gauge, path: Path) -> None:
    """Write what was measured and may be stored. Raises `StorageError`."""
    runs = tuple(run for run in gauge.runs() if not refusals(gauge, run))
    suites = {run.workload: gauge.suites.suite_of(run.workload) for run in runs}
    write_runs(path, RunsFile(str(gauge.options.baselines), suites, runs, len(gauge.device.timers)))
