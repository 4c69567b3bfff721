"""Which kernels carry a change of the device time: nothing is lost between the kernels and their sum."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from kernelgauge.judge import compare, judge_time
from kernelgauge.run import Timer
from kernelgauge.trace import KernelRecord
from tests.builders import (
    DOWN,
    FUSED,
    GEMM,
    H200,
    OTHER_SOURCE,
    baseline,
    calibrated,
    fused,
    launched,
    mlp_kernels,
    pair,
    reasons,
    run,
)

TUNED = "other launch configuration:\nXBLOCK 1024 -> 512, num_warps 4 -> 8"
AUTOTUNER = f"{TUNED}: Inductor's autotuner chose differently"
UNCHANGED = "unchanged (same identity, +0.0 %, +0.00 us)"
SAME = "same kernel, same launch configuration"
TWELVE = [launched(f"kernel_{index}", 10.0) for index in range(12)]


def causes(before: Sequence[KernelRecord], after: Sequence[KernelRecord]) -> tuple[list[str], str]:
    """What the verdict on a slower run of these kernels says of them."""
    stored = baseline(kernels=tuple(before), device=(200.0,) * 4)
    verdict = judge_time(Timer.DEVICE, run(kernels=tuple(after), device=(300.0,) * 4), stored, compare(H200, H200))
    return reasons(verdict, "why"), "".join(reasons(verdict, "rest"))


@pytest.mark.parametrize(
    ("before", "after", "why", "rest"),
    [
        (mlp_kernels(), mlp_kernels(us=55.4), [f"{FUSED}  38.1 -> 55.4 us (+17.30): {SAME}, slower"], f"3 GEMMs {UNCHANGED}"),
        (mlp_kernels(), mlp_kernels(gate=46.0, down=83.0),
         [f"{DOWN}  53.0 -> 83.0 us (+30.00): {SAME}, slower", f"{GEMM}  56.0 -> 46.0 us (-10.00): {SAME}, faster"],
         f"1 GEMM, 1 pointwise kernel {UNCHANGED}"),
        (mlp_kernels(), mlp_kernels(gate=57.0, us=57.1), [f"{FUSED}  38.1 -> 57.1 us (+19.00): {SAME}, slower"],
         "3 GEMMs unchanged (same identity, +0.6 %, +1.00 us)"),
        ([launched("b", 10.0)], [launched("c", 12.5)], ["c  new: 12.5 us", "b  gone: 10.0 us"], ""),
        (mlp_kernels(), mlp_kernels(), [], f"3 GEMMs, 1 pointwise kernel {UNCHANGED}"),
        ((), (), [], ""),
        ([fused(38.1)], [fused(55.4, xblock=512)],
         [f"{FUSED}  38.1 -> 55.4 us (+17.30): same source (crp6dxk5), {AUTOTUNER}"], ""),
        ([fused(38.1)], [fused(55.4, xblock=512, source=OTHER_SOURCE)],
         [f"{FUSED}  38.1 -> 55.4 us (+17.30): other source (crp6dxk5 -> c6ftvhgu), {TUNED}"], ""),
        ([fused(38.1)], [fused(55.4, source=OTHER_SOURCE)],
         [f"{FUSED}  38.1 -> 55.4 us (+17.30): other source (crp6dxk5 -> c6ftvhgu), same launch configuration"], ""),
        *(
            ([fused(38.1, source=one)], [fused(38.1, xblock=512, source=other)], [f"{FUSED}  38.1 -> 38.1 us (+0.00): {TUNED}"], "")
            for one, other in ((None, OTHER_SOURCE), (OTHER_SOURCE, None), (None, None))
        ),
        *(
            (kernels, [KernelRecord(each.identity, 10.8) for each in kernels],
             [f"{each.identity.name}  10.0 -> 10.8 us (+0.80): {SAME}, slower" for each in kernels[:3]],
             "9 GEMMs of the same identity, +8.0 % together (+7.20 us)")
            for kernels in (TWELVE, TWELVE[:1] * 12)
        ),
    ],
)  # fmt: skip
def test_regression_names_kernels_and_sums_up_the_rest(
    before: Sequence[KernelRecord], after: Sequence[KernelRecord], why: list[str], rest: str
) -> None:
    assert causes(before, after) == (why, rest)


def test_kernels_that_follow_a_slower_gpu_are_no_reason() -> None:
    known = run(kernels=tuple(launched(f"kernel_{place}", 50.0) for place in range(4)), device=(200.0,) * 4)
    stored = calibrated([known], suite="perf")
    times = (51.0, 51.0, 51.0, 61.0)  # the GPU is slower by 2 %, and one kernel by 20 %
    kernels = tuple(launched(f"kernel_{place}", us) for place, us in enumerate(times))
    now = run(kernels=kernels, device=(sum(times),) * 4, controls=pair(gemm=150 * 1.02))
    verdict = judge_time(Timer.DEVICE, now, stored, compare(H200, H200))
    assert reasons(verdict, "why") == [f"kernel_3  51.0 -> 61.0 us (+10.00): {SAME}, slower"]
    assert reasons(verdict, "rest") == [f"3 GEMMs {UNCHANGED}"]
    assert reasons(verdict, "machine") == ["the GPU itself changed its speed (reference copy +0.0 %, gemm +2.0 %)"]
