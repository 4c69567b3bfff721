"""The results of one run of pytest: the one thing that every report is made from.

Plain data, the same in memory and in `reports/latest/results.json` (docs/results.md).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from datetime import datetime, timezone
from gzip import compress
from hashlib import sha256
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec

from ..errors import NO_TIMES, OTHER_KERNELS, ResultsError, StorageError, printable
from ..judge import Status, Verdict, worst
from ..judge.baseline import Baseline, fold, fold_baseline, unfold, unfold_baseline
from ..judge.timing import Limits
from ..run import Fingerprint, Lack, Run, Timer
from .files import read_file, remove_temporary, write_atomically

if TYPE_CHECKING:
    from ..workload import Workload

NAME = "results.json"
__version__ = "0.1.0"  # of kernelgauge; pyproject.toml has it too
SCHEMA_VERSION: Final = 3
_MOST_COMPARISONS = 10**6  # a file that has more is damaged
_NOT_ITS_OWN = {"site-packages", "dist-packages"}  # below a project: a virtual environment's
_GIT_TIMEOUT_S = 5.0  # a working tree on a slow network file system: then its commit is not known
_CUT_SHORT = (2, 3)  # pytest.ExitCode: interrupted, internal error
_LEVEL = 6  # of gzip, for traces: level 9 takes ten times as long, for a tenth less
# The root of a project has one of these: where pytest leaves its reports, or where it finds its
# configuration.
_MARKS = ("reports/latest", "pytest.ini", "pyproject.toml", "tox.ini", "setup.cfg", ".git")
# Options of pytest, and of this plugin, that decide which tests there are and what they measure.
_SHORT = ("-c", "-m", "-o", "-p")
_LONG = (
    "--config-file",
    "--override-ini",
    "--rootdir",
    "--import-mode",
    "--perf-matrix",
    "--perf-device",
)
_FLAGS = ("--perf-compile", "--perf-benchmark")
# marks: a workload is recorded by tests of every kind
_KINDS = re.compile(r"\b(?:structure|timing|numerics)\b")

Outcome = Literal["passed", "failed", "skipped"]


class TestResult(msgspec.Struct, frozen=True):
    """One test.

    Attributes:
        claim: the first line of its docstring.
        said: why it failed or was skipped; empty where a verdict says it.
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
        """Return ``test_device_time`` of ``perf/test_latency.py::test_device_time[mlp-eager]``."""
        return self.node.partition("[")[0].rpartition("::")[2]


class WorkloadResult(msgspec.Struct, frozen=True):
    """One workload: its declaration, its run, the baseline, and the verdicts."""

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

    def verdict(self, subject: str | None) -> Verdict | None:
        return next((verdict for verdict in self.verdicts if verdict.subject == subject), None)

    def time_verdict(self, timer: Timer) -> Verdict | None:
        return self.verdict(timer.label)


class _Version(msgspec.Struct):
    schema_version: Literal[3]


class Results(msgspec.Struct, frozen=True):
    """The results of one run of pytest. Times are UTC, as ISO 8601."""

    schema_version: Literal[3]
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
    # of the working tree, with "+" behind it if that had changes; None: none, or not known
    commit: str | None = None
    timers: tuple[Timer, ...] = ()  # those that are judged on this device
    comparisons: Annotated[int, msgspec.Meta(ge=0, le=_MOST_COMPARISONS)] = (
        0  # times that the suites of the run have, selected or not; 0: not known
    )
    # ids of all workloads of each suite, by its folder, selected or not
    declared: dict[str, tuple[str, ...]] = {}
    release: str | None = None  # the nearest tag of that commit; None: none, or not known
    # their folder, with slashes, from the root of the project; absolute if not in it
    baselines: str = "baselines"
    # digests of the project's files that were imported, by their paths from its root
    sources: dict[str, str] = {}

    @property
    def was_cut_short(self) -> bool:
        """Return whether the run of pytest was interrupted, or broke: nobody knows what it
        lacks.
        """
        return self.exit_status in _CUT_SHORT

    @property
    def runs(self) -> list[Run]:
        return [workload.run for workload in self.workloads if workload.run is not None]

    @property
    def verdicts(self) -> list[Verdict]:
        return [verdict for workload in self.workloads for verdict in workload.verdicts]

    @property
    def failed_tests(self) -> list[TestResult]:
        return [test for test in self.tests if test.outcome == "failed"]

    @property
    def status(self) -> Status | None:
        """Return the worst of all verdicts; None if nothing was judged."""
        return worst([verdict.status for verdict in self.verdicts])

    @property
    def started(self) -> datetime:
        """Return when it started, in UTC.

        For an invalid timestamp that is the earliest time there is.
        """
        try:
            return datetime.fromisoformat(self.started_at).astimezone(timezone.utc)
        except (ValueError, OverflowError):
            return datetime.min.replace(tzinfo=timezone.utc)


