"""What could be faster: facts of a run that nothing gates, the largest first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ..judge.baseline import Likeness
from ..results import Results, WorkloadResult
from ..run import Run, Timer
from ..trace.work import DeviceLimits, LimitShare, share_of_limit
from .wording import percent

_LEAST_SHARE = 0.03  # of the workload's time: less is not worth a line
_TRACES = "reports/latest/traces"  # where a run leaves them, unless the project has another folder
_SHORT_US = 10.0  # a kernel as short as this takes most of its time to start and to end, whatever limit it has


class Opportunity(NamedTuple):
    """Something that could be faster: what, in one sentence, and what to do next.

    `saves_us`: of each call, which takes `total_us`. `is_bound`: the most that it could be; else a faster one was measured.
    """

    workload: str
    text: str
    command: str
    saves_us: float
    total_us: float
    is_bound: bool = False

    @property
    def share(self) -> float:
        return self.saves_us / self.total_us


def opportunities(results: Results) -> list[Opportunity]:
    """Return what could be faster on a GPU, the largest share first. A run without traces has none: the next step reads them."""
    on_gpu = [each for each in results.workloads if each.run and each.trace and each.run.fingerprint.arch != "cpu"]
    alone = (one for each in on_gpu for one in (*_of_the_autotuner(each), *_of_kernels(each)))
    found = [*_between_variants(on_gpu), *alone]
    return sorted((one for one in found if one.share >= _LEAST_SHARE), key=lambda one: -one.share)


def _of_the_autotuner(workload: WorkloadResult) -> Iterator[Opportunity]:
    """Yield what its choice of a launch configuration costs, where the baseline knows a faster one."""
    run, baseline = workload.run, workload.baseline
    if run is None or baseline is None:
        return
    entry, likeness = baseline.entry_like(run.kernels)
    saves_us = entry.device_time_us - min(each.device_time_us for each in baseline.entries)
    if likeness >= Likeness.SAME_CONFIGURATION and saves_us > 0:
        text = f"Inductor's autotuner chose the slower of {len(baseline.entries)} launch configurations"
        command = 'torch.compile(..., options={"inplace_buffers": False})   (lets the autotuner time the kernel alone)'
        yield Opportunity(workload.id, text, command, saves_us, entry.device_time_us)


def _between_variants(workloads: Sequence[WorkloadResult]) -> Iterator[Opportunity]:
    """Yield for each module the variant that is faster than another, and what keeps the fastest on the GPU from being it."""
    groups: dict[object, list[tuple[WorkloadResult, float, float]]] = {}
    for each in workloads:
        if each.run is not None and {Timer.DEVICE, Timer.END_TO_END} <= each.run.samples.keys():
            times = each.run.time_us(Timer.DEVICE), each.run.time_us(Timer.END_TO_END)
            groups.setdefault((each.module, each.shape, each.dtype, each.pass_), []).append((each, *times))
    for group in groups.values():
        least_gpu_us = min(gpu_us for _, gpu_us, _ in group)
        fastest, _, least_us = min(group, key=lambda one: one[2])
        for slow, gpu_us, total_us in group:
            if total_us - least_us < _LEAST_SHARE * total_us:
                continue
            if gpu_us == least_gpu_us:
                text = f"fastest on the GPU, slower end to end than {fastest.variant}: the GPU waits for the host"
                command = 'torch.compile(..., mode="reduce-overhead")   (CUDA graphs remove launches)'
                yield Opportunity(slow.id, text, command, total_us - gpu_us, total_us, is_bound=True)
            else:
                text = f"{fastest.variant} is the fastest variant of {slow.module} end to end"
                command = f"kernelgauge diff {_TRACES}/{slow.id}.json.gz {_TRACES}/{fastest.id}.json.gz"
                yield Opportunity(slow.id, text, command, total_us - least_us, total_us)


def _of_kernels(workload: WorkloadResult) -> Iterator[Opportunity]:
    """Yield the kernel that is furthest from the limit that binds it, in microseconds."""
    run = workload.run
    assert run is not None
    origins = run.origins or (None,) * len(run.kernels)
    left = [
        ((1 - share.share) * kernel.device_time_us, share, kernel, origin)
        for kernel, share, origin in zip(run.kernels, limit_shares(run, workload.dtype), origins, strict=True)
        if share is not None and share.share < 1 and kernel.device_time_us > _SHORT_US
    ]
    if left:
        saves_us, share, kernel, origin = max(left, key=lambda one: one[0])
        limit = "memory's speed" if share.limit == "memory" else f"the speed of a large GEMM in {share.limit}"
        line = f", {origin.lines[0].file}:{origin.lines[0].line}" if origin is not None and origin.lines else ""
        text = f"{kernel.identity.shown}{line} runs at {percent(share.share)} of {limit}"
        total_us = sum(each.device_time_us for each in run.kernels)
        command = f"kernelgauge show {_TRACES}/{workload.id}.json.gz"
        yield Opportunity(workload.id, text, command, saves_us, total_us, is_bound=True)


def limit_shares(run: Run, dtype: str) -> list[LimitShare | None]:
    """Return how near each launch came to what the reference kernels reached; None where the results do not say."""
    if run.roof is None or len(run.work) != len(run.kernels):
        return [None] * len(run.kernels)
    # What the pair was measured in; a 16-bit type is as fast as the other.
    peaks = {"fp16": run.roof.gemm_tflop_per_s, "bf16": run.roof.gemm_tflop_per_s}
    limits = DeviceLimits("reference kernels", run.roof.memory_gb_per_s, peaks, source="measured beside the workloads")
    return [
        share_of_limit(work, kernel.device_time_us, dtype, limits) if work else None
        for kernel, work in zip(run.kernels, run.work, strict=True)
    ]
