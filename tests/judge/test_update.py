"""The plan of an update: what is created, updated, kept and trimmed."""

from __future__ import annotations

from typing import Any

import pytest

from kernelgauge.judge import (
    Action,
    Baseline,
    PlannedChange,
    decode_baseline,
    encode_baseline,
    plan_update,
)
from kernelgauge.run import Timer
from tests.builders import CONTROL_US, OTHER_SOURCE, WORKLOAD, baseline, counts, drawn, fingerprint, mlp_kernels

TIMES = (200.0, 200.0, 200.0, 200.0)
# Half of it is no move and twice as much is one, on four replicates.
MOVES = {Timer.DEVICE: 0.005, Timer.END_TO_END: 0.07, Timer.HOST: 0.07}


def times(factor: float) -> tuple[float, ...]:
    return tuple(factor * value for value in TIMES)


def plan_one(old: Baseline | None, new: Baseline) -> PlannedChange:
    (change,) = plan_update([new], {new.workload: old}, {"perf": {new.workload}})
    return change


def test_what_is_not_stored_is_created_with_its_times() -> None:
    new = baseline(device=TIMES, host=None, end_to_end=None)
    (change,) = plan_update([new], {}, {"perf": {WORKLOAD}})
    assert change == PlannedChange(Action.CREATE, WORKLOAD, new, ("4 launches", "device time 200.0 us"))


@pytest.mark.parametrize("processes", [1, 10])
def test_what_is_stored_alike_is_kept_and_not_written(processes: int) -> None:
    change = plan_one(drawn({1024: processes}), baseline())
    assert change == PlannedChange(Action.KEEP, WORKLOAD, None)


@pytest.mark.parametrize("timer", Timer)
@pytest.mark.parametrize(
    ("share", "action"), [(0.5, Action.KEEP), (-0.5, Action.KEEP), (2.0, Action.UPDATE), (-2.0, Action.UPDATE)]
)
def test_a_time_is_updated_where_it_would_be_judged_to_have_moved(timer: Timer, share: float, action: Action) -> None:
    field = {Timer.DEVICE: "device", Timer.HOST: "host", Timer.END_TO_END: "end_to_end"}[timer]
    moved = [value * (1 + share * MOVES[timer]) for value in TIMES]
    change = plan_one(baseline(**{field: TIMES}), baseline(**{field: moved}))
    assert change.action is action
    assert [detail.startswith(f"{timer.label} 200.0 -> ") for detail in change.details] == (
        [True] if action is Action.UPDATE else []
    )


def test_a_device_time_that_moved_is_no_move_of_the_latency_that_contains_it() -> None:
    """The share of the host becomes another one, and its control is no common scale of the two."""
    slower = baseline(device=times(1.1), kernels=mlp_kernels(us=58.6))
    (detail,) = plan_one(baseline(device=TIMES), slower).details
    assert detail.startswith("device time 200.0 -> 220.0 us (+10.0 %)")


def test_what_is_not_decided_is_updated_rather_than_kept() -> None:
    assert plan_one(baseline(device=(200.0,)), baseline(device=(200.0,))).action is Action.UPDATE


@pytest.mark.parametrize(("control_us", "action"), [(16.0, Action.KEEP), (25.0, Action.UPDATE), (9.0, Action.UPDATE)])
def test_a_baseline_of_a_host_of_another_speed_is_replaced(control_us: float, action: Action) -> None:
    follows = [50.0 * control_us / CONTROL_US] * 4
    old = baseline(host=(50.0,) * 4, end_to_end=None)
    change = plan_one(old, baseline(host=follows, end_to_end=None, host_control_us=control_us))
    assert change.action is action
    if action is Action.UPDATE:
        assert change.details[0] == "host dispatch was taken on a host of another speed"


@pytest.mark.parametrize(("before", "after"), [(None, CONTROL_US), (CONTROL_US, None)])
def test_a_baseline_whose_host_is_not_known_is_replaced(before: float | None, after: float | None) -> None:
    old, new = (baseline(host=TIMES, end_to_end=None, host_control_us=control) for control in (before, after))
    assert plan_one(old, new).action is Action.UPDATE


# -- what is exact --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "detail"),
    [
        pytest.param({"counts": counts(memsets=3)}, "memsets 2 -> 3", id="a count"),
        pytest.param(
            {"counts": counts(peak_allocated_bytes=None)}, "peak allocated bytes 1048576 -> None", id="unseen"
        ),
        pytest.param({"kernels": mlp_kernels()[:3]}, "other kernels", id="a kernel"),
        pytest.param({"machine": fingerprint(driver="590.1")}, "driver 580.159.04 -> 590.1", id="the driver"),
        pytest.param({"machine": fingerprint(mig=True)}, "mig False -> True", id="the machine"),
        pytest.param({"suite": "perf/nightly"}, "suite perf -> perf/nightly", id="the suite"),
    ],
)
def test_what_is_exact_is_updated_whenever_it_differs_and_takes_all_that_was_stored_with_it(
    changes: dict[str, Any], detail: str
) -> None:
    new = baseline(**changes)
    assert plan_update([new], {WORKLOAD: drawn({1024: 3, 512: 2})}, {new.suite: {WORKLOAD}}) == [
        PlannedChange(Action.UPDATE, WORKLOAD, new, (detail,))
    ]


# -- launch configurations ------------------------------------------------------------------------------------------


