"""Launches and device records that do not pair, on a trace of an H200 and on small ones with one thing wrong."""

from __future__ import annotations

import math
from dataclasses import replace

import msgspec
import pytest

from kernelgauge.trace import DeviceRecord, Trace
from tests.builders import (
    Event,
    call,
    kernel,
    op,
    recorded,
    step,
    trace_of,
)


def test_a_launch_without_a_record_is_lost() -> None:
    trace = trace_of(step(1, 0, 9), call(1, 1), call(2, 2), kernel(2, 5))
    assert trace.pairing_problems() == ("lost: cudaLaunchKernel (correlation 1) has no device record",)


def test_every_lost_record_of_a_recorded_trace_is_noticed() -> None:
    trace = recorded("mlp-eager")
    for index, record in enumerate(trace.records):
        cut = replace(trace, records=trace.records[:index] + trace.records[index + 1 :])
        (problem,) = cut.pairing_problems()
        assert problem.startswith("lost: ")
        assert str(record.correlation) in problem


def test_every_lost_launch_of_a_recorded_trace_is_noticed() -> None:
    trace = recorded("mlp-eager")
    launching = [index for index, call in enumerate(trace.calls) if call.is_launch or call.is_transfer]
    assert len(launching) == 21
    for index in launching:
        cut = replace(trace, calls=trace.calls[:index] + trace.calls[index + 1 :])
        (problem,) = cut.pairing_problems()
        assert problem.startswith("orphan: ")


def test_a_lost_memset_or_copy_is_noticed_as_well() -> None:
    trace = trace_of(call(1, 1, name="cudaMemsetAsync"), call(2, 2, name="cudaMemcpyAsync"))
    assert [problem.split(":")[0] for problem in trace.pairing_problems()] == ["lost", "lost"]


def test_a_graph_launch_without_any_record_is_lost() -> None:
    (problem,) = trace_of(call(7, 1, name="cudaGraphLaunch")).pairing_problems()
    assert problem == "lost: cudaGraphLaunch (correlation 7) has no device record"


def test_a_record_without_a_launch_is_an_orphan() -> None:
    trace = trace_of(call(1, 1), kernel(1, 5), kernel(9, 6, name="stranger"))
    assert trace.pairing_problems() == ("orphan: stranger (correlation 9) has no launch",)


def test_a_record_of_a_call_that_launches_nothing_is_an_orphan() -> None:
    trace = trace_of(call(1, 1, name="cudaEventRecord"), kernel(1, 5))
    assert trace.pairing_problems() == ("orphan: gemm (correlation 1) has no launch",)


def test_two_records_of_one_launch_are_duplicated() -> None:
    (problem,) = trace_of(call(1, 1), kernel(1, 5, name="a"), kernel(1, 6, name="b")).pairing_problems()
    assert problem == "duplicated: cudaLaunchKernel (correlation 1) has 2 records: a, b"


def test_without_a_correlation_neither_side_is_believed() -> None:
    problems = trace_of(call(None, 1), kernel(5, 2)).pairing_problems()
    assert [problem.split(":")[0] for problem in problems] == ["lost", "orphan"]


def test_a_negative_duration_is_named() -> None:
    (problem,) = trace_of(call(1, 1), kernel(1, 5, duration=-0.5)).pairing_problems()
    assert problem == "bad duration: gemm took -0.5 us"


def test_a_duration_of_zero_is_possible() -> None:
    assert trace_of(call(1, 1), kernel(1, 5, duration=0)).pairing_problems() == ()


def with_duration(duration_us: float) -> Trace:
    trace = trace_of(call(1, 1), kernel(1, 5))
    (record,) = trace.records
    assert isinstance(record, DeviceRecord)
    return replace(trace, records=(msgspec.structs.replace(record, duration_us=duration_us),))


def test_a_duration_that_is_no_number_is_named() -> None:
    assert with_duration(math.nan).pairing_problems() == ("bad duration: gemm took nan us",)


def test_several_problems_are_all_named() -> None:
    trace = trace_of(call(1, 1), call(2, 2), kernel(2, 5), kernel(2, 6), kernel(3, 7, duration=-1))
    kinds = sorted(problem.split(":")[0] for problem in trace.pairing_problems())
    assert kinds == ["bad duration", "duplicated", "lost", "orphan"]


def test_two_launches_with_one_record_are_a_problem() -> None:
    trace = trace_of(step(1, 0, 9), call(1, 1), call(1, 2), kernel(1, 5))
    assert trace.pairing_problems()


def test_what_starts_where_one_step_ends_and_the_next_begins_is_in_one_of_them() -> None:
    events: list[Event] = [step(1, 0, 10), step(2, 10, 10), op("aten::mm", 10, 1), call(1, 10), kernel(1, 30)]
    steps = trace_of(*events).steps()
    assert sum(len(window.launches) for window in steps) == 1
    assert sum(len(window.ops) for window in steps) == 1


@pytest.mark.parametrize("name", ["cudaLaunchHostFunc", "cuLaunchHostFunc", "hipLaunchHostFunc"])
def test_a_host_function_is_no_launch(name: str) -> None:
    assert trace_of(call(1, 1, name=name)).pairing_problems() == ()
