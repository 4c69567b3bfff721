"""Results of many runs as files, and how the time of each workload changed over them.

A history is a folder or a bucket with one file for each run of pytest and GPU, written once and never changed. A file's
name has a digest of its content, so copying several histories into one place merges them. docs/history.md has the schema.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatchcase
from hashlib import sha256
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from statistics import median
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import msgspec
import numpy as np

from ..errors import ResultsError, StorageError, printable, printable_url
from ..files import read_file, write_atomically
from ..judge import Verdict, observe
from ..judge.fingerprint import compare
from ..run import Fingerprint, Timer
from . import Results, WorkloadResult, moment

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Values: TypeAlias = "NDArray[np.float64]"
    Codes: TypeAlias = "NDArray[np.int64]"  # a number for each name

__all__ = [
    "LEAST_NIGHTS",
    "Chart",
    "Night",
    "Series",
    "Shift",
    "Trends",
    "add_to_history",
    "correct",
    "find_shifts",
    "open_history",
    "read_trends",
]

# -- files ------------------------------------------------------------------------------------------------------------

_SCHEMA_VERSION = 2
_READ_VERSIONS = ("1", "2")  # version 1 lacks the columns that docs/history.md marks
_NAME = re.compile(r"([0-9]{8}T[0-9]{6}Z)-[a-z0-9]{1,40}-([0-9a-f]{16})\.v([0-9]{1,9})\.json")  # start, digest, schema
_LONGEST_HEADLINE = 300  # characters


def add_to_history(results: Results, location: str) -> dict[str, bool]:
    """Add results to a folder or a URL of fsspec: one file for each GPU. Return whether each is new, by its key.

    A key is a path below the history. The same results again add nothing. In a folder, each file is whole at every
    moment. Any number of processes may add at the same time.

    Raises `ResultsError` for results without a workload or a time, `StorageError` if a file cannot be written.
    """
    store = open_history(location)
    added: dict[str, bool] = {}
    for key, content in _files(results):
        try:
            added[key] = store.add(key, content)
        except Exception as error:  # the errors of botocore or google.auth are no OSError
            reason = (error.got if isinstance(error, StorageError) else None) or f"{type(error).__name__}: {error}"
            raise StorageError(
                "cannot add to the history",
                where=printable_url(f"{location.rstrip('/')}/{key}"),
                got=printable_url(reason),
                expected="a place that can be written",
                next_command="kernelgauge history add RESULTS --to HISTORY   (run it again: it adds what is missing)",
            ) from error
    return added


def _files(results: Results) -> Iterator[tuple[str, bytes]]:
    """Yield key and content of one file for each GPU and environment. Equal results make equal files."""
    if not results.workloads:
        raise ResultsError("there is nothing to add to a history", got="no workload", expected="a run of the suite")
    started_at = moment(results.started_at)
    if started_at is None:
        raise ResultsError(
            "the results have no valid start time",
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
    """Return ``20261120T191012Z`` of a time in UTC."""
    return f"{when:%Y%m%dT%H%M%SZ}"


def _row(workload: WorkloadResult) -> dict[str, Any]:
    run = workload.run
    gemm, copy = (run.controls.get(name) if run else None for name in ("gemm", "copy"))
    structure = workload.verdict("structure")
    worst = next((each for each in workload.verdicts if each.status is workload.status), None)
    return {
        "workload": workload.id,
        **{name: getattr(workload, name) for name in ("suite", "module", "variant", "dtype")},
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
        "said": _headline(worst) if workload.unavailable is None else _clipped(workload.unavailable),
        **{timer.value: _times(workload, timer) for timer in Timer},
    }


def _times(workload: WorkloadResult, timer: Timer) -> dict[str, Any]:
    sample = workload.run.sample(timer) if workload.run else None
    summary = observe(sample) if sample else None
    verdict = workload.verdict(timer.label)
    change = verdict.change if verdict else None
    return {
        "mean_us": _rounded(summary.mean_us) if summary else None,
        "spread": _rounded(summary.spread) if summary else None,
        "replicates": summary.replicates if summary else None,
        "baseline_us": _rounded(verdict.before_us) if verdict else None,
        "low": None if change is None or change.low is None else round(change.low, 6),
        "high": None if change is None or change.high is None else round(change.high, 6),
        "host_us": _rounded(summary.control_us) if summary else None,
        "status": verdict.status if verdict else None,
        "said": _headline(verdict),
    }


def _columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Transpose rows of equal keys, and the rows within them."""
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    return {name: _columns(each) if isinstance(each[0], dict) else each for name, each in columns.items()}


