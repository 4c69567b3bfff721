"""What goes wrong in a workload's own code, or is asked wrongly, ends as an error that names the workload."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable

import pytest
import torch
from torch import nn

from kernelgauge import Workload
from kernelgauge.errors import WorkloadError
from kernelgauge.measure.device.cpu import CpuDevice
from kernelgauge.measure.instance import build, first_call
from kernelgauge.measure.numerics import compare_with_float64
from tests.measure.test_instance import raising

Tiny = Callable[..., Workload]


def test_an_output_that_holds_nothing_to_compare_is_no_pass(tiny: Tiny, cpu: CpuDevice) -> None:
    with pytest.raises(WorkloadError, match="nothing to compare"):
        compare_with_float64(tiny(build=lambda: lambda x: x.argmax(-1)), cpu, seed=1)


@pytest.mark.parametrize("build_", [functools.partial(nn.Linear, "x", 3), int.from_bytes], ids=["partial", "builtin"])
def test_a_build_without_a_source_file_fails_with_its_own_error(tiny: Tiny, cpu: CpuDevice, build_) -> None:
    with pytest.raises(WorkloadError, match="tiny-eager-fp32: building failed"):
        build(tiny(build=build_), cpu)


@pytest.mark.parametrize(
    "fields",
    [{"build": lambda: 5, "compile": {}}, {"compile": {"mode": "nonsense"}}, {"compile": {"nonsense": 1}}],
    ids=["not callable", "mode", "option"],
)
def test_what_torch_compile_refuses_is_an_error_of_the_workload(tiny: Tiny, cpu: CpuDevice, fields) -> None:
    with pytest.raises(WorkloadError, match="tiny-eager-fp32"):
        build(tiny(**fields), cpu)


def test_a_failure_without_words_while_measuring_is_told_by_its_type(tiny: Tiny, observe) -> None:
    calls: list[int] = []

    def function(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        if len(calls) > 3:
            raise RuntimeError
        return x * 2

    with pytest.raises(WorkloadError, match="measuring failed"):
        observe(tiny(build=lambda: function))


def test_any_exception_while_measuring_is_an_error_of_the_workload(tiny: Tiny, observe) -> None:
    calls: list[int] = []

    def function(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        if len(calls) > 3:
            raise ValueError("later")
        return x * 2

    with pytest.raises(WorkloadError, match="measuring failed"):
        observe(tiny(build=lambda: function))


def test_a_workload_that_runs_no_kernel_is_an_error_that_says_so(tiny: Tiny, observe) -> None:
    with pytest.raises(WorkloadError, match="no kernel"):
        observe(tiny(build=lambda: lambda x: x))


class Doubles(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


def test_a_reference_without_parameters_is_compared_with(tiny: Tiny, cpu: CpuDevice) -> None:
    (error,) = compare_with_float64(tiny(build=Doubles, reference=Doubles), cpu, seed=1)
    assert error.within_bound


@pytest.mark.parametrize(
    "reference", [raising(ZeroDivisionError("no")), lambda: nn.Linear(4, 5)], ids=["raises", "other parameters"]
)
def test_a_reference_that_fails_is_an_error_of_the_workload(tiny: Tiny, cpu: CpuDevice, reference) -> None:
    with pytest.raises(WorkloadError, match="reference"):
        compare_with_float64(tiny(reference=reference), cpu, seed=1)


def test_the_compilers_structured_trace_is_kept_out_of_log_captures(tiny: Tiny, observe, caplog) -> None:
    with caplog.at_level(logging.DEBUG):
        observe(tiny(compile={"backend": "eager"}))
    assert not [record for record in caplog.records if record.name == "torch.__trace"]


def test_the_reason_of_a_compiler_that_fails_is_told(tiny: Tiny, cpu: CpuDevice) -> None:
    def compiler(graph: object, example_inputs: object) -> object:
        raise NotImplementedError("no code for this")

    with pytest.raises(WorkloadError) as raised:
        first_call(build(tiny(compile={"backend": compiler}), cpu))
    assert "no code for this" in (raised.value.got or "")


def test_numerics_of_many_shapes_stay_compiled(tiny: Tiny, cpu: CpuDevice) -> None:
    ran: list[object] = []

    def backend(graph, _):
        ran.append(graph)
        return graph.forward

    for rows in range(2, 14):
        for dtype in ("fp32", "bf16", "fp16"):
            ran.clear()
            compare_with_float64(
                tiny(
                    build=Doubles,
                    dtype=dtype,
                    inputs=lambda rows=rows: (torch.randn(rows, 4),),
                    compile={"backend": backend, "dynamic": False},
                ),
                cpu,
                seed=1,
            )
            assert ran, (rows, dtype)


def test_a_module_that_changes_its_input_is_compared_on_the_same_input(tiny: Tiny, cpu: CpuDevice) -> None:
    (error,) = compare_with_float64(tiny(build=lambda: lambda x: x.mul_(2)), cpu, seed=1)
    assert error.within_bound


def test_one_tensor_instead_of_a_tuple_of_inputs_is_refused(tiny: Tiny, cpu: CpuDevice) -> None:
    with pytest.raises(WorkloadError, match="inputs"):
        build(tiny(inputs=lambda: torch.randn(1, 4)), cpu)