# -- JSON ------------------------------------------------------------------------------------------


# in files from before that field
_LACKS = {NO_TIMES: Lack.NOT_ASKED, OTHER_KERNELS: Lack.OTHER_KERNELS}
_SEQUENCES = ("ops", "launch_apis", "origins")  # of a run, beside its kernels


def encode_results(results: Results, *, indent: int = 1) -> bytes:
    """Return JSON, in one line if `indent` is 0.

    Equal launches, ops and origins are one row each.
    """
    data = msgspec.to_builtins(results)
    for workload in data["workloads"]:
        if (run := workload["run"]) is not None:
            times_us = [kernel.pop("device_time_us") for kernel in run["kernels"]]
            run |= {name: fold(run[name]) for name in ("kernels", *_SEQUENCES)}
            run["kernels"]["device_times_us"] = times_us
        if workload["baseline"] is not None:
            fold_baseline(workload["baseline"])
    return msgspec.json.format(msgspec.json.encode(data), indent=indent or -1) + b"\n"


def _unfold(data: Any) -> Any:
    """Return what a file has, with each launch in full.

    Raises `ValueError` if a sequence fits no rows.
    """
    try:
        for workload in data["workloads"]:
            if (run := workload.get("run")) is not None:
                times_us = run["kernels"]["device_times_us"]
                run |= {name: unfold(run[name], name) for name in ("kernels", *_SEQUENCES)}
                pairs = zip(run["kernels"], times_us, strict=True)
                run["kernels"] = [
                    {**kernel, "device_time_us": time_us} for kernel, time_us in pairs
                ]
                run.setdefault("lack", _LACKS.get(run.get("incomplete")))
            if workload.get("baseline") is not None:
                unfold_baseline(workload["baseline"])
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"no rows and sequence ({error!r}) - at `$.workloads`") from error
    return data


def decode_results(content: bytes, *, where: str) -> Results:
    """Parse results. Raises `ResultsError` for anything else."""
    try:
        data = msgspec.json.decode(content)
        msgspec.convert(data, type=_Version)  # before its version is known, nothing else is
        results = msgspec.convert(_unfold(data), type=Results)
        _refuse_contradictions(results)
        return results
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise _unreadable(where, str(error) if content.strip() else "an empty file") from error


def _refuse_contradictions(results: Results) -> None:
    """Raise `ValueError` for what the types allow and no run leaves."""
    for each in results.workloads:
        changes = [verdict.change for verdict in each.verdicts if verdict.change is not None]
        seen = [fraction for change in changes for fraction in (change.sensitivity, change.gate)]
        fractions = (*each.limits.gate.values(), *each.limits.sensitivity.values(), *seen)
        if any(fraction is not None and not fraction > 0 for fraction in fractions):
            raise ValueError(f"gates and sensitivities are positive fractions - in {each.id}")
        if each.run is not None and len(each.run.origins) not in (0, len(each.run.kernels)):
            raise ValueError(
                f"{len(each.run.origins)} origins for {len(each.run.kernels)} kernels - in "
                f"{each.id}"
            )


