"""`kernelgauge calibrate --add`: what joins the stored baselines, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from kernelgauge.judge import Baseline, decode_baseline
from kernelgauge.run import Run
from tests.builders import counts, mlp_kernels
from tests.plugin.told_processes import FIRST, SECOND, Command, Processes, measured, stored


def on_gpu(gpu: str) -> list[tuple[Run, ...]]:
    return [(measured(place=place, gpu=gpu), measured(SECOND, place=place, gpu=gpu)) for place in range(2)]


def gpus(baseline: Baseline) -> list[str | None]:
    return [process.gpu for process in baseline.entries[0].processes]


@pytest.fixture
def before(processes: Processes, command: Command) -> dict[str, Baseline]:
    """What a calibration on one GPU has stored."""
    processes.runs = on_gpu("a")
    command("calibrate", "perf", "--processes", "2")
    return stored(processes)


def test_the_gpus_of_another_host_are_added(processes: Processes, command: Command) -> None:
    for gpu in ("a", "b"):
        processes.runs = on_gpu(gpu)
        code, out, _ = command("calibrate", "perf", "--processes", "2", "--add")
        assert code == 0
        assert f"2 written to {processes.baselines}" in out
    assert {name: gpus(baseline) for name, baseline in stored(processes).items()} == {
        name: ["a", "a", "b", "b"] for name in (FIRST, SECOND)
    }
    assert "--add" not in processes.seen[0][0]


def test_without_being_asked_to_add_it_replaces(processes: Processes, command: Command) -> None:
    for gpu in ("a", "b"):
        processes.runs = on_gpu(gpu)
        command("calibrate", "perf", "--processes", "2")
    assert gpus(stored(processes)[FIRST]) == ["b", "b"]


def test_what_would_be_added_is_printed_by_a_dry_run_and_not_written(
    before: dict[str, Baseline], processes: Processes, command: Command
) -> None:
    processes.runs = [(measured(kernels=mlp_kernels(us=55.0, xblock=512), gpu="b"),)] * 2
    code, out, _ = command("calibrate", "perf", "--processes", "2", "--add", "--dry-run")
    assert code == 0
    assert "2 of 4: " in out  # the odds of all processes, those that are stored included
    assert stored(processes) == before


@pytest.mark.usefixtures("before")
@pytest.mark.parametrize("broken", [True, False])
def test_what_cannot_be_added_is_refused_alone_and_stays_as_it_is(
    processes: Processes, command: Command, broken: bool
) -> None:
    (path,) = processes.baselines.glob(f"*/{FIRST}.json")
    if broken:
        path.write_bytes(b"<<<<<<< HEAD\n")
    content = path.read_bytes()
    changes: dict[str, Any] = {} if broken else {"counts": counts(copies=3)}
    processes.runs = [(measured(gpu="b", **changes), measured(SECOND, gpu="b"))] * 2
    code, out, _ = command("calibrate", "perf", "--processes", "2", "--add")
    assert code == 1
    why = "the stored file cannot be read" if broken else "not as it was recorded: copies 0 -> 3"
    assert f"not stored: {FIRST}: {why}; without --add it is replaced" in out
    assert path.read_bytes() == content
    (other,) = processes.baselines.glob(f"*/{SECOND}.json")
    assert gpus(decode_baseline(other.read_bytes(), where="", workload=SECOND)) == ["a", "a", "b", "b"]


def test_a_slowdown_is_not_added_as_noise(before: dict[str, Baseline], processes: Processes, command: Command) -> None:
    processes.runs = [(measured(center=225.0, place=place),) for place in range(2)]
    code, out, _ = command("calibrate", "perf", "--processes", "2", "--add")
    assert code == 1
    assert f"not stored: {FIRST}: not as it was recorded: device time 205.0 -> 225.0 us (+9.8 %)" in out
    assert stored(processes) == before


def test_without_a_folder_of_baselines_a_dry_run_leaves_none(processes: Processes, command: Command) -> None:
    assert command("calibrate", "perf", "--processes", "2", "--add", "--dry-run")[0] == 0
    assert not processes.baselines.exists()
