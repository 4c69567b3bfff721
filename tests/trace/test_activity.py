"""When the GPU worked and when it waited, and whether it waited for the host."""

from __future__ import annotations

import pytest

from kernelgauge.trace import Window
from kernelgauge.trace.lane import activity_of, host_time_us
from tests.builders import Event, call, kernel, op, recorded, step, trace_of


def window(*rows: Event) -> Window:
    (only,) = trace_of(step(1, 0, 1000), *rows).steps()
    return only


def test_kernels_that_follow_each_other_leave_no_idle_time() -> None:
    (activity,) = activity_of([window(call(1, 0), call(2, 2), kernel(1, 10), kernel(2, 15))])
    assert (activity.span_us, activity.busy_us, activity.idle_us, activity.waiting_us) == (10, 10, 0, 0)


def test_a_gap_before_the_launch_returned_is_a_wait_for_the_host() -> None:
    # The first kernel ends at 15. The second's launch returns at 31, and it starts at 35: 16 us for the host, 4 not.
    (activity,) = activity_of([window(call(1, 0), kernel(1, 10), call(2, 30), kernel(2, 35))])
    assert (activity.idle_us, activity.waiting_us) == (20, 16)


def test_a_gap_after_the_launch_returned_is_none() -> None:
    (activity,) = activity_of([window(call(1, 0), call(2, 2), kernel(1, 10), kernel(2, 35))])
    assert (activity.idle_us, activity.waiting_us) == (20, 0)


def test_kernels_that_overlap_on_two_streams_are_busy_once() -> None:
    first, second = kernel(1, 10, duration=20), kernel(2, 15, duration=5)
    second["args"]["stream"] = 8
    (activity,) = activity_of([window(call(1, 0), call(2, 2), first, second)])
    assert (activity.span_us, activity.busy_us, activity.streams) == (20, 20, 2)


def test_each_gpu_has_an_activity_of_its_own() -> None:
    first, second = kernel(1, 10), kernel(2, 500)
    second["args"]["device"] = 1
    found = activity_of([window(call(1, 0), call(2, 2), first, second)])
    assert [(activity.device, activity.span_us) for activity in found] == [(0, 5), (1, 5)]


def test_a_memset_keeps_the_gpu_busy_too() -> None:
    memset = kernel(2, 15, name="Memset (Device)", category="gpu_memset")
    (activity,) = activity_of([window(call(1, 0), call(2, 2, name="cudaMemsetAsync"), kernel(1, 10), memset)])
    assert activity.busy_us == 10


@pytest.mark.parametrize("duration", [-5.0, -0.001])
def test_a_negative_duration_counts_for_nothing(duration: float) -> None:
    (activity,) = activity_of([window(call(1, 0), call(2, 2), kernel(1, 10), kernel(2, 15, duration=duration))])
    assert (activity.span_us, activity.busy_us) == (5, 5)


def test_nothing_that_ran_is_no_activity() -> None:
    assert activity_of([window(op("aten::t", 0, 1))]) == []
    assert activity_of([]) == []


def test_the_host_takes_until_its_last_launch_has_returned_less_what_it_waited() -> None:
    wait = call(None, 20, name="cudaStreamSynchronize")
    wait["dur"] = 30
    busy = window(op("aten::mm", 5, 10), call(1, 8), wait, op("aten::mm", 60, 10), call(2, 64))
    assert host_time_us(busy) == 64 + 1 - 5 - 30


def test_a_wait_behind_the_last_launch_is_not_of_it() -> None:
    wait = call(None, 20, name="cudaDeviceSynchronize")
    wait["dur"] = 300
    assert host_time_us(window(op("aten::mm", 5, 10), call(1, 8), wait)) == 4


def test_without_a_launch_the_host_took_no_time_to_launch() -> None:
    assert host_time_us(window(op("aten::t", 5, 10))) == 0


def test_the_compiled_mlp_kept_an_h200_busy_nearly_all_of_the_time() -> None:
    (activity,) = activity_of(recorded("mlp-compiled").steps())
    assert activity.busy_us == pytest.approx(206.7, abs=0.1)  # 205.1 us of kernels, and two memsets
    assert activity.busy_us / activity.span_us == pytest.approx(0.94, abs=0.01)
