"""What may become a baseline, why the rest may not, and how saved results are reviewed and stored."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path

from ..errors import BaselineError, NewerBaselineError, ResultsError, UpdateRefused, printable
from ..files import is_file_name, slug
from ..judge import (
    DECLARED,
    Action,
    Baseline,
    Candidate,
    PlannedChange,
    Recorded,
    Review,
    Reviewed,
    Status,
    Verdict,
    compare,
    comparison_count,
    decode_baseline,
    encode_baseline,
    from_run,
    joined,
    plan_update,
    review,
)
from ..results import Results, TestResult, WorkloadResult, find_results, moment, read_results, started
from ..run import Run
from . import BaselineStore

__all__ = [
    "Chosen",
    "Loaded",
    "Pending",
    "acceptable",
    "choose",
    "choose_to_add",
    "load",
    "pending",
    "refusals",
    "store_all",
    "update",
]

_ACCEPTABLE = frozenset({Status.REGRESSED, Status.NO_BASELINE, Status.INCOMPARABLE})
# Clocks of two machines may differ by seconds, and a run is reviewed as soon as it has ended.
_CLOCK_TOLERANCE = timedelta(minutes=1)


@dataclass(frozen=True)
class Loaded:
    """Results in order of their start, each with its file; and what was left aside, with the reason."""

    results: tuple[tuple[Path, Results], ...]
    skipped: tuple[str, ...]


@dataclass(frozen=True)
class Pending:
    """What waits for acceptance on one kind of machine, and the baselines that it was compared with."""

    review: Review
    stored: dict[str, Baseline | BaselineError]
    candidates: dict[str, Candidate]  # by workload id
    comparisons: int  # times that the suite has

    @property
    def device(self) -> str:
        return self.review.device


@dataclass(frozen=True)
class Chosen:
    """What of a review was asked for: `accepted` would change a file; `refused` may not, or not unless it is forced."""

    pending: Pending
    accepted: tuple[Reviewed, ...]
    refused: tuple[Reviewed, ...]

    @property
    def plan(self) -> list[PlannedChange]:
        return [each.change for each in self.accepted if each.change is not None]


def load(paths: Sequence[Path]) -> Loaded:
    """Read results, wherever `find_results` finds them: files, a folder's, or those of each machine in it.

    What is there twice is read once. Raises `ResultsError` for a file that cannot be read, and if nothing was measured.
    """
    kept: list[tuple[Path, Results]] = []
    skipped: list[str] = []
    for file in (file for path in paths for file in find_results(path)):
        results = read_results(file)
        twin = next((other for other, known in kept if known == results), None)
        if twin is not None:
            skipped.append(f"{file}: the same results as {twin}, counted once")
        elif results.fingerprint is None:
            skipped.append(f"{file}: nothing was measured")
        else:
            kept.append((file, results))
    if not kept:
        raise ResultsError(
            "nothing was measured",
            where=printable("; ".join(skipped)),
            expected="results of a run that measured a workload",
            next_command="pytest perf",
        )
    return Loaded(tuple(sorted(kept, key=lambda each: started(each[1]))), tuple(skipped))


def pending(loaded: Sequence[Results], store: BaselineStore, *, now: datetime) -> list[Pending]:
    """Review results, in order of their start, by the folder that their baselines are in."""
    devices: dict[str, list[Results]] = {}
    for results in loaded:
        if results.fingerprint is not None:
            devices.setdefault(slug(results.fingerprint.device), []).append(results)
    return [_pending(together, store, now) for together in devices.values()]


def _pending(together: Sequence[Results], store: BaselineStore, now: datetime) -> Pending:
    device = next(results.fingerprint.device for results in reversed(together) if results.fingerprint is not None)
    stored = store.stored_or_wrong(device)
    seen: dict[str, list[tuple[Results, WorkloadResult]]] = {}
    # A run that was cut short may not have collected all.
    declared_by = {suite: results for results in together if not results.was_cut_short for suite in results.declared}
    for results in together:
        for workload in results.workloads:
            seen.setdefault(workload.id, []).append((results, workload))
    candidates = {name: _candidate(told, stored.get(name), now) for name, told in seen.items()}
    declared = {suite: results.declared[suite] for suite, results in declared_by.items()}
    doubts = {
        name: tuple(_vanished_doubts(declared_by[old.suite], old, now))
        for name, old in stored.items()
        if isinstance(old, Baseline) and old.suite in declared_by
    }
    comparisons = max(results.comparisons for results in together)
    found = review(device, list(candidates.values()), stored, declared, vanished_doubts=doubts, comparisons=comparisons)
    return Pending(found, stored, candidates, comparisons)


def _vanished_doubts(results: Results, old: Baseline, now: datetime) -> Iterator[str]:
    """What speaks against removing a baseline because these results do not declare it."""
    yield from _clocks(results, old, now)
    if not any(workload.suite == old.suite and workload.run is not None for workload in results.workloads):
        yield f"nothing of {old.suite} was measured in the results that declare it no more"


def _candidate(
    told: Sequence[tuple[Results, WorkloadResult]], old: Baseline | BaselineError | None, now: datetime
) -> Candidate:
    """Make a candidate of the newest run. The others must agree with it."""
    measured = [(results, workload, workload.run) for results, workload in told if workload.run is not None]
    results, workload = measured[-1][:2] if measured else told[-1]
    never = _impossible(results, workload)
    if workload.run is None or never:
        why_not = "; ".join(never)
        cannot_run_here = workload.run is None and workload.unavailable is not None
        return Candidate(
            workload.id, workload.suite, None, never=() if cannot_run_here else (why_not,), why_not=why_not
        )
    wrong = [(*_shortcomings(*each), *_untested(*each[:2])) for each in measured]
    # An update measures these again, so they are no reason there.
    undecided = [_text(each) for each in workload.verdicts if each.is_by_baseline and each.status is Status.UNDECIDED]
    return Candidate(
        workload.id,
        workload.suite,
        _observed_baseline(results, workload, workload.run),
        others=tuple(_observed_baseline(*each) for each in measured[:-1] if not _impossible(*each[:2])),
        doubts=(*wrong[-1], *undecided, *_clocks(results, old, now)),
        shortcomings=tuple(reason for reasons in wrong for reason in reasons),
        limits=workload.limits,
    )


def _untested(results: Results, workload: WorkloadResult) -> Iterator[str]:
    """Measured to be compared with another, or of results that somebody shortened: nobody has claimed anything of it."""
    if not any(test.workload == workload.id for test in results.tests):
        yield "no test of it is in the results"


def _clocks(results: Results, old: Baseline | BaselineError | None, now: datetime) -> Iterator[str]:
    started = moment(results.started_at)
    if started is None:
        yield f"the results do not say when the run was: {results.started_at!r} is no time"
        return
    if results.seconds < 0:
        yield f"a clock ran backwards: the run took {results.seconds:g} s"
    if started > now + _CLOCK_TOLERANCE:
        yield f"a clock is wrong: the run began at {results.started_at}, which is yet to come"
    if isinstance(old, Baseline) and old.recorded is not None:
        before = moment(old.recorded.at)
        if before is None:
            yield f"the baseline does not say when it was recorded: {old.recorded.at!r} is no time"
        elif started < before:
            yield f"older than the baseline: measured {results.started_at}, and that was recorded {old.recorded.at}"


def choose(waiting: Pending, wanted: Callable[[Reviewed], bool], *, force: bool) -> Chosen:
    """Sort what was asked for into what is accepted and what is refused."""
    asked = [each for each in waiting.review.reviewed if wanted(each)]
    refused = [each for each in asked if each.never or (each.doubts and not force)]
    return Chosen(
        waiting,
        accepted=tuple(each for each in asked if each.waits and each not in refused),
        refused=tuple(refused),
    )


def choose_to_add(waiting: Pending, wanted: Callable[[Reviewed], bool], *, force: bool) -> Chosen:
    """Sort what was asked for into runs that join the processes of their baselines, and what is refused."""
    accepted: list[Reviewed] = []
    refused: list[Reviewed] = []
    observed = [each.observed for each in waiting.candidates.values() if each.observed is not None]
    comparisons = waiting.comparisons or comparison_count(observed)
    for each in filter(wanted, waiting.review.reviewed):
        old, candidate = waiting.stored.get(each.workload), waiting.candidates.get(each.workload)
        if candidate is None or candidate.observed is None:
            continue
        if isinstance(old, BaselineError):
            refused.append(each)
            continue
        if each.never or (candidate.shortcomings and not force):
            refused.append(replace(each, doubts=candidate.shortcomings))
            continue
        try:
            whole = _joined(old, candidate, comparisons)
        except ValueError as error:
            refused.append(replace(each, never=(f"it differs from the baseline: {error}",)))
            continue
        if whole != old:
            count = sum(len(entry.processes) for entry in whole.entries)
            action = Action.CREATE if old is None else Action.UPDATE
            change = PlannedChange(action, each.workload, whole, (f"{count} processes",))
            accepted.append(replace(each, change=change))
    return Chosen(waiting, tuple(accepted), tuple(refused))


def _joined(old: Baseline | None, candidate: Candidate, comparisons: int) -> Baseline:
    """Add the processes of all runs that the baseline does not have yet. Raises `ValueError` with what differs."""
    assert candidate.observed is not None
    first, *others = [*([] if old is None else [old]), *candidate.others, candidate.observed]
    for new in others:
        (process,) = new.entries[0].processes
        if not any(process in entry.processes for entry in first.entries):
            first = joined(first, new, comparisons=comparisons, limits=candidate.limits)
    return first


def store_all(chosen: Sequence[Chosen], store: BaselineStore) -> None:
    """Apply what was chosen, under the lock of the baselines.

    Raises `UpdateRefused`, and writes nothing, if one of them is not what was reviewed any more.
    """
    with store.locked():
        for each in chosen:
            now = store.stored_or_wrong(each.pending.device)
            for change in each.plan:
                then = each.pending.stored.get(change.workload)
                if not _alike(then, now.get(change.workload)):
                    raise UpdateRefused(
                        "a baseline is not what was reviewed any more: somebody else wrote it; nothing was stored",
                        where=str(store.path(each.pending.device, change.workload)),
                        next_command="kernelgauge review",
                    )
        store.apply_all((each.pending.device, each.plan) for each in chosen)


def _alike(then: Baseline | BaselineError | None, now: Baseline | BaselineError | None) -> bool:
    if isinstance(then, BaselineError) and isinstance(now, BaselineError):
        return str(then) == str(now)
    return then == now


# -- what may become a baseline --------------------------------------------------------------------------------------


def update(
    results: Results, store: BaselineStore, show: Callable[[list[PlannedChange]], None], *, next_command: str
) -> list[PlannedChange]:
    """Plan the update of the baselines, show the plan, and apply it.

    `next_command`: records what is declared. Raises `UpdateRefused` if there is nothing that may be stored, `StorageError`
    if it cannot be written, `BaselineError` if the folder with those that are there cannot be listed.
    """
    with store.locked():
        observed = [_observed_baseline(results, workload, run) for workload, run in acceptable(results, store)]
        if not observed or results.fingerprint is None:
            raise UpdateRefused(
                "nothing to store: no workload was measured in full and passed its claims", next_command=next_command
            )
        device = results.fingerprint.device
        limits = {workload.id: workload.limits for workload in results.workloads}
        stored = store.stored(device)
        plan = plan_update(observed, stored, results.declared, comparisons=results.comparisons, limits=limits)
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
    reasons = _impossible(results, workload)
    if reasons or workload.run is None:
        return reasons
    try:
        store.load(workload.run.fingerprint.device, workload.id)
    except NewerBaselineError as error:
        reasons.append(f"{error.where}: {error.one_line}")
    except BaselineError:
        pass  # what cannot be read is what an update replaces
    return reasons + _shortcomings(results, workload, workload.run)


def _shortcomings(results: Results, workload: WorkloadResult, run: Run) -> list[str]:
    """What speaks against a run that a baseline can be made of; empty if nothing does."""
    reasons = ["the run was cut short"] if results.was_cut_short else []
    ends = [
        (test, workload.end_of(test)) for test in results.tests if test.outcome == "failed" and _is_of(test, workload)
    ]
    reasons += dict.fromkeys(
        f"{test.name} failed" for test, verdict in ends if verdict is None or not _is_acceptable(verdict)
    )
    reasons += [
        _text(verdict)
        for verdict in workload.verdicts
        if verdict.status.fails and not _is_acceptable(verdict) and not any(end is verdict for _, end in ends)
    ]
    declared = [verdict for verdict in workload.verdicts if verdict.subject == DECLARED]
    if not declared:
        reasons.append("what it declares was not checked (was the test deselected?)")
    reasons += [
        _text(verdict)
        for verdict in declared
        if verdict.status is not Status.PASS and not verdict.status.fails  # one that fails is told above
    ]
    return [*reasons, *_not_measured(results, run)]


def _text(verdict: Verdict) -> str:
    return f"{verdict.subject}: {verdict.status.value}  {verdict.headline}"


def _is_of(test: TestResult, workload: WorkloadResult) -> bool:
    """Whether a test is about a workload: as the results say, or else by the parameters in its name."""
    if test.workload is not None:
        return test.workload == workload.id
    _, _, parameters = test.node.partition("[")
    return re.search(rf"(^|-){re.escape(workload.id)}(-|\]|$)", parameters) is not None


def _is_acceptable(verdict: Verdict) -> bool:
    return verdict.is_by_baseline and verdict.status in _ACCEPTABLE


def _not_measured(results: Results, run: Run) -> Iterator[str]:
    missing = [timer for timer in results.timers if run.sample(timer) is None]
    if run.incomplete and not missing:
        yield f"it was not measured in full ({run.incomplete})"
    if not results.timers:
        yield "the results do not say which timers the device has: an older version of kernelgauge wrote them"
    for timer in missing:
        yield f"{timer.label} was not measured ({run.incomplete or 'was its test deselected?'})"


def _impossible(results: Results, workload: WorkloadResult) -> list[str]:
    """Why no baseline can be made of it, whoever wants one. Saved results may come from anywhere."""
    run = workload.run
    if run is None:
        failed = next((verdict.headline for verdict in workload.verdicts if verdict.status.fails), "")
        return [workload.unavailable or failed or "it was not measured"]
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
        content = encode_baseline(_observed_baseline(results, workload, run))
        decode_baseline(content, where=workload.id, workload=workload.id)
    except BaselineError as error:  # never written: it could not be read
        return [f"its run contradicts itself: {error.got}"]
    return []


def _observed_baseline(results: Results, workload: WorkloadResult, run: Run) -> Baseline:
    """The baseline that accepting a run would store, with what it remembers of the run of pytest."""
    recorded = Recorded(results.started_at, results.commit, results.kernelgauge)
    return from_run(run, suite=workload.suite, recorded=recorded)
