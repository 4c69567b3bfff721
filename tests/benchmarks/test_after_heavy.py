"""`benchmarks/after_heavy.py` tells how much longer a workload takes after a heavy one."""

from __future__ import annotations

import sys
from dataclasses import replace

import after_heavy
import pytest
import torch
from torch import nn

from kernelgauge import Workload
from kernelgauge.measure.conditions import Reading
from kernelgauge.measure.device import CpuDevice
from kernelgauge.measure.replicate import Replicate

ONE = Replicate(0, (100.0, 102.0), None, (Reading(),), (), 0.05)


def test_the_power_cap_is_counted_from_the_first_reading_to_the_last() -> None:
    readings = (Reading(throttled_ns={"power cap": 5_000_000}), Reading(throttled_ns={"power cap": 30_000_000}))
    assert after_heavy.capped_ms(replace(ONE, readings=readings)) == 25.0
    assert after_heavy.capped_ms(ONE) == 0.0


def test_a_line_has_the_change_in_percent_and_its_error() -> None:
    slower = replace(ONE, kernel_us=(101.0, 103.02))
    said = after_heavy.line(after_heavy.Calls(12, 30), 0.25, [ONE, slower], 202.0).split()
    assert said == ["12", "+", "30", "0.25", "s", "+0.50", "+-", "0.50", "%", "0.0", "ms", "2"]


def test_every_way_has_its_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    heavy, light = (
        Workload("linear", variant, lambda: nn.Linear(8, 8), lambda: (torch.randn(4, 8),), dtype="fp32")
        for variant in ("heavy", "light")
    )
    monkeypatch.setattr(after_heavy, "WORKLOADS", [heavy, light])
    monkeypatch.setattr(after_heavy, "_FOLLOWER", light.id)
    monkeypatch.setattr(after_heavy, "_REST_S", 0.0)
    monkeypatch.setattr(after_heavy, "choose_device", lambda _: CpuDevice())
    monkeypatch.setattr(sys, "argv", ["after_heavy.py", "--seconds", "0.01", "--workload", heavy.id])
    after_heavy.main()
    first, _, *lines = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{light.id}: ")
    ways = [" ".join(line.split()[: line.split().index("s") - 1]) for line in lines]
    assert ways == ["nothing", "nothing", "12 + 30", "12 + 30", "12 + 3", "12 + 3", "4 + 6", "4 + 6"]
