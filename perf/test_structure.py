"""Which kernels ran: count, names, order, launches, recompiles. One claim, one test."""

from __future__ import annotations

import pytest
import torch

from claims import build, claim, compile_ops, gemm_layouts, graph_count, only
from kernelgauge import Run, Sibling, Timer, Workload
from kernelgauge.standard import (
    test_kernels_and_graphs_are_as_declared,
    test_structure_is_that_of_the_baseline,
)

__all__ = ["test_kernels_and_graphs_are_as_declared", "test_structure_is_that_of_the_baseline"]

# -- one linear ------------------------------------------------------------------------------------


@claim("linear", "eager")
def test_c01_one_kernel_a_call_and_the_bias_is_its_epilogue(run: Run) -> None:
    assert run.counts.launches == 1
    assert run.kinds() == ["gemm"]
    assert "aten::addmm" in run.op_names()
    assert not only(run.op_names(), {"aten::add", "aten::add_"})


@claim("linear", "eager")
def test_c02_dispatch_goes_from_linear_over_t_to_addmm(run: Run) -> None:
    chain = only(
        run.op_names(), {"aten::linear", "aten::t", "aten::addmm", "aten::mm", "aten::matmul"}
    )
    assert chain == ["aten::linear", "aten::t", "aten::addmm"]


@claim("linear", "eager", "compiled")
@claim("mlp", "eager", "compiled", "liger", "liger-hub")
def test_c03_ops_that_rewrite_metadata_launch_no_kernel(run: Run) -> None:
    assert run.metadata_ops_that_launched == ()
    assert "copy" not in run.kinds()  # without a GPU a copy shows as an op that computes


@pytest.mark.parametrize(
    "name", ["t", "transpose", "as_strided", "view", "reshape", "_unsafe_view"]
)
def test_c03_ops_that_rewrite_metadata_return_the_same_memory(name: str) -> None:
    matrix = torch.arange(6.0).reshape(2, 3)
    arguments = {"t": (), "transpose": (0, 1), "as_strided": ((3, 2), (1, 3))}.get(name, ((3, 2),))
    result = getattr(torch.ops.aten, name)(matrix, *arguments)
    assert result.shape == (3, 2)
    assert result.data_ptr() == matrix.data_ptr()


@claim("linear", "compiled")
def test_c04_compiled_runs_the_same_kernel_byte_for_byte(run: Run, eager: Run) -> None:
    assert run.kernel_names() == eager.kernel_names()


@claim("linear", "compiled")
def test_c05_compile_removes_the_transpose_and_adds_rows_of_its_own(run: Run, eager: Run) -> None:
    assert "aten::t" in eager.op_names()
    assert "aten::t" not in run.op_names()
    assert only(run.op_names(), {"aten::linear", "aten::addmm"}) == ["aten::addmm"]
    assert compile_ops(run)
    assert not compile_ops(eager)


@pytest.mark.gpu
@pytest.mark.timing
@claim("linear", "compiled")
def test_c06_compile_does_not_make_one_gemm_faster(run: Run, eager: Run) -> None:
    assert run.time_us(Timer.DEVICE) / eager.time_us(Timer.DEVICE) > 0.95


@claim("linear", "compiled")
@pytest.mark.usefixtures("clean_compiler")
def test_c07_other_strides_than_compiled_in_are_not_silently_accepted(
    workload: Workload, run: Run
) -> None:
    module, x = build(workload, run)
    strided = x.t().contiguous().t()
    assert strided.shape == x.shape
    assert strided.stride() != x.stride()
    compiled = torch.compile(module)
    with torch.no_grad():
        compiled(x)
        graphs = graph_count()
        with (
            torch.compiler.set_stance("fail_on_recompile"),
            pytest.raises(RuntimeError, match="recompile"),
        ):
            compiled(strided)
        torch.testing.assert_close(compiled(strided), module(strided))
    assert graph_count() == graphs + 1


# -- matmul, then add ------------------------------------------------------------------------------


@claim("matmul_add", "eager")
def test_c08_eager_runs_two_kernels(run: Run) -> None:
    assert run.kinds() == ["gemm", "pointwise"]


@claim("matmul_add", "compiled")
def test_c08_compiled_runs_one_addmm(run: Run) -> None:
    assert run.kinds() == ["gemm"]
    assert only(run.op_names(), {"aten::addmm", "aten::mm", "aten::add", "aten::matmul"}) == [
        "aten::addmm"
    ]


@pytest.mark.gpu
@claim("matmul_add", "eager")
def test_c25_the_layout_in_a_name_tells_which_branch_was_taken(run: Run, sibling: Sibling) -> None:
    # The weight is stored [in, out] here and [out, in] in nn.Linear: the same product, another
    # layout, other GPU work.
    here, there = (gemm_layouts(each)[0] for each in (run, sibling(module="linear")))
    assert here is not None
    assert there is not None
    assert here != there
