"""The CPU and CUDA behind one protocol: kernels and their identity, the choice of a device, and its fingerprint."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from kernelgauge.errors import KernelgaugeError, WorkloadUnavailable
from kernelgauge.measure.device import CpuDevice, CudaDevice, cpu_name
from kernelgauge.measure.device import choose_device as choose
from kernelgauge.trace import KernelIdentity, Trace
from tests.builders import FUSED, recorded, recorded_events, trace_of
from tests.measure.conftest import tiny


@pytest.fixture
def recorded_gpu() -> CudaDevice:
    """Return a CUDA device that needs no GPU: it reads recorded launches."""
    return object.__new__(CudaDevice)


def one(gpu: CudaDevice, trace: Trace, name: str = FUSED) -> KernelIdentity:
    """Return the only kernel of that name in the last step."""
    (identity,) = (each.identity for each in gpu.executions(trace.steps()[-1]) if each.identity.name == name)
    return identity


def test_triton_kernel_has_configuration_and_source(recorded_gpu: CudaDevice) -> None:
    fused = one(recorded_gpu, recorded("mlp-compiled"))
    assert (fused.kind, fused.grid, fused.block) == ("pointwise", (24576, 1, 1), (128, 1, 1))
    assert (fused.num_warps, fused.num_stages) == (4, 1)
    assert "XBLOCK=1024" in (fused.kernel_kwargs or "")
    other = one(recorded_gpu, recorded("mlp-compiled-other-autotune"))
    assert fused != other
    assert (other.num_warps, other.grid) != (fused.num_warps, fused.grid)


def test_triton_keys_need_an_op_of_the_same_name(recorded_gpu: CudaDevice) -> None:
    events = recorded_events("mlp-compiled")
    for event in events:
        if event.get("cat") == "kernel" and event["name"] == FUSED:
            event["name"] = "a_library_call"  # launched under the Triton op, as a memset or a GEMM may be
    stranger = one(recorded_gpu, trace_of(*events), "a_library_call")
    assert (stranger.num_warps, stranger.kernel_kwargs, stranger.source_hash) == (None, None, None)
    assert stranger.grid == (24576, 1, 1)


def test_choose_device_without_gpu_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    with pytest.raises(KernelgaugeError, match="no CUDA device") as raised:
        choose("cuda")
    assert f"torch {torch.__version__}, built for CUDA 13.0" in (raised.value.got or "")
    assert "--perf-device cpu" in (raised.value.next_command or "")


def test_check_refuses_bf16_alone_where_there_is_none(
    recorded_gpu: CudaDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: False)
    recorded_gpu._properties = SimpleNamespace(name="Tesla T4")
    for dtype in ("fp16", "fp32", None):
        recorded_gpu.check(tiny(dtype=dtype))
    with pytest.raises(WorkloadUnavailable, match="Tesla T4 has no bf16"):
        recorded_gpu.check(tiny(dtype="bf16"))


def test_fingerprint_of_cpu_has_a_name_and_no_gpu(cpu: CpuDevice) -> None:
    fingerprint = cpu.fingerprint()
    assert fingerprint.device == f"CPU {cpu_name()}, {torch.get_num_threads()} threads"
    assert (fingerprint.arch, fingerprint.torch) == ("cpu", str(torch.__version__))
    assert {fingerprint.sm_count, fingerprint.memory_bytes, fingerprint.driver, fingerprint.cuda} == {None}
