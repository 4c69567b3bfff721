"""From a workload to its run: structure and counts on a CPU, how an instance is built, how torch is
set up, and devices.
"""

import gc
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import count
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import torch._inductor.config as inductor
from torch import nn

from kernelgauge import Workload
from kernelgauge.errors import KernelgaugeError, WorkloadError, WorkloadUnavailable
from kernelgauge.measure import measurement
from kernelgauge.measure.choices import Replay
from kernelgauge.measure.compiler import compile_counts, reset_compiler
from kernelgauge.measure.device import CudaDevice, Device, choose_device, cpu_name
from kernelgauge.measure.instance import TORCH_DTYPES, old_objects_frozen
from kernelgauge.measure.measurement import Measurement, Replicate
from kernelgauge.measure.numerics import compare_with_float64
from kernelgauge.measure.runner import measure_groups
from kernelgauge.run import Sample, Timer
from kernelgauge.trace import parse
from kernelgauge.trace.kernel import Resources, executions
from tests.builders import FUSED, recorded_events, trace_of
from tests.measure.conftest import QUICK, FakeGpu, latency, measured, raising, tiny


def test_run_has_structure_of_an_eager_workload(cpu: Device) -> None:
    said: list[str] = []
    build = lambda: nn.Sequential(nn.Linear(4, 3), nn.GELU(), nn.GELU())  # noqa: E731
    result = measured(cpu, tiny(build=build), progress=said.append)
    run, counts = result.run, result.run.counts
    assert run.kernel_names() == ["aten::addmm", "aten::gelu", "aten::gelu"]
    assert run.kinds() == ["gemm", "pointwise", "pointwise"]
    linear = run.kernels[0]
    assert (linear.op, linear.inputs, linear.stream) == (
        "",
        ("fp32[3]", "fp32[5,4]", "fp32[4,3]"),
        0,
    )
    assert all(kernel.device_time_us > 0 for kernel in run.kernels)
    assert (counts.launches, counts.kernels, counts.graph_breaks, counts.recompiles) == (3, 2, 0, 0)
    assert (
        counts.memsets,
        counts.copies,
        counts.synchronizations,
        counts.cyclic_bytes,
    ) == (0, 0, 0, 0)
    assert counts.dispatcher_ops == sum("::" in name for name in run.op_names()) > 3
    assert (run.launch_apis, run.occupancy_queries, run.metadata_ops_that_launched) == ((), 0, ())
    assert said == [
        "1 of 1: profiling tiny-eager-fp32",
        "timing, pass 1: 1 of 1 workloads, about 2 s left",
    ]
    assert run.steps == len(parse(result.trace_json).steps()) == 3


def test_run_on_gpu_has_times_ops_inputs_and_streams(gpu: FakeGpu) -> None:
    inputs = {
        "Input_Dims": [[8, 4], [4, 2], [], []],
        "Input_type": ["c10::BFloat16", "float", "Scalar", ""],
    }

    def call() -> None:
        gpu.launch("gemm", 10.0, stream=20, op="aten::mm", inputs=inputs)
        gpu.launch("gelu", 15.0, stream=7, registers=32)  # the default one
        gpu.launch("gemm", 10.0, stream=20, synchronizes=True)

    result = measured(gpu, gpu.workload(kernels=(), on_call=call))
    run, counts = result.run, result.run.counts
    assert [each.resources for each in run.kernels] == [None, Resources(32, 0), None]
    found = [(each.op, each.inputs, each.stream, each.device_time_us) for each in run.kernels]
    assert found == [
        ("aten::mm", ("bf16[8,4]", "fp32[4,2]"), 1, 10.0),
        ("", (), 0, 15.0),
        ("", (), 1, 10.0),
    ]
    device = Sample((20.0, 20.0), 3)  # with at least one kernel running
    assert run.samples == {Timer.DEVICE: device, Timer.HOST: Sample((15.0, 15.0), 3, (14.0, 14.0))}
    assert run.launch_apis == ("cudaLaunchKernel",) * 3
    assert (counts.launches, counts.kernels, counts.synchronizations) == (3, 2, 1)
    assert counts.peak_allocated_bytes == 1 << 20
    assert (result.latency_replicates, result.latency_iterations) == (8, 20)


