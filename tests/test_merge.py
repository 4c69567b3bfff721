"""Results of workers and shards made one: nothing is lost, and the worst counts."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelgauge.errors import ResultsError
from kernelgauge.judge.verdict import Status
from kernelgauge.report.words import headline
from kernelgauge.results import Results, TestResult, WorkloadResult, decode_results, encode_results
from kernelgauge.results.merge import join
from kernelgauge.run import Timer
from tests.builders import fingerprint
from tests.parts import ended, ids, measured, moment, part
from tests.test_results import verdict, workload

GPUS = ("aa", "bb", "cc")
NAMES = ("one", "two", "three", "four")
BROKEN = workload(verdict(Status.INVALID, "measurement", workload="one"), name="one", run=None)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"fingerprint": fingerprint(device="NVIDIA B200")}, "several models of GPU"),
        ({"commit": "decaf000"}, "several commits"),
    ],
)
def test_join_of_different_runs_is_refused(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ResultsError, match=text) as caught:
        join([part("one"), part("two", second=1, **changes)])
    assert "kernelgauge report" in str(caught.value)


def test_join_of_other_software_warns() -> None:
    whole = join([part("one"), part("two", second=1, fingerprint=fingerprint(driver="600.1"))])
    assert whole.warnings == ("merged from different machines: driver 580.159.04 -> 600.1",)
    assert join([part("one"), part("two", second=1, fingerprint=fingerprint(memory_bytes=1))]).warnings == ()


def test_join_describes_the_whole() -> None:
    declared = {"perf": ("three", "one", "two")}
    first = part("one", "extra", gpu="aa", declared=declared, timers=())
    whole = join([first, part("two", "three", gpu="bb", second=1, declared=declared, timers=tuple(Timer))])
    assert ids([whole]) == [["three", "one", "two", "extra"]]
    assert (whole.gpu, whole.started_at, whole.seconds, whole.timers) == (None, moment(0), 1.5, tuple(Timer))
    assert (whole.host, whole.commit, whole.exit_status, whole.warnings) == ("node1", "c0ffee00", 0, ())
    assert [test.workload for test in whole.tests] == ["one", "extra", "two", "three"]
    assert join([part("one"), part("two", second=1)]).gpu == part("one").gpu


def test_join_names_all_hosts_and_local_changes() -> None:
    other = part("two", gpu="bb", second=1, host="node2", kernelgauge="0.2.0", commit="c0ffee00+")
    whole = join([part("one"), other, part("three", second=2, commit=None)])
    assert (whole.host, whole.commit, whole.kernelgauge) == ("node1, node2", "c0ffee00+", "0.1.0")


@pytest.mark.parametrize(
    ("starts", "first"),
    [
        ((moment(1), moment(5)), "first"),
        ((moment(5), moment(1)), "second"),
        ((moment(0), moment(0)), "first"),
        (("2026-11-20T21:10:01+02:00", moment(0)), "second"),
        (("yesterday", moment(0)), "first"),
        ((moment(0), "0001-01-01T00:00:00+14:00"), "second"),
    ],
)
def test_parts_are_in_order_of_their_starts(starts: tuple[str, str], first: str) -> None:
    parts = [
        part(measured("one", headline=name), started_at=start)
        for name, start in zip(("first", "second"), starts, strict=True)
    ]
    whole = join(parts)
    headlines = [headline(each) for each in whole.workloads[0].verdicts]
    assert (headlines[0], set(headlines)) == (first, {"first", "second"})


def test_later_part_without_a_run_keeps_the_run() -> None:
    whole = join([part("one"), part(BROKEN, second=1, exit_status=1)])
    assert (whole.workloads[0].run is not None, whole.status) == (True, Status.INVALID)
    assert [each.subject for each in whole.workloads[0].verdicts] == ["measurement", "GPU time"]


def test_worst_of_a_workload_in_two_parts_counts() -> None:
    failed = part(measured("one", Status.REGRESSED), tests=(ended("one", "failed"),), exit_status=1)
    whole = join([failed, part("one", second=1)])
    assert (whole.status, whole.exit_status) == (Status.REGRESSED, 1)
    assert {test.outcome for test in whole.tests} == {"passed", "failed"}
    assert whole.workloads[0].time_verdict(Timer.DEVICE).status is Status.REGRESSED


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [(0, 0, 0), (0, 1, 1), (1, 2, 2), (2, 3, 3), (5, 0, 0), (5, 5, 5), (5, 1, 1)],
)
def test_exit_status_is_the_worst(first: int, second: int, expected: int) -> None:
    whole = join([part("one", exit_status=first), part("two", second=1, exit_status=second)])
    assert whole.exit_status == expected


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("--perf-shard 1/2", "--perf-shard=2/2", "--perf-shard 1/2 --perf-shard=2/2"),
        ("-k mlp", "--perf-shard 3/3", "-k mlp --perf-shard=3/3"),
        ("--perf-shard=2/2", "--perf-shard=2/2", "--perf-shard=2/2"),
        ("-k mlp", "", "-k mlp"),
    ],
)
def test_arguments_name_every_shard(first: str, second: str, expected: str) -> None:
    asked = [("perf", *text.split()) for text in (first, second)]
    whole = join([part("one", arguments=asked[0]), part("two", second=1, arguments=asked[1])])
    assert whole.arguments == ("perf", *expected.split())


@st.composite
def some_part(draw: st.DrawFn, second: int) -> Results:
    gpu = draw(st.sampled_from(GPUS))
    names = draw(st.lists(st.sampled_from(NAMES), unique=True, min_size=0, max_size=3))
    nothing = draw(st.integers(0, 5)) == 0
    told: list[WorkloadResult] = []
    for name in names:
        status = draw(st.sampled_from([Status.PASS, Status.REGRESSED, Status.UNDECIDED]))
        if nothing or draw(st.integers(0, 5)) == 0:
            invalid = verdict(Status.INVALID, "measurement", f"at {second}", workload=name)
            told.append(workload(invalid, name=name, run=None))
        else:
            told.append(measured(name, status, gpu=gpu, headline=f"at {second}"))
    changes: dict[str, Any] = {
        "host": draw(st.sampled_from(["node1", "node2", ""])),
        "commit": draw(st.sampled_from([None, "aaaa", "aaaa+"])),
        "exit_status": draw(st.sampled_from([0, 1, 2, 5])),
        "tests": tuple(ended(name, draw(st.sampled_from(["passed", "failed"]))) for name in names),
        "arguments": draw(st.sampled_from([("perf",), ("perf", "--perf-shard=1/2"), ("perf", "--perf-shard=2/2")])),
        "seconds": draw(st.sampled_from([-1.0, 0.5, 33.25])),
    }
    kind = fingerprint(driver=draw(st.sampled_from(["580", "590"])))
    return part(*told, gpu=gpu, second=second, fingerprint=None if nothing else kind, **changes)


@st.composite
def some_parts(draw: st.DrawFn) -> list[Results]:
    return [draw(some_part(second)) for second in range(draw(st.integers(1, 7)))]


@settings(max_examples=100, deadline=None)
@given(some_parts(), st.randoms())
def test_join_ignores_order(parts: list[Results], chance: random.Random) -> None:
    whole = join(parts)
    shuffled = list(parts)
    chance.shuffle(shuffled)
    assert join(shuffled) == join([whole]) == whole
    assert decode_results(encode_results(whole), where="x") == whole


@settings(max_examples=100, deadline=None)
@given(some_parts())
def test_join_loses_no_workload_test_or_failure(parts: list[Results]) -> None:
    def runs(some: list[Results]) -> set[str]:
        return {run.workload for one in some for run in one.runs}

    def tests(some: list[Results]) -> set[TestResult]:
        return {test for one in some for test in one.tests}

    def failures(some: list[Results]) -> set[tuple[str, str, str]]:
        told = [(each.id, verdict) for one in some for each in one.workloads for verdict in each.verdicts]
        return {(name, each.subject, headline(each)) for name, each in told if each.status.fails}

    whole = join(parts)
    assert (runs([whole]), tests([whole]), failures([whole])) == (runs(parts), tests(parts), failures(parts))
    assert len({each.id for each in whole.workloads}) == len(whole.workloads)
    assert whole.exit_status >= max((one.exit_status for one in parts if one.exit_status in (1, 2)), default=0)
