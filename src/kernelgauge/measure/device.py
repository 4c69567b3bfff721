"""The devices as the rest of kernelgauge sees them: CUDA and the CPU behind one protocol."""

from __future__ import annotations

import atexit
import ctypes
import gc
import math
import os
import platform
import re
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import quantiles
from typing import Any, Literal

import msgspec
import torch
from torch import nn
from torch.profiler import ProfilerActivity

from ..errors import KernelgaugeError, WorkloadUnavailable
from ..run import CALL_TIMERS, MEASURED_GPUS, UNKNOWN_FACTOR, Fingerprint, Timer
from ..workload import Workload
from .nvml import Monitor, digest

DeviceChoice = Literal["auto", "cuda", "cpu"]


# A virtual machine's cores change speed by a factor of two for tenths of a second to many seconds,
# whatever runs on them. Another machine's work on the sibling hyperthread is one reason. A fixed
# piece of work, the host reference, is timed beside each measurement and shows it. It alone decides
# what is discarded, never the time that is being measured.
_SAMPLES = 10
_SLOW = 1.3  # fast processes on one machine spread by 25 %, the slow mode starts at 60 % more
_PAUSE_SECONDS = 0.05
_MOST_WAITED = 0.9  # of the time: a share of 1 has no factor


@dataclass
class HostSpeed:
    """The host reference, and the fastest that it was so far in this process."""

    work: Callable[[], object]  # what is timed: it does not depend on any workload
    wait: Callable[[], None] = lambda: None  # makes the device idle before each, if there is one
    # seconds that each thread of ours has waited for a core so far
    waits: Callable[[], dict[str, float]] = dict
    patience_seconds: float = 3.0  # for all waiting of the session: what is left of it
    fastest_us: float = math.inf
    # when waits began to count, and those until then
    _started: tuple[float, dict[str, float]] = (0.0, {})

    def once_us(self) -> float:
        """Time one reference, in microseconds."""
        self.wait()
        start = time.perf_counter_ns()
        self.work()
        return (time.perf_counter_ns() - start) / 1000

    def round_trip_us(self) -> float:
        """Time one reference and the wait for its end, in microseconds: what a latency has of the
        host.
        """
        self.wait()
        start = time.perf_counter_ns()
        self.work()
        self.wait()
        return (time.perf_counter_ns() - start) / 1000 * self._slowdown()

    def control_us(self) -> float:
        """Return the lower decile of a few references, in microseconds."""
        lowest = quantiles([self.once_us() for _ in range(_SAMPLES)], n=10, method="inclusive")[0]
        self.fastest_us = min(self.fastest_us, lowest)
        return lowest * self._slowdown()

    def start(self) -> None:
        """Count the waits for a core from here on."""
        self._started = time.perf_counter(), self.waits()

    def _slowdown(self) -> float:
        """Return the factor by which other jobs slowed our slowest thread since the last start; 1
        if not known. Start anew.
        """
        then, before = self._started
        self.start()
        now, waits = self._started
        waited = max(
            (wait - before.get(thread, 0.0) for thread, wait in waits.items()), default=0.0
        )
        return 1 / (1 - min(waited / (now - then), _MOST_WAITED)) if waited else 1.0

    def wait_until_fast(self) -> None:
        """Wait while the host is slow, as long as the session's patience lasts."""
        while self.control_us() > _SLOW * self.fastest_us and self.patience_seconds > 0:
            self.patience_seconds -= _PAUSE_SECONDS
            time.sleep(_PAUSE_SECONDS)


# The host reference on a CPU uses all threads: another job slows a parallel op far more than a
# single thread. 256: about 0.2 ms. It fits between the turns of another job, which last 3 ms. So
# the waits of our threads for a core count too.
_REFERENCE_SIZE = 256


def _waits() -> dict[str, float]:
    """Return how many seconds each thread of this process has waited for a core.

    Only Linux says so; empty elsewhere.
    """
    waits: dict[str, float] = {}
    for path in Path("/proc/self/task").glob("*/schedstat"):
        with suppress(OSError, IndexError, ValueError):  # a thread that has ended
            waits[path.parent.name] = int(path.read_text().split()[1]) / 1e9
    return waits


