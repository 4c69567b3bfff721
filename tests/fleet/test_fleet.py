"""What several machines say together: the build, one GPU, a difference of software, or nothing certain."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelgauge.fleet import Cause, Conclusion, Fleet, fleet
from kernelgauge.fleet.merging import merge
from kernelgauge.judge import RelativeChange, Status
from kernelgauge.results import Results
from tests.builders import GEMM, pair, run
from tests.fleet.builders import ended, machine, measured, moment, part, slower
from tests.test_results import verdict, workload

PASSED = {"one": Status.PASS, "two": Status.PASS}
SLOW = {"one": Status.REGRESSED, "two": Status.REGRESSED}
HALF = {"one": Status.REGRESSED, "two": Status.PASS}


def cause(*machines: Results) -> Cause:
    return conclusion(*machines).cause


def conclusion(*machines: Results) -> Conclusion:
    told = fleet(machines).conclusion
    assert told is not None
    return told


# -- who passes -------------------------------------------------------------------------------------------------------


def test_machines_that_all_pass_pass() -> None:
    told = fleet([machine("aa", PASSED), machine("bb", PASSED | {"two": Status.IMPROVED})])
    assert (told.passes, told.fails, told.conclusion, told.problems) == (True, False, None, ())
    assert [(each.id, each.status) for each in told.workloads] == [("one", Status.PASS), ("two", Status.IMPROVED)]


@pytest.mark.parametrize("status", [Status.UNDECIDED, Status.NO_BASELINE, Status.INCOMPARABLE])
def test_what_was_not_decided_is_neither_a_failure_nor_a_pass(status: Status) -> None:
    told = fleet([machine("aa", PASSED), machine("bb", {"one": status, "two": Status.PASS})])
    assert (told.passes, told.fails, told.undecided) == (False, False, 1)


def test_what_was_not_judged_is_no_pass_and_what_cannot_run_is_no_obstacle() -> None:
    silent = workload(name="two", run=run(workload="two"))
    assert not fleet([part("one", silent)]).passes
    absent = workload(name="two", run=None, unavailable="not installed")
    assert fleet([part("one", absent)]).passes
    assert not fleet([part(absent)]).passes  # nothing was judged


@pytest.mark.parametrize(
    "changes",
    [{"exit_status": 2}, {"exit_status": 1}, {"exit_status": 5}, {"tests": (ended("one", "failed"),)}],
)
def test_a_run_that_failed_without_a_verdict_fails_the_fleet(changes: dict[str, Any]) -> None:
    told = fleet([machine("aa", PASSED), machine("bb", PASSED, **changes)])
    assert told.fails
    assert not told.passes
    assert len(told.problems) == 1
    assert moment(0) in told.problems[0]


def test_no_results_are_no_pass() -> None:
    assert fleet([]).problems == ("no results: nothing was measured",)
    assert not fleet([]).passes


def test_a_part_that_cannot_be_read_fails_the_fleet() -> None:
    told = fleet([machine("aa", PASSED)], lost=["b/results.json: truncated"])
    assert (told.passes, told.fails, told.problems) == (False, True, ("b/results.json: truncated",))


def test_a_missing_shard_fails_the_fleet() -> None:
    first = part("one", arguments=("perf", "--perf-shard=1/3"))
    third = part("two", second=1, gpu="bb", arguments=("perf", "--perf-shard", "3/3"))
    told = fleet(merge([first, third]))
    assert told.problems == ("shard 2/3 is missing: no part says that it measured it",)
    assert not told.passes
    second = part("three", second=1, gpu="cc", arguments=("perf", "--perf-shard", "2/3"))
    assert fleet(merge([first, second, third])).passes
    assert fleet(merge(merge([first, second, third]))).passes


def test_of_very_many_missing_shards_the_first_are_named_and_the_others_counted() -> None:
    shards = [option for count in range(2, 302) for option in ("--perf-shard", f"1/{count}")]
    told = fleet([part("one", arguments=("perf", *shards, "--perf-shard", "2/9999"))])
    assert len(told.problems) == 21
    assert told.problems[0] == "shard 2/2 is missing: no part says that it measured it"
    assert told.problems[-1] == f"and {sum(range(1, 301)) + 9998 - 20} more of the shards"


@pytest.mark.parametrize(("count", "problems"), [(20_000, 21), (10**6, 21), (10**6 + 1, 0), (10**4000, 0)])
def test_nothing_counts_to_the_number_of_shards_that_a_file_has(count: int, problems: int) -> None:
    told = fleet([part("one", arguments=("perf", f"--perf-shard=1/{count}"))])
    assert len(told.problems) == problems


def test_shards_on_machines_that_do_not_join_are_all_there() -> None:
    shards = [
        machine(gpu, {name: Status.PASS}, driver=driver, arguments=("perf", f"--perf-shard={shard}"))
        for gpu, name, driver, shard in (("aa", "one", "580", "1/2"), ("bb", "two", "590", "2/2"))
    ]
    assert len(merge(shards)) == 2
    assert fleet(merge(shards)).passes


def test_declared_workloads_that_nobody_measured_are_noted() -> None:
    declared = {"perf": ("one", "two", "three", "four", "five", "six")}
    assert fleet([part("one", declared=declared)]).notes == (
        "5 of 6 declared workloads were measured nowhere: two, three, four and 2 more",
    )


def test_a_gpu_that_stands_there_twice_with_the_same_software_is_noted() -> None:
    twice = [part("one"), part(measured("one", shape=(1,)), second=1)]
    (note,) = fleet(merge(twice)).notes
    assert "are one GPU with the same software, and were not joined" in note


# -- the build --------------------------------------------------------------------------------------------------------


def test_every_gpu_slower_alike_is_the_build() -> None:
    told = conclusion(machine("aa", HALF), machine("bb", HALF), machine("cc", HALF))
    assert told.cause is Cause.BUILD
    assert told.evidence[0] == "every GPU that could decide is slower alike: one"
    assert told.evidence[1].startswith("the same kernels on each: triton_poi_fused")
    assert told.evidence[-1] == "no GPU's reference kernels are slower than those of its kind"


def test_a_gpu_that_could_not_decide_does_not_acquit_the_build() -> None:
    undecided = {"one": Status.UNDECIDED, "two": Status.PASS}
    assert cause(machine("aa", HALF), machine("bb", HALF), machine("cc", undecided)) is Cause.BUILD


def test_one_gpu_alone_cannot_tell() -> None:
    told = conclusion(machine("aa", HALF))
    assert told.cause is Cause.MIXED
    assert "there is nothing to compare with" in told.evidence[0]
    assert cause(machine("aa", SLOW, commit="a"), machine("aa", SLOW, commit="b")) is Cause.MIXED


@pytest.mark.parametrize("change", [slower(0.5), RelativeChange(0.5, None, None, 0.999)])
def test_slowdowns_of_other_sizes_are_not_alike(change: RelativeChange) -> None:
    assert cause(machine("aa", SLOW), machine("bb", SLOW, change=change)) is Cause.MIXED


def test_slowdowns_whose_intervals_meet_are_alike() -> None:
    wide = RelativeChange(0.3, 0.05, 0.6, 0.999)
    assert cause(machine("aa", SLOW), machine("bb", SLOW, change=wide)) is Cause.BUILD


def test_slowdowns_of_other_kernels_are_not_alike() -> None:
    assert cause(machine("aa", SLOW), machine("bb", SLOW, kernel=GEMM)) is Cause.MIXED


def test_other_subjects_are_not_alike() -> None:
    def other(gpu: str, subject: str) -> Results:
        said = verdict(Status.REGRESSED, subject, workload="one", change=None)
        return part(workload(said, name="one", run=run(workload="one", gpu=gpu)), gpu=gpu)

    assert cause(other("aa", "structure"), other("bb", "numerics")) is Cause.MIXED
    assert cause(other("aa", "structure"), other("bb", "structure")) is Cause.BUILD


# -- one GPU, one host, one kind --------------------------------------------------------------------------------------


def test_one_gpu_slow_in_several_workloads_is_that_gpu() -> None:
    told = conclusion(machine("aa", PASSED), machine("bb", SLOW), machine("cc", PASSED))
    assert told.cause is Cause.GPU
    assert told.evidence[0] == (
        "it fails on NVIDIA H200 bb on node1, and passes on NVIDIA H200 aa on node1, NVIDIA H200 cc on node1"
    )


def test_one_workload_on_one_gpu_is_not_enough_without_its_control_pair() -> None:
    told = conclusion(machine("aa", PASSED), machine("bb", HALF), machine("cc", PASSED))
    assert told.cause is Cause.MIXED
    assert "measure it there again" in told.evidence[1]


def test_a_control_pair_that_is_slower_than_those_of_its_kind_is_evidence() -> None:
    slow = machine("bb", HALF, controls=pair(copy=31.5))
    told = conclusion(machine("aa", PASSED), slow, machine("cc", PASSED, controls=pair(copy=30.03)))
    assert told.cause is Cause.GPU
    assert told.evidence[-1] == (
        "reference kernels of NVIDIA H200 bb on node1 against the median of its kind: copy +4.9 %, gemm +0.0 %"
    )


@pytest.mark.parametrize(
    ("controls", "slow"),
    [
        (pair(copy=30.2), False),  # as far as GPUs of a kind differ
        (pair(copy=28.0), False),  # faster
        (pair(gemm=154.0), False),
        (pair(gemm=170.0), True),
        (pair(gemm=130.0), False),
        (pair(copy=31.5, gemm=150.0), True),
        (pair(copy=31.5, gemm=1.0, gemm_kernel="another"), True),
    ],
)
def test_a_control_pair_is_slower_beyond_what_gpus_differ_by(controls: Any, slow: bool) -> None:
    told = fleet([machine("aa", PASSED), machine("bb", PASSED, controls=controls), machine("cc", PASSED)])
    assert [each.is_slower for each in told.machines] == [False, slow, False]


def test_a_gpu_that_cannot_be_trusted_is_that_gpu() -> None:
    broken = dict.fromkeys(PASSED, Status.INVALID)
    told = fleet([machine("aa", PASSED), machine("bb", broken)])
    assert told.conclusion is not None
    assert told.conclusion.cause is Cause.GPU
    assert not told.passes


def test_what_no_gpu_can_measure_is_not_explained() -> None:
    broken = dict.fromkeys(PASSED, Status.INVALID)
    told = conclusion(machine("aa", broken), machine("bb", broken))
    assert told.cause is Cause.MIXED
    assert "no GPU could measure it" in told.evidence[0]


def test_all_gpus_of_one_host_are_that_host() -> None:
    bad = [machine(gpu, SLOW, host="node1") for gpu in ("aa", "bb")]
    good = [machine(gpu, PASSED, host="node2") for gpu in ("cc", "dd")]
    assert cause(*bad, *good) is Cause.HOST
    assert cause(*bad, *good, machine("ee", PASSED, host="node1")) is Cause.MIXED


def test_other_kinds_of_gpu_acquit_none_of_this_kind() -> None:
    other = machine("cc", PASSED, device="NVIDIA B200")
    told = conclusion(machine("aa", SLOW), machine("bb", SLOW), other)
    assert told.cause is Cause.KIND
    assert told.evidence[0] == "it fails on NVIDIA H200, and passes on NVIDIA B200"
    assert cause(machine("aa", SLOW), other) is Cause.KIND


# -- software ---------------------------------------------------------------------------------------------------------


def test_a_commit_that_separates_is_named_first() -> None:
    told = conclusion(machine("aa", SLOW, commit="bad"), machine("bb", PASSED, commit="good"))
    assert told.cause is Cause.SOFTWARE
    assert told.evidence[0] == "commit bad where it fails, good where it passes"


def test_a_driver_that_separates_is_named() -> None:
    told = conclusion(machine("aa", SLOW, driver="600"), machine("bb", PASSED), machine("cc", SLOW, driver="600"))
    assert told.cause is Cause.SOFTWARE
    assert told.evidence[0] == "driver 600 where it fails, 580.159.04 where it passes"


def test_software_that_both_have_separates_nothing() -> None:
    machines = [machine("aa", SLOW, driver="600"), machine("bb", PASSED), machine("cc", PASSED, driver="600")]
    assert cause(*machines) is Cause.GPU


def test_a_commit_that_is_not_known_separates_nothing() -> None:
    assert cause(machine("aa", SLOW, commit=None), machine("bb", PASSED)) is Cause.GPU


def test_the_same_gpu_at_two_commits_is_two_machines() -> None:
    told = fleet(merge([machine("aa", SLOW, commit="bad"), machine("aa", PASSED, commit="good", second=1)]))
    assert [each.name for each in told.machines] == [
        "NVIDIA H200 aa on node1 at bad",
        "NVIDIA H200 aa on node1 at good",
    ]
    assert told.conclusion is not None
    assert told.conclusion.cause is Cause.SOFTWARE


# -- mixed ------------------------------------------------------------------------------------------------------------


def test_two_causes_are_both_told() -> None:
    first = {"one": Status.REGRESSED, "two": Status.REGRESSED}
    told = conclusion(machine("aa", first), machine("bb", first | {"two": Status.PASS}))
    assert told.cause is Cause.MIXED
    assert told.evidence[0].startswith("the build: one: NVIDIA H200 aa on node1, NVIDIA H200 bb on node1 are slower")
    assert told.evidence[1].startswith("this GPU: two: it fails on NVIDIA H200 aa")


def test_joined_workers_are_machines_of_their_own() -> None:
    (joined,) = merge([part("one", gpu="aa"), part("two", gpu="bb", second=1)])
    assert [(each.gpu, len(each.workloads)) for each in fleet([joined]).machines] == [("aa", 1), ("bb", 1)]


# -- laws -------------------------------------------------------------------------------------------------------------

STATUSES = st.dictionaries(st.sampled_from(["one", "two", "three"]), st.sampled_from(list(Status)), max_size=3)
FLEETS = st.lists(
    st.builds(
        machine,
        st.sampled_from(["aa", "bb", "cc"]),
        STATUSES,
        host=st.sampled_from(["node1", "node2"]),
        commit=st.sampled_from([None, "a", "b"]),
        device=st.sampled_from(["NVIDIA H200", "NVIDIA B200"]),
        second=st.integers(0, 99),
    ),
    max_size=5,
)


@settings(max_examples=200, deadline=None)
@given(FLEETS)
def test_what_failed_anywhere_fails_the_fleet_and_is_concluded_on(results: list[Results]) -> None:
    told: Fleet = fleet(merge(results))
    failed = {w.id for each in merge(results) for w in each.workloads if w.status is not None and w.status.fails}
    assert {each.id for each in told.workloads if each.conclusion is not None} == failed
    assert told.fails >= bool(failed)
    assert not (told.passes and (told.fails or told.undecided))
    assert len({each.name for each in told.machines}) == len(told.machines)
    assert told.conclusion is None or told.conclusion.evidence


@settings(max_examples=200, deadline=None)
@given(FLEETS, st.randoms())
def test_the_conclusion_does_not_depend_on_the_order_of_machines(results: list[Results], chance: Any) -> None:
    shuffled = list(results)
    chance.shuffle(shuffled)
    one, other = fleet(results).conclusion, fleet(shuffled).conclusion
    assert (one and one.cause) == (other and other.cause)
