"""The times of each workload over the results of many runs, which lie in a folder or a bucket."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from fnmatch import fnmatchcase
from hashlib import sha256
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from ..errors import ResultsError, printable
from ..judge import Status, Verdict
from ..judge.baseline import SOFTWARE_FIELDS, is_host_only
from ..judge.timing import expected_variance, prior_for
from ..run import ProcessTime, Timer, observe
from . import Results, decode_results
from .files import open_location, read_file, store_errors

_FIRST_YEAR = 1970  # an invalid timestamp is year 1


class Night(NamedTuple):
    """One time of a workload.

    Attributes:
        machine: its kind, and what the time is called: times of two kinds answer different questions.
        place: the GPU, or the host of a CPU.
        at: when the run started, in UTC.
        environment: the software and the host, by name.
        verdict: the worst of the workload, as in the table of its run; None: there is none.
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
    logarithm: float
    noise: float

    @property
    def status(self) -> Status | None:
        return self.verdict.status if self.verdict is not None else None


def read_nights(
    location: str, *, timer: Timer | None = None, patterns: Sequence[str] = ()
) -> tuple[list[Night], list[str]]:
    """Return the times in a history, in order of machine, workload, place and time; and which files are left out, and why.

    A history is a folder or a URL of fsspec with results of runs, whatever the names of the files. A time whose verdict
    is INVALID is none. `patterns`: parts of an id, which may have ``*`` and ``?``; none: every workload. Without a `timer`
    it is that of the device, and on a CPU the latency.

    Raises `StorageError` if the history cannot be read.
    """
    store, base = open_location(location)
    with store_errors("the history cannot be read", location):
        paths = [path for path in store.find(base) if path.endswith(".json")]
        if not paths:
            raise FileNotFoundError(
                "there is no results.json of a run: copy one of each night there, under its own name"
            )
        if "file" in store.protocol:
            contents = [_content(path) for path in paths]
        else:  # a bucket gets all requests at once; `cat` would take [1] in a name for a pattern
            contents = store.cat_ranges(paths, [None] * len(paths), [None] * len(paths), on_error="return")

    def matches(workload: str) -> bool:
        return not patterns or any(fnmatchcase(workload, f"*{each}*") for each in patterns)

    nights: dict[tuple[Any, ...], Night] = {}  # files that have the same run of a workload count once
    not_shown: list[str] = []
    for path, content in sorted(zip(paths, contents, strict=True)):
        try:
            if isinstance(content, Exception):
                raise OSError(str(content) or type(content).__name__) from content
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


def _content(path: str) -> bytes | Exception:
    try:
        return read_file(Path(path))
    except OSError as error:
        return error


def nights_of(results: Results, wanted: Timer | None = None) -> Iterator[Night]:
    """Yield the times of a run."""
    for workload in results.workloads:
        if (run := workload.run) is None:
            continue
        device = run.fingerprint
        timer = wanted or (Timer.DEVICE if Timer.DEVICE.is_judged_on(device) else Timer.END_TO_END)
        sample, verdict = run.sample(timer), workload.time_verdict(timer)
        if sample is None or (verdict is not None and verdict.status is Status.INVALID):
            continue
        mean_us = observe(sample).mean_us
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
            verdict=next((each for each in workload.verdicts if each.status is workload.status), None),
            kernels=sha256(msgspec.json.encode(run.kernel_names())).hexdigest()[:16],
            logarithm=time.logarithm,
            noise=math.sqrt(expected + prior.noise.night * (expected - resolution)),
        )
