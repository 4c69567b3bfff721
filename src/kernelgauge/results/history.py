"""The times of each workload over the results of many runs, which lie in a folder."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from hashlib import sha256
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from ..errors import ResultsError, StorageError, printable
from ..judge import Status, Verdict
from ..judge.baseline import SOFTWARE_FIELDS, is_host_only
from ..judge.timing import expected_variance, prior_for
from ..run import ProcessTime, Timer, observe
from . import Results, TestResult, decode_results
from .files import read_file

_FIRST_YEAR = 1970  # an invalid timestamp is year 1


class Night(NamedTuple):
    """One time of a workload.

    Attributes: machine: its kind, and what the time is called: times of two kinds answer different
        questions. place: the GPU, or the host of a CPU. at: when the run started, in UTC.
        environment: the software and the host, by name. verdict: the worst of the workload, as in
        the table of its run; None: there is none. logarithm: of the time; of its ratio to the host
        reference where the host alone fills it. noise: the standard deviation of the logarithm that
        the rule expects between processes.
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
    history: Path,
    *,
    timer: Timer | None = None,
    matches: Callable[[str, Sequence[TestResult]], bool] = lambda *_: True,
) -> tuple[list[Night], list[str]]:
    """Return the times in a history, in order of machine, workload, place and time; and which files
    are left out, and why.

    A history is a folder with results of runs, whatever the names of the files. A time whose
    verdict is INVALID is none. `matches`: whether a workload is asked for, by its id and the tests of its run. Without a
    `timer` it is that of the device, and on a CPU the latency.

    Raises `StorageError` if the history cannot be read.
    """

    def refuse(error: OSError) -> None:
        expected, got = (
            "a folder with a results.json of each run, under any names",
            printable(str(error)),
        )
        raise StorageError(
            "the history cannot be read", where=printable(str(history)), got=got, expected=expected
        )

    folders = os.walk(history, onerror=refuse)
    paths = [
        Path(folder, name)
        for folder, _, names in folders
        for name in names
        if name.endswith(".json")
    ]
    if not paths:
        refuse(FileNotFoundError("there is none"))

    # files that have the same run of a workload count once
    nights: dict[tuple[Any, ...], Night] = {}
    not_shown: list[str] = []
    for path in sorted(paths):
        try:
            results = decode_results(read_file(path), where=str(path))
            if results.started.year < _FIRST_YEAR:
                raise ValueError("invalid timestamp")
            nights |= {
                (*night[:4], results.host): night
                for night in nights_of(results, timer)
                if matches(night.workload, results.tests)
            }
        except (OSError, ValueError, ResultsError) as error:
            why = error.got if isinstance(error, ResultsError) else error
            not_shown.append(printable(f"{path.relative_to(history)}: {why}"))
    return sorted(nights.values(), key=itemgetter(0, 1, 2, 3)), not_shown


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
        is_by_host = is_host_only(
            timer, run.counts, sum(each.device_time_us for each in run.kernels), mean_us
        )
        time = ProcessTime(observe(sample, is_by_host=is_by_host), is_by_host=is_by_host)
        prior = prior_for(timer, device, trains=run.trains)
        expected, resolution = expected_variance(prior, len(run.kernels), time.observation.mean_us)
        kind = [device.device, device.arch]
        kind += [f"{device.sm_count} SMs"] if device.sm_count is not None else []
        kind += [f"{device.power_limit_watts:g} W"] if device.power_limit_watts is not None else []
        software = {
            name.replace("_", "-"): str(getattr(device, name) or "(none)")
            for name in SOFTWARE_FIELDS
        }
        yield Night(
            machine=", ".join([*kind, *(["MIG"] if device.mig else []), timer.label_on(device)]),
            workload=workload.id,
            place=f"host {results.host}"
            if device.arch == "cpu"
            else f"GPU {run.gpu or results.host}",
            at=results.started,
            environment=software | {"kernelgauge": results.kernelgauge, "host": results.host},
            commit=results.commit,
            us=round(time.observation.mean_us, 4),
            verdict=next(
                (each for each in workload.verdicts if each.status is workload.status), None
            ),
            kernels=sha256(msgspec.json.encode(run.kernel_names())).hexdigest()[:16],
            logarithm=time.logarithm,
            noise=math.sqrt(expected + prior.noise.night * (expected - resolution)),
        )
