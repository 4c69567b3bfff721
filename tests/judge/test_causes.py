"""Which kernels carry a change of the GPU time, and the code that they come from."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from kernelgauge.judge import Verdict
from kernelgauge.judge.structure import judge_structure
from kernelgauge.run import Conditions, OpRecord, Origin, PeakPart, SourceLine, Timer
from kernelgauge.trace import KernelRecord
from kernelgauge.trace.kernel import Resources
from tests.builders import (
    DOWN,
    FUSED,
    GEMM,
    OTHER_SOURCE,
    counts,
    fused,
    judged_time,
    launched,
    mlp_kernels,
    pair,
    reasons,
    run,
)
from tests.builders import baseline as stored_run

UNCHANGED = "unchanged (+0.0 %, +0.00 us)"
TUNED = f"(+17.3 us)\n{FUSED}: XBLOCK 1024 -> 512, num_warps 4 -> 8"
SOURCES = "source crp6dxk5 -> c6ftvhgu"
SLOWER, FASTER = "the same kernel, slower", "the same kernel, faster"
TWELVE = [launched(f"kernel_{index}", 10.0) for index in range(12)]
GATE, UP, MIDDLE, LAST = MLP = mlp_kernels()


def judged(
    before: Sequence[KernelRecord], after: Sequence[KernelRecord], stored: Any = (), **changes: Any
) -> Verdict:
    """The verdict on the time of a slower run of these kernels; `stored`: the origins of those
    before.
    """
    known = stored_run(kernels=tuple(before), device=(200.0,) * 4, origins=tuple(stored))
    return judged_time(
        Timer.DEVICE, run(**{"kernels": tuple(after), "device": (300.0,) * 4} | changes), known
    )


@pytest.mark.parametrize(
    ("before", "after", "causes", "rest"),
    [
        (MLP, mlp_kernels(us=55.4), [f"{SLOWER}: {FUSED}  38.1 -> 55.4 us (+17.3 us)"], f"3 kernels {UNCHANGED}"),
        (MLP, mlp_kernels(gate=46.0, down=83.0),
         [f"{SLOWER}: {DOWN}  53.0 -> 83.0 us (+30.0 us)", f"{FASTER}: {GEMM} x2  114.0 -> 104.0 us (-10.0 us)"],
         f"1 kernel {UNCHANGED}"),
        ([fused(38.1)], [fused(55.4, xblock=512)], [f"Inductor's autotuner chose another launch configuration {TUNED}"], ""),
        ([fused(38.1)], [fused(55.4, xblock=512, source=OTHER_SOURCE)], [f"another launch configuration {TUNED}, {SOURCES}"], ""),
        ([fused(38.1)], [fused(55.4, source=OTHER_SOURCE)], [f"the same name, other source (+17.3 us)\n{FUSED}: {SOURCES}"], ""),
        # What is gained is as large a change as what is lost.
        ([GATE, LAST, MIDDLE], [launched("b", 5.0), GATE, LAST],
         [f"1 kernel gone: {FUSED} (-38.1 us)", "1 new kernel: b (+5.0 us)"], f"2 kernels {UNCHANGED}"),
        ([GATE, LAST, MIDDLE], [GATE, MIDDLE, LAST], [f"1 kernel moved: {FUSED} (+0.0 us)"], f"2 kernels {UNCHANGED}"),
        (TWELVE, [KernelRecord(each.identity, 10.8) for each in TWELVE],
         [f"{SLOWER}: kernel_{place}  10.0 -> 10.8 us (+0.8 us)" for place in range(3)],
         "9 kernels of the same identity (+8.0 %, +7.20 us)"),
        # One kernel more in a graph gives those after it other numbers.
        ([fused(38.1), LAST], [launched("triton_poi_fused_add_0", 5.0), launched(f"{FUSED[:-1]}1", 38.1), LAST],
         ["1 new kernel: triton_poi_fused_add_0 (+5.0 us)"], None),
    ],
)  # fmt: skip
def test_regression_names_its_causes_and_sums_up_the_rest(
    before: Sequence[KernelRecord],
    after: Sequence[KernelRecord],
    causes: list[str],
    rest: str | None,
) -> None:
    verdict = judged(before, after)
    named = reasons(verdict, "cause") + reasons(verdict, "also")
    assert named[: len(causes)] == causes
    assert rest is None or (len(named), "".join(reasons(verdict, "rest"))) == (len(causes), rest)


def coded(us: float, **resources: Any) -> KernelRecord:
    sizes = Resources(**{"registers": 64, "shared_bytes": 0, "code": "1a2b"} | resources)
    return msgspec.structs.replace(launched("scale", us), resources=sizes)


ALIGNED = {"memory_instructions": 2, "options": "num_warps=4,x=divisible by 16"}
OF_CODE = [
    (coded(57.0), coded(90.0, registers=88, code="3c4d"), "registers 64 -> 88, occupancy 38 % -> 19 %"),
    (coded(57.0, **ALIGNED), coded(90.0, memory_instructions=9, options="num_warps=4", code="3c4d"),
     "memory instructions 2 -> 9, x divisible by 16 -> (none)"),
    (coded(57.0, layout="contiguous"), coded(90.0, layout="[64,128] by strides 1,64"),
     "inputs contiguous -> [64,128] by strides 1,64"),
    (coded(57.0), coded(90.0, layout="contiguous", code="3c4d"), "machine code 1a2b -> 3c4d"),
    (coded(57.0), coded(90.0), "the same machine code"),
    (launched("scale", 57.0), coded(90.0), ""),
]  # fmt: skip


@pytest.mark.parametrize(("before", "after", "said"), OF_CODE)
def test_slower_kernel_says_how_its_code_differs(
    before: KernelRecord, after: KernelRecord, said: str
) -> None:
    cause = reasons(judged([before], [after]), "cause")[0]
    assert cause.partition("\n")[2] == said
    assert cause.startswith("the same kernel, ")
    assert "(+33.0 us)" in cause


NORM = launched("vectorized_layer_norm_kernel", 5.0)
PARTS = [launched(name, 4.0) for name in ("pow", "mean", "rsqrt", "mul")]
CHEAP, DEAR = launched("cheap", 1.0), launched("dear", 30.0)
FUSION = "triton_poi_fused_mul_0"


def lines(*numbers: int, module: str = "mlp", **of_origin: bool) -> Origin:
    return Origin(
        module, tuple(SourceLine("m.py", number, f"x{number}") for number in numbers), **of_origin
    )


# Lines move, and that is no change: the code tells.
STORED = Origin("mlp", (SourceLine("m.py", 8, "silu(g) * u"), SourceLine("m.py", 6, "g = gate(x)")))
MOVED = Origin(
    "mlp",
    (SourceLine("m.py", 9, "silu(g) * u"), SourceLine("m.py", 7, "g = gate(x)"), *lines(8).lines),
)
LIBRARY = SourceLine("modeling_llama.py", 123, "attn_weights = softmax(scores)")
ONE_NEW = "1 new kernel: vectorized_layer_norm_kernel (+5.0 us)"


@pytest.mark.parametrize(
    ("before", "after", "stored", "origins", "cause", "code"),
    [
        # one change in two layers: a number below that of a layer is no other one
        ([NORM, GATE, NORM], [*PARTS, GATE, *PARTS], (),
         (*[lines(26, module="layers.10")] * 4, lines(40), *[lines(26, module=f"layers.11.{n}") for n in (0, 0, 1, 1)]),
         "8 kernels instead of 2, in 2 layers: pow x2, mean x2, rsqrt x2, mul x2 (+22.0 us)\nwas vectorized_layer_norm_kernel x2",
         "m.py:26  layers.10, layers.*.*  x26"),
        # forward and backward of one line
        ([GATE], [PARTS[0], GATE, PARTS[1]], (), (lines(7), lines(1), lines(7, is_backward=True)),
         "2 new kernels: pow, mean (+8.0 us)", "m.py:7  mlp (forward and backward)  x7"),
        # of a fusion, the lines that are new
        ([fused(9.0)], [fused(12.0)], [STORED], (MOVED,), f"{SLOWER}: {FUSED}  9.0 -> 12.0 us (+3.0 us)", "m.py:8  mlp  x8"),
        # a kernel that is gone: the baseline knows the code
        ([GATE, MIDDLE], [GATE], [lines(3), lines(4)], (), f"1 kernel gone: {FUSED} (-38.1 us)", "m.py  mlp  x4"),
        # of several lines, the most expensive ones
        ([GATE], [CHEAP, DEAR, GATE], (), (lines(1, 9), lines(2, 9), None), "2 new kernels: cheap, dear (+31.0 us)",
         "m.py:9  mlp  x9\nm.py:2  mlp  x2\nand 1 more line"),
        # each part that costs has a line, and so does a launch of several lines
        ([GATE], [*[launched(name, 30.0) for name in "abc"], CHEAP, GATE], (), (lines(1), lines(2, 5), lines(3), lines(4), None),
         "4 new kernels: a, b, c, cheap (+91.0 us)", "m.py:1  mlp  x1\nm.py:2  mlp  x2\nm.py:3  mlp  x3\nand 2 more lines"),
        # the work of a line is in another kernel now: what lost it, and what has it, changed at once
        ([PARTS[0], GATE, PARTS[1], LAST], [DEAR, GATE, PARTS[2], PARTS[3], LAST], [lines(1, 2), None, lines(3), None],
         (lines(1), None, lines(2), lines(3), None), "3 kernels instead of 2, in 2 places: dear, rsqrt, mul (+30.0 us)\nwas pow, mean",
         "m.py:1  mlp  x1\nm.py:2  mlp  x2\nm.py:3  mlp  x3"),
        # a line of the library stands below that of the user
        ([GATE], [NORM, GATE], (), (Origin("attn", (SourceLine("m.py", 7, "llama(ids)", LIBRARY),)), None), ONE_NEW,
         f"m.py:7  llama(ids)\n{LIBRARY.at}  attn  {LIBRARY.code}"),
    ],
)  # fmt: skip
def test_cause_has_its_lines_of_code(
    before: Any, after: Any, stored: Any, origins: Any, cause: str, code: str
) -> None:
    verdict = judged(before, after, stored, origins=origins)
    assert (reasons(verdict, "cause"), reasons(verdict, "code")) == ([cause], [code])


def test_wait_keeps_its_line_behind_dearer_ones() -> None:
    wait = "aten::item: cudaStreamSynchronize"
    verdict = judged(
        [GATE],
        [DEAR, CHEAP, GATE],
        origins=(lines(1, 2), lines(2, 5), None),
        counts=counts(synchronizations=1),
        synchronizing_ops=(wait,),
        synchronization_origins=(lines(5),),
    )
    assert reasons(verdict, "cause") == [
        f"the host waits: {wait} (+31.0 us)\n2 new kernels: dear, cheap"
    ]
    assert reasons(verdict, "code") == ["m.py:1  mlp  x1\nm.py:2  mlp  x2\nm.py:5  mlp  x5"]


IN_BF16 = launched(
    "void at::native::vectorized_layer_norm_kernel<c10::BFloat16, float, true>(int)", 5.0
)
POINTWISE = "void at::native::vectorized_elementwise_kernel<4, at::native::{}, std::array<char*, 2ul> >(int)"
IN_FP32 = launched(POINTWISE.format("rsqrt_kernel_cuda(int)::{lambda(float)#1}"), 4.0)
ADDED = launched(POINTWISE.format("CUDAFunctor_add<c10::BFloat16>"), 4.0)
DYNAMIC = lines(8, is_dynamic=True)
COMPILED_ANEW = fused(55.4, xblock=512, source=OTHER_SOURCE)
# Inductor's kernels are launched by an op of their own name, which is not said again.
OWN, BY_OP = (
    msgspec.structs.replace(launched(name, 5.0), op=op)
    for name, op in ((FUSION, FUSION), ("squash", "my::op"))
)


def placed(us: float, *inputs: str, stream: int = 0, names: str = "abc") -> list[KernelRecord]:
    return [
        KernelRecord(launched(name, us).identity, us, inputs=inputs, stream=stream)
        for name in names
    ]


def more(*inputs: str, **changes: int) -> list[KernelRecord]:
    return [*placed(2.0, *inputs, **changes), launched("more", 90.0)]


ROWS = placed(1.0, "bf16[1,64]")
DENSE, STRIDED = (
    msgspec.structs.replace(
        launched(f"reduce_{name}", 5.0), op="aten::sum", resources=Resources(layout=layout)
    )
    for name, layout in (("4", "contiguous"), ("1", "[64,32] by strides 1,64"))
)
FIRST_CAUSES = [
    ([IN_BF16], [IN_FP32, ADDED], (), (), "2 kernels instead of 1, now also fp32"),
    (
        [fused(38.1)],
        [COMPILED_ANEW],
        [lines(8)],
        [DYNAMIC],
        "Inductor compiled for dynamic shapes (+17.3 us)",
    ),
    ([], [OWN, BY_OP], (), (), f"2 new kernels, by my::op: {FUSION}, squash (+10.0 us)"),
    (ROWS, more("fp32[65,64]"), (), (), "bf16 -> fp32, input dimension 1 -> 65 in 3 kernels"),
    # streams explain nothing
    (ROWS, more("bf16[1,64]", stream=1), (), (), "1 new kernel: more (+90.0 us)"),
    # of more elements, it is no kernel that moved
    (
        [*placed(1.0, "fp32[1,64]", names="a"), GATE],
        [GATE, *placed(9.0, "fp32[128,64]", names="a")],
        (),
        (),
        "1 new kernel: a (+9.0",
    ),
    (
        [DENSE],
        [STRIDED],
        (),
        (),
        "another kernel, inputs contiguous -> [64,32] by strides 1,64: reduce_1",
    ),
]


@pytest.mark.parametrize(("before", "after", "stored", "origins", "cause"), FIRST_CAUSES)
def test_cause_of_each_kind_is_said_first(
    before: Any, after: Any, stored: Any, origins: Any, cause: str
) -> None:
    assert reasons(judged(before, after, stored, origins=tuple(origins)), "cause")[0].startswith(
        cause
    )


def test_kernel_that_gets_other_tensors_comes_behind_what_is_new() -> None:
    """A number in place of a tensor is what `.item()` leaves."""
    (first,) = placed(5.0, "fp32[64]", names="m")
    old = stored_run(
        kernels=(first, *placed(5.0, "fp32[64]", "fp32[1]", names="d")), counts=counts(launches=2)
    )
    kernels = (first, launched("item", 0.1), *placed(9.0, "fp32[64]", names="d"))
    verdict = judge_structure(run(kernels=kernels, counts=counts(launches=3)), old)
    assert reasons(verdict, "cause") == [
        "1 new kernel: item",
        "another number of tensors or dimensions in 1 kernel\nd",
    ]


def test_kernels_that_follow_a_slower_gpu_are_no_reason() -> None:
    times = (51.0, 51.0, 51.0, 61.0)  # the GPU is slower by 2 %, and one kernel by 20 %
    before, after = (
        [launched(f"k_{place}", us) for place, us in enumerate(side)]
        for side in ((50.0,) * 4, times)
    )
    verdict = judged(before, after, device=(sum(times),) * 4, controls=pair(gemm=150 * 1.02))
    assert reasons(verdict, "cause") == [f"{SLOWER}: k_3  51.0 -> 61.0 us (+10.0 us)"]
    assert reasons(verdict, "rest") == [f"3 kernels {UNCHANGED}"]
    assert reasons(verdict, "machine") == [
        "the GPU itself changed its speed (reference copy +0.0 %, gemm +2.0 %)"
    ]
    limited = Conditions(throttled_ms={"SW power cap": 40.2, "HW slowdown": 0.2})
    verdict = judged(
        before, after, device=(sum(times),) * 4, controls=pair(gemm=150 * 1.02), conditions=limited
    )
    assert reasons(verdict, "machine")[0].endswith(
        "gemm +2.0 %); its clock was held down for 40 ms by SW power cap"
    )


@pytest.mark.parametrize(("now_us", "first"), [(10.6, 0), (16.0, 1)])
@pytest.mark.parametrize(
    ("calls", "cause"),
    [
        (
            {"synchronizing_ops": ("aten::item: cudaStreamSynchronize",)},
            "the host waits: aten::item: cudaStreamSynchronize",
        ),
        ({"copying_ops": ("aten::clone: Memcpy DtoD",)}, "aten::clone: Memcpy DtoD"),
        # by the name of the node alone
        (
            {"copying_ops": ("autograd::engine::evaluate_function: AddBackward0: Memcpy DtoH",)},
            "AddBackward0: Memcpy DtoH",
        ),
    ],
)
def test_pause_comes_before_the_kernels_that_it_slows(
    calls: dict[str, Any], cause: str, now_us: float, first: int
) -> None:
    """Neither a wait nor a copy is in the GPU time: kernels behind it are a few percent slower."""
    now = counts(
        synchronizations=len(calls.get("synchronizing_ops", ())),
        copies=len(calls.get("copying_ops", ())),
    )
    verdict = judged([launched("k", 10.0)], [launched("k", now_us)], counts=now, **calls)
    named = reasons(verdict, "cause") + reasons(verdict, "also")
    assert (named[first], len(named)) == (cause, 2)


def test_cause_of_a_higher_peak_is_the_line_that_allocates_more() -> None:
    def at(*parts: tuple[int, str]) -> tuple[PeakPart, ...]:
        return tuple(
            PeakPart(size, Origin("mlp", (SourceLine("model.py", 7, code),)))
            for size, code in parts
        )

    stored = stored_run(peak=at((3_000_000, "h = up(x)"), (1_000_000, "y = down(h)")))
    now = run(
        counts=counts(peak_allocated_bytes=6_000_000),
        peak=at((4_000_000, "y = down(h)"), (3_000_000, "h = up(x)"), (2_000_000, "z = y.float()")),
    )
    # an older baseline does not say where
    assert reasons(judge_structure(now, stored_run()), "code") == []
    verdict = judge_structure(now, stored)
    assert reasons(verdict, "cause") == [
        "peak memory 1.0 MB -> 6.0 MB (+5.0 MB)\n+3.0 MB at the first line below"
    ]
    assert reasons(verdict, "code") == [
        "model.py:7  mlp  y = down(h)\nmodel.py:7  mlp  z = y.float()"
    ]
    edited = {"z = y.float()": 1}
    known = msgspec.structs.replace(stored, calling_code={"h = up(x)": 1, "y = down(h)": 1})
    now = msgspec.structs.replace(now, calling_code={**known.calling_code, **edited})
    verdict = judge_structure(now, known)
    assert reasons(verdict, "cause") == [
        "peak memory 1.0 MB -> 6.0 MB (+5.0 MB)\n2.0 MB of it at the first line below"
    ]
    assert reasons(verdict, "code")[0].startswith("model.py:7  mlp  z = y.float()")
    # most of what an edited line allocates, it has always allocated
    now = run(
        counts=counts(peak_allocated_bytes=1_500_000), peak=at((1_500_000, "h = up(x).float()"))
    )
    assert reasons(judge_structure(now, stored), "cause") == [
        "peak memory 1.0 MB -> 1.5 MB (+451.4 kB)\n1.5 MB of it at the first line below"
    ]


def test_new_ops_have_the_lines_of_names_that_are_new() -> None:
    """A baseline has no lines of ops: of a name that it knows, one line may be as old as another."""
    old, new = "aten::to", "aten::bernoulli_"
    origins = {old: (lines(24), lines(26)), new: (lines(26),)}
    before = stored_run(ops=(OpRecord(old),))
    after = run(
        ops=(OpRecord(old), OpRecord(old), OpRecord(new)),
        op_origins=origins,
        counts=counts(dispatcher_ops=5),
    )
    verdict = judge_structure(after, before)
    assert reasons(verdict, "cause") == ["2 new ops: aten::to, aten::bernoulli_"]
    assert reasons(verdict, "code") == ["m.py:26  mlp  x26"]
    # those that another new op calls are no more than they were
    select, inner = (OpRecord("aten::select", is_inner=is_inner) for is_inner in (False, True))
    unbind = OpRecord("aten::unbind")
    after = run(
        ops=(select, select, *(each for _ in range(3) for each in (unbind, inner, inner))),
        counts=counts(dispatcher_ops=11),
    )
    verdict = judge_structure(after, stored_run(ops=(select,)))
    assert reasons(verdict, "cause") == ["5 new ops: aten::select x2, aten::unbind x3"]


@pytest.mark.parametrize(("codes", "causes"), [(("", ""), 2), (("f(x)", "f(x)"), 1)])
def test_kernels_of_unknown_code_do_not_replace_each_other(
    codes: tuple[str, str], causes: int
) -> None:
    """Generated code has no source text; what calls the same line lost its work to another."""
    rest = TWELVE[:4]
    origins = [Origin("m", (SourceLine("m.py", line, f"m{line}()"),)) for line in range(4)]
    gone, new = (
        Origin("m", (SourceLine("m.py", line, code),))
        for line, code in zip((8, 9), codes, strict=True)
    )
    before = [launched("gone", 5.0), *rest]
    after = [*rest, launched("new", 50.0)]
    verdict = judged(before, after, [gone, *origins], origins=(*origins, new))
    assert len(reasons(verdict, "cause")) == causes
