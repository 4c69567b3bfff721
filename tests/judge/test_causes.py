"""Which kernels carry a change of the GPU time, and the code that they come from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from kernelgauge.judge import Verdict
from kernelgauge.judge.structure import judge_structure
from kernelgauge.judge.time_verdict import judge_time
from kernelgauge.run import Origin, PeakPart, SourceLine, Timer
from kernelgauge.trace import KernelRecord
from tests.builders import (
    DOWN,
    FUSED,
    GEMM,
    OTHER_SOURCE,
    calibrated,
    counts,
    fused,
    launched,
    mlp_kernels,
    pair,
    reasons,
    run,
)

UNCHANGED = "unchanged (+0.0 %, +0.00 us)"
AUTOTUNER = (
    f"Inductor's autotuner chose another launch configuration (+17.3 us)\n{FUSED}: XBLOCK 1024 -> 512, num_warps 4 -> 8"
)
SOURCES = "crp6dxk5 -> c6ftvhgu"
SLOWER = f"the same kernel, slower: {FUSED}"
TWELVE = [launched(f"kernel_{index}", 10.0) for index in range(12)]
GATE, UP, MIDDLE, LAST = mlp_kernels()


def judged(before: Sequence[KernelRecord], after: Sequence[KernelRecord], stored: Any = (), **changes: Any) -> Verdict:
    """The verdict on the time of a slower run of these kernels; `stored`: the origins of those before."""
    known = run(kernels=tuple(before), device=(200.0,) * 4, origins=tuple(stored))
    now = run(kernels=tuple(after), device=(300.0,) * 4, **changes)
    return judge_time(Timer.DEVICE, now, calibrated([known]))


@pytest.mark.parametrize(
    ("before", "after", "causes", "rest"),
    [
        (mlp_kernels(), mlp_kernels(us=55.4), [f"{SLOWER}  38.1 -> 55.4 us (+17.3 us)"], f"3 kernels {UNCHANGED}"),
        (mlp_kernels(), mlp_kernels(gate=46.0, down=83.0),
         [f"the same kernel, slower: {DOWN}  53.0 -> 83.0 us (+30.0 us)",
          f"the same kernel, faster: {GEMM} x2  114.0 -> 104.0 us (-10.0 us)"],
         f"1 kernel {UNCHANGED}"),
        (mlp_kernels(), mlp_kernels(gate=57.0, us=57.1), [f"{SLOWER}  38.1 -> 57.1 us (+19.0 us)"],
         "3 kernels unchanged (+0.6 %, +1.00 us)"),
        (mlp_kernels(), mlp_kernels(), [], f"4 kernels {UNCHANGED}"),
        ([fused(38.1)], [fused(55.4, xblock=512)], [AUTOTUNER], ""),
        ([fused(38.1)], [fused(55.4, xblock=512, source=OTHER_SOURCE)],
         [f"another launch configuration (+17.3 us)\n{FUSED}: XBLOCK 1024 -> 512, num_warps 4 -> 8, source {SOURCES}"], ""),
        ([fused(38.1)], [fused(55.4, source=OTHER_SOURCE)], [f"the same name, other source (+17.3 us)\n{FUSED}: source {SOURCES}"], ""),
        ([launched("b", 10.0)], [launched("c", 12.5)], ["another kernel: c (+2.5 us)\nwas b"], ""),
        ([GATE, LAST], [GATE, MIDDLE, LAST], [f"1 new kernel: {FUSED} (+38.1 us)"], f"2 kernels {UNCHANGED}"),
        ([GATE, MIDDLE, LAST], [GATE, LAST], [f"1 kernel less: {FUSED} (-38.1 us)"], f"2 kernels {UNCHANGED}"),
        # What is gained is as large a change as what is lost.
        ([GATE, LAST, MIDDLE], [launched("b", 5.0), GATE, LAST],
         [f"1 kernel less: {FUSED} (-38.1 us)", "1 new kernel: b (+5.0 us)"], f"2 kernels {UNCHANGED}"),
        (TWELVE, [KernelRecord(each.identity, 10.8) for each in TWELVE],
         [f"the same kernel, slower: kernel_{place}  10.0 -> 10.8 us (+0.8 us)" for place in range(3)],
         "9 kernels of the same identity (+8.0 %, +7.20 us)"),
        (TWELVE[:1] * 12, [KernelRecord(TWELVE[0].identity, 10.8)] * 12,
         ["the same kernel, slower: kernel_0 x12  120.0 -> 129.6 us (+9.6 us)"], ""),
        # One kernel more in a graph gives those after it other numbers.
        ([fused(38.1), LAST], [launched("triton_poi_fused_add_0", 5.0), launched(f"{FUSED[:-1]}1", 38.1), LAST],
         ["1 new kernel: triton_poi_fused_add_0 (+5.0 us)"], None),
    ],
)  # fmt: skip
def test_regression_names_its_causes_and_sums_up_the_rest(
    before: Sequence[KernelRecord], after: Sequence[KernelRecord], causes: list[str], rest: str | None
) -> None:
    verdict = judged(before, after)
    named = reasons(verdict, "cause") + reasons(verdict, "also")
    assert named[: len(causes)] == causes
    assert rest is None or (len(named), "".join(reasons(verdict, "rest"))) == (len(causes), rest)


NORM = launched("vectorized_layer_norm_kernel", 5.0)
PARTS = [launched(name, 4.0) for name in ("pow", "mean", "rsqrt", "mul")]
NEW = [launched(f"new_{number}", 10.0 + number) for number in range(4)]
CHEAP, DEAR = launched("cheap", 1.0), launched("dear", 30.0)
FUSION = "triton_poi_fused_mul_0"


def lines(*numbers: int, module: str = "mlp") -> Origin:
    return Origin(module, tuple(SourceLine("m.py", number, f"x{number}") for number in numbers))


# Lines move, and that is no change: the code tells.
STORED = Origin("mlp", (SourceLine("m.py", 8, "silu(g) * u"), SourceLine("m.py", 6, "g = gate(x)")))
MOVED = Origin("mlp", (SourceLine("m.py", 9, "silu(g) * u"), SourceLine("m.py", 7, "g = gate(x)"), *lines(8).lines))
LIBRARY = SourceLine("modeling_llama.py", 123, "attn_weights = softmax(scores)")


@pytest.mark.parametrize(
    ("before", "after", "stored", "origins", "cause", "code"),
    [
        # one change in two layers
        ([NORM, GATE, NORM], [*PARTS, GATE, *PARTS], (),
         (*[lines(26, module="layers.0.norm")] * 4, lines(40), *[lines(26, module="layers.1.norm")] * 4),
         "8 kernels instead of 2, in 2 layers: pow x2, mean x2, rsqrt x2, mul x2 (+22.0 us)\nwas vectorized_layer_norm_kernel x2",
         "layers.*.norm  m.py:26  x26"),
        # forward and backward of one line
        ([GATE], [PARTS[0], GATE, PARTS[1]], (), (lines(7), lines(1), Origin("mlp", lines(7).lines, is_backward=True)),
         "2 new kernels, in 2 places: pow, mean (+8.0 us)", "mlp (forward and backward)  m.py:7  x7"),
        # of a fusion, the lines that are new
        ([launched(FUSION, 9.0)], [launched(FUSION, 12.0)], [STORED], (MOVED,),
         f"the same kernel, slower: {FUSION}  9.0 -> 12.0 us (+3.0 us)", "mlp  m.py:8  x8"),
        # a kernel that is gone: the baseline knows the code
        ([GATE, MIDDLE], [GATE], [lines(3), lines(4)], (), f"1 kernel less: {FUSED} (-38.1 us)", "mlp  m.py:4  x4"),
        # more lines than fit
        ([GATE], [NORM, GATE], (), (lines(0, 1, 2, 3, 4), None), "1 new kernel: vectorized_layer_norm_kernel (+5.0 us)",
         "mlp  m.py:0  x0\nmlp  m.py:1  x1\nand 3 more lines"),
        # of several lines, the most expensive ones
        ([GATE], [CHEAP, DEAR, GATE], (), (lines(1, 9), lines(2, 9), None), "2 new kernels: cheap, dear (+31.0 us)",
         "mlp  m.py:9  x9\nmlp  m.py:2  x2\nand 1 more line"),
        # a line of the library stands below that of the user
        ([GATE], [NORM, GATE], (), (Origin("attn", (SourceLine("m.py", 7, "llama(ids)", LIBRARY),)), None),
         "1 new kernel: vectorized_layer_norm_kernel (+5.0 us)",
         f"m.py:7  llama(ids)\nattn  {LIBRARY}"),
    ],
)  # fmt: skip
def test_cause_has_its_lines_of_code(before: Any, after: Any, stored: Any, origins: Any, cause: str, code: str) -> None:
    verdict = judged(before, after, stored, origins=origins)
    assert (reasons(verdict, "cause"), reasons(verdict, "code")) == ([cause], [code])


def test_two_causes_have_their_code_and_the_others_one_line() -> None:
    after = (*(kernel for each in NEW for kernel in (GATE, each)), GATE)
    origins = (*(one for number in range(4) for one in (None, lines(number))), None)
    verdict = judged((GATE,) * 5, after, origins=origins)
    # The largest effect comes first, whatever the order in the sequence.
    assert reasons(verdict, "cause") == ["1 new kernel: new_3 (+13.0 us)", "1 new kernel: new_2 (+12.0 us)"]
    assert reasons(verdict, "code") == ["mlp  m.py:3  x3", "mlp  m.py:2  x2"]
    assert reasons(verdict, "also") == [f"1 new kernel: new_{n} (+1{n}.0 us)  mlp  m.py:{n}  x{n}" for n in (1, 0)]


def test_dynamic_shapes_are_the_cause_of_another_configuration() -> None:
    old, new = lines(8), Origin("mlp", lines(8).lines, is_dynamic=True)
    after = fused(55.4, xblock=512, source=OTHER_SOURCE)
    causes = [reasons(judged([fused(38.1)], [after], [each], origins=(new,)), "cause")[0] for each in (old, new)]
    assert causes[0] == f"Inductor compiled for dynamic shapes (+17.3 us)\n{FUSED}: source {SOURCES}"
    assert causes[1].startswith("another launch configuration")  # they were dynamic before


def test_cast_has_the_dtypes_of_both_sides() -> None:
    norm = launched("void at::native::vectorized_layer_norm_kernel<c10::BFloat16, float, true>(int)", 5.0)
    pointwise = "void at::native::vectorized_elementwise_kernel<4, at::native::{}, std::array<char*, 2ul> >(int)"
    functions = ("rsqrt_kernel_cuda(int)::{lambda(float)#1}", "CUDAFunctor_add<c10::BFloat16>")
    parts = [launched(pointwise.format(function), 4.0) for function in functions]
    assert reasons(judged([norm], parts), "cause")[0].startswith("2 kernels instead of 1, now also fp32")


def placed(name: str, us: float, *inputs: str, stream: int = 0) -> KernelRecord:
    return KernelRecord(launched(name, us).identity, us, inputs=inputs, stream=stream)


ROWS = ("bf16[1,64]",)


@pytest.mark.parametrize(
    ("before", "after", "stream", "cause"),
    [
        (("bf16[8,64]",), ("fp32[8,64]",), 0, "bf16 -> fp32 in 3 kernels"),
        (ROWS, ("bf16[65,64]",), 0, "size 1 -> 65 in 3 kernels"),
        (ROWS, ("fp32[65,64]",), 0, "bf16 -> fp32, size 1 -> 65 in 3 kernels"),
        (ROWS, ROWS, 1, "on a second stream in 3 kernels"),
    ],
)
def test_other_placement_of_the_same_kernels_is_the_first_cause(
    before: Any, after: Any, stream: int, cause: str
) -> None:
    old = [placed(name, 1.0, *before) for name in "abc"]
    new = [placed(name, 2.0, *after, stream=stream) for name in "abc"]
    assert reasons(judged(old, [*new, launched("more", 90.0)]), "cause")[0].startswith(cause)


def test_kernel_that_gets_other_tensors_comes_behind_what_is_new() -> None:
    """A number in place of a tensor is what `.item()` leaves."""
    first = placed("max", 5.0, "fp32[64]")
    old = run(kernels=(first, placed("div", 5.0, "fp32[64]", "fp32[1]")), counts=counts(launches=2))
    kernels = (first, launched("item", 0.1), placed("div", 9.0, "fp32[64]"))
    verdict = judge_structure(run(kernels=kernels, counts=counts(launches=3)), calibrated([old]))
    assert reasons(verdict, "cause") == ["1 new kernel: item", "other tensors in 1 kernel\ndiv"]


def test_op_of_a_generated_kernel_is_not_said_again() -> None:
    """Inductor's kernels are launched by an op of their own name."""
    own, library = (launched(name, 5.0) for name in ("triton_poi_fused_mul_0", "squash_kernel"))
    after = [msgspec.structs.replace(own, op=own.identity.name), msgspec.structs.replace(library, op="my::squash")]
    cause = reasons(judged([], after), "cause")
    assert cause == ["2 new kernels, by my::squash: triton_poi_fused_mul_0, squash_kernel (+10.0 us)"]


