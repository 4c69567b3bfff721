"""Windows of a trace, their launches, and how launches and records pair."""

from __future__ import annotations

import math
from dataclasses import replace

import msgspec
import pytest

from kernelgauge.trace import DeviceRecord, Launch, Trace, Window, decode
from tests.builders import (
    BACKWARD_THREAD,
    MAIN_THREAD,
    Event,
    call,
    kernel,
    op,
    recorded,
    recorded_events,
    region,
    step,
    trace_of,
)

GEMM, POINTWISE = "gemm", "pointwise"
MLP_TRAIN_EAGER = (
    "gemm gemm pointwise pointwise gemm reduction fill copy gemm copy gemm pointwise pointwise pointwise pointwise gemm "
    "pointwise gemm pointwise"
).split()
MLP_TRAIN_LIGER = (
    "gemm gemm pointwise gemm reduction fill copy gemm copy gemm pointwise pointwise gemm pointwise gemm pointwise"
).split()
MLP_TRAIN_COMPILED = (
    "gemm gemm pointwise gemm reduction fill copy gemm gemm pointwise gemm gemm pointwise pointwise pointwise"
).split()

# What each call of a recorded workload launches: kinds in launch order, and memsets apart.
RECORDED = {
    "linear-eager": ([GEMM], 0),
    "linear-compiled": ([GEMM], 0),
    "linear-eager-splitk": ([GEMM, "splitk_reduce"], 0),
    "matmul_add-eager": ([GEMM, POINTWISE], 0),
    "matmul_add-compiled": ([GEMM], 0),
    "mlp-eager": ([GEMM, GEMM, POINTWISE, POINTWISE, GEMM], 2),
    "mlp-compiled": ([GEMM, GEMM, POINTWISE, GEMM], 2),
    "mlp-compiled-other-autotune": ([GEMM, GEMM, POINTWISE, GEMM], 2),
    "mlp-compiled-fp32": ([GEMM, GEMM, POINTWISE, GEMM], 1),
    "mlp-liger": ([GEMM, GEMM, POINTWISE, GEMM], 2),
    "mlp-cudagraph": (["copy", GEMM, GEMM, POINTWISE, GEMM], 2),
    "mlp-eager-train": (MLP_TRAIN_EAGER, 4),
    "mlp-compiled-train": (MLP_TRAIN_COMPILED, 4),
    "mlp-liger-train": (MLP_TRAIN_LIGER, 4),
}
WITH_EARLIER_WORK = "mlp-compiled-fp32"  # its session began while kernels of the warm-up were still running


def names(window: Window) -> list[str]:
    return [launch.record.name for launch in window.launches]


def apis(window: Window) -> list[str]:
    return [launch.call.name for launch in window.launches]


# -- recorded on an H200 --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RECORDED)
def test_three_steps_are_recorded_and_numbered(name: str) -> None:
    steps = recorded(name).steps()
    assert [window.name for window in steps] == ["ProfilerStep#2", "ProfilerStep#3", "ProfilerStep#4"]


@pytest.mark.parametrize("name", RECORDED)
def test_every_step_launches_what_was_seen_with_memsets_apart(name: str) -> None:
    kinds, memsets = RECORDED[name]
    for window in recorded(name).steps():
        assert [decode(launch.record.name).kind.value for launch in window.launches] == kinds
        assert len(window.memsets) == memsets
        assert window.copies == ()
        assert window.synchronizations == window.occupancy_queries == 0


@pytest.mark.parametrize("name", [name for name in RECORDED if name != WITH_EARLIER_WORK])
def test_every_recorded_launch_has_its_kernel(name: str) -> None:
    assert recorded(name).pairing_problems() == ()


def test_record_launched_before_the_session_is_an_orphan() -> None:
    trace = recorded(WITH_EARLIER_WORK)
    problems = trace.pairing_problems()
    assert len(problems) == 4
    assert all(problem.startswith("orphan: ") for problem in problems)
    assert "orphan: Memset (Device) (correlation 34806) has no launch" in problems
    assert sum(len(window.launches) + len(window.memsets) for window in trace.steps()) == len(trace.records) - 4


@pytest.mark.parametrize("name", [name for name in RECORDED if name != WITH_EARLIER_WORK])
def test_device_times_of_the_steps_sum_to_all_kernels_of_the_file(name: str) -> None:
    in_file = [row["dur"] for row in recorded_events(name) if row["cat"] == "kernel"]
    assert sum(window.device_time_us for window in recorded(name).steps()) == pytest.approx(sum(in_file))


def test_device_time_leaves_memsets_out() -> None:
    window = recorded("mlp-compiled").steps()[-1]
    assert window.device_time_us == pytest.approx(55.84 + 58.432 + 36.8 + 51.872)