@pytest.mark.parametrize("pass_", ["forward", "train"])
@pytest.mark.parametrize("dtype", TORCH_DTYPES)
def test_replicates_are_as_declared_and_equal(
    cpu: Device, paddings: list[int], pass_: Any, dtype: Any
) -> None:
    def build() -> nn.Module:
        modules.append(nn.Linear(4, 3))
        modules[-1].register_forward_pre_hook(look)
        return modules[-1]

    def look(module: Any, arguments: tuple[Any, ...]) -> None:
        inputs.append(arguments[0])
        assert (module.weight.grad, arguments[0].grad) == (None, None)  # cleared before each call

    modules, inputs = list[Any](), list[torch.Tensor]()
    workload = tiny(
        build=build,
        dtype=dtype,
        pass_=pass_,
        inputs=lambda: (torch.randn(5, 4, requires_grad=True),),
    )
    for _ in range(2):
        measured(cpu, workload)
        torch.randn(100)
    assert (
        len({module.weight.data_ptr() for module in modules})
        == len(modules)
        == 2 * (1 + QUICK.replicates)
    )
    assert all(torch.equal(module.weight, modules[0].weight) for module in modules)
    assert all(torch.equal(x, inputs[0]) for x in inputs)
    assert paddings == [512, 512, 512 * (1 + 2 * 7919)] * 2
    found = {
        (each.is_leaf, each.dtype, each.grad is not None)
        for each in (inputs[-1], *modules[-1].parameters())
    }
    assert found == {(True, TORCH_DTYPES[dtype], pass_ == "train")}
    assert torch.is_grad_enabled()


FAILURES: dict[str, dict[str, Any]] = {  # by what is said of it
    "building failed: ValueError: dim 7 is odd": {
        "build": raising(ValueError("dim 7 is odd\nmore"))
    },
    "building failed: TypeError: build() returned int, expected something to call": {
        "build": lambda: 5
    },
    "building failed: TypeError: inputs() returned Tensor, expected a tuple": {
        "inputs": lambda: torch.ones(1)
    },
    "running failed: TypeError: the output holds no floating-point": {
        "build": lambda: torch.argmax,
        "pass_": "train",
    },
    "compiling or running failed: BackendCompilerFailed: backend='function' raised: NotImplementedError: no code": {
        "compile": {"backend": raising(NotImplementedError("no code"))},
    },
}


@pytest.mark.parametrize(("said", "fields"), FAILURES.items(), ids=FAILURES)
def test_failure_names_the_workload(cpu: Device, said: str, fields: Any) -> None:
    workload = tiny(**fields)
    with pytest.raises(WorkloadError) as raised:
        measured(cpu, workload)
    assert f"{raised.value.what}: {raised.value.got}".startswith(f"{workload.id}: {said}")
    with pytest.raises(KeyboardInterrupt):  # it is no failure
        measured(cpu, tiny(build=raising(KeyboardInterrupt())))


def module(forward: Callable[..., torch.Tensor]) -> type[nn.Module]:
    return type("Planted", (nn.Module,), {"forward": forward})


def breaks(_: nn.Module, x: torch.Tensor) -> torch.Tensor:
    torch._dynamo.graph_break()
    return x * 3


CAPTURED = {"backend": "eager"}  # Dynamo alone: nothing waits for a C++ compiler
DOUBLES, TRIPLES, BROKEN = module(lambda _, x: x * 2), module(lambda _, x: x * 3), module(breaks)
QUADRUPLES = partial(lambda function: function, lambda x: x * 4)


