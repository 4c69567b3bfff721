"""What is exact: kernels, counts and what a workload declares of them; statuses in order, and machines compared."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from kernelgauge.judge.baseline import compare
from kernelgauge.judge.structure import Expectation, judge_structure, mismatches
from kernelgauge.judge.verdict import Reason, Status, Verdict, worst
from kernelgauge.run import CompileEvent, Origin, SourceLine
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
KERNELS = "kernels differ from the baseline"
TORCH = fingerprint(torch="2.12.0")


def judged(before: Any = None, after: Any = None, ran: Any = None, stored: Any = None, **changes: Any) -> Verdict:
    """The verdict on kernels that ran beside the stored ones, and counts after beside those before."""
    old = baseline(counts=counts(**(before or {})), kernels=stored)
    new = run(kernels=ran, counts=counts(**(after or {})), **changes)
    return judge_structure(new, old)


@pytest.mark.parametrize(
    ("changes", "status", "headline", "kernels"),
    [
        ({}, "PASS", "same kernels, same counts", []),
        ({"ran": mlp_kernels(us=55.4, xblock=512)}, "PASS", "same", []),  # the autotuner's choice
        ({"ran": mlp_kernels(source=OTHER_SOURCE)}, "PASS", "same", []),
        ({"ran": (GATE, UP, MIDDLE, launched(GEMM, 50.0))}, "REGRESSED", KERNELS, [f"- {DOWN}", f"+ {GEMM}"]),
        ({"ran": (GATE, UP, LAST), "after": {"launches": 3}}, "REGRESSED", KERNELS, [f"- {FUSED}"]),
        ({"ran": ()}, "REGRESSED", KERNELS, [f"- {name}" for name in (GEMM, GEMM, FUSED, DOWN)]),
        (
            {"stored": (NARROW, UP, MIDDLE, LAST), "ran": (WIDE, UP, MIDDLE, LAST)},
            "REGRESSED",
            "launch configurations differ from the baseline",
            [f"{GEMM}: grid 2x66x1 -> 2x33x1"],
        ),
        ({"ran": (), "machine": fingerprint(sm_count=114)}, "INCOMPARABLE", "structure not compared: sm_count 132 -> 114", []),
    ],
)  # fmt: skip
def test_structure_of_kernels_gives_status(changes: Any, status: str, headline: str, kernels: list[str]) -> None:
    verdict = judged(**changes)
    assert (verdict.status, verdict.subject) == (Status(status), "structure")
    assert verdict.headline.startswith(headline)
    assert reasons(verdict, "kernels") == kernels


COUNTS = [
    ("launches", 4, 5),
    ("kernels", 3, 4),
    ("memsets", 2, 3),
    ("copies", 0, 1),
    ("synchronizations", 0, 1),
    ("dispatcher_ops", 3, 9),
    ("graph_breaks", 0, 1),
    ("recompiles", 0, 1),
    ("peak_allocated_bytes", 1 << 20, 1 << 21),
]


@pytest.mark.parametrize(("field", "less", "more"), COUNTS)
def test_structure_of_each_count_is_judged(field: str, less: int, more: int) -> None:
    name = field.replace("_", " ")
    for before, after, status in ((less, more, Status.REGRESSED), (more, less, Status.IMPROVED)):
        verdict = judged({field: before}, {field: after})
        assert (verdict.status, verdict.headline) == (status, "other counts")
        assert reasons(verdict, "counts") == [f"{name} {before} -> {after}"]
    assert [each for each, _, _ in COUNTS] == list(counts().__struct_fields__)


UNSEEN = {"peak_allocated_bytes": None}
NOT_JUDGED = ", not judged: another version of torch"


@pytest.mark.parametrize(
    ("before", "after", "changes", "status", "lines"),
    [
        ({}, {"memsets": 1, "copies": 1}, {}, "REGRESSED", ["copies 0 -> 1", "memsets 2 -> 1"]),
        ({}, {"memsets": 1}, {"ran": (GATE, UP, LAST)}, "REGRESSED", ["memsets 2 -> 1"]),
        (UNSEEN, {}, {}, "REGRESSED", ["peak allocated bytes None -> 1048576"]),
        ({}, UNSEEN, {}, "REGRESSED", ["peak allocated bytes 1048576 -> None"]),
        ({}, {"dispatcher_ops": 9}, {"machine": TORCH}, "PASS", [f"dispatcher ops 3 -> 9{NOT_JUDGED}"]),
        ({"peak_allocated_bytes": 9}, {"peak_allocated_bytes": 7}, {"machine": TORCH}, "PASS", [f"peak allocated bytes 9 -> 7{NOT_JUDGED}"]),
        ({}, {"copies": 1}, {"machine": TORCH}, "REGRESSED", ["copies 0 -> 1"]),
        ({}, {"dispatcher_ops": 9}, {"machine": fingerprint(driver="1")}, "REGRESSED", ["dispatcher ops 3 -> 9"]),
    ],
)  # fmt: skip
def test_structure_of_several_counts_gives_status(
    before: Any, after: Any, changes: Any, status: str, lines: list[str]
) -> None:
    verdict = judged(before, after, **changes)
    assert (verdict.status, reasons(verdict, "counts")) == (Status(status), lines)


@pytest.mark.parametrize(
    ("changes", "causes", "code"),
    [
        ({"graph_breaks": 1}, ["graph break: a branch that depends on data"], ["mlp  model.py:17  if x.sum() > 0:"]),
        ({"recompiles": 2}, ["recompile: k == 1 no longer holds, 2 times"], ["mlp  model.py:1\nmlp  model.py:2"]),
        ({"memsets": 9}, [], []),
    ],
)
def test_structure_names_lines_of_more_compiling(changes: dict[str, int], causes: list[str], code: list[str]) -> None:
    events = [CompileEvent("graph break", "a branch that depends on data", "model.py", 17, "if x.sum() > 0:", "mlp")]
    events += [CompileEvent("recompile", "k == 1 no longer holds", "model.py", line, module="mlp") for line in (1, 2)]
    verdict = judged(after=changes, compile_events=tuple(events))
    assert verdict.status is Status.REGRESSED
    assert (reasons(verdict, "cause"), reasons(verdict, "code")) == (causes, code)


CLONE = "aten::clone: Memcpy DtoD (Device -> Device), 1024 bytes"
ITEM = ("aten::item: Memcpy DtoH (Device -> Pinned), 2 bytes", "aten::item: cudaStreamSynchronize")


@pytest.mark.parametrize(
    ("before", "after", "causes"),
    [
        ({}, {"copies": 3}, [f"{CLONE}, 2 times", ITEM[0]]),
        ({}, {"copies": 3, "synchronizations": 1}, [f"{CLONE}, 2 times", *ITEM]),
        ({"copies": 3}, {"copies": 3, "memsets": 9}, []),
    ],
)
def test_structure_names_ops_and_lines_of_more_copies_and_waits(before: Any, after: Any, causes: list[str]) -> None:
    clone, item = (
        Origin("mlp", (SourceLine("model.py", line, code),)) for line, code in ((3, "x.clone()"), (5, "x.item()"))
    )
    verdict = judged(
        before,
        after,
        copying_ops=(CLONE, CLONE, ITEM[0]),
        copy_origins=(clone, clone, item),
        synchronizing_ops=ITEM[1:],
        synchronization_origins=(item,),
    )
    assert reasons(verdict, "cause") == causes
    lines = ["mlp  model.py:3  x.clone()", "mlp  model.py:5  x.item()", "mlp  model.py:5  x.item()"]
    assert reasons(verdict, "code") == lines[: len(causes)]


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
    ("expected", "changes"),
    [
        ({}, {}),
        ({"kinds": ("gemm", "gemm", "pointwise", "gemm")}, {}),
        ({"names": (GEMM, GEMM, FUSED, DOWN)}, {}),
        ({"names": ("nvjet_*", "*_TNT", "triton_poi_fused_*gelu*_0", "nvjet_sm90_tst_192x128_*")}, {}),
        ({"names": (BRACKETS,)}, {"kernels": (launched(BRACKETS, 1.0),)}),
        ({"memsets": 2, "occupancy_queries": 3, "launch_apis": ("cuLaunchKernelEx", "cuLaunch*")}, APIS),
    ],
)
def test_mismatches_of_declared_run_are_none(expected: dict[str, Any], changes: dict[str, Any]) -> None:
    assert mismatches(Expectation("seen", **expected), run(**changes)) == []


@pytest.mark.parametrize(
    "expected",
    [
        {"kinds": ("gemm", "pointwise", "gemm", "gemm")},
        {"kinds": ()},
        {"names": (GEMM, GEMM, FUSED)},
        {"names": (GEMM.upper(), GEMM, FUSED, DOWN)},
        {"names": ("nvjet", "*", "*", "*")},
        {"memsets": 0},
        {"occupancy_queries": 1},
        {"launch_apis": ("cudaLaunchKernel",)},
    ],
)
def test_mismatch_names_its_source(expected: dict[str, Any]) -> None:
    (line,) = mismatches(Expectation("seen on an H200", **expected), run())
    assert line.endswith("\n    source   seen on an H200")


def test_mismatches_list_each_launch_and_count() -> None:
    kinds = ("gemm", "gemm", "pointwise", "pointwise", "gemm")
    found = mismatches(Expectation("article", kinds=kinds, names=("*",), memsets=0), run(counts=counts(memsets=3)))
    launches = "1. gemm|2. gemm|3. pointwise|4. gemm   <- expected pointwise|5. (nothing)   <- expected gemm"
    assert found[0] == "\n    ".join(["kernel kinds: got 4, expected 5", *launches.split("|"), "source   article"])
    assert found[1].startswith("kernel names: got 4, expected 1\n")
    assert "\n    4. nvjet_sm90_tst_192x128_64x5_1x2_h_bz_coopB_TNT   <- expected (nothing)\n" in found[1]
    assert found[2] == "memsets: got 3, expected 0\n    source   article"


WORST_TO_BEST = "INVALID REGRESSED UNDECIDED INCOMPARABLE NO_BASELINE IMPROVED PASS NOT_JUDGED"


def test_worst_ranks_every_status() -> None:
    ranked = [Status(name) for name in WORST_TO_BEST.split()]
    assert set(ranked) == set(Status)
    for bad, good in itertools.combinations(ranked, 2):
        assert worst([bad, good]) is worst([good, bad]) is bad
    assert worst([]) is None


def test_verdict_text_has_its_reasons_below() -> None:
    short = Verdict(Status.REGRESSED, "mlp", "GPU time", "slower", (Reason("why", "one\ntwo"),))
    longer = short.because(Reason("baseline", "a\x1b[2Jb\x9b31m"))
    first, rest = str(short), str(longer).removeprefix(str(short))
    assert first == "mlp: REGRESSED  slower\n  why      one\n           two"
    assert rest.startswith("\n  baseline a")
    assert all(character.isprintable() or character == "\n" for character in rest)
    assert str(longer.only("why")) == first


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