def test_kernels_that_follow_a_slower_gpu_are_no_reason() -> None:
    known = run(kernels=tuple(launched(f"kernel_{place}", 50.0) for place in range(4)), device=(200.0,) * 4)
    stored = calibrated([known])
    times = (51.0, 51.0, 51.0, 61.0)  # the GPU is slower by 2 %, and one kernel by 20 %
    kernels = tuple(launched(f"kernel_{place}", us) for place, us in enumerate(times))
    now = run(kernels=kernels, device=(sum(times),) * 4, controls=pair(gemm=150 * 1.02))
    verdict = judge_time(Timer.DEVICE, now, stored)
    assert reasons(verdict, "cause") == ["the same kernel, slower: kernel_3  51.0 -> 61.0 us (+10.0 us)"]
    assert reasons(verdict, "rest") == [f"3 kernels {UNCHANGED}"]
    assert reasons(verdict, "machine") == ["the GPU itself changed its speed (reference copy +0.0 %, gemm +2.0 %)"]


def test_cause_of_a_higher_peak_is_the_line_that_allocates_more() -> None:
    def at(*parts: tuple[int, str]) -> tuple[PeakPart, ...]:
        return tuple(PeakPart(size, Origin("mlp", (SourceLine("model.py", 7, code),))) for size, code in parts)

    stored = calibrated([run(peak=at((3_000_000, "h = up(x)"), (1_000_000, "y = down(h)")))])
    now = run(
        counts=counts(peak_allocated_bytes=6_000_000),
        peak=at((4_000_000, "y = down(h)"), (3_000_000, "h = up(x)"), (2_000_000, "z = y.float()")),
    )
    verdict = judge_structure(now, stored)
    assert reasons(verdict, "cause") == ["peak memory 1.0 MB -> 6.0 MB\n+3.0 MB in the first place named"]
    assert reasons(verdict, "code") == ["mlp  model.py:7  y = down(h)\nmlp  model.py:7  z = y.float()"]
