"""What the options ask for together."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence

import pytest

from .errors import KernelgaugeError, UpdateRefused
from .hookspec import SENSITIVITY
from .run import Timer
from .suites import Options
from .workers import arguments_of, place_of

__all__ = ["options_of"]


def options_of(config: pytest.Config) -> Options:
    """Raises `pytest.UsageError` for what does not go together."""
    root = config.rootpath
    folder = config.invocation_params.dir
    sensitivity = _sensitivity(config.getini(SENSITIVITY))
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
        raise pytest.UsageError(f"{SENSITIVITY}: got {line!r}, expected a line such as 'device_time = 2 %' ({names})")
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
