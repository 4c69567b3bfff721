"""Results of many runs as files, and how the time of each workload changed over them.

A history is a folder or a bucket with one file for each run of pytest and GPU, written once and never changed. A file's
name has a digest of its content, so copying several histories into one place merges them. docs/history.md has the schema.
"""

from __future__ import annotations

import fcntl
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from fnmatch import fnmatchcase
from hashlib import sha256
from importlib import import_module
from itertools import pairwise, zip_longest
from pathlib import Path
from statistics import median
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeAlias

import msgspec
import numpy as np

from .errors import ResultsError, StorageError
from .files import regular_file, write_atomically
from .judge import Verdict, observe
from .judge.fingerprint import compare
from .printable import printable
from .results import Results, WorkloadResult, moment
from .run import Fingerprint, Timer

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Values: TypeAlias = "NDArray[np.float64]"
    Codes: TypeAlias = "NDArray[np.int64]"  # a number for each name

__all__ = [
    "LEAST_NIGHTS",
    "Added",
    "Chart",
    "Context",
    "Night",
    "Segment",
    "Series",
    "Shift",
    "Trends",
    "add_to_history",
    "correct",
    "open_history",
    "read_trends",
    "segment_series",
]

# -- files ------------------------------------------------------------------------------------------------------------

_SCHEMA_VERSION = 2
_READ_VERSIONS = ("1", "2")  # version 1 lacks the names and the times of references, and the interval
_NAME = re.compile(r"([0-9]{8}T[0-9]{6}Z)-[a-z0-9]{1,40}-([0-9a-f]{16})\.v([0-9]{1,9})\.json")  # start, digest, schema
_PASSWORD = re.compile(r"(?<=://)[^/@\s]*:[^/@\s]*(?=@)")
_MOST_BYTES = 64 << 20  # of a file; 100 workloads make 30 kB
_AT_ONCE = 256  # files that are held in memory
_LONGEST_SAID = 300  # characters
_CLOCKS_DIFFER = timedelta(minutes=10)  # between two machines; more is a clock that is wrong


class Added(NamedTuple):
    """Files below the history. `there`: the history had them already, with the same content."""

    written: tuple[str, ...]
    there: tuple[str, ...]


def add_to_history(results: Results, location: str) -> Added:
    """Add results to a folder or a URL of fsspec: one file for each GPU. The same results again add nothing.

    In a folder, each file is whole at every moment, and on the disk once this returns. Any number of processes may add
    at the same time.

    Raises `ResultsError` for results without a workload or a time, `StorageError` if a file cannot be written.
    """
    place = open_history(location)
    keys: dict[bool, list[str]] = {True: [], False: []}
    for key, content in _files(results):
        try:
            keys[place.add(key, content)].append(key)
        except Exception as error:  # each store has errors of its own: botocore's and google.auth's are no OSError
            reason = (error.got if isinstance(error, StorageError) else None) or f"{type(error).__name__}: {error}"
            raise StorageError(
                "cannot add to the history",
                where=_shown(f"{location.rstrip('/')}/{key}"),
                got=_shown(reason),
                expected="a place that can be written",
                next_command="kernelgauge history add RESULTS --to HISTORY   (again: what is there already stays)",
            ) from error
    return Added(tuple(keys[True]), tuple(keys[False]))


def _files(results: Results) -> Iterator[tuple[str, bytes]]:
    """Yield key and content of one file for each GPU and environment. Equal results make equal files."""
    if not results.workloads:
        raise ResultsError("there is nothing to add to a history", got="no workload", expected="a run of the suite")
    started_at = moment(results.started_at)
    if started_at is None:
        raise ResultsError(
            "it is not known when these results were measured",
            where="field started_at",
            got=results.started_at[:100],
            expected="a time in UTC such as 2026-11-20T19:10:12+00:00",
        )
    by_machine: dict[tuple[Fingerprint | None, str | None], list[WorkloadResult]] = {}
    for workload in results.workloads:
        by_machine.setdefault(results.machine_of(workload), []).append(workload)
    for (fingerprint, gpu), workloads in by_machine.items():
        entry = {
            "schema_version": _SCHEMA_VERSION,
            "started_at": started_at,
            "kernelgauge": results.kernelgauge,
            "host": results.host,
            "gpu": gpu,
            "commit": results.commit,
            "exit_status": results.exit_status,
            "fingerprint": fingerprint,
            "rows": _columns([_row(workload) for workload in workloads]),
        }
        content = msgspec.json.encode(entry) + b"\n"
        slug = re.sub(r"[^a-z0-9]", "", (gpu or "").lower())[:40]
        machine = slug or ("cpu" if fingerprint is not None and fingerprint.arch == "cpu" else "unknown")
        stamp, digest = _stamp(started_at), sha256(content).hexdigest()[:16]
        yield f"{stamp[:4]}/{stamp[4:6]}/{stamp}-{machine}-{digest}.v{_SCHEMA_VERSION}.json", content


