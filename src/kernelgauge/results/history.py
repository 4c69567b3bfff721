"""Results of many runs as files, and the times of each workload over them.

A history is a folder or a bucket with one file for each run of pytest and GPU, written once and never changed. A file's
name has a digest of its content, so copying several histories into one place merges them. docs/history.md has the schema.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from fnmatch import fnmatchcase
from hashlib import sha256
from operator import itemgetter
from typing import Any, Literal, NamedTuple

import msgspec

from ..errors import ResultsError, printable
from ..judge.baseline import SOFTWARE_FIELDS
from ..judge.verdict import Status, Verdict
from ..run import Fingerprint, Timer, is_duration, observe
from . import Results, WorkloadResult
from .files import open_location, put_files, store_errors

_FIRST_YEAR = 1970  # an invalid timestamp is year 1
_LONGEST_HEADLINE = 300  # characters


# -- a file -----------------------------------------------------------------------------------------------------------


class _Time(msgspec.Struct, frozen=True, gc=False):
    """A time of a workload: the geometric mean of its replicates, what it was compared with, and the verdict."""

    mean_us: float
    spread: float | None  # standard deviation of the replicates' logarithms
    replicates: int
    baseline_us: float | None
    status: Status | None
    said: str  # headline and cause of a verdict that does not pass


class _Row(msgspec.Struct, frozen=True, gc=False):
    """A workload. `said`: of its worst verdict, or why it could not run. `kernels`: a digest of their names in order."""

    workload: str
    status: Status | None
    said: str
    kernels: str | None
    times: dict[Timer, _Time]


class _File(msgspec.Struct, frozen=True):
    """One run of pytest on one GPU. `started_at` is in UTC. `fingerprint`: None if nothing was measured."""

    schema_version: Literal[3]
    started_at: datetime
    kernelgauge: str
    host: str
    gpu: str | None
    commit: str | None
    exit_status: int
    fingerprint: Fingerprint | None
    rows: list[_Row]


# -- adding -----------------------------------------------------------------------------------------------------------


def add_to_history(results: Results, location: str) -> list[str]:
    """Add results to a folder or a URL of fsspec: one file for each GPU. Return their keys, the paths below the history.

    The same results have the same keys. In a folder, each file is whole at every moment. Any number of processes may add
    at the same time.

    Raises `ResultsError` for results without a workload, `StorageError` if a file cannot be written.
    """
    contents = dict(_files(results))
    put_files(location, contents.items())
    return list(contents)


def _files(results: Results) -> Iterator[tuple[str, bytes]]:
    """Yield key and content of one file for each GPU and environment. Equal results make equal files."""
    if not results.workloads:
        raise ResultsError("there is nothing to add to a history", got="no workload", expected="a run of the suite")
    if results.started.year < _FIRST_YEAR:
        expected = "when the run started, as ISO 8601: 2026-11-23T02:17:00+00:00"
        raise ResultsError("invalid timestamp", got=printable(results.started_at), expected=expected)
    by_machine: dict[tuple[Fingerprint | None, str | None], list[WorkloadResult]] = {}
    for workload in results.workloads:
        ran_on = workload.run or results  # in merged results, the machines differ
        by_machine.setdefault((ran_on.fingerprint, ran_on.gpu), []).append(workload)
    for (fingerprint, gpu), workloads in by_machine.items():
        file = _File(
            schema_version=3,
            started_at=results.started,
            kernelgauge=results.kernelgauge,
            host=results.host,
            gpu=gpu,
            commit=results.commit,
            exit_status=results.exit_status,
            fingerprint=fingerprint,
            rows=[_row(workload) for workload in workloads],
        )
        content = msgspec.json.encode(file) + b"\n"
        slug = re.sub(r"[^a-z0-9]", "", (gpu or "").lower())[:40]
        machine = slug or ("cpu" if fingerprint is not None and fingerprint.arch == "cpu" else "unknown")
        yield f"{results.started:%Y/%m/%Y%m%dT%H%M%SZ}-{machine}-{_digest(content)}.json", content


def _row(workload: WorkloadResult) -> _Row:
    run = workload.run
    times: dict[Timer, _Time] = {}
    for timer in Timer:
        if run is not None and (sample := run.sample(timer)) is not None:
            summary, verdict = observe(sample), workload.time_verdict(timer)
            stored_us, status = (verdict.before_us, verdict.status) if verdict else (None, None)
            measured = round(summary.mean_us, 4), summary.spread, summary.replicates
            times[timer] = _Time(*measured, baseline_us=stored_us, status=status, said=_headline(verdict))
    worst = next((each for each in workload.verdicts if each.status is workload.status), None)
    said = _headline(worst) if workload.unavailable is None else _clipped(workload.unavailable)
    kernels = _digest(msgspec.json.encode(run.kernel_names())) if run else None
    return _Row(workload.id, workload.status, said, kernels, times)


def _digest(content: bytes) -> str:
    return sha256(content).hexdigest()[:16]


def _headline(verdict: Verdict | None) -> str:
    """Return the headline and the cause of a verdict that does not pass."""
    if verdict is None or verdict.status is Status.PASS:
        return ""
    cause = next((reason.text for reason in verdict.reasons if reason.label in ("cause", "why")), "")
    return _clipped(f"{verdict.headline}; {cause}" if cause else verdict.headline)


def _clipped(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST_HEADLINE else line[: _LONGEST_HEADLINE - 3] + "..."


# -- reading ----------------------------------------------------------------------------------------------------------


class Night(NamedTuple):
    """One time of a workload.

    Attributes:
        machine: its kind, and what the time is called: times of two kinds answer different questions.
        place: the GPU, or the host of a CPU.
        at: when the run started, in UTC.
        environment: the software and the host, by name.
        said: the headline and cause of a verdict that does not pass.
        baseline_us: what the time was compared with.
    """

    machine: str
    workload: str
    place: str
    at: datetime
    environment: Mapping[str, str]
    commit: str | None
    us: float
    status: Status | None
    said: str
    kernels: str | None
    baseline_us: float | None


def read_nights(
    location: str, *, timer: Timer = Timer.DEVICE, patterns: Sequence[str] = ()
) -> tuple[list[Night], list[str]]:
    """Return the times in a history, in order of machine, workload, place and time; and which files are left out, and why.

    A time whose verdict is INVALID is none. `patterns`: parts of an id, which may have ``*`` and ``?``; none: every workload.

    Raises `StorageError` if the history cannot be read.
    """
    store, base = open_location(location)
    with store_errors("the history cannot be read", location):
        paths = [path for path in store.find(base) if path.endswith(".json")]
        if not paths:
            raise FileNotFoundError(
                "there is no file of a history: kernelgauge history add RESULTS --to HISTORY adds one"
            )
        contents = store.cat(paths, on_error="return")  # a bucket gets all requests at once
    nights: dict[tuple[Any, ...], Night] = {}  # files that have the same run of a workload count once
    not_shown: list[str] = []
    for path, content in sorted(contents.items()):
        try:
            if isinstance(content, Exception):
                raise OSError(str(content)) from content
            file = msgspec.json.decode(content, type=_File)
            nights |= {(*night[:4], file.host): night for night in _nights(file, timer, patterns)}
        except (OSError, ValueError, msgspec.DecodeError) as error:
            not_shown.append(printable(f"{path.removeprefix(f'{base}/')}: {error}"))
    return sorted(nights.values(), key=itemgetter(0, 1, 2, 3)), not_shown


def _nights(file: _File, timer: Timer, patterns: Sequence[str]) -> Iterator[Night]:
    device = file.fingerprint
    if device is None:
        return
    kind = [device.device, device.arch]
    kind += [f"{device.sm_count} SMs"] if device.sm_count is not None else []
    kind += [f"{device.power_limit_watts:g} W"] if device.power_limit_watts is not None else []
    machine = ", ".join([*kind, *(["MIG"] if device.mig else []), timer.label_on(device)])
    place = f"host {file.host}" if device.arch == "cpu" else f"GPU {file.gpu or file.host}"
    software = {name.replace("_", "-"): str(getattr(device, name) or "(none)") for name in SOFTWARE_FIELDS}
    environment = software | {"kernelgauge": file.kernelgauge, "host": file.host}
    for row in file.rows:
        time = row.times.get(timer)
        is_asked = not patterns or any(fnmatchcase(row.workload, f"*{each}*") for each in patterns)
        if time is not None and is_asked and is_duration(time.mean_us) and time.status is not Status.INVALID:
            measured = time.mean_us, time.status, time.said, row.kernels, time.baseline_us
            yield Night(machine, row.workload, place, file.started_at, environment, file.commit, *measured)
