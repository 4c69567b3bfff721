"""What only a real GPU has: a neighbour, a CUDA error, a cache that is not cold, an autotuner,
graphs, Triton kernels.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import nn

from kernelgauge import Workload
from kernelgauge.errors import WorkloadError
from kernelgauge.measure import Settings
from kernelgauge.measure.compiler import torch_set_up
from kernelgauge.measure.device import CudaDevice
from kernelgauge.measure.instance import build
from kernelgauge.measure.measurement import Measured, Measurement
from kernelgauge.measure.profile import profile_session
from kernelgauge.measure.runner import measure_groups, time_latency

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

if torch.cuda.is_available():
    import triton
    import triton.language as tl

    @triton.jit
    def keep_lines(values, block: tl.constexpr):  # type: ignore[no-untyped-def]
        """Write each value back, and ask the L2 to keep it, as Inductor does with what it reads
        twice.
        """
        places = values + tl.program_id(0) * block + tl.arange(0, block)
        tl.store(
            places, tl.load(places, eviction_policy="evict_last"), eviction_policy="evict_last"
        )


ROOT = Path(__file__).resolve().parents[2]

NEIGHBOUR = """
import torch
x = torch.randn(4096, 4096, device="cuda", dtype=torch.float16)
print("busy", flush=True)
while True:
    for _ in range(50):
        x @ x
    torch.cuda.synchronize()
"""

# The second of three workloads dies with a device-side assertion, as a GPU does that falls off the
# bus: every later CUDA call of the process fails.
DYING_SUITE = """
import torch
from torch import nn
from kernelgauge import Workload

class Dies(nn.Module):
    calls = 0
    def forward(self, x):
        Dies.calls += 1
        if Dies.calls > 40:
            return x[torch.full((1,), 1 << 30, device=x.device)]
        return x + 1

def pytest_kernelgauge_workloads():
    modules = {"first": nn.GELU, "dies": Dies, "last": nn.SiLU}
    inputs = lambda: (torch.randn(1024, 1024),)
    return [Workload(name, "eager", build=module, inputs=inputs, dtype="fp16") for name, module in modules.items()]
"""

# Nothing of CUDA is called after the session.
ENDS_AFTER_A_SESSION = """
import torch
from kernelgauge import Workload
from kernelgauge.measure.device import CudaDevice
from kernelgauge.measure.instance import build
from kernelgauge.measure.profile import profile_session

