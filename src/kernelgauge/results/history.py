"""Results of many runs as files, and the times of each workload over them.

A history is a folder or a bucket with one file for each run of pytest and GPU, written once and never changed. A file's
name has a digest of its content, so copying several histories into one place merges them. docs/history.md has the schema.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatchcase
from functools import cached_property
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import msgspec

from ..errors import ResultsError, StorageError, printable, printable_url
from ..judge import Status, Verdict, observe
from ..judge.baseline import compare
from ..run import Fingerprint, Timer, is_duration
from . import Results, WorkloadResult, started
from .files import write_atomically

__all__ = ["Chart", "Night", "Series", "Trends", "add_to_history", "open_history", "read_trends"]

# -- files ------------------------------------------------------------------------------------------------------------

_SCHEMA_VERSION = 2
_READ_VERSIONS = ("1", "2")  # version 1 lacks the columns that docs/history.md marks
_NAME = re.compile(r"([0-9]{8}T[0-9]{6}Z)-[a-z0-9]{1,40}-([0-9a-f]{16})\.v([0-9]{1,9})\.json")  # start, digest, schema
_LONGEST_HEADLINE = 300  # characters


def add_to_history(results: Results, location: str) -> dict[str, bool]:
    """Add results to a folder or a URL of fsspec: one file for each GPU. Return whether each is new, by its key.

    A key is a path below the history. The same results again add nothing. In a folder, each file is whole at every
    moment. Any number of processes may add at the same time.

    Raises `ResultsError` for results without a workload, `StorageError` if a file cannot be written.
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
    started_at = started(results)
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
    verdict = workload.time_verdict(timer)
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
    """Raise `ResultsError` for any error of a store: each has errors of its own."""
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
        if self.is_local:  # `find` leaves out folders that it cannot list
            walked = os.walk(self.base, onerror=_raise)
            paths = [os.path.join(folder, name) for folder, _, names in walked for name in names]
        else:
            self.store.invalidate_cache()  # others write at the same time
            paths = self.store.find(self.base.rstrip("/"))
        return [path.removeprefix(self.base) for path in paths]

    def read(self, keys: Sequence[str]) -> dict[str, bytes | Exception]:
        """Return the content of each file, or the reason why it cannot be read. A bucket gets all requests at once."""
        paths = {self.base + key: key for key in keys}
        contents = self.store.cat(list(paths), on_error="return") if paths else {}
        return {key: contents.get(path, FileNotFoundError("it was removed")) for path, key in paths.items()}

    def add(self, key: str, content: bytes) -> bool:
        """Write a file. Return False if the store has it with this content."""
        target = self.base + key
        self.store.invalidate_cache()
        if self.store.exists(target) and self.store.cat_file(target) == content:
            return False
        if self.is_local:
            write_atomically(Path(target), content)
            return True
        if not self.store.async_impl:
            self.store.makedirs(target.rpartition("/")[0], exist_ok=True)
        self.store.pipe_file(target, content)
        return True


def _raise(error: OSError) -> None:
    raise error


# -- trends -----------------------------------------------------------------------------------------------------------


class _Times(msgspec.Struct):
    mean_us: list[float | None]
    status: list[Status | None]
    said: list[str]
    baseline_us: list[float | None]


class _Rows(msgspec.Struct):
    """The columns of a file that a trend is made of."""

    workload: list[str]
    device_time: _Times
    end_to_end: _Times
    host_dispatch: _Times
    kernels: list[str | None] = []  # schema 1 has none


class HistoryFile(msgspec.Struct):
    """One run of pytest on one GPU. `started_at` is in UTC."""

    started_at: datetime
    kernelgauge: str
    host: str
    gpu: str | None
    commit: str | None
    fingerprint: Fingerprint | None
    rows: _Rows

    @property
    def machine(self) -> str:
        """Return the kind of machine: times of two kinds answer different questions (`judge.baseline`)."""
        assert self.fingerprint is not None
        device = self.fingerprint
        parts = [device.device, device.arch]
        parts += [f"{device.sm_count} SMs"] if device.sm_count is not None else []
        parts += [f"{device.power_limit_watts:g} W"] if device.power_limit_watts is not None else []
        return ", ".join([*parts, *(["MIG"] if device.mig else [])])

    @property
    def place(self) -> str:
        """Return the GPU, or the host of a CPU."""
        is_cpu = self.fingerprint is not None and self.fingerprint.arch == "cpu"
        return f"host {self.host}" if is_cpu else f"GPU {self.gpu or self.host}"


class Night(NamedTuple):
    """One time of a workload.

    `said`: the headline and cause of a verdict that does not pass. `baseline_us`: what it was compared with.
    """

    file: HistoryFile
    us: float
    status: Status | None
    said: str
    kernels: str | None
    baseline_us: float | None


