"""A variant computes the same function as its reference, or the comparison says which tensor does
not.
"""

import math
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from functools import partial
from itertools import count
from typing import Any

import pytest
import torch
from torch import nn

from kernelgauge import Training
from kernelgauge.errors import KernelgaugeError
from kernelgauge.measure.choices import Replay
from kernelgauge.measure.compiler import restoring_settings
from kernelgauge.measure.device import Device
from kernelgauge.measure.numerics import BOUNDS, RelativeError, compare_with_float64
from tests.measure.conftest import raising, tiny


class Linear(nn.Module):
    """A linear whose parameters have the names of `nn.Linear`; `change` may spoil its output."""

    def __init__(self, change: Callable[[torch.Tensor, Any], Any] = lambda y, _: y) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 4))
        self.bias = nn.Parameter(torch.randn(3))
        self.change = change

    def forward(self, x: torch.Tensor) -> Any:
        return self.change(torch.addmm(self.bias, x, self.weight.t()), self)


def errors_of(
    cpu: Device, change: Any = None, *, seed: int = 7, **fields: Any
) -> dict[str, RelativeError]:
    """Compare a linear with `nn.Linear`, or what is built with its reference; errors by tensor."""
    linear: dict[str, Any] = {"build": lambda: Linear(change) if change else Linear()}
    if "build" not in fields:
        linear["reference"] = lambda: nn.Linear(4, 3)
    workload = tiny(**(linear | fields))
    return {
        error.tensor: error for error in compare_with_float64(workload, cpu, Replay(), seed=seed)
    }


def zeros() -> Linear:
    return Linear(lambda y, _: torch.zeros_like(y))


class Attention(nn.ModuleList):
    """Its softmax leaves no gradient for the bias of the keys; `leak` gives it one all the same."""

    def __init__(self, leak: float = 0.0) -> None:
        super().__init__(nn.Linear(4, 4) for _ in range(3))
        self.leak = leak

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (
            nn.functional.scaled_dot_product_attention(*(each(x) for each in self))
            + self.leak * self[1].bias
        )


NORMS = {"softmax": partial(nn.Softmax, -1), "layer norm": partial(nn.LayerNorm, 4)}
CANCELLING = {
    name: lambda norm=norm: nn.Sequential(nn.Linear(4, 4), norm()) for name, norm in NORMS.items()
}
CANCELLING["attention"] = Attention


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


def fused(eps: float | None = None) -> dict[str, Any]:
    """Compile so that results are rounded at the end alone, as a fused kernel does.

    `eps`: of the last norm, by mistake.
    """

    def backend(graph: torch.fx.GraphModule, example: Any) -> Callable[..., Any]:
        if eps is not None:
            norms = [
                node
                for node in graph.graph.nodes
                if getattr(node.target, "__name__", "") == "layer_norm"
            ]
            norms[-1].kwargs = {"eps": eps}
            graph.recompile()
        return lambda *inputs: [
            each.to(example[0].dtype) for each in graph(*(each.float() for each in inputs))
        ]

    return {"backend": backend}


def doubling(graph: torch.fx.GraphModule, _: object) -> Callable[..., object]:
    """Stand in for a compiler with a bug, which float64 does not meet."""
    return lambda *inputs: [each * (1 + (each.dtype != torch.float64)) for each in graph(*inputs)]


COMPILED_PART: Any = torch.compile(lambda y: 3 * y, backend=doubling)
SQUARE = torch.ones(2, 2)
CLOSURE: dict[str, Any] = {"build": lambda: lambda: SQUARE @ SQUARE, "inputs": tuple}


class NotInFloat64(nn.Linear):
    """As a fused attention kernel, which has no float64."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.dtype == torch.float64:
            raise RuntimeError("No available kernel. Aborting execution.")
        return super().forward(x) if x.dtype == torch.float32 else 1.001 * super().forward(x)


HELD = torch.randn(4, 4)


class Scattered(nn.Linear):
    """Adds rows to a tensor that it makes, and casts: a copy in float64 meets two dtypes."""

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__(4, 4)
        self.factor, self.held = factor, torch.ones(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = torch.zeros(2, 4).index_add_(0, torch.tensor([0, 1, 1, 0, 1]), super().forward(x))
        return self.factor * super().forward(rows.to(torch.float32) @ self.held)


def chaos(x: torch.Tensor) -> torch.Tensor:
    for _ in range(50):
        x = 3.9 * x * (1 - x)
    return x


def noisy(buffer: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return each result in the same memory, as a CUDA graph does."""
    return buffer.copy_(x + torch.rand(x.shape))