def _stamp(when: datetime) -> str:
    """Return ``20261120T191012Z`` of a time in UTC. `strftime` does not pad the year 999."""
    return when.isoformat()[:19].replace("-", "").replace(":", "") + "Z"


def _row(workload: WorkloadResult) -> dict[str, Any]:
    run = workload.run
    gemm, copy = (run.controls.get(name) if run else None for name in ("gemm", "copy"))
    structure = workload.verdict("structure")
    worst = next((each for each in workload.verdicts if each.status is workload.status), None)
    return {
        "workload": workload.id,
        "suite": workload.suite,
        "module": workload.module,
        "variant": workload.variant,
        "dtype": workload.dtype,
        "pass": workload.pass_,
        "launches": run.counts.launches if run else None,
        "kernels": _digest(run.kernel_names()) if run else None,
        "configuration": _digest([kernel.identity.without_source for kernel in run.kernels]) if run else None,
        "gemm_us": _rounded(gemm.device_time_us) if gemm else None,
        "gemm_kernel": _digest(gemm.kernel) if gemm else None,
        "copy_us": _rounded(copy.device_time_us) if copy else None,
        "copy_kernel": _digest(copy.kernel) if copy else None,
        "worst": workload.status,
        "structure": structure.status if structure else None,
        "said": _said(worst) if workload.unavailable is None else _clipped(workload.unavailable),
        **{timer.value: _times(workload, timer) for timer in Timer},
    }


def _times(workload: WorkloadResult, timer: Timer) -> dict[str, Any]:
    sample = workload.run.sample(timer) if workload.run else None
    seen = observe(sample) if sample else None
    verdict = workload.verdict(timer.label)
    change = verdict.change if verdict else None
    return {
        "mean_us": _rounded(seen.mean_us) if seen else None,
        "spread": _rounded(seen.spread) if seen else None,
        "replicates": seen.replicates if seen else None,
        "baseline_us": _rounded(verdict.before_us) if verdict else None,
        "low": None if change is None or change.low is None else round(change.low, 6),
        "high": None if change is None or change.high is None else round(change.high, 6),
        "host_us": _rounded(seen.control_us) if seen else None,
        "status": verdict.status if verdict else None,
        "said": _said(verdict),
    }


