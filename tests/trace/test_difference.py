"""Two traces compared: which launch is which, and what happened to it."""

from __future__ import annotations

import random
import time

import pytest

from kernelgauge.trace import KernelIdentity, KernelRecord, align, decode
from kernelgauge.trace import difference as module
from kernelgauge.trace.difference import Difference, What, differences, host_difference
from kernelgauge.trace.lane import Lane, LaneKernel, lane_of
from kernelgauge.trace.summary import HostLane
from tests.builders import DOWN, FUSED, GEMM, OTHER_SOURCE, SOURCE, launched, recorded


def sequence(generator: random.Random, length: int, names: str = "abcde") -> list[KernelRecord]:
    return [launched(generator.choice(names), generator.uniform(0.5, 80)) for _ in range(length)]


@pytest.mark.parametrize("most_pairs", [0, 2_000_000], ids=["long", "short"])
@pytest.mark.parametrize("seed", range(20))
def test_every_launch_is_in_one_pair_whichever_way_they_are_paired(
    monkeypatch: pytest.MonkeyPatch, seed: int, most_pairs: int
) -> None:
    monkeypatch.setattr(module, "_MOST_PAIRS", most_pairs)
    generator = random.Random(seed)
    before, after = sequence(generator, generator.randrange(30)), sequence(generator, generator.randrange(30))
    changes = align(before, after)
    old = [change.before for change in changes if change.before]
    new = [change.after for change in changes if change.after]
    assert sorted(map(id, old)) == sorted(map(id, before))
    assert sorted(map(id, new)) == sorted(map(id, after))
    assert all(
        change.before.identity.name == change.after.identity.name
        for change in changes
        if change.before and change.after
    )


def test_two_long_sequences_of_few_names_are_paired_in_seconds() -> None:
    generator = random.Random(1)
    before, after = sequence(generator, 20_000), sequence(generator, 20_000)
    start = time.perf_counter()
    changes = align(before, after)
    assert time.perf_counter() - start < 5  # difflib alone takes minutes
    paired = sum(change.before is not None and change.after is not None for change in changes)
    assert paired > 19_000


def test_common_ends_of_long_sequences_are_paired_directly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_MOST_PAIRS", 0)
    same = [launched("a", 1.0) for _ in range(5)]
    changes = align([*same, launched("b", 2.0), *same], [*same, launched("c", 3.0), *same])
    told = [(c.before and c.before.identity.name, c.after and c.after.identity.name) for c in changes]
    assert told == [("a", "a")] * 5 + [("b", None), (None, "c")] + [("a", "a")] * 5


# --- what happened ---------------------------------------------------------------------------------------------------


GELU, MUL, ADD = (
    f"void at::native::vectorized_elementwise_kernel<8, at::native::{functor}, std::array<char*, 2ul>>"
    for functor in ("GeluCUDAKernelImpl", "BinaryFunctor<MulFunctor<float>>", "CUDAFunctor_add<float>")
)


def one(name: str, *us: float, op: str | None = None, **identity: object) -> LaneKernel:
    kind = decode(name).kind.value
    return LaneKernel(KernelIdentity(name, kind, **identity), us or (10.0, 10.1, 9.9), op)  # type: ignore[arg-type]


def lane(*kernels: LaneKernel) -> Lane:
    return Lane(kernels, (), (), on_cpu=False)


def told(before: Lane, after: Lane) -> list[tuple[What, int, int]]:
    return [(each.what, len(each.before), len(each.after)) for each in differences(before, after)]


def changes(before: str, after: str) -> list[Difference]:
    found = differences(lane_of(recorded(before)), lane_of(recorded(after)))
    return [difference for difference in found if difference.what.is_change]


# -- the recorded traces --------------------------------------------------------------------------------------------


def test_compile_fused_two_pointwise_kernels_of_the_mlp() -> None:
    (fused,) = changes("mlp-eager", "mlp-compiled")
    assert fused.what is What.FUSED
    assert [kernel.identity.shown for kernel in fused.before] == [
        "vectorized_elementwise_kernel<gelu>",
        "vectorized_elementwise_kernel<mul>",
    ]
    assert [kernel.identity.name for kernel in fused.after] == [FUSED]
    assert fused.delta_us == pytest.approx(-29.8, abs=0.05)