def _unreadable(where: str, got: str) -> ResultsError:
    return ResultsError(
        "the results cannot be read",
        where=where,
        got=printable(got),
        expected=(
            f"what a run leaves in reports/latest/results.json, schema_version {SCHEMA_VERSION}"
        ),
        next_command="pytest perf",
    )


# -- the command -----------------------------------------------------------------------------------


def repeated_arguments(arguments: Iterable[str]) -> list[str]:
    """Return those of pytest's arguments that a command must repeat to select the same workloads,
    and to measure all of each.
    """
    found: list[str] = []
    rest = iter(arguments)
    for each in rest:
        option, is_joined, value = each.partition("=")
        if each[:2] in _SHORT:
            option, value = each[:2], each[2:] or next(rest, "")
        elif option in _LONG and not is_joined:
            value = next(rest, "")
        if option == "-m":
            value = without_kinds(value)
        if option in _FLAGS:
            found.append(option)
        elif value and option in (*_SHORT, *_LONG):
            found += [option, value]
    return found


def without_kinds(marks: str) -> str:
    """Return an expression of -m without the parts that select tests by their kind: ``gpu and not
    timing`` is ``gpu``.
    """
    parts = [marks] if "(" in marks or re.search(r"\bor\b", marks) else marks.split(" and ")
    return " and ".join(each for each in parts if not _KINDS.search(each))


def selector(workload: str, others: Iterable[str]) -> str:
    """Return what `-k` must say to select this workload, and none of the others."""
    own = workload.lower()  # as pytest compares
    is_in_another = any(own in other.lower() and workload != other for other in others)
    return f"[{workload}]" if is_in_another else workload


def checked_out(here: Path, root: Path) -> Callable[[str], str | None] | None:
    """Return what finds a file of the project, from the root of the repository that GitHub Actions
    checked out. It returns None for a library's. None: this is no job of GitHub Actions.
    """
    if os.environ.get("GITHUB_ACTIONS") != "true":
        return None

    def place(file: str) -> str | None:
        found = next((path for each in (here, root) if (path := each / file).is_file()), None)
        if found is None or not found.resolve().is_relative_to(root.resolve()):
            return None
        return os.path.relpath(found, os.environ.get("GITHUB_WORKSPACE") or here)

    return place


def project_of(here: Path, known: Path | None = None) -> Path:
    """Return the nearest folder above `here` that is the root of a project, or is `known`; `here`
    if there is none.
    """
    # A root is on the file system of the current folder: beyond, somebody else may own what is
    # there.
    folders = takewhile(
        lambda folder: folder.stat().st_dev == here.stat().st_dev, (here, *here.parents)
    )
    return next(
        (
            each
            for each in folders
            if each == known or any((each / mark).exists() for mark in _MARKS)
        ),
        here,
    )


# -- the file --------------------------------------------------------------------------------------


def find_results(paths: Iterable[Path]) -> list[Path]:
    """Return the results at each path: the file itself, that in the folder, or those in its
    subfolders, in order.

    A folder with results hides those below it, and links to folders are not followed. A folder that
    cannot be listed, or has no results, stands for its results: reading them says what is wrong.
    """
    return [file for path in paths for file in _results_at(path)]


def _results_at(path: Path) -> list[Path]:
    if not os.path.isdir(path):  # `Path.is_dir` fails for a name that is too long
        return [path]
    found: list[Path] = []
    for folder, subfolders, names in os.walk(
        path, onerror=lambda error: found.append(Path(error.filename, NAME))
    ):
        subfolders.sort()
        if NAME in names:
            found.append(Path(folder, NAME))
            subfolders.clear()
    return found or [path / NAME]


def read_results(path: Path) -> Results:
    """Return the results in a file. Raises `ResultsError`."""
    where = printable(str(path))
    try:
        content = read_file(path)
    except (OSError, ValueError) as error:  # a NUL in the path is a ValueError
        raise _unreadable(where, str(error)) from error
    return decode_results(content, where=where)


