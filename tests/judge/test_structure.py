"""What is exact: kernels, counts and what a workload declares of them; statuses in order, and
machines compared.
"""

import itertools
from typing import Any

import msgspec
import pytest

from kernelgauge.errors import WorkloadError
from kernelgauge.judge import Status, Verdict, worst
from kernelgauge.judge.baseline import compare_fingerprints
from kernelgauge.judge.evidence import Cause, CompilerEvent, StructureCompared
from kernelgauge.judge.structure import Expectation, judge_structure, mismatches
from kernelgauge.report import words
from kernelgauge.run import CompileEvent, KernelChoice, OpRecord, Origin, SourceLine
from kernelgauge.trace import KernelIdentity, KernelRecord
from kernelgauge.trace.kernel import IN_LISTS, Resources
from tests import builders
from tests.builders import (
    DOWN,
    FUSED,
    GEMM,
    H200,
    counts,
    fingerprint,
    fused,
    launched,
    mlp_kernels,
    reasons,
    run,
)

GATE, UP, MIDDLE, LAST = mlp_kernels()
NARROW, WIDE = (launched(GEMM, 56.0, grid=(2, width, 1)) for width in (66, 33))
FEW_BLOCKS, MANY_BLOCKS = (
    KernelRecord(KernelIdentity("mul", "other", (width, 1, 1), kernel_kwargs="BLOCK=8"), 4.0)
    for width in (66, 33)
)
PARTS = [launched(name, 4.0) for name in ("mul", "add", "exp")]
KERNELS = "kernels differ from the baseline"
TORCH = fingerprint(torch="2.12.0")
CLONE = "aten::clone: Memcpy DtoD (Device -> Device), 1024 bytes"


def judged(
    before: Any = None,
    after: Any = None,
    ran: Any = None,
    stored: Any = None,
    times: Any = (),
    **changes: Any,
) -> Verdict:
    """The verdict on kernels that ran beside the stored ones, and counts after beside those before."""
    known = {
        name.removeprefix("old_"): changes.pop(name)
        for name in [*changes]
        if name.startswith("old_")
    }
    old = builders.baseline(counts=counts(**(before or {})), kernels=stored, **known)
    return judge_structure(run(kernels=ran, counts=counts(**(after or {})), **changes), old, times)


NONE = {"ran": (), "after": {"launches": 0}}
SPLIT = {"ran": (GATE, *PARTS, LAST), "after": {"launches": 5}}
# the stored one is told by its launch
CHOICE = KernelChoice(MIDDLE.identity.unnumbered, "", "XBLOCK=512,num_warps=8")
OF_KERNELS = [
    (
        {"ran": mlp_kernels(us=55.4, xblock=512)},
        "CHANGED",
        "launch conf",
        f"{FUSED}: XBLOCK 1024 -> 512, num_warps 4 -> 8",
    ),
    (
        {"ran": mlp_kernels(us=55.4, xblock=512), "choices": (CHOICE,)},
        "PASS",
        "same kernels, same counts",
        "",
    ),
    # no choice was stored
    (
        {"stored": (WIDE,), "ran": (NARROW,), "choices": (KernelChoice(GEMM, "", "BLOCK=8"),)},
        "PASS",
        "same kernels, same counts",
        "",
    ),
    ({"ran": (GATE, UP, MIDDLE, launched(GEMM, 50.0))}, "CHANGED", KERNELS, f"- {DOWN}|+ {GEMM}"),
    (SPLIT, "REGRESSED", KERNELS, f"- {GEMM}|- {FUSED}|+ mul|+ add|+ exp"),
    (NONE, "CHANGED", KERNELS, f"- {GEMM}|- {GEMM}|- {FUSED}|- {DOWN}"),
    (
        {"stored": (NARROW, UP), "ran": (WIDE, UP)},
        "CHANGED",
        "launch conf",
        f"{GEMM}: grid 2x66x1 -> 2x33x1",
    ),
    (
        {"stored": (FEW_BLOCKS, UP), "ran": (MANY_BLOCKS, UP)},
        "CHANGED",
        "launch conf",
        "mul: grid 66x1x1 -> 33x1x1",
    ),
    (
        NONE | {"machine": fingerprint(sm_count=114)},
        "INCOMPARABLE",
        "structure not compared: sm_count 132 -> 114",
        "",
    ),
]


