"""The launch sequence of a trace, the host ops behind it, and when the device worked and waited."""

from __future__ import annotations

import pytest

from kernelgauge.trace import METADATA_OPS, Window, computing_ops, dispatcher_ops, is_compile_op
from kernelgauge.trace.lane import activity_of, host_time_us, lane_of, metadata_ops_that_launched
from tests.builders import BACKWARD_THREAD, Event, call, kernel, op, recorded, region, step, trace_of


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


def test_trace_without_steps_is_one_window_with_orphans() -> None:
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


# --- host ops --------------------------------------------------------------------------------------------------------


def window_of(*events: Event) -> Window:
    (window,) = trace_of(step(1, 0, 1000), *events).steps()
    return window


def computing(*events: Event) -> list[str]:
    return [op.name for op in computing_ops(window_of(*events))]


# -- recorded on an H200 --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("linear-eager", ["aten::addmm"]),
        ("linear-compiled", ["aten::addmm"]),
        ("matmul_add-eager", ["aten::mm", "aten::add"]),
        ("matmul_add-compiled", ["aten::addmm"]),
        ("mlp-eager", ["aten::mm", "aten::mm", "aten::gelu", "aten::mul", "aten::mm"]),
        ("mlp-compiled", ["aten::mm", "aten::mm", "triton_poi_fused__unsafe_view_gelu_mul_0", "aten::mm"]),
    ],
)
def test_computing_ops_of_a_forward_are_one_for_each_kernel(name: str, expected: list[str]) -> None:
    for window in recorded(name).steps():
        assert [op.name for op in computing_ops(window)] == expected
        assert len(window.launches) == len(expected)


def test_computing_ops_of_a_training_step_cover_the_backward_thread() -> None:
    ops = computing_ops(recorded("mlp-eager-train").steps()[0])
    assert [op.name for op in ops].count("aten::mm") == 7  # three forward, four backward: the input needs no gradient
    assert {op.thread for op in ops if op.name == "aten::gelu_backward"} == {BACKWARD_THREAD}


def test_the_dispatch_of_the_eager_linear_goes_from_linear_over_t_to_addmm() -> None:
    for window in recorded("linear-eager").steps():
        names = [op.name for op in dispatcher_ops(window)]
        assert names == ["aten::linear", "aten::t", "aten::transpose", "aten::as_strided", "aten::addmm"]


def test_of_the_compiled_mlp_three_bare_matrix_products_are_dispatched() -> None:
    for window in recorded("mlp-compiled").steps():
        assert [op.name for op in dispatcher_ops(window)] == ["aten::mm"] * 3


def test_the_batch_is_flattened_before_each_matrix_product() -> None:
    wide, narrow = ((8192, 768), (768, 3072)), ((8192, 3072), (3072, 768))
    for window in recorded("mlp-eager").steps():
        products = [op.input_shapes for op in window.ops if op.name == "aten::mm"]
        assert products == [wide, wide, narrow]


@pytest.mark.parametrize(("compiled", "eager"), [("linear-compiled", "linear-eager"), ("mlp-compiled", "mlp-liger")])
def test_only_compiled_runs_have_rows_of_the_compiler(compiled: str, eager: str) -> None:
    rows = {op.name.split(":")[0] for op in recorded(compiled).ops if is_compile_op(op.name)}
    assert rows == {
        "TorchDynamo Cache Lookup",
        "Torch-Compiled Region",  # and after the colon, the number of the frame
        "Pregraph bytecode",
        "AOTDispatcher Runtime Wrapper Prologue",
    }
    assert not any(is_compile_op(op.name) for op in recorded(eager).ops)


@pytest.mark.parametrize("name", ["linear-eager", "mlp-eager", "mlp-eager-train", "mlp-compiled", "mlp-liger-train"])
def test_ops_that_rewrite_metadata_launched_nothing(name: str) -> None:
    for window in recorded(name).steps():
        assert window.launches
        assert metadata_ops_that_launched(window) == []


# -- by hand --------------------------------------------------------------------------------------------------------


