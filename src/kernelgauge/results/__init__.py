"""The results of one run of pytest: the one thing that every report is made from.

Plain data, the same in memory and in `reports/latest/results.json` (docs/results.md).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from ..errors import ResultsError, printable
from ..files import regular_file, slug
from ..judge import Baseline, Limits, Status, Verdict, check_integers, worst
from ..run import Fingerprint, Run, Timer

__all__ = [
    "MOST_BYTES",
    "NAME",
    "SCHEMA_VERSION",
    "Results",
    "TestResult",
    "WorkloadResult",
    "decode_results",
    "encode_results",
    "find_results",
    "folder_name",
    "folder_names",
    "is_of_something_else",
    "join",
    "moment",
    "read_results",
    "started",
]

SCHEMA_VERSION = 2  # version 1 is read as well: it has no subjects of tests, and no gates
_T = TypeVar("_T")
_WORST_FIRST = (3, 2, 1, 4)  # pytest.ExitCode: internal error, interrupted, tests failed, usage error
_NOTHING_COLLECTED = 5
_CUT_SHORT = (2, 3)  # pytest.ExitCode: interrupted, internal error

Outcome = Literal["passed", "failed", "skipped"]


class TestResult(msgspec.Struct, frozen=True):
    """One test.

    Attributes:
        claim: the first line of its docstring.
        said: why it failed or was skipped.
        subject: of the verdict of its workload that it ended with; None: it ended without one.
    """

    __test__ = False  # no test of pytest's

    node: str
    workload: str | None
    outcome: Outcome
    seconds: float
    claim: str = ""
    said: str = ""
    subject: str | None = None

    @property
    def name(self) -> str:
        """``test_device_time`` of ``perf/test_latency.py::test_device_time[mlp-eager]``."""
        return self.node.partition("[")[0].rpartition("::")[2]


class WorkloadResult(msgspec.Struct, frozen=True):
    """One workload: what was asked, what was observed, what it was compared with, what was concluded."""

    id: str
    suite: str
    module: str
    variant: str
    dtype: str
    pass_: str
    shape: tuple[int, ...]
    run: Run | None = None  # None: it could not be measured
    baseline: Baseline | None = None  # None: there is none, or it could not be read
    verdicts: tuple[Verdict, ...] = ()
    unavailable: str | None = None  # why it cannot run on this machine
    trace: str | None = None  # beside the results, with slashes
    limits: Limits = Limits()  # gates and sensitivity that the suite asks for

    @property
    def status(self) -> Status | None:
        return worst([verdict.status for verdict in self.verdicts])

    def verdict(self, subject: str) -> Verdict | None:
        return next((verdict for verdict in self.verdicts if verdict.subject == subject), None)

    def end_of(self, test: TestResult) -> Verdict | None:
        """Return the verdict that a test of this workload ended with; None: it ended without one."""
        return None if test.subject is None else self.verdict(test.subject)


class Results(msgspec.Struct, frozen=True):
    """All of it. Times are UTC, as ISO 8601."""

    schema_version: int
    kernelgauge: str  # its version
    started_at: str
    seconds: float
    arguments: tuple[str, ...]  # of pytest
    fingerprint: Fingerprint | None  # None: nothing was measured
    gpu: str | None  # which one of its kind: a digest of its UUID
    not_watched: str  # why nothing is known of the GPU's clocks and other users; empty if it is
    workloads: tuple[WorkloadResult, ...]
    tests: tuple[TestResult, ...] = ()
    warnings: tuple[str, ...] = ()
    exit_status: int = 0  # of pytest
    host: str = ""  # its name
    commit: str | None = None  # of the working tree, with "+" behind it if that had changes; None: none, or not known
    timers: tuple[Timer, ...] = ()  # those that this device has
    comparisons: int = 0  # times that the suites of the run have, selected or not; 0: not known
    declared: dict[str, tuple[str, ...]] = {}  # ids of all workloads of each suite, by its folder, selected or not
    baselines: str = "baselines"  # their folder, with slashes, from the root of the project; absolute if not in it

    @property
    def was_cut_short(self) -> bool:
        """Whether the run of pytest was interrupted, or broke: what it lacks is not known."""
        return self.exit_status in _CUT_SHORT

    @property
    def status(self) -> Status | None:
        """The worst of all verdicts; None if nothing was judged."""
        return worst([verdict.status for workload in self.workloads for verdict in workload.verdicts])

    def machine_of(self, workload: WorkloadResult) -> tuple[Fingerprint | None, str | None]:
        """The fingerprint and the GPU that a workload ran on, which of merged results is not everybody's.

        Of one that could not run, those of the whole.
        """
        run = workload.run
        return (run.fingerprint, run.gpu) if run is not None else (self.fingerprint, self.gpu)


def moment(text: str) -> datetime | None:
    """A time in ISO 8601, in UTC; None: it is none. Saved results may come from anywhere."""
    try:
        read = datetime.fromisoformat(text.replace("Z", "+00:00"))  # Python 3.10 knows no Z
        return read.astimezone(timezone.utc) if read.tzinfo else read.replace(tzinfo=timezone.utc)
    except (ValueError, OverflowError):
        return None


def started(results: Results) -> datetime:
    """Return the start in UTC; the earliest time there is if it cannot be read."""
    return moment(results.started_at) or datetime.min.replace(tzinfo=timezone.utc)


def join(parts: Sequence[Results]) -> Results:
    """Return several parts of one run, in order of their starts, as one.

    Where two have the same, the later part counts: the run of a workload, the verdict on a subject, a test. A failure that
    a later part replaced is named in a warning, and the exit status is the worst of all.
    """
    first = parts[0]
    suites = _once(suite for part in parts for suite in part.declared)
    declared = {suite: _once(name for part in parts for name in part.declared.get(suite, ())) for suite in suites}
    warnings = [warning for part in parts for warning in part.warnings]
    workloads = _joined_workloads(parts, warnings)
    order = {name: place for place, name in enumerate(name for names in declared.values() for name in names)}
    gpus = {part.gpu for part in parts if part.fingerprint is not None}
    for what, values in (
        ("hosts", _once(part.host or "(not known)" for part in parts)),
        ("commits", _once(part.commit or "(not known)" for part in parts)),
        ("versions of kernelgauge", _once(part.kernelgauge for part in parts)),
    ):
        if len(values) > 1:
            warnings.append(f"merged from {len(values)} {what}: {', '.join(values)}")
    return msgspec.structs.replace(
        first,
        seconds=_seconds(parts),
        fingerprint=next((part.fingerprint for part in parts if part.fingerprint is not None), None),
        gpu=gpus.pop() if len(gpus) == 1 else None,
        not_watched="; ".join(_once(part.not_watched for part in parts if part.not_watched)),
        workloads=tuple(sorted(workloads, key=lambda workload: order.get(workload.id, len(order)))),
        tests=_joined_tests(parts, warnings),
        warnings=_once(warnings),
        exit_status=_exit_status([part.exit_status for part in parts]),
        host=first.host if len({part.host for part in parts}) == 1 else "",
        # That with the "+" of local changes, if there is one.
        commit=max((part.commit for part in parts if part.commit is not None), key=len, default=None),
        timers=_once(timer for part in parts for timer in part.timers),
        comparisons=max(part.comparisons for part in parts),
        declared=declared,
    )


def _joined_workloads(parts: Sequence[Results], warnings: list[str]) -> list[WorkloadResult]:
    joined: dict[str, WorkloadResult] = {}
    for new in (workload for part in parts for workload in part.workloads):
        old = joined.get(new.id, new)
        statuses = {subject: _subject_status(new, subject) for subject in _once(each.subject for each in new.verdicts)}
        for verdict in old.verdicts:
            now = statuses.get(verdict.subject)
            if verdict.status.fails and now is not None and not now.fails:
                was = f"{new.id}: {verdict.subject} was {verdict.status.value} ({verdict.headline})"
                warnings.append(f"{was}, and {now.value} in a later part, which counts")
        kept = tuple(verdict for verdict in old.verdicts if verdict.subject not in statuses)
        counts = new if new.run is not None or old.run is None else old
        joined[new.id] = msgspec.structs.replace(counts, verdicts=(*kept, *new.verdicts))
    return list(joined.values())


def _subject_status(workload: WorkloadResult, subject: str) -> Status | None:
    return worst([verdict.status for verdict in workload.verdicts if verdict.subject == subject])


def _joined_tests(parts: Sequence[Results], warnings: list[str]) -> tuple[TestResult, ...]:
    joined: dict[str, list[TestResult]] = {}
    for part in parts:
        new: dict[str, list[TestResult]] = {}  # a test whose teardown failed is there twice
        for test in part.tests:
            new.setdefault(test.node, []).append(test)
        for node, tests in new.items():
            if _failed(joined.get(node, ())) and not _failed(tests):
                warnings.append(f"{node} failed, and did not in a later part, which counts")
        joined.update(new)
    return tuple(test for tests in joined.values() for test in tests)


def _failed(tests: Iterable[TestResult]) -> bool:
    return any(test.outcome == "failed" for test in tests)


def _seconds(parts: Sequence[Results]) -> float:
    """Return the time from the earliest start to the latest end; without any start, the longest."""
    spans = [(begun, max(0.0, part.seconds)) for part in parts if (begun := moment(part.started_at)) is not None]
    if not spans:
        return max(part.seconds for part in parts)
    first = min(begun for begun, _ in spans)
    return max((begun - first) / timedelta(seconds=1) + seconds for begun, seconds in spans)


def _exit_status(statuses: Sequence[int]) -> int:
    """Return the worst; "nothing was collected" only if it is that of all parts."""
    some = [status for status in statuses if status != _NOTHING_COLLECTED]
    if not some:
        return _NOTHING_COLLECTED
    return next((status for status in (*_WORST_FIRST, *some) if status and status in some), 0)


def _once(items: Iterable[_T]) -> tuple[_T, ...]:
    return tuple(dict.fromkeys(items))


def folder_names(several: Sequence[Results]) -> list[str]:
    """Return a folder's name for the results of each machine; "" for the only one."""
    if len(several) == 1:
        return [""]
    names = [folder_name(results) for results in several]
    twins = [names[:place].count(name) for place, name in enumerate(names)]
    return [f"{name}--{before + 1}" if before else name for name, before in zip(names, twins, strict=True)]