@pytest.mark.parametrize(("changes", "status", "headline", "kernels"), OF_KERNELS)
def test_structure_of_kernels_gives_status(
    changes: Any, status: str, headline: str, kernels: str
) -> None:
    verdict = judged(**changes)
    assert (verdict.status, verdict.subject) == (Status(status), "structure")
    assert words.headline(verdict).startswith(headline)
    assert "|".join(reasons(verdict, "kernels")) == kernels


def test_replaced_kernel_has_no_other_shapes() -> None:
    old, new = (
        msgspec.structs.replace(launched(name, 4.0), inputs=(f"bf16[{rows},64]",))
        for name, rows in (("mul", 8), ("add", 16))
    )
    verdict = judged(stored=(GATE, old), ran=(GATE, new))
    assert verdict.conclusion == StructureCompared("kernels")


COUNTS = dict.fromkeys(
    ("copies", "synchronizations", "graph_breaks", "recompiles", "graphs"), (0, 1)
)
COUNTS |= {
    "launches": (4, 5),
    "memsets": (2, 3),
    "dispatcher_ops": (3, 9),
    "compiled_ops": (5, 6),
    "autograd_nodes": (1, 3),
}
COUNTS |= {
    "generated_kernels": (1, 2),
    "autotuned_configurations": (2, 3),
    "uncached_graphs": (0, 1),
}
COUNTS |= {"grown_bytes": (0, 512), "peak_allocated_bytes": (1 << 20, 1 << 21)}
COUNTS |= {"cyclic_bytes": (0, 5000), "peak_host_bytes": (0, 70_000), "held_bytes": (4000, 4004)}
COUNTS |= {"grown_host_bytes": (0, 5000), "allocator_calls": (0, 4), "graph_launches": (1, 2)}
TIMES = (
    Verdict(Status.PASS, "mlp", "GPU time", "unchanged"),
    Verdict(Status.IMPROVED, "mlp", "end to end", "faster"),
)


def test_structure_of_each_count_is_judged() -> None:
    # more kinds of kernels are neither better nor worse
    assert {"kernels", *COUNTS} == set(counts().__struct_fields__)
    for field, (less, more) in COUNTS.items():
        for before, after, times, status in (
            (less, more, TIMES, Status.REGRESSED),
            (more, less, TIMES, Status.IMPROVED),
            (more, less, (), Status.PASS),
        ):
            verdict = judged({field: before}, {field: after}, times=times)
            if field == "compiled_ops" and after == more:
                status = Status.PASS  # in a graph of the same kernels they did not reach the GPU
            if field == "graph_launches" and not times:
                status = Status.CHANGED  # a part may be launched one by one
            passed = "same kernels, " * (status is Status.PASS)
            assert (verdict.status, words.headline(verdict)) == (status, f"{passed}other counts")
            assert reasons(verdict, "counts") == [f"{field.replace('_', ' ')} {before} -> {after}"]


def test_structure_that_is_no_longer_compiled_is_changed() -> None:
    assert judged({"compiled_ops": 5}, {"compiled_ops": 0}).status is Status.CHANGED


OTHER = (GATE, UP, MIDDLE, launched(GEMM, 50.0))
NOT_JUDGED = "not judged: another version of torch"
UNSEEN, PEAK = {"peak_allocated_bytes": None}, {"peak_allocated_bytes": 100_000_000}


