"""What a review makes of saved results beside the baselines: groups, evidence, and reasons against accepting."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kernelgauge.errors import BaselineError, NewerBaselineError
from kernelgauge.judge import (
    Action,
    Baseline,
    Candidate,
    Group,
    Limits,
    Recorded,
    Review,
    Reviewed,
    from_run,
    review,
)
from kernelgauge.run import Timer
from tests.builders import H200, OTHER_SOURCE, WORKLOAD, counts, drawn, fingerprint, launched, mlp_kernels, run

TIMES = (200.0, 200.0, 200.0, 200.0)
SLOWER = tuple(1.1 * value for value in TIMES)


def measured(*, at: str = "2026-11-20T19:10:12+00:00", workload: str = WORKLOAD, **changes: Any) -> Baseline:
    defaults: dict[str, Any] = {"device": TIMES, "workload": workload}
    return from_run(run(**(defaults | changes)), suite="perf", recorded=Recorded(at, "4e3642b", "0.1.0"))


def candidate(observed: Baseline | None, **changes: Any) -> Candidate:
    return Candidate(
        **({"workload": observed.workload if observed else WORKLOAD, "suite": "perf", "observed": observed} | changes)
    )


def reviewed(old: Baseline | BaselineError | None, new: Baseline | None, **changes: Any) -> Reviewed:
    stored = {} if old is None else {WORKLOAD: old}
    (found,) = review("NVIDIA H200", [candidate(new, **changes)], stored, {"perf": [WORKLOAD]}).reviewed
    return found


# -- groups -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "group"),
    [
        pytest.param({}, Group.SAME_SPEED, id="nothing moved"),
        pytest.param({"machine": fingerprint(driver="590.1")}, Group.SAME_SPEED, id="the driver alone"),
        pytest.param({"kernels": mlp_kernels(source=OTHER_SOURCE)}, Group.SAME_SPEED, id="another source"),
        pytest.param({"device": SLOWER}, Group.SPEED, id="slower"),
        pytest.param({"device": tuple(0.9 * us for us in TIMES)}, Group.SPEED, id="faster"),
        pytest.param({"host": (90.0,) * 4}, Group.SPEED, id="a slower host"),
        pytest.param({"kernels": mlp_kernels(xblock=512)}, Group.CONFIGURATION, id="another configuration"),
        pytest.param({"kernels": mlp_kernels()[::-1]}, Group.KERNELS, id="another order"),
        pytest.param({"kernels": mlp_kernels()[:3], "counts": counts(launches=3)}, Group.KERNELS, id="fewer kernels"),
        pytest.param({"counts": counts(memsets=3)}, Group.KERNELS, id="one more memset"),
        pytest.param({"counts": counts(dispatcher_ops=2)}, Group.KERNELS, id="one op less"),
        pytest.param({"machine": fingerprint(power_limit_watts=350.0)}, Group.NEW, id="another kind of machine"),
    ],
)
def test_a_workload_is_in_the_group_of_what_moved_most(changes: dict[str, Any], group: Group) -> None:
    found = reviewed(measured(at="before"), measured(**changes))
    assert found.group is group
    assert found.refused == ()
    assert found.waits == bool(changes)


def test_a_known_configuration_is_compared_with_its_own_entry() -> None:
    old = drawn({1024: 3, 512: 2}, device=TIMES)
    for xblock in (1024, 512):
        assert reviewed(old, measured(kernels=mlp_kernels(xblock=xblock))).group is Group.SAME_SPEED


def test_what_has_no_baseline_is_new_and_says_what_it_is() -> None:
    found = reviewed(None, measured(host=None, end_to_end=None))
    assert (found.group, found.evidence) == (Group.NEW, ("4 launches", "device time 200.0 us"))
    assert found.change is not None
    assert found.change.action is Action.CREATE


def test_what_its_suite_no_longer_declares_has_vanished() -> None:
    old = measured(workload="mlp-old-bf16-1")
    (found,) = review("NVIDIA H200", [], {old.workload: old}, {"perf": [WORKLOAD]}).reviewed
    assert (found.workload, found.group, found.waits) == (old.workload, Group.VANISHED, True)


def test_what_was_not_selected_was_not_measured_and_cannot_be_accepted() -> None:
    (found,) = review("NVIDIA H200", [], {WORKLOAD: measured()}, {"perf": [WORKLOAD]}).reviewed
    assert (found.group, found.change, found.evidence) == (Group.NOT_MEASURED, None, ("not selected in this run",))


def test_what_another_suite_stored_is_not_spoken_of() -> None:
    assert review("NVIDIA H200", [], {WORKLOAD: measured()}, {"elsewhere": []}).reviewed == ()


def test_what_could_not_be_measured_says_why() -> None:
    found = reviewed(measured(), None, why_not="triton is not installed")
    assert (found.group, found.evidence) == (Group.NOT_MEASURED, ("triton is not installed",))
    assert not found.waits
    assert reviewed(measured(), None, never=("it does not compile",)).refused == ("it does not compile",)


def test_workloads_stand_in_the_order_of_the_groups_and_of_their_names() -> None:
    new = [measured(workload=name) for name in ("c", "b", "a")]
    stored = {"b": measured(workload="b"), "c": measured(workload="c", device=SLOWER)}
    found = review("NVIDIA H200", [candidate(each) for each in new], stored, {"perf": ["a", "b", "c"]})
    assert [each.workload for each in found.reviewed] == ["b", "c", "a"]
    assert [each.workload for each in found.of(Group.SPEED)] == ["c"]


# -- evidence ---------------------------------------------------------------------------------------------------------


def test_a_slower_kernel_is_named_with_its_time() -> None:
    found = reviewed(measured(), measured(device=SLOWER, kernels=mlp_kernels(us=58.1)))
    assert found.evidence[0].startswith("triton_poi_fused__unsafe_view_gelu_mul_0  38.1 -> 58.1 us (+20.00)")
    assert "3 GEMMs unchanged" in found.evidence[1]
    device = found.times[0]
    assert (device.timer, device.moved) == (Timer.DEVICE, True)
    assert device.decision is not None
    assert device.decision.change.low is not None
    assert device.decision.change.low > 0


def test_another_launch_configuration_is_named_with_what_differs() -> None:
    evidence = "\n".join(reviewed(measured(), measured(kernels=mlp_kernels(xblock=512))).evidence)
    assert "XBLOCK 1024 -> 512, num_warps 4 -> 8" in evidence
    assert "that was not known" in evidence


def test_other_kernels_are_named_one_by_one() -> None:
    new = measured(kernels=(*mlp_kernels()[:3], launched("another", 53.0)))
    evidence = "\n".join(reviewed(measured(), new).evidence)
    assert "another  new: 53.0 us" in evidence
    assert "gone: 53.0 us" in evidence


def test_counts_are_named_and_the_environment_stands_once_for_all() -> None:
    machine = fingerprint(driver="590.1", torch="2.12.0", memory_bytes=1)
    new = [measured(workload=name, machine=machine, counts=counts(memsets=3)) for name in ("a", "b")]
    stored = {"a": measured(workload="a"), "b": measured(workload="b")}
    found = review("NVIDIA H200", [candidate(each) for each in new], stored, {})
    assert [(str(change), workloads) for change, workloads in found.environment] == [
        ("driver 580.159.04 -> 590.1", 2),
        ("torch 2.11.0+cu130 -> 2.12.0", 2),
        ("memory_bytes 150109880320 -> 1", 2),
    ]
    assert [each.evidence for each in found.reviewed] == [("memsets 2 -> 3",)] * 2


def test_when_the_baselines_were_recorded_stands_once_for_all() -> None:
    stored = {name: measured(workload=name, at=at) for name, at in (("a", "1"), ("b", "1"), ("c", "2"))}
    new = [candidate(measured(workload=name)) for name in stored]
    found = review("NVIDIA H200", new, stored, {})
    assert [(recorded and recorded.at, count) for recorded, count in found.recorded] == [("1", 2), ("2", 1)]


def test_accepting_that_forgets_processes_says_so() -> None:
    found = reviewed(drawn({1024: 3}, device=TIMES), measured(machine=fingerprint(driver="590.1")))
    assert found.evidence == ("processes that it knows 3 -> 1 (kernelgauge calibrate records more)",)


# -- reasons against it -----------------------------------------------------------------------------------------------


def test_what_speaks_against_a_candidate_stays_with_it() -> None:
    found = reviewed(
        measured(at="before"), measured(), doubts=("test_numerics failed",), never=("its id is no file name",)
    )
    assert found.refused == ("its id is no file name", "test_numerics failed")


def test_a_file_that_cannot_be_read_refuses_unless_it_is_forced() -> None:
    found = reviewed(BaselineError("it holds a merge conflict", next_command="git checkout"), measured())
    assert (found.group, found.doubts, found.never) == (Group.NEW, ("it holds a merge conflict; git checkout",), ())
    assert found.waits


def test_a_file_of_a_newer_version_is_never_replaced() -> None:
    found = reviewed(NewerBaselineError("written by a newer version"), measured())
    assert (found.doubts, found.never) == ((), ("written by a newer version",))


def test_a_file_that_cannot_be_read_and_was_not_measured_is_named() -> None:
    (found,) = review("NVIDIA H200", [], {"x": BaselineError("truncated")}, {"perf": []}).reviewed
    assert (found.workload, found.group, found.never) == ("x", Group.NOT_MEASURED, ("truncated",))


def test_what_cannot_be_decided_is_not_called_the_same_speed() -> None:
    noisy = measured(device=(150.0, 250.0, 200.0, 260.0))
    found = reviewed(measured(), noisy)
    assert found.group is Group.SPEED
    assert found.doubts == ("device time: UNDECIDED  inconclusive",)
    assert (
        reviewed(measured(), noisy, limits=Limits(sensitivity={Timer.DEVICE: 9.0})).refused == ()
    )  # all that was asked for
    told = reviewed(measured(), noisy, doubts=("device time: UNDECIDED  as the run said it",))
    assert told.doubts == ("device time: UNDECIDED  as the run said it",)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        pytest.param({"device": SLOWER}, "device time 220.0 -> 200.0 us (-9.1 %)", id="another time"),
        pytest.param({"kernels": mlp_kernels(xblock=512)}, "other launch configuration", id="another configuration"),
        pytest.param({"kernels": mlp_kernels()[::-1]}, "other kernels", id="other kernels"),
        pytest.param({"counts": counts(memsets=3)}, "memsets 3 -> 2", id="another count"),
        pytest.param({"machine": fingerprint(driver="570.1")}, "driver 570.1 -> 580.159.04", id="another driver"),
    ],
)
def test_two_runs_that_disagree_say_so(changes: dict[str, Any], said: str) -> None:
    found = reviewed(measured(at="first"), measured(), others=(measured(at="before", **changes),))
    (doubt,) = found.doubts
    assert doubt.startswith("another run of before disagrees: ")
    assert said in doubt


def test_two_runs_that_agree_within_noise_are_no_reason() -> None:
    other = measured(at="before", device=tuple(1.001 * us for us in TIMES))
    assert reviewed(measured(at="first"), measured(), others=(other,)).doubts == ()


# -- all of it --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "doubts", "settled"),
    [
        (measured(), measured(), (), True),
        (measured(), measured(machine=fingerprint(driver="590.1")), (), True),
        (measured(), measured(device=SLOWER), (), False),
        (measured(at="before"), measured(), ("a doubt",), False),
        (None, measured(), (), False),
    ],
)
def test_it_is_settled_if_everything_ran_as_fast_as_before(
    old: Baseline | None, new: Baseline, doubts: tuple[str, ...], settled: bool
) -> None:
    stored = {} if old is None else {WORKLOAD: old}
    found = review("NVIDIA H200", [candidate(new, doubts=doubts)], stored, {"perf": [WORKLOAD]})
    assert found.settled is settled


def test_what_was_not_selected_settles_nothing_and_unsettles_nothing() -> None:
    stored = {name: measured(workload=name) for name in ("a", "b")}
    assert review("NVIDIA H200", [candidate(measured(workload="a"))], stored, {"perf": ["a", "b"]}).settled
    failed = candidate(None, workload="b", never=("it does not compile",))
    assert not review("NVIDIA H200", [candidate(measured(workload="a")), failed], stored, {}).settled


def test_the_run_that_is_stored_is_settled_however_noisy_it_was() -> None:
    noisy = measured(device=(150.0, 250.0, 200.0, 260.0))
    found = reviewed(noisy, noisy, doubts=("device time: UNDECIDED  too noisy",))
    assert (found.group, found.refused, found.waits) == (Group.SAME_SPEED, (), False)
    assert found.evidence == ("accepted already",)
    another = measured(at="another", device=(150.0, 250.0, 200.0, 260.0))
    assert reviewed(noisy, another).refused != ()


def test_reviewing_changes_nothing_that_it_was_given() -> None:
    old, new = measured(), measured(device=SLOWER)
    before = msgspec.json.encode((old, new))
    found = review("NVIDIA H200", [candidate(new)], {WORKLOAD: old}, {})
    assert isinstance(found, Review)
    assert msgspec.json.encode((old, new)) == before
    assert found.device == H200.device