def test_liger_fused_the_same_two() -> None:
    (fused,) = changes("mlp-eager", "mlp-liger")
    assert fused.what is What.FUSED
    assert [kernel.identity.name for kernel in fused.after] == ["_geglu_tanh_forward_kernel"]


def test_the_autotuners_other_choice_is_another_launch_configuration() -> None:
    (other,) = changes("mlp-compiled", "mlp-compiled-other-autotune")
    assert other.what is What.CONFIGURATION
    assert other.details == "XBLOCK 1024 -> 512, num_warps 4 -> 8"
    assert other.delta_us == pytest.approx(18.1, abs=0.05)


def test_the_addition_went_into_the_epilogue_of_the_product() -> None:
    (folded,) = changes("matmul_add-eager", "matmul_add-compiled")
    assert folded.what is What.FOLDED
    assert [kernel.identity.kind for kernel in folded.before] == ["gemm", "pointwise"]
    assert decode(folded.after[0].identity.name).bias_epilogue


def test_compiling_a_linear_changed_no_kernel() -> None:
    assert changes("linear-eager", "linear-compiled") == []


def test_training_step_lost_a_copy_and_changed_a_layout() -> None:
    found = {difference.what: difference for difference in changes("mlp-eager-train", "mlp-compiled-train")}
    assert found[What.TEMPLATE].details == "layout NNT -> NTT"
    assert [kernel.identity.kind for kernel in found[What.VANISHED].before] == ["copy"]
    assert What.REPLACED not in found


def test_what_a_graph_hides_of_a_kernel_is_no_change_of_it() -> None:
    (copy, other) = changes("mlp-compiled", "mlp-cudagraph")
    assert copy.what is What.APPEARED
    assert other.details == "grid 24576x1x1 -> 49152x1x1, block 128x1x1 -> 256x1x1"  # and nothing about XBLOCK


# -- one kind of change after another -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        pytest.param([one(GEMM)], [one(GEMM)], [(What.SAME, 1, 1)], id="the same"),
        pytest.param([one(GEMM)], [one(DOWN)], [(What.TEMPLATE, 1, 1)], id="another template"),
        pytest.param([one(GEMM), one(MUL)], [one(GEMM)], [(What.SAME, 1, 1), (What.VANISHED, 1, 0)], id="vanished"),
        pytest.param([one(GEMM)], [one(GEMM), one(MUL)], [(What.SAME, 1, 1), (What.APPEARED, 0, 1)], id="appeared"),
        pytest.param([one(GELU), one(MUL)], [one(FUSED)], [(What.FUSED, 2, 1)], id="fused"),
        pytest.param([one(FUSED)], [one(GELU), one(MUL)], [(What.SPLIT, 1, 2)], id="split"),
        pytest.param([one(GELU), one(MUL)], [one(ADD)], [(What.REPLACED, 2, 1)], id="fewer, but not generated"),
        pytest.param([one(GELU)], [one(FUSED)], [(What.REPLACED, 1, 1)], id="one for one"),
        pytest.param([one(GEMM), one(MUL)], [one(MUL), one(GEMM)], [(What.SAME, 1, 1), (What.MOVED, 1, 1)], id="moved"),
        pytest.param(
            [one(GEMM), one(GELU), one(MUL)],
            [one(FUSED), one(DOWN)],
            [(What.TEMPLATE, 1, 1), (What.FUSED, 2, 1)],
            id="a template and a fusion at once",
        ),
        pytest.param([one(GEMM)], [one(FUSED)], [(What.VANISHED, 1, 0), (What.APPEARED, 0, 1)], id="no product"),
        pytest.param(
            [one(FUSED, source_hash=SOURCE)], [one(FUSED, source_hash=OTHER_SOURCE)], [(What.SOURCE, 1, 1)], id="source"
        ),
        pytest.param(
            [one(FUSED, num_warps=4)], [one(FUSED, num_warps=8)], [(What.CONFIGURATION, 1, 1)], id="configuration"
        ),
        pytest.param([one(FUSED, num_warps=4)], [one(FUSED)], [(What.SAME, 1, 1)], id="not known on one side"),
        pytest.param([], [], [], id="nothing"),
    ],
)
def test_what_happened_is_named(
    before: list[LaneKernel], after: list[LaneKernel], expected: list[tuple[What, int, int]]
) -> None:
    assert told(lane(*before), lane(*after)) == expected


