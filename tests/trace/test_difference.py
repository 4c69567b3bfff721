"""Two traces compared: which launch is which, and what happened to it."""

from __future__ import annotations

import random
import time
from itertools import chain, compress, pairwise

import pytest

from kernelgauge.trace import KernelIdentity, align, decode
from kernelgauge.trace.difference import Difference, What, differences, host_difference
from kernelgauge.trace.kernel import LaneKernel
from kernelgauge.trace.summary import HostLane
from tests.builders import DOWN, FUSED, GEMM, OTHER_SOURCE, SOURCE, launched

LAYER = "qkv rope attention out add norm up gelu down add norm copy".split()


def paired(before: list[str], after: list[str]) -> tuple[int, int]:
    """Return how many launches `align` pairs, and how many blocks they stand in. It must pair in order, by name."""
    changes = align([launched(name, 1.0) for name in before], [launched(name, 1.0) for name in after])
    assert [old.identity.name for old, _ in changes if old] == before
    assert [new.identity.name for _, new in changes if new] == after
    is_pair = [None not in pair for pair in changes]
    assert all(old == new for old, new in compress(changes, is_pair))
    return sum(is_pair), sum(is_pair[:1]) + sum(not one and other for one, other in pairwise(is_pair))


def test_align_pairs_long_sequences_in_seconds() -> None:
    generator = random.Random(1)
    other = ["nvjet", "poi", "attention", "nvjet", "poi", "add", "norm", "nvjet", "down", "red", "copy"]
    start = time.process_time()
    before = LAYER * 400
    for name in ("new", "add"):  # difflib pairs 997 of them where the new launch has a name that repeats
        after = before.copy()
        for place in range(5, len(after), len(after) // 20):
            after.insert(place, name)
        assert paired(before, after) == (4800, len(after) - 4800 + 1)
    assert paired(before, generator.sample(before, 4800))[0] > 2000
    assert paired(before, other * 440)[0] >= 4 * 400
    assert time.process_time() - start < 3


GELU, MUL, ADD = (
    f"void at::native::vectorized_elementwise_kernel<8, at::native::{functor}, std::array<char*, 2ul>>"
    for functor in ("GeluCUDAKernelImpl", "BinaryFunctor<MulFunctor<float>>", "CUDAFunctor_add<float>")
)
PLAIN, BIASED = (f"nvjet_sm90_tst_64x8_64x16_1x2_h_bz_{layout}" for layout in ("NNT", "bias_NNT"))


def one(name: str, *us: float, op: str | None = None, **identity: object) -> LaneKernel:
    kind = decode(name).kind.value
    return LaneKernel(KernelIdentity(name, kind, **identity), us or (10.0, 10.1, 9.9), op)  # type: ignore[arg-type]


def lane(*kernels: LaneKernel | str) -> list[LaneKernel]:
    return [one(each) if isinstance(each, str) else each for each in kernels]


def counts(found: tuple[Difference, ...]) -> list[tuple[What, int, int]]:
    return [(each.what, len(each.before), len(each.after)) for each in found]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        pytest.param([GEMM], [GEMM], [(What.SAME, 1, 1)], id="the same"),
        pytest.param([GEMM], [DOWN], [(What.TEMPLATE, 1, 1)], id="another template"),
        pytest.param([GEMM, MUL], [GEMM], [(What.SAME, 1, 1), (What.VANISHED, 1, 0)], id="vanished"),
        pytest.param([GEMM], [GEMM, MUL], [(What.SAME, 1, 1), (What.APPEARED, 0, 1)], id="appeared"),
        pytest.param([GELU, MUL], [FUSED], [(What.FUSED, 2, 1)], id="fused"),
        pytest.param([FUSED], [GELU, MUL], [(What.SPLIT, 1, 2)], id="split"),
        pytest.param([GELU, MUL], [ADD], [(What.REPLACED, 2, 1)], id="fewer, but not generated"),
        pytest.param([GELU], [FUSED], [(What.REPLACED, 1, 1)], id="one for one"),
        pytest.param([GEMM, MUL], [MUL, GEMM], [(What.SAME, 1, 1), (What.MOVED, 1, 1)], id="moved"),
        pytest.param([GEMM, GELU, MUL], [FUSED, DOWN], [(What.TEMPLATE, 1, 1), (What.FUSED, 2, 1)], id="two at once"),
        pytest.param([GEMM], [FUSED], [(What.VANISHED, 1, 0), (What.APPEARED, 0, 1)], id="no product"),
        pytest.param(*([one(FUSED, source_hash=SOURCE)], [one(FUSED, source_hash=OTHER_SOURCE)], [(What.SOURCE, 1, 1)]), id="source"),
        pytest.param([one(FUSED, num_warps=4)], [one(FUSED, num_warps=8)], [(What.CONFIGURATION, 1, 1)], id="configuration"),
        pytest.param([one(FUSED, num_warps=4)], [FUSED], [(What.SAME, 1, 1)], id="not known on one side"),
        pytest.param([PLAIN, ADD], [BIASED], [(What.FOLDED, 2, 1)], id="an addition into the bias"),
        pytest.param([ADD, PLAIN], [BIASED], [(What.FOLDED, 2, 1)], id="an addition before the product"),
        pytest.param([one(GEMM, op="aten::mm"), ADD], [one(GEMM, op="aten::addmm")], [(What.FOLDED, 2, 1)], id="into addmm"),
        pytest.param(
            *([ADD, one(GEMM, op="aten::mm"), ADD], [one(GEMM, op="aten::addmm")], [(What.FOLDED, 2, 1), (What.VANISHED, 1, 0)]),
            id="one of two additions",
        ),
        pytest.param(
            *([one(GEMM, op="aten::mm"), ADD], [one(GEMM, op="aten::mm")], [(What.SAME, 1, 1), (What.VANISHED, 1, 0)]),
            id="an addition that is gone",
        ),
        pytest.param([PLAIN, MUL], [BIASED], [(What.TEMPLATE, 1, 1), (What.VANISHED, 1, 0)], id="no addition"),
        pytest.param([], [], [], id="nothing"),
    ],
)  # fmt: skip
def test_differences_name_what_happened(
    before: list[LaneKernel | str], after: list[LaneKernel | str], expected: list[tuple[What, int, int]]
) -> None:
    assert counts(differences(lane(*before), lane(*after))) == expected