@dataclass(frozen=True)
class Series:
    """Times of one workload on one GPU, in order of time. At least one."""

    place: str
    nights: tuple[Night, ...]

    @property
    def since(self) -> Night:
        """Return the first night that had the verdict of the last one without a break."""
        first = self.nights[-1]
        for night in reversed(self.nights):
            if night.status is not first.status:
                break
            first = night
        return first

    @cached_property
    def changes(self) -> list[tuple[int, str]]:
        """Return what changed from one night to the next, with the index of the later one: ``driver 580.1 -> 580.2``."""
        found: list[tuple[int, str]] = []
        for index, (before, after) in enumerate(pairwise(self.nights), start=1):
            old, new = before.file, after.file
            if old.fingerprint != new.fingerprint and old.fingerprint and new.fingerprint:
                moved = compare(old.fingerprint, new.fingerprint).moved
                found += [(index, str(change).replace("_", "-")) for change in moved]
            if old.kernelgauge != new.kernelgauge:
                found.append((index, f"kernelgauge {old.kernelgauge} -> {new.kernelgauge}"))
            if old.host != new.host:
                found.append((index, f"host {old.host or '(unknown)'} -> {new.host or '(unknown)'}"))
            if before.kernels and after.kernels and before.kernels != after.kernels:
                found.append((index, "other kernels"))
        return found


@dataclass(frozen=True)
class Chart:
    """A workload on one kind of machine: a series for each GPU."""

    workload: str
    machine: str
    series: tuple[Series, ...]

    @property
    def first_us(self) -> float:
        """Return the first time: the median over the GPUs."""
        return median(each.nights[0].us for each in self.series)

    @property
    def last_us(self) -> float:
        """Return the last time: the median over the GPUs."""
        return median(each.nights[-1].us for each in self.series)

    @property
    def change(self) -> float:
        """Return the change from the first to the last time, as a fraction: the median over the GPUs."""
        return median(each.nights[-1].us / each.nights[0].us - 1 for each in self.series)


@dataclass(frozen=True)
class Trends:
    """The charts of a history. `files`: how many were read; `not_shown`: what is left out, and why."""

    timer: Timer
    charts: tuple[Chart, ...]
    files: int
    not_shown: tuple[str, ...]


def read_trends(
    location: str, *, timer: Timer = Timer.DEVICE, patterns: Sequence[str] = (), since: datetime | None = None
) -> Trends:
    """Return the charts of a history, in order of workload and kind of machine.

    Args:
        patterns: globs, or parts of an id where there is no ``*?[`` in it; none: every workload.
        since: leave out runs before it; in UTC.

    Raises `ResultsError` if the history cannot be read.
    """
    not_shown: list[str] = []
    files = list(_read_files(location, since, not_shown))
    invalid = 0
    # By workload, kind of machine and GPU, then by run: files that have the same run of a workload count once.
    found: dict[tuple[str, str, str], dict[tuple[datetime, str], Night]] = {}
    for file in files:
        if file.fingerprint is None:
            continue
        machine, place, run = file.machine, file.place, (file.started_at, file.host)
        times: _Times = getattr(file.rows, timer.value)
        kernels = file.rows.kernels or [None] * len(file.rows.workload)
        for workload, us, status, said, names, baseline_us in zip(
            file.rows.workload, times.mean_us, times.status, times.said, kernels, times.baseline_us, strict=True
        ):
            if us is None or not is_duration(us) or not _matches(workload, patterns):
                continue
            if status is Status.INVALID:
                invalid += 1
                continue
            found.setdefault((workload, machine, place), {})[run] = Night(file, us, status, said, names, baseline_us)
    if invalid:
        not_shown.append(f"{invalid} time{'s' if invalid > 1 else ''} whose verdict is INVALID")
    charts: dict[tuple[str, str], list[Series]] = {}
    for (workload, machine, place), runs in sorted(found.items()):
        nights = tuple(night for _, night in sorted(runs.items()))
        charts.setdefault((workload, machine), []).append(Series(place, nights))
    return Trends(
        timer,
        tuple(Chart(workload, machine, tuple(series)) for (workload, machine), series in charts.items()),
        len(files),
        tuple(map(printable, not_shown)),
    )


def _read_files(location: str, since: datetime | None, not_shown: list[str]) -> Iterator[HistoryFile]:
    """Yield each whole file once, older schemas first. Append the reasons why others are left out to `not_shown`."""
    place = open_history(location)
    wanted: dict[str, tuple[str, str]] = {}  # key and digest by name: a file that was copied to several places is one
    with _named_errors(location):
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
                wanted[name] = key, parts[2]
        contents = place.read([key for key, _ in wanted.values()])
    decoder = msgspec.json.Decoder(HistoryFile)
    for key, digest in sorted(wanted.values(), key=lambda each: each[0].rpartition(".v")[2]):
        content = contents[key]
        if isinstance(content, Exception):
            not_shown.append(f"{key}: it cannot be read: {content}")
        elif not sha256(content).hexdigest().startswith(digest):
            not_shown.append(f"{key}: its content changed: its digest differs from the one in its name")
        else:
            try:
                yield decoder.decode(content)
            except msgspec.DecodeError as error:
                not_shown.append(f"{key}: it cannot be read: {error}")


def _matches(workload: str, patterns: Sequence[str]) -> bool:
    return not patterns or any(
        fnmatchcase(workload, each) if set(each) & set("*?[") else each in workload for each in patterns
    )
