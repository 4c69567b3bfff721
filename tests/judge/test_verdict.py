"""Statuses in order, the text of a verdict, and two machines: the same, with other software, or foreign."""

from __future__ import annotations

import itertools

import pytest

from kernelgauge.judge.baseline import compare
from kernelgauge.judge.verdict import Reason, Status, Verdict, worst
from tests.builders import H200, fingerprint

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