def _columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Transpose rows of equal keys, and the rows within them."""
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    return {name: _columns(each) if isinstance(each[0], dict) else each for name, each in columns.items()}


def _digest(value: Any) -> str:
    return sha256(msgspec.json.encode(value)).hexdigest()[:8]


def _rounded(value: float | None) -> float | None:
    """Seven digits: more than any timer resolves, in half the bytes."""
    return None if value is None else float(f"{value:.7g}")


def _said(verdict: Verdict | None) -> str:
    if verdict is None or verdict.status.passes:
        return ""
    cause = next((reason.text for reason in verdict.reasons if reason.label == "why"), "")
    return _clipped(f"{verdict.headline}; {cause}" if cause else verdict.headline)


def _clipped(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST_SAID else line[: _LONGEST_SAID - 3] + "..."


# -- folders and buckets ----------------------------------------------------------------------------------------------


def open_history(location: str) -> _Folder | _Bucket:
    """Return the folder or bucket at a local path or a URL of fsspec. Raises `ResultsError` if it can be neither."""
    protocol, separator, path = location.partition("://")
    nowhere = not location or bool(separator and (not protocol or not path))  # else it is the current folder
    if nowhere or "\x00" in location or "::" in location or re.match(r"(?i)https?://", location):
        raise ResultsError(
            "invalid history location",
            got=_shown(location) or "no location",
            expected="a folder or the URL of a store: s3://BUCKET/PREFIX, gs://..., hf://buckets/OWNER/NAME",
        )
    if not separator or protocol in ("file", "local"):
        return _Folder(Path(path if separator else location))
    with _reaching(location):
        return _Bucket(location)


def _shown(text: str) -> str:
    """For a terminal: without a password."""
    return printable(_PASSWORD.sub("***", text))


@contextmanager
def _reaching(location: str) -> Iterator[None]:
    """Raise `ResultsError` for any error of a store: each has errors of its own."""
    try:
        yield
    except Exception as error:
        missing = isinstance(error, FileNotFoundError)
        raise ResultsError(
            "the history cannot be reached",
            where=_shown(location),
            got="there is no such folder" if missing else _shown(f"{type(error).__name__}: {error}"),
            expected="a folder or a bucket that results were added to",
            next_command="kernelgauge history add RESULTS --to HISTORY",
        ) from error


class _Folder:
    """A local folder. Keys are paths below it, with slashes."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def keys(self) -> list[str]:
        walked = os.walk(self.root, onerror=_raise)
        paths = [os.path.join(folder, name) for folder, _, names in walked for name in names]
        return [path.removeprefix(f"{self.root}/") for path in paths]

    def read(self, keys: Sequence[str]) -> Iterator[tuple[str, bytes | Exception]]:
        """Yield key and content of each file, or the reason why it cannot be read."""
        for key in keys:
            try:
                with regular_file(self.root / key) as descriptor:
                    content: bytes | Exception = os.read(descriptor, min(_MOST_BYTES, os.fstat(descriptor).st_size))
            except OSError as error:
                content = error
            yield key, content

    def add(self, key: str, content: bytes) -> bool:
        """Write a file. Return False if it was there."""
        path = self.root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        with _swept(self.root):
            if path.is_file() and path.read_bytes() == content:
                return False
            write_atomically(path, content)
        for folder in (path.parent, path.parent.parent, self.root):  # else a power failure may forget the name
            descriptor = os.open(folder, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        return True


def _raise(error: OSError) -> None:
    raise error


@contextmanager
def _swept(root: Path) -> Iterator[None]:
    """Hold a lock that writers share. A writer that is alone first removes the temporary files of killed writers."""
    descriptor = os.open(root, os.O_RDONLY)
    try:
        with suppress(OSError):  # others are writing, or the file system has no locks
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for left in root.glob("*/*/.*.json.*.tmp"):
                left.unlink(missing_ok=True)
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield
    finally:
        os.close(descriptor)


class _Bucket:
    """A store that fsspec knows. Keys and methods are those of `_Folder`."""

    def __init__(self, location: str) -> None:
        import fsspec  # type: ignore[import-untyped]

        store, base = fsspec.core.url_to_fs(location)
        self.store: Any = store
        self.base = f"{base.rstrip('/')}/"

    def keys(self) -> list[str]:
        self.store.invalidate_cache()  # others write at the same time
        return [str(path).removeprefix(self.base) for path in self.store.find(self.base.rstrip("/"))]

    def read(self, keys: Sequence[str]) -> Iterator[tuple[str, bytes | Exception]]:
        """Make as many requests at once as the store's client does: one by one, a year of them takes minutes."""
        for start in range(0, len(keys), _AT_ONCE):
            some = keys[start : start + _AT_ONCE]
            contents = self.store.cat([self.base + key for key in some], on_error="return")
            yield from ((key, contents.get(self.base + key, FileNotFoundError("it was removed"))) for key in some)

    def add(self, key: str, content: bytes) -> bool:
        target = self.base + key
        self.store.invalidate_cache()
        if self.store.exists(target) and self.store.cat_file(target) == content:
            return False
        if not self.store.async_impl:  # an object store has no folders
            self.store.makedirs(target.rpartition("/")[0], exist_ok=True)
        self.store.pipe_file(target, content)
        return True


# -- trends -----------------------------------------------------------------------------------------------------------


class Environment(NamedTuple):
    """What times depend on beside the code under test."""

    fingerprint: Fingerprint
    host: str
    kernelgauge: str


@dataclass(frozen=True)
class Night:
    """One run of pytest on one GPU. `started_at` is in UTC."""

    started_at: datetime
    commit: str | None
    environment: Environment  # the same object for the same environment


@dataclass(frozen=True)
class Shift:
    """A change point: at `index` a new level starts, or a drift of so many `nights`. Levels are in microseconds."""

    index: int
    before_us: float
    after_us: float
    nights: int = 0  # of a drift; 0: a step

    @property
    def change(self) -> float:
        """As a fraction."""
        return self.after_us / self.before_us - 1

    @property
    def per_night(self) -> float:
        """Change of a drift from one night to the next, as a fraction."""
        return math.expm1(math.log1p(self.change) / (self.nights - 1))


@dataclass(frozen=True)
class Series:
    """Times of one workload on one GPU, in order of time. At least one.

    Attributes:
        gpu: ``GPU 0f1e2d3c``; of a CPU, ``host node-17``.
        corrected_us, corrected_for: the times that change points were looked for in, and why they differ.
        marks: how the environment changed, by the first night after it: ``driver 580.1 -> 580.2``.
    """

    gpu: str
    nights: tuple[Night, ...]
    values_us: tuple[float, ...]
    corrected_us: tuple[float, ...]
    corrected_for: tuple[str, ...]
    shifts: tuple[Shift, ...]
    marks: Mapping[int, tuple[str, ...]]


@dataclass(frozen=True)
class Chart:
    """A workload on one kind of machine: a series for each GPU."""

    workload: str
    machine: str
    series: tuple[Series, ...]

    @property
    def last_us(self) -> float:
        """Median over the GPUs."""
        return median(each.values_us[-1] for each in self.series)

    @property
    def change(self) -> float:
        """From the first to the last value, as a fraction: the median over the GPUs."""
        return median(each.values_us[-1] / each.values_us[0] - 1 for each in self.series)


@dataclass(frozen=True)
class Trends:
    """The charts of a history. `files`: how many were read; `not_shown`: what is left out, and why."""

    timer: Timer
    charts: tuple[Chart, ...]
    files: int
    not_shown: tuple[str, ...]


class _Header(msgspec.Struct):
    started_at: Annotated[datetime, msgspec.Meta(tz=True)]
    kernelgauge: str
    host: str
    gpu: str | None
    commit: str | None
    fingerprint: Fingerprint | None


_HEADER = msgspec.json.Decoder(_Header)
_NUMBERS = ("device_us", "host_us", "gemm_us", "copy_us")
_NAMES = ("gemm_kernel", "copy_kernel", "kernels", "configuration")
_TIMES = "STRUCT(mean_us DOUBLE[], status VARCHAR[], host_us DOUBLE[])"
_ROWS = f"""
CREATE TABLE rows AS SELECT night, series, run, schema_version, unnest(rows.workload) AS workload,
  unnest(rows.$timer.mean_us) AS us, unnest(rows.$timer.status) AS status, unnest(rows.$timer.host_us) AS host_us,
  unnest(rows.device_time.mean_us) AS device_us, unnest(rows.gemm_us) AS gemm_us, unnest(rows.copy_us) AS copy_us,
  {", ".join(f"unnest(rows.{name}) AS {name}" for name in _NAMES)}
FROM read_json($path, format = 'newline_delimited', maximum_object_size = $longest, columns = {{
  night: 'BIGINT', series: 'BIGINT', run: 'BIGINT', schema_version: 'BIGINT', rows: 'STRUCT(workload VARCHAR[],
  device_time {_TIMES}, end_to_end {_TIMES}, host_dispatch {_TIMES}, gemm_us DOUBLE[], copy_us DOUBLE[],
  {", ".join(f"{name} VARCHAR[]" for name in _NAMES)})'}})
"""
# Files that have the same run of a workload count once; if their times differ, none does.
_SERIES = f"""
SELECT dense_rank() OVER (ORDER BY workload, series) AS place, workload, series, night, us,
  min(us) OVER same <> max(us) OVER same AS contradicts,
  {", ".join(f"CASE WHEN {name} BETWEEN 1e-3 AND 1e12 THEN {name} ELSE 'nan'::DOUBLE END AS {name}" for name in _NUMBERS)},
  {", ".join(f"(hash(coalesce({name}, '')) >> 1)::BIGINT AS {name}" for name in _NAMES)}
FROM rows WHERE us BETWEEN 1e-3 AND 1e12 AND workload IS NOT NULL AND status IS DISTINCT FROM 'INVALID'
WINDOW same AS (PARTITION BY series, run, workload)
QUALIFY row_number() OVER (PARTITION BY series, run, workload ORDER BY schema_version DESC, night) = 1
ORDER BY place, night
"""
_INVALID = "SELECT count(*) FROM rows WHERE us IS NOT NULL AND status = 'INVALID'"


def read_trends(
    location: str, *, timer: Timer = Timer.DEVICE, patterns: Sequence[str] = (), since: datetime | None = None
) -> Trends:
    """Return the charts of a history, in order of workload and kind of machine.

    Args:
        patterns: globs, or parts of an id where there is no ``*?[`` in it; none: every workload.
        since: leave out runs before it; in UTC.

    Raises `ResultsError` if there is no history, or duckdb is not installed.
    """
    duckdb = _duckdb()
    nights: list[Night] = []
    environments: dict[Environment, Environment] = {}
    series: dict[tuple[str, str], int] = {}  # kind of machine and GPU
    runs: dict[tuple[Any, ...], int] = {}
    names: set[str] = set()
    not_shown: list[str] = []
    longest = 1 << 20
    with NamedTemporaryFile(prefix="kernelgauge-", suffix=".json") as file, duckdb.connect() as connection:
        for name, header, content in _whole_files(location, since, not_shown):
            names.add(name)  # a file that was copied to several places is one
            if header.fingerprint is None:  # nothing could be measured
                continue
            environment = Environment(header.fingerprint, header.host, header.kernelgauge)
            environment = environments.setdefault(environment, environment)
            is_cpu = header.fingerprint.arch == "cpu"
            machine = _kind(header.fingerprint), f"host {header.host}" if is_cpu else f"GPU {header.gpu or header.host}"
            number = series.setdefault(machine, len(series))
            run = runs.setdefault((header.started_at, header.gpu, header.host), len(runs))
            ids = b'{"night":%d,"series":%d,"run":%d,' % (len(nights), number, run)
            nights.append(Night(header.started_at, header.commit, environment))
            line = ids + content.strip()[1:].replace(b"\n", b" ") + b"\n"
            longest = max(longest, len(line) + 1)
            file.write(line)
        file.flush()
        try:
            connection.execute(_ROWS.replace("$timer", timer.value), {"path": file.name, "longest": longest})
            ((invalid,),) = connection.execute(_INVALID).fetchall()
            columns = connection.execute(_SERIES).fetchnumpy()
        except duckdb.Error as error:
            raise ResultsError(
                "the history cannot be read", where=_shown(location), got=printable(str(error))
            ) from error
    for row in np.flatnonzero(columns["contradicts"]):
        when = nights[columns["night"][row]].started_at.isoformat(timespec="seconds")
        workload = columns["workload"][row]
        not_shown.append(f"{workload}: files differ in its time in the run that started at {when}")
    if invalid:
        not_shown.append(f"{invalid} time{'s' if invalid > 1 else ''} whose verdict is INVALID")
    columns = {name: column[~columns["contradicts"]] for name, column in columns.items()}
    charts = _charts(columns, nights, list(series), timer, patterns)
    return Trends(timer, charts, len(names), tuple(map(printable, not_shown)))


def _whole_files(location: str, since: datetime | None, not_shown: list[str]) -> Iterator[tuple[str, _Header, bytes]]:
    """Yield name, header and content of each file in order of time. Append to `not_shown` which are left out, and why."""
    place = open_history(location)
    with _reaching(location):
        keys = sorted(place.keys())
    earliest = _stamp(since) if since else ""
    latest = _stamp(datetime.now(timezone.utc) + _CLOCKS_DIFFER)
    wanted: list[tuple[str, str]] = []
    for key in keys:
        name = key.rpartition("/")[2]
        parts = _NAME.fullmatch(name)
        if not name or name.startswith("."):  # what stands for a folder in a bucket, and files of a writer
            continue
        if parts is None:
            not_shown.append(f"{key}: not a file of a history")
        elif parts[3] not in _READ_VERSIONS:
            not_shown.append(
                f"{key}: written by another version of kernelgauge (schema {parts[3]}, this one reads 1 and 2)"
            )
        elif parts[1] > latest:
            not_shown.append(f"{key}: it was measured in the future: a clock was wrong, there or here")
        elif parts[1] >= earliest:
            wanted.append((name, key))
    with _reaching(location):
        for key, content in place.read([key for _, key in sorted(wanted)]):
            name = key.rpartition("/")[2]
            try:
                if isinstance(content, Exception):
                    raise ValueError(f"it cannot be read: {content}")
                yield name, _decode_header(name, content), content
            except (ValueError, msgspec.DecodeError, RecursionError) as error:
                not_shown.append(f"{key}: {error}")


def _decode_header(name: str, content: bytes) -> _Header:
    """Raise `ValueError` with the reason if it is not what was written."""
    parts = _NAME.fullmatch(name)
    if parts is None or not sha256(content).hexdigest().startswith(parts[2]):
        raise ValueError("its content is not what was written: its digest differs from the one in its name")
    return _HEADER.decode(content)


def _charts(
    columns: Mapping[str, NDArray[Any]],
    nights: Sequence[Night],
    machines: Sequence[tuple[str, str]],
    timer: Timer,
    patterns: Sequence[str],
) -> tuple[Chart, ...]:
    """`columns`: rows of all series, one after the other; `machines`: kind and GPU of each number of a series."""
    edges = [*np.flatnonzero(np.diff(columns["place"], prepend=-1)), len(columns["place"])]
    parts = [{name: column[start:end] for name, column in columns.items()} for start, end in pairwise(edges)]
    parts = [part for part in parts if _matches(part["workload"][0], patterns)]
    corrected = [
        correct(part["us"], Context(**{name: part[name] for name in (*_NUMBERS, *_NAMES)}), timer) for part in parts
    ]
    charts: dict[tuple[str, str], list[Series]] = {}
    for part, (logs, reasons), segments in zip(
        parts, corrected, segment_series([logs for logs, _ in corrected]), strict=True
    ):
        machine, gpu = machines[part["series"][0]]
        own = tuple(nights[night] for night in part["night"])
        us, corrected_us = tuple(part["us"].tolist()), tuple(np.exp(logs).tolist())
        one = Series(gpu, own, us, corrected_us, reasons, tuple(_shifts(segments)), _marks(own))
        charts.setdefault((part["workload"][0], machine), []).append(one)
    return tuple(
        Chart(workload, machine, tuple(sorted(series, key=lambda each: each.gpu)))
        for (workload, machine), series in sorted(charts.items())
    )


def _matches(workload: str, patterns: Sequence[str]) -> bool:
    return not patterns or any(
        fnmatchcase(workload, each) if set(each) & set("*?[") else each in workload for each in patterns
    )


def _marks(nights: Sequence[Night]) -> dict[int, tuple[str, ...]]:
    """Return how the environment changed, by the index of the first night after it."""
    return {
        index: _changes(before.environment, after.environment)
        for index, (before, after) in enumerate(pairwise(nights), start=1)
        if before.environment is not after.environment
    }


def _changes(before: Environment, after: Environment) -> tuple[str, ...]:
    moved = [str(change).replace("_", "-") for change in compare(before.fingerprint, after.fingerprint).moved]
    for name in ("kernelgauge", "host"):
        old, new = getattr(before, name), getattr(after, name)
        moved += [f"{name} {old or '(not known)'} -> {new or '(not known)'}"] if old != new else []
    return tuple(moved)


def _shifts(segments: Sequence[Segment]) -> Iterator[Shift]:
    for index, segment in enumerate(segments):
        if segment.jumps:
            yield Shift(segment.start, math.exp(segments[index - 1].last), math.exp(segment.first))
        if segment.drifts:
            nights = segment.end - segment.start
            yield Shift(segment.start, math.exp(segment.first), math.exp(segment.last), nights)


def _kind(fingerprint: Fingerprint) -> str:
    """Name the kind of machine. Times of two kinds answer different questions (`judge.fingerprint`)."""
    parts = [fingerprint.device, fingerprint.arch]
    parts += [f"{fingerprint.sm_count} SMs"] if fingerprint.sm_count is not None else []
    parts += [f"{fingerprint.power_limit_watts:g} W"] if fingerprint.power_limit_watts is not None else []
    return ", ".join([*parts, *(["MIG"] if fingerprint.mig else [])])


def _duckdb() -> Any:
    try:
        return import_module("duckdb")
    except ImportError as error:
        raise ResultsError(
            "a history cannot be queried without duckdb",
            got=str(error),
            next_command="pip install 'kernelgauge[history]'",
        ) from error


# -- correction -------------------------------------------------------------------------------------------------------

# Logarithm. On one H200 a reference kernel spreads by 0.1 % between nine processes (benchmarks/data/nine_processes). Two
# nights then differ by 0.14 %; a difference of three times as much is a change of the GPU's speed.
_GPU_MOVED = 0.004
_IDLE = 0.5  # share of a latency: a GPU that computes for less than this waits for the host


@dataclass(frozen=True)
class Context:
    """What else was measured with the times of a series. Each array has a value for each night; NaN: unknown."""

    device_us: Values
    host_us: Values  # of the host reference
    gemm_us: Values  # of the reference kernels
    copy_us: Values
    gemm_kernel: Codes
    copy_kernel: Codes
    kernels: Codes
    configuration: Codes


def correct(times_us: Sequence[float] | Values, context: Context, timer: Timer) -> tuple[Values, tuple[str, ...]]:
    """Return the logarithms of the times, corrected for GPU speed, launch configuration or host speed, and for which."""
    logs = np.log(np.asarray(times_us, dtype=np.float64))
    busy = (context.device_us / np.exp(logs))[np.isfinite(context.device_us)]
    if timer is Timer.HOST or (timer is Timer.END_TO_END and (not len(busy) or np.median(busy) < _IDLE)):
        host = _relative(context.host_us, np.zeros(len(logs), np.int64))
        return logs - host, ("host speed",) if host.any() else ()
    uncorrected = logs
    for reference_us, kernel in ((context.gemm_us, context.gemm_kernel), (context.copy_us, context.copy_kernel)):
        logs = _at_one_speed(logs, _relative(reference_us, kernel), kernel, context.configuration)
    at_one_speed = logs
    logs = _in_one_configuration(logs, context.kernels, context.configuration)
    found = {"launch configuration": logs is not at_one_speed, "GPU speed": at_one_speed is not uncorrected}
    return logs, tuple(name for name, is_corrected in found.items() if is_corrected)


def _relative(reference_us: Values, kernel: Codes) -> Values:
    """Return logarithms of the ratio to the median of the same kernel; 0 where unknown."""
    logs = np.log(reference_us)
    known = np.isfinite(logs)
    for name in np.unique(kernel[known]):
        logs[kernel == name] -= np.median(logs[known & (kernel == name)])
    return np.nan_to_num(logs)


def _at_one_speed(logs: Values, speed: Values, kernel: Codes, configuration: Codes) -> Values:
    """Subtract the reference's speed, at the slope that the series followed it with.

    The slope is the median over all pairs of nights, one to three apart, between which the GPU's speed changed.
    """
    slopes = []
    for nights in range(1, LEAST_NIGHTS + 1):
        same = (kernel[nights:] == kernel[:-nights]) & (configuration[nights:] == configuration[:-nights])
        change, reference = logs[nights:] - logs[:-nights], speed[nights:] - speed[:-nights]
        moved = same & (np.abs(reference) > _GPU_MOVED)
        slopes.extend(change[moved] / reference[moved])
    slope = float(np.clip(np.median(slopes), 0, 1)) if slopes else 0.0
    return logs - slope * speed if slope else logs


def _in_one_configuration(logs: Values, kernels: Codes, configuration: Codes) -> Values:
    """Move each configuration to the level of a more frequent one that it alternates with.

    The two run the same kernels. One that replaces another for good may be a change of the code: it stays as it is.
    """
    names, counts = np.unique(configuration, return_counts=True)
    aligned: list[np.int64] = []
    for name in names[np.argsort(-counts, kind="stable")]:
        for other in aligned:
            nights = np.flatnonzero((configuration == name) | (configuration == other))
            mine = configuration[nights] == name
            switches = np.flatnonzero(mine[1:] != mine[:-1])
            if len(switches) > 1 and len(set(kernels[nights])) == 1:
                changes = np.diff(logs[nights])[switches] * np.where(mine[switches], -1, 1)
                logs = np.where(configuration == name, logs - np.median(changes), logs)
                break
        if (configuration == name).sum() > 1:
            aligned.append(name)
    return logs


# -- change points ----------------------------------------------------------------------------------------------------

# Optimal partitioning (Jackson et al., "An algorithm for optimal partitioning of data on an interval", 2005) of logarithms
# into constant levels and straight lines: a step of 1 % is the same at 3 and at 300 us.
LEAST_NIGHTS = 3  # of one level: one or two bad nights are no new level
_LEAST_DRIFT = 2 * LEAST_NIGHTS  # of one line: as many have a step
# A neighbourhood of five nights, so that one or two outliers are left out and a level of three is kept (Hampel's
# identifier: Davies and Gather, "The identification of multiple outliers", 1993).
_REACH = 2
_OUTLIER = 4.0  # standard deviations
# Of logarithms: how processes on one H200 differ beyond their replicates (docs/measuring.md). Fewer nights than it takes to
# know the noise may agree by chance; no series is steadier than this.
_LEAST_NOISE = 0.0005
# A change must gain this many times the noise's variance for each unit of log(n) (BIC has 2), and the noise of a short
# series, known only roughly, is taken larger by `_SHORT / n`: together at most one series of noise alone in a hundred has
# a false change, whether it has 6 nights or 365 (tests/history/test_changes.py). A slope costs as much as a change.
_PENALTY = 4.0
_SHORT = 15.0


@dataclass(frozen=True)
class Segment:
    """Nights of one level or of one line.

    Attributes:
        start, end: first night, and the one after the last.
        first, last: levels of the first and the last night as logarithms; equal unless the segment drifts.
        jumps: whether it starts with a step. A drift mostly begins and ends without one.
    """

    start: int
    end: int
    first: float
    last: float
    jumps: bool = False

    @property
    def drifts(self) -> bool:
        return self.first != self.last


def segment_series(series: Sequence[Values]) -> list[list[Segment]]:
    """Cut each series, logarithms in order of time, into segments. A series of too few nights is one segment."""
    noises = [_noise(each) for each in series]
    inliers = [_inliers(each, noise) for each, noise in zip(series, noises, strict=True)]
    penalties = [_PENALTY * np.log(max(2, len(each))) * (1 + _SHORT / max(1, len(each))) ** 2 for each in series]
    scaled = [(each[kept] - np.median(each)) / noise for each, kept, noise in zip(series, inliers, noises, strict=True)]
    cuts = _cut(scaled, np.asarray(penalties))
    return [list(_fit_segments(*each)) for each in zip(series, inliers, cuts, noises, strict=True)]


def _noise(values: Values) -> float:
    """Return the standard deviation from night to night. Steps and slow drifts hardly add to differences of neighbours."""
    if len(values) < 2:
        return _LEAST_NOISE
    differences = np.diff(values)
    deviation = np.median(np.abs(differences - np.median(differences)))
    return max(_LEAST_NOISE, float(1.4826 * deviation / np.sqrt(2)))


def _inliers(values: Values, noise: float) -> NDArray[np.intp]:
    """Return the indices of all nights that are near the median of the five around them.

    Outliers are left out and not replaced: the median of some good nights and two bad ones leans to the bad side.
    """
    if len(values) <= 2 * _REACH:
        return np.arange(len(values))
    medians = np.median(np.lib.stride_tricks.sliding_window_view(values, 2 * _REACH + 1), axis=1)
    kept = np.flatnonzero(np.abs(values - np.pad(medians, _REACH, mode="edge")) <= _OUTLIER * noise)
    return kept if len(kept) else np.arange(len(values))


def _cut(series: Sequence[Values], penalties: Values) -> list[list[tuple[int, int, bool]]]:
    """Return the cheapest segments (start, end, whether it is a line) of each series. The series have noise 1."""
    longest = max(map(len, series), default=0)
    padded = np.zeros((longest, len(series)))
    for column, each in enumerate(series):
        padded[: len(each), column] = each
    place = np.arange(longest, dtype=np.float64)[:, None]
    nothing = np.zeros((1, len(series)))
    sums = np.concatenate([nothing, np.cumsum(padded, axis=0)])
    moments = np.concatenate([nothing, np.cumsum(place * padded, axis=0)])
    cost = np.full((longest + 1, len(series)), np.inf)  # less the sum of squares, which is the same for all cuts
    cost[0] = 0.0
    start = np.zeros((longest + 1, len(series)), dtype=np.intp)
    line = np.zeros((longest + 1, len(series)), dtype=bool)
    columns = np.arange(len(series))
    for end in range(LEAST_NIGHTS, longest + 1):
        count = np.arange(end, LEAST_NIGHTS - 1, -1, dtype=np.float64)[:, None]  # nights of each candidate
        total = sums[end] - sums[: len(count)]
        candidates = cost[: len(count)] - total**2 / count
        lines = max(0, len(count) - (_LEAST_DRIFT - LEAST_NIGHTS))  # candidates that are long enough
        long = count[:lines]
        across = moments[end] - moments[:lines] - (end - (long + 1) / 2) * total[:lines]
        gain = np.maximum(across**2 * (12 / (long * (long**2 - 1))) - penalties, 0)
        candidates[:lines] -= gain
        start[end] = chosen = candidates.argmin(axis=0)
        cost[end] = candidates[chosen, columns] + penalties
        if lines:
            line[end] = (chosen < lines) & (gain[np.minimum(chosen, lines - 1), columns] > 0)
    return [_trace_back(len(each), start[:, column], line[:, column]) for column, each in enumerate(series)]


def _trace_back(end: int, start: NDArray[np.intp], line: NDArray[np.bool_]) -> list[tuple[int, int, bool]]:
    found = []
    while end > 0:
        found.append((int(start[end]), end, bool(line[end])))
        end = int(start[end])
    return found[::-1]


def _fit_segments(
    values: Values, inliers: NDArray[np.intp], cuts: Sequence[tuple[int, int, bool]], noise: float
) -> Iterator[Segment]:
    """Yield the segments of the whole series. An outlier between two levels belongs to the nearer one."""
    fits = [(inliers[begin:end], *_fit(values, inliers[begin:end], is_line)) for begin, end, is_line in cuts]
    start, jumps = 0, False
    for (nights, slope, level), following in zip_longest(fits, fits[1:]):
        stop, will_jump = len(values), False
        if following is not None:
            later, next_slope, next_level = following
            stop = int(later[0])
            while stop > nights[-1] + 1 and abs(values[stop - 1] - (next_level + next_slope * (stop - 1))) < abs(
                values[stop - 1] - (level + slope * (stop - 1))
            ):
                stop -= 1
            jump = abs(next_level + next_slope * stop - level - slope * (stop - 1))
            will_jump = not (slope or next_slope) or jump > max(abs(slope), abs(next_slope)) + _OUTLIER * noise
        yield Segment(start, stop, level + slope * start, level + slope * (stop - 1), jumps)
        start, jumps = stop, will_jump


def _fit(values: Values, nights: NDArray[np.intp], is_line: bool) -> tuple[float, float]:
    """Return the slope, and the level at night 0."""
    if not is_line:
        return 0.0, float(np.median(values[nights]))
    slope, level = np.polyfit(nights, values[nights], 1)
    return float(slope), float(level)