def rows() -> Iterator[Any]:
    yield from ((torch.randn(count, 4),) for count in (3, 5))


def listed() -> Iterator[Any]:
    yield torch.randn(5, 4), [torch.ones(4)]


def own_dtype(module: Any) -> Iterator[Any]:
    yield (torch.randn(5, 4, dtype=module.weight.dtype),)


def ids(module: Any, *, more: int = 0) -> Iterator[Any]:
    """Yield integers, of which the module keeps those that it has seen."""
    module.seen.zero_()
    yield from ((torch.tensor([each + more]),) for each in (1, 2, 3))


class Counting(nn.Embedding):
    def __init__(self, factor: float = 1.0) -> None:
        super().__init__(8, 4)
        self.factor, self.seen = factor, nn.Buffer(torch.zeros(1, dtype=torch.long))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        return self.factor * super().forward(x) * self.seen


def wrong_gradient(y: torch.Tensor, _: Linear) -> torch.Tensor:
    return y + 2 * (y - y.detach())


SMALL = Training(partial(torch.optim.AdamW, lr=1e-6))
SCALER, SCHEDULE = (
    partial(torch.amp.GradScaler, "cpu"),
    partial(torch.optim.lr_scheduler.StepLR, step_size=1),
)
FOREIGN = Training(lambda _: torch.optim.SGD(Linear().parameters()))
TRAINED: dict[str, Any] = {"pass_": "step", "training": Training(torch.optim.SGD, micro_batches=2)}
POSITIVE = lambda: (torch.rand(8, 8),)  # noqa: E731
RANDOM: dict[str, Any] = {"build": lambda: nn.Sequential(nn.Linear(4, 64), nn.Dropout(0.5))}
DEEP: dict[str, Any] = {"build": Deep, "inputs": lambda: (torch.randn(32, 64),)}
NUMBER = count()
ERROR, NOT_COMPARED = "WorkloadError: tiny-eager-fp32:", "NotComparedError:"
OTHER = "WorkloadError: *: the reference returns other tensors:"
# A linear with these fields, compared with `nn.Linear`; the tensors that are wrong, or the error.
RESULTS: dict[str, tuple[dict[str, Any], str]] = {
    "correct": ({}, ""),
    "without bias": ({"change": lambda y, module: y - module.bias}, "output 0"),
    # its difference from the reference can be taken
    "broadcastable": ({"change": lambda y, _: y[:1]}, "output 0"),
    "draws numbers": (
        {"change": lambda y, module: y - module.bias + 0 * torch.rand(3)},
        "output 0",
    ),
    # a race, or memory that nobody wrote
    "changes by itself": ({"change": lambda y, _: y + next(NUMBER)}, "output 0"),
    "beside zeros": ({"reference": zeros}, "output 0"),
    "compiled": ({"compile": {"backend": doubling}, "reference": None}, "output 0"),
    "compiled in part": ({"change": lambda y, _: COMPILED_PART(y), "reference": None}, "output 0"),
    "wrong in the last layer": (DEEP | {"compile": fused(eps=9.0)}, "output 0"),
    **{
        f"no error in {name}": ({"build": build, "pass_": "train"}, "")
        for name, build in CANCELLING.items()
    },
}
RESULTS_IN_FP32: dict[str, tuple[dict[str, Any], str]] = {
    "tolerated": ({"change": lambda y, _: 3 * y, "tolerance": 3.0}, ""),
    "not tolerated": ({"tolerance": 1e-12}, "output 0"),
    "gradient is not zero": ({"build": lambda: Attention(leak=0.01), "reference": Attention, "pass_": "train"}, "*gradient of 1.bias*"),
    "does not run": ({"build": lambda: nn.Linear(5, 3)}, f"{ERROR} running failed:*"),
    "reference of other parameters": ({"reference": lambda: nn.Linear(4, 5)}, f"{ERROR} building its reference failed:*"),
    "reference does not run": ({"reference": lambda: raising(ValueError("no"))}, f"{ERROR} running its reference failed:*"),
    "more": ({"change": lambda y, _: (y, y)}, f"{OTHER} output 1, nothing else"),
    "less": ({"change": lambda y, m: y.detach() + m.bias, "pass_": "train"}, f"{OTHER} nothing else, gradient of weight"),
    "scaled step": (TRAINED | {"training": Training(torch.optim.AdamW, clip_norm=1.0, scaler=SCALER, schedule=SCHEDULE)}, ""),
    "optimizer of others": (TRAINED | {"training": FOREIGN}, "WorkloadError: *optimizer has parameters of another module*"),
    "nothing to train": (TRAINED | {"build": lambda: Linear().requires_grad_(False)}, "WorkloadError: *there is nothing to train*"),
    "no sequence": ({"inputs": lambda: (each for each in ())}, "WorkloadError: *its inputs yield no call*"),
    "sequence with a list": ({"build": lambda: lambda x, cache: x + cache[0], "inputs": listed}, ""),
    "wrong step": (TRAINED | {"change": lambda y, module: y - module.bias}, "gradient of bias, parameter bias"),
    "trained sequence": ({"inputs": rows, "pass_": "train"}, ""),
    "sequence of integers with state": ({"build": Counting, "inputs": ids, "reference": Counting}, ""),
    "wrong sequence of integers": ({"build": lambda: Counting(1.1), "inputs": ids, "reference": Counting}, "output 0, call 1 output 0, call 2 output 0"),
    "random sequence": (RANDOM | {"inputs": rows}, f"{NOT_COMPARED} its result is random:*"),
    "sequence of batches": (TRAINED | {"inputs": rows}, "WorkloadError: *its inputs are a sequence*"),
    "wrong gradient of a small step": (TRAINED | {"change": wrong_gradient, "training": SMALL}, "gradient of weight, gradient of bias*"),
    "sequence of other inputs": ({"build": Linear, "inputs": own_dtype}, f"{NOT_COMPARED} its inputs are others for the reference:*"),
    "sequence of other inputs beside a reference": ({"inputs": own_dtype}, ""),
    "holds a tensor": ({"build": lambda: lambda x: x @ HELD}, ""),
    "wrong beside a tensor that both hold": ({"build": lambda: lambda x: 1.001 * x @ HELD, "reference": lambda: lambda x: x @ HELD}, "output 0"),
    "makes a tensor": ({"build": Scattered, "pass_": "train"}, ""),
    "makes a tensor and is compiled wrongly": ({"build": Scattered, "compile": {"backend": doubling}}, "output 0"),
    "wrong beside a reference that makes a tensor": ({"build": lambda: Scattered(1.001), "reference": Scattered}, "output 0"),
    "no float64 and compiled": ({"build": lambda: NotInFloat64(4, 3), "compile": fused()}, ""),
    "no float64 and compiled wrongly": ({"build": lambda: NotInFloat64(4, 3), "compile": {"backend": doubling}}, "output 0"),
    "random in one buffer": ({"build": lambda: partial(noisy, torch.empty(5, 4))}, f"{NOT_COMPARED} its result is random:*"),
    "random": (RANDOM, f"{NOT_COMPARED} its result is random:*"),
    "sparse gradient": ({"build": lambda: nn.Embedding(9, 4, sparse=True), "inputs": lambda: (torch.tensor([1, 2, 2]),), "pass_": "train"}, ""),
    "sparse": ({"build": lambda: lambda x: x.relu().to_sparse()}, ""),
    "wrong sparse": ({"build": lambda: lambda x: (2 * x).to_sparse(), "reference": lambda: torch.Tensor.to_sparse}, "output 0"),
    "complex": ({"build": lambda: torch.fft.fft, "reference": lambda: torch.fft.fft}, ""),
    "complex input": ({"build": lambda: torch.fft.ifft, "inputs": lambda: (torch.randn(4, 8, dtype=torch.complex64),)}, ""),
    "wrong complex": ({"build": lambda: torch.fft.fft, "reference": lambda: torch.fft.ifft}, "output 0"),
    "transposes its input": ({"build": lambda: lambda x: x.t_().sin()}, f"{NOT_COMPARED} a call changes a shape in place:*"),
    "integers": ({"build": lambda: lambda x: x.argmax(-1)}, f"{NOT_COMPARED} its result holds no floating-point tensor:*"),
    "no float64": ({"build": lambda: NotInFloat64(4, 3)}, f"{NOT_COMPARED} a copy in float64 does not run:*"),
    **{
        f"{name} {how}": (
            {"build": lambda f=function: f, "inputs": POSITIVE, "dtype": "fp16", "compile": compile_},
            f"{NOT_COMPARED} rounding or overflow alone explains any error:*",
        )
        for name, function in {"chaos": chaos, "overflow": lambda x: (1e4 * x) ** 3}.items()
        for how, compile_ in {"eager": None, "compiled": fused()}.items()
    },
}  # fmt: skip


