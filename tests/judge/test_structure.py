"""What is exact: kernels, counts and what a workload declares of them; statuses in order, and machines compared."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from kernelgauge.judge import Status, Verdict, worst
from kernelgauge.judge.baseline import compare
from kernelgauge.judge.structure import Expectation, judge_structure, mismatches
from kernelgauge.report import words
from kernelgauge.report.stored import doubt_text
from kernelgauge.run import CompileEvent, Origin, SourceLine
from kernelgauge.trace import KernelRecord
from tests.builders import (
    DOWN,
    FUSED,
    GEMM,
    H200,
    OTHER_SOURCE,
    baseline,
    counts,
    fingerprint,
    launched,
    mlp_kernels,
    reasons,
    run,
)

GATE, UP, MIDDLE, LAST = mlp_kernels()
NARROW, WIDE = (launched(GEMM, 56.0, grid=(2, width, 1)) for width in (66, 33))
PARTS = [launched(name, 4.0) for name in ("mul", "add", "exp")]
KERNELS = "kernels differ from the baseline"
TORCH = fingerprint(torch="2.12.0")


def judged(
    before: Any = None, after: Any = None, ran: Any = None, stored: Any = None, times: Any = (), **changes: Any
) -> Verdict:
    """The verdict on kernels that ran beside the stored ones, and counts after beside those before."""
    old = baseline(counts=counts(**(before or {})), kernels=stored)
    new = run(kernels=ran, counts=counts(**(after or {})), **changes)
    return judge_structure(new, old, times)


@pytest.mark.parametrize(
    ("changes", "status", "headline", "kernels"),
    [
        ({}, "PASS", "same kernels, same counts", []),
        ({"ran": mlp_kernels(us=55.4, xblock=512)}, "PASS", "same", []),  # the autotuner's choice
        ({"ran": mlp_kernels(source=OTHER_SOURCE)}, "PASS", "same", []),
        ({"ran": (GATE, UP, MIDDLE, launched(GEMM, 50.0))}, "CHANGED", KERNELS, [f"- {DOWN}", f"+ {GEMM}"]),
        ({"ran": (GATE, *PARTS, LAST), "after": {"launches": 5}}, "REGRESSED", KERNELS, [f"- {GEMM}", f"- {FUSED}", "+ mul", "+ add", "+ exp"]),
        ({"ran": (GATE, UP, LAST), "after": {"launches": 3}}, "CHANGED", KERNELS, [f"- {FUSED}"]),
        ({"ran": (), "after": {"launches": 0}}, "CHANGED", KERNELS, [f"- {name}" for name in (GEMM, GEMM, FUSED, DOWN)]),
        (
            {"stored": (NARROW, UP, MIDDLE, LAST), "ran": (WIDE, UP, MIDDLE, LAST)},
            "CHANGED",
            "launch configurations differ from the baseline",
            [f"{GEMM}: grid 2x66x1 -> 2x33x1"],
        ),
        ({"ran": (), "machine": fingerprint(sm_count=114)}, "INCOMPARABLE", "structure not compared: sm_count 132 -> 114", []),
    ],
)  # fmt: skip
def test_structure_of_kernels_gives_status(changes: Any, status: str, headline: str, kernels: list[str]) -> None:
    verdict = judged(**changes)
    assert (verdict.status, verdict.subject) == (Status(status), "structure")
    assert words.headline(verdict).startswith(headline)
    assert reasons(verdict, "kernels") == kernels


COUNTS = [
    ("launches", 4, 5),
    ("memsets", 2, 3),
    ("copies", 0, 1),
    ("synchronizations", 0, 1),
    ("dispatcher_ops", 3, 9),
    ("graph_breaks", 0, 1),
    ("recompiles", 0, 1),
    ("peak_allocated_bytes", 1 << 20, 1 << 21),
    ("grown_bytes", 0, 512),
    ("compiled_ops", 5, 6),
    ("graphs", 1, 2),
    ("generated_kernels", 1, 2),
    ("autotuned_configurations", 2, 3),
    ("uncached_graphs", 0, 1),
]
TIMES = (Verdict(Status.PASS, "mlp", "GPU time", "unchanged"), Verdict(Status.IMPROVED, "mlp", "end to end", "faster"))


@pytest.mark.parametrize(("field", "less", "more"), COUNTS)
def test_structure_of_each_count_is_judged(field: str, less: int, more: int) -> None:
    name = field.replace("_", " ")
    for before, after, times, status in (
        (less, more, TIMES, Status.REGRESSED),
        (more, less, TIMES, Status.IMPROVED),
        (more, less, (), Status.CHANGED),  # no time says that nothing was lost
    ):
        verdict = judged({field: before}, {field: after}, times=times)
        assert (verdict.status, words.headline(verdict)) == (status, "other counts")
        assert reasons(verdict, "counts") == [f"{name} {before} -> {after}"]
    fields = {"kernels", *(each for each, _, _ in COUNTS)}  # more kinds of kernels are neither better nor worse
    assert fields == set(counts().__struct_fields__)


FEWER = {"before": {"dispatcher_ops": 9}, "after": {"dispatcher_ops": 7}}
OTHER = {"ran": (GATE, UP, MIDDLE, launched(GEMM, 50.0))}


@pytest.mark.parametrize(
    ("changes", "time", "status"),
    [
        (FEWER, "NOT_JUDGED", "CHANGED"),
        (FEWER, "UNDECIDED", "CHANGED"),
        (FEWER, "REGRESSED", "REGRESSED"),
        (OTHER, "PASS", "CHANGED"),
        (OTHER, "REGRESSED", "REGRESSED"),
    ],
)
def test_structure_beside_a_time_gives_status(changes: Any, time: str, status: str) -> None:
    times = (*TIMES, Verdict(Status(time), "mlp", "host dispatch", ""))
    assert judged(**changes, times=times).status is Status(status)


@pytest.mark.parametrize(
    ("after", "status"), [(1.019, "PASS"), (1.021, "REGRESSED"), (0.981, "PASS"), (0.979, "CHANGED")]
)
def test_peak_memory_may_move_by_two_percent(after: float, status: str) -> None:
    peak = 100_000_000
    verdict = judged({"peak_allocated_bytes": peak}, {"peak_allocated_bytes": int(peak * after)})
    assert verdict.status is Status(status)


@pytest.mark.parametrize(
    ("old", "new", "headline"),
    [
        ({"inputs": ("bf16[1,64]",)}, {"inputs": ("bf16[8,64]",)}, "same kernels, other shapes"),
        ({"inputs": ("bf16[1,64]",)}, {"inputs": ("fp32[1,64]",)}, "same kernels, other dtypes"),
        ({"inputs": ("bf16[1,64]",)}, {"inputs": ("fp32[8,64]",), "stream": 1}, "same kernels, other shapes and dtypes and streams"),
        ({}, {"inputs": ("fp32[8,64]",)}, ""),  # an older baseline does not know
        ({"inputs": ("bf16[1,64]",)}, {"inputs": ("bf16[1,64]",)}, ""),
    ],
)  # fmt: skip
def test_same_kernels_of_other_tensors_are_changed(old: Any, new: Any, headline: str) -> None:
    stored, ran = (([KernelRecord(GATE.identity, 56.0, **each), UP]) for each in (old, new))
    verdict = judged(stored=tuple(stored), ran=tuple(ran))
    assert (verdict.status, words.headline(verdict)) == (
        (Status.CHANGED, headline) if headline else (Status.PASS, "same kernels, same counts")
    )


UNSEEN = {"peak_allocated_bytes": None}
NOT_JUDGED = ", not judged: another version of torch"


@pytest.mark.parametrize(
    ("before", "after", "changes", "status", "lines"),
    [
        ({}, {"memsets": 1, "copies": 1}, {}, "REGRESSED", ["memsets 2 -> 1", "copies 0 -> 1"]),
        ({}, {"memsets": 1}, {"ran": (GATE, UP, LAST)}, "CHANGED", ["memsets 2 -> 1"]),
        (UNSEEN, {}, {}, "REGRESSED", ["peak allocated bytes None -> 1048576"]),
        ({}, UNSEEN, {}, "REGRESSED", ["peak allocated bytes 1048576 -> None"]),
        ({}, {"dispatcher_ops": 9}, {"machine": TORCH}, "PASS", [f"dispatcher ops 3 -> 9{NOT_JUDGED}"]),
        ({"peak_allocated_bytes": 9}, {"peak_allocated_bytes": 7}, {"machine": TORCH}, "PASS", [f"peak allocated bytes 9 -> 7{NOT_JUDGED}"]),
        ({}, {"copies": 1}, {"machine": TORCH}, "REGRESSED", ["copies 0 -> 1"]),
    ],
)  # fmt: skip
def test_structure_of_several_counts_gives_status(
    before: Any, after: Any, changes: Any, status: str, lines: list[str]
) -> None:
    verdict = judged(before, after, **changes)
    assert (verdict.status, reasons(verdict, "counts")) == (Status(status), lines)


def compiled(kind: str, reason: str, *lines: int) -> tuple[CompileEvent, ...]:
    return tuple(CompileEvent(kind, reason, "model.py", line, "f(x)", "mlp") for line in lines)


@pytest.mark.parametrize(
    ("events", "cause", "code"),
    [
        (compiled("graph break", "print", 17), "graph break: print", "mlp  model.py:17  f(x)"),
        (compiled("recompile", "k == 1", 1, 2), "recompile: k == 1, 2 times", "mlp  model.py:1  f(x)\nmlp  model.py:2  f(x)"),
    ],
)  # fmt: skip
def test_compiling_that_the_baseline_lacks_is_the_first_cause(events: Any, cause: str, code: str) -> None:
    known = compiled("graph break", "print", 3)
    old = baseline(counts=counts(), kernels=(GATE, UP), compile_events=known)
    new = run(kernels=(GATE, UP, LAST), counts=counts(launches=5), compile_events=(*known, *events))
    verdict = judge_structure(new, old)
    assert reasons(verdict, "cause") == [cause, f"1 new kernel: {DOWN}"]
    assert reasons(verdict, "code") == [code]


CLONE = "aten::clone: Memcpy DtoD (Device -> Device), 1024 bytes"
ITEM = ("aten::item: Memcpy DtoH (Device -> Pinned), 2 bytes", "aten::item: cudaStreamSynchronize")
WAITS = f"the host waits: {ITEM[1]}\n{ITEM[0]}"


@pytest.mark.parametrize(
    ("before", "after", "causes", "lines"),
    [
        ({}, {"copies": 3}, [f"2 copies: {CLONE}", ITEM[0]], [3, 5]),
        ({}, {"copies": 3, "synchronizations": 1}, [WAITS, f"2 copies: {CLONE}"], [5, 3]),
        ({"copies": 3}, {"copies": 3, "memsets": 9}, [], []),
    ],
)
def test_more_copies_and_waits_have_ops_and_lines(before: Any, after: Any, causes: Any, lines: Any) -> None:
    clone, item = (Origin("mlp", (SourceLine("model.py", line, f"line{line}()"),)) for line in (3, 5))
    copies = {"copying_ops": (CLONE, CLONE, ITEM[0]), "copy_origins": (clone, clone, item)}
    waits = {"synchronizing_ops": ITEM[1:], "synchronization_origins": (item,)}
    verdict = judged(before, after, **copies, **waits)
    assert reasons(verdict, "cause") == causes
    assert reasons(verdict, "code") == [f"mlp  model.py:{line}  line{line}()" for line in lines]


def test_only_the_copy_that_the_baseline_lacks_is_named() -> None:
    old = baseline(counts=counts(copies=2), copying_ops=(CLONE, CLONE))
    new = run(counts=counts(copies=3), copying_ops=(CLONE, CLONE, ITEM[0]))
    assert reasons(judge_structure(new, old), "cause") == [ITEM[0]]


A100 = fingerprint(device="NVIDIA A100-SXM4-80GB", arch="sm_80", sm_count=108, cuda="12.4", torch="2.6.0+cu124")
CPU = fingerprint(device="AMD EPYC", arch="cpu", sm_count=None, cuda=None, torch="2.14.0.dev20261101+cpu")
BRACKETS = "void f<int[2]>(char*)"  # as an fnmatch pattern alone it would not match itself
APIS = {"launch_apis": ("cuLaunchKernelEx", "cuLaunchKernel"), "occupancy_queries": 3}


@pytest.mark.parametrize(
    ("where", "holds"),
    [
        ({}, [H200, A100, CPU]),
        ({"arch": "gpu"}, [H200, A100]),
        ({"arch": "cpu"}, [CPU]),
        ({"arch": "sm_90", "cuda": "13.0"}, [H200]),
        ({"arch": "sm_90", "cuda": "12.4"}, []),
        ({"cuda": "12.4"}, [A100]),
        ({"torch": ">=2.9"}, [H200, CPU]),
        ({"torch": "<2.9"}, [A100]),
        ({"torch": ">=2.13", "arch": "cpu"}, [CPU]),
    ],
)
def test_expectation_applies_to_its_device_and_versions(where: Any, holds: list[Any]) -> None:
    expectation = Expectation("seen", **where)
    assert [machine for machine in (H200, A100, CPU) if expectation.holds_for(machine)] == holds


@pytest.mark.parametrize(
    ("expected", "changes", "is_met"),
    [
        ({}, {}, True),
        ({"kinds": ("gemm", "gemm", "pointwise", "gemm")}, {}, True),
        ({"names": (GEMM, GEMM, FUSED, DOWN)}, {}, True),
        ({"names": ("nvjet_*", "*_TNT", "triton_poi_fused_*gelu*_0", "nvjet_sm90_tst_192x128_*")}, {}, True),
        ({"names": (BRACKETS,)}, {"kernels": (launched(BRACKETS, 1.0),)}, True),
        ({"memsets": 2, "occupancy_queries": 3, "launch_apis": ("cuLaunchKernelEx", "cuLaunch*")}, APIS, True),
        ({"kinds": ("gemm", "pointwise", "gemm", "gemm")}, {}, False),
        ({"kinds": ()}, {}, False),
        ({"names": (GEMM, GEMM, FUSED)}, {}, False),
        ({"names": (GEMM.upper(), GEMM, FUSED, DOWN)}, {}, False),
        ({"names": ("nvjet", "*", "*", "*")}, {}, False),
        ({"memsets": 0}, {}, False),
        ({"occupancy_queries": 1}, {}, False),
        ({"launch_apis": ("cudaLaunchKernel",)}, {}, False),
    ],
)
def test_mismatches_are_found_and_name_their_source(expected: Any, changes: Any, is_met: bool) -> None:
    found = mismatches(Expectation("seen on an H200", **expected), run(**changes))
    assert [each.source for each in found] == ([] if is_met else ["seen on an H200"])


def test_mismatches_list_each_launch_and_count() -> None:
    kinds = ("gemm", "gemm", "pointwise", "pointwise", "gemm")
    wrong = mismatches(Expectation("article", kinds=kinds, names=("*",), memsets=0), run(counts=counts(memsets=3)))
    first, second, third = map(doubt_text, wrong)
    launches = "1. gemm|2. gemm|3. pointwise|4. gemm   <- expected pointwise|5. (nothing)   <- expected gemm"
    assert first == "\n    ".join(["kernel kinds: got 4, expected 5", *launches.split("|"), "source   article"])
    assert "\n    4. nvjet_sm90_tst_192x128_64x5_1x2_h_bz_coopB_TNT   <- expected (nothing)\n" in second
    assert third == "memsets: got 3, expected 0\n    source   article"


WORST_TO_BEST = "INVALID REGRESSED CHANGED UNDECIDED INCOMPARABLE NO_BASELINE IMPROVED PASS NOT_JUDGED"


def test_worst_ranks_every_status() -> None:
    ranked = [Status(name) for name in WORST_TO_BEST.split()]
    assert set(ranked) == set(Status)
    for bad, good in itertools.combinations(ranked, 2):
        assert worst([bad, good]) is worst([good, bad]) is bad
    assert worst([]) is None


ADDED = "cudnn fp32_matmul cudnn_tf32 deterministic".split()  # older baselines lack them
FOREIGN = "device arch sm_count power_limit_watts mig".split()
MOVED = [*"driver cuda torch triton liger_kernel python".split(), *ADDED]
KINDS = {"foreign": FOREIGN, "moved": MOVED}


@pytest.mark.parametrize(("field", "kind"), [(field, kind) for kind, fields in KINDS.items() for field in fields])
def test_compare_of_each_field_has_one_kind(field: str, kind: str) -> None:
    comparison = compare(H200, fingerprint(**{field: "x"}))
    found = {each: list(map(str, getattr(comparison, each))) for each in KINDS}
    assert found == {key: [] for key in KINDS} | {kind: [f"{field} {getattr(H200, field)} -> x"]}
    assert not comparison.identical
    assert compare(fingerprint(**dict.fromkeys(ADDED)), H200).identical
    assert compare(fingerprint(memory_bytes=1), H200).identical
    assert {*FOREIGN, *MOVED, "memory_bytes"} == set(H200.__struct_fields__)