def folder_name(results: Results) -> str:
    """Return the folder's name for results among those of several machines."""
    device = results.fingerprint.device if results.fingerprint is not None else "nothing measured"
    return slug(" ".join([device, results.gpu or results.host]))[:100]


# -- JSON -------------------------------------------------------------------------------------------------------------


class _Header(msgspec.Struct):
    schema_version: int


def encode_results(results: Results) -> bytes:
    return msgspec.json.format(msgspec.json.encode(results), indent=1) + b"\n"


def decode_results(content: bytes, *, where: str) -> Results:
    """Parse results, of schema 1 too. Raises `ResultsError` for anything else."""
    expected = f"results of kernelgauge, schema_version {SCHEMA_VERSION}"
    try:
        version = msgspec.json.decode(content, type=_Header).schema_version
        if version == SCHEMA_VERSION:
            check_integers(content)
            return msgspec.json.decode(content, type=Results)
        if version == 1:
            check_integers(content)
            return _of_schema_1(msgspec.json.decode(content))
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError, RecursionError) as error:
        got = "an empty file" if not content.strip() else str(error)
        raise ResultsError("the results cannot be read", where=where, got=got, expected=expected) from error
    raise ResultsError(
        f"the results were written by {'a newer' if version > SCHEMA_VERSION else 'another'} version of kernelgauge",
        where=f"{where}, field schema_version",
        got=str(version),
        expected=str(SCHEMA_VERSION),
        next_command="pip install --upgrade kernelgauge" if version > SCHEMA_VERSION else None,
    )


