"""From a workload to its run: structure and counts on a CPU, how an instance is built, how torch is set up, and devices."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch._inductor.config as inductor
from torch import nn

from kernelgauge.errors import KernelgaugeError, WorkloadError, WorkloadUnavailable
from kernelgauge.measure.compiler import torch_set_up
from kernelgauge.measure.device import Device, cpu_name
from kernelgauge.measure.device import choose_device as choose
from kernelgauge.measure.instance import TORCH_DTYPES
from kernelgauge.measure.latency import Rounds
from kernelgauge.measure.numerics import compare_with_float64
from kernelgauge.measure.runner import measure_groups
from kernelgauge.measure.subject import Replicate, Subject
from kernelgauge.run import CompileEvent, Sample, Timer
from kernelgauge.trace import KernelIdentity, parse
from kernelgauge.trace.kernel import Execution, executions
from kernelgauge.trace.model import busy_us, number_streams
from tests.builders import FUSED, recorded_events, trace_of
from tests.measure.conftest import QUICK, FakeGpu, cuda_device, measured, raising, results_of, tiny


def test_run_has_structure_of_an_eager_workload(cpu: Device) -> None:
    said: list[str] = []
    build = lambda: nn.Sequential(nn.Linear(4, 3), nn.GELU(), nn.GELU())  # noqa: E731
    result = measured(cpu, tiny(build=build), progress=said.append)
    run, counts = result.run, result.run.counts
    assert run.workload == "tiny-eager-fp32"
    assert run.kernel_names() == ["aten::addmm", "aten::gelu", "aten::gelu"]
    assert run.kinds() == ["gemm", "pointwise", "pointwise"]
    linear = run.kernels[0]
    assert (linear.op, linear.inputs, linear.stream) == ("", ("fp32[3]", "fp32[5,4]", "fp32[4,3]"), 0)
    assert all(kernel.device_time_us > 0 for kernel in run.kernels)
    assert (counts.launches, counts.kernels) == (3, 2)
    assert (counts.memsets, counts.copies, counts.synchronizations) == (0, 0, 0)
    assert counts.dispatcher_ops == sum("::" in name for name in run.op_names()) > 3
    assert (counts.graph_breaks, counts.recompiles, counts.peak_allocated_bytes) == (0, 0, None)
    assert (run.launch_apis, run.occupancy_queries, run.metadata_ops_that_launched) == ((), 0, ())
    assert said == ["tiny-eager-fp32: profiling", "timing, pass 1: 1 of 1 workloads"]
    assert run.steps == len(parse(result.trace_json).steps()) == 3
    assert "aten::addmm" in result.table


def test_run_on_gpu_has_times_ops_inputs_and_streams(gpu: FakeGpu) -> None:
    inputs = {"Input_Dims": [[8, 4], [4, 2], [], []], "Input_type": ["c10::BFloat16", "float", "Scalar", ""]}

    def call() -> None:
        gpu.launch("gemm", 10.0, stream=20, op="aten::mm", inputs=inputs)
        gpu.launch("gelu", 15.0, stream=13)
        gpu.launch("gemm", 10.0, stream=20, synchronizes=True)

    result = measured(gpu, gpu.workload(kernels=(), on_call=call))
    run, counts = result.run, result.run.counts
    assert [(each.op, each.inputs, each.stream, each.device_time_us) for each in run.kernels] == [
        ("aten::mm", ("bf16[8,4]", "fp32[4,2]"), 0, 10.0),
        ("", (), 1, 15.0),
        ("", (), 0, 10.0),
    ]
    assert run.samples == {
        Timer.DEVICE: Sample((20.0, 20.0), 3),  # with at least one kernel running
        Timer.HOST: Sample((15.0, 15.0), 3, (14.0, 14.0)),
    }
    assert run.launch_apis == ("cudaLaunchKernel",) * 3
    assert (counts.launches, counts.kernels, counts.synchronizations) == (3, 2, 1)
    assert counts.peak_allocated_bytes == 1 << 20
    assert (result.latency_replicates, result.latency_iterations) == (8, 20)


def test_default_stream_is_the_first_though_another_one_launches_before() -> None:
    assert number_streams([20, 7, 20, 13]) == {7: 0, 20: 1, 13: 2}
    assert number_streams([20, 13]) == {20: 0, 13: 1}


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        ([(0, 10, 7), (9, 10, 7)], 20),  # records of one stream may touch
        ([(0, 30, 7), (5, 10, 13)], 30),
        ([(5, 10, 13), (0, 10, 7)], 15),
        ([(0, 10, 7), (20, 10, 13)], 20),
    ],
    ids=["one stream", "within", "launched first, begun last", "a gap"],
)
def test_busy_time_is_a_union_over_streams(spans: list[tuple[int, int, int]], expected: float) -> None:
    identity = KernelIdentity("gemm", "gemm")
    assert busy_us([Execution(identity, us, start, None, stream) for start, us, stream in spans]) == expected


class Seen:
    """Builds linears, and keeps what each was called with."""

    def __init__(self) -> None:
        self.modules: list[nn.Module] = []
        self.inputs: list[torch.Tensor] = []

    def build(self) -> nn.Module:
        module = nn.Linear(4, 3)
        module.register_forward_pre_hook(self.look)
        self.modules.append(module)
        return module

    def look(self, module: Any, inputs: tuple[Any, ...]) -> None:
        self.inputs.append(inputs[0])
        assert module.weight.grad is None  # cleared before each call
        assert inputs[0].grad is None


def test_replicates_have_equal_values_elsewhere(cpu: Device, paddings: list[int]) -> None:
    seen = Seen()
    measured(cpu, tiny(build=seen.build))
    torch.randn(100)
    measured(cpu, tiny(build=seen.build))
    assert len(seen.modules) == 2 * (1 + QUICK.replicates)
    assert len({module.weight.data_ptr() for module in seen.modules}) == len(seen.modules)
    assert all(torch.equal(module.weight, seen.modules[0].weight) for module in seen.modules)
    assert all(torch.equal(x, seen.inputs[0]) for x in seen.inputs)
    assert paddings == [512, 512, 512 * (1 + 2 * 7919)] * 2


@pytest.mark.parametrize("pass_", ["forward", "train"])
@pytest.mark.parametrize("dtype", TORCH_DTYPES)
def test_gradients_and_dtype_are_those_declared(cpu: Device, pass_: Any, dtype: Any) -> None:
    seen = Seen()
    inputs = lambda: (torch.randn(5, 4, requires_grad=True),)  # noqa: E731
    measured(cpu, tiny(build=seen.build, dtype=dtype, pass_=pass_, inputs=inputs))
    leaves = (seen.inputs[-1], *seen.modules[-1].parameters())
    assert [(leaf.is_leaf, leaf.dtype) for leaf in leaves] == [(True, TORCH_DTYPES[dtype])] * 3
    assert [leaf.grad is not None for leaf in leaves] == [pass_ == "train"] * 3
    assert torch.is_grad_enabled()


NO_CODE = raising(NotImplementedError("no code"))
FAILURES: dict[str, tuple[dict[str, Any], str]] = {  # by what is said of it
    "building failed: ValueError: dim 7 is odd": ({"build": raising(ValueError("dim 7 is odd\nmore"))}, ""),
    "building failed: KeyError: 'rows'": ({"inputs": raising(KeyError("rows"))}, ""),
    "building failed: TypeError: build() returned int, expected something to call": ({"build": lambda: 5}, ""),
    "building failed: TypeError: inputs() returned Tensor, expected a tuple": ({"inputs": lambda: torch.ones(1)}, ""),
    "running failed: RuntimeError": ({"build": lambda: nn.Linear(5, 3)}, ""),
    "running failed: TypeError: the output holds no floating-point tensor": ({"build": lambda: torch.argmax, "pass_": "train"}, ""),
    "compiling or running failed: ": ({"compile": {"backend": NO_CODE}}, "no code"),
}  # fmt: skip


@pytest.mark.parametrize(("said", "fields", "part"), [(said, *case) for said, case in FAILURES.items()], ids=FAILURES)
def test_failure_names_the_workload(cpu: Device, said: str, fields: Any, part: str) -> None:
    workload = tiny(**fields)
    with pytest.raises(WorkloadError) as raised:
        measured(cpu, workload)
    assert f"{raised.value.what}: {raised.value.got}".startswith(f"{workload.id}: {said}")
    assert part in (raised.value.got or "")


def test_workload_for_gpus_is_unavailable_before_its_build(cpu: Device) -> None:
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
    cpu: Device, builds: list[Callable[[], Any]], compile_: Any, expected: list[str]
) -> None:
    workloads = [tiny(module=name, build=build, compile=compile_) for name, build in zip("abcd", builds, strict=False)]
    groups = measure_groups(workloads, cpu, cpu.fingerprint(), QUICK, timed=False)
    assert ["".join(sorted(name[0] for name in group.results)) for group in groups] == expected


def test_workload_that_waits_for_its_group_is_built_once_more(cpu: Device) -> None:
    builds: list[str] = []

    def build(name: str) -> nn.Module:
        builds.append(name)
        return Doubles()

    workloads = [tiny(module=name, build=partial(build, name), compile=CAPTURED) for name in "abcdef"]
    groups = list(measure_groups(workloads, cpu, cpu.fingerprint(), QUICK, timed=False))
    assert (len(groups), len(builds)) == (6, 6 + 5)


@pytest.mark.parametrize("changes_in", [1, 2, 99], ids=["first", "second", "never"])
def test_recompiles_on_fresh_allocations_are_counted(cpu: Device, changes_in: int) -> None:
    turn, said = count(), list[str]()
    workload = tiny(build=lambda: OfTwoMinds(next(turn) != changes_in), compile=CAPTURED)
    counts = measured(cpu, workload, progress=said.append).run.counts
    assert (counts.recompiles, counts.graph_breaks) == (int(changes_in < 3), 0)
    assert said[0] == "tiny-eager-fp32: compiling and profiling"


def test_cpu_kernels_add_up_to_the_time_that_is_judged(cpu: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    def disturbed(subject: Subject, index: int, usual_clock_mhz: int | None) -> Replicate:
        slow = 100.0 if index == 0 else 1.0
        taken = replicate(subject, index, usual_clock_mhz)
        return dataclasses.replace(taken, kernel_us=(slow * 5.0,), host_us=slow * 14.0)

    replicate = Subject.replicate
    monkeypatch.setattr(Subject, "replicate", disturbed)
    run = measured(cpu, tiny(), settings=dataclasses.replace(QUICK, replicates=3, most_replicates=3)).run
    assert run.samples[Timer.DEVICE].replicates_us == (500.0, 5.0, 5.0)
    assert [kernel.device_time_us for kernel in run.kernels] == [5.0]


def test_failure_names_the_lines_of_the_user(cpu: Device) -> None:
    def build() -> nn.Module:
        return nn.Linear(-1, 3)

    with pytest.raises(WorkloadError) as raised:
        measured(cpu, tiny(build=build))
    place = f"tests/measure/test_runner.py:{line_of('return nn.Linear(-1, 3)')}"
    assert raised.value.where == f"{place} in build: return nn.Linear(-1, 3)"


def test_keyboard_interrupt_is_no_failure(cpu: Device) -> None:
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


def test_graph_break_has_line_and_reason(cpu: Device) -> None:
    run = measured(cpu, tiny(build=Undecided, compile=CAPTURED)).run
    (event,) = run.compile_events
    assert run.counts.graph_breaks == 1
    code = "if x.sum() > 0:"
    place = ("tests/measure/test_runner.py", line_of(code), code, "Undecided")
    assert event == CompileEvent("graph break", "a branch that depends on data", *place)


LOGGER = logging.getLogger("torch.__trace")


@pytest.mark.parametrize("initialized", [True, False])
def test_torch_set_up_restores_numbers_of_the_gpu(monkeypatch: pytest.MonkeyPatch, initialized: bool) -> None:
    restored: list[object] = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: initialized)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda gpu: f"state of {gpu}")
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, gpu: restored.append((state, gpu)))
    with pytest.raises(ZeroDivisionError), torch_set_up():
        raise ZeroDivisionError
    assert restored == ([("state of 1", 1)] if initialized else [])


def measure(device: Device, workload: Any) -> None:
    list(measure_groups([workload], device, device.fingerprint(), QUICK, deterministic=True))


def time_latency(device: Device, workload: Any) -> None:
    Rounds(workload, device, replicates=1, iterations=1, deterministic=True).time()


def compare(device: Device, workload: Any) -> None:
    compare_with_float64(workload, device, seed=1, deterministic=True)


@pytest.mark.parametrize("do", [measure, time_latency, compare])
def test_everything_measures_in_torch_set_up(cpu: Device, do: Callable[[Device, Any], None]) -> None:
    seen: set[tuple[bool, bool]] = set()

    def build() -> Any:
        def run(x: torch.Tensor) -> torch.Tensor:
            seen.add((inductor.deterministic, inductor.cpp.enable_kernel_profile))
            return x * 2

        return run

    numbers = torch.get_rng_state()
    do(cpu, tiny(build=build))
    assert seen == {(True, True)}
    assert torch.equal(torch.get_rng_state(), numbers)
    assert (inductor.deterministic, inductor.cpp.enable_kernel_profile) == (False, False)


@pytest.mark.parametrize(("asked", "is_silent"), [(None, True), ("folder", False)])
def test_structured_trace_is_silent_unless_asked_for(
    cpu: Device,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    asked: str | None,
    is_silent: bool,
) -> None:
    monkeypatch.setattr(LOGGER, "disabled", False)
    monkeypatch.delenv("TORCH_TRACE", raising=False)
    if asked:
        monkeypatch.setenv("TORCH_TRACE", asked)
    with caplog.at_level(logging.DEBUG, "torch.__trace"):
        LOGGER.addHandler(caplog.handler)
        try:
            measured(cpu, tiny(build=lambda: lambda x: LOGGER.debug("seen") or x * 2))
        finally:
            LOGGER.removeHandler(caplog.handler)
    assert ("seen" not in caplog.messages) is is_silent
    assert not LOGGER.disabled


def test_triton_keys_need_an_op_of_the_same_name() -> None:
    events = recorded_events("mlp-compiled")
    for event in events:
        if event.get("cat") == "kernel" and event["name"] == FUSED:
            event["name"] = "a_library_call"  # launched under the Triton op, as a memset or a GEMM may be
    ran = executions(trace_of(*events).steps()[-1], on_cpu=False)
    (stranger,) = (each.identity for each in ran if each.identity.name == "a_library_call")
    assert (stranger.num_warps, stranger.kernel_kwargs, stranger.source_hash) == (None, None, None)
    assert stranger.grid == (24576, 1, 1)


def test_peak_is_in_bytes_that_the_code_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The allocator rounds up, to blocks that depend on what others have left."""
    done: list[str] = []

    def memory_stats(_: object) -> dict[str, int]:
        peak = 700 if done == ["forget", "call"] else 900
        names = ("requested_bytes.all.current", "requested_bytes.all.peak", "allocated_bytes.all.peak")
        return dict(zip(names, (100, peak, 2048), strict=True))

    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: None)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda _: done.append("forget"))
    monkeypatch.setattr(torch.cuda, "memory_stats", memory_stats)
    assert cuda_device().peak_allocated_bytes(lambda: done.append("call")) == 600


def test_choose_device_without_gpu_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    with pytest.raises(KernelgaugeError, match="no CUDA device") as raised:
        choose("cuda")
    assert f"torch {torch.__version__}, built for CUDA 13.0" in (raised.value.got or "")
    assert "--perf-device cpu" in (raised.value.next_command or "")


def test_check_refuses_bf16_alone_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: False)
    device = cuda_device()
    device._properties = SimpleNamespace(name="Tesla T4")
    for dtype in ("fp16", "fp32", None):
        device.check(tiny(dtype=dtype))
    with pytest.raises(WorkloadUnavailable, match="Tesla T4 has no bf16"):
        device.check(tiny(dtype="bf16"))


def test_fingerprint_of_cpu_has_a_name_and_no_gpu(cpu: Device) -> None:
    fingerprint = cpu.fingerprint()
    assert fingerprint.device == f"CPU {cpu_name()}, {torch.get_num_threads()} threads"
    assert (fingerprint.arch, fingerprint.torch) == ("cpu", str(torch.__version__))
    assert {fingerprint.sm_count, fingerprint.memory_bytes, fingerprint.driver, fingerprint.cuda} == {None}
