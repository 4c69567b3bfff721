"""A variant computes the same function as its reference, or the comparison says which tensor does not."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from itertools import count
from typing import Any

import pytest
import torch
from torch import nn

from kernelgauge.errors import WorkloadError
from kernelgauge.measure.device import Device
from kernelgauge.measure.instance import restoring_settings
from kernelgauge.measure.numerics import BOUNDS, NotComparedError, RelativeError, compare_with_float64
from tests.measure.conftest import raising, tiny


class Linear(nn.Module):
    """A linear whose parameters have the names of `nn.Linear`; `change` may spoil its output."""

    def __init__(self, change: Callable[[torch.Tensor, Linear], Any] = lambda y, _: y) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 4))
        self.bias = nn.Parameter(torch.randn(3))
        self.change = change

    def forward(self, x: torch.Tensor) -> Any:
        return self.change(torch.addmm(self.bias, x, self.weight.t()), self)


def spoil(value: float) -> Callable[[torch.Tensor, Linear], torch.Tensor]:
    def change(y: torch.Tensor, _: Linear) -> torch.Tensor:
        y[0, 0] = value
        return y

    return change


def errors_of(cpu: Device, change: Any = None, *, seed: int = 7, **fields: Any) -> dict[str, RelativeError]:
    """Compare a linear with `nn.Linear`; errors by tensor."""
    build = Linear if change is None else lambda: Linear(change)
    workload = tiny(**({"build": build, "reference": lambda: nn.Linear(4, 3)} | fields))
    return {error.tensor: error for error in compare_with_float64(workload, cpu, seed=seed)}


def rejected(errors: Iterable[RelativeError]) -> list[str]:
    return [str(each) for each in errors if not each.within_bound]


def zeros() -> Linear:
    return Linear(lambda y, _: torch.zeros_like(y))


class Attention(nn.Module):
    """Its softmax leaves no gradient for the bias of the keys; `leak` gives it one all the same."""

    def __init__(self, leak: float = 0.0) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(4, 4) for _ in range(3))
        self.leak = leak

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.scaled_dot_product_attention(self.q(x), self.k(x), self.v(x)) + self.leak * self.k.bias


class Deep(nn.Module):
    """Blocks with a residual, whose scales are numbers; rounded once more in each, if `rounded`."""

    def __init__(self, *, rounded: bool = False, layers: int = 12) -> None:
        super().__init__()
        self.rounded = rounded
        self.linears = nn.ModuleList(nn.Linear(64, 64) for _ in range(layers))
        self.scales = nn.ParameterList(nn.Parameter(torch.tensor(0.5)) for _ in range(layers))
        for each in self.linears:
            nn.init.normal_(each.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for scale, linear in zip(self.scales, self.linears, strict=True):
            x = 3 * (x / 3) if self.rounded else x
            x = x + scale * nn.functional.relu(linear(nn.functional.layer_norm(x, (64,))))
        return x.square()


FAULTS: dict[str, tuple[str, Callable[[Any], object]]] = {  # the op, and what happens to it in the last block
    "residual": ("add", lambda node: node.replace_all_uses_with(node.args[1])),
    "bias": ("linear", lambda node: setattr(node, "args", (*node.args[:2], None))),
    "eps": ("layer_norm", lambda node: setattr(node, "kwargs", {"eps": 9.0})),
}


def fused(fault: str = "") -> dict[str, Any]:
    """Compile so that results are rounded at the end alone, as a fused kernel does."""

    def backend(graph: torch.fx.GraphModule, example: Any) -> Callable[..., Any]:
        if fault:
            name, change = FAULTS[fault]
            change([node for node in graph.graph.nodes if getattr(node.target, "__name__", "") == name][-1])
            graph.recompile()
        return lambda *inputs: [each.to(example[0].dtype) for each in graph(*(each.float() for each in inputs))]

    return {"backend": backend}


def doubling(graph: torch.fx.GraphModule, _: object) -> Callable[..., object]:
    """Stand in for a compiler with a bug, which float64 does not meet."""
    return lambda *inputs: [each * (1 + (each.dtype != torch.float64)) for each in graph(*inputs)]


COMPILED_PART: Any = torch.compile(lambda y: 3 * y, backend=doubling)


NUMBER = count()
ITSELF = {"reference": None}
DEEP: dict[str, Any] = {"build": Deep, "inputs": lambda: (torch.randn(32, 64),), **ITSELF}
WRONG: dict[str, dict[str, Any]] = {
    "without bias": {"change": lambda y, module: y - module.bias},
    "nan": {"change": spoil(math.nan)},
    "infinity": {"change": spoil(math.inf)},
    "narrower": {"change": lambda y, _: y[:, :2]},
    "broadcastable": {"change": lambda y, _: y[:1]},  # its difference from the reference can be taken
    "draws numbers": {"change": lambda y, module: y - module.bias + 0 * torch.rand(3)},
    "changes by itself": {"change": lambda y, _: y + next(NUMBER)},  # a race, or memory that is read before it is written
    "beside zeros": {"reference": zeros},
    "compiled": {"compile": {"backend": doubling}, **ITSELF},
    "compiled in part": {"change": lambda y, _: COMPILED_PART(y), **ITSELF},
    **{fault: {**DEEP, "compile": fused(fault)} for fault in FAULTS},
}  # fmt: skip


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("fields", WRONG.values(), ids=WRONG)
def test_wrong_output_is_beyond_every_bound(cpu: Device, fields: Any, dtype: Any) -> None:
    assert not errors_of(cpu, dtype=dtype, **fields)["output 0"].within_bound


def test_gradient_that_should_be_zero_and_is_not(cpu: Device) -> None:
    wrong = errors_of(cpu, build=lambda: Attention(leak=0.01), reference=Attention, pass_="train")
    assert not wrong["gradient of k.bias"].within_bound


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("pass_", ["forward", "train"])
@pytest.mark.parametrize("reference", [lambda: nn.Linear(4, 3), None], ids=["reference", "itself"])
def test_correct_module_is_within_its_bound(cpu: Device, dtype: Any, pass_: str, reference: Any) -> None:
    inputs = lambda: (torch.randn(5, 4, requires_grad=True),)  # noqa: E731
    errors = errors_of(cpu, dtype=dtype, pass_=pass_, reference=reference, inputs=inputs)
    gradients = ["gradient of weight", "gradient of bias", "gradient of input 0"] if pass_ == "train" else []
    assert list(errors) == ["output 0", *gradients]
    assert rejected(errors.values()) == []
    assert {error.bound for error in errors.values()} == {BOUNDS[dtype]}
    assert dtype == "fp32" or errors["output 0"].error > 1e-5


CANCELLING = {
    "attention": Attention,
    "softmax": lambda: nn.Sequential(nn.Linear(4, 4), nn.Softmax(-1)),
    "layer norm": lambda: nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)),
    "batch norm": lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)),
}


@pytest.mark.parametrize("build", CANCELLING.values(), ids=CANCELLING)
@pytest.mark.parametrize("dtype", BOUNDS)
def test_gradients_that_cancel_are_zero(cpu: Device, build: Any, dtype: Any) -> None:
    assert rejected(errors_of(cpu, build=build, reference=None, dtype=dtype, pass_="train").values()) == []


@pytest.mark.parametrize(
    ("fields", "seeds"),
    [({}, 6), ({"compile": fused()}, 2), ({"build": partial(Deep, rounded=True), "reference": Deep}, 6)],
    ids=["eager", "compiled", "reference"],
)
@pytest.mark.parametrize("pass_", ["forward", "train"])
@pytest.mark.parametrize("dtype", BOUNDS)
def test_deep_module_may_err_like_its_eager_run(cpu: Device, dtype: Any, pass_: str, fields: Any, seeds: int) -> None:
    deep = DEEP | fields | {"dtype": dtype, "pass_": pass_}
    errors = [error for seed in range(seeds) for error in errors_of(cpu, seed=seed, **deep).values()]
    assert rejected(errors) == []
    if (pass_, dtype) == ("train", "bf16") and "compile" not in fields:
        assert any("4 x its eager run's error" in str(each) for each in errors)


class Mixed(nn.Module):
    def __init__(self, parameters: str, output: str) -> None:
        super().__init__()
        self.output, self.weight = output, nn.Parameter(torch.randn(4, dtype=getattr(torch, parameters)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result = x.float() * self.weight.float()
        return result if x.dtype is torch.float64 else result.to(getattr(torch, self.output))


@pytest.mark.parametrize(
    ("parameters", "inputs", "output", "bound"),
    [
        ("float32", "float32", "float32", "fp32"),
        ("float64", "float64", "float64", "fp32"),
        ("bfloat16", "float32", "float32", "bf16"),
        ("float32", "float16", "float32", "fp16"),
        ("float16", "float32", "bfloat16", "bf16"),
        ("float32", "float8_e5m2", "float32", "bf16"),
    ],
)
def test_dtype_none_has_the_bound_of_the_coarsest(
    cpu: Device, parameters: str, inputs: str, output: str, bound: Any
) -> None:
    tensors = lambda: (torch.randn(5, 4).to(getattr(torch, inputs)),)  # noqa: E731
    mixed: Any = {"build": partial(Mixed, parameters, output), "reference": None, "dtype": None, "inputs": tensors}
    (error,) = errors_of(cpu, **mixed).values()
    assert (error.bound, error.within_bound) == (BOUNDS[bound], True)


@pytest.mark.parametrize("reference", [None, lambda: nn.Linear(4, 3)], ids=["itself", "reference"])
@pytest.mark.parametrize("low", [torch.bfloat16, torch.float8_e4m3fn, torch.int8], ids=str)
def test_bound_knows_dtypes_inside_a_module(cpu: Device, low: torch.dtype, reference: Any) -> None:
    def round_result(y: torch.Tensor, _: Linear) -> torch.Tensor:
        return y + ((16 * y).to(low).to(y.dtype) / 16 - y).detach()

    error = errors_of(cpu, round_result, dtype=None, reference=reference, pass_="train")["output 0"]
    assert error.within_bound
    assert error.bound < 0.1


def test_tolerance_is_the_bound(cpu: Device) -> None:
    errors = [errors_of(cpu, lambda y, _: 3 * y, tolerance=each)["output 0"] for each in (0.5, 3.0)]
    assert [(error.bound, error.within_bound) for error in errors] == [(0.5, False), (3.0, True)]
    assert errors_of(cpu, tolerance=1e-12)["output 0"].within_bound is False


class Rotates(nn.Module):
    """As rotary embeddings do, by a complex buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("angles", torch.polar(torch.ones(4), torch.arange(4.0)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * self.angles).real + (x * self.angles).imag


def masked(value: float | None, x: torch.Tensor) -> torch.Tensor:
    return torch.where(x > 0, torch.finfo(x.dtype).min if value is None else value, x)


SQUARE = torch.ones(2, 2)
CLOSURE: dict[str, Any] = {"build": lambda: lambda: SQUARE @ SQUARE, "inputs": tuple}
IN_PLACE: dict[str, Any] = {  # writes over its first input, and reads an expanded one
    "build": lambda: lambda x, row: x.mul_(2).add_(row),
    "inputs": lambda: (torch.randn(5, 4), torch.randn(4).expand(5, 4)),
}
EQUAL: dict[str, dict[str, Any]] = {
    "complex buffer": {"build": Rotates, "dtype": None},
    "writes to its input": IN_PLACE | {"dtype": None},
    "zeros": {"build": zeros, "reference": zeros},
    "of nothing": CLOSURE | {"reference": lambda: lambda: 2 * SQUARE},
    "masked by -inf": {"build": lambda: partial(masked, -math.inf), "dtype": "bf16"},
    "masked by nan": {"build": lambda: partial(masked, math.nan), "dtype": "bf16"},
    "masked by the least number": {"build": lambda: partial(masked, None), "dtype": "bf16"},
}


@pytest.mark.parametrize("fields", EQUAL.values(), ids=EQUAL)
def test_equal_results_have_no_error(cpu: Device, fields: Any) -> None:
    assert errors_of(cpu, **(ITSELF | fields))["output 0"].error <= 1e-5


class Step(nn.Linear):
    """Steps its own optimizer."""

    optimizer: Any = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.optimizer is None:
            self.optimizer = torch.optim.AdamW(self.parameters(), lr=0.1)
        with torch.enable_grad():
            loss = super().forward(x).square().mean()
            loss.backward()
        self.optimizer.step()
        return loss.detach() + self.weight.detach().sum()


class NotInFloat64(nn.Linear):
    """As a fused attention kernel, which has no float64."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.dtype == torch.float64:
            raise RuntimeError("No available kernel. Aborting execution.")
        return super().forward(x) if x.dtype == torch.float32 else 1.001 * super().forward(x)


@pytest.mark.parametrize(
    ("build", "dtype", "reference"),
    [(Step, "fp32", "float64"), (Step, "bf16", "float64"), (NotInFloat64, "bf16", "float32"), (NotInFloat64, None, "float32")],
)  # fmt: skip
def test_reference_is_float64_or_float32(cpu: Device, build: Any, dtype: Any, reference: str) -> None:
    inputs = lambda: (torch.randn(5, 4, dtype=torch.bfloat16),)  # noqa: E731
    how: Any = {"build": lambda: build(4, 3, dtype=torch.bfloat16), "inputs": inputs, "dtype": dtype}
    error = errors_of(cpu, reference=None, **how)["output 0"]
    assert (error.within_bound, error.reference) == (True, reference)
    assert build is Step or 1e-4 < error.error < error.bound == BOUNDS["bf16"]


def chaos(x: torch.Tensor) -> torch.Tensor:
    for _ in range(50):
        x = 3.9 * x * (1 - x)
    return x


def any_error(function: Any, compile_: Any) -> dict[str, Any]:
    inputs = lambda: (torch.rand(8, 8),)  # noqa: E731
    return {"build": lambda: function, "inputs": inputs, "dtype": "fp16", "compile": compile_}


RANDOM: dict[str, Any] = {"build": lambda: nn.Sequential(nn.Linear(4, 64), nn.Dropout(0.5))}
NOT_COMPARED: list[tuple[str, dict[str, Any]]] = [
    *(("its result is random", RANDOM | {"pass_": pass_}) for pass_ in ("forward", "train")),
    ("no floating-point tensor", {"build": lambda: lambda x: x.argmax(-1)}),
    ("nothing to be compared with", CLOSURE),
    ("a copy of it in float64 does not run", {"build": lambda: NotInFloat64(4, 3)}),
    *(
        ("rounding or overflow alone explains any error", any_error(function, compile_))
        for function in (chaos, lambda x: (1e4 * x) ** 3)
        for compile_ in (None, fused())
    ),
]


@pytest.mark.parametrize(("reason", "fields"), NOT_COMPARED)
def test_result_that_says_nothing_is_not_compared(cpu: Device, reason: str, fields: Any) -> None:
    with pytest.raises(NotComparedError, match=reason):
        errors_of(cpu, **fields, reference=None)


OTHER = "the reference returns other tensors"


@pytest.mark.parametrize(
    ("fields", "what", "got", "expected"),
    [
        ({"build": lambda: nn.Linear(5, 3)}, "running failed", None, None),
        ({"reference": raising(ZeroDivisionError("no"))}, "building its reference failed", None, None),
        ({"reference": lambda: nn.Linear(4, 5)}, "building its reference failed", None, None),
        ({"reference": lambda: raising(ValueError("no"))}, "running its reference failed", None, None),
        ({"change": lambda y, _: (y, y)}, OTHER, "output 1", "nothing else"),
        ({"change": lambda y, m: y.detach() + m.bias, "pass_": "train"}, OTHER, "nothing else", "gradient of weight"),
    ],
)
def test_failure_is_an_error_of_the_workload(cpu: Device, fields: Any, what: str, got: Any, expected: Any) -> None:
    with pytest.raises(WorkloadError, match=f"tiny-eager-(train-)?fp32: {what}") as raised:
        errors_of(cpu, **fields)
    assert got is None or (raised.value.got, raised.value.expected) == (got, expected)


def test_numerics_of_many_shapes_stay_compiled(cpu: Device) -> None:
    def backend(graph: torch.fx.GraphModule, _: object) -> Callable[..., object]:
        ran.append(1)
        return graph.forward

    ran: list[int] = []
    for rows in range(2, 14):  # Dynamo gives up on the ninth of one code
        inputs = lambda n=rows: (torch.randn(n, 4),)  # noqa: E731
        errors_of(cpu, inputs=inputs, compile={"backend": backend, "dynamic": False}, reference=None)
    assert len(ran) == 12


def test_keyword_and_nested_inputs_have_names(cpu: Device) -> None:
    def sums(x: torch.Tensor, *, pair: Any, ids: torch.Tensor) -> Any:
        return {"sum": x + pair[0] * pair[1], "ids": ids}

    def inputs() -> Any:
        x, y, z = (torch.randn(5, 4, requires_grad=True) for _ in range(3))
        return (x,), {"pair": (y, z), "ids": torch.arange(3)}

    errors = errors_of(cpu, build=lambda: sums, reference=None, inputs=inputs, pass_="train", dtype="bf16")
    gradients = ("input 0", "input pair.0", "input pair.1")
    assert list(errors) == ["output 0", *(f"gradient of {name}" for name in gradients)]
    assert rejected(errors.values()) == []


def test_loss_of_an_output_is_what_is_trained(cpu: Device) -> None:
    class WithLoss(nn.Linear):
        loss = "loss"

        def forward(self, x: torch.Tensor) -> Any:
            y = super().forward(x)
            return {self.loss: y.square().mean(), "logits": y}

    class Unnamed(WithLoss):
        loss = "first"

    for reference, is_same in ((WithLoss, True), (Unnamed, False)):
        errors = errors_of(cpu, build=lambda: WithLoss(4, 3), reference=lambda of=reference: of(4, 3), pass_="train")
        assert (errors["gradient of weight"].error < 0.1) is is_same


@pytest.mark.skipif(not hasattr(torch.backends, "fp32_precision"), reason="torch 2.9")
def test_settings_of_float32_stay_and_may_be_mixed(cpu: Device) -> None:
    backends: Any = torch.backends
    with restoring_settings():
        backends.cuda.matmul.fp32_precision, backends.mkldnn.matmul.fp32_precision = "tf32", "bf16"
        assert errors_of(cpu, reference=None)["output 0"].within_bound
        assert (backends.cuda.matmul.fp32_precision, backends.mkldnn.matmul.fp32_precision) == ("tf32", "bf16")
        assert cpu.fingerprint().fp32_matmul == "medium"