def test_a_product_that_became_one_with_an_addend_took_the_addition_in() -> None:
    bias = "nvjet_sm90_tst_64x8_64x16_1x2_h_bz_bias_NNT"
    plain = "nvjet_sm90_tst_64x8_64x16_1x2_h_bz_NNT"
    assert told(lane(one(plain), one(ADD)), lane(one(bias))) == [(What.FOLDED, 2, 1)]
    assert told(lane(one(GEMM, op="aten::mm"), one(ADD)), lane(one(GEMM, op="aten::addmm"))) == [(What.FOLDED, 2, 1)]
    assert told(lane(one(GEMM, op="aten::mm"), one(ADD)), lane(one(GEMM, op="aten::mm"))) == [
        (What.SAME, 1, 1),
        (What.VANISHED, 1, 0),
    ]
    assert told(lane(one(GEMM, op="aten::mm"), one(MUL)), lane(one(GEMM, op="aten::addmm")))[1][0] is What.VANISHED


# -- times ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after", "what"),
    [
        pytest.param((100, 101, 102), (110, 111, 112), What.SLOWER, id="slower in every step"),
        pytest.param((110, 111, 112), (100, 101, 102), What.FASTER, id="faster in every step"),
        pytest.param((100, 101, 120), (110, 111, 119), What.SAME, id="the steps overlap"),
        pytest.param((100, 100.1, 100.2), (101, 101.1, 101.2), What.SAME, id="1 %"),
        pytest.param((1.0, 1.0, 1.0), (1.09, 1.09, 1.09), What.SAME, id="three steps of the clock"),
        pytest.param((100,), (104,), What.SAME, id="4 % of one step"),
        pytest.param((100,), (106,), What.SLOWER, id="6 % of one step"),
    ],
)
def test_a_kernel_is_slower_only_where_no_step_says_otherwise(
    before: tuple[float, ...], after: tuple[float, ...], what: What
) -> None:
    assert [each.what for each in differences(lane(one(GEMM, *before)), lane(one(GEMM, *after)))] == [what]


@pytest.mark.parametrize("seed", range(60))
def test_every_launch_is_in_one_difference_and_the_deltas_sum_to_the_total(seed: int) -> None:
    generator = random.Random(seed)
    names = (GEMM, DOWN, FUSED, GELU, MUL, ADD, "unknown_kernel")

    def draw() -> Lane:
        picked = generator.choices(names, k=generator.randrange(14))
        return lane(*(one(name, generator.uniform(1, 90), num_warps=generator.choice((4, 8))) for name in picked))

    before, after = draw(), draw()
    found = differences(before, after)
    old = [id(kernel) for each in found for kernel in each.before]
    new = [id(kernel) for each in found for kernel in each.after]
    assert sorted(old) == sorted(map(id, before.kernels))
    assert sorted(new) == sorted(map(id, after.kernels))
    assert sum(each.delta_us for each in found) == pytest.approx(after.device_time_us - before.device_time_us)


# -- the host -------------------------------------------------------------------------------------------------------


def host(ops: dict[str, int], *, compile_ops: tuple[str, ...] = (), synchronizations: int = 0) -> HostLane:
    return HostLane(100, 80, ops, {}, (), compile_ops, synchronizations)


def test_ops_that_are_gone_or_new_are_counted() -> None:
    found = host_difference(host({"aten::t": 3, "aten::mm": 3}), host({"aten::mm": 4}))
    assert (found.gone, found.new) == ({"aten::t": 3}, {"aten::mm": 1})
    assert found.dispatcher_ops == (6, 4)
    assert found.is_change


def test_the_number_of_a_compiled_region_is_no_change() -> None:
    found = host_difference(
        host({}, compile_ops=("Torch-Compiled Region: 1/0",)), host({}, compile_ops=("Torch-Compiled Region: 2/0",))
    )
    assert not found.is_change


def test_a_wait_more_is_a_change() -> None:
    assert host_difference(host({}), host({}, synchronizations=1)).is_change