SLOWER = {"times": (*TIMES, Verdict(Status.REGRESSED, "mlp", "host dispatch", ""))}
FASTER = {"ran": OTHER, "times": TIMES}
VIEW, RESHAPE = OpRecord("aten::view"), OpRecord("aten::reshape")
INNER = OpRecord("aten::view", is_inner=True)
SEVERAL = [
    ({}, {"memsets": 1, "copies": 1}, {}, "REGRESSED", "memsets 2 -> 1|copies 0 -> 1"),
    ({}, {"memsets": 1}, {"ran": (GATE, UP, LAST)}, "CHANGED", "memsets 2 -> 1"),
    (UNSEEN, {}, {}, "PASS", ""),
    ({}, {"dispatcher_ops": 9}, {"machine": TORCH}, "PASS", f"dispatcher ops 3 -> 9, {NOT_JUDGED}"),
    ({}, {"copies": 1}, {"machine": TORCH}, "REGRESSED", "copies 0 -> 1"),
    # The peak of memory may move by 2 %.
    (PEAK, {"peak_allocated_bytes": 101_900_000}, {}, "PASS", ""),
    (
        PEAK,
        {"peak_allocated_bytes": 102_100_000},
        {},
        "REGRESSED",
        "peak allocated bytes 100000000 -> 102100000",
    ),
    # What Python keeps varies, and what an older baseline lacks is not known.
    ({"grown_host_bytes": 0}, {"grown_host_bytes": 3072}, {}, "PASS", ""),
    (
        {"grown_host_bytes": 0},
        {"grown_host_bytes": 3920},
        {},
        "REGRESSED",
        "grown host bytes 0 -> 3920",
    ),
    ({}, {"grown_host_bytes": 50_000, "allocator_calls": 4}, {}, "PASS", ""),
    ({"peak_host_bytes": 1000}, {"peak_host_bytes": 66_536}, {}, "PASS", ""),
    # A CUDA graph
    ({"graph_launches": 1}, {"graph_launches": 0}, {}, "REGRESSED", "graph launches 1 -> 0"),
    (
        {"graph_launches": 0},
        {"graph_launches": 2},
        {"times": TIMES},
        "IMPROVED",
        "graph launches 0 -> 2",
    ),
    # What is less, beside the times
    ({}, {"dispatcher_ops": 2}, SLOWER, "REGRESSED", "dispatcher ops 3 -> 2"),
    ({}, {}, {"ran": OTHER} | SLOWER, "REGRESSED", ""),
    # More ops of other kernels are paid by a time that improved, a copy is not
    ({}, {"dispatcher_ops": 9}, FASTER, "CHANGED", "dispatcher ops 3 -> 9"),
    ({}, {"dispatcher_ops": 9}, FASTER | SLOWER, "REGRESSED", "dispatcher ops 3 -> 9"),
    ({}, {"dispatcher_ops": 9}, {"ran": OTHER}, "REGRESSED", "dispatcher ops 3 -> 9"),
    ({"copies": 0}, {"copies": 1}, FASTER, "REGRESSED", "copies 0 -> 1"),
    # nor are a few of fewer kernels
    *(
        (
            {},
            {"launches": 3, "dispatcher_ops": ops},
            {"ran": (GATE, UP, LAST)},
            status,
            f"launches 4 -> 3|dispatcher ops 3 -> {ops}",
        )
        for ops, status in ((8, "CHANGED"), (9, "REGRESSED"))
    ),
    # An op around one of the baseline costs nothing to speak of, another one does
    *(
        (
            {},
            {"dispatcher_ops": 4},
            {"old_ops": (VIEW,), "ops": ops},
            status,
            "dispatcher ops 3 -> 4",
        )
        for ops, status in (
            ((RESHAPE, INNER), "PASS"),
            ((RESHAPE, VIEW), "REGRESSED"),
            ((RESHAPE, INNER, RESHAPE), "REGRESSED"),
            ((RESHAPE, INNER, INNER), "REGRESSED"),
            ((OpRecord("aten::mm"), OpRecord("aten::reshape", is_inner=True), INNER), "REGRESSED"),
        )
    ),
]


@pytest.mark.parametrize(("before", "after", "changes", "status", "lines"), SEVERAL)
def test_structure_of_counts_gives_status(
    before: Any, after: Any, changes: Any, status: str, lines: str
) -> None:
    verdict = judged(before, after, **changes)
    assert (verdict.status, "|".join(reasons(verdict, "counts"))) == (Status(status), lines)


