"""`kernelgauge calibrate`: fresh processes, what is printed, stored and added, and what is refused."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.builders import counts, mlp_kernels
from tests.commands.conftest import FIRST, SECOND, Command, Process, measured

TWO = ("calibrate", "perf", "--processes", "2")


@pytest.fixture
def command(process: Process, kernelgauge: Command, monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.delenv("CI", raising=False)
    process.runs = [(measured(place=place), measured(SECOND, place=place)) for place in range(3)]
    return kernelgauge


def gpus(process: Process, workload: str) -> list[str | None]:
    return [each.gpu for each in process.stored()[workload].entries[0].processes]


def test_calibrate_stores_and_prints_the_noise(command: Command, process: Process) -> None:
    code, out, err = command("calibrate", "perf", "--processes", "3", "--dry-run")
    assert (code, process.baselines.exists()) == (0, False)
    assert "nothing was written" in out
    code, out, err = command("calibrate", "perf", "-k", "mlp or linear", "--processes", "3")
    assert code == 0
    assert [len(baseline.entries[0].processes) for baseline in process.stored().values()] == [3, 3]
    assert all(text in out for text in (FIRST, SECOND, f"2 written to {process.baselines}"))
    assert err.splitlines() == [f"process {number} of 3" for number in (1, 2, 3)]
    assert {tuple(each.arguments) for each in process.seen[3:]} == {("perf", "-k", "mlp or linear")}
    assert command("calibrate", "--processes", "2", "--", "perf", "--other", "x")[0] == 0
    assert process.seen[-1].arguments == ["perf", "--other", "x"]


def test_process_that_fails_stores_nothing(command: Command, process: Process) -> None:
    process.is_machine_lost = True
    code, _, err = command("calibrate", "perf", "--processes", "50")
    assert (code, len(process.seen), process.stored()) == (2, 1, {})
    assert "a process that measures failed" in err


def test_workload_that_differs_between_processes_is_refused(command: Command, process: Process) -> None:
    process.runs[1] = (measured(place=1, counts=counts(copies=3)), measured(SECOND, place=1))
    code, out, _ = command(*TWO)
    assert (code, set(process.stored())) == (1, {SECOND})
    assert re.search(rf"refused: {FIRST}: .*counted differently", out)


def test_calibrate_under_ci_needs_force(command: Command, process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    code, out, err = command(*TWO)
    assert (code, out, process.seen) == (2, "", [])
    assert "refused under CI" in err
    assert "kernelgauge calibrate --force" in err
    assert command(*TWO, "--force")[0] == 0
    assert process.stored()


@pytest.mark.parametrize("count", ["1", "many"])
def test_wrong_count_of_processes_is_a_usage_error(command: Command, count: str) -> None:
    assert command("calibrate", "--processes", count)[0] == 2


def add(process: Process, command: Command, gpu: str, *options: str, **changes: Any) -> tuple[int, str]:
    process.runs = [
        (measured(place=place, gpu=gpu, **changes), measured(SECOND, place=place, gpu=gpu)) for place in range(2)
    ]
    code, out, _ = command(*TWO, *options)
    return code, out


def test_add_joins_another_hosts_gpus(command: Command, process: Process) -> None:
    for gpu in ("a", "b"):
        assert add(process, command, gpu, "--add")[0] == 0
    assert gpus(process, FIRST) == gpus(process, SECOND) == ["a", "a", "b", "b"]
    before = process.stored()
    out = add(process, command, "c", "--add", "--dry-run", kernels=mlp_kernels(us=55.0, xblock=512))[1]
    assert "nothing was written: a dry run" in out
    assert process.stored() == before
    add(process, command, "d")
    assert gpus(process, FIRST) == ["d", "d"]
