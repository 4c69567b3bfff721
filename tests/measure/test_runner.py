"""From a workload to its run: structure and counts on a CPU, and how an instance is built for it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from kernelgauge import Workload
from kernelgauge.errors import WorkloadError, WorkloadUnavailable
from kernelgauge.measure.device import CpuDevice
from kernelgauge.measure.numerics import BOUNDS
from kernelgauge.measure.runner import measure_groups
from kernelgauge.measure.subject import Replicate, Subject
from kernelgauge.run import CompileEvent, Sample, Timer
from kernelgauge.trace import parse
from tests.measure.conftest import QUICK, FakeGpu, measured, raising, results_of, tiny

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def test_run_has_structure_of_an_eager_workload(cpu: CpuDevice) -> None:
    said: list[str] = []
    result = measured(
        cpu, tiny(build=lambda: nn.Sequential(nn.Linear(4, 3), nn.GELU(), nn.GELU())), progress=said.append
    )
    run, counts = result.run, result.run.counts
    assert run.workload == "tiny-eager-fp32"
    assert (run.kernel_names(), run.kinds()) == (
        ["aten::addmm", "aten::gelu", "aten::gelu"],
        ["gemm", "pointwise", "pointwise"],
    )
    assert all(kernel.device_time_us > 0 for kernel in run.kernels)
    assert (counts.launches, counts.kernels) == (3, 2)
    assert (counts.memsets, counts.copies, counts.synchronizations) == (0, 0, 0)
    assert counts.dispatcher_ops == sum("::" in name for name in run.op_names()) > 3
    assert (counts.graph_breaks, counts.recompiles, counts.peak_allocated_bytes) == (0, 0, None)
    assert (run.launch_apis, run.occupancy_queries, run.metadata_ops_that_launched) == ((), 0, ())
    assert said == ["tiny-eager-fp32: profiling", "timing, pass 1: 1 of 1 workloads"]
    assert run.steps == len(parse(result.trace_json).steps()) == 3
    assert "aten::addmm" in result.table


def test_run_on_gpu_has_gpu_and_host_time(gpu: FakeGpu) -> None:
    result = measured(gpu, gpu.workload(kernels=("gemm", "gelu", "gemm"), launch={"synchronizes": True}))
    assert result.run.launch_apis == ("cudaLaunchKernel",) * 3
    counts = result.run.counts
    assert (counts.launches, counts.kernels, counts.synchronizations) == (3, 2, 3)
    assert counts.peak_allocated_bytes == 1 << 20
    assert result.run.samples == {
        Timer.DEVICE: Sample((10.0, 10.0), 3),
        Timer.HOST: Sample((15.0, 15.0), 3, (14.0, 14.0)),
    }
    assert (result.latency_replicates, result.latency_iterations) == (8, 20)


class Seen:
    """Builds linears, and keeps what each was called with."""

    def __init__(self, dtype: Any = "fp32") -> None:
        self.dtype = dtype
        self.modules: list[nn.Module] = []
        self.inputs: list[tuple[Any, ...]] = []

    def workload(self, **fields: Any) -> Workload:
        return tiny(**({"build": self.build, "dtype": self.dtype} | fields))

    def build(self) -> nn.Module:
        module = nn.Linear(4, 3)
        module.register_forward_pre_hook(self.look)
        self.modules.append(module)
        return module

    def look(self, module: Any, inputs: tuple[Any, ...]) -> None:
        self.inputs.append(inputs)
        assert module.weight.grad is None  # cleared before each call
        assert inputs[0].grad is None


def test_replicates_have_equal_values_elsewhere(cpu: CpuDevice, paddings: list[int]) -> None:
    seen = Seen()
    measured(cpu, seen.workload())
    torch.randn(100)
    measured(cpu, seen.workload())
    assert len(seen.modules) == 2 * (1 + QUICK.replicates)
    assert len({module.weight.data_ptr() for module in seen.modules}) == len(seen.modules)
    for module in seen.modules:
        assert torch.equal(module.weight, seen.modules[0].weight)
    for inputs in seen.inputs:
        assert torch.equal(inputs[0], seen.inputs[0][0])
    assert paddings == [512, 512, 512 * (1 + 2 * 7919)] * 2


@pytest.mark.parametrize("pass_", ["forward", "train"])
@pytest.mark.parametrize("dtype", BOUNDS)
def test_gradients_and_dtype_are_those_declared(cpu: CpuDevice, pass_: Any, dtype: Any) -> None:
    seen = Seen(dtype)
    measured(cpu, seen.workload(pass_=pass_, inputs=lambda: (torch.randn(5, 4, requires_grad=True),)))
    (x,) = seen.inputs[-1]
    assert x.is_leaf
    assert {x.dtype, *(each.dtype for each in seen.modules[-1].parameters())} == {DTYPES[dtype]}
    for leaf in (x, *seen.modules[-1].parameters()):
        assert (leaf.grad is not None) is (pass_ == "train")
    assert torch.is_grad_enabled()


@pytest.mark.parametrize(
    ("fields", "what", "got"),
    [
        ({"build": raising(ValueError("dim 7 is odd\nmore"))}, "building failed", "ValueError: dim 7 is odd"),
        ({"inputs": raising(KeyError("rows"))}, "building failed", "KeyError: 'rows'"),
        ({"build": lambda: 5}, "building failed", "TypeError: build() returned int, expected something to call"),
        (
            {"inputs": lambda: torch.randn(1, 4)},
            "building failed",
            "TypeError: inputs() returned Tensor, expected a tuple of arguments",
        ),
        ({"build": lambda: nn.Linear(5, 3)}, "running failed", None),
        (
            {"build": lambda: torch.argmax, "pass_": "train"},
            "running failed",
            "TypeError: the output holds no floating-point tensor to sum: Tensor",
        ),
        ({"compile": {"backend": raising(NotImplementedError("no code"))}}, "compiling or running failed", None),
    ],
)
def test_failure_names_the_workload(cpu: CpuDevice, fields: Any, what: str, got: str | None) -> None:
    workload = tiny(**fields)
    with pytest.raises(WorkloadError) as raised:
        measured(cpu, workload)
    assert raised.value.what == f"{workload.id}: {what}"
    assert got is None or raised.value.got == got
    if "compiling" in what:
        assert "no code" in (raised.value.got or "")


def test_workload_for_gpus_is_unavailable_before_its_build(cpu: CpuDevice) -> None:
    result = results_of(cpu, tiny(build=raising(AssertionError()), on_cpu="Triton code"))["tiny"]
    assert isinstance(result, WorkloadUnavailable)
    assert (result.what, result.expected) == ("Triton code", "a CUDA GPU")


CAPTURED = {"backend": "eager"}  # Dynamo alone: nothing waits for a C++ compiler


class Doubles(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


class Triples(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 3


class Broken(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        torch._dynamo.graph_break()
        return y * 3


class OfTwoMinds(nn.Module):
    """Its graph depends on `doubled`; its kernels do not."""

    def __init__(self, doubled: bool) -> None:
        super().__init__()
        self.doubled = doubled

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if self.doubled else x * 3


def quadruples(x: torch.Tensor) -> torch.Tensor:
    return x * 4


@pytest.mark.parametrize(
    ("builds", "compile_", "expected"),
    [
        ([Doubles, Triples, lambda: quadruples], CAPTURED, ["abc"]),
        ([Doubles, Triples, Doubles, Doubles], CAPTURED, ["ab", "c", "d"]),
        ([lambda: quadruples, lambda: quadruples], CAPTURED, ["a", "b"]),
        ([lambda: nn.Linear(4, 3), nn.GELU], CAPTURED, ["a", "b"]),  # through a wrapper that all of torch's share
        ([Doubles, Broken, Triples, lambda: quadruples], CAPTURED, ["ab", "cd"]),
        ([Doubles, Doubles, Broken], None, ["abc"]),
    ],
)
def test_groups_never_share_compiled_code(
    cpu: CpuDevice, builds: list[Callable[[], Any]], compile_: Any, expected: list[str]
) -> None:
    workloads = [tiny(module=name, build=build, compile=compile_) for name, build in zip("abcd", builds, strict=False)]
    groups = measure_groups(workloads, cpu, cpu.fingerprint(), QUICK, timed=False)
    assert ["".join(sorted(name[0] for name in group.results)) for group in groups] == expected


@pytest.mark.parametrize("changes_in", [1, 2, 99], ids=["first", "second", "never"])
def test_recompiles_on_fresh_allocations_are_counted(cpu: CpuDevice, changes_in: int) -> None:
    turn, said = count(), list[str]()
    workload = tiny(build=lambda: OfTwoMinds(next(turn) != changes_in), compile=CAPTURED)
    counts = measured(cpu, workload, progress=said.append).run.counts
    assert (counts.recompiles, counts.graph_breaks) == (int(changes_in < 3), 0)
    assert said[0] == "tiny-eager-fp32: compiling and profiling"


def test_cpu_kernels_add_up_to_the_time_that_is_judged(cpu: CpuDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    def disturbed(subject: Subject, index: int, usual_clock_mhz: int | None) -> Replicate:
        slow = 100.0 if index == 0 else 1.0
        taken = replicate(subject, index, usual_clock_mhz)
        return dataclasses.replace(taken, kernel_us=(slow * 5.0,), host_us=slow * 14.0)

    replicate = Subject.replicate
    monkeypatch.setattr(Subject, "replicate", disturbed)
    run = measured(cpu, tiny(), settings=dataclasses.replace(QUICK, replicates=3, most_replicates=3)).run
    assert run.samples[Timer.DEVICE].replicates_us == (500.0, 5.0, 5.0)
    assert [kernel.device_time_us for kernel in run.kernels] == [5.0]


def test_failure_names_the_lines_of_the_user(cpu: CpuDevice) -> None:
    def build() -> nn.Module:
        return nn.Linear(-1, 3)

    with pytest.raises(WorkloadError) as raised:
        measured(cpu, tiny(build=build))
    place = f"tests/measure/test_runner.py:{line_of('return nn.Linear(-1, 3)')}"
    assert raised.value.where == f"{place} in build: return nn.Linear(-1, 3)"


def test_keyboard_interrupt_is_no_failure(cpu: CpuDevice) -> None:
    with pytest.raises(KeyboardInterrupt):
        measured(cpu, tiny(build=raising(KeyboardInterrupt())))


class Undecided(nn.Module):
    """Breaks its graph at a branch that depends on data."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            x = x * 2
        return x * 3


def line_of(text: str) -> int:
    """Return the number of the first line of this file with that text."""
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.strip() == text)


def test_graph_break_has_line_and_reason(cpu: CpuDevice) -> None:
    run = measured(cpu, tiny(build=Undecided, compile=CAPTURED)).run
    (event,) = run.compile_events
    assert run.counts.graph_breaks == 1
    code = "if x.sum() > 0:"
    place = ("tests/measure/test_runner.py", line_of(code), code, "Undecided")
    assert event == CompileEvent("graph break", "a branch that depends on data", *place)
