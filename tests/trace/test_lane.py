"""What stands for a trace: the steps that launched the same, each kernel with its time in every one of them."""

from __future__ import annotations

import pytest

from kernelgauge.trace.lane import lane_of
from tests.builders import Event, call, kernel, op, recorded, region, step, trace_of


def launched(step_start: float, *names: str, us: float = 5, first: int = 0) -> list[Event]:
    """A step at `step_start` that launches these kernels; correlation ids from `first`."""
    rows = [step(first, step_start, 100)]
    for index, name in enumerate(names):
        at = step_start + 10 * index
        rows += [
            op(f"aten::{name}", at, 8, external_id=first + index + 1),
            call(first + index + 1, at + 1, external_id=first + index + 1),
            kernel(first + index + 1, at + 3, name=name, duration=us, external_id=first + index + 1),
        ]
    return rows


@pytest.mark.parametrize(
    ("name", "kernels", "us"), [("mlp-eager", 5, 233.9), ("mlp-compiled", 4, 205.1), ("mlp-liger", 4, 210.5)]
)
def test_the_lane_of_a_recorded_trace_is_the_mean_of_its_steps(name: str, kernels: int, us: float) -> None:
    lane = lane_of(recorded(name))
    assert len(lane.windows) == len(lane.all_windows) == 3
    assert len(lane.kernels) == kernels
    assert lane.device_time_us == pytest.approx(us, abs=0.05)
    assert {len(each.durations_us) for each in lane.kernels} == {3}
    assert not lane.on_cpu
    assert not lane.is_whole_trace


def test_a_kernel_has_the_op_that_launched_it_with_its_shapes_and_types() -> None:
    first = lane_of(recorded("mlp-eager")).kernels[0]
    assert first.op == "aten::mm"
    assert first.input_shapes == ((8192, 768), (768, 3072))
    assert first.input_types == ("c10::BFloat16", "c10::BFloat16")


def test_steps_that_launched_something_else_are_left_out() -> None:
    trace = trace_of(
        *launched(0, "mul", first=100),
        *launched(1000, "mul", "add", first=200),
        *launched(2000, "mul", first=300, us=7),
    )
    lane = lane_of(trace)
    assert [each.identity.name for each in lane.kernels] == ["mul"]
    assert lane.kernels[0].durations_us == (5, 7)
    assert (len(lane.windows), len(lane.all_windows)) == (2, 3)


def test_of_steps_that_all_differ_the_last_is_taken() -> None:
    lane = lane_of(trace_of(*launched(0, "mul", first=100), *launched(1000, "add", first=200)))
    assert [each.identity.name for each in lane.kernels] == ["add"]
    assert [window.name for window in lane.windows] == ["ProfilerStep#200"]


def test_a_step_that_launched_nothing_does_not_stand_for_the_trace() -> None:
    lane = lane_of(trace_of(*launched(0, "mul", first=100), step(2, 1000, 100), step(3, 2000, 100)))
    assert [each.identity.name for each in lane.kernels] == ["mul"]


def test_of_a_trace_of_the_suite_the_calls_inside_its_steps_are_taken() -> None:
    rows = launched(0, "fill", "mul", first=100)
    lane = lane_of(trace_of(*rows, region("kernelgauge.call", 9, 40)))
    assert [each.identity.name for each in lane.kernels] == ["mul"]


def test_a_trace_without_steps_is_one_window_with_the_kernels_that_have_no_launch() -> None:
    rows = [row for row in launched(0, "mul", first=100) if row["cat"] != "user_annotation"]
    lane = lane_of(trace_of(*rows, kernel(999, 50, name="orphan")))
    assert lane.is_whole_trace
    assert [(each.identity.name, each.op) for each in lane.kernels] == [("mul", "aten::mul"), ("orphan", None)]


def test_an_empty_trace_has_an_empty_lane() -> None:
    lane = lane_of(trace_of())
    assert lane.kernels == ()
    assert lane.device_time_us == 0


def test_without_a_gpu_the_ops_that_compute_are_the_kernels() -> None:
    lane = lane_of(trace_of(step(1, 0, 100), op("aten::linear", 0, 50), op("aten::t", 1, 2), op("aten::addmm", 5, 40)))
    assert lane.on_cpu
    assert [(each.identity.name, each.identity.kind) for each in lane.kernels] == [("aten::addmm", "gemm")]


def test_a_product_does_its_op_although_another_kernel_adds_up_its_parts() -> None:
    gemm, reduce = lane_of(recorded("linear-eager-splitk")).kernels
    assert gemm.op == reduce.op == "aten::addmm"
    assert gemm.does_the_op
    assert not reduce.does_the_op


def test_of_two_kernels_of_one_op_neither_does_all_of_it() -> None:
    rows = [
        step(1, 0, 100),
        op("aten::softmax", 0, 50, external_id=7),
        *(row for n in (1, 2) for row in (call(n, 10 * n, external_id=7), kernel(n, 10 * n + 2, external_id=7))),
    ]
    assert [each.does_the_op for each in lane_of(trace_of(*rows)).kernels] == [False, False]