class Device:
    """What measuring needs of a device. This one is the host's processor, and a GPU is a class that
    does otherwise.

    Its kernels are the ops that compute. The host does the work itself, so its dispatch has no
    meaning, and a call has done its work when it returns. The claims are about structure, so the
    caches stay as they are, and few replicates are made.
    """

    torch_device = torch.device("cpu")
    activities: tuple[ProfilerActivity, ...] = (ProfilerActivity.CPU,)
    timers: tuple[Timer, ...] = (Timer.END_TO_END,)  # those that are judged here
    table_sort_key = "self_cpu_time_total"  # for the profiler's own table
    # `torch.manual_seed` formats a stack for each kind of accelerator that is not initialized
    generator: Any = torch.default_generator
    gpu: str | None = None  # which one of its kind: a digest of its UUID
    controls: tuple[Workload, ...] = ()  # what the machine is measured by, beside the workloads
    warm_up_calls = 1  # before anything is timed or profiled
    # where more of them would not sharpen what a time is for; None: no limit
    most_replicates: int | None = 4
    most_busy_seconds = math.inf  # in a row, by the calls of one timer: longer slows what follows
    # of its clock and of the reference kernels within one run, as a fraction
    tolerated_drift = math.inf
    cache_bytes = 0  # of the last-level cache, if `flush_cache` evicts it

    def __init__(self) -> None:
        matrix = torch.ones(_REFERENCE_SIZE, _REFERENCE_SIZE)
        self.host = HostSpeed(partial(torch.mm, matrix, matrix), waits=_waits)
        self.monitor = Monitor(None)  # NVML, or why there is none

    def check(self, workload: Workload) -> None:
        """Raise `WorkloadUnavailable` if `workload` cannot run here for a reason that is no fault."""
        if isinstance(workload.on_cpu, str):
            raise WorkloadUnavailable(workload.on_cpu, expected="a CUDA GPU")

    def synchronize(self) -> None:
        """Wait until the device is idle."""

    def flush_cache(self) -> None:
        """Evict the last-level cache, so that the next call reads its data from memory;
        asynchronous on a GPU.
        """

    def hold(self, microseconds: float) -> None:
        """Keep the device busy with nothing for that long; what is launched meanwhile then runs
        without a gap.
        """

    def lost(self) -> bool:
        """Whether the device no longer answers. It does not recover in this process."""
        return False

    def free_memory(self) -> None:
        """Give back what nothing uses: another process is about to need it."""

    def forget_peak(self) -> None:
        """Begin the peak of what is allocated anew, as in a new process: Inductor's autotuner looks
        at it (docs/measuring.md).
        """

    def peak_allocated_bytes(self, call: Callable[[], object]) -> int | None:  # noqa: ARG002
        """Return the most bytes held at once during `call`, beyond those held before; None if not
        observable.

        Bytes as the code asked for them: what the allocator adds depends on the blocks that others
        have left.
        """
        return None

    def fp32_precision(self, operation: Literal["matmul", "conv"]) -> str:
        """Return ``ieee``, ``tf32`` or ``bf16``: how float32 may be multiplied here.

        Torch's old and new settings may be mixed.
        """
        is_cuda, is_matmul, backends = (
            self.torch_device.type == "cuda",
            operation == "matmul",
            torch.backends,
        )
        library = backends.mkldnn if not is_cuda else backends.cuda if is_matmul else backends.cudnn
        precision = getattr(getattr(library, operation, None), "fp32_precision", None)
        if precision is None:  # before torch 2.9
            is_old_set = (
                torch.get_float32_matmul_precision() != "highest"
                if is_matmul
                else backends.cudnn.allow_tf32
            )
            return "tf32" if is_old_set and (is_cuda or is_matmul) else "ieee"
        return "ieee" if precision == "none" else str(precision)

    def fingerprint(self) -> Fingerprint:
        """Describe the machine and the software: the versions and settings that decide which
        kernels run.
        """
        # it takes seconds to import, and reads this variable then
        inductor = sys.modules.get("torch._inductor.config")
        is_deterministic = os.environ.get("TORCHINDUCTOR_DETERMINISTIC") == "1"
        fields: dict[str, Any] = dict.fromkeys(Fingerprint.__struct_fields__)
        fields |= {
            "device": f"CPU {cpu_name()}, {torch.get_num_threads()} threads",
            "arch": "cpu",
            "torch": str(torch.__version__),  # a TorchVersion, which is no plain string
            "triton": _version("triton"),
            "liger_kernel": _version("liger-kernel"),
            # a patch release changes no kernel
            "python": ".".join(platform.python_version_tuple()[:2]),
            "deterministic": bool(getattr(inductor, "deterministic", is_deterministic)),
            "fp32_matmul": {"ieee": "highest", "tf32": "high"}.get(
                self.fp32_precision("matmul"), "medium"
            ),
        }
        return Fingerprint(**fields)


