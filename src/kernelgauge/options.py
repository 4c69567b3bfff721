"""The options of the plugin, and what they ask for together."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Sequence

import pytest

from .argument_types import at_least
from .errors import KernelgaugeError, UpdateRefused
from .run import Timer
from .shares import Share
from .suites import Options
from .workers import arguments_of, place_of

__all__ = ["add_ini", "add_options", "options_of"]

_SENSITIVITY = "kernelgauge_sensitivity"


def add_options(group: pytest.OptionGroup) -> None:
    group.addoption(
        "--perf-matrix",
        choices=("default", "full"),
        default="default",
        help="workloads to run: the default ones, or all of them",
    )
    group.addoption(
        "--perf-device",
        choices=("auto", "cuda", "cpu"),
        default="auto",
        help="auto: a GPU if there is one, else the CPU",
    )
    group.addoption(
        "--perf-update",
        nargs="?",
        const="yes",
        choices=("yes", "force"),
        help="store what was measured as the baselines of this machine; under CI only with =force",
    )
    group.addoption(
        "--perf-require-baseline", action="store_true", help="a missing baseline fails its tests instead of skipping"
    )
    group.addoption(
        "--perf-strict",
        action="store_true",
        help="for nightly jobs: whatever was not decided (no baseline, inconclusive, variant skipped) is a failure",
    )
    _add_measuring(group)
    group.addoption(
        "--perf-runs",
        metavar="FILE",
        help="only measure, and write what was measured to FILE: what kernelgauge calibrate asks of its processes",
    )
    group.addoption(
        "--perf-shard",
        type=_share,
        metavar="I/N",
        help="run part I of N of the suite: for N machines, say. kernelgauge merge brings their results together",
    )
    group.addoption(
        "--perf-history",
        metavar="DIR",
        help="add this run to a history: a folder, or a URL that fsspec knows (s3://...); kernelgauge trend reads it",
    )
    group.addoption("--perf-baselines", metavar="DIR", help="folder of the baselines (default: <rootdir>/baselines)")
    group.addoption("--perf-reports", metavar="DIR", help="folder of the reports (default: <rootdir>/reports)")


def add_ini(parser: pytest.Parser) -> None:
    parser.addini(
        _SENSITIVITY,
        type="linelist",
        help="the slowdown that a PASS may miss, a line for each timer: device_time = 2 %",
    )


def _add_measuring(group: pytest.OptionGroup) -> None:
    """How it is measured."""
    group.addoption(
        "--perf-replicates",
        type=at_least(2, "of one replicate no noise is known"),
        metavar="N",
        help="fresh allocations for each time (default: 12 to 32, as many as it takes)",
    )
    group.addoption(
        "--perf-deterministic",
        action="store_true",
        help="let Inductor choose launch configurations without timing them, where this torch can",
    )


def _share(text: str) -> Share:
    try:
        return Share.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def options_of(config: pytest.Config) -> Options:
    """Raises `pytest.UsageError` for what does not go together."""
    root = config.rootpath
    folder = config.invocation_params.dir
    sensitivity = _sensitivity(config.getini(_SENSITIVITY))
    update = config.getoption("--perf-update")
    if update == "yes" and os.environ.get("CI"):
        raise pytest.UsageError(str(_refused_under_ci()))
    runs = config.getoption("--perf-runs")
    if runs and (getattr(config.option, "numprocesses", None) or getattr(config.option, "dist", "no") != "no"):
        raise pytest.UsageError("--perf-runs is written by one process: run it without -n and --dist")
    if update and getattr(config.option, "dist", "no") == "each":
        raise pytest.UsageError(
            "--perf-update stores one run of each workload: kernelgauge calibrate records several GPUs"
        )
    strict = config.getoption("--perf-strict")
    return Options(
        root=root,
        baselines=folder / (config.getoption("--perf-baselines") or root / "baselines"),
        reports=folder / (config.getoption("--perf-reports") or root / "reports"),
        device=config.getoption("--perf-device"),
        update=update is not None,
        runs=folder / runs if runs else None,
        history=_history(config),
        require_baseline=strict or config.getoption("--perf-require-baseline"),
        strict=strict,
        invoked_from=folder,
        arguments=arguments_of(config),
        share=config.getoption("--perf-shard"),
        worker=place_of(config),
        sensitivity=sensitivity,
        measuring_arguments=_measuring_arguments(config),
    )


def _sensitivity(lines: Sequence[str]) -> dict[Timer, float]:
    """Parse ``device_time = 2 %``. Raises `pytest.UsageError` for a line that says anything else."""
    found: dict[Timer, float] = {}
    for line in lines:
        name, _, percent = line.partition("=")
        try:
            found[Timer(name.strip())] = float(percent.strip().removesuffix("%")) / 100
        except ValueError:
            pass
        else:
            if 0 < found[Timer(name.strip())] < math.inf:
                continue
        names = ", ".join(timer.value for timer in Timer)
        raise pytest.UsageError(f"{_SENSITIVITY}: got {line!r}, expected a line such as 'device_time = 2 %' ({names})")
    return found


def _history(config: pytest.Config) -> str | None:
    """A path is one from where pytest was started. What cannot be a history is refused before a night is measured."""
    location: str | None = config.getoption("--perf-history")
    if location is None:
        return None
    from .history import open_history

    try:
        open_history(location)
    except KernelgaugeError as error:
        raise pytest.UsageError(f"--perf-history: {error}") from error
    return location if "://" in location else str(config.invocation_params.dir / location)


def _measuring_arguments(config: pytest.Config) -> tuple[str, ...]:
    """What a proposed command must repeat, so that it measures on the same device and writes into the same folder."""
    device = config.getoption("--perf-device")
    baselines = config.getoption("--perf-baselines")
    full = config.getoption("--perf-matrix") == "full"
    return (
        *(("--perf-matrix", "full") if full else ()),
        *(("--perf-device", device) if device != "auto" else ()),
        *(("--perf-baselines", baselines) if baselines else ()),
    )


def _refused_under_ci() -> UpdateRefused:
    return UpdateRefused(
        "--perf-update is refused under CI: a job that accepts its own result gates nothing",
        got="the environment variable CI is set",
        next_command="pytest perf --perf-update=force   (in a job whose purpose is to record)",
    )