def test_an_op_that_computes_hides_what_it_calls() -> None:
    assert computing(op("aten::sum", 0, 10), op("aten::fill_", 1, 2), op("aten::copy_", 4, 2)) == ["aten::sum"]


def test_an_op_that_only_chooses_another_does_not_hide_it() -> None:
    assert computing(
        op("aten::linear", 0, 20), op("aten::t", 1, 2), op("aten::matmul", 4, 10), op("aten::mm", 5, 5)
    ) == ["aten::mm"]


@pytest.mark.parametrize("name", [*sorted(METADATA_OPS), "aten::empty", "aten::empty_strided"])
def test_ops_that_rewrite_metadata_or_obtain_memory_compute_nothing(name: str) -> None:
    assert computing(op(name, 0, 5), op("aten::as_strided", 1, 1)) == []


def test_work_after_a_metadata_op_is_seen() -> None:
    assert computing(op("aten::view", 0, 5), op("aten::mul", 5, 5)) == ["aten::mul"]  # starts where the other ends


def test_ops_of_two_threads_do_not_nest_in_each_other() -> None:
    assert computing(
        op("aten::sum", 0, 100), op("aten::mm", 10, 5, thread=BACKWARD_THREAD), op("aten::fill_", 20, 5)
    ) == ["aten::sum", "aten::mm"]


@pytest.mark.parametrize(
    "wrapper",
    [
        "Torch-Compiled Region: 0/0",
        "CompiledFunction",
        "CompiledFunctionBackward",
        "autograd::engine::evaluate_function: MmBackward0",
        "torch::autograd::AccumulateGrad",
        "MmBackward0",
        "LigerGELUMulFunction",
    ],
)
def test_rows_of_the_compiler_and_of_autograd_only_wrap(wrapper: str) -> None:
    assert computing(op(wrapper, 0, 10), op("aten::mm", 1, 5)) == ["aten::mm"]


@pytest.mark.parametrize(
    "generated", ["cpp_fused__unsafe_view_gelu_mul_0", "graph_0_cpp_fused_mul_0", "triton_poi_fused_add_0"]
)
def test_a_generated_kernel_computes_without_being_dispatched(generated: str) -> None:
    window = window_of(op("Torch-Compiled Region: 0/0", 0, 10), op(generated, 1, 5))
    assert [op.name for op in computing_ops(window)] == [generated]
    assert dispatcher_ops(window) == []


def test_a_custom_op_computes_and_is_dispatched() -> None:
    window = window_of(op("mylib::fused_attention", 0, 10), op("aten::mm", 1, 5))
    assert [op.name for op in computing_ops(window)] == ["mylib::fused_attention"]
    assert [op.name for op in dispatcher_ops(window)] == ["mylib::fused_attention", "aten::mm"]


def test_the_rows_of_autograd_are_not_dispatched_but_the_ops_in_them_are() -> None:
    window = window_of(
        op("autograd::engine::evaluate_function: MmBackward0", 0, 10),
        op("MmBackward0", 1, 8),
        op("aten::mm", 2, 5),
        op("torch::autograd::AccumulateGrad", 20, 5),
    )
    assert [op.name for op in dispatcher_ops(window)] == ["aten::mm"]


def test_a_metadata_op_that_launches_is_named() -> None:
    window = window_of(
        op("aten::reshape", 0, 5, external_id=3),
        op("aten::mm", 6, 5, external_id=4),
        call(1, 1, external_id=3),
        call(2, 7, external_id=4),
        kernel(1, 20, external_id=3),
        kernel(2, 30, external_id=4),
    )
    assert metadata_ops_that_launched(window) == ["aten::reshape"]


@pytest.mark.parametrize("name", ["aten::reshape", "aten::flatten"])
def test_a_copy_inside_a_reshape_is_work(name: str) -> None:
    assert computing(op(name, 0, 20), op("aten::clone", 1, 10), op("aten::_unsafe_view", 12, 2)) == ["aten::clone"]


# --- activity of the device ------------------------------------------------------------------------------------------


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


def test_host_time_ends_with_the_last_launch_less_waiting() -> None:
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