IN_EACH = {
    f"{name} {dtype}": (it[0] | {"dtype": dtype}, it[1])
    for name, it in RESULTS.items()
    for dtype in BOUNDS
}


@pytest.mark.parametrize(
    ("fields", "expected"), (IN_EACH | RESULTS_IN_FP32).values(), ids=IN_EACH | RESULTS_IN_FP32
)
def test_result_is_wrong_fails_or_says_nothing(cpu: Device, fields: Any, expected: str) -> None:
    try:
        found = ", ".join(
            name for name, error in errors_of(cpu, **fields).items() if not error.within_bound
        )
    except KernelgaugeError as error:
        found = f"{type(error).__name__}: {error.what}: {error.got}, {error.expected}"
    assert fnmatchcase(found, expected), found


@pytest.mark.parametrize(
    ("fields", "seeds"),
    [
        ({}, 6),
        ({"compile": fused()}, 2),
        ({"build": partial(Deep, rounded=True), "reference": Deep}, 6),
    ],
    ids=["eager", "compiled", "reference"],
)
@pytest.mark.parametrize("pass_", ["forward", "train"])
@pytest.mark.parametrize("dtype", BOUNDS)
def test_deep_module_may_err_like_its_eager_run(
    cpu: Device, dtype: Any, pass_: str, fields: Any, seeds: int
) -> None:
    deep = DEEP | fields | {"dtype": dtype, "pass_": pass_}
    errors = [
        error for seed in range(seeds) for error in errors_of(cpu, seed=seed, **deep).values()
    ]
    assert not [str(each) for each in errors if not each.within_bound]
    if (pass_, dtype) == ("train", "bf16") and "compile" not in fields:
        assert any("4 x its eager run's error" in str(each) for each in errors)