def _digest(value: Any) -> str:
    return sha256(msgspec.json.encode(value)).hexdigest()[:8]


def _rounded(value: float | None) -> float | None:
    """Round to seven digits: more than any timer resolves, in half the bytes."""
    return None if value is None else float(f"{value:.7g}")


def _headline(verdict: Verdict | None) -> str:
    """Return the headline and the cause of a verdict that does not pass."""
    if verdict is None or verdict.status.passes:
        return ""
    cause = next((reason.text for reason in verdict.reasons if reason.label in ("cause", "why")), "")
    return _clipped(f"{verdict.headline}; {cause}" if cause else verdict.headline)


def _clipped(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST_HEADLINE else line[: _LONGEST_HEADLINE - 3] + "..."


# -- folders and buckets ----------------------------------------------------------------------------------------------


def open_history(location: str) -> _Store:
    """Return the folder or bucket at a local path or a URL of fsspec. Raises `ResultsError` if the location is invalid."""
    protocol, separator, path = location.partition("://")
    is_empty = not location or bool(separator and (not protocol or not path))  # fsspec would take the current folder
    if is_empty or "\x00" in location or "::" in location or re.match(r"(?i)https?://", location):
        raise ResultsError(
            "invalid history location",
            got=printable_url(location) or "no location",
            expected="a folder or the URL of a store: s3://BUCKET/PREFIX, gs://..., hf://buckets/OWNER/NAME",
        )
    with _named_errors(location):
        return _Store(location)


@contextmanager
def _named_errors(location: str) -> Iterator[None]:
    """Raise `ResultsError` for any error of a store or of DuckDB: each has errors of its own."""
    try:
        yield
    except Exception as error:
        is_missing = isinstance(error, FileNotFoundError)
        raise ResultsError(
            "the history cannot be read",
            where=printable_url(location),
            got="there is no such folder" if is_missing else printable_url(f"{type(error).__name__}: {error}"),
            expected="a folder or a bucket that results were added to",
            next_command="kernelgauge history add RESULTS --to HISTORY",
        ) from error


class _Store:
    """A folder or a bucket. Keys are paths below it, with slashes."""

    def __init__(self, location: str) -> None:
        import fsspec  # type: ignore[import-untyped]

        store, base = fsspec.core.url_to_fs(location)
        self.store: Any = store
        self.base = f"{base.rstrip('/')}/"
        self.is_local = "file" in store.protocol

    def keys(self) -> list[str]:
        if self.is_local:  # `find` omits folders that it cannot list
            walked = os.walk(self.base, onerror=_raise)
            paths = [os.path.join(folder, name) for folder, _, names in walked for name in names]
        else:
            self.store.invalidate_cache()  # others write at the same time
            paths = self.store.find(self.base.rstrip("/"))
        return [path.removeprefix(self.base) for path in paths]

    def read(self, keys: Sequence[str]) -> Iterator[tuple[str, bytes | Exception]]:
        """Yield key and content of each file, or the reason why it cannot be read."""
        if self.is_local:
            yield from ((key, _content(Path(self.base, key))) for key in keys)
        elif keys:  # all at once, as many requests as the client makes: one by one, a year takes minutes
            contents = self.store.cat([self.base + key for key in keys], on_error="return")
            yield from ((key, contents.get(self.base + key, FileNotFoundError("it was removed"))) for key in keys)

    def add(self, key: str, content: bytes) -> bool:
        """Write a file. Return False if the store has it with this content."""
        target = self.base + key
        self.store.invalidate_cache()
        if self.store.exists(target) and self.store.cat_file(target) == content:
            return False
        if self.is_local:
            write_atomically(Path(target), content)
            return True
        if not self.store.async_impl:  # an object store has no folders
            self.store.makedirs(target.rpartition("/")[0], exist_ok=True)
        self.store.pipe_file(target, content)
        return True


def _raise(error: OSError) -> None:
    raise error


def _content(path: Path) -> bytes | Exception:
    try:
        return read_file(path)
    except OSError as error:
        return error


# -- trends -----------------------------------------------------------------------------------------------------------


class Night(NamedTuple):
    """One run of pytest on one GPU. `started_at` is in UTC, without a time zone; `gpu` names the host of a CPU."""

    started_at: datetime
    commit: str | None
    machine: str
    gpu: str
    fingerprint: str  # JSON
    kernelgauge: str
    host: str


@dataclass(frozen=True)
class Shift:
    """A change point: at `index` a new level starts, or a drift of so many `nights`. Levels are in microseconds."""

    index: int
    before_us: float
    after_us: float
    nights: int = 0  # of a drift; 0: a step

    @property
    def change(self) -> float:
        """Return the change as a fraction."""
        return self.after_us / self.before_us - 1

    @property
    def per_night(self) -> float:
        """Return the change of a drift from one night to the next, as a fraction."""
        return math.expm1(math.log1p(self.change) / (self.nights - 1))


@dataclass(frozen=True)
class Series:
    """Times of one workload on one GPU, in order of time. At least one.

    Attributes:
        corrected_for: the corrections of the times in which change points were searched.
        marks: how the environment changed, by the first night after it: ``driver 580.1 -> 580.2``.
    """

    gpu: str
    nights: tuple[Night, ...]
    values_us: tuple[float, ...]
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
        """Return the last time: the median over the GPUs."""
        return median(each.values_us[-1] for each in self.series)

    @property
    def change(self) -> float:
        """Return the change from the first to the last value, as a fraction: the median over the GPUs."""
        return median(each.values_us[-1] / each.values_us[0] - 1 for each in self.series)


@dataclass(frozen=True)
class Trends:
    """The charts of a history. `files`: how many were read; `not_shown`: what is left out, and why."""

    timer: Timer
    charts: tuple[Chart, ...]
    files: int
    not_shown: tuple[str, ...]


_TIMES = "STRUCT(mean_us DOUBLE[], status VARCHAR[], host_us DOUBLE[])"
_NUMBERS = ("device_us", "host_us", "gemm_us")
_NAMES = ("gemm_kernel", "kernels", "configuration")
# Times of two kinds of machine answer different questions (`judge.fingerprint`), so `machine` names the kind.
_FILES = f"""
CREATE TABLE files AS SELECT row_number() OVER () AS night, *,
  concat_ws(', ', fingerprint->>'device', fingerprint->>'arch', (fingerprint->>'sm_count') || ' SMs',
    printf('%g W', (fingerprint->>'power_limit_watts')::DOUBLE),
    CASE WHEN (fingerprint->>'mig')::BOOLEAN THEN 'MIG' END) AS machine,
  CASE WHEN fingerprint->>'arch' = 'cpu' THEN 'host ' || host ELSE 'GPU ' || coalesce(gpu, host) END AS series,
FROM read_json($path, format = 'newline_delimited', maximum_object_size = $longest, columns = {{
  schema_version: 'BIGINT', started_at: 'TIMESTAMP', commit: 'VARCHAR', fingerprint: 'JSON', kernelgauge: 'VARCHAR',
  host: 'VARCHAR', gpu: 'VARCHAR', rows: 'STRUCT(workload VARCHAR[], device_time {_TIMES}, end_to_end {_TIMES},
  host_dispatch {_TIMES}, gemm_us DOUBLE[], {", ".join(f"{name} VARCHAR[]" for name in _NAMES)})'}})
WHERE fingerprint IS NOT NULL
"""
_NIGHTS = "SELECT started_at, commit, machine, series, fingerprint, kernelgauge, host FROM files ORDER BY night"
_ROWS = f"""
CREATE TABLE rows AS SELECT night - 1 AS night, machine, series, started_at, host, schema_version,
  unnest(rows.workload) AS workload, unnest(rows.$timer.mean_us) AS us, unnest(rows.$timer.status) AS status,
  unnest(rows.$timer.host_us) AS host_us, unnest(rows.device_time.mean_us) AS device_us, unnest(rows.gemm_us) AS gemm_us,
  {", ".join(f"unnest(rows.{name}) AS {name}" for name in _NAMES)}
FROM files
"""
# Files that have the same run of a workload count once; if their times differ, none does.
_SERIES = f"""
SELECT dense_rank() OVER (ORDER BY workload, machine, series) AS place, workload, night, us,
  min(us) OVER same <> max(us) OVER same AS contradicts,
  {", ".join(f"CASE WHEN {name} BETWEEN 1e-3 AND 1e12 THEN {name} ELSE 'nan'::DOUBLE END AS {name}" for name in _NUMBERS)},
  {", ".join(f"(hash(coalesce({name}, '')) >> 1)::BIGINT AS {name}" for name in _NAMES)}
FROM rows WHERE us BETWEEN 1e-3 AND 1e12 AND workload IS NOT NULL AND status IS DISTINCT FROM 'INVALID'
WINDOW same AS (PARTITION BY machine, series, started_at, host, workload)
QUALIFY row_number() OVER (PARTITION BY machine, series, started_at, host, workload ORDER BY schema_version DESC, night) = 1
ORDER BY place, started_at
"""
_INVALID = "SELECT count(*) FROM rows WHERE us IS NOT NULL AND status = 'INVALID'"


def read_trends(
    location: str, *, timer: Timer = Timer.DEVICE, patterns: Sequence[str] = (), since: datetime | None = None
) -> Trends:
    """Return the charts of a history, in order of workload and kind of machine.

    Args:
        patterns: globs, or parts of an id where there is no ``*?[`` in it; none: every workload.
        since: leave out runs before it; in UTC.

    Raises `ResultsError` if the history cannot be read, or duckdb is not installed.
    """
    names: set[str] = set()
    not_shown: list[str] = []
    longest = 1 << 20
    with NamedTemporaryFile(prefix="kernelgauge-", suffix=".json") as file, _connect() as connection:
        for name, content in _read_files(location, since, not_shown):
            names.add(name)  # a file that was copied to several places is one
            line = content.strip().replace(b"\n", b" ") + b"\n"
            longest = max(longest, len(line) + 1)
            file.write(line)
        file.flush()
        with _named_errors(location):
            connection.execute(_FILES, {"path": file.name, "longest": longest})
            connection.execute(_ROWS.replace("$timer", timer.value))
            nights = [Night(*row) for row in connection.execute(_NIGHTS).fetchall()]
            ((invalid,),) = connection.execute(_INVALID).fetchall()
            rows = connection.execute(_SERIES).fetchnumpy()
            contradicts = rows.pop("contradicts")
            for row in np.flatnonzero(contradicts):
                start = nights[rows["night"][row]].started_at.isoformat(timespec="seconds")
                not_shown.append(
                    f"{rows['workload'][row]}: files differ in its time in the run that started at {start}"
                )
            charts = _charts({name: column[~contradicts] for name, column in rows.items()}, nights, timer, patterns)
    if invalid:
        not_shown.append(f"{invalid} time{'s' if invalid > 1 else ''} whose verdict is INVALID")
    return Trends(timer, charts, len(names), tuple(map(printable, not_shown)))


def _connect() -> Any:
    try:
        return import_module("duckdb").connect()
    except ImportError as error:
        raise ResultsError(
            "a history cannot be queried without duckdb",
            got=str(error),
            next_command="pip install 'kernelgauge[history]'",
        ) from error


def _read_files(location: str, since: datetime | None, not_shown: list[str]) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of each whole file. Append the reasons why others are left out to `not_shown`."""
    place = open_history(location)
    with _named_errors(location):
        wanted: dict[str, str] = {}  # digests by key
        for key in sorted(place.keys()):
            name = key.rpartition("/")[2]
            parts = _NAME.fullmatch(name)
            if not name or name.startswith("."):  # what stands for a folder in a bucket, and files of a writer
                continue
            if parts is None:
                not_shown.append(f"{key}: not a file of a history")
            elif parts[3] not in _READ_VERSIONS:
                not_shown.append(f"{key}: has schema {parts[3]}; this version of kernelgauge reads 1 and 2")
            elif since is None or parts[1] >= _stamp(since):
                wanted[key] = parts[2]
        for key, content in place.read(list(wanted)):
            if isinstance(content, Exception):
                not_shown.append(f"{key}: it cannot be read: {content}")
            elif not sha256(content).hexdigest().startswith(wanted[key]):
                not_shown.append(f"{key}: its content changed: its digest differs from the one in its name")
            else:
                yield key.rpartition("/")[2], content


def _charts(
    rows: Mapping[str, NDArray[Any]], nights: Sequence[Night], timer: Timer, patterns: Sequence[str]
) -> tuple[Chart, ...]:
    """Return the charts of rows that are in order of series and time."""
    edges = [*np.flatnonzero(np.diff(rows["place"], prepend=-1)), len(rows["place"])]
    parts = [{name: column[start:end] for name, column in rows.items()} for start, end in pairwise(edges)]
    parts = [part for part in parts if _matches(part["workload"][0], patterns)]
    corrected = [correct(part, timer) for part in parts]
    shifts = find_shifts([logs for logs, _ in corrected])
    charts: dict[tuple[str, str], list[Series]] = {}
    for part, (_, reasons), found in zip(parts, corrected, shifts, strict=True):
        own = tuple(nights[night] for night in part["night"])
        series = Series(own[0].gpu, own, tuple(part["us"].tolist()), reasons, tuple(found), _marks(own))
        charts.setdefault((part["workload"][0], own[0].machine), []).append(series)
    return tuple(Chart(workload, machine, tuple(series)) for (workload, machine), series in charts.items())


def _matches(workload: str, patterns: Sequence[str]) -> bool:
    return not patterns or any(
        fnmatchcase(workload, each) if set(each) & set("*?[") else each in workload for each in patterns
    )


def _marks(nights: Sequence[Night]) -> dict[int, tuple[str, ...]]:
    """Return how the environment changed, by the index of the first night after it."""
    marks = {}
    for index, (before, after) in enumerate(pairwise(nights), start=1):
        if before[4:] != after[4:]:
            prints = [msgspec.json.decode(each.fingerprint, type=Fingerprint) for each in (before, after)]
            changes = [str(change).replace("_", "-") for change in compare(*prints).moved]
            for name, old, new in zip(Night._fields[5:], before[5:], after[5:], strict=True):
                changes += [f"{name} {old or '(unknown)'} -> {new or '(unknown)'}"] if old != new else []
            marks[index] = tuple(changes)
    return marks


# -- correction -------------------------------------------------------------------------------------------------------

# Logarithm. On one H200 a reference kernel spreads by 0.1 % between nine processes (benchmarks/data/nine_processes). Two
# nights then differ by 0.14 %; a difference of three times as much is a change of the GPU's speed.
_GPU_MOVED = 0.004
_IDLE = 0.5  # share of a latency: a GPU that computes for less than this waits for the host


def correct(series: Mapping[str, NDArray[Any]], timer: Timer) -> tuple[Values, tuple[str, ...]]:
    """Return the logarithms of the times `us`, and what they were corrected for: GPU speed, launch configuration, host speed.

    `series` has an array with a value for each night: times of the workload (`us`, `device_us`), of the host reference
    (`host_us`) and of the reference GEMM (`gemm_us`), NaN where unknown; and a code for each `gemm_kernel`, for the names
    of the `kernels` and for their `configuration`.
    """
    logs = np.log(series["us"])
    busy = (series["device_us"] / series["us"])[np.isfinite(series["device_us"])]
    if timer is Timer.HOST or (timer is Timer.END_TO_END and (not len(busy) or np.median(busy) < _IDLE)):
        host = _relative(series["host_us"], np.zeros(len(logs), np.int64))
        return logs - host, ("host speed",) if host.any() else ()
    speed = _relative(series["gemm_us"], series["gemm_kernel"])
    at_one_speed = _at_one_speed(logs, speed, series["configuration"])
    corrected = _in_one_configuration(at_one_speed, series["kernels"], series["configuration"])
    reasons = ["launch configuration"] if corrected is not at_one_speed else []
    reasons += ["GPU speed"] if at_one_speed is not logs else []
    return corrected, tuple(reasons)


def _relative(reference_us: Values, kernel: Codes) -> Values:
    """Return logarithms of the ratio to the median of the same kernel; 0 where unknown."""
    logs = np.log(reference_us)
    known = np.isfinite(logs)
    for name in np.unique(kernel[known]):
        logs[kernel == name] -= np.median(logs[known & (kernel == name)])
    return np.nan_to_num(logs)


def _at_one_speed(logs: Values, speed: Values, configuration: Codes) -> Values:
    """Subtract the speed of the reference GEMM, at the slope that the series followed it with.

    The slope is the median over all pairs of nights, one to three apart, between which the GPU's speed changed and the
    configuration did not. Pairs of neighbours alone leave ten times as many false change points (benchmarks/changepoints.py).
    """
    slopes: list[float] = []
    for nights in range(1, LEAST_NIGHTS + 1):
        change, reference = logs[nights:] - logs[:-nights], speed[nights:] - speed[:-nights]
        moved = (configuration[nights:] == configuration[:-nights]) & (np.abs(reference) > _GPU_MOVED)
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
# into constant levels and straight lines: a step of 1 % is the same at 3 and at 300 us. Without lines, a drift of 40 nights
# is reported as nine steps instead of one drift (benchmarks/changepoints.py).
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


def find_shifts(series: Sequence[Values]) -> list[list[Shift]]:
    """Return the change points and drifts of each series. The series are logarithms of times, in order of time."""
    noises = [_noise(each) for each in series]
    inliers = [_inliers(each, noise) for each, noise in zip(series, noises, strict=True)]
    penalties = [_PENALTY * np.log(max(2, len(each))) * (1 + _SHORT / max(1, len(each))) ** 2 for each in series]
    scaled = [(each[kept] - np.median(each)) / noise for each, kept, noise in zip(series, inliers, noises, strict=True)]
    segments = _cut(scaled, np.asarray(penalties))
    return [list(_shifts(*each)) for each in zip(series, inliers, segments, noises, strict=True)]


def _noise(values: Values) -> float:
    """Return the standard deviation from night to night. Steps and slow drifts hardly add to differences of neighbours."""
    if len(values) < 2:
        return _LEAST_NOISE
    differences = np.diff(values)
    deviation = np.median(np.abs(differences - np.median(differences)))
    return max(_LEAST_NOISE, float(1.4826 * deviation / np.sqrt(2)))


def _inliers(values: Values, noise: float) -> NDArray[np.intp]:
    """Return the indices of all nights that are near the median of the five around them.

    Outliers are left out and not replaced: with three bad nights in five, the median is bad too.
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
    is_line = np.zeros((longest + 1, len(series)), dtype=bool)
    columns = np.arange(len(series))
    for end in range(LEAST_NIGHTS, longest + 1):
        count = np.arange(end, LEAST_NIGHTS - 1, -1, dtype=np.float64)[:, None]  # nights of each candidate
        total = sums[end] - sums[: len(count)]
        across = moments[end] - moments[: len(count)] - (end - (count + 1) / 2) * total
        gain = across**2 * (12 / (count * (count**2 - 1))) - penalties  # of a line instead of a level
        gain = np.where(count >= _LEAST_DRIFT, np.maximum(gain, 0), 0)
        candidates = cost[: len(count)] - total**2 / count - gain
        start[end] = chosen = candidates.argmin(axis=0)
        cost[end] = candidates[chosen, columns] + penalties
        is_line[end] = gain[chosen, columns] > 0
    segments: list[list[tuple[int, int, bool]]] = []
    for column, each in enumerate(series):
        own, end = [], len(each)
        while end > 0:
            own.append((int(start[end, column]), end, bool(is_line[end, column])))
            end = own[-1][0]
        segments.append(own[::-1])
    return segments


def _shifts(
    values: Values, inliers: NDArray[np.intp], segments: Sequence[tuple[int, int, bool]], noise: float
) -> Iterator[Shift]:
    """Yield the steps and drifts of one series. A drift mostly begins and ends without a step."""
    previous = before = before_slope = 0.0  # night, level and slope at the end of the segment before
    for start, end, is_line in segments:
        nights = inliers[start:end]
        slope, level = np.polyfit(nights, values[nights], 1) if is_line else (0.0, np.median(values[nights]))
        # The first and the last night of a drift look like outliers.
        index = int(nights[0]) if start else 0
        stop = int(nights[-1]) if end < len(inliers) else len(values) - 1
        while start and index - 1 > previous:  # an outlier between two levels belongs to the nearer one
            outlier = values[index - 1]
            if abs(outlier - level - slope * (index - 1)) >= abs(outlier - before):
                break
            index -= 1
        first, last = level + slope * index, level + slope * stop
        steepest = max(abs(slope), abs(before_slope))
        if start and (not steepest or abs(first - before) > steepest * (index - previous) + _OUTLIER * noise):
            yield Shift(index, math.exp(before), math.exp(first))
        if is_line:
            yield Shift(index, math.exp(first), math.exp(last), stop - index + 1)
        previous, before, before_slope = stop, last, slope