def cpu_name() -> str:
    """Return the processor's name as the system gives it."""
    cpuinfo = Path("/proc/cpuinfo")  # it is Linux's
    text = cpuinfo.read_text(encoding="utf-8", errors="replace") if cpuinfo.exists() else ""
    named = re.search(r"^model name\s*:[ \t]*(\S.*)$", text, re.MULTILINE)
    return named[1].strip() if named else platform.processor() or platform.machine()


@cache  # it reads a file, and the fingerprint is taken before each test
def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def require_cuda() -> None:
    """Raise `KernelgaugeError` if there is no CUDA device."""
    if not torch.cuda.is_available():
        raise KernelgaugeError(
            "no CUDA device",
            got=f"torch {torch.__version__}, built for CUDA {torch.version.cuda}; torch.cuda.is_available() is False",
            expected="an NVIDIA GPU, its driver, and a torch built for CUDA",
            next_command="nvidia-smi   (does the driver see the GPU?)   or add: --perf-device cpu",
        )


def choose_device(choice: DeviceChoice) -> Device:
    """Return the device to measure on.

    ``auto``: a GPU if there is one. Raises `KernelgaugeError` if ``cuda`` is not there.
    """
    if choice == "cuda":
        require_cuda()
    return CudaDevice() if choice != "cpu" and torch.cuda.is_available() else Device()


# The buffer that evicts the L2 must be larger than twice the cache: with less, lines of the
# workload survive under a replacement policy that is not strict LRU, and a "cold" time is silently
# warm (flashinfer#4468: 36 % wrong).
_FLUSH_FACTOR = 3
# An H200's clock moves in steps of 15 MHz (0.8 % of 1980), and one or two of them are nothing
# unusual. Its reference kernels spread by 0.1 % between processes. Beyond 3 % the times would pass
# for a regression.
_DRIFT = 0.03
# CUPTI needs some milliseconds before it can be detached, and as many to be gone.
_DETACHING_CALLS = 10
_BETWEEN_CALLS_SECONDS = 0.01


class CudaDevice(Device):
    """The current CUDA device of this process."""

    activities = (ProfilerActivity.CPU, ProfilerActivity.CUDA)
    timers = CALL_TIMERS
    table_sort_key = "self_cuda_time_total"
    generator = torch
    warm_up_calls = 3  # CUDA graphs record on the second call and replay from the third
    most_replicates = None
    # After thirty calls of a large MLP more an H200 is at its power cap, and slower for half a
    # second: docs/measuring.md.
    most_busy_seconds = 0.01
    _cycles_per_us = 2000.0  # GPUs since Ampere run at 1.4 to 2.6 GHz: a hold need not be exact

    def __init__(self) -> None:
        # Else CUPTI stays attached after the first profiler session and slows every later launch in
        # this process: 15 us become 19 for a linear's dispatch, and its noise doubles
        # (docs/measuring.md). Before CUDA 12.6 attaching it again crashes with CUDA graphs
        # (torch/profiler/profiler.py).
        if torch.version.cuda and tuple(map(int, torch.version.cuda.split("."))) >= (12, 6):
            os.environ.setdefault("TEARDOWN_CUPTI", "1")
        self.torch_device = torch.device("cuda", torch.cuda.current_device())
        self._properties = torch.cuda.get_device_properties(self.torch_device)
        uuid = str(self._properties.uuid)
        self.gpu = digest(uuid)
        self.tolerated_drift = _DRIFT * (
            1.0 if self._properties.name in MEASURED_GPUS else UNKNOWN_FACTOR
        )
        self.monitor = Monitor(uuid)
        self.controls = control_pair()
        self.host = HostSpeed(_launches(self.torch_device), wait=self.synchronize)
        self.cache_bytes = int(self._properties.L2_cache_size)
        self._release_kept_lines = _kept_lines_release()
        self._flush_buffer = torch.empty(
            _FLUSH_FACTOR * self.cache_bytes, dtype=torch.int8, device=self.torch_device
        )
        if os.environ.get("TEARDOWN_CUPTI") == "1":
            atexit.unregister(_let_cupti_detach)  # once for all devices of a process
            atexit.register(_let_cupti_detach)

    def check(self, workload: Workload) -> None:
        if workload.dtype == "bf16" and not torch.cuda.is_bf16_supported(including_emulation=False):
            more = "compute capability 8.0 or newer; --perf-matrix full adds fp16 and fp32"
            raise WorkloadUnavailable(f"{self._properties.name} has no bf16", expected=more)

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.torch_device)

    def flush_cache(self) -> None:
        self._release_kept_lines()
        self._flush_buffer.zero_()

    def hold(self, microseconds: float) -> None:
        # Counts clock cycles on the device. At a lower clock it takes longer, which does no harm.
        torch.cuda._sleep(round(microseconds * self._cycles_per_us))  # type: ignore[no-untyped-call]

    def lost(self) -> bool:
        try:
            self.synchronize()
        except RuntimeError:  # an error of CUDA stays for the life of the process
            return True
        return False

    def free_memory(self) -> None:
        gc.collect()
        torch.cuda.empty_cache()

    def forget_peak(self) -> None:
        torch.cuda.reset_peak_memory_stats(self.torch_device)

    def peak_allocated_bytes(self, call: Callable[[], object]) -> int | None:
        # of what the collector frees meanwhile, the call would seem to need so much less
        gc.collect()
        self.synchronize()
        self.forget_peak()
        before = torch.cuda.memory_stats(self.torch_device)
        _held = call()
        self.synchronize()
        after = torch.cuda.memory_stats(self.torch_device)
        return int(after["requested_bytes.all.peak"] - before["requested_bytes.all.current"])

    def fingerprint(self) -> Fingerprint:
        properties, cudnn = self._properties, torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
        arch = f"sm_{properties.major}{properties.minor}"
        if torch.version.hip:  # a MI250X has compute capability 9.0, as a H100 has
            arch = str(properties.gcnArchName).partition(":")[0]
        return msgspec.structs.replace(
            super().fingerprint(),
            device=properties.name,
            arch=arch,
            sm_count=properties.multi_processor_count,
            memory_bytes=properties.total_memory,
            power_limit_watts=self.monitor.power_limit_watts,
            mig=self.monitor.mig,
            driver=self.monitor.driver,
            cuda=torch.version.cuda,
            cudnn=None if cudnn is None else str(cudnn),
            cudnn_tf32=self.fp32_precision("conv") == "tf32",
        )