@pytest.mark.parametrize(
    ("parameters", "inputs", "output", "bound"),
    [
        ("float64", "float64", "float64", "fp32"),
        ("float32", "float16", "float32", "fp16"),
        ("float16", "float32", "bfloat16", "bf16"),
        ("float32", "float8_e5m2", "float32", "bf16"),
    ],
)
def test_dtype_none_has_the_coarsest_bound(
    cpu: Device, parameters: str, inputs: str, output: str, bound: Any
) -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, dtype=getattr(torch, parameters)))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result = x.float() * self.weight.float()
            return result if x.dtype is torch.float64 else result.to(getattr(torch, output))

    tensors = lambda: (torch.randn(5, 4).to(getattr(torch, inputs)),)  # noqa: E731
    (error,) = errors_of(cpu, build=Mixed, dtype=None, inputs=tensors).values()
    assert (error.bound, error.within_bound) == (BOUNDS[bound], True)


@pytest.mark.parametrize("reference", [None, lambda: nn.Linear(4, 3)], ids=["itself", "reference"])
@pytest.mark.parametrize("low", [torch.bfloat16, torch.float8_e4m3fn, torch.int8], ids=str)
def test_bound_knows_dtypes_inside_a_module(cpu: Device, low: torch.dtype, reference: Any) -> None:
    def round_result(y: torch.Tensor, _: Linear) -> torch.Tensor:
        return y + ((16 * y).to(low).to(y.dtype) / 16 - y).detach()

    error = errors_of(cpu, round_result, dtype=None, reference=reference, pass_="train")["output 0"]
    assert error.within_bound
    assert error.bound < 0.1


def rotates() -> Linear:
    """Multiply by a complex buffer, as rotary embeddings do."""
    module = Linear(lambda y, module: torch.view_as_real(y * module.angles).sum(-1))
    module.register_buffer("angles", torch.polar(torch.ones(3), torch.arange(3.0)))
    return module


def masked(value: float | None, x: torch.Tensor) -> torch.Tensor:
    return torch.where(x > 0, torch.finfo(x.dtype).min if value is None else value, x)


def held(build: Callable[[], nn.Module], *, trains: bool) -> Callable[..., Any]:
    """A function whose module no copy in float64 has."""
    module = build()

    def call(x: torch.Tensor) -> Any:
        y = module(x)
        if not trains:
            return y
        module.zero_grad()
        y.square().sum().backward()
        return [each.grad for each in module.parameters()]

    return call


def writes() -> Callable[..., Any]:
    bank, places = torch.zeros(8, 4), torch.tensor([1, 3])

    def call(x: torch.Tensor) -> torch.Tensor:
        bank[places] = x.sin()
        return 2 * bank

    return call


