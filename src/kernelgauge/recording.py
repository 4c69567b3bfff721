"""What may become a baseline, and why the rest may not: one rule for `--perf-update`, `accept` and `calibrate`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from .errors import BaselineError, NewerBaselineError, UpdateRefused
from .judge import (
    DECLARED,
    Baseline,
    PlannedChange,
    Recorded,
    Status,
    Verdict,
    decode_baseline,
    encode_baseline,
    from_run,
    plan_update,
)
from .report.endings import printed_verdict
from .results import Results, TestResult, WorkloadResult
from .run import Run, Timer
from .runs_file import RunsFile, write_runs
from .storage import BaselineStore, is_file_name

__all__ = [
    "acceptable",
    "impossible",
    "is_cut_short",
    "observed_baseline",
    "refusals",
    "save_runs",
    "shortcomings",
    "undecided",
    "update",
    "why_not_measured",
]

# What a baseline says of a run: accepting the run overrules it. Whatever else fails is a claim of the suite.
_BY_BASELINE = frozenset({"structure", *(timer.label for timer in Timer)})
_ACCEPTABLE = frozenset({Status.REGRESSED, Status.NO_BASELINE, Status.INCOMPARABLE})
_CUT_SHORT = (2, 3)  # pytest.ExitCode: interrupted, internal error


def update(
    results: Results, store: BaselineStore, show: Callable[[list[PlannedChange]], None], *, next_command: str
) -> list[PlannedChange]:
    """Plan the update of the baselines, show the plan, and apply it.

    `next_command`: records what is declared. Raises `UpdateRefused` if there is nothing that may be stored, `StorageError`
    if it cannot be written.
    """
    with store.locked():
        observed = [observed_baseline(results, workload, run) for workload, run in acceptable(results, store)]
        if not observed or results.fingerprint is None:
            raise UpdateRefused(
                "nothing to store: no workload was measured in full and passed its claims", next_command=next_command
            )
        device = results.fingerprint.device
        plan = plan_update(observed, store.stored(device), results.declared)
        show(plan)
        store.apply(device, plan)
    return plan


def acceptable(results: Results, store: BaselineStore) -> Iterator[tuple[WorkloadResult, Run]]:
    """The workloads that may become baselines as they are, each with its run."""
    for workload in results.workloads:
        if workload.run is not None and not refusals(results, workload, store):
            yield workload, workload.run


def refusals(results: Results, workload: WorkloadResult, store: BaselineStore) -> list[str]:
    """Why a run may not become a baseline; empty if it may. What only differs from a baseline is no reason."""
    reasons = impossible(results, workload)
    if reasons or workload.run is None:
        return reasons
    try:
        store.load(workload.run.fingerprint.device, workload.id)
    except NewerBaselineError as error:
        reasons.append(f"{error.where}: {error.one_line}")
    except BaselineError:
        pass  # what cannot be read is what an update replaces
    return reasons + shortcomings(results, workload, workload.run)


def shortcomings(results: Results, workload: WorkloadResult, run: Run) -> list[str]:
    """What speaks against a run that a baseline can be made of; empty if nothing does."""
    reasons = ["the run was cut short"] if is_cut_short(results) else []
    tests = [test for test in results.tests if test.workload == workload.id and test.outcome == "failed"]
    reasons += dict.fromkeys(f"{test.name} failed" for test in tests if not _only_differs(test, workload))
    told = {verdict for test in tests if (verdict := _ended_with(test, workload)) is not None}
    reasons += [
        f"{verdict.subject}: {verdict.status.value}  {verdict.headline}"
        for verdict in workload.verdicts
        if verdict.status.fails and verdict not in told and not _is_acceptable(verdict)
    ]
    if workload.verdict(DECLARED) is None:
        reasons.append("what it declares was not checked (was the test deselected?)")
    return [*reasons, *_not_measured(results, run)]


def undecided(workload: WorkloadResult) -> list[str]:
    """What could not be told from its baseline: measured again by `--perf-update`, it is no reason; saved, it is."""
    return [
        f"{verdict.subject}: {verdict.status.value}  {verdict.headline}"
        for verdict in workload.verdicts
        if verdict.subject in _BY_BASELINE and verdict.status is Status.UNDECIDED
    ]


def is_cut_short(results: Results) -> bool:
    """Whether the run of pytest was interrupted, or broke: what it lacks is not known."""
    return results.exit_status in _CUT_SHORT


def _ended_with(test: TestResult, workload: WorkloadResult) -> Verdict | None:
    """The verdict that a failed test printed, or that was concluded because it failed otherwise."""
    printed = printed_verdict(test.said, workload.verdicts)
    return printed or workload.verdict(test.name)


def _only_differs(test: TestResult, workload: WorkloadResult) -> bool:
    """Whether a failed test says no more than that the run differs from its baseline, in its own words."""
    verdict = printed_verdict(test.said, workload.verdicts)
    return verdict is not None and _is_acceptable(verdict)


def _is_acceptable(verdict: Verdict) -> bool:
    return verdict.subject in _BY_BASELINE and verdict.status in _ACCEPTABLE


def _not_measured(results: Results, run: Run) -> Iterator[str]:
    if not results.timers:
        yield "the results do not say which timers the device has: an older version of kernelgauge wrote them"
    for timer in results.timers:
        if run.sample(timer) is None:
            yield f"{timer.label} was not measured " + (
                f"({run.incomplete})" if run.incomplete else "(was its test deselected?)"
            )


def impossible(results: Results, workload: WorkloadResult) -> list[str]:
    """Why no baseline can be made of it, whoever wants one. Saved results may come from anywhere."""
    run = workload.run
    if run is None:
        return [why_not_measured(workload)]
    if not is_file_name(workload.id):
        return ["its id is no file name"]
    if Counter(each.id for each in results.workloads)[workload.id] > 1:
        return ["the results hold it more than once"]
    if run.workload != workload.id:
        return [f"its run is of another workload: {run.workload}"]
    if results.fingerprint is None or run.fingerprint.device != results.fingerprint.device:
        return [f"its run is of another device than the results: {run.fingerprint.device}"]
    try:
        content = encode_baseline(observed_baseline(results, workload, run))
        decode_baseline(content, where=workload.id, workload=workload.id)
    except BaselineError as error:  # never written: it could not be read
        return [f"its run contradicts itself: {error.got}"]
    return []


def why_not_measured(workload: WorkloadResult) -> str:
    """In one line."""
    failed = next((verdict for verdict in workload.verdicts if verdict.status.fails), None)
    return workload.unavailable or (failed.headline if failed else "it was not measured")


def observed_baseline(results: Results, workload: WorkloadResult, run: Run) -> Baseline:
    """The baseline that accepting a run would store, with what it remembers of the run of pytest."""
    recorded = Recorded(results.started_at, results.commit, results.kernelgauge)
    return from_run(run, suite=workload.suite, recorded=recorded)


def save_runs(results: Results, store: BaselineStore, path: Path) -> None:
    """Write what was measured and may be stored. Raises `StorageError`."""
    kept = list(acceptable(results, store))
    write_runs(
        path,
        RunsFile(
            baselines=str(store.root),
            suites={workload.id: workload.suite for workload, _ in kept},
            runs=tuple(run for _, run in kept),
            timers_per_workload=len(results.timers),
            started_at=results.started_at,
            commit=results.commit,
            kernelgauge=results.kernelgauge,
        ),
    )
