"""The times of each workload over the results of many runs, which lie in a folder or a bucket."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from fnmatch import fnmatchcase
from hashlib import sha256
from operator import itemgetter
from typing import Any, NamedTuple

import msgspec

from ..errors import ResultsError, printable
from ..judge import Status, Verdict
from ..judge.baseline import SOFTWARE_FIELDS, is_host_only
from ..judge.timing import expected_variance, prior_for
from ..run import ProcessTime, Timer, observe
from . import Results, decode_results
from .files import open_location, store_errors

_FIRST_YEAR = 1970  # an invalid timestamp is year 1


class Night(NamedTuple):
    """One time of a workload.

    Attributes:
        machine: its kind, and what the time is called: times of two kinds answer different questions.
        place: the GPU, or the host of a CPU.
        at: when the run started, in UTC.
        environment: the software and the host, by name.
        verdict: on the time; None: there is none.
        baseline_us: what the time was compared with.
        logarithm: of the time; of its ratio to the host reference where the host alone fills it.
        noise: the standard deviation of the logarithm that the rule expects between processes.
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
    logarithm: float
    noise: float

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
                "there is no results.json of a run: copy one of each night there, under its own name"
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
            nights |= {
                (*night[:4], results.host): night for night in nights_of(results, timer) if matches(night.workload)
            }
        except (OSError, ValueError, ResultsError) as error:
            why = error.got if isinstance(error, ResultsError) else error
            not_shown.append(printable(f"{path.removeprefix(f'{base}/')}: {why}"))
    return sorted(nights.values(), key=itemgetter(0, 1, 2, 3)), not_shown


def nights_of(results: Results, timer: Timer = Timer.DEVICE) -> Iterator[Night]:
    """Yield the times of a run."""
    for workload in results.workloads:
        run, verdict = workload.run, workload.time_verdict(timer)
        sample = run.sample(timer) if run is not None else None
        if run is None or sample is None or (verdict is not None and verdict.status is Status.INVALID):
            continue
        device, mean_us = run.fingerprint, observe(sample).mean_us
        is_by_host = is_host_only(timer, run.counts, sum(each.device_time_us for each in run.kernels), mean_us)
        time = ProcessTime(observe(sample, is_by_host=is_by_host), is_by_host=is_by_host)
        prior = prior_for(timer, device, trains=run.trains)
        expected, resolution = expected_variance(prior, len(run.kernels), time.observation.mean_us)
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
            us=round(time.observation.mean_us, 4),
            verdict=verdict,
            kernels=sha256(msgspec.json.encode(run.kernel_names())).hexdigest()[:16],
            baseline_us=verdict.before_us if verdict is not None else None,
            logarithm=time.logarithm,
            noise=math.sqrt(expected + prior.noise.night * (expected - resolution)),
        )