def keeps_result(y: torch.Tensor, module: Linear) -> torch.Tensor:
    module.last = [y]
    return y


IN_PLACE: dict[str, Any] = {  # writes over its first input, and reads an expanded one
    "build": lambda: lambda x, row: x.mul_(2).add_(row),
    "inputs": lambda: (torch.randn(5, 4), torch.randn(4).expand(5, 4)),
}
EQUAL: dict[str, dict[str, Any]] = {
    "complex buffer": {"build": rotates, "dtype": None},
    "writes to its input": IN_PLACE | {"dtype": None},
    "keywords": {
        "build": lambda: lambda x, *, y: x + y,
        "inputs": lambda: ((torch.randn(4),), {"y": torch.randn(4)}),
    },
    "keeps its result": {"build": lambda: Linear(keeps_result), "pass_": "call"},
    "zeros": {"build": zeros, "reference": zeros},
    "held convolution": {
        "build": partial(held, partial(nn.Conv1d, 4, 3, 2), trains=False),
        "inputs": lambda: (torch.randn(5, 4, 6),),
        "dtype": None,
    },
    "backward of what is held": {
        "build": partial(
            held,
            lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)),
            trains=True,
        ),
        "inputs": lambda: (torch.randn(5, 4),),
        "dtype": None,
        "pass_": "call",
    },
    "writes to what is held": {
        "build": writes,
        "inputs": lambda: (torch.randn(2, 4),),
        "dtype": None,
    },
    "of nothing": CLOSURE | {"reference": lambda: lambda: 2 * SQUARE},
    "masked by -inf": {"build": lambda: partial(masked, -math.inf), "dtype": "bf16"},
    "masked by the least number": {"build": lambda: partial(masked, None), "dtype": "bf16"},
}


@pytest.mark.parametrize("fields", EQUAL.values(), ids=EQUAL)
def test_equal_results_have_no_error(cpu: Device, fields: Any) -> None:
    assert errors_of(cpu, **fields)["output 0"].error <= 1e-5


@pytest.mark.parametrize("dtype", ["bf16", None])
def test_reference_is_float32_where_it_has_no_float64(cpu: Device, dtype: Any) -> None:
    inputs = lambda: (torch.randn(5, 4, dtype=torch.bfloat16),)  # noqa: E731
    how: Any = {
        "build": lambda: NotInFloat64(4, 3, dtype=torch.bfloat16),
        "inputs": inputs,
        "dtype": dtype,
    }
    error = errors_of(cpu, **how)["output 0"]
    assert (error.within_bound, error.reference) == (True, "float32")
    assert 1e-4 < error.error < error.bound == BOUNDS["bf16"]


def test_numerics_of_many_shapes_stay_compiled(cpu: Device) -> None:
    def backend(graph: torch.fx.GraphModule, _: object) -> Callable[..., object]:
        ran.append(1)
        return graph.forward

    ran: list[int] = []
    for rows in range(2, 14):  # Dynamo gives up on the ninth of one code
        inputs = lambda n=rows: (torch.randn(n, 4),)  # noqa: E731
        errors_of(
            cpu, inputs=inputs, compile={"backend": backend, "dynamic": False}, reference=None
        )
    assert len(ran) == 12


def test_loss_of_an_output_is_what_is_trained(cpu: Device) -> None:
    def outputs(loss: str) -> Callable[[], Any]:
        return lambda: Linear(lambda y, _: {loss: y.square().mean(), "logits": y})

    for reference, is_same in (("loss", True), ("first", False)):
        errors = errors_of(cpu, build=outputs("loss"), reference=outputs(reference), pass_="train")
        assert (errors["gradient of weight"].error < 0.1) is is_same


@pytest.mark.skipif(not hasattr(torch.backends, "fp32_precision"), reason="torch 2.9")
def test_settings_of_float32_stay_and_may_be_mixed(cpu: Device) -> None:
    backends: Any = torch.backends
    with restoring_settings():
        backends.cuda.matmul.fp32_precision, backends.mkldnn.matmul.fp32_precision = "tf32", "bf16"
        assert errors_of(cpu, reference=None)["output 0"].within_bound
        assert (backends.cuda.matmul.fp32_precision, backends.mkldnn.matmul.fp32_precision) == (
            "tf32",
            "bf16",
        )
        assert cpu.fingerprint().fp32_matmul == "medium"
