"""Results of many runs as files, and the times of each workload over them.

A history is a folder or a bucket with the results of each run, written once and never changed. The name of a file that is
added has a digest of its content, so copying several histories into one place merges them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from fnmatch import fnmatchcase
from hashlib import sha256
from operator import itemgetter
from typing import Any, NamedTuple

import msgspec

from ..errors import ResultsError, printable
from ..judge.baseline import SOFTWARE_FIELDS
from ..judge.verdict import Status, Verdict
from ..run import Run, Timer, observe
from . import Results, WorkloadResult, decode_results, encode_results
from .files import open_location, put_files, store_errors

_FIRST_YEAR = 1970  # an invalid timestamp is year 1


# -- adding -----------------------------------------------------------------------------------------------------------


def add_to_history(results: Results, location: str) -> str:
    """Add results to a folder or a URL of fsspec, as one file. Return its key, the path below the history.

    The same results have the same key. In a folder, each file is whole at every moment. Any number of processes may add
    at the same time.

    Raises `ResultsError` for results without a workload, `StorageError` if the file cannot be written.
    """
    if not results.workloads:
        raise ResultsError("there is nothing to add to a history", got="no workload", expected="a run of the suite")
    if results.started.year < _FIRST_YEAR:
        expected = "when the run started, as ISO 8601: 2026-11-23T02:17:00+00:00"
        raise ResultsError("invalid timestamp", got=printable(results.started_at), expected=expected)
    # Without what explains a night and no trend needs (ops, lines of code, the baseline), which is most of the file.
    workloads: list[WorkloadResult] = []
    for workload in results.workloads:
        if (run := workload.run) is not None:
            kernels = tuple(msgspec.structs.replace(each, inputs=()) for each in run.kernels)
            own = (run.workload, run.fingerprint, kernels, run.counts, run.samples, run.gpu, run.host, run.controls)
            run = Run(*own, conditions=run.conditions, incomplete=run.incomplete)
        workloads.append(msgspec.structs.replace(workload, run=run, baseline=None))
    kept = msgspec.structs.replace(results, workloads=tuple(workloads), tests=())
    content = encode_results(kept, indent=0)
    slug = re.sub(r"[^a-z0-9]", "", (results.gpu or "").lower())[:40]
    machine = slug or ("cpu" if results.fingerprint is not None and results.fingerprint.arch == "cpu" else "unknown")
    key = f"{results.started:%Y/%m/%Y%m%dT%H%M%SZ}-{machine}-{_digest(content)}.json"
    put_files(location, [(key, content)])
    return key


def _digest(content: bytes) -> str:
    return sha256(content).hexdigest()[:16]


# -- reading ----------------------------------------------------------------------------------------------------------


class Night(NamedTuple):
    """One time of a workload.

    Attributes:
        machine: its kind, and what the time is called: times of two kinds answer different questions.
        place: the GPU, or the host of a CPU.
        at: when the run started, in UTC.
        environment: the software and the host, by name.
        verdict: on the time; None: there is none.
        baseline_us: what the time was compared with.
    """

    machine: str
    workload: str
    place: str
    at: datetime
    environment: Mapping[str, str]
    commit: str | None
    us: float
    verdict: Verdict | None
    kernels: str | None
    baseline_us: float | None

    @property
    def status(self) -> Status | None:
        return self.verdict.status if self.verdict is not None else None


def read_nights(
    location: str, *, timer: Timer = Timer.DEVICE, patterns: Sequence[str] = ()
) -> tuple[list[Night], list[str]]:
    """Return the times in a history, in order of machine, workload, place and time; and which files are left out, and why.

    A history is a folder or a URL of fsspec with results of runs, whatever the names of the files. A time whose verdict
    is INVALID is none. `patterns`: parts of an id, which may have ``*`` and ``?``; none: every workload.

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

    def matches(workload: str) -> bool:
        return not patterns or any(fnmatchcase(workload, f"*{each}*") for each in patterns)

    nights: dict[tuple[Any, ...], Night] = {}  # files that have the same run of a workload count once
    not_shown: list[str] = []
    for path, content in sorted(contents.items()):
        try:
            if isinstance(content, Exception):
                raise OSError(str(content)) from content
            results = decode_results(content, where=path)
            if results.started.year < _FIRST_YEAR:
                raise ValueError("invalid timestamp")
            nights |= {(*night[:4], results.host): night for night in _nights(results, timer, matches)}
        except (OSError, ValueError, ResultsError) as error:
            why = error.got if isinstance(error, ResultsError) else error
            not_shown.append(printable(f"{path.removeprefix(f'{base}/')}: {why}"))
    return sorted(nights.values(), key=itemgetter(0, 1, 2, 3)), not_shown


def _nights(results: Results, timer: Timer, matches: Callable[[str], bool]) -> Iterator[Night]:
    for workload in results.workloads:
        run, verdict = workload.run, workload.time_verdict(timer)
        sample = run.sample(timer) if run is not None and matches(workload.id) else None
        if run is None or sample is None or (verdict is not None and verdict.status is Status.INVALID):
            continue
        device = run.fingerprint
        kind = [device.device, device.arch]
        kind += [f"{device.sm_count} SMs"] if device.sm_count is not None else []
        kind += [f"{device.power_limit_watts:g} W"] if device.power_limit_watts is not None else []
        software = {name.replace("_", "-"): str(getattr(device, name) or "(none)") for name in SOFTWARE_FIELDS}
        yield Night(
            machine=", ".join([*kind, *(["MIG"] if device.mig else []), timer.label_on(device)]),
            workload=workload.id,
            place=f"host {results.host}" if device.arch == "cpu" else f"GPU {run.gpu or results.host}",
            at=results.started,
            environment=software | {"kernelgauge": results.kernelgauge, "host": results.host},
            commit=results.commit,
            us=round(observe(sample).mean_us, 4),
            verdict=verdict,
            kernels=_digest(msgspec.json.encode(run.kernel_names())),
            baseline_us=verdict.before_us if verdict is not None else None,
        )
