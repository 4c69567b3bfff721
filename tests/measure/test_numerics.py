"""A variant computes the same function as its reference, or the comparison says which tensor does not."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import nn

from kernelgauge import Workload
from kernelgauge.errors import WorkloadError, WorkloadUnavailable
from kernelgauge.measure.device.cpu import CpuDevice
from kernelgauge.measure.numerics import BOUNDS, RelativeError, compare_with_float64

Tiny = Callable[..., Workload]


class Linear(nn.Module):
    """A linear with its parameters under the names of `nn.Linear`, for variants that go wrong."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 4))
        self.bias = nn.Parameter(torch.randn(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.addmm(self.bias, x, self.weight.t())


class WithoutBias(Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight.t()


class WithBiasOffByLittle(Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + 1e-3


class OneNan(Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result = super().forward(x)
        result[0, 0] = math.nan
        return result


class OneInfinity(Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result = super().forward(x)
        result[0, 0] = math.inf
        return result


class Zeros(Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.zeros(len(x), 3, device=x.device, dtype=x.dtype)


class Narrower(Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x)[:, :2]


class Broadcastable(Linear):
    """Its difference from the reference could be taken without an error."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x)[:1]


class NanGradient(Linear):
    """The right output; sqrt has an infinite slope at zero, and infinity times zero is NaN."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + (self.bias - self.bias.detach()).pow(2).sqrt()


class WithoutGradientOfTheWeight(Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.addmm(self.bias, x, self.weight.detach().t())


class TwoOutputs(Linear):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        result = super().forward(x)
        return result, result * 2


def reference() -> nn.Module:
    return nn.Linear(4, 3)


def errors_of(tiny: Tiny, cpu: CpuDevice, build: Callable[[], nn.Module], **fields: object) -> dict[str, RelativeError]:
    workload = tiny(**{"build": build, "reference": reference, **fields})
    return {error.tensor: error for error in compare_with_float64(workload, cpu, seed=7)}


# -- right ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("pass_", ["forward", "train"])
@pytest.mark.parametrize("with_reference", [True, False], ids=["reference", "itself"])
def test_a_correct_module_is_within_its_bound(
    tiny: Tiny, cpu: CpuDevice, dtype: str, pass_: str, with_reference: bool
) -> None:
    found = errors_of(
        tiny, cpu, Linear, dtype=dtype, pass_=pass_, reference=reference if with_reference else None
    ).values()
    assert found
    assert all(error.within_bound for error in found), [str(error) for error in found]
    assert {error.bound for error in found} == {BOUNDS[dtype]}  # type: ignore[index]  # the ids are the keys


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_the_error_of_a_short_dtype_is_seen_and_not_zero(tiny: Tiny, cpu: CpuDevice, dtype: str) -> None:
    assert errors_of(tiny, cpu, Linear, dtype=dtype)["output 0"].error > 1e-5


def test_the_reference_has_the_parameters_of_the_variant(tiny: Tiny, cpu: CpuDevice) -> None:
    made: list[nn.Linear] = []

    def zeros() -> nn.Module:
        made.append(nn.Linear(4, 3))
        nn.init.zeros_(made[0].weight)
        return made[0]

    errors = errors_of(tiny, cpu, Linear, reference=zeros)
    assert errors["output 0"].within_bound
    assert made[0].weight.dtype is torch.float64
    assert made[0].weight.abs().min() > 0


def test_a_compiled_variant_is_compared_with_the_plain_module(tiny: Tiny, cpu: CpuDevice) -> None:
    ran: list[object] = []

    def backend(graph: torch.fx.GraphModule, _: object) -> Callable[..., object]:
        ran.append(graph)
        return lambda *inputs: [output + 1 for output in graph(*inputs)]  # a compiler with a bug

    error = errors_of(tiny, cpu, Linear, compile={"backend": backend}, reference=None)["output 0"]
    assert len(ran) == 1  # and not the reference
    assert not error.within_bound


def test_a_forward_pass_compares_outputs_only(tiny: Tiny, cpu: CpuDevice) -> None:
    assert list(errors_of(tiny, cpu, Linear)) == ["output 0"]


def test_a_train_pass_compares_the_gradient_of_each_parameter_too(tiny: Tiny, cpu: CpuDevice) -> None:
    assert list(errors_of(tiny, cpu, Linear, pass_="train")) == [
        "output 0",
        "gradient of weight",
        "gradient of bias",
    ]


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("with_reference", [True, False], ids=["reference", "itself"])
def test_the_gradient_of_an_input_that_asks_for_one_is_compared_too(
    tiny: Tiny, cpu: CpuDevice, dtype: str, with_reference: bool
) -> None:
    found = errors_of(
        tiny,
        cpu,
        Linear,
        inputs=lambda: (torch.randn(5, 4, requires_grad=True),),
        dtype=dtype,
        pass_="train",
        reference=reference if with_reference else None,
    )
    assert list(found) == ["output 0", "gradient of weight", "gradient of bias", "gradient of input 0"]
    assert all(error.within_bound for error in found.values()), [str(error) for error in found.values()]


def test_gradients_are_those_of_one_call(tiny: Tiny, cpu: CpuDevice) -> None:
    """The first call compiles, and what it leaves is cleared."""
    error = errors_of(tiny, cpu, Linear, pass_="train", reference=None)["gradient of weight"]
    assert error.error < 1e-6  # 1.0 if it were twice as much


def test_every_output_is_compared(tiny: Tiny, cpu: CpuDevice) -> None:
    assert list(errors_of(tiny, cpu, TwoOutputs, reference=None)) == ["output 0", "output 1"]


def test_the_seed_decides_the_values(tiny: Tiny, cpu: CpuDevice) -> None:
    def error(seed: int) -> float:
        (found,) = compare_with_float64(tiny(), cpu, seed=seed)
        return found.error

    assert error(1) == error(1)
    assert error(1) != error(2)


def test_zeros_are_zeros(tiny: Tiny, cpu: CpuDevice) -> None:
    assert errors_of(tiny, cpu, Zeros, reference=Zeros)["output 0"].error == 0


# -- wrong ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("wrong", [WithoutBias, OneNan, OneInfinity, Narrower, Broadcastable])
def test_a_wrong_output_is_beyond_every_bound(
    tiny: Tiny, cpu: CpuDevice, wrong: Callable[[], nn.Module], dtype: str
) -> None:
    assert not errors_of(tiny, cpu, wrong, dtype=dtype)["output 0"].within_bound


def test_an_output_that_should_be_zero_and_is_not_is_beyond_every_bound(tiny: Tiny, cpu: CpuDevice) -> None:
    error = errors_of(tiny, cpu, Linear, reference=Zeros)["output 0"]
    assert error.error == math.inf
    assert not error.within_bound


def test_a_bias_that_is_off_by_little_is_seen_in_fp32(tiny: Tiny, cpu: CpuDevice) -> None:
    error = errors_of(tiny, cpu, WithBiasOffByLittle)["output 0"]
    assert 1e-5 < error.error < 1e-2
    assert not error.within_bound


def test_a_gradient_that_is_nan_fails_though_the_output_is_right(tiny: Tiny, cpu: CpuDevice) -> None:
    errors = errors_of(tiny, cpu, NanGradient, pass_="train")
    assert errors["output 0"].within_bound
    assert math.isnan(errors["gradient of bias"].error)
    assert not errors["gradient of bias"].within_bound


def test_a_gradient_that_is_missing_is_an_error_that_names_the_tensors(tiny: Tiny, cpu: CpuDevice) -> None:
    with pytest.raises(WorkloadError, match="the reference returns other tensors") as raised:
        errors_of(tiny, cpu, WithoutGradientOfTheWeight, pass_="train")
    assert raised.value.got == "output 0, gradient of bias"
    assert raised.value.expected == "output 0, gradient of weight, gradient of bias"


def test_another_number_of_outputs_is_an_error(tiny: Tiny, cpu: CpuDevice) -> None:
    with pytest.raises(WorkloadError, match="the reference returns other tensors") as raised:
        errors_of(tiny, cpu, TwoOutputs)
    assert raised.value.got == "output 0, output 1"


def test_a_variant_that_raises_is_an_error_of_the_workload(tiny: Tiny, cpu: CpuDevice) -> None:
    with pytest.raises(WorkloadError, match="tiny-eager-fp32: running failed"):
        errors_of(tiny, cpu, lambda: nn.Linear(5, 3))


def test_a_workload_that_is_not_for_this_device_is_unavailable(tiny: Tiny, cpu: CpuDevice) -> None:
    with pytest.raises(WorkloadUnavailable):
        errors_of(tiny, cpu, Linear, needs_gpu="Triton code")


@pytest.mark.parametrize(
    ("error", "within"), [(0.0, True), (1e-5, True), (1.1e-5, False), (math.inf, False), (math.nan, False)]
)
def test_only_a_number_up_to_the_bound_is_within_it(error: float, within: bool) -> None:
    assert RelativeError("output 0", error, 1e-5).within_bound is within


def test_an_error_is_shown_with_its_tensor_and_its_bound() -> None:
    shown = str(RelativeError("gradient of up.weight", 0.01234, 1e-2))
    assert shown == "gradient of up.weight: relative error 1.23e-02, bound 1e-02"