ONE_ROW = {"inputs": ("bf16[1,64]",)}
ACROSS = "[8,8] by strides 1,8"
LAYS = Resources(layout=f"contiguous{IN_LISTS}contiguous")
OF_TENSORS = [
    (ONE_ROW, {"inputs": ("fp32[1,64]",)}, "other dtypes"),
    (ONE_ROW, {"inputs": ("fp32[8,64]",), "stream": 1}, "other shapes and dtypes and streams"),
    (ONE_ROW, {"inputs": (*ONE_ROW["inputs"], *ONE_ROW["inputs"])}, "other shapes and dtypes"),
    *(
        (ONE_ROW | {"arguments": old}, ONE_ROW | {"arguments": new}, "other arguments")
        for old, new in (
            (("a=True", "b=0"), ("a=True", "b=1")),
            (("min=0.0",), ("min=0.0", "max=6.0")),
            ((), ("decimals=2",)),
            (("tensors=2 tensors, float32[64] x2",), ("tensors=2 tensors, float64[64] x2",)),
            (("dim=-1",), ("dim=0",)),
        )
    ),
    (
        ONE_ROW | {"op": "aten::pow", "arguments": ("exponent=-1",)},
        ONE_ROW | {"op": "aten::pow", "arguments": ("exponent=1",)},
        "other arguments",
    ),
    (
        {"resources": LAYS},
        {"resources": Resources(layout=f"contiguous{IN_LISTS}{ACROSS}")},
        "other strides",
    ),
    *(
        (old, new, "same counts")
        for old, new in (
            ({}, {"inputs": ("fp32[8,64]",)}),  # older ones lack it
            ({}, {"arguments": ("a=True",)}),
            ({}, {"resources": Resources(layout=ACROSS)}),
            ({"resources": Resources(layout="contiguous")}, {"resources": LAYS}),
            # other spellings of dimensions
            (
                ONE_ROW | {"arguments": ("a=-1", "b=[0, 1]")},
                ONE_ROW | {"arguments": ("a=1", "b=[-2, -1]")},
            ),
            # it differs between calls
            ({"arguments": ("a=", "b=0")}, {"arguments": ("a=5", "b=0")}),
        )
    ),
]


@pytest.mark.parametrize(("old", "new", "said"), OF_TENSORS)
def test_same_kernels_of_other_tensors_are_changed(old: Any, new: Any, said: str) -> None:
    stored, ran = ((KernelRecord(GATE.identity, 56.0, **each), UP) for each in (old, new))
    verdict = judged(stored=stored, ran=ran)
    assert words.headline(verdict) == f"same kernels, {said}"
    assert verdict.status is (Status.PASS if said == "same counts" else Status.CHANGED)


NNZ = ("655 stored numbers",)


@pytest.mark.parametrize(
    ("old", "status"),
    [
        (NNZ, "PASS"),
        (("645 stored numbers",), "PASS"),
        (("13 stored numbers",), "CHANGED"),
        (None, "PASS"),
        ((), "CHANGED"),
    ],
)
def test_data_of_an_op_is_compared_where_it_is_known(old: Any, status: str) -> None:
    stored = {} if old is None else {"aten::mm": old}
    verdict = judged(old_data=stored, data={"aten::mm": NNZ, "aten::index": ("8 numbers found",)})
    assert verdict.status is Status(status)
    number = "13" if old else "no"
    causes = [] if status == "PASS" else [f"{number} -> 655 stored numbers in 1 kernel\nmm"]
    assert reasons(verdict, "cause") == causes


@pytest.mark.parametrize(
    ("old", "new", "causes"),
    [
        (("other=2.8 x6",), ("other=2.8", "other= x5"), []),
        (("other=2.8", "other= x5"), ("other=2.8 x6",), []),
        (("other=3.0", "other= x5"), ("other=7.0", "other= x5"), ["an argument 3.0 -> 7.0"]),
        (("other=3.0 x2", "other= x5"), ("other= x7",), []),
        (("other=3.0", "other="), ("other=7.0 x2",), ["an argument 3.0 -> 7.0"]),
        (("min=0", "max=6"), ("min=0",), ["max 6 -> (none)"]),
    ],
)
def test_numbers_that_one_side_does_not_know_are_any(
    old: tuple[str, ...], new: tuple[str, ...], causes: list[str]
) -> None:
    verdict = judged(old_data={"aten::mm": old}, data={"aten::mm": new})
    found = [each.partition(" in ")[0] for each in reasons(verdict, "cause")]
    assert found == causes


def test_lost_graph_is_the_cause_and_not_its_ops() -> None:
    lines = (Origin("", (SourceLine("a.py", 3, "y = net(x)"),)),)
    before, after = (
        {"graph_launches": 1, "dispatcher_ops": 3},
        {"graph_launches": 0, "dispatcher_ops": 15},
    )
    ops = tuple(OpRecord("aten::mm") for _ in range(15))
    verdict = judged(before, after, old_ops=ops[:3], ops=ops, compiled_origins=lines)
    assert reasons(verdict, "cause") == [
        "no CUDA graph any more: each kernel is launched by itself"
    ]
    assert reasons(verdict, "code") == ["a.py:3  y = net(x)"]