@pytest.mark.parametrize(
    ("before", "after", "what"),
    [
        pytest.param([(100, 101, 102)], [(110, 111, 112)], What.SLOWER, id="slower in every step"),
        pytest.param([(110, 111, 112)], [(100, 101, 102)], What.FASTER, id="faster in every step"),
        pytest.param([(100, 101, 120)], [(110, 111, 119)], What.SAME, id="the steps overlap"),
        pytest.param([(100, 100.1, 100.2)], [(101, 101.1, 101.2)], What.SAME, id="1 %"),
        pytest.param([(1.0, 1.0, 1.0)], [(1.09, 1.09, 1.09)], What.SAME, id="three steps of the clock"),
        pytest.param([(100,)], [(104,)], What.SAME, id="4 % of one step"),
        pytest.param([(100,)], [(106,)], What.SLOWER, id="6 % of one step"),
        pytest.param(
            [(10.3,), (20.3,), (30.3,)], [(12.3,), (22.4,), (32.2,)], What.SLOWER, id="each launch by the same"
        ),
        pytest.param([(10.3,), (20.3,), (30.3,)], [(19.3,), (12.3,), (36.3,)], What.SAME, id="scatter of the launches"),
    ],
)
def test_differences_time_of_all_launches_counts_where_no_step_overlaps(
    before: list[tuple[float, ...]], after: list[tuple[float, ...]], what: What
) -> None:
    sides = [lane(*(one(GEMM, *us) for us in side)) for side in (before, after)]
    assert counts(differences(*sides)) == [(what, len(before), len(after))]


@pytest.mark.parametrize("seed", range(60))
def test_differences_sum_to_the_total(seed: int) -> None:
    generator = random.Random(seed)
    names = (GEMM, DOWN, FUSED, GELU, MUL, ADD, PLAIN, BIASED, "unknown_kernel")

    def draw() -> list[LaneKernel]:
        picked = generator.choices(names, k=generator.randrange(14))
        return lane(*(one(name, generator.uniform(1, 90), num_warps=generator.choice((4, 8))) for name in picked))

    before, after = draw(), draw()
    found = differences(before, after)
    old, new = (list(chain.from_iterable(getattr(each, side) for each in found)) for side in ("before", "after"))
    assert sorted(map(id, old)) == sorted(map(id, before))
    assert sorted(map(id, new)) == sorted(map(id, after))
    totals = [sum(kernel.device_time_us for kernel in side) for side in (before, after)]
    assert sum(each.delta_us for each in found) == pytest.approx(totals[1] - totals[0])


REGION = "Torch-Compiled Region"


def host(ops: dict[str, int], region: str = "Torch-Compiled Region: 1/0", synchronizations: int = 0) -> HostLane:
    return HostLane(100, 80, ops, (), (region,), synchronizations)


@pytest.mark.parametrize(
    ("after", "gone", "new", "is_change"),
    [
        (host({"aten::mm": 4}), {"aten::t": 3}, {"aten::mm": 1}, True),
        (host({"aten::t": 3, "aten::mm": 3}, "Torch-Compiled Region: 2/0"), {}, {}, False),  # numbered anew
        (host({"aten::t": 3, "aten::mm": 3}, "CompiledFunction"), {REGION: 1}, {"CompiledFunction": 1}, True),
        (host({"aten::t": 3, "aten::mm": 3}, synchronizations=1), {}, {}, True),
    ],
)
def test_host_difference_counts_ops(after: HostLane, gone: object, new: object, is_change: bool) -> None:
    found = host_difference(host({"aten::t": 3, "aten::mm": 3}), after)
    assert (found.gone, found.new, found.is_change) == (gone, new, is_change)
    assert found.dispatcher_ops == (6, sum(after.dispatcher_ops.values()))
