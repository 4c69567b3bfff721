"""What one run of pytest is asked: the options of the command line and of the ini file, together."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ..errors import KernelgaugeError, UpdateRefused
from ..judge import Limits
from ..run import Timer
from ..workload import Share

if TYPE_CHECKING:
    from ..measure.device import DeviceChoice

__all__ = ["Options", "WorkerPlace", "options_of"]

_INI = "kernelgauge_"
_DEVICES = ("auto", "cuda", "cpu")
_FEWEST_REPLICATES = 2  # of one replicate no noise is known


@dataclass(frozen=True)
class WorkerPlace:
    """One of the processes that measure a suite together.

    `has_suite`: whether the process that started it knew of a suite. `others`: how many processes there are beside it.
    """

    id: str
    has_suite: bool
    others: int


@dataclass(frozen=True)
class Options:
    """What the command line and the ini file ask for.

    Attributes:
        root: of the project.
        calibrating: a process of `kernelgauge calibrate`: it measures, compares nothing and writes to `reports`.
        history: where to add the results: a folder, or a URL.
        replicates: of each timer; None: as many as it takes.
        seed: of the random input that numerics are compared on; None: a new one for each test.
        arguments: all of pytest's, as they were given.
        measuring_arguments: those that a proposed command must repeat to measure the same.
        share: of the suite, for this run; None: all of it.
        worker: of pytest-xdist; None: the only process.
    """

    root: Path
    baselines: Path
    reports: Path
    device: DeviceChoice = "auto"
    update: bool = False
    calibrating: bool = False
    history: str | None = None
    strict: bool = False
    deterministic: bool = False
    replicates: int | None = None
    seed: int | None = None
    limits: Limits = field(default_factory=Limits)
    full_matrix: bool = False
    invoked_from: Path = Path()
    arguments: tuple[str, ...] = ()
    measuring_arguments: tuple[str, ...] = ()
    share: Share | None = None
    worker: WorkerPlace | None = None

    @cached_property
    def is_on_cpu(self) -> bool:
        """Whether the suite runs on a CPU. Imports torch unless the device was named."""
        if self.device != "auto":
            return self.device == "cpu"
        import torch

        return not torch.cuda.is_available()

    @property
    def accepts(self) -> bool:
        """Whether what is measured is taken as it is: what differs from the baseline fails nothing."""
        return self.update or self.calibrating


def options_of(config: pytest.Config, *, arguments: tuple[str, ...], worker: WorkerPlace | None) -> Options:
    """Read the options. Raises `pytest.UsageError` for a wrong one, and for what does not go together."""
    root, here = config.rootpath, config.invocation_params.dir
    calibration = config.getoption("--perf-calibrate")
    update = config.getoption("--perf-update")
    _require_one_purpose(config, update, calibration)
    return Options(
        root=root,
        baselines=root / config.getini(f"{_INI}baselines"),
        reports=here / calibration if calibration else root / config.getini(f"{_INI}reports"),
        device=config.getoption("--perf-device") or _ini(config, "device", _device),
        update=update is not None,
        calibrating=calibration is not None,
        history=_history(config),
        strict=config.getoption("--perf-strict") or config.getini(f"{_INI}strict"),
        deterministic=config.getini(f"{_INI}deterministic"),
        replicates=_ini(config, "replicates", _replicates),
        seed=config.getoption("--perf-seed"),
        limits=Limits(gate=_fractions(config, "gate"), sensitivity=_fractions(config, "sensitivity")),
        full_matrix=config.getoption("--perf-matrix") == "full",
        invoked_from=here,
        arguments=arguments,
        measuring_arguments=_measuring_arguments(config),
        share=config.getoption("--perf-shard"),
        worker=worker,
    )


def _require_one_purpose(config: pytest.Config, update: str | None, calibration: str | None) -> None:
    if update == "yes" and os.environ.get("CI"):
        refused = UpdateRefused(
            "--perf-update is refused under CI: a job that accepts its own result gates nothing",
            got="the environment variable CI is set",
            next_command="pytest perf --perf-update=force   (in a job whose purpose is to record)",
        )
        raise pytest.UsageError(str(refused))
    if calibration and (getattr(config.option, "numprocesses", None) or getattr(config.option, "dist", "no") != "no"):
        raise pytest.UsageError("each process of a calibration measures alone: run it without -n and --dist")


def _ini(config: pytest.Config, name: str, parse: Callable[[str], Any]) -> Any:
    text = config.getini(_INI + name)
    try:
        return parse(text)
    except ValueError as error:
        raise pytest.UsageError(f"{_INI}{name}: expected {error}, got {text!r}") from error


def _device(text: str) -> str:
    if text not in _DEVICES:
        raise ValueError("auto, cuda or cpu")
    return text


def _replicates(text: str) -> int | None:
    if not text:
        return None
    if not text.isdecimal() or int(text) < _FEWEST_REPLICATES:
        raise ValueError(f"a whole number from {_FEWEST_REPLICATES}: of one replicate no noise is known")
    return int(text)


def _fractions(config: pytest.Config, name: str) -> dict[Timer, float]:
    """Parse lines such as ``device_time = 2 %``."""
    found: dict[Timer, float] = {}
    for line in config.getini(_INI + name):
        timer, _, percent = line.partition("=")
        try:
            value = float(percent.strip().removesuffix("%")) / 100
            if not 0 < value < math.inf:
                raise ValueError
            found[Timer(timer.strip())] = value
        except ValueError:
            names = ", ".join(each.value for each in Timer)
            raise pytest.UsageError(
                f"{_INI}{name}: got {line!r}, expected a line such as 'device_time = 2 %' ({names})"
            ) from None
    return found


def _history(config: pytest.Config) -> str | None:
    """Return the location, absolute if it is a path. An invalid one is refused before anything is measured."""
    location: str | None = config.getoption("--perf-history")
    if location is None:
        return None
    from ..results.history import open_history

    try:
        open_history(location)
    except KernelgaugeError as error:
        raise pytest.UsageError(f"--perf-history: {error}") from error
    return location if "://" in location else str(config.invocation_params.dir / location)


def _measuring_arguments(config: pytest.Config) -> tuple[str, ...]:
    device = config.getoption("--perf-device")
    overridden: Sequence[str] = config.getoption("override_ini") or ()
    ours = [each for each in overridden if each.startswith(_INI) and not each.startswith(f"{_INI}reports")]
    return (
        *(("--perf-matrix", "full") if config.getoption("--perf-matrix") == "full" else ()),
        *(("--perf-device", device) if device else ()),
        *(part for each in ours for part in ("-o", each)),
    )


def share(text: str) -> Share:
    """Parse ``I/N``, for argparse."""
    try:
        return Share.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
