"""What could be faster: facts of a run that nothing gates, the largest first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..errors import printable
from ..results import Results, WorkloadResult
from ..run import Timer
from ..trace.work import DeviceLimits, LimitShare, share_of_limit
from .wording import percent, us

__all__ = ["Opportunity", "limit_shares", "opportunities"]

_LEAST_SHARE = 0.03  # of the workload's time: less is not worth a line
_TRACES = "reports/latest/traces"  # where a run leaves them, unless the project has another folder
_SAME = 0.01  # two variants this near to each other are equally fast
_SHORT_US = 10.0  # a kernel as short as this takes most of its time to start and to end, whatever limit it has


@dataclass(frozen=True)
class Opportunity:
    """Something that could be faster.

    Attributes:
        text: what, in one sentence.
        saves_us: at most, of each call.
        share: the same, of the workload's time.
        is_measured: whether the faster one was measured; else `saves_us` is a bound.
        command: what to do next.
    """

    workload: str
    text: str
    saves_us: float
    share: float
    is_measured: bool
    command: str

    def __str__(self) -> str:
        how = "measured" if self.is_measured else "at most"
        saves = f"{us(self.saves_us)} us ({percent(self.share)}, {how})"
        return printable(f"{self.workload}: {self.text}: {saves}") + f"\n  {printable(self.command)}"


def opportunities(results: Results) -> list[Opportunity]:
    """Return what could be faster, the largest share first. Without a GPU there is none: its times are not what they are about."""
    on_gpu = [each for each in results.workloads if each.run is not None and each.run.fingerprint.arch != "cpu"]
    found = [
        *_between_variants(on_gpu),
        *(one for each in on_gpu for one in (*_of_the_autotuner(each), *_of_kernels(each))),
    ]
    return sorted((one for one in found if one.share >= _LEAST_SHARE), key=lambda one: -one.share)


def _of_the_autotuner(workload: WorkloadResult) -> Iterator[Opportunity]:
    """Yield the configuration that the baseline knows and the autotuner did not choose, if it is faster."""
    run, baseline = workload.run, workload.baseline
    if run is None or baseline is None or len(baseline.entries) < 2:
        return
    entry, alike = baseline.entry_like(run.kernels)
    fastest = min(baseline.entries, key=lambda each: each.device_time_us)
    saves_us = entry.device_time_us - fastest.device_time_us
    if alike.same_configuration and saves_us > 0:
        yield Opportunity(
            workload.id,
            f"Inductor's autotuner chose the slower of {len(baseline.entries)} launch configurations",
            saves_us,
            saves_us / entry.device_time_us,
            is_measured=True,
            command='torch.compile(..., options={"inplace_buffers": False})   (lets the autotuner time the kernel alone)',
        )


def _between_variants(workloads: Sequence[WorkloadResult]) -> Iterator[Opportunity]:
    """Yield for each module the variant that is faster than another, and what keeps the fastest on the GPU from being it."""
    groups: dict[object, list[WorkloadResult]] = {}
    for each in workloads:
        groups.setdefault((each.module, each.shape, each.dtype, each.pass_), []).append(each)
    for group in groups.values():
        on_gpu = _fastest(group, Timer.DEVICE)
        in_all = _fastest(group, Timer.END_TO_END)
        if on_gpu is None or in_all is None:
            continue
        for slow in group:
            saves_us = _time_us(slow, Timer.END_TO_END) - _time_us(in_all, Timer.END_TO_END)
            total_us = _time_us(slow, Timer.END_TO_END)
            if slow is on_gpu and slow is not in_all and saves_us > _SAME * total_us:
                host_us = total_us - _time_us(slow, Timer.DEVICE)
                yield Opportunity(
                    slow.id,
                    f"the fastest on the GPU, and slower end to end than {in_all.variant}: the GPU waits for the host",
                    host_us,
                    host_us / total_us,
                    is_measured=False,
                    command='torch.compile(..., mode="reduce-overhead")   (CUDA graphs remove launches)',
                )
            elif slow is not in_all and slow is not on_gpu:
                yield Opportunity(
                    slow.id,
                    f"{in_all.variant} is the fastest variant of {slow.module} end to end",
                    saves_us,
                    saves_us / total_us,
                    is_measured=True,
                    command=f"kernelgauge diff {_TRACES}/{slow.id}.json.gz {_TRACES}/{in_all.id}.json.gz",
                )


def _fastest(group: Sequence[WorkloadResult], timer: Timer) -> WorkloadResult | None:
    """Return the fastest of several variants; None if one of them was not timed."""
    if len(group) < 2 or any(each.run is None or each.run.sample(timer) is None for each in group):
        return None
    return min(group, key=lambda each: _time_us(each, timer))


def _time_us(workload: WorkloadResult, timer: Timer) -> float:
    assert workload.run is not None
    return workload.run.time_us(timer)


def _of_kernels(workload: WorkloadResult) -> Iterator[Opportunity]:
    """Yield the kernel that is furthest from the limit that binds it, in microseconds."""
    run = workload.run
    assert run is not None
    total_us = sum(kernel.device_time_us for kernel in run.kernels)
    origins = run.origins or (None,) * len(run.kernels)
    left = [
        ((1 - share.share) * kernel.device_time_us, share, kernel, origin)
        for kernel, share, origin in zip(run.kernels, limit_shares(workload), origins, strict=True)
        if share is not None and share.share < 1 and kernel.device_time_us > _SHORT_US
    ]
    if left:
        saves_us, share, kernel, origin = max(left, key=lambda one: one[0])
        limit = "memory's speed" if share.limit == "memory" else f"the speed of a large GEMM in {share.limit}"
        line = f", {origin.lines[0].file}:{origin.lines[0].line}" if origin is not None and origin.lines else ""
        yield Opportunity(
            workload.id,
            f"{kernel.identity.shown}{line} runs at {percent(share.share)} of {limit}",
            saves_us,
            saves_us / total_us,
            is_measured=False,
            command=f"kernelgauge show {_TRACES}/{workload.id}.json.gz",
        )


def limit_shares(workload: WorkloadResult) -> list[LimitShare | None]:
    """Return how near each launch came to what the reference kernels reached; None where the results do not say."""
    run = workload.run
    if run is None:
        return []
    if run.roof is None or len(run.work) != len(run.kernels):
        return [None] * len(run.kernels)
    # What the pair was measured in; a 16-bit type is as fast as the other.
    peaks = {"fp16": run.roof.gemm_tflop_per_s, "bf16": run.roof.gemm_tflop_per_s}
    limits = DeviceLimits("reference kernels", run.roof.memory_gb_per_s, peaks, source="measured beside the workloads")
    return [
        share_of_limit(work, kernel.device_time_us, workload.dtype, limits) if work else None
        for kernel, work in zip(run.kernels, run.work, strict=True)
    ]