@pytest.mark.parametrize(
    ("builds", "compile_", "expected", "times_built"),
    [
        ([DOUBLES, TRIPLES, QUADRUPLES], CAPTURED, ["abc"], 3),
        ([DOUBLES, TRIPLES, DOUBLES, DOUBLES], CAPTURED, ["ab", "c", "d"], 4 + 2),
        # one wrapper for all of torch's modules
        ([lambda: nn.Linear(4, 3), nn.GELU], CAPTURED, ["a", "b"], 2 + 1),
        ([DOUBLES, BROKEN, TRIPLES, QUADRUPLES], CAPTURED, ["ab", "cd"], 4),
        ([DOUBLES, DOUBLES, BROKEN], None, ["abc"], 3),
    ],
)
def test_groups_never_share_compiled_code(
    cpu: Device, builds: Any, compile_: Any, expected: Any, times_built: int
) -> None:
    def workload(name: str, build: Callable[[], Any]) -> Workload:
        return tiny(module=name, build=lambda: built.append(name) or build(), compile=compile_)

    built: list[str] = []
    groups = measure_groups(
        list(map(workload, "abcd", builds)), cpu, cpu.fingerprint(), QUICK, timed=False
    )
    assert ["".join(sorted(name[0] for name in group)) for group in groups] == expected
    assert len(built) == times_built


@pytest.mark.parametrize("changes_in", [1, 2, 99], ids=["first", "second", "never"])
def test_recompiles_on_fresh_allocations_are_counted(cpu: Device, changes_in: int) -> None:
    class OfTwoMinds(nn.Module):
        """Its graph depends on `doubled`; its kernels do not."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2 if self.doubled else x * 3

    def build() -> nn.Module:
        built = OfTwoMinds()
        built.doubled = next(turn) != changes_in
        return built

    turn, said = count(), list[str]()
    counts = measured(cpu, tiny(build=build, compile=CAPTURED), progress=said.append).run.counts
    assert (counts.recompiles, counts.graph_breaks) == (int(changes_in < 3), 0)
    assert said[0] == "1 of 1: compiling and profiling tiny-eager-fp32"


def test_cpu_kernels_add_up_to_the_time_that_is_judged(
    cpu: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    def disturbed(measurement: Measurement, index: int, usual_clock_mhz: int | None) -> Replicate:
        slow = 100.0 if index == 0 else 1.0
        return replace(
            replicate(measurement, index, usual_clock_mhz),
            kernel_us=(slow * 5.0,),
            host_us=slow * 14.0,
        )

    replicate = Measurement.replicate
    monkeypatch.setattr(Measurement, "replicate", disturbed)
    run = measured(cpu, tiny(), settings=replace(QUICK, replicates=3, most_replicates=3)).run
    assert run.samples[Timer.DEVICE].replicates_us == (500.0, 5.0, 5.0)
    assert [kernel.device_time_us for kernel in run.kernels] == [5.0]


MEASURES: dict[str, Callable[[Device, Any], object]] = {
    "run": lambda device, it: list(measure_groups([it], device, device.fingerprint(), QUICK)),
    "latency": lambda device, it: latency(it, device),
    "numerics": lambda device, it: compare_with_float64(it, device, Replay(), seed=1),
}


@pytest.mark.parametrize("measure", MEASURES.values(), ids=MEASURES)
def test_everything_measures_in_torch_set_up(cpu: Device, measure: Any) -> None:
    def look() -> bool:
        return inductor.cpp.enable_kernel_profile

    seen: set[bool] = set()
    numbers = torch.get_rng_state()
    measure(cpu, tiny(build=lambda: lambda x: seen.add(look()) or x * 2))
    assert (seen, look()) == ({True}, False)
    assert torch.equal(torch.get_rng_state(), numbers)


def test_triton_keys_need_an_op_of_the_same_name() -> None:
    """A memset or a GEMM may be launched under a Triton op."""
    rows = recorded_events("mlp-compiled")
    renamed = [
        row | {"name": "gemm"} if (row["cat"], row["name"]) == ("kernel", FUSED) else row
        for row in rows
    ]
    ran = executions(trace_of(*renamed).steps()[-1], on_cpu=False)
    (stranger,) = (each.identity for each in ran if each.identity.name == "gemm")
    assert (stranger.num_warps, stranger.kernel_kwargs, stranger.source_hash) == (None, None, None)
    assert stranger.grid == (24576, 1, 1)


def test_fingerprint_has_whether_inductor_times_choices(cpu: Device) -> None:
    assert cpu.fingerprint().deterministic is False
    # monkeypatch would delete it at the end, for every later test
    with inductor.patch(deterministic=True):
        assert cpu.fingerprint().deterministic is True


@pytest.fixture
def cuda() -> CudaDevice:
    """Return a CUDA device that needs no GPU."""
    device = object.__new__(CudaDevice)
    device.torch_device, device._properties = (
        torch.device("cuda", 0),
        SimpleNamespace(name="Tesla T4"),
    )
    return device


def test_peak_is_in_bytes_that_the_code_asked_for(
    cuda: CudaDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The allocator rounds up, to blocks that depend on what others have left."""
    before, after = {"requested_bytes.all.current": 100}, {"requested_bytes.all.peak": 700}
    spy = Mock(memory_stats=Mock(side_effect=[before, after | {"allocated_bytes.all.peak": 2048}]))
    for name in ("synchronize", "reset_peak_memory_stats", "memory_stats"):
        monkeypatch.setattr(torch.cuda, name, getattr(spy, name))
    assert cuda.peak_allocated_bytes(spy.call) == 600
    done = [name for name, *_ in spy.mock_calls if name != "synchronize"]
    assert done == ["reset_peak_memory_stats", "memory_stats", "call", "memory_stats"]