# -- the file ---------------------------------------------------------------------------------------------------------


def _of_schema_1(document: Any) -> Results:
    """Convert results of schema 1. A test has the subject of the verdict that it printed."""
    for workload in document.get("workloads", ()):
        workload["limits"] = {"sensitivity": workload.pop("sensitivity", {})}
    results = msgspec.convert(document | {"schema_version": SCHEMA_VERSION}, Results)
    printed = {
        (workload.id, str(verdict).partition("\n")[0]): verdict.subject
        for workload in results.workloads
        for verdict in workload.verdicts
    }
    tests = (
        msgspec.structs.replace(
            test, subject=printed.get((test.workload or "", test.said.lstrip("\n").partition("\n")[0]))
        )
        for test in results.tests
    )
    return msgspec.structs.replace(results, tests=tuple(tests))


NAME = "results.json"
# The whole suite of this repository makes 0.3 MB. Decoded, a file takes about ten times its size in memory.
MOST_BYTES = 256 << 20
# Folders in folders: of machines in the reports of a shard, in the folder of its artifact.
_DEEPEST = 3


def find_results(path: Path) -> list[Path]:
    """The results at a path: the file itself, that in the folder, or those in its subfolders, sorted.

    Links to folders are not followed. Where a folder has none, the file that it should have: reading says so. A folder
    that cannot be listed stands for itself, and a link to nothing is a file: reading says what is wrong with them.
    """
    if not os.path.isdir(path):  # that of a Path fails where a folder above cannot be read, or a name is too long
        return [path]
    return _below(path, _DEEPEST) or [path / NAME]