def test_calls_of_the_allocator_are_counted_and_named() -> None:
    lines = (Origin("", (SourceLine("a.py", 3, "torch.cuda.empty_cache()"),)),)
    ran = ("cudaFree", "cudaFree", "aten::empty: cudaMalloc")
    verdict = judged(
        {"allocator_calls": 0}, {"allocator_calls": 3}, allocating_ops=ran, allocation_origins=lines
    )
    cause = "each call allocates or frees memory 3 times instead of 0, past torch's cache"
    assert reasons(verdict, "cause") == [f"{cause}\ncudaFree x2\naten::empty: cudaMalloc"]
    assert reasons(verdict, "code") == ["a.py:3  torch.cuda.empty_cache()"]


def coded(registers: int | None = 64, grid: int = 8192, **changes: Any) -> KernelRecord:
    """A kernel of 256 threads, 50 % of whose warps fit on an SM of an H200 with 64 registers, and
    38 % with 72.
    """
    identity = KernelIdentity(name="scale", kind="other", grid=(grid, 1, 1), block=(256, 1, 1))
    sizes = {
        "registers": registers,
        "shared_bytes": 0,
        "spilled_words": 0,
        "options": "num_stages=3",
    } | changes
    return KernelRecord(identity, 56.0, resources=None if registers is None else Resources(**sizes))


def tuned(registers: int, xblock: int = 1024, **chosen: Any) -> KernelRecord:
    return msgspec.structs.replace(
        fused(38.1, xblock=xblock, **chosen), resources=Resources(registers, 0, 0)
    )


TUNED = {"is_tuned": True, "options": "num_stages=2"}
OF_CODE = [
    (coded(), coded(72), True),  # fewer warps fit
    (coded(), coded(spilled_words=12), True),
    (coded(), coded(shared_bytes=100_000), True),
    (tuned(32), tuned(72), True),
    (coded(), coded(32), False),  # more fit
    (coded(), coded(60), False),  # as many fit
    # the grid is too small for more than one block on an SM
    (coded(72, grid=132), coded(96, grid=132), False),
    (coded(spilled_words=12), coded(spilled_words=14), False),
    (
        coded(),
        coded(memory_instructions=9, code="5e6f", options="num_stages=3,x=divisible by 16"),
        False,
    ),
    (coded(None), coded(72, spilled_words=9), False),  # an older baseline does not know
    (coded(spilled_words=None), coded(spilled_words=9), False),
    (coded(), coded(72, spilled_words=9, **TUNED), False),  # the autotuner's choice
    (
        coded(options="", is_tuned=True),
        coded(72, options="", is_tuned=True),
        False,
    ),  # nobody knows whether it is the same
    (coded(**TUNED), coded(72, **TUNED), True),
]


@pytest.mark.parametrize(("old", "new", "is_finding"), OF_CODE)
def test_spills_and_lower_occupancy_are_structure(old: Any, new: Any, is_finding: bool) -> None:
    verdict = judged(stored=(old, UP), ran=(new, UP))
    assert verdict.status is (Status.CHANGED if is_finding else Status.PASS)
    name = old.identity.name
    cause = [f"the same kernel, compiled otherwise: {name}"] if is_finding else []
    assert [text.partition("\n")[0] for text in reasons(verdict, "cause")] == cause
    assert judged(stored=(new, UP), ran=(new, UP)).status is Status.PASS


def compiled(kind: str, reason: str, *lines: int) -> tuple[CompileEvent, ...]:
    return tuple(CompileEvent(kind, reason, "model.py", line, "f(x)", "mlp") for line in lines)


