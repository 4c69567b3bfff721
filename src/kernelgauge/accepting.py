"""Saved results beside the baselines: read, reviewed, and what was chosen of them stored."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

from .errors import BaselineError, ResultsError, UpdateRefused
from .judge import Action, Baseline, Candidate, PlannedChange, Review, Reviewed, joined, review
from .printable import printable
from .recording import impossible, observed_baseline, shortcomings, undecided
from .results import Results, WorkloadResult, moment
from .results_file import find_results, read_results
from .storage import BaselineStore, slug

__all__ = ["Chosen", "Loaded", "Pending", "choose", "choose_to_add", "load", "pending", "store_all"]

# Clocks of two machines may differ by seconds, and a run is reviewed as soon as it has ended.
_CLOCK_TOLERANCE = timedelta(minutes=1)
_EARLIEST = datetime.min.replace(tzinfo=timezone.utc)


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
    runs: dict[str, tuple[Baseline, ...]]  # each run of a workload as accepting it would store it, the newest last
    shortcomings: dict[str, tuple[str, ...]]  # what is wrong with its runs themselves, whatever the baseline says
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
    return Loaded(tuple(sorted(kept, key=lambda each: moment(each[1].started_at) or _EARLIEST)), tuple(skipped))


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
    declared_by: dict[str, Results] = {}
    for results in together:
        if not results.was_cut_short:  # one that was may not have collected all
            declared_by |= dict.fromkeys(results.declared, results)
        for workload in results.workloads:
            seen.setdefault(workload.id, []).append((results, workload))
    candidates = [_candidate(told, stored.get(name), now) for name, told in seen.items()]
    declared = {suite: results.declared[suite] for suite, results in declared_by.items()}
    doubts = {
        name: tuple(_vanished_doubts(declared_by[old.suite], old, now))
        for name, old in stored.items()
        if isinstance(old, Baseline) and old.suite in declared_by
    }
    runs = {each.workload: (*each.others, each.observed) for each in candidates if each.observed is not None}
    wrong = {
        name: tuple(
            reason
            for results, workload in told
            if workload.run is not None
            for reason in (*shortcomings(results, workload, workload.run), *_untested(results, workload))
        )
        for name, told in seen.items()
    }
    comparisons = max(results.comparisons for results in together)
    reviewed = review(device, candidates, stored, declared, vanished_doubts=doubts, comparisons=comparisons)
    return Pending(reviewed, stored, runs, wrong, comparisons)


def _vanished_doubts(results: Results, old: Baseline, now: datetime) -> Iterator[str]:
    """What speaks against removing a baseline because these results do not declare it."""
    yield from _clocks(results, old, now)
    if not any(workload.suite == old.suite and workload.run is not None for workload in results.workloads):
        yield f"nothing of {old.suite} was measured in the results that declare it no more"


def _candidate(
    told: Sequence[tuple[Results, WorkloadResult]], old: Baseline | BaselineError | None, now: datetime
) -> Candidate:
    """The newest run counts; the others must agree with it."""
    measured = [each for each in told if each[1].run is not None]
    results, workload = (measured or told)[-1]
    never = impossible(results, workload)
    if workload.run is None or never:
        cannot_run_here = workload.run is None and workload.unavailable is not None
        why_not = "; ".join(never)
        return Candidate(
            workload.id, workload.suite, None, never=() if cannot_run_here else (why_not,), why_not=why_not
        )
    others = [
        observed_baseline(each, other, other.run)
        for each, other in measured[:-1]
        if other.run is not None and not impossible(each, other)
    ]
    return Candidate(
        workload.id,
        workload.suite,
        observed_baseline(results, workload, workload.run),
        others=tuple(others),
        doubts=(
            *shortcomings(results, workload, workload.run),
            *_untested(results, workload),
            *undecided(workload),
            *_clocks(results, old, now),
        ),
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
    measured = sum(len(new[-1].entries[0].processes[0].timers) for new in waiting.runs.values())
    comparisons = waiting.comparisons or measured
    for each in filter(wanted, waiting.review.reviewed):
        old, runs = waiting.stored.get(each.workload), waiting.runs.get(each.workload, ())
        if not runs:
            continue
        wrong = waiting.shortcomings.get(each.workload, ())
        if each.never or (wrong and not force) or isinstance(old, BaselineError):
            refused.append(each if isinstance(old, BaselineError) else replace(each, doubts=wrong))
            continue
        try:
            whole = _joined(old, runs, comparisons)
        except ValueError as error:
            refused.append(replace(each, never=(f"it differs from the baseline: {error}",)))
            continue
        if whole != old:
            count = sum(len(entry.processes) for entry in whole.entries)
            action = Action.CREATE if old is None else Action.UPDATE
            change = PlannedChange(action, each.workload, whole, (f"{count} processes",))
            accepted.append(replace(each, change=change))
    return Chosen(waiting, tuple(accepted), tuple(refused))


def _joined(old: Baseline | None, runs: Sequence[Baseline], comparisons: int) -> Baseline:
    """Add the processes of runs that the baseline does not have yet. Raises `ValueError` with what differs."""
    whole = old
    for new in runs:
        (process,) = new.entries[0].processes
        if whole is None:
            whole = new
        elif not any(process in entry.processes for entry in whole.entries):
            whole = joined(whole, new, comparisons=comparisons)
    assert whole is not None  # there is at least one run
    return whole


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
        for each in chosen:
            store.apply(each.pending.device, each.plan)


def _alike(then: Baseline | BaselineError | None, now: Baseline | BaselineError | None) -> bool:
    if isinstance(then, BaselineError) and isinstance(now, BaselineError):
        return str(then) == str(now)
    return then == now
