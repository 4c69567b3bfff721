"""Results of many runs as files, and the times of each workload over them.

A history is a folder or a bucket with one file for each run of pytest and GPU, written once and never changed. A file's
name has a digest of its content, so copying several histories into one place merges them. docs/history.md has the schema.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from fnmatch import fnmatchcase
from hashlib import sha256
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from ..errors import KernelgaugeError, ResultsError, StorageError, printable, printable_url
from ..judge.baseline import SOFTWARE_FIELDS
from ..judge.verdict import Status, Verdict
from ..run import Fingerprint, Timer, is_duration, observe
from . import Results, WorkloadResult
from .files import write_atomically

_SCHEMA_VERSION = 2
_NAME = re.compile(r"[0-9]{8}T[0-9]{6}Z-[a-z0-9]{1,40}-([0-9a-f]{16})\.v[12]\.json")  # start, GPU, digest, schema
_FIRST_YEAR = 1970  # an invalid timestamp is year 1, which no file name has
_LONGEST_HEADLINE = 300  # characters


# -- folders and buckets ----------------------------------------------------------------------------------------------


def open_history(location: str) -> tuple[Any, str]:
    """Return the file system and the path of a folder, or of a URL of fsspec. Raises `ResultsError` if it is invalid."""
    import fsspec  # type: ignore[import-untyped]

    with _named_errors(ResultsError, "invalid history location", location):
        if not location or location.startswith("://") or location.endswith("://"):  # fsspec: the current folder
            raise ValueError("no folder, and no URL such as s3://BUCKET/PREFIX")
        store, base = fsspec.core.url_to_fs(location)
        store.invalidate_cache()  # others write at the same time
        return store, base.rstrip("/")


@contextmanager
def _named_errors(kind: type[KernelgaugeError], what: str, location: str) -> Iterator[None]:
    """Raise an error of ours for any error of a store: those of botocore or google.auth are no OSError."""
    try:
        yield
    except KernelgaugeError:
        raise
    except Exception as error:
        raise kind(
            what,
            where=printable_url(location),
            got=printable_url(f"{type(error).__name__}: {error}"),
            expected="a folder or a bucket that results were added to, or may be",
            next_command="kernelgauge history add RESULTS --to HISTORY   (adds what is missing)",
        ) from error


# -- adding -----------------------------------------------------------------------------------------------------------


def add_to_history(results: Results, location: str) -> dict[str, bool]:
    """Add results to a folder or a URL of fsspec: one file for each GPU. Return whether each is new, by its key.

    A key is a path below the history. The same results again add nothing. In a folder, each file is whole at every
    moment. Any number of processes may add at the same time.

    Raises `ResultsError` for results without a workload, `StorageError` if a file cannot be written.
    """
    store, base = open_history(location)
    added: dict[str, bool] = {}
    for key, content in _files(results):
        target = f"{base}/{key}"
        with _named_errors(StorageError, "cannot add to the history", f"{location.rstrip('/')}/{key}"):
            added[key] = not store.exists(target) or store.cat_file(target) != content
            if added[key] and "file" in store.protocol:
                write_atomically(Path(target), content)
            elif added[key]:
                if not store.async_impl:  # async stores have no folders
                    store.makedirs(target.rpartition("/")[0], exist_ok=True)
                store.pipe_file(target, content)
    return added


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
        entry = {
            "schema_version": _SCHEMA_VERSION,
            "started_at": results.started,
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
        digest = sha256(content).hexdigest()[:16]
        yield f"{results.started:%Y/%m/%Y%m%dT%H%M%SZ}-{machine}-{digest}.v{_SCHEMA_VERSION}.json", content


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
    if verdict is None or verdict.status is Status.PASS:
        return ""
    cause = next((reason.text for reason in verdict.reasons if reason.label in ("cause", "why")), "")
    return _clipped(f"{verdict.headline}; {cause}" if cause else verdict.headline)


def _clipped(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST_HEADLINE else line[: _LONGEST_HEADLINE - 3] + "..."


# -- reading ----------------------------------------------------------------------------------------------------------


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


class _File(msgspec.Struct):
    """One run of pytest on one GPU. `started_at` is in UTC. `fingerprint`: None if nothing was measured."""

    started_at: datetime
    kernelgauge: str
    host: str
    gpu: str | None
    commit: str | None
    fingerprint: Fingerprint | None
    rows: _Rows


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

    Raises `ResultsError` if the history cannot be read.
    """
    store, base = open_history(location)
    with _named_errors(ResultsError, "the history cannot be read", location):
        paths = [path for path in store.find(base) if path.endswith(".json")]
        if not paths:
            raise FileNotFoundError("there is no file of a history")
        contents = store.cat(paths, on_error="return")  # a bucket gets all requests at once
    nights: dict[tuple[Any, ...], Night] = {}  # files that have the same run of a workload count once
    not_shown: list[str] = []
    for path in sorted(contents, key=lambda path: path.rpartition(".v")[2]):  # the newer schema counts
        try:
            file = _decoded(path.rpartition("/")[2], contents[path])
            nights |= {(*night[:4], file.host): night for night in _nights(file, timer, patterns)}
        except (OSError, ValueError, msgspec.DecodeError) as error:
            not_shown.append(printable(f"{path.removeprefix(f'{base}/')}: {error}"))
    return sorted(nights.values(), key=itemgetter(0, 1, 2, 3)), not_shown


def _decoded(name: str, content: bytes | Exception) -> _File:
    if isinstance(content, Exception):
        raise OSError(str(content)) from content
    known = _NAME.fullmatch(name)
    if known is None:
        raise ValueError("not a file of a history of schema 1 or 2")
    if not sha256(content).hexdigest().startswith(known[1]):
        raise ValueError("its content changed: its digest differs from the one in its name")
    return msgspec.json.decode(content, type=_File)


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
    times: _Times = getattr(file.rows, timer.value)
    kernels = file.rows.kernels or [None] * len(file.rows.workload)
    columns = (times.mean_us, times.status, times.said, kernels, times.baseline_us)
    for workload, us, status, *others in zip(file.rows.workload, *columns, strict=True):
        is_asked = not patterns or any(fnmatchcase(workload, f"*{each}*") for each in patterns)
        if is_asked and us is not None and is_duration(us) and status is not Status.INVALID:
            yield Night(machine, workload, place, file.started_at, environment, file.commit, us, status, *others)