def test_a_configuration_that_was_not_known_is_added_and_the_others_stay_as_they_are() -> None:
    old, new = drawn({1024: 3, 512: 2}), baseline(kernels=mlp_kernels(xblock=256))
    change = plan_one(old, new)
    assert change.action is Action.UPDATE
    assert change.details == ("a launch configuration that was not known: 3 now",)
    assert change.baseline is not None
    assert change.baseline.entries == (*old.entries, *new.entries)


def test_only_the_entry_that_moved_is_replaced_and_it_keeps_its_draws() -> None:
    old = drawn({1024: 3, 512: 2}, device=TIMES)
    new = baseline(device=times(1.1), kernels=mlp_kernels(xblock=512))
    change = plan_one(old, new)
    assert change.action is Action.UPDATE
    assert change.baseline is not None
    first, second = change.baseline.entries
    assert first == old.entries[0]
    assert (second.draws, second.kernels, second.processes) == (2, new.entries[0].kernels, new.entries[0].processes)


def test_a_known_configuration_that_did_not_move_is_kept_however_many_there_are() -> None:
    old = drawn({1024: 3, 512: 2}, device=TIMES)
    for xblock in (1024, 512):
        new = baseline(device=TIMES, kernels=mlp_kernels(xblock=xblock))
        assert plan_one(old, new) == PlannedChange(Action.KEEP, WORKLOAD, None)


def test_another_source_of_a_known_configuration_replaces_its_entry() -> None:
    old, new = drawn({1024: 3, 512: 2}), baseline(kernels=mlp_kernels(source=OTHER_SOURCE))
    change = plan_one(old, new)
    assert change.details == ("generated source of its kernels",)
    assert change.baseline is not None
    assert [entry.draws for entry in change.baseline.entries] == [3, 2]
    assert change.baseline.entries[0].kernels == new.entries[0].kernels
    assert change.baseline.entries[1] == old.entries[1]


def test_what_is_planned_can_be_stored_and_read_again() -> None:
    change = plan_one(drawn({1024: 3, 512: 2}), baseline(kernels=mlp_kernels(xblock=256)))
    assert change.baseline is not None
    content = encode_baseline(change.baseline)
    assert decode_baseline(content, where="x.json", workload=WORKLOAD) == change.baseline


# -- what is there already ------------------------------------------------------------------------------------------


def test_kernel_times_alone_within_the_noise_of_the_total_move_nothing() -> None:
    assert plan_one(baseline(), baseline(kernels=mlp_kernels(gate=56.4))).action is Action.KEEP


def test_a_timer_that_the_stored_one_lacks_is_added() -> None:
    change = plan_one(baseline(host=None), baseline(host=TIMES))
    assert change.action is Action.UPDATE
    assert change.details == ("host dispatch (none) -> 200.0 us",)


def test_one_replicate_is_enough_to_see_a_move() -> None:
    assert plan_one(baseline(device=(200.0,)), baseline(device=(210.0,))).action is Action.UPDATE


def test_a_stored_file_that_cannot_be_read_is_replaced_and_said_so() -> None:
    new = baseline()
    assert plan_one(None, new) == PlannedChange(Action.UPDATE, WORKLOAD, new, ("the stored file cannot be read",))


def test_an_unreadable_file_that_was_not_measured_is_left_alone() -> None:
    assert plan_update([], {"other": None}, {"perf": set()}) == []


def test_what_its_suite_no_longer_declares_is_trimmed() -> None:
    old = baseline(workload="mlp-old-bf16-1")
    assert plan_update([], {old.workload: old}, {"perf": {WORKLOAD}}) == [
        PlannedChange(Action.TRIM, old.workload, None, ("the suite no longer declares it",))
    ]


def test_what_another_suite_stored_is_not_trimmed() -> None:
    old = baseline(workload="mlp-old-bf16-1", suite="perf/nightly")
    assert plan_update([], {old.workload: old}, {"perf": {WORKLOAD}}) == []


def test_what_is_declared_but_was_not_selected_is_not_trimmed() -> None:
    old = baseline()
    assert plan_update([], {WORKLOAD: old}, {"perf": {WORKLOAD}}) == []


def test_a_session_that_declares_nothing_trims_nothing() -> None:
    assert plan_update([], {WORKLOAD: baseline()}, {}) == []


def test_a_plan_is_sorted_by_workload() -> None:
    new = [baseline(workload=name) for name in ("c-x-bf16-1", "a-x-bf16-1")]
    stored = {"b-x-bf16-1": baseline(workload="b-x-bf16-1")}
    plan = plan_update(new, stored, {"perf": {"a-x-bf16-1", "c-x-bf16-1"}})
    assert [(change.workload[0], change.action) for change in plan] == [
        ("a", Action.CREATE),
        ("b", Action.TRIM),
        ("c", Action.CREATE),
    ]


def test_a_workload_that_moved_to_another_suite_is_updated_and_not_trimmed() -> None:
    new = baseline(suite="perf/nightly")
    plan = plan_update([new], {WORKLOAD: baseline(suite="perf")}, {"perf": set(), "perf/nightly": {WORKLOAD}})
    assert [change.action for change in plan] == [Action.UPDATE]


def test_a_workload_that_moved_and_was_not_selected_is_not_trimmed() -> None:
    plan = plan_update([], {WORKLOAD: baseline(suite="perf")}, {"perf": set(), "perf/nightly": {WORKLOAD}})
    assert plan == []


def test_a_timer_that_would_be_lost_is_named() -> None:
    change = plan_one(baseline(), baseline(host=None, counts=counts(memsets=3)))
    assert any("host dispatch" in detail for detail in change.details)