def _kept_lines_release() -> Callable[[], object]:
    """Return the call of CUDA's driver after which no line of the L2 has priority over others.

    It takes 5 us of the host.
    """
    # Kernels of Inductor ask the L2 to keep lines (`evict_last`). Such lines survive three times
    # the cache of other data, and made the next workload on the same addresses faster by 3 to 12 %
    # (docs/design/measuring.md).
    try:
        return ctypes.CDLL("libcuda.so.1").cuCtxResetPersistingL2Cache
    except (OSError, AttributeError):  # ROCm, or a driver before CUDA 11
        return lambda: None


def _let_cupti_detach() -> None:
    """Make the CUDA calls without which a process whose last ones were profiled hangs for ever when
    it ends.
    """
    # A session leaves detaching CUPTI to a thread that waits for the end of the next call of CUDA's
    # runtime. If none comes, a destructor waits for that thread (libkineto,
    # `CuptiActivityApi::teardownContext`).
    for _ in range(_DETACHING_CALLS):
        # of a GPU that no longer answers: the call has ended all the same
        with suppress(RuntimeError):
            torch.cuda.synchronize()
        time.sleep(_BETWEEN_CALLS_SECONDS)


def _launches(device: torch.device) -> Callable[[], None]:
    """Return the host reference on CUDA: a few launches of a kernel that does nothing much."""
    # They follow the dispatch of real workloads, which spreads by 0.9 to 1.5 % at equal reference
    # between processes on one H200; with ten `tensor.view` for a reference 9 to 10 % were left.
    tensor = torch.zeros(64, device=device)

    def dispatch() -> None:
        with torch.no_grad():
            for _ in range(3):
                tensor.add_(1)

    return dispatch


# The reference kernels: what moves them is the machine, and not the code.
_COPIED = (64, 1024, 1024)  # 128 MiB in fp16: twice the L2 of the largest GPUs there are
_GEMM = (4096, 4096, 4096)  # rows, in, out: bound by the tensor cores


class _Gemm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(_GEMM[1:]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight


def control_pair() -> tuple[Workload, ...]:
    """Workloads of our own: `copy` is bound by memory, `gemm` by arithmetic. fp16, which every GPU
    has.

    `copy` reads and writes every byte once. A `clone` would be a memcpy, for which the profiler has
    no kernel.
    """
    return (
        Workload(
            "copy", "control", lambda: torch.neg, lambda: (torch.randn(_COPIED),), _COPIED, "fp16"
        ),
        Workload("gemm", "control", _Gemm, lambda: (torch.randn(_GEMM[:2]),), _GEMM, "fp16"),
    )
