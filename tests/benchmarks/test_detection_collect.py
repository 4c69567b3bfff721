"""What one process injects and measures, and the processes of a whole run."""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from detection import collect, injected, run
from detection.data import NONE, WORKLOAD_IDS, Level
from detection.injected import Injection, SpinTime
from torch import nn

from kernelgauge import Workload
from kernelgauge.measure.device import CpuDevice
from kernelgauge.measure.instance import build, first_call
from tests.benchmarks.processes import TEN

LINEAR = Workload("linear", "eager", lambda: nn.Linear(8, 4), lambda: (torch.randn(16, 8),), dtype="fp32")
CALIBRATION = collect.Calibration(
    own=collect.OwnTimes(device_us=200.0, dispatch=4.0, loop=0.001),
    spin=SpinTime(0.9, 0.015),
    loop_excess=0.02,
    plain_us=40.0,
    spun_us=43.0,
)


@pytest.fixture
def spun(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Replace the kernel's launch; record the turns of each launch."""
    turns: list[int] = []

    def spinner(count: int) -> Callable[[], None]:
        work = torch.arange(64.0 * count)  # random numbers would change the inputs
        return lambda: (turns.append(count), work.sort())

    monkeypatch.setattr(injected, "spinner", spinner)
    return turns


def test_slowed_workload_computes_the_same(spun: list[int]) -> None:
    assert injected.slowed(LINEAR, Injection()) is LINEAR
    both = build(injected.slowed(LINEAR, Injection(turns=120, loops=20)), CpuDevice())
    assert torch.equal(both.outputs(), build(LINEAR, CpuDevice()).outputs())
    assert spun == [120]


def test_slowed_compiled_workload_compiles_once(spun: list[int]) -> None:
    workload = dataclasses.replace(LINEAR, variant="compiled", compile={"backend": "eager"})
    torch._dynamo.reset()
    counted = torch._dynamo.utils.counters
    counted.clear()
    with torch.no_grad():
        for injection in (Injection(), Injection(30), Injection(40, 5)):
            first_call(build(injected.slowed(workload, injection), CpuDevice()))
    assert spun == [30, 40]
    assert not counted["graph_break"]
    assert counted["stats"]["unique_graphs"] == 1


def test_packed_launch_passes_arguments_and_raises() -> None:
    got: list[Any] = []
    pointer = ctypes.c_void_p

    @ctypes.CFUNCTYPE(ctypes.c_int, pointer, *[ctypes.c_uint] * 7, pointer, ctypes.POINTER(pointer), pointer)
    def launch(function: int, *rest: Any) -> int:
        *sizes, stream, pointers, extra = rest
        kinds = (pointer, ctypes.c_int, ctypes.c_float)
        values = [ctypes.cast(pointers[i], ctypes.POINTER(kind))[0] for i, kind in enumerate(kinds)]
        got.append((function, sizes, stream, values, extra))
        return 400

    arguments = (pointer(4096), ctypes.c_int(77), ctypes.c_float(0.25))
    spin = injected.packed_launch(launch, pointer(11), 132, arguments, 5)
    del arguments
    with pytest.raises(RuntimeError, match="error 400"):
        spin()
    assert got == [(11, [132, 1, 1, 1, 1, 1, 0], 5, [4096, 77, 0.25], None)]


@pytest.mark.parametrize(
    ("level", "unslowed", "expected"),
    [
        (NONE, Injection(), Injection()),
        (Level("device", 0.5), Injection(), Injection(turns=27)),  # 1 us, 0.9 of it with 20 turns
        (Level("device", 0.5), Injection(20), Injection(turns=87)),  # 1 us more
        (Level("device", 0.05), Injection(), Injection(turns=1)),  # less than the shortest spin
        (TEN, Injection(), Injection(loops=320)),  # 10 % are 400 turns of 0.001, and would be 12 %
        (TEN, Injection(20), Injection(20, loops=320)),
    ],
)
def test_injection_is_a_share_of_own_time(level: Level, unslowed: Injection, expected: Injection) -> None:
    assert CALIBRATION.injection(level, unslowed) == expected


def child(source: str, timeout_s: float = 20.0) -> run.Child:
    return run.Child("process 7", (sys.executable, "-c", source), {"MARK": "here"}, timeout_s)


def test_failed_process_is_named_and_the_rest_run(capsys: pytest.CaptureFixture[str]) -> None:
    failing = child("import os, sys; print(os.environ['MARK'], file=sys.stderr); sys.exit(3)")
    assert run.run_queue([failing, child("pass")]) == ["process 7 failed: exit status 3\n    here"]
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(",")[0] for line in lines] == ["process 7: FAILED", "process 7: done"]


def test_measure_compiles_then_runs_chosen_workloads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[run.Child] = []
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3, GPU-1234")
    monkeypatch.setattr(run, "run_child", ran.append)
    chosen = list(WORKLOAD_IDS[:2])
    options = argparse.Namespace(out=tmp_path, seconds=0.5, timeout=180.0, workload=chosen, first=0, processes=8)
    assert run.measure(options) == []
    assert ran[0].command[2:] == ("--compile-only", "--workload", chosen[0], "--workload", chosen[1])
    on_first = [one.command for one in ran[1:] if one.environment["CUDA_VISIBLE_DEVICES"] == "3"]
    assert [command[command.index("--slot") + 1] for command in on_first] == ["0", "1", "2", "3"]
    assert {command[-4:] for command in on_first} == {("--workload", chosen[0], "--workload", chosen[1])}
    monkeypatch.setattr(run, "run_child", lambda one: "it fails")
    assert run.measure(options) == ["it fails"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert run.measure(options) == ["no GPU is visible"]
    monkeypatch.setattr(sys, "argv", list(on_first[0][1:]))
    assert collect._arguments().workload == chosen