def _below(folder: Path, depth: int) -> list[Path]:
    if _may_be_there(folder / NAME):
        return [folder / NAME]
    if not depth:
        return []
    try:
        with os.scandir(folder) as listed:
            inside = sorted(Path(each.path) for each in listed if each.is_dir(follow_symlinks=False))
    except OSError:  # a folder of somebody else's: there may be results in it
        return [folder]
    return [found for each in inside for found in _below(each, depth - 1)]


def _may_be_there(file: Path) -> bool:
    """Whether there is a file, a link to nowhere, or what cannot be told."""
    try:
        file.lstat()
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return True


def is_of_something_else(path: Path) -> bool:
    """Whether a file is whole JSON without what all results say of themselves, in any version."""
    try:
        document = msgspec.json.decode(_content(path, printable(str(path))))
    except (OSError, ValueError, msgspec.DecodeError, RecursionError, ResultsError):
        return False
    return not (isinstance(document, dict) and {"schema_version", "kernelgauge"} <= document.keys())


def read_results(path: Path) -> Results:
    """The results in a regular file of at most `MOST_BYTES`. Raises `ResultsError`."""
    where = printable(str(path))
    try:
        content = _content(path, where)
    except (OSError, ValueError) as error:  # a NUL in the path is a ValueError
        missing = isinstance(error, FileNotFoundError)
        raise _unreadable(where, "there is no such file" if missing else printable(str(error))) from error
    return decode_results(content, where=where)


def _content(path: Path, where: str) -> bytes:
    with regular_file(path) as descriptor, os.fdopen(descriptor, "rb", closefd=False) as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise _unreadable(where, f"more than {MOST_BYTES} bytes")
    return content


def _unreadable(where: str, got: str) -> ResultsError:
    return ResultsError(
        "the results cannot be read",
        where=where,
        got=got,
        expected="the results.json that a run has left, such as reports/latest/results.json",
        next_command="pytest perf",
    )
