"""Scripts for a GPU, with a CPU and made-up log records in its place."""

from __future__ import annotations

import logging
import sys
from dataclasses import replace
from types import SimpleNamespace

import after_heavy
import pytest
import torch
from autotuner import Told
from torch import nn

from kernelgauge import Workload
from kernelgauge.measure.conditions import Reading
from kernelgauge.measure.device import CpuDevice
from kernelgauge.measure.replicate import Replicate


def test_after_heavy_line_has_change_error_and_power_cap() -> None:
    readings = tuple(Reading(throttled_ns={"power cap": ns}) for ns in (5_000_000, 30_000_000))  # from first to last
    one = Replicate(0, (100.0, 102.0), None, (Reading(),), (), 0.05)
    slower = replace(one, kernel_us=(101.0, 103.02), readings=readings)
    said = after_heavy.line(after_heavy.Calls(12, 30), 0.25, [one, slower], 202.0).split()
    assert said == ["12", "+", "30", "0.25", "s", "+0.50", "+-", "0.50", "%", "12.5", "ms", "2"]


def test_after_heavy_has_a_line_for_every_way(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    heavy, light = (
        Workload("linear", variant, lambda: nn.Linear(8, 8), lambda: (torch.randn(4, 8),), dtype="fp32")
        for variant in ("heavy", "light")
    )
    stand_ins = {"WORKLOADS": [heavy, light], "_FOLLOWER": light.id, "_REST_S": 0.0, "_PAUSES_S": (0.0, 0.01)}
    for name, value in {**stand_ins, "choose_device": lambda _: CpuDevice()}.items():
        monkeypatch.setattr(after_heavy, name, value)
    monkeypatch.setattr(sys, "argv", ["after_heavy.py", "--seconds", "0.01", "--workload", heavy.id])
    after_heavy.main()
    first, _, *lines = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{light.id}: ")
    ways = [" ".join(line.split()[: line.split().index("s") - 1]) for line in lines]
    assert ways == ["nothing", "nothing", "12 + 30", "12 + 30", "12 + 3", "12 + 3", "4 + 6", "4 + 6"]


def test_autotuner_reads_inductors_log_in_microseconds() -> None:
    """As torch/_inductor/runtime/triton_heuristics.py writes it."""
    kernel = "triton_poi_fused__unsafe_view_gelu_mul_0"
    configs = [SimpleNamespace(kwargs={"XBLOCK": block}, num_warps=warps) for block, warps in ((1024, 4), (512, 8))]
    timed = "%s: %f, nreg %d, nspill %d, #shared-mem %s"
    told = Told()
    for message, *arguments in (
        ("CachingAutotuner gets %d configs for %s", 2, kernel),
        ("Benchmark all input configs for %s, get:", kernel),
        (timed, configs[0], 0.95, 32, 0, 0),
        (timed, configs[1], 0.125, 32, 0, 0),
        ("nothing that has arguments",),
    ):
        told.emit(logging.LogRecord("torch._inductor", logging.DEBUG, "", 0, message, tuple(arguments), None))
    assert told.timed_us == {kernel: {"XBLOCK=1024/4": 950.0, "XBLOCK=512/8": 125.0}}
