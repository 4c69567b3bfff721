"""The stored baselines: files that are atomic, locked and validated; and how the results of runs
become baselines.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec

from .errors import BaselineError, NewerBaselineError, StorageError
from .judge import DECLARED, NUMERICS, TIME_LABELS, Status, Verdict
from .judge.baseline import Baseline, Recorded, decode_baseline, encode_baseline
from .judge.evidence import Detail, FileNote, RunDoubt
from .judge.review import (
    Action,
    Creep,
    Fact,
    Group,
    NotAdded,
    PlannedChange,
    Reviewed,
    review_run,
    with_runs,
)
from .judge.time_verdict import Context, judge_time, run_doubts
from .results import Results, WorkloadResult, files
from .run import CALL_TIMERS, Run, Timer

# an update writes a few small files: one that holds the lock longer hangs
_LOCK_TIMEOUT_SECONDS = 30.0


class BaselineStore:
    """The files `<root>/<gpu>/<workload>.json`."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, device: str, workload: str) -> Path:
        """Return the file of a baseline.

        Raises `StorageError` for an id that cannot be a file name.
        """
        if not files.is_file_name(workload):
            expected = f"at most {files.LONGEST_NAME} letters, digits, '_', '-' and '.'"
            raise StorageError(
                "a workload's id becomes a file name", got=repr(workload), expected=expected
            )
        return self.root / files.slug(device) / f"{workload}.json"

    def load(self, device: str, workload: str) -> Baseline | None:
        """Return the stored baseline; None if there is no file.

        Raises `BaselineError` if there is a file that cannot be used.
        """
        path = self.path(device, workload)
        try:
            files.require_inside(path, self.root)
            content = files.read_file(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _unreadable("the baseline cannot be read", path, error) from error
        where = os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)
        return decode_baseline(content, where=where, workload=workload)

    def stored(self, device: str) -> dict[str, Baseline | BaselineError]:
        """Return every baseline of a device by workload id, or the error if its file cannot be
        used.

        Files whose names are no ids are somebody else's. Raises `BaselineError` if the folder
        cannot be listed: it is never taken for an empty one.
        """
        folder = self.root / files.slug(device)
        try:
            files.require_inside(folder, self.root)
            names = sorted(
                name.removesuffix(".json") for name in os.listdir(folder) if name.endswith(".json")
            )
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise _unreadable("the baselines cannot be listed", folder, error) from error
        found: dict[str, Baseline | BaselineError] = {}
        for name in filter(files.is_file_name, names):
            try:
                # else it went away since the folder was listed
                if (baseline := self.load(device, name)) is not None:
                    found[name] = baseline
            except BaselineError as error:
                found[name] = error
        return found

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the update lock, across processes.

        Raises `StorageError` if another update holds it for too long.
        """
        reason = "another update of these baselines is running"
        path = self.root / ".lock" / "update"
        lock = files.Lock(path, reason, patience_s=_LOCK_TIMEOUT_SECONDS, ignores_folder=True)
        lock.hold()
        try:
            yield
        finally:
            lock.release()

    def apply(self, plans: Mapping[str, Iterable[PlannedChange]]) -> None:
        """Carry out the plans of all devices together. Call it inside `locked`.

        A full disk leaves all of the old files. A kill may leave some of them new. Raises
        `StorageError` if one of them cannot be written.
        """
        changes = [
            (self.path(device, change.workload), change)
            for device, plan in plans.items()
            for change in plan
        ]
        for file, _ in changes:
            try:
                files.require_inside(file, self.root)
            except OSError as error:
                raise files.unwritable(file, error) from error
        for folder in {path.parent for path, _ in changes}:
            files.remove_temporary(folder)
        files.write_files(
            {
                path: encode_baseline(each.baseline)
                for path, each in changes
                if each.baseline is not None
            }
        )


def _unreadable(what: str, path: Path, error: OSError) -> BaselineError:
    return BaselineError(what, where=str(path), got=str(error), next_command=f"ls -ld {path}")


# -- how results become baselines ------------------------------------------------------------------

Plans = dict[str, list[PlannedChange]]  # by device
_Found = list[tuple[Results, WorkloadResult]]  # the same workload in several results


class Mode(Enum):
    """How results become baselines."""

    # the newest run replaces what is stored, if that is neither newer nor undecided
    ACCEPT = "accept"
    UPDATE = "update"  # a run that has just ended replaces what is stored
    ADD = "add"  # all runs join what is stored
    CALIBRATE = "calibrate"  # all runs together replace what is stored


def select(
    reviews: Mapping[str, Sequence[Reviewed]],
    is_wanted: Callable[[Reviewed], bool],
    *,
    force: bool = False,
    because: str = "",
    store: BaselineStore | None = None,
) -> tuple[Plans, list[Reviewed]]:
    """Return the changes of the wanted workloads by device, and the workloads that are refused.

    `because`: the reason of the acceptance, which the files keep; those in `store` as well that
    stay otherwise as they are.
    """
    plans: Plans = {}
    refused: list[Reviewed] = []
    for device, reviewed in reviews.items():
        wanted = list(filter(is_wanted, reviewed))
        plans[device] = [
            with_reason(
                each.change,
                because,
                store.load(device, each.workload) if store and not each.change.baseline else None,
            )
            for each in wanted
            if each.change and (force or not each.doubts)
        ]
        refused += [each for each in wanted if each.doubts and not (force and each.change)]
    return plans, refused


def with_reason(
    change: PlannedChange, because: str, stored: Baseline | None = None
) -> PlannedChange:
    """Return a change whose file keeps why it was accepted: the `stored` one, where it stays."""
    baseline = change.baseline or stored
    if not because or baseline is None or baseline.recorded is None:
        return change
    if change.baseline is None and baseline.recorded.because == because:
        return change
    recorded = msgspec.structs.replace(baseline.recorded, because=because)
    kept = msgspec.structs.replace(baseline, recorded=recorded)
    if change.baseline is not None:
        return replace(change, baseline=kept)
    return PlannedChange(Action.UPDATE, change.workload, kept, (Detail("because", because),))


def plan_update(
    several: Sequence[Results], store: BaselineStore, mode: Mode
) -> tuple[Plans, list[Reviewed]]:
    """Select the tested workloads of runs that have just ended."""
    tested = {test.workload for results in several for test in results.tests}
    reviews = review(several, store, mode)
    return select(
        reviews, lambda each: each.group is not Group.NOT_MEASURED and each.workload in tested
    )


def judge_by_themselves(several: Sequence[Results], plans: Plans) -> list[Verdict]:
    """Return the verdicts on the times of runs by the baselines that were made of them: the noise
    of both is that of this machine now.
    """
    written = {each.workload: each.baseline for plan in plans.values() for each in plan}
    return [
        judge_time(timer, [each.run], baseline, Context(results.comparisons or 1), each.limits)
        for results in several
        for each in results.workloads
        if each.run is not None and (baseline := written.get(each.id)) is not None
        for timer in each.run.judged_timers
    ]


def written_text(plans: Plans, folder: str) -> str:
    """Return ``2 written to FOLDER`` for plans that were applied."""
    written = sum(change.action is not Action.KEEP for plan in plans.values() for change in plan)
    return f"{written} written to {folder}"


def review(
    several: Sequence[Results], store: BaselineStore, mode: Mode = Mode.ACCEPT
) -> dict[str, list[Reviewed]]:
    """Review results, in order of their start. Return the workloads of each device, by group."""
    devices: dict[str, list[Results]] = {}
    for results in several:
        own = results.fingerprint.device if results.fingerprint is not None else None
        parts: dict[str | None, list[WorkloadResult]] = (
            {own: []} if results.declared or not results.workloads else {}
        )
        for each in results.workloads:  # one may be compiled for another device
            parts.setdefault(
                each.run.fingerprint.device if each.run is not None else own, []
            ).append(each)
        for device, workloads in parts.items():
            if device is not None:
                devices.setdefault(device, []).append(
                    msgspec.structs.replace(results, workloads=tuple(workloads))
                )
    return {device: _review(device, each, store, mode) for device, each in devices.items()}


def _review(
    device: str, several: Sequence[Results], store: BaselineStore, mode: Mode
) -> list[Reviewed]:
    stored = known = store.stored(device)
    if mode is Mode.CALIBRATE:  # it replaces any file but one of a newer version
        stored = {name: old for name, old in stored.items() if isinstance(old, NewerBaselineError)}
    found: dict[str, _Found] = {}
    for results in several:
        for workload in results.workloads:
            found.setdefault(workload.id, []).append((results, workload))
    comparisons = max(1, *(results.comparisons for results in several))
    # The newest run of a workload is judged beside the others of its results.
    contexts = {results.started_at: _context(results, stored, comparisons) for results in several}
    reviewed = [
        _reviewed(
            each, stored.get(name), mode, contexts[each[-1][0].started_at], _compared(known, name)
        )
        for name, each in found.items()
    ]
    # A run that was cut short may not have collected all.
    declared = {
        suite: ids
        for each in several
        if not each.was_cut_short
        for suite, ids in each.declared.items()
    }
    # a workload may have moved to another suite
    alive = {name for ids in declared.values() for name in ids}
    for name in stored.keys() - found.keys():
        old = stored[name]
        if isinstance(old, BaselineError):
            reviewed.append(
                Reviewed(name, Group.NOT_MEASURED, "", doubts=(RunDoubt("error", old.one_line),))
            )
        elif old.suite in declared and name not in alive:
            reviewed.append(
                Reviewed(name, Group.VANISHED, old.suite, evidence=(FileNote("undeclared"),))
            )
    return sorted(reviewed, key=lambda each: (list(Group).index(each.group), each.workload))


def _context(
    results: Results, stored: Mapping[str, Baseline | BaselineError], comparisons: int
) -> Context:
    pairs = ((each.run, stored.get(each.id)) for each in results.workloads)
    known = ((run, old) for run, old in pairs if run is not None and isinstance(old, Baseline))
    return Context(comparisons, known)


def _compared(stored: Mapping[str, Baseline | BaselineError], name: str) -> bool | None:
    return old.is_compared if isinstance(old := stored.get(name), Baseline) else None


def _reviewed(
    found: _Found,
    old: Baseline | BaselineError | None,
    mode: Mode,
    context: Context,
    compared: bool | None,
) -> Reviewed:
    """Review the newest run of a workload. What is wrong with any run of it is a doubt.

    `compared`: as the stored `Recorded` has it, which a run without that test leaves.
    """
    measured = [
        (results, workload, workload.run) for results, workload in found if workload.run is not None
    ]
    if not measured:
        _, workload = found[-1]
        missing = Reviewed(workload.id, Group.NOT_MEASURED, workload.suite)
        if workload.unavailable is not None:
            return replace(missing, evidence=(Detail("why", workload.unavailable),))
        failed = [verdict for verdict in workload.verdicts if verdict.status.fails]
        return replace(missing, doubts=tuple(failed[:1]) or (RunDoubt("unmeasured"),))
    results, workload, run = measured[-1]
    was = old.recorded if isinstance(old, Baseline) else None
    reason = was.because if was is not None else ""
    was_compared, result = compared, workload.verdict(NUMERICS)
    if result is not None and not result.status.fails:
        compared = result.status is Status.PASS
    origin: dict[str, Any] = {
        "suite": workload.suite,
        "recorded": Recorded(
            results.started_at,
            results.commit,
            results.kernelgauge,
            results.release,
            reason if mode is Mode.ADD else "",  # more runs of what was accepted
            compared,
        ),
        "context": context,
        "limits": workload.limits,
    }
    doubts = list(dict.fromkeys(doubt for each in measured for doubt in _shortcomings(*each)))
    if result and result.status is Status.UNDECIDED and was_compared and mode is not Mode.UPDATE:
        doubts.append(result)
    newest = review_run(run, old, doubts=doubts, is_fresh=mode is not Mode.ACCEPT, **origin)
    if reason:
        newest = replace(newest, evidence=(*newest.evidence, Detail("because", reason)))
    if mode in (Mode.ACCEPT, Mode.UPDATE):
        return newest
    whole = with_runs(old, [run for _, _, run in measured], **origin)
    if isinstance(whole, NotAdded):
        return replace(newest, change=None, doubts=(*newest.doubts, whole))
    count = len(whole.processes)
    creep = (each for each in newest.evidence if isinstance(each, Creep))
    details = (FileNote("processes", after=str(count)), *creep)
    change = PlannedChange(Action.UPDATE if old else Action.CREATE, run.workload, whole, details)
    return replace(newest, change=newest.change if whole == old else change)


def _shortcomings(results: Results, workload: WorkloadResult, run: Run) -> Iterator[Fact]:
    """Yield why a run may not become a baseline, whatever is stored.

    It may differ from the baseline.
    """
    invalid = [
        each
        for each in workload.verdicts
        if each.status is Status.INVALID and each.subject in TIME_LABELS
    ]
    if results.was_cut_short:
        yield RunDoubt("cut short", is_of_times=True)
    for test in results.failed_tests:
        end = workload.verdict(test.subject)
        if test.workload == workload.id and (end is None or not _is_acceptable(end)):
            yield RunDoubt("test failed", test.name, is_of_times=end in invalid)
    for verdict in workload.verdicts:
        if verdict.status.fails and not _is_acceptable(verdict):
            yield verdict
    yield from run_doubts(run)
    if workload.verdict(DECLARED) is None:
        yield RunDoubt("not checked")
    timers = [
        timer for timer in results.timers or CALL_TIMERS if run.kernels or timer is Timer.END_TO_END
    ]
    missing = [timer for timer in timers if run.sample(timer) is None]
    if run.incomplete:  # not because nobody asked, nor because other kernels were timed
        why = ": ".join(filter(None, (run.incomplete, run.other_kernels)))
        yield RunDoubt("incomplete", why, is_of_times=run.lack is None)
    elif not run.samples.keys().isdisjoint(CALL_TIMERS):  # else nobody wants one
        for timer in missing:
            is_of_times = any(each.subject == timer.label for each in invalid)
            label = timer.label_on(run.fingerprint)
            yield RunDoubt("not measured", label, is_of_times=is_of_times)


def _is_acceptable(verdict: Verdict) -> bool:
    differs = (Status.REGRESSED, Status.CHANGED, Status.NO_BASELINE, Status.INCOMPARABLE)
    return verdict.is_by_baseline and verdict.status in differs