def test_compiling_that_the_baseline_lacks_is_the_first_cause() -> None:
    known, new = compiled("graph break", "print", 3), compiled("recompile", "k == 1", 1, 2)
    nowhere = CompileEvent("graph break", "switched off")
    changes = {
        "ran": (GATE, UP, LAST),
        "after": {"launches": 5},
        "compile_events": (*known, *new, nowhere),
    }
    verdict = judged(stored=(GATE, UP), old_compile_events=known, **changes)
    breaks = ["recompile: k == 1, 2 times", "graph break: switched off"]
    assert verdict.reasons[1].change.times == 1
    assert reasons(verdict, "cause") + reasons(verdict, "also") == [
        *breaks,
        f"1 new kernel: {DOWN}",
    ]
    assert reasons(verdict, "code") == ["model.py:1  mlp  f(x)\nmodel.py:2  mlp  f(x)"]


def broken(code: str, function: str = "forward", reason: str = "print") -> CompileEvent:
    return CompileEvent("graph break", reason, "model.py", len(code), code, "mlp", function)


def resized(size: int) -> CompileEvent:
    reason = f"size of x at index 0 is {size}, no longer 64"
    return CompileEvent("recompile", reason, "model.py", 1, "in f", "mlp", "f")


A, B, A_CAST = broken("f(a)"), broken("gg(b)"), broken("f(a.double())")
OF_EVENTS = [
    ((A, B), (A_CAST, B), {}, []),
    ((A,), (B, A_CAST), {}, ["gg(b)"]),
    ((A,), (broken("f(a)", "other"),), {}, ["f(a)"]),
    ((A,), (broken("f(a)", reason="item"),), {}, ["f(a)"]),
    ((A, B), (A_CAST, B), {"graph_breaks": 1}, ["f(a.double())"]),
    ((A,), (B, A_CAST), {"graph_breaks": 1}, ["gg(b)"]),
    ((resized(32),), (resized(16),), {}, []),
    ((resized(32),), (resized(16),), {"recompiles": 1}, ["in f"]),
]


@pytest.mark.parametrize(("before", "after", "counts", "new"), OF_EVENTS)
def test_event_without_counterpart_is_a_cause(
    before: Any, after: Any, counts: Any, new: Any
) -> None:
    changes = {"ran": (GATE, UP, LAST), "after": {"launches": 5, **counts}}
    verdict = judged(stored=(GATE, UP), old_compile_events=before, compile_events=after, **changes)
    codes = [
        each.places[0].line.code
        for each in verdict.reasons
        if isinstance(each, Cause) and isinstance(each.change, CompilerEvent)
    ]
    assert codes == new


ITEM = ("aten::item: Memcpy DtoH (Device -> Pinned), 2 bytes", "aten::item: cudaStreamSynchronize")
WAITS = f"the host waits: {ITEM[1]}\n{ITEM[0]}"
OF_COPIES = [
    ({}, {"copies": 3, "synchronizations": 1}, (), [WAITS, f"2 copies: {CLONE}"], [5, 3]),
    ({"copies": 3}, {"copies": 3, "memsets": 9}, (), [], []),
    ({"copies": 2}, {"copies": 3}, (CLONE, CLONE), [ITEM[0]], [5]),
]


@pytest.mark.parametrize(("before", "after", "known", "causes", "lines"), OF_COPIES)
def test_more_copies_and_waits_have_ops_and_lines(
    before: Any, after: Any, known: Any, causes: Any, lines: Any
) -> None:
    clone, item = (
        Origin("mlp", (SourceLine("model.py", line, f"line{line}()"),)) for line in (3, 5)
    )
    copies = {"copying_ops": (CLONE, CLONE, ITEM[0]), "copy_origins": (clone, clone, item)}
    waits = (
        {"synchronizing_ops": ITEM[1:], "synchronization_origins": (item,)}
        if "synchronizations" in after
        else {}
    )
    verdict = judged(before, after, old_copying_ops=known, **copies, **waits)
    assert reasons(verdict, "cause") == causes
    assert reasons(verdict, "code") == [f"model.py:{line}  mlp  line{line}()" for line in lines]


A100 = fingerprint(
    device="NVIDIA A100-SXM4-80GB", arch="sm_80", sm_count=108, cuda="12.4", torch="2.6.0+cu124"
)
CPU = fingerprint(
    device="AMD EPYC", arch="cpu", sm_count=None, cuda=None, torch="2.14.0.dev20261101+cpu"
)
PLACES = [
    ({}, [H200, A100, CPU]),
    ({"arch": "gpu"}, [H200, A100]),
    ({"torch": ">=2.9"}, [H200, CPU]),
    ({"torch": "<2.9"}, [A100]),
]


