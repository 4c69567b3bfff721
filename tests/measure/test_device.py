"""The CPU and CUDA behind one protocol: what counts as a kernel, and what makes two launches the same kernel."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kernelgauge import Timer, Workload
from kernelgauge.errors import KernelgaugeError, WorkloadUnavailable
from kernelgauge.measure.device import choose_device, cuda
from kernelgauge.measure.device.cpu import CpuDevice
from kernelgauge.measure.device.cuda import CudaDevice
from kernelgauge.trace import KernelIdentity, Trace, Window, parse

Content = dict[str, Any]
POINTWISE = "triton_poi_fused__unsafe_view_gelu_mul_0"


def window_of(*names: str) -> Window:
    """A window with these ops on the host, one after the other, ten microseconds each."""
    events = [{"ph": "X", "cat": "user_annotation", "name": "window", "ts": 0, "dur": 1000, "tid": 1}]
    events += [
        {"ph": "X", "cat": "cpu_op", "name": name, "ts": 1 + 20 * place, "dur": 10, "tid": 1, "args": {}}
        for place, name in enumerate(names)
    ]
    (window,) = parse(json.dumps({"traceEvents": events}).encode()).regions("window")
    return window


# -- the CPU --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "kind"),
    [
        ("aten::mm", "gemm"),
        ("aten::addmm", "gemm"),
        ("aten::bmm", "gemm"),
        ("aten::_addmm_activation", "gemm"),
        ("aten::sum", "reduction"),
        ("aten::amax", "reduction"),
        ("aten::copy_", "copy"),
        ("aten::cat", "copy"),
        ("aten::fill_", "fill"),
        ("aten::zero_", "fill"),
        ("aten::gelu", "pointwise"),
        ("aten::mul", "pointwise"),
        ("graph_0_cpp_fused_gelu_mul_0", "pointwise"),
    ],
)
def test_an_op_that_computes_is_a_kernel_of_its_kind(cpu: CpuDevice, op: str, kind: str) -> None:
    (execution,) = cpu.executions(window_of(op))
    assert execution.identity.kind == kind
    assert execution.duration_us == 10


def test_the_number_of_the_compiled_graph_is_no_part_of_the_name(cpu: CpuDevice) -> None:
    first, second = cpu.executions(window_of("graph_0_cpp_fused_gelu_mul_0", "graph_17_cpp_fused_gelu_mul_0"))
    assert first.identity == second.identity
    assert first.identity.name == "cpp_fused_gelu_mul_0"


def test_only_the_prefix_is_a_graph_number(cpu: CpuDevice) -> None:
    (execution,) = cpu.executions(window_of("mylib::graph_3_conv"))
    assert execution.identity.name == "mylib::graph_3_conv"


def test_kernels_of_a_cpu_come_in_order_and_have_no_launch_configuration(cpu: CpuDevice) -> None:
    executions = cpu.executions(window_of("aten::mm", "aten::view", "aten::gelu", "aten::empty"))
    assert [execution.identity for execution in executions] == [
        KernelIdentity("aten::mm", "gemm"),
        KernelIdentity("aten::gelu", "pointwise"),
    ]


def test_a_cpu_has_no_host_dispatch_time_and_no_peak_memory(cpu: CpuDevice) -> None:
    assert cpu.timers == (Timer.DEVICE, Timer.END_TO_END)
    assert cpu.peak_allocated_bytes(lambda: None) is None


def test_the_fingerprint_of_a_cpu_has_a_name_and_no_gpu(cpu: CpuDevice) -> None:
    fingerprint = cpu.fingerprint()
    assert fingerprint.device.startswith("CPU ")
    assert len(fingerprint.device) > len("CPU ")
    assert fingerprint.arch == "cpu"
    assert fingerprint.torch == str(torch.__version__)
    assert {fingerprint.sm_count, fingerprint.memory_bytes, fingerprint.driver, fingerprint.cuda} == {None}


# -- CUDA, from recorded traces -------------------------------------------------------------------------------------


@pytest.fixture
def identities(
    recorded: Callable[[str], Content], as_trace: Callable[[Content], Trace], gpu: CudaDevice
) -> Callable[[str], list[KernelIdentity]]:
    """The kernels of the last iteration of a recorded trace."""

    def read(name: str) -> list[KernelIdentity]:
        window = as_trace(recorded(name)).steps()[-1]
        return [execution.identity for execution in gpu.executions(window)]

    return read


def one(identities: list[KernelIdentity], name: str) -> KernelIdentity:
    (found,) = [identity for identity in identities if identity.name == name]
    return found


def test_a_triton_kernel_is_known_by_name_launch_configuration_and_source(
    identities: Callable[[str], list[KernelIdentity]],
) -> None:
    fused = one(identities("mlp-compiled"), POINTWISE)
    assert fused.kind == "pointwise"
    assert (fused.grid, fused.block) == ((24576, 1, 1), (128, 1, 1))
    assert (fused.num_warps, fused.num_stages) == (4, 1)
    assert "XBLOCK=1024" in (fused.kernel_kwargs or "")
    assert fused.source_hash


def test_another_choice_of_the_autotuner_is_another_kernel(identities: Callable[[str], list[KernelIdentity]]) -> None:
    fused = one(identities("mlp-compiled"), POINTWISE)
    other = one(identities("mlp-compiled-other-autotune"), POINTWISE)
    assert fused != other
    assert fused.num_warps != other.num_warps
    assert fused.grid != other.grid


def test_a_library_kernel_has_a_grid_and_no_triton_keys(identities: Callable[[str], list[KernelIdentity]]) -> None:
    for identity in identities("mlp-compiled"):
        if identity.kind == "gemm":
            assert identity.grid is not None
            assert (identity.kernel_kwargs, identity.num_warps, identity.num_stages, identity.source_hash) == (
                None,
                None,
                None,
                None,
            )


@pytest.mark.parametrize("name", ["mlp-compiled", "mlp-compiled-train", "mlp-liger", "mlp-eager", "linear-compiled"])
def test_only_generated_kernels_have_a_source(identities: Callable[[str], list[KernelIdentity]], name: str) -> None:
    seen = identities(name)
    assert seen
    assert {bool(identity.source_hash) for identity in seen if not identity.name.startswith("triton_")} <= {False}
    assert {bool(identity.source_hash) for identity in seen if identity.name.startswith("triton_")} <= {True}


def test_triton_keys_are_those_of_the_op_of_the_same_name_only(
    recorded: Callable[[str], Content], as_trace: Callable[[Content], Trace], gpu: CudaDevice
) -> None:
    content = recorded("mlp-compiled")
    for event in content["traceEvents"]:
        if event.get("cat") == "kernel" and event["name"] == POINTWISE:
            event["name"] = "a_library_call"  # launched under the Triton op, as a memset or a GEMM may be
    window = as_trace(content).steps()[-1]
    (launch,) = [launch for launch in window.launches if launch.record.name == "a_library_call"]
    assert launch.op is not None
    assert launch.op.num_warps == 4
    stranger = one([execution.identity for execution in gpu.executions(window)], "a_library_call")
    assert (stranger.num_warps, stranger.kernel_kwargs, stranger.source_hash) == (None, None, None)
    assert stranger.grid == (24576, 1, 1)


def test_the_kernels_of_a_cuda_graph_are_executions_of_its_launch(
    recorded: Callable[[str], Content], as_trace: Callable[[Content], Trace], gpu: CudaDevice
) -> None:
    window = as_trace(recorded("mlp-cudagraph")).regions("mlp-cudagraph")[-1]
    executions = gpu.executions(window)
    assert len({launch.call.correlation for launch in window.launches if launch.call.is_graph_launch}) == 1
    assert POINTWISE in [execution.identity.name for execution in executions]
    assert all(execution.duration_us > 0 for execution in executions)


# -- the choice -----------------------------------------------------------------------------------------------------


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.mark.usefixtures("no_gpu")
def test_without_a_gpu_the_cpu_is_chosen() -> None:
    assert isinstance(choose_device("auto"), CpuDevice)


def test_the_cpu_can_be_asked_for_on_any_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: pytest.fail("the GPU was looked for"))
    assert isinstance(choose_device("cpu"), CpuDevice)


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize(("cuda", "words"), [(None, "built without CUDA"), ("13.0", "built for CUDA 13.0")])
def test_a_gpu_that_is_asked_for_and_is_not_there_is_an_error_with_a_next_command(
    monkeypatch: pytest.MonkeyPatch, cuda: str | None, words: str
) -> None:
    monkeypatch.setattr(torch.version, "cuda", cuda)
    with pytest.raises(KernelgaugeError, match="no CUDA device") as raised:
        choose_device("cuda")
    assert words in (raised.value.got or "")
    assert str(torch.__version__) in (raised.value.got or "")
    assert "--perf-device cpu" in (raised.value.next_command or "")


def test_a_workload_that_runs_anywhere_passes_the_check(cpu: CpuDevice, tiny: Callable[..., Workload]) -> None:
    cpu.check(tiny())


@pytest.mark.parametrize("dtype", ["fp16", "fp32"])
def test_a_gpu_without_bf16_leaves_out_bf16_alone_and_says_so(
    monkeypatch: pytest.MonkeyPatch, tiny: Callable[..., Workload], dtype: str
) -> None:
    class Properties:
        name = "Tesla T4"

    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: False)
    device = object.__new__(CudaDevice)  # without a GPU there is none to be had
    device._properties = Properties()
    device.check(tiny(dtype=dtype))
    with pytest.raises(WorkloadUnavailable, match="Tesla T4 has no bf16"):
        device.check(tiny(dtype="bf16"))


def test_a_hold_keeps_the_gpu_busy_for_about_as_long(monkeypatch: pytest.MonkeyPatch, gpu: CudaDevice) -> None:
    cycles: list[int] = []
    monkeypatch.setattr(torch.cuda, "_sleep", cycles.append)
    gpu.hold(150.0)
    (count,) = cycles
    assert count / 2600 > 100  # microseconds at the clocks of today's GPUs, from 1.4 to 2.6 GHz
    assert count / 1400 < 220


def test_neither_holding_nor_losing_means_anything_on_a_cpu(cpu: CpuDevice) -> None:
    cpu.hold(1e9)  # seventeen minutes
    assert not cpu.lost()


def test_arch_of_an_amd_gpu_is_its_gfx_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch reports compute capability 9.0 for a MI250X, as for an H100."""
    properties = SimpleNamespace(major=9, minor=0, gcnArchName="gfx90a:sramecc+:xnack-")
    monkeypatch.setattr(torch.version, "hip", "6.2")
    assert cuda._arch(properties) == "gfx90a"
    monkeypatch.setattr(torch.version, "hip", None)
    assert cuda._arch(properties) == "sm_90"