def test_eager_mlp_calls_the_driver_and_the_runtime() -> None:
    driver, runtime = "cuLaunchKernelEx", "cudaLaunchKernel"
    for window in recorded("mlp-eager").steps():
        assert apis(window) == [driver, driver, runtime, runtime, driver]


def test_a_launch_knows_the_innermost_op_that_asked_for_it() -> None:
    window = recorded("linear-eager").steps()[0]
    assert [launch.op.name for launch in window.launches if launch.op] == ["aten::addmm"]  # not aten::linear


def test_the_launch_configuration_of_a_triton_kernel_is_read_from_its_op() -> None:
    for name, kwargs, grid, block in (
        ("mlp-compiled", "XBLOCK=1024", 24576, 128),
        ("mlp-compiled-other-autotune", "XBLOCK=512", 49152, 256),
    ):
        for window in recorded(name).steps():
            (fused,) = [launch for launch in window.launches if launch.record.name.startswith("triton_")]
            assert fused.op is not None
            assert fused.op.kernel_kwargs == kwargs
            assert (fused.record.grid, fused.record.block) == ((grid, 1, 1), (block, 1, 1))
            assert fused.op.num_warps == block // 32


def test_one_graph_launch_is_behind_several_kernels() -> None:
    for window in recorded("mlp-cudagraph").steps():
        assert apis(window) == ["cudaLaunchKernel", *["cudaGraphLaunch"] * 4]
        assert len({launch.record.correlation for launch in window.launches[1:]}) == 1


def test_kernels_belong_to_the_step_that_launched_them() -> None:
    steps = recorded("mlp-cudagraph").steps()
    first, second = steps[:2]
    late = [launch.record for launch in first.launches if launch.record.start_us > second.start_us]
    assert late  # the device is behind the host
    assert not {record.start_us for record in late} & {launch.record.start_us for launch in second.launches}


@pytest.mark.parametrize(("name", "forward", "backward"), [("mlp-eager-train", 7, 12), ("mlp-liger-train", 6, 10)])
def test_launches_of_the_backward_thread_are_in_the_window(name: str, forward: int, backward: int) -> None:
    # On the thread of the caller: the forward, the sum, and the gradient that the backward starts from.
    for window in recorded(name).steps():
        threads = [launch.op.thread for launch in window.launches if launch.op]
        assert (threads.count(MAIN_THREAD), threads.count(BACKWARD_THREAD)) == (forward, backward)
        assert len(threads) == len(window.launches)


def test_a_region_is_found_by_its_name() -> None:
    trace = recorded("mlp-compiled")
    regions = trace.regions("mlp-compiled")
    assert [names(window) for window in regions] == [names(window) for window in trace.steps()]
    assert trace.regions("mlp") == []


# -- windows by hand ------------------------------------------------------------------------------------------------


def test_a_window_holds_what_started_in_it() -> None:
    trace = trace_of(
        op("before", 0, 1),
        step(1, 10, 10),
        op("inside", 12, 1),
        op("inside until after", 19, 9),
        op("after", 21, 1),
    )
    (window,) = trace.steps()
    assert window.op_names() == ["inside", "inside until after"]
    assert (window.name, window.start_us, window.duration_us) == ("ProfilerStep#1", 10, 10)


def test_steps_are_in_order_of_time_whatever_the_order_in_the_file() -> None:
    trace = trace_of(step(10, 30, 5), step(9, 20, 5), step(8, 10, 5))
    assert [window.name for window in trace.steps()] == ["ProfilerStep#8", "ProfilerStep#9", "ProfilerStep#10"]


def test_annotations_that_are_no_steps_make_no_step() -> None:
    assert trace_of(region("ProfilerStepper", 0, 1), region("## Call CompiledFxGraph f ##", 0, 1)).steps() == []


def test_launches_are_in_the_order_of_the_calls_and_not_of_the_execution() -> None:
    trace = trace_of(
        step(1, 0, 9), call(1, 1), call(2, 2), kernel(2, 20, name="ran first"), kernel(1, 30, name="ran last")
    )
    assert names(trace.steps()[0]) == ["ran last", "ran first"]


def test_kernels_of_one_graph_launch_are_in_order_of_execution() -> None:
    trace = trace_of(
        step(1, 0, 9),
        call(1, 1, name="cudaGraphLaunch"),
        kernel(1, 30, name="second"),
        kernel(1, 20, name="first"),
        kernel(1, 40, name="Memset (Device)", category="gpu_memset"),
    )
    window = trace.steps()[0]
    assert names(window) == ["first", "second"]
    assert len(window.memsets) == 1
    assert trace.pairing_problems() == ()


