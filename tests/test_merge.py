"""Results of workers, shards and machines made one: what joins, what stays apart, and that nothing is lost."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelgauge.judge import Status
from kernelgauge.merge import merge
from kernelgauge.results import Results, WorkloadResult, decode_results, encode_results
from kernelgauge.run import Timer
from tests.builders import fingerprint
from tests.parts import ended, ids, measured, moment, part
from tests.test_results import verdict, workload

GPUS = ("aa", "bb", "cc")
NAMES = ("one", "two", "three", "four")
CPU = fingerprint(arch="cpu", device="CPU")


def cpu_part(name: str, **changes: Any) -> Results:
    return part(measured(name, gpu=None), gpu=None, fingerprint=CPU, **changes)


# -- what joins -----------------------------------------------------------------------------------------------------


def test_workers_with_a_share_each_become_one() -> None:
    (whole,) = merge([part("one", "two", gpu="aa"), part("three", gpu="bb", second=1)])
    assert ids([whole]) == [["one", "two", "three"]]
    assert [each.run.gpu for each in whole.workloads if each.run] == ["aa", "aa", "bb"]
    assert whole.gpu is None  # there are two
    assert [test.workload for test in whole.tests] == ["one", "two", "three"]
    assert (whole.started_at, whole.seconds) == (moment(0), 1.5)
    assert (whole.host, whole.commit, whole.exit_status, whole.warnings) == ("node1", "c0ffee00", 0, ())


def test_one_gpu_is_named() -> None:
    (whole,) = merge([part("one"), part("two", second=1)])
    assert whole.gpu == part("one").gpu


def test_part_of_a_replaced_worker_joins_on_its_gpu() -> None:
    crashed = part("one", "two", gpu="aa", tests=(ended("one"),))
    (whole,) = merge([part("four", gpu="bb"), crashed, part("two", "three", gpu="aa", second=9)])
    assert sorted(ids([whole])[0]) == ["four", "one", "three", "two"]
    assert sorted(test.workload or "" for test in whole.tests) == ["four", "one", "three", "two"]


def test_of_one_workload_the_later_run_counts_wherever_it_stands() -> None:
    early = part(measured("one", headline="early"), second=1)
    late = part(measured("one", headline="late"), second=5)
    for order in ([early, late], [late, early]):
        (whole,) = merge(order)
        assert [each.headline for each in whole.workloads[0].verdicts] == ["late"]


def test_equal_starts_are_taken_in_order() -> None:
    (whole,) = merge([part(measured("one", headline="first")), part(measured("one", headline="second"))])
    assert whole.workloads[0].verdicts[0].headline == "second"


def test_later_part_without_a_run_keeps_the_earlier_run() -> None:
    failed = workload(verdict(Status.INVALID, "measurement", workload="one"), name="one", run=None)
    (whole,) = merge([part("one"), part(failed, second=1, exit_status=1)])
    assert whole.workloads[0].run is not None
    assert {each.subject: each.status for each in whole.workloads[0].verdicts} == {
        "device time": Status.PASS,
        "measurement": Status.INVALID,
    }
    assert whole.status is Status.INVALID


def test_verdicts_on_other_subjects_are_kept() -> None:
    def judged(subject: str) -> WorkloadResult:
        return msgspec.structs.replace(measured("one"), verdicts=(verdict(subject=subject, workload="one"),))

    (whole,) = merge([part(judged("structure")), part(judged("device time"), second=1)])
    assert [each.subject for each in whole.workloads[0].verdicts] == ["structure", "device time"]


def test_replaced_failure_is_named_and_still_fails() -> None:
    failed = part(measured("one", Status.REGRESSED), tests=(ended("one", "failed"),), exit_status=1)
    (whole,) = merge([failed, part("one", second=1)])
    assert whole.status is Status.PASS
    assert [test.outcome for test in whole.tests] == ["passed"]
    assert whole.exit_status == 1
    assert "one: device time was REGRESSED (device time), and PASS in a later part, which counts" in whole.warnings
    assert any("test_device_time[one] failed, and did not in a later part" in each for each in whole.warnings)


def test_both_reports_of_a_test_whose_teardown_failed_are_kept() -> None:
    twice = (ended("one"), ended("one", "failed"))
    (whole,) = merge([part("one", tests=twice), part("two", second=1)])
    assert whole.tests == (*twice, ended("two"))


def test_workloads_stand_in_the_order_of_their_declaration() -> None:
    declared = {"perf": ("three", "one", "two")}
    (whole,) = merge([part("one", "extra", declared=declared), part("two", "three", second=1, declared=declared)])
    assert ids([whole]) == [["three", "one", "two", "extra"]]
    assert whole.declared == declared


def test_what_measured_nothing_joins_the_only_machine() -> None:
    absent = workload(name="two", run=None, unavailable="not installed")
    (whole,) = merge([part(absent, gpu=None, fingerprint=None, timers=()), part("one", timers=tuple(Timer), second=1)])
    assert ids([whole]) == [["two", "one"]]
    assert whole.fingerprint is not None
    assert whole.timers == tuple(Timer)


def test_what_measured_nothing_stays_apart_from_several_machines() -> None:
    absent = part(workload(name="two", run=None, unavailable="x"), gpu=None, fingerprint=None, second=2)
    assert ids(merge([part("one", gpu="aa"), part("one", gpu="bb", second=1), absent])) == [["one"], ["one"], ["two"]]


def test_parts_of_a_cpu_join_on_one_host_only() -> None:
    assert ids(merge([cpu_part("one"), cpu_part("one", second=1)])) == [["one"]]
    assert ids(merge([cpu_part("one"), cpu_part("one", second=1, host="node2")])) == [["one"], ["one"]]
    assert ids(merge([cpu_part("one", host=""), cpu_part("one", second=1, host="")])) == [["one"], ["one"]]


# -- what stays apart -------------------------------------------------------------------------------------------------


def test_a_workload_on_two_gpus_stays_apart() -> None:
    merged = merge([part("one", "two", gpu="aa"), part("one", "two", gpu="bb", second=1)])
    assert [(each.gpu, len(each.workloads)) for each in merged] == [("aa", 2), ("bb", 2)]


def test_shards_of_two_machines_join_by_gpu_whatever_the_order() -> None:
    parts = [part("one", gpu="aa"), part("two", gpu="bb", second=1), part("one", gpu="bb", second=2)]
    merged = merge([*parts, part("two", gpu="aa", second=3)])
    assert [(each.gpu, sorted(names)) for each, names in zip(merged, ids(merged), strict=True)] == [
        ("aa", ["one", "two"]),
        ("bb", ["one", "two"]),
    ]


@pytest.mark.parametrize(
    "changes",
    [
        {"fingerprint": fingerprint(device="NVIDIA B200")},
        {"fingerprint": fingerprint(driver="600.1")},
        {"fingerprint": fingerprint(torch="2.12")},
        {"commit": "decaf000"},
    ],
    ids=["device", "driver", "torch", "commit"],
)
def test_other_device_software_or_commit_stays_apart(changes: dict[str, Any]) -> None:
    assert ids(merge([part("one"), part("two", second=1, **changes)])) == [["one"], ["two"]]


def test_a_little_less_memory_keeps_nothing_apart() -> None:
    """It moves with the driver, and differs between the GPUs of one host."""
    assert ids(merge([part("one"), part("two", second=1, fingerprint=fingerprint(memory_bytes=1))])) == [["one", "two"]]


def test_unmeasured_workload_of_several_gpus_stays_apart() -> None:
    broken = workload(verdict(Status.INVALID, "measurement", workload="one"), name="one", run=None)
    joins = [part(broken, measured("two", gpu="aa"), gpu="aa"), part("three", gpu="bb", second=1)]
    several = part(broken, measured("four", gpu="cc"), gpu=None, second=2)
    merged = merge([*joins, several])
    assert ids(merged) == [["one", "two", "three"], ["one", "four"]]
    assert merge(merged) == merged


# -- what differs, and is named ---------------------------------------------------------------------------------------


def test_local_changes_of_the_working_tree_are_kept_and_named() -> None:
    (whole,) = merge([part("one"), part("two", second=1, commit="c0ffee00+")])
    assert whole.commit == "c0ffee00+"
    assert "merged from 2 commits: c0ffee00, c0ffee00+" in whole.warnings


def test_hosts_and_versions_that_differ_are_named() -> None:
    (whole,) = merge([part("one"), part("two", gpu="bb", second=1, host="node2", kernelgauge="0.2.0", commit=None)])
    assert (whole.host, whole.commit, whole.kernelgauge) == ("", "c0ffee00", "0.1.0")
    assert "merged from 2 hosts: node1, node2" in whole.warnings
    assert "merged from 2 versions of kernelgauge: 0.1.0, 0.2.0" in whole.warnings
    assert "merged from 2 commits: c0ffee00, (not known)" in whole.warnings


def test_clock_that_ran_backwards_shortens_nothing() -> None:
    (whole,) = merge([part("one", seconds=-40.0), part("two", second=10)])
    assert whole.seconds == 10.5


@pytest.mark.parametrize("said", ["yesterday", "", "9999-99-99T00:00:00", "0001-01-01T00:00:00+14:00"])
def test_invalid_start_counts_as_the_earliest(said: str) -> None:
    (whole,) = merge([part("one"), part(measured("one", headline="lost"), started_at=said, seconds=1e300)])
    assert whole.workloads[0].verdicts[0].headline == "device time"
    assert whole.seconds == 0.5


def test_starts_in_other_notations_are_one_time() -> None:
    zulu = part(measured("one", headline="first"), started_at="2026-11-20T19:10:00Z")
    later = part(measured("one", headline="second"), started_at="2026-11-20T21:10:01+02:00")
    (whole,) = merge([later, zulu])
    assert whole.workloads[0].verdicts[0].headline == "second"


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        ((0, 0), 0),
        ((0, 1), 1),
        ((1, 2), 2),
        ((2, 3), 3),
        ((4, 1), 1),
        ((0, 4), 4),
        ((5, 0), 0),
        ((5, 5), 5),
        ((5, 4), 4),
        ((0, 77), 77),
        ((77, 1), 1),
    ],
)
def test_the_exit_status_is_the_worst(statuses: tuple[int, int], expected: int) -> None:
    first, second = statuses
    (whole,) = merge([part("one", exit_status=first), part("two", second=1, exit_status=second)])
    assert whole.exit_status == expected


@pytest.mark.parametrize(
    ("asked", "left"),
    [
        ((("perf", "--perf-shard", "1/2"), ("perf", "--perf-shard=2/2")), ("perf",)),
        (
            (("perf", "--perf-shard=1/3"), ("perf", "--perf-shard=3/3")),
            ("perf", "--perf-shard", "1/3", "--perf-shard", "3/3"),
        ),
        ((("perf", "--perf-shard=2/2"), ("perf",)), ("perf",)),
        ((("perf", "-k", "mlp"), ("perf",)), ("perf", "-k", "mlp")),
    ],
)
def test_arguments_say_which_shards_there_are(
    asked: tuple[tuple[str, ...], tuple[str, ...]], left: tuple[str, ...]
) -> None:
    (whole,) = merge([part("one", arguments=asked[0]), part("two", second=1, arguments=asked[1])])
    assert whole.arguments == left


def test_nothing_is_nothing() -> None:
    assert merge([]) == []


# -- laws -------------------------------------------------------------------------------------------------------------


@st.composite
def some_part(draw: st.DrawFn, second: int) -> Results:
    gpu = draw(st.sampled_from([*GPUS, None]))
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
        "commit": draw(st.sampled_from([None, "aaaa", "aaaa+", "bbbb"])),
        "exit_status": draw(st.sampled_from([0, 1, 2, 5])),
        "tests": tuple(ended(name, draw(st.sampled_from(["passed", "failed"]))) for name in names),
        "arguments": draw(st.sampled_from([("perf",), ("perf", "--perf-shard=1/2"), ("perf", "--perf-shard=2/2")])),
        "seconds": draw(st.sampled_from([-1.0, 0.5, 33.25])),
    }
    kind = CPU if gpu is None else fingerprint(driver=draw(st.sampled_from(["580", "590"])))
    return part(*told, gpu=gpu, second=second, fingerprint=None if nothing else kind, **changes)


@st.composite
def some_parts(draw: st.DrawFn) -> list[Results]:
    return [draw(some_part(second)) for second in range(draw(st.integers(1, 7)))]


LAW = settings(max_examples=60, deadline=None)


@LAW
@given(some_parts())
def test_merging_what_was_merged_changes_nothing(parts: list[Results]) -> None:
    merged = merge(parts)
    assert merge(merged) == merged


@LAW
@given(some_parts(), st.randoms())
def test_order_of_parts_does_not_matter(parts: list[Results], chance: random.Random) -> None:
    shuffled = list(parts)
    chance.shuffle(shuffled)
    assert merge(shuffled) == merge(parts)


@LAW
@given(some_parts())
def test_nothing_that_failed_is_lost(parts: list[Results]) -> None:
    merged = merge(parts)
    kept = {each.headline for one in merged for told in one.workloads for each in told.verdicts if each.status.fails}
    warned = "\n".join(warning for one in merged for warning in one.warnings)
    last_of = {}  # what a later failure of the same says, an earlier one need not
    for each in parts:
        for told in each.workloads:
            for said in told.verdicts:
                if said.status.fails:
                    last_of[told.id, said.subject] = said
    assert all(said.headline in kept or f"({said.headline})" in warned for said in last_of.values())
    assert {test.node for each in parts for test in each.tests if test.outcome == "failed"} <= {
        test.node
        for one in merged
        for test in one.tests
        if test.outcome == "failed" or f"{test.node} failed, and did not in a later part" in warned
    }
    worst = {1: {1, 2}, 2: {2}}
    assert all(
        any(one.exit_status in allowed for one in merged)
        for status, allowed in worst.items()
        if any(each.exit_status == status for each in parts)
    )


@LAW
@given(some_parts())
def test_every_run_and_every_test_is_kept(parts: list[Results]) -> None:
    def places(some: list[Results]) -> set[tuple[str, str | None]]:
        return {(told.id, told.run.gpu) for each in some for told in each.workloads if told.run is not None}

    def nodes(some: list[Results]) -> set[str]:
        return {test.node for each in some for test in each.tests}

    merged = merge(parts)
    assert places(merged) == places(parts)
    assert nodes(merged) == nodes(parts)
    assert all(len({test.node for test in one.tests}) == len(one.tests) for one in merged)
    assert all(len({told.id for told in one.workloads}) == len(one.workloads) for one in merged)


@LAW
@given(st.lists(st.sampled_from(NAMES), unique=True, min_size=1), st.integers(1, 4))
def test_the_number_of_tests_is_that_of_all_shards(names: list[str], shards: int) -> None:
    parts = [part(*names[place::shards], second=place, gpu=f"gpu{place}") for place in range(shards)]
    merged = merge(parts)
    assert len(merged) == 1
    assert len(merged[0].tests) == len(names)
    assert sorted(ids(merged)[0]) == sorted(names)


@LAW
@given(some_parts())
def test_what_was_merged_is_results_as_any(parts: list[Results]) -> None:
    for one in merge(parts):
        assert decode_results(encode_results(one), where="x") == one


def test_parts_at_the_end_of_time_are_merged() -> None:
    last = "9999-12-31T23:59:59+00:00"
    (whole,) = merge([part("one", started_at=last), part("two", started_at=last, seconds=7.0)])
    assert ids([whole]) == [["one", "two"]]
