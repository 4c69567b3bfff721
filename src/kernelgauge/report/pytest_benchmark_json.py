"""Results in the JSON of pytest-benchmark: for `pytest-benchmark compare`, and for what else reads that."""

from __future__ import annotations

from typing import Any

import msgspec
from pytest_benchmark.stats import Stats

from ..errors import printable
from ..results import Results, WorkloadResult
from ..run import Sample, Timer

__all__ = ["benchmark_json"]


def benchmark_json(results: Results) -> bytes:
    """Return one benchmark for each workload and timer that was measured, in seconds; a round is a replicate.

    `group` is the timer, so that `--between` compares like with like. What `compare` needs of a benchmark: name, fullname,
    group, param, params, and in stats min, max, mean, stddev, median, iqr, ops, outliers, rounds, iterations
    (pytest_benchmark/table.py, pytest_benchmark/storage/file.py).

    The statistics are pytest-benchmark's own, of all replicates: a verdict leaves those on a slow host aside, so its
    times may be lower. Of the commit nothing is known.
    """
    machine: dict[str, Any] = {} if results.fingerprint is None else msgspec.structs.asdict(results.fingerprint)
    content: Any = {
        "machine_info": {**machine, "gpu": results.gpu},
        "commit_info": {"id": "unknown", "time": None, "author_time": None, "dirty": False, "branch": "(unknown)"},
        "benchmarks": [
            _benchmark(results, workload, timer, workload.run.samples[timer])
            for workload in results.workloads
            for timer in Timer
            if workload.run is not None and timer in workload.run.samples
        ],
        "datetime": results.started_at,
        "version": f"kernelgauge {results.kernelgauge}",
    }
    content = _printable(content)  # pytest-benchmark shows names as they are
    return msgspec.json.format(msgspec.json.encode(content), indent=1) + b"\n"


def _printable(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _printable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_printable(item) for item in value]
    return printable(value) if isinstance(value, str) else value


def _benchmark(results: Results, workload: WorkloadResult, timer: Timer, sample: Sample) -> dict[str, Any]:
    name = f"{timer.value}[{workload.id}]"
    untyped: Any = Stats
    stats = untyped()
    for time_us in sample.replicates_us:
        stats.update(time_us / 1e6)
    verdict = workload.verdict(timer.label)
    known = (
        ("kernelgauge_verdict", verdict.status.value if verdict is not None else None),
        # `machine_info` names the only one; of merged results, each benchmark its own.
        ("kernelgauge_gpu", results.machine_of(workload)[1] if results.gpu is None else None),
    )
    return {
        "group": timer.label,
        "name": name,
        "fullname": f"{workload.suite}::{name}",
        "param": workload.id,
        "params": {
            "module": workload.module,
            "variant": workload.variant,
            "dtype": workload.dtype,
            "pass": workload.pass_,
            "shape": "x".join(map(str, workload.shape)),
        },
        "extra_info": {name: value for name, value in known if value is not None},
        "options": {},
        "stats": {**stats.as_dict(), "data": stats.data, "iterations": sample.iterations},
    }
