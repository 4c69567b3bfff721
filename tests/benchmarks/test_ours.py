"""Our own decision of what the detection benchmark measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from detection.data import Measured, Process, load_all
from detection.evaluate import Share, Where, alarms_of, caught_by, our_detector
from detection.levels import Level
from detection.ours import Replicates, decide
from torch import nn

from kernelgauge import Workload
from kernelgauge.measure.device import CpuDevice
from kernelgauge.measure.instance import build
from tests.benchmarks.processes import FIVE, process

TINY = Workload("linear", "eager", lambda: nn.Linear(8, 8), lambda: (torch.randn(4, 8),), dtype="fp32")
PAIR = {"copy": [67.0], "gemm": [178.0]}


def known(**of_process: Any) -> list[Measured]:
    return [process(number, control_pair_us=PAIR, **of_process).at() for number in range(6)]


def told(factor: float | None, gpu: str = "a") -> bool:
    """Whether 5 % are seen of a process beside which the control GEMM took so much longer; None: it was not measured."""
    pair = {} if factor is None else {"control_pair_us": {**PAIR, "gemm": [factor * 178.0]}}
    test: Process = process(6, gpu, us=200.0, **pair)
    return decide("mlp-eager", "device", known(us=200.0), test.at(FIVE))


@pytest.mark.parametrize("factor", [None, 0.95, 1.0, 1.002, 1.01])
def test_slowdown_that_the_machine_does_not_explain_is_seen(factor: float | None) -> None:
    assert told(factor)


def test_slowdown_as_large_as_the_machines_is_not_seen() -> None:
    assert not told(1.05)


def test_what_the_machine_may_have_made_is_no_regression() -> None:
    slower = process(6, us=200.0 * 1.006, control_pair_us={**PAIR, "gemm": [1.006 * 178.0]})
    assert not decide("mlp-eager", "device", known(us=200.0), slower.at())
    alone = process(6, us=200.0 * 1.006)
    assert decide("mlp-eager", "device", known(us=200.0), alone.at())


def test_a_host_is_judged_whatever_the_gpu_does() -> None:
    level = Level("host", 20)
    test = process(6, levels=(level,), control_pair_us={**PAIR, "gemm": [2 * 178.0]})
    assert decide("mlp-eager", "host", known(), test.at(level))


def test_it_measures_as_often_in_a_row_as_the_suite_does_on_this_device() -> None:
    device = CpuDevice()
    device.most_busy_seconds = 1e-9
    taken = Replicates(device, lambda replicate: build(TINY, device, replicate=replicate))
    taken.take()
    device_us, host_us = taken.values()
    assert device_us.shape == (1, 8)
    assert host_us.shape == (1, 8, 2)


# What two H200s measured, with slowdowns that were really there: docs/detection.md.


@pytest.fixture(scope="module")
def processes() -> list[Process]:
    return load_all([Path(__file__).resolve().parents[2] / "benchmarks" / "data" / "detection_h200.npz"])


@pytest.fixture(scope="module")
def caught(processes: list[Process]) -> dict[tuple[str, Level], Share]:
    rows = caught_by(our_detector(decide), processes, "all others", "same GPU")
    return {(row.module, row.level): row.share for row in rows}


@pytest.mark.parametrize(
    ("module", "level", "trials", "least"),
    [
        ("mlp", "device+0.5%", 120, 0.95),
        ("mlp", "device+1%", 30, 0.95),
        ("linear", "device+3%", 24, 0.95),
        ("mlp", "host+10%", 120, 0.90),
        ("linear", "host+10%", 24, 0.90),
    ],
)
def test_a_slowdown_that_we_promise_to_see_is_seen(
    caught: dict[tuple[str, Level], Share], module: str, level: str, trials: int, least: float
) -> None:
    share = caught[module, Level.parse(level)]
    assert share.trials == trials
    assert share.share >= least


@pytest.mark.parametrize("where", ["same GPU", "other GPU"])
def test_no_unchanged_suite_is_flagged(processes: list[Process], where: Where) -> None:
    suites = alarms_of(our_detector(decide), processes, "all others", where).suites
    assert (suites.hits, suites.trials) == (0, 24)
