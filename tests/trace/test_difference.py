"""Two traces compared: which launch is which, and what happened to it."""

import random
import time
from statistics import median
from typing import Any

import pytest

from kernelgauge.trace import KernelIdentity, decode
from kernelgauge.trace.difference import Difference, diff, host_difference, name_differences
from kernelgauge.trace.kernel import KernelRecord
from kernelgauge.trace.summary import HostLane
from tests.builders import DOWN, FUSED, GEMM, OTHER_SOURCE, SOURCE, launched


def test_diff_pairs_long_sequences_in_seconds() -> None:
    start = time.process_time()
    before = "qkv rope attention out add norm up gelu down add norm copy".split() * 400
    after = before.copy()
    for place in range(5, len(after), len(after) // 20):
        # difflib pairs 997 of them where the new launch has a name that repeats
        after.insert(place, "add")
    found = diff(*([launched(name, 1.0) for name in names] for names in (before, after)))
    assert [new.identity.name for each in found for new in each.after] == after
    assert [old for each in found for old, new in each.pairs if old == new] == [
        launched(name, 1.0) for name in before
    ]
    assert time.process_time() - start < 3


GELU, MUL, ADD = (
    f"void at::native::vectorized_elementwise_kernel<8, at::native::{functor}, std::array<char*, 2ul>>"
    for functor in (
        "GeluCUDAKernelImpl",
        "BinaryFunctor<MulFunctor<float>>",
        "CUDAFunctor_add<float>",
    )
)
PLAIN, BIASED = (f"nvjet_sm90_tst_64x8_64x16_1x2_h_bz_{layout}" for layout in ("NNT", "bias_NNT"))


def one(name: str, *us: float, op: str | None = None, **identity: object) -> KernelRecord:
    kind = decode(name).kind.value
    times = us or (10.0, 10.1, 9.9)
    return KernelRecord(
        KernelIdentity(name, kind, **identity), median(times), op or "", durations_us=times
    )  # type: ignore[arg-type]


def lane(*kernels: KernelRecord | str) -> list[KernelRecord]:
    return [one(each) if isinstance(each, str) else each for each in kernels]


def summed_up(found: tuple[Difference, ...]) -> str:
    return ", ".join(f"{each.what.name} {len(each.before)} {len(each.after)}" for each in found)


MM, ADDMM = one(GEMM, op="aten::mm"), one(GEMM, op="aten::addmm")
FEW_WARPS, MANY_WARPS = one(FUSED, num_warps=4), one(FUSED, num_warps=8)
OLD_SOURCE, NEW_SOURCE = one(FUSED, source_hash=SOURCE), one(FUSED, source_hash=OTHER_SOURCE)
HAPPENED: dict[str, tuple[list[Any], list[Any], str]] = {
    "fewer, but not generated": ([GELU, MUL], [ADD], "REPLACED 2 1"),
    "split": ([FUSED], [GELU, MUL], "SPLIT 1 2"),
    "moved": ([GEMM, MUL], [MUL, GEMM], "SAME 1 1, MOVED 1 1"),
    "two at once": ([GEMM, GELU, MUL], [FUSED, DOWN], "TEMPLATE 1 1, FUSED 2 1"),
    "no product": ([GEMM], [FUSED], "VANISHED 1 0, APPEARED 0 1"),
    "source": ([OLD_SOURCE], [NEW_SOURCE], "SOURCE 1 1"),
    "configuration": ([FEW_WARPS], [MANY_WARPS], "CONFIGURATION 1 1"),
    "not known on one side": ([FEW_WARPS], [FUSED], "SAME 1 1"),
    "an addition into the bias": ([PLAIN, ADD], [BIASED], "FOLDED 2 1"),
    "one of two additions": ([ADD, MM, ADD], [ADDMM], "FOLDED 2 1, VANISHED 1 0"),
    "an addition that is gone": ([MM, ADD], [MM], "SAME 1 1, VANISHED 1 0"),
    "no addition": ([PLAIN, MUL], [BIASED], "TEMPLATE 1 1, VANISHED 1 0"),
}


@pytest.mark.parametrize(("before", "after", "expected"), HAPPENED.values(), ids=HAPPENED)
def test_differences_name_what_happened(before: list[Any], after: list[Any], expected: str) -> None:
    assert summed_up(name_differences(diff(lane(*before), lane(*after)))) == expected


STEPS = {
    "slower in every step": ([(100, 101, 102)], [(110, 111, 112)], "SLOWER"),
    "the steps overlap": ([(100, 101, 120)], [(110, 111, 119)], "SAME"),
    "1 %": ([(100, 100.1, 100.2)], [(101, 101.1, 101.2)], "SAME"),
    "three steps of the clock": ([(1.0, 1.0, 1.0)], [(1.09, 1.09, 1.09)], "SAME"),
    "6 % of one step": ([(100,)], [(106,)], "SLOWER"),
    "each launch by the same": ([(10.3,), (20.3,), (30.3,)], [(12.3,), (22.4,), (32.2,)], "SLOWER"),
    "scatter of the launches": ([(10.3,), (20.3,), (30.3,)], [(19.3,), (12.3,), (36.3,)], "SAME"),
}


@pytest.mark.parametrize(("before", "after", "what"), STEPS.values(), ids=STEPS)
def test_differences_time_counts_where_no_step_overlaps(
    before: list[Any], after: list[Any], what: str
) -> None:
    sides = [lane(*(one(GEMM, *us) for us in side)) for side in (before, after)]
    assert summed_up(name_differences(diff(*sides))) == f"{what} {len(before)} {len(after)}"


@pytest.mark.parametrize("seed", range(60))
def test_differences_sum_to_the_total(seed: int) -> None:
    rng = random.Random(seed)
    names = (GEMM, DOWN, FUSED, GELU, MUL, ADD, PLAIN, BIASED, "unknown_kernel")
    before, after = (
        [
            one(rng.choice(names), rng.uniform(1, 90), num_warps=rng.choice((4, 8)))
            for _ in range(rng.randrange(14))
        ]
        for _ in range(2)
    )
    found = name_differences(diff(before, after))
    for name, side in (("before", before), ("after", after)):
        assert sorted(id(each) for part in found for each in getattr(part, name)) == sorted(
            map(id, side)
        )
    totals = [sum(kernel.device_time_us for kernel in side) for side in (before, after)]
    assert sum(each.delta_us for each in found) == pytest.approx(totals[1] - totals[0])


REGION = "Torch-Compiled Region"


def host(ops: dict[str, int], region: str = "Torch-Compiled Region: 1/0") -> HostLane:
    return HostLane(100, ops, (), (region,), 0)


def test_host_difference_counts_ops() -> None:
    ops = {"aten::t": 3, "aten::mm": 3}
    for after, gone, new in (
        (host({"aten::mm": 4}), {"aten::t": 3}, {"aten::mm": 1}),
        (host(ops, "Torch-Compiled Region: 2/0"), {}, {}),  # numbered anew
        (host(ops, "CompiledFunction"), {REGION: 1}, {"CompiledFunction": 1}),
    ):
        found = host_difference(host(ops), after)
        assert (found.gone, found.new, found.dispatcher_ops) == (
            gone,
            new,
            (6, sum(after.dispatcher_ops.values())),
        )