@pytest.mark.parametrize(("where", "holds"), PLACES)
def test_expectation_applies_to_its_device_and_versions(where: Any, holds: list[Any]) -> None:
    assert [
        machine for machine in (H200, A100, CPU) if Expectation("seen", **where).holds_for(machine)
    ] == holds


@pytest.mark.parametrize(
    ("what", "value", "expected"),
    [
        ("torch", "2.13", ">=2.7,<2.9"),
        ("torch", 2.13, ">=2.7,<2.9"),
        ("kinds", ("gemm", "gem"), "pointwise"),
        ("kinds", "gemm", "a tuple of gemm"),
        ("names", "nvjet_*", "a tuple"),
        ("launch_apis", "cuLaunchKernel", "a tuple"),
        ("arch", "sm90", "sm_90"),
        ("cuda", "13", "'13.0'"),
    ],
)
def test_expectation_that_never_holds_is_refused(what: str, value: Any, expected: str) -> None:
    with pytest.raises(WorkloadError, match=f"invalid {what} of an Expectation") as error:
        Expectation("seen on an H200", **{what: value})
    assert (error.value.where, error.value.got) == ("seen on an H200", repr(value))
    assert expected in str(error.value)
    Expectation(
        "seen",
        arch="sm_90a",
        cuda="13.0",
        torch="==2.13.*",
        kinds=("gemm", "po*"),
        names=("nvjet_*",),
    )


BRACKETS = "void f<int[2]>(char*)"  # as an fnmatch pattern alone it would not match itself
APIS = {"launch_apis": ("cuLaunchKernelEx", "cuLaunchKernel"), "occupancy_queries": 3}


def test_mismatches_of_what_is_expected_are_none() -> None:
    for expected, changes in (
        (
            {
                "names": (
                    "nvjet_*",
                    "*_TNT",
                    "triton_poi_fused_*gelu*_0",
                    "nvjet_sm90_tst_192x128_*",
                )
            },
            {},
        ),
        ({"names": (BRACKETS,)}, {"kernels": (launched(BRACKETS, 1.0),)}),
        (
            {
                "memsets": 2,
                "occupancy_queries": 3,
                "launch_apis": ("cuLaunchKernelEx", "cuLaunch*"),
            },
            APIS,
        ),
    ):
        assert mismatches(Expectation("seen on an H200", **expected), run(**changes)) == []
    for wrong in (
        {"kinds": ()},
        {"names": (GEMM.upper(), GEMM, FUSED, DOWN)},
        {"launch_apis": ("cudaLaunchKernel",)},
        {"memsets": 0},
    ):
        assert mismatches(Expectation("seen on an H200", **wrong), run())


def test_worst_ranks_every_status() -> None:
    ranked = "INVALID REGRESSED CHANGED UNDECIDED INCOMPARABLE NO_BASELINE IMPROVED PASS NOT_JUDGED"
    statuses = [Status(name) for name in ranked.split()]
    assert set(statuses) == set(Status)
    for bad, good in itertools.combinations(statuses, 2):
        assert worst([bad, good]) is worst([good, bad]) is bad


ADDED = "cudnn fp32_matmul cudnn_tf32 deterministic".split()  # older baselines lack them
FOREIGN = "device arch sm_count power_limit_watts mig".split()
MOVED = [*"driver cuda torch triton liger_kernel python".split(), *ADDED]


def test_compare_of_each_field_has_one_kind() -> None:
    assert {*FOREIGN, *MOVED, "memory_bytes"} == set(H200.__struct_fields__)
    for field in (*FOREIGN, *MOVED):
        found = compare_fingerprints(H200, fingerprint(**{field: "x"}))
        said = [f"{field} {getattr(H200, field)} -> x"]
        assert ([*map(str, found.foreign)], [*map(str, found.moved)]) == (
            (said, []) if field in FOREIGN else ([], said)
        )
        assert not found.identical
        assert compare_fingerprints(fingerprint(**{field: None}), H200).identical is (
            field in ADDED
        )
        assert compare_fingerprints(H200, fingerprint(**{field: "x"}), without=(field,)).identical
    assert compare_fingerprints(fingerprint(memory_bytes=1), H200).identical