# -- the folder ------------------------------------------------------------------------------------


class Artifacts:
    """The folder of a run's results, reports, traces and their tables.

    `workers` holds the results of each worker of pytest-xdist until the run ends. Their traces lie
    with all others.
    """

    def __init__(self, folder: Path, worker: str = "") -> None:
        self.folder = folder
        self.markdown = folder / "report.md"
        self.html = folder / "report.html"
        self.traces = folder / "traces"
        self.workers = folder / "workers"
        self.results = (self.workers / worker if worker else folder) / NAME

    def trace(self, workload: Workload) -> Path:
        return self.folder / self.trace_name(workload)

    def trace_name(self, workload: Workload) -> str:
        """Return the path from this folder: one of this machine says nothing to who reads it
        elsewhere.
        """
        return f"traces/{workload.id}.json.gz"

    def prepare(self) -> None:
        """Remove the parts of a run that was killed: they would be gathered with this one's.

        Raises `StorageError`.
        """
        _remove(self.workers)

    def empty(self) -> None:
        """Remove what another run has left: it would pass for this one's. Raises `StorageError`.

        Whatever else somebody keeps in the folder stays.
        """
        _remove(self.traces, self.results, self.markdown, self.html)
        remove_temporary(self.folder)

    def write(self, workload: Workload, trace_json: bytes, table: str) -> None:
        """Write the trace of a workload and its table.

        Raises `StorageError` if it cannot be written.
        """
        write_atomically(self.trace(workload), compress(trace_json, _LEVEL, mtime=0))
        write_atomically(self.traces / f"{workload.id}.txt", table.encode())


def _remove(*paths: Path) -> None:
    for path in paths:
        try:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        except OSError as error:
            raise StorageError(
                "cannot remove what another run has left", where=str(path), got=str(error)
            ) from error


def revision(folder: Path) -> str | None:
    """Return the commit of the working tree that `folder` is in, with ``+`` behind it if tracked
    files differ; None: not known.

    Git's own answer, with git's own rules about whose repositories it trusts.
    """
    # no tag, and all digits
    return _describe(folder, "--always", "--exclude=*", "--abbrev=64", "--dirty=+")


def sources_of(root: Path) -> dict[str, str]:
    """Return a digest of each file of a project that this process has imported, by its path."""
    found: dict[str, str] = {}
    for module in list(sys.modules.values()):  # some raise for a name that they lack
        file = str(getattr(module, "__dict__", {}).get("__file__"))
        if root.name not in file:  # a path of each module of torch takes 20 ms
            continue
        path = Path(file)
        if path.is_relative_to(root) and not _NOT_ITS_OWN.intersection(path.parts):
            found[path.relative_to(root).as_posix()] = digest_of_file(path)
    return dict(sorted(found.items()))


def changed_sources(results: Results, root: Path) -> list[str]:
    """Return the files of a project that are other ones than when the results were measured."""
    return [
        path for path, digest in results.sources.items() if digest_of_file(root / path) != digest
    ]


def digest_of_file(path: Path) -> str:
    """Return the beginning of a file's SHA-256; empty if nobody can read it."""
    try:
        return sha256(path.read_bytes()).hexdigest()[:16]
    except OSError:
        return ""


def nearest_tag(folder: Path) -> str | None:
    """Return the nearest tag of the commit of the working tree that `folder` is in; None: there is
    none, or not known.
    """
    return _describe(folder, "--tags", "--abbrev=0")


def _describe(folder: Path, *options: str) -> str | None:
    return (
        ask_git(folder, "--no-optional-locks", "describe", *options, timeout_s=_GIT_TIMEOUT_S)
        or None
    )


def ask_git(folder: Path, *arguments: str, timeout_s: float | None = None) -> str:
    """Return what git prints in a folder; empty if it fails, or takes longer."""
    command = ["git", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
