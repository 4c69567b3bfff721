"""A workload made real: the same values each time, other addresses, and errors that say which workload failed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from kernelgauge import Workload
from kernelgauge.errors import KernelgaugeError, MeasurementError, WorkloadError, WorkloadUnavailable
from kernelgauge.measure.device.cpu import CpuDevice
from kernelgauge.measure.instance import TORCH_DTYPES, build, first_call, total_of

Tiny = Callable[..., Workload]


def raising(error: BaseException) -> Callable[[], nn.Module]:
    def build_nothing() -> nn.Module:
        raise error

    return build_nothing


# -- values and addresses -------------------------------------------------------------------------------------------


def test_two_replicates_have_equal_values_at_different_addresses(tiny: Tiny, cpu: CpuDevice) -> None:
    first, second = build(tiny(), cpu), build(tiny(), cpu, replicate=1)
    assert torch.equal(first.module.weight, second.module.weight)
    assert torch.equal(first.inputs[0], second.inputs[0])
    assert first.module.weight.data_ptr() != second.module.weight.data_ptr()
    assert first.inputs[0].data_ptr() != second.inputs[0].data_ptr()


def test_values_do_not_depend_on_what_was_drawn_before(tiny: Tiny, cpu: CpuDevice) -> None:
    first = build(tiny(), cpu)
    torch.randn(100)
    assert torch.equal(first.inputs[0], build(tiny(), cpu).inputs[0])


def test_another_seed_gives_other_values(tiny: Tiny, cpu: CpuDevice) -> None:
    first, second = build(tiny(), cpu, seed=1), build(tiny(), cpu, seed=2)
    assert not torch.equal(first.module.weight, second.module.weight)
    assert not torch.equal(first.inputs[0], second.inputs[0])


def test_each_replicate_holds_padding_of_another_size(tiny: Tiny, cpu: CpuDevice) -> None:
    sizes = [build(tiny(), cpu, replicate=index)._padding.numel() for index in range(4)]
    assert len(set(sizes)) == 4
    assert all(size % 512 == 0 and size // 512 % 2 == 1 for size in sizes)


# -- dtypes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", TORCH_DTYPES)
def test_module_and_inputs_have_the_dtype_of_the_workload(tiny: Tiny, cpu: CpuDevice, dtype: str) -> None:
    instance = build(tiny(dtype=dtype), cpu)
    wanted = TORCH_DTYPES[dtype]  # type: ignore[index]  # the ids are the keys
    assert {parameter.dtype for parameter in instance.module.parameters()} == {wanted}
    assert instance.inputs[0].dtype is wanted
    assert instance.outputs().dtype is wanted


def test_integers_booleans_and_plain_numbers_are_left_as_they_are(tiny: Tiny, cpu: CpuDevice) -> None:
    workload = tiny(
        build=lambda: lambda *values: values[0],
        inputs=lambda: (torch.arange(3), torch.tensor([True]), 7, None),
        dtype="bf16",
    )
    tokens, mask, number, nothing = build(workload, cpu).inputs
    assert tokens.dtype is torch.int64
    assert mask.dtype is torch.bool
    assert (number, nothing) == (7, None)


def test_a_plain_function_can_be_built_too(tiny: Tiny, cpu: CpuDevice) -> None:
    instance = build(tiny(build=lambda: torch.relu), cpu)
    assert torch.equal(instance.outputs(), instance.inputs[0].relu())


# -- passes ---------------------------------------------------------------------------------------------------------


def test_a_train_pass_leaves_gradients_and_clears_them_before_the_next_call(tiny: Tiny, cpu: CpuDevice) -> None:
    instance = build(tiny(pass_="train"), cpu)
    with instance.grad_mode():
        first_call(instance)
        once = instance.module.weight.grad.clone()
        instance.prepare()
        assert instance.module.weight.grad is None
        instance.call()
    assert torch.equal(instance.module.weight.grad, once)  # and not twice as much


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_the_gradient_of_an_input_that_asks_for_one_is_cleared_too(tiny: Tiny, cpu: CpuDevice, dtype: str) -> None:
    instance = build(tiny(inputs=lambda: (torch.randn(5, 4, requires_grad=True),), dtype=dtype, pass_="train"), cpu)
    (x,) = instance.inputs
    assert x.is_leaf
    with instance.grad_mode():
        first_call(instance)
        once = x.grad.clone()
        for _ in range(2):
            instance.prepare()
            assert x.grad is None
            instance.call()
    assert torch.equal(x.grad, once)


def test_places_in_memory_come_round_again(tiny: Tiny, cpu: CpuDevice) -> None:
    """Else a thousand replicates would ask for 8 GB of padding."""
    sizes = [build(tiny(), cpu, replicate=replicate)._padding.numel() for replicate in (0, 1, 63, 64, 1000)]
    assert sizes[0] == sizes[3] < sizes[1] < sizes[2] < 1 << 29
    assert sizes[4] < 1 << 29


def test_a_forward_pass_runs_without_autograd(tiny: Tiny, cpu: CpuDevice) -> None:
    instance = build(tiny(), cpu)
    with instance.grad_mode():
        first_call(instance)
        assert not instance.outputs().requires_grad
    assert instance.module.weight.grad is None
    assert torch.is_grad_enabled()


def test_a_train_pass_of_a_plain_function_has_nothing_to_clear(tiny: Tiny, cpu: CpuDevice) -> None:
    leaf = torch.ones(5, 4, requires_grad=True)
    instance = build(tiny(build=lambda: lambda x: x * leaf, pass_="train"), cpu)
    with instance.grad_mode():
        first_call(instance)
    assert torch.equal(leaf.grad, instance.inputs[0])


def test_the_total_is_over_every_floating_point_tensor_of_a_nested_output() -> None:
    output = {"a": torch.ones(2), "b": [torch.full((3,), 2.0), (torch.tensor([5, 5]), None, "text")]}
    assert total_of(output).item() == 2 + 6


def test_the_total_of_one_tensor_is_its_sum() -> None:
    assert total_of(torch.arange(4.0)).item() == 6


@pytest.mark.parametrize("output", [None, torch.arange(3), {"tokens": torch.arange(3)}, "text"])
def test_an_output_without_floating_point_tensors_has_no_total(output: object) -> None:
    with pytest.raises(TypeError, match="no floating-point tensor to sum: "):
        total_of(output)


def test_a_train_pass_that_cannot_be_summed_names_the_workload(tiny: Tiny, cpu: CpuDevice) -> None:
    instance = build(tiny(build=lambda: lambda x: x.argmax(), pass_="train"), cpu)
    with pytest.raises(WorkloadError, match="tiny-eager-train-fp32: running failed") as raised:
        first_call(instance)
    assert "no floating-point tensor" in (raised.value.got or "")


# -- failures -------------------------------------------------------------------------------------------------------


def test_a_build_that_raises_is_told_with_its_place_and_the_first_line(tiny: Tiny, cpu: CpuDevice) -> None:
    with pytest.raises(WorkloadError) as raised:
        build(tiny(build=raising(ValueError("dim 7 is odd\nand more"))), cpu)
    error = raised.value
    assert error.what == "tiny-eager-fp32: building failed"
    assert error.got == "ValueError: dim 7 is odd"
    assert error.where == __file__
    assert isinstance(error.__cause__, ValueError)


def test_an_error_without_words_is_told_by_its_type(tiny: Tiny, cpu: CpuDevice) -> None:
    with pytest.raises(WorkloadError) as raised:
        build(tiny(build=raising(AssertionError())), cpu)
    assert raised.value.got == "AssertionError: AssertionError()"


def test_inputs_that_raise_are_told_as_a_failure_to_build(tiny: Tiny, cpu: CpuDevice) -> None:
    with pytest.raises(WorkloadError, match="tiny-eager-fp32: building failed"):
        build(tiny(inputs=raising(KeyError("rows"))), cpu)


def test_a_lack_of_memory_is_told_in_words_of_its_own(tiny: Tiny, cpu: CpuDevice) -> None:
    full = torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 9.00 GiB. GPU 0 has 139 GiB")
    with pytest.raises(WorkloadError) as raised:
        build(tiny(build=raising(full)), cpu)
    error = raised.value
    assert error.what == "tiny-eager-fp32: out of device memory while building"
    assert error.got == "CUDA out of memory"
    assert "nvidia-smi" in (error.next_command or "")


def test_what_is_built_must_be_callable(tiny: Tiny, cpu: CpuDevice) -> None:
    with pytest.raises(WorkloadError) as raised:
        first_call(build(tiny(build=lambda: 5), cpu))
    assert raised.value.what == "tiny-eager-fp32: building failed"
    assert raised.value.got == "TypeError: build() returned int, expected something to call"


def test_a_failure_in_the_first_call_of_a_compiled_workload_may_be_the_compiler(tiny: Tiny, cpu: CpuDevice) -> None:
    def compiler(graph: object, example_inputs: object) -> object:
        raise NotImplementedError("no code for this")

    instance = build(tiny(compile={"backend": compiler}), cpu)
    with pytest.raises(WorkloadError, match="tiny-eager-fp32: compiling or running failed") as raised:
        first_call(instance)
    assert (raised.value.got or "").startswith("BackendCompilerFailed: ")


@pytest.mark.parametrize("error", [WorkloadUnavailable("not here"), MeasurementError("not so"), KernelgaugeError("no")])
def test_errors_of_kernelgauge_itself_pass_through_unchanged(
    tiny: Tiny, cpu: CpuDevice, error: KernelgaugeError
) -> None:
    with pytest.raises(KernelgaugeError) as raised:
        build(tiny(build=raising(error)), cpu)
    assert raised.value is error

    def call(_: object) -> None:
        raise error

    with pytest.raises(KernelgaugeError) as raised:
        first_call(build(tiny(build=lambda: call), cpu))
    assert raised.value is error


def test_an_interrupt_is_no_failure_of_the_workload(tiny: Tiny, cpu: CpuDevice) -> None:
    with pytest.raises(KeyboardInterrupt):
        build(tiny(build=raising(KeyboardInterrupt())), cpu)


def test_a_workload_that_needs_a_gpu_is_unavailable_before_it_is_built(tiny: Tiny, cpu: CpuDevice) -> None:
    workload = tiny(build=raising(AssertionError("built")), needs_gpu="Triton code")
    with pytest.raises(WorkloadUnavailable, match="Triton code") as raised:
        build(workload, cpu)
    assert raised.value.expected == "a CUDA GPU"
