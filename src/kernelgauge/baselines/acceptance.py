"""What may become a baseline, why the rest may not, and how saved results are reviewed and accepted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from ..errors import BaselineError, NewerBaselineError, ResultsError, UpdateRefused, printable
from ..judge import (
    DECLARED,
    Action,
    Baseline,
    Candidate,
    Limits,
    PlannedChange,
    Recorded,
    Review,
    Reviewed,
    Status,
    Verdict,
    combined,
    from_run,
    joined,
    plan_update,
    review,
    slower_host,
)
from ..results import Results, WorkloadResult, find_results, moment, read_results, started
from ..results.files import slug
from ..run import Run
from . import BaselineStore

__all__ = ["acceptable", "load", "pending", "refusals", "select", "update", "with_runs"]

_ACCEPTABLE = frozenset({Status.REGRESSED, Status.NO_BASELINE, Status.INCOMPARABLE})


# -- a review of saved results ----------------------------------------------------------------------------------------


def load(paths: Sequence[Path]) -> list[tuple[Path, Results]]:
    """Return results in order of their start, each with its file. Equal ones count once, and unmeasured ones do not.

    Raises `ResultsError` for a file that cannot be read, and if nothing was measured.
    """
    loaded: list[tuple[Path, Results]] = []
    for file in (file for path in paths for file in find_results(path)):
        results = read_results(file)
        if results.fingerprint is not None and all(results != known for _, known in loaded):
            loaded.append((file, results))
    if not loaded:
        raise ResultsError(
            "nothing was measured",
            where=printable("; ".join(map(str, paths))),
            expected="results of a run that measured a workload",
            next_command="pytest perf",
        )
    return sorted(loaded, key=lambda each: started(each[1]))


def pending(loaded: Sequence[Results], store: BaselineStore) -> list[Review]:
    """Review results, in order of their start, by the folder that their baselines are in."""
    devices: dict[str, list[Results]] = {}
    for results in loaded:
        if results.fingerprint is not None:
            devices.setdefault(slug(results.fingerprint.device), []).append(results)
    return [_review(together, store) for together in devices.values()]


def _review(together: Sequence[Results], store: BaselineStore) -> Review:
    device = next(results.fingerprint.device for results in reversed(together) if results.fingerprint is not None)
    stored = store.stored(device)
    found: dict[str, list[tuple[Results, WorkloadResult]]] = {}
    for results in together:
        for workload in results.workloads:
            found.setdefault(workload.id, []).append((results, workload))
    # A run that was cut short may not have collected all.
    declared = {
        suite: ids for results in together if not results.was_cut_short for suite, ids in results.declared.items()
    }
    return review(
        device,
        [_candidate(each, stored.get(name)) for name, each in found.items()],
        stored,
        declared,
        comparisons=max(results.comparisons for results in together),
    )


def _order_doubts(results: Results, old: Baseline | BaselineError | None) -> Iterator[str]:
    """Yield why results may be older than the baseline."""
    recorded = old.recorded if isinstance(old, Baseline) else None
    if recorded is not None and started(results) < moment(recorded.at):
        yield f"older than the baseline: measured {results.started_at}, and that was recorded {recorded.at}"


def _candidate(found: Sequence[tuple[Results, WorkloadResult]], old: Baseline | BaselineError | None) -> Candidate:
    """Make a candidate of the newest run of a workload. What is wrong with any run of it is a doubt."""
    measured = [(results, workload, workload.run) for results, workload in found if workload.run is not None]
    if not measured:
        workload = found[-1][1]
        why = _why_not_measured(workload)
        evidence, doubts = ((why,), ()) if workload.unavailable is not None else ((), (why,))
        return Candidate(workload.id, workload.suite, None, evidence=evidence, doubts=doubts)
    results, workload, _ = measured[-1]
    *others, newest = (_observed_baseline(*each) for each in measured)
    return Candidate(
        workload.id,
        workload.suite,
        newest,
        tuple(others),
        limits=workload.limits,
        doubts=(*dict.fromkeys(doubt for each in measured for doubt in _doubts(*each)), *_host_doubts(old, newest)),
        older=tuple(_order_doubts(results, old)),
    )


def _doubts(results: Results, workload: WorkloadResult, run: Run) -> Iterator[str]:
    yield from _shortcomings(results, workload, run)
    if not any(test.workload == workload.id for test in results.tests):  # measured to compare another one with it
        yield "no test of it is in the results"


def select(
    waiting: Review, is_wanted: Callable[[Reviewed], bool], *, add: bool = False, force: bool
) -> tuple[list[PlannedChange], list[Reviewed]]:
    """Return the changes of the wanted part of a review, and the workloads that are refused.

    `add`: the runs join the processes of their baselines instead of replacing them.
    """
    plan: list[PlannedChange] = []
    refused: list[Reviewed] = []
    for each in filter(is_wanted, waiting.reviewed):
        checked = _to_add(each, waiting.comparisons) if add else each
        if checked.doubts and not (force and checked.change is not None):
            refused.append(checked)
        elif checked.change is not None and checked.change.action is not Action.KEEP:
            plan.append(checked.change)
    return plan, refused


def _to_add(each: Reviewed, comparisons: int) -> Reviewed:
    """Return what adding the run of a workload to its baseline changes, and what speaks against it."""
    candidate, old = each.candidate, each.stored
    if candidate is None or candidate.observed is None:
        return replace(each, doubts=(), change=None)
    each = replace(each, doubts=candidate.doubts, change=None)
    try:
        whole = with_runs(
            old, [*candidate.others, candidate.observed], comparisons=comparisons, limits=candidate.limits
        )
    except ValueError as error:
        return replace(each, doubts=(*each.doubts, f"it cannot be added: {error}"))
    if whole == old:
        return each
    count = sum(len(entry.processes) for entry in whole.entries)
    action = Action.CREATE if old is None else Action.UPDATE
    return replace(each, change=PlannedChange(action, each.workload, whole, (f"{count} processes",)))


def with_runs(
    old: Baseline | BaselineError | None, runs: Sequence[Baseline], *, comparisons: int, limits: Limits | None
) -> Baseline:
    """Return the baseline with the processes of the runs that it does not have. Raises `ValueError` with what differs."""
    if isinstance(old, BaselineError):
        raise ValueError(f"the stored file cannot be used: {old.one_line}")
    known = [process for entry in old.entries for process in entry.processes] if old is not None else []
    new = [run for run in runs if run.entries[0].processes[0] not in known]
    if old is None:
        return combined(new)
    return joined(old, combined(new), comparisons=comparisons, limits=limits) if new else old


# -- what may become a baseline --------------------------------------------------------------------------------------


def update(
    results: Results, store: BaselineStore, show: Callable[[list[PlannedChange]], None], *, next_command: str
) -> list[PlannedChange]:
    """Plan the update of the baselines, show the plan, and apply it.

    `next_command`: records what is declared. Raises `UpdateRefused` if there is nothing that may be stored, `StorageError`
    if it cannot be written, `BaselineError` if the folder with those that are there cannot be listed.
    """
    with store.locked():
        observed = [
            _observed_baseline(results, workload, workload.run)
            for workload in results.workloads
            if workload.run is not None and not refusals(results, workload, store)
        ]
        if not observed or results.fingerprint is None:
            raise UpdateRefused(
                "nothing to store: no workload that was measured may become a baseline", next_command=next_command
            )
        device = results.fingerprint.device
        limits = {workload.id: workload.limits for workload in results.workloads}
        stored = store.stored(device)
        plan = plan_update(observed, stored, results.declared, comparisons=results.comparisons, limits=limits)
        show(plan)
        store.apply(device, plan)
    return plan


def acceptable(results: Results, store: BaselineStore) -> Iterator[tuple[WorkloadResult, Run]]:
    """Yield the workloads that a calibration may store, each with its run: several processes show what a host is like."""
    for workload in results.workloads:
        if workload.run is not None and not refusals(results, workload, store, on_any_host=True):
            yield workload, workload.run


def refusals(
    results: Results, workload: WorkloadResult, store: BaselineStore, *, on_any_host: bool = False
) -> list[str]:
    """Return why a run may not become a baseline; empty if it may. A run may differ from the baseline.

    `on_any_host`: also on one that was much slower than in the baseline.
    """
    if workload.run is None:
        return [_why_not_measured(workload)]
    found: list[str] = []
    try:
        old = store.load(workload.run.fingerprint.device, workload.id)
        if not on_any_host:
            found += _host_doubts(old, _observed_baseline(results, workload, workload.run))
    except NewerBaselineError as error:
        found = [f"{error.where}: {error.one_line}"]
    except BaselineError:
        pass  # what cannot be read is what an update replaces
    return [*found, *_shortcomings(results, workload, workload.run)]


def _host_doubts(old: Baseline | BaselineError | None, new: Baseline) -> Iterator[str]:
    if isinstance(old, Baseline) and (slower := slower_host(old, new)):
        yield slower


def _shortcomings(results: Results, workload: WorkloadResult, run: Run) -> Iterator[str]:
    """Yield what speaks against a run that a baseline can be made of."""
    if results.was_cut_short:
        yield "the run was cut short"
    failed = [test for test in results.failed_tests if test.workload == workload.id]
    ends = [workload.end_of(test) for test in failed]
    yield from dict.fromkeys(
        f"{test.name} failed" for test, end in zip(failed, ends, strict=True) if end is None or not _is_acceptable(end)
    )
    for verdict in workload.verdicts:
        is_wrong = verdict.status is not Status.PASS if verdict.subject == DECLARED else verdict.status.fails
        if is_wrong and not _is_acceptable(verdict) and not any(end is verdict for end in ends):
            yield _text(verdict)
    if workload.verdict(DECLARED) is None:
        yield "what it declares was not checked (was the test deselected?)"
    missing = [timer for timer in results.timers if run.sample(timer) is None]
    if run.incomplete and not missing:
        yield f"it was not measured in full ({run.incomplete})"
    if not results.timers:
        yield "the results do not say which timers the device has: an older version of kernelgauge wrote them"
    for timer in missing:
        yield f"{run.label(timer)} was not measured ({run.incomplete or 'was its test deselected?'})"


def _text(verdict: Verdict) -> str:
    return f"{verdict.subject}: {verdict.status.value}  {verdict.headline}"


def _is_acceptable(verdict: Verdict) -> bool:
    return verdict.is_by_baseline and verdict.status in _ACCEPTABLE


def _why_not_measured(workload: WorkloadResult) -> str:
    failed = next((verdict.headline for verdict in workload.verdicts if verdict.status.fails), "")
    return workload.unavailable or failed or "it was not measured"


def _observed_baseline(results: Results, workload: WorkloadResult, run: Run) -> Baseline:
    """Return the baseline that accepting a run would store. It remembers when and of which commit the run was."""
    recorded = Recorded(results.started_at, results.commit, results.kernelgauge)
    return from_run(run, suite=workload.suite, recorded=recorded)
