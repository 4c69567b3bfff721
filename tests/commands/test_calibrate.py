"""`kernelgauge calibrate`: fresh processes, what is printed, stored and added, and what is refused."""

import re

import pytest

from tests.builders import counts
from tests.commands.conftest import FIRST, SECOND, Command, Process, measured

TWO = ("calibrate", "perf", "--processes", "2")


@pytest.fixture(autouse=True)
def two_workloads(process: Process) -> None:
    process.runs = [(measured(place=place), measured(SECOND, place=place)) for place in range(3)]


def test_calibrate_stores_and_prints_the_noise(command: Command, process: Process) -> None:
    code, out, err = command("calibrate", "perf", "--processes", "3", "--dry-run")
    assert (code, process.baselines.exists(), "nothing was written" in out) == (0, False, True)
    code, out, err = command("calibrate", "perf", "-k", "mlp or linear", "--processes", "3")
    assert (code, [len(each.entries[0].processes) for each in process.stored().values()]) == (
        0,
        [3, 3],
    )
    assert all(text in out for text in (FIRST, SECOND, f"2 written to {process.baselines}"))
    left = ", about 0 s left"  # by the mean of those before
    assert err.splitlines() == [
        "process 1 of 3",
        *(f"process {number} of 3{left}" for number in (2, 3)),
    ]
    assert {tuple(each.arguments) for each in process.seen[3:]} == {("perf", "-k", "mlp or linear")}
    assert command("calibrate", "--processes", "2", "--", "perf", "--other", "x")[0] == 0
    assert process.seen[-1].arguments == ["perf", "--other", "x"]


def test_process_that_fails_stores_nothing(command: Command, process: Process) -> None:
    process.is_machine_lost = True
    code, _, err = command("calibrate", "perf", "--processes", "50")
    assert (code, len(process.seen), process.stored()) == (2, 1, {})
    assert "a process that measures failed" in err
    for count in ("1", "many"):
        assert (command("calibrate", "--processes", count)[0], len(process.seen)) == (2, 1)


def test_workload_that_differs_between_processes_is_refused(
    command: Command, process: Process
) -> None:
    process.runs[1] = (measured(place=1, counts=counts(copies=3)), measured(SECOND, place=1))
    code, out, _ = command(*TWO)
    assert (code, set(process.stored())) == (1, {SECOND})
    assert re.search(rf"refused: {FIRST}: .*counted differently", out)


def test_add_joins_another_hosts_gpus(command: Command, process: Process) -> None:
    stored = []
    for gpu, options in (
        ("a", ["--add"]),
        ("b", ["--add"]),
        ("c", ["--add", "--dry-run"]),
        ("d", []),
    ):
        process.runs = [
            (measured(place=place, gpu=gpu), measured(SECOND, place=place, gpu=gpu))
            for place in range(2)
        ]
        assert command(*TWO, *options)[0] == 0
        stored.append(
            "".join(str(each.gpu) for each in process.stored()[FIRST].entries[0].processes)
        )
    assert stored == ["aa", "aabb", "aabb", "dd"]
