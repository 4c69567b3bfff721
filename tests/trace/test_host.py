"""The ops of the host lane: on a machine without a GPU, those that compute stand for the kernels."""

from __future__ import annotations

import pytest

from kernelgauge.trace import METADATA_OPS, Window, computing_ops, dispatcher_ops, is_compile_op
from kernelgauge.trace.lane import metadata_ops_that_launched
from tests.builders import BACKWARD_THREAD, Event, call, kernel, op, recorded, step, trace_of


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