def test_memsets_and_copies_are_counted_apart_and_are_no_launches() -> None:
    trace = trace_of(
        step(1, 0, 9),
        call(1, 1, name="cudaMemsetAsync"),
        call(2, 2, name="cudaMemcpyAsync"),
        call(3, 3),
        kernel(1, 10, category="gpu_memset", name="Memset (Device)", duration=100),
        kernel(2, 11, category="gpu_memcpy", name="Memcpy HtoD (Pageable -> Device)", duration=200),
        kernel(3, 12, duration=7),
    )
    (window,) = trace.steps()
    assert (len(window.memsets), len(window.copies), len(window.launches)) == (1, 1, 1)
    assert window.device_time_us == 7
    assert trace.pairing_problems() == ()


@pytest.mark.parametrize(
    ("name", "category"),
    [
        ("cudaLaunchKernel", "cuda_runtime"),
        ("cudaLaunchKernelExC", "cuda_runtime"),
        ("cudaLaunchCooperativeKernel", "cuda_runtime"),
        ("cuLaunchKernel", "cuda_driver"),
        ("cuLaunchKernelEx", "cuda_driver"),
        ("hipLaunchKernel", "hip_runtime"),
        ("hipExtModuleLaunchKernel", "hip_driver"),
        ("cudaGraphLaunch", "cuda_runtime"),
        ("cuGraphLaunch", "cuda_driver"),
        ("hipGraphLaunch", "hip_runtime"),
    ],
)
def test_every_way_to_launch_is_a_launch(name: str, category: str) -> None:
    trace = trace_of(step(1, 0, 9), call(1, 1, name=name, category=category), kernel(1, 2))
    assert apis(trace.steps()[0]) == [name]


def test_other_calls_are_no_launches_but_are_counted() -> None:
    trace = trace_of(
        step(1, 0, 20),
        call(1, 1, name="cudaStreamSynchronize"),
        call(2, 2, name="cudaDeviceSynchronize"),
        call(3, 3, name="cudaEventRecord"),
        call(4, 4, name="cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags"),
        call(5, 5, name="cudaStreamIsCapturing"),
        call(6, 6, name="cuCtxSynchronize", category="cuda_driver"),
    )
    (window,) = trace.steps()
    assert window.launches == ()
    assert (window.synchronizations, window.occupancy_queries, len(window.calls)) == (3, 1, 6)
    assert trace.pairing_problems() == ()


def test_a_copy_without_a_stream_blocks_and_is_a_synchronization() -> None:
    trace = trace_of(step(1, 0, 9), call(1, 1, name="cudaMemcpy"), kernel(1, 2, category="gpu_memcpy", name="Memcpy"))
    (window,) = trace.steps()
    assert (window.synchronizations, len(window.copies)) == (1, 1)


def test_a_launch_of_another_thread_within_the_window_belongs_to_it() -> None:
    trace = trace_of(
        step(1, 0, 50),
        op("autograd::engine::evaluate_function: MmBackward0", 10, 20, thread=BACKWARD_THREAD, external_id=5),
        op("aten::mm", 11, 10, thread=BACKWARD_THREAD, external_id=6),
        call(1, 12, thread=BACKWARD_THREAD, external_id=6),
        kernel(1, 60, external_id=6),
    )
    (launch,) = trace.steps()[0].launches
    assert launch.op is not None
    assert (launch.op.name, launch.op.thread) == ("aten::mm", BACKWARD_THREAD)


def test_of_two_ops_with_one_id_the_inner_one_is_named() -> None:
    trace = trace_of(
        step(1, 0, 9),
        op("outer", 1, 6, external_id=3),
        op("inner", 2, 2, external_id=3),
        call(1, 3, external_id=3),
        kernel(1, 5, external_id=3),
    )
    assert [launch.op.name for launch in trace.steps()[0].launches if launch.op] == ["inner"]


def test_a_launch_outside_of_any_op_has_none() -> None:
    (launch,) = (
        trace_of(step(1, 0, 9), op("aten::mm", 0, 1, external_id=4), call(1, 3), kernel(1, 5)).steps()[0].launches
    )
    assert isinstance(launch, Launch)
    assert launch.op is None


# --- pairing ---------------------------------------------------------------------------------------------------------


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


def test_start_between_two_steps_is_in_one_of_them() -> None:
    events: list[Event] = [step(1, 0, 10), step(2, 10, 10), op("aten::mm", 10, 1), call(1, 10), kernel(1, 30)]
    steps = trace_of(*events).steps()
    assert sum(len(window.launches) for window in steps) == 1
    assert sum(len(window.ops) for window in steps) == 1


@pytest.mark.parametrize("name", ["cudaLaunchHostFunc", "cuLaunchHostFunc", "hipLaunchHostFunc"])
def test_a_host_function_is_no_launch(name: str) -> None:
    assert trace_of(call(1, 1, name=name)).pairing_problems() == ()