def test_cuda_device_is_lost_once_it_fails(
    cuda: CudaDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        torch.cuda, "synchronize", Mock(side_effect=[None, RuntimeError("CUDA error")])
    )
    assert [cuda.lost(), cuda.lost()] == [False, True]


def test_check_refuses_bf16_alone_where_there_is_none(
    cuda: CudaDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: False)
    for dtype in ("fp16", "fp32", None):
        cuda.check(tiny(dtype=dtype))
    with pytest.raises(WorkloadUnavailable, match="Tesla T4 has no bf16"):
        cuda.check(tiny(dtype="bf16"))


def test_choose_device_without_gpu_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(KernelgaugeError, match="no CUDA device"):
        choose_device("cuda")
    fingerprint = choose_device("auto").fingerprint()
    assert fingerprint.device == f"CPU {cpu_name()}, {torch.get_num_threads()} threads"
    assert (fingerprint.arch, fingerprint.torch) == ("cpu", str(torch.__version__))
    assert {
        fingerprint.sm_count,
        fingerprint.memory_bytes,
        fingerprint.driver,
        fingerprint.cuda,
    } == {None}


def test_reset_compiler_of_nothing_compiled_resets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU, torch imports CUDA graph trees for it."""
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    torch._dynamo.utils.clear_compilation_metrics()
    monkeypatch.setattr(torch.compiler, "reset", raising(AssertionError("it was reset")))
    assert compile_counts().graphs == 0  # reads the counters
    reset_compiler()


def test_collections_skip_older_objects_until_the_outer_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Python 3.12 begins with frozen objects: whether others are must not follow from that."""
    monkeypatch.undo()
    gc.freeze()
    older: list[object] = [[]]

    def are_skipped() -> bool:
        return all(each is not older for each in gc.get_objects())

    assert not are_skipped()
    with old_objects_frozen():
        with old_objects_frozen():
            pass
        assert are_skipped()
    assert not are_skipped()
    assert gc.isenabled()


def test_kernels_are_looked_for_among_all_objects(
    cpu: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`gc.get_objects`, by which they are found, leaves frozen ones out."""
    monkeypatch.undo()
    gc.unfreeze()
    original, frozen = measurement.resources_of_call, []
    monkeypatch.setattr(
        measurement,
        "resources_of_call",
        lambda session: frozen.append(gc.get_freeze_count()) or original(session),
    )
    measured(cpu, tiny())
    assert frozen == [0]
