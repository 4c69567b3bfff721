"""Which kernels carry a change of the GPU time, and the code that they come from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from kernelgauge.judge.structure import judge_structure
from kernelgauge.judge.time_verdict import judge_time
from kernelgauge.judge.verdict import Verdict
from kernelgauge.run import Origin, SourceLine, Timer
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


def origin(line: int, code: str = "", module: str = "mlp", *, is_backward: bool = False) -> Origin:
    return Origin(module, (SourceLine("model.py", line, code),), is_backward)


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


# -- the code ---------------------------------------------------------------------------------------------------------------

NORM = launched("vectorized_layer_norm_kernel", 5.0)
PARTS = [launched(name, 4.0) for name in ("pow", "mean", "rsqrt", "mul")]


def test_one_change_in_two_layers_is_one_cause() -> None:
    origins = [
        *(origin(26, "y * rsqrt(y)", "layers.0.norm") for _ in PARTS),
        origin(40, "h = g * u"),
        *(origin(26, "y * rsqrt(y)", "layers.1.norm") for _ in PARTS),
    ]
    verdict = judged((NORM, GATE, NORM), (*PARTS, GATE, *PARTS), origins=tuple(origins))
    text = "8 kernels instead of 2, in 2 layers: pow x2, mean x2, rsqrt x2, mul x2 (+22.0 us)"
    assert reasons(verdict, "cause") == [f"{text}\nwas vectorized_layer_norm_kernel x2"]
    assert reasons(verdict, "code") == ["layers.*.norm  model.py:26  y * rsqrt(y)"]


def test_code_of_forward_and_backward_is_one_line() -> None:
    origins = (origin(7, "h * s"), origin(1), origin(7, "h * s", is_backward=True))
    verdict = judged((GATE,), (PARTS[0], GATE, PARTS[1]), origins=origins)
    assert reasons(verdict, "cause") == ["2 new kernels, in 2 places: pow, mean (+8.0 us)"]
    assert reasons(verdict, "code") == ["mlp (forward and backward)  model.py:7  h * s"]


@pytest.mark.parametrize("name", ["triton_poi_fused_clone_mul_0", "triton_poi_fused_mul_0"])
def test_of_a_fusion_the_lines_that_are_new_are_shown(name: str) -> None:
    old = Origin("mlp", (SourceLine("model.py", 8, "silu(g) * u"), SourceLine("model.py", 6, "g = gate(x)")))
    # Lines move, and that is no change: the code tells.
    moved = (SourceLine("model.py", each.line + 1, each.code) for each in old.lines)
    new = Origin("mlp", (*moved, SourceLine("model.py", 7, "u.contiguous()")))
    before, after = launched("triton_poi_fused_mul_0", 9.0), launched(name, 12.0)
    verdict = judged([before], [after], [old], origins=(new,))
    assert reasons(verdict, "code") == ["mlp  model.py:7  u.contiguous()"]


def test_dynamic_shapes_are_the_cause_of_another_configuration() -> None:
    old = origin(8, "gelu(g) * u")
    new = Origin(old.module, old.lines, is_dynamic=True)
    after = fused(55.4, xblock=512, source=OTHER_SOURCE)
    causes = [reasons(judged([fused(38.1)], [after], [each], origins=(new,)), "cause")[0] for each in (old, new)]
    assert causes[0] == f"Inductor compiled for dynamic shapes (+17.3 us)\n{FUSED}: source {SOURCES}"
    assert causes[1].startswith("another launch configuration")  # they were dynamic before


def test_cast_has_the_dtypes_of_both_sides() -> None:
    norm = launched("void at::native::vectorized_layer_norm_kernel<c10::BFloat16, float, true>(int)", 5.0)
    pointwise = "void at::native::vectorized_elementwise_kernel<4, at::native::{}, std::array<char*, 2ul> >(int)"
    parts = [
        launched(pointwise.format(function), 4.0)
        for function in ("rsqrt_kernel_cuda(int)::{lambda(float)#1}", "CUDAFunctor_add<c10::BFloat16>")
    ]
    cause = reasons(judged([GATE, norm], [GATE, *parts]), "cause")[0].replace("\n", " ")
    assert cause.startswith("2 kernels instead of 1, now also fp32")


def test_code_of_a_kernel_that_is_gone_is_that_of_the_baseline() -> None:
    verdict = judged((GATE, MIDDLE), (GATE,), [origin(3), origin(4, "gelu(g)")])
    assert reasons(verdict, "code") == ["mlp  model.py:4  gelu(g)"]


def test_more_lines_than_fit_are_counted() -> None:
    lines = tuple(SourceLine("model.py", number, f"x{number}") for number in range(5))
    (code,) = reasons(judged((GATE,), (NORM, GATE), origins=(Origin("mlp", lines), None)), "code")
    assert code.split("\n") == ["mlp  model.py:0  x0", "mlp  model.py:1  x1", "and 3 more lines"]


def test_two_causes_have_their_code_and_the_others_one_line() -> None:
    kernels = [launched(f"new_{number}", 10.0 + number) for number in range(4)]
    after = (*(kernel for each in kernels for kernel in (GATE, each)), GATE)
    origins = (*(one for number in range(4) for one in (None, origin(number, f"f{number}(x)"))), None)
    verdict = judged((GATE,) * 5, after, origins=origins)
    # The largest effect comes first, whatever the order in the sequence.
    assert reasons(verdict, "cause") == ["1 new kernel: new_3 (+13.0 us)", "1 new kernel: new_2 (+12.0 us)"]
    assert reasons(verdict, "code") == ["mlp  model.py:3  f3(x)", "mlp  model.py:2  f2(x)"]
    assert reasons(verdict, "also") == [
        "1 new kernel: new_1 (+11.0 us)  mlp  model.py:1  f1(x)",
        "1 new kernel: new_0 (+10.0 us)  mlp  model.py:0  f0(x)",
    ]


def test_line_of_the_library_stands_below_the_line_of_the_user() -> None:
    inner = SourceLine("modeling_llama.py", 123, "attn_weights = softmax(scores)")
    line = SourceLine("model.py", 7, "return self.llama(ids)", inner)
    verdict = judged((GATE,), (NORM, GATE), origins=(Origin("layers.0.attn", (line,)), None))
    assert reasons(verdict, "code") == [
        "model.py:7  return self.llama(ids)\nlayers.0.attn  modeling_llama.py:123  attn_weights = softmax(scores)"
    ]


def test_of_several_lines_the_most_expensive_are_shown() -> None:
    cheap, dear = launched("cheap", 1.0), launched("dear", 30.0)
    first = Origin("a", (SourceLine("m.py", 1, "x.copy()"), SourceLine("m.py", 9, "shared")))
    origins = (first, Origin("a", (SourceLine("m.py", 2, "x @ x"), SourceLine("m.py", 9, "shared"))), None)
    verdict = judged((GATE,), (cheap, dear, GATE), origins=origins)
    assert reasons(verdict, "code")[0].split("\n") == ["a  m.py:9  shared", "a  m.py:2  x @ x", "and 1 more line"]


def placed(name: str, us: float, *inputs: str, stream: int = 0) -> KernelRecord:
    return KernelRecord(launched(name, us).identity, us, inputs=inputs, stream=stream)


@pytest.mark.parametrize(
    ("before", "after", "cause"),
    [
        (("bf16[8,64]",), ("fp32[8,64]",), "bf16 -> fp32 in 3 kernels"),
        (("bf16[1,64]",), ("bf16[65,64]",), "size 1 -> 65 in 3 kernels"),
        (("bf16[1,64]",), ("fp32[65,64]",), "bf16 -> fp32, size 1 -> 65 in 3 kernels"),
    ],
)
def test_dtypes_and_shapes_of_the_same_kernels_are_the_first_cause(
    before: tuple[str, ...], after: tuple[str, ...], cause: str
) -> None:
    old, new = ([placed(name, us, *inputs) for name in "abc"] for inputs, us in ((before, 1.0), (after, 2.0)))
    verdict = judged(old, [*new, launched("more", 90.0)])
    assert reasons(verdict, "cause")[0].startswith(cause)


def test_kernel_that_gets_other_tensors_comes_behind_what_is_new() -> None:
    """A number in place of a tensor is what `.item()` leaves."""
    old = run(
        kernels=(placed("max", 5.0, "fp32[64]"), placed("div", 5.0, "fp32[64]", "fp32[1]")), counts=counts(launches=2)
    )
    kernels = (placed("max", 5.0, "fp32[64]"), launched("item", 0.1), placed("div", 9.0, "fp32[64]"))
    verdict = judge_structure(run(kernels=kernels, counts=counts(launches=3)), calibrated([old]))
    assert reasons(verdict, "cause") == ["1 new kernel: item", "other tensors in 1 kernel\ndiv"]


def test_op_of_a_generated_kernel_is_not_said_again() -> None:
    """Inductor's kernels are launched by an op of their own name."""
    own, library = launched("triton_poi_fused_mul_0", 5.0), launched("squash_kernel", 5.0)
    after = [
        msgspec.structs.replace(own, op="triton_poi_fused_mul_0"),
        msgspec.structs.replace(library, op="my::squash"),
    ]
    cause = reasons(judged([], after), "cause")
    assert cause == ["2 new kernels, by my::squash: triton_poi_fused_mul_0, squash_kernel (+10.0 us)"]


def test_kernel_on_a_second_stream_is_said() -> None:
    verdict = judged([placed("a", 5.0), placed("b", 5.0)], [placed("a", 5.0), placed("b", 7.0, stream=1)])
    assert reasons(verdict, "cause") == ["on a second stream in 1 kernel (+2.0 us)\nb"]


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