device = CudaDevice()
x = torch.ones(1024, device="cuda")
profile_session(device, build(Workload("add", "eager", lambda: lambda: x + 1, tuple, dtype="fp32"), device), iterations=3)
print("ends", flush=True)
"""


def pytest_in(folder: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "pytest", "-p", "kernelgauge.plugin", "-q", "-rA", *arguments]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=300, check=False
    ).stdout


@pytest.fixture
def neighbour() -> Iterator[None]:
    with subprocess.Popen(
        [sys.executable, "-c", NEIGHBOUR], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "busy\n"
        time.sleep(2)  # NVML's utilisation is a mean over the last second
        yield
        process.kill()


@pytest.mark.usefixtures("neighbour")
def test_gpu_that_another_process_uses_is_invalid(tmp_path: Path) -> None:
    said = pytest_in(
        ROOT,
        "perf",
        "-k",
        "mlp-eager and test_device_time",
        "-o",
        f"kernelgauge_reports={tmp_path}",
    )
    assert "INVALID" in said, said
    assert "another process" in said or "the machine" in said


def test_cuda_error_in_mid_suite_makes_the_rest_invalid(tmp_path: Path) -> None:
    (tmp_path / "perf").mkdir()
    (tmp_path / "perf" / "conftest.py").write_text(DYING_SUITE)
    tests = "from kernelgauge.standard import test_device_time, test_structure_is_that_of_the_baseline\n"
    (tmp_path / "perf" / "test_perf.py").write_text(tests)
    said = pytest_in(tmp_path, "perf")
    assert "the GPU no longer answers" in said
    assert said.count("INVALID") >= 3
    assert "first-eager" in said


def read_us(
    device: CudaDevice, read: Callable[[], object], *, prepare: Callable[[], object], flush: bool
) -> float:
    """The median time of a kernel that reads memory, as a session of kernelgauge times it."""
    workload = Workload("read", "probe", lambda: None, tuple, dtype="fp16")
    instance: Any = SimpleNamespace(workload=workload, prepare=prepare, call=read)
    with patch.object(device, "flush_cache", device.flush_cache if flush else lambda: None):
        session = profile_session(device, instance, iterations=10, warmup=10)
    return median(sum(each.duration_us for each in executions) for executions in session.executions)


def test_flushed_read_takes_as_long_as_one_from_memory() -> None:
    device = CudaDevice()
    elements = int(0.4 * device.cache_bytes) // 2
    # four times the cache
    buffers = torch.randn(10 * elements, device="cuda", dtype=torch.float16).chunk(10)
    probe, turns = buffers[0], cycle(buffers)
    warm_us = read_us(device, probe.amax, prepare=probe.amax, flush=False)
    flushed_us = read_us(device, probe.amax, prepare=probe.amax, flush=True)
    cold_us = read_us(device, lambda: next(turns).amax(), prepare=lambda: None, flush=False)
    # else nothing can be told; an H200: 13.0 us from its L2, 16.2 from memory
    assert cold_us > 1.05 * warm_us
    assert flushed_us > warm_us + 0.8 * (cold_us - warm_us)


def test_flush_evicts_lines_that_a_kernel_asked_to_keep() -> None:
    device = CudaDevice()
    blocks = int(0.4 * device.cache_bytes) // 2 // 1024
    probe = torch.randn(blocks * 1024, device="cuda", dtype=torch.float16)
    cold_us = read_us(device, probe.amax, prepare=lambda: None, flush=True)
    kept_us = read_us(
        device, probe.amax, prepare=lambda: keep_lines[(blocks,)](probe, block=1024), flush=True
    )
    assert kept_us > 0.97 * cold_us


def test_process_after_a_profiler_session_ends() -> None:
    command = [sys.executable, "-c", ENDS_AFTER_A_SESSION]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert ended.stdout == "ends\n"


class Gate(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.gelu(x) * y


def test_other_choice_in_the_compile_cache_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process that compiles the same at the same time leaves one there."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    # else it becomes a folder of the first
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    device = CudaDevice()
    inputs = lambda: tuple(torch.randn(8192, 3072) for _ in range(2))  # noqa: E731
    workload = Workload("gate", "compiled", Gate, inputs, compile={})
    with torch_set_up():  # as the pass and the rounds do: it is part of the compile cache's key
        profiled = Measurement(
            workload, build(workload, device), device, Settings()
        ).structure.kernels
    launched = [SimpleNamespace(identity=each) for each in profiled]
    run: Any = SimpleNamespace(kernels=launched, choices=())  # none is recorded

    def look() -> None:
        time_latency(
            workload,
            device,
            Measured(run, latency_replicates=1, latency_iterations=4, trace_json=b"", table=""),
        )

    look()
    (choice,) = tmp_path.rglob("*.best_config")
    chosen = json.loads(choice.read_text())
    other = (
        {"XBLOCK": 512, "num_warps": 8}
        if chosen["XBLOCK"] == 1024
        else {"XBLOCK": 1024, "num_warps": 4}
    )
    choice.write_text(json.dumps(chosen | other))
    with pytest.raises(WorkloadError, match="other kernels"):
        look()


GIB = 1 << 30


def test_peak_of_memory_does_not_depend_on_what_ran_before() -> None:
    """The autotuner looks at it when a module is called first
    (torch/_inductor/runtime/triton_heuristics.py).
    """
    device, spare = CudaDevice(), list[int]()

    def look(x: torch.Tensor) -> torch.Tensor:
        spare.append(
            torch.accelerator.max_memory_allocated() - torch.accelerator.memory_allocated()
        )
        return x + 1

    torch.empty(2 * GIB, dtype=torch.int8, device=device.torch_device)
    workload = Workload("looks", "eager", lambda: look, lambda: (torch.randn(1024),))
    list(measure_groups([workload], device, device.fingerprint(), Settings(), timed=False))
    assert spare[0] <= GIB // 64
