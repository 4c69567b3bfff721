"""What may become a baseline, and why the rest may not: one rule for `--perf-update`, `accept` and `calibrate`."""

from __future__ import annotations

import re
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
    compare,
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
    "observed_baseline",
    "refusals",
    "save_runs",
    "shortcomings",
    "undecided",
    "update",
    "why_not_measured",
]

# What a baseline says of a run: accepting the run overrules it. Whatever else fails is a claim of the suite. Each with
# the standard test that ends with it.
_BY_BASELINE = {
    "structure": "test_structure_is_that_of_the_baseline",
    Timer.DEVICE.label: "test_device_time",
    Timer.END_TO_END.label: "test_end_to_end_latency",
    Timer.HOST.label: "test_host_dispatch_time",
}
_ACCEPTABLE = frozenset({Status.REGRESSED, Status.NO_BASELINE, Status.INCOMPARABLE})


def update(
    results: Results, store: BaselineStore, show: Callable[[list[PlannedChange]], None], *, next_command: str
) -> list[PlannedChange]:
    """Plan the update of the baselines, show the plan, and apply it.

    `next_command`: records what is declared. Raises `UpdateRefused` if there is nothing that may be stored, `StorageError`
    if it cannot be written, `BaselineError` if the folder with those that are there cannot be listed.
    """
    with store.locked():
        observed = [observed_baseline(results, workload, run) for workload, run in acceptable(results, store)]
        if not observed or results.fingerprint is None:
            raise UpdateRefused(
                "nothing to store: no workload was measured in full and passed its claims", next_command=next_command
            )
        device = results.fingerprint.device
        plan = plan_update(observed, store.stored(device), results.declared, comparisons=results.comparisons)
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
    reasons = ["the run was cut short"] if results.was_cut_short else []
    tests = [test for test in results.tests if test.outcome == "failed" and _is_of(test, workload)]
    reasons += dict.fromkeys(f"{test.name} failed" for test in tests if not _only_differs(test, workload, results))
    told = {verdict for test in tests if (verdict := _ended_with(test, workload)) is not None}
    reasons += [
        f"{verdict.subject}: {verdict.status.value}  {verdict.headline}"
        for verdict in workload.verdicts
        if verdict.status.fails and verdict not in told and not _is_acceptable(verdict)
    ]
    declared = [verdict for verdict in workload.verdicts if verdict.subject == DECLARED]
    if not declared:
        reasons.append("what it declares was not checked (was the test deselected?)")
    reasons += [
        f"{DECLARED}: {verdict.status.value}  {verdict.headline}"
        for verdict in declared
        if verdict.status is not Status.PASS and not verdict.status.fails  # one that fails is told above
    ]
    return [*reasons, *_not_measured(results, run)]


def undecided(workload: WorkloadResult) -> list[str]:
    """What could not be told from its baseline: measured again by `--perf-update`, it is no reason; saved, it is."""
    return [
        f"{verdict.subject}: {verdict.status.value}  {verdict.headline}"
        for verdict in workload.verdicts
        if verdict.subject in _BY_BASELINE and verdict.status is Status.UNDECIDED
    ]


def _ended_with(test: TestResult, workload: WorkloadResult) -> Verdict | None:
    """The verdict that a failed test printed, or that was concluded because it failed otherwise."""
    printed = printed_verdict(test.said, workload.verdicts)
    return printed or workload.verdict(test.name)


def _is_of(test: TestResult, workload: WorkloadResult) -> bool:
    """Whether a test is about a workload: as the results say, or else by the parameters in its name."""
    if test.workload is not None:
        return test.workload == workload.id
    _, _, parameters = test.node.partition("[")
    return re.search(rf"(^|-){re.escape(workload.id)}(-|\]|$)", parameters) is not None


def _only_differs(test: TestResult, workload: WorkloadResult, results: Results) -> bool:
    """Whether a failed test says no more than that the run differs from its baseline, in its own words.

    Where the standard test of a verdict is in the results, no other test ends with it: what says so is a claim.
    A suite may have a test of another name instead.
    """
    verdict = printed_verdict(test.said, workload.verdicts)
    if verdict is None or not _is_acceptable(verdict):
        return False
    standard = _BY_BASELINE[verdict.subject]
    names = {each.name for each in results.tests if _is_of(each, workload)}
    return test.name == standard or standard not in names


def _is_acceptable(verdict: Verdict) -> bool:
    return verdict.subject in _BY_BASELINE and verdict.status in _ACCEPTABLE


def _not_measured(results: Results, run: Run) -> Iterator[str]:
    if run.incomplete and all(run.sample(timer) is not None for timer in results.timers):
        yield f"it was not measured in full ({run.incomplete})"
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
    comparison = compare(results.fingerprint, run.fingerprint)
    if not comparison.identical:
        return [f"its run is of another machine than the results: {comparison}"]
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
