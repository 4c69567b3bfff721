"""Functions are counted by names that are the same in every process, and a call that cannot be
counted is measured all the same.
"""

import itertools
import multiprocessing.queues
import sys
import time
from typing import Any

import pytest
import torch

from kernelgauge.measure.device import Device
from kernelgauge.measure.host import function_in_c
from tests.measure.conftest import measured, tiny


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("<method 'append' of 'list' objects>", "<list.append>"),
        ("<built-in method time.sleep>", "<time.sleep>"),
        ("<built-in method __new__ of type object at 0x7f03900cea40>", "<type.__new__>"),
        ("<built-in function sleep>", "<sleep>"),
        (
            "<function Meta.__instancecheck__ at 0x7f03900cea40>",
            "<function Meta.__instancecheck__>",
        ),
        (f"<built-in method c{'a2' * 25}b.kernel>", "<generated.kernel>"),
    ],
)
def test_function_in_c_has_no_address(text: str, name: str) -> None:
    assert function_in_c(text) == name


def test_calls_and_lines_are_counted(cpu: Device) -> None:
    def looped(x: Any) -> Any:
        for _ in range(50):
            len("")
        return x * 2

    run = measured(cpu, tiny(build=lambda: looped)).run
    assert run.host_work["<builtins.len>"] == 50
    assert run.host_work["lines"] == 102
    assert not run.host_spread
    (origin,) = run.host_work_origins["<builtins.len>"]
    assert origin.lines[0].code == 'len("")'


def test_code_of_dynamo_with_constants_without_a_hash_is_counted(cpu: Device) -> None:
    @torch.compile(backend="eager")
    def broken(x: Any) -> Any:
        half = slice(None, 2)
        y = x.sin()
        torch._dynamo.graph_break()
        return y[half] * 2

    found = measured(cpu, tiny(build=lambda: broken))
    assert not found.problem
    assert found.run.host_work["<torch._C.TensorBase.sin>"] == 1


def test_calls_of_c_have_a_time(cpu: Device) -> None:
    def sorting(x: Any) -> Any:
        sorted(range(20_000))
        len("")
        return x * 2

    us = measured(cpu, tiny(build=lambda: sorting)).run.host_us
    assert us["<builtins.len>"] < 2.0 < us["<builtins.sorted>"]
    assert not [name for name in us if "torch" in name or ".py:" in name]


def test_calls_that_vary_have_a_spread(cpu: Device) -> None:
    lengths = iter(range(1000))
    run = measured(
        cpu, tiny(build=lambda: lambda x: (x * 2, [len("") for _ in range(next(lengths) % 7)])[0])
    ).run
    assert 0 < run.host_spread["<builtins.len>"] <= run.host_work["<builtins.len>"]


def test_cost_of_each_fifth_call_is_counted(cpu: Device) -> None:
    numbers = itertools.count()
    run = measured(
        cpu, tiny(build=lambda: lambda x: (x * 2, next(numbers) % 5 or sorted([1]))[0])
    ).run
    assert run.host_work["<builtins.sorted>"] == run.host_spread["<builtins.sorted>"] == 1
    (origin,) = run.host_work_origins["<builtins.sorted>"]
    assert "sorted([1])" in origin.lines[0].code


@pytest.mark.parametrize("phase", range(0, 12, 3))
def test_cost_of_each_twelfth_call_is_never_counted(cpu: Device, phase: int) -> None:
    """Else it is, or not, by how many calls earlier tests have made."""
    numbers = itertools.count(phase)

    def rare(x: torch.Tensor) -> torch.Tensor:
        if next(numbers) % 12 == 0:
            sorted([*range(100_000)])
        return x * 2

    run = measured(cpu, tiny(build=lambda: rare)).run
    assert run.host_work["<builtins.next>"] == 1
    assert "<builtins.sorted>" not in run.host_work
    assert (run.counts.peak_host_bytes or 0) < 800_000


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_thread_of_a_closed_queue_may_end(cpu: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    end = multiprocessing.queues.Queue._feed

    def feed(*arguments: Any) -> None:
        end(*arguments)
        time.sleep(0.05)

    feed.__module__ = multiprocessing.queues.__name__
    monkeypatch.setattr(multiprocessing.queues.Queue, "_feed", staticmethod(feed))

    def queued(x: Any) -> Any:
        waiting: Any = multiprocessing.Queue()
        waiting.put(1)
        waiting.get()
        waiting.close()
        return x * 2

    assert not measured(cpu, tiny(build=lambda: queued)).problem


def test_call_that_refuses_a_tracer_is_not_counted(cpu: Device) -> None:
    def refusing(x: Any) -> Any:
        if sys.gettrace():
            raise RuntimeError("no debugger")
        return x * 2

    found = measured(cpu, tiny(build=lambda: refusing))
    assert found.problem == "host work was not counted: RuntimeError: no debugger"
    assert not found.run.host_work


def test_lines_that_lead_to_the_measurement_lead_to_no_call(cpu: Device) -> None:
    def measure() -> Any:  # on one line with what is measured
        return measured(cpu, tiny(build=lambda: lambda x: sorted(x.tolist()) and x * 2)).run

    for origin in measure().host_work_origins["<builtins.sorted>"]:
        assert {it for above in origin.callers for it in above} <= {*origin.lines}
