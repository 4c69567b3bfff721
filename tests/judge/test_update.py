"""The plan of an update: what is created, updated, kept and trimmed."""

from __future__ import annotations

from typing import Any

import pytest

from kernelgauge.judge import DEFAULT_POLICIES, Action, Baseline, PlannedChange, plan_update
from kernelgauge.run import Timer
from tests.builders import WORKLOAD, baseline, counts, fingerprint, mlp_kernels

TIMES = (200.0, 200.0, 200.0)


def plan_one(old: Baseline | None, new: Baseline) -> PlannedChange:
    (change,) = plan_update([new], {new.workload: old}, {"perf": {new.workload}})
    return change


def test_what_is_not_stored_is_created_with_its_times() -> None:
    new = baseline(device=TIMES, host=None, end_to_end=None)
    (change,) = plan_update([new], {}, {"perf": {WORKLOAD}})
    assert change == PlannedChange(Action.CREATE, WORKLOAD, new, ("4 launches", "device time 200.0 us"))


def test_what_is_stored_alike_is_kept_and_not_written() -> None:
    change = plan_one(baseline(), baseline())
    assert change == PlannedChange(Action.KEEP, WORKLOAD, None)


@pytest.mark.parametrize("timer", Timer)
@pytest.mark.parametrize(
    ("share", "action"), [(0.3, Action.KEEP), (-0.3, Action.KEEP), (0.36, Action.UPDATE), (-0.36, Action.UPDATE)]
)
def test_a_time_is_updated_beyond_a_third_of_its_tolerance(timer: Timer, share: float, action: Action) -> None:
    field = {Timer.DEVICE: "device", Timer.HOST: "host", Timer.END_TO_END: "end_to_end"}[timer]
    moved = [value * (1 + share * DEFAULT_POLICIES[timer].tolerance) for value in TIMES]
    new = baseline(**{field: moved})
    change = plan_one(baseline(**{field: TIMES}), new)
    assert change.action is action
    assert change.baseline == (new if action is Action.UPDATE else None)
    assert [detail.startswith(f"{timer.label} 200.0 -> ") for detail in change.details] == (
        [True] if action is Action.UPDATE else []
    )


@pytest.mark.parametrize(
    ("changes", "detail"),
    [
        pytest.param({"counts": counts(memsets=3)}, "memsets 2 -> 3", id="a count"),
        pytest.param(
            {"counts": counts(peak_allocated_bytes=None)}, "peak allocated bytes 1048576 -> None", id="unseen"
        ),
        pytest.param({"kernels": mlp_kernels(xblock=512)}, "kernels or their launch configuration", id="configuration"),
        pytest.param({"kernels": mlp_kernels()[:3]}, "kernels or their launch configuration", id="a kernel"),
        pytest.param({"machine": fingerprint(driver="590.1")}, "driver 580.159.04 -> 590.1", id="the driver"),
        pytest.param({"machine": fingerprint(mig=True)}, "mig False -> True", id="the machine"),
        pytest.param({"suite": "perf/nightly"}, "suite perf -> perf/nightly", id="the suite"),
    ],
)
def test_what_is_exact_is_updated_whenever_it_differs(changes: dict[str, Any], detail: str) -> None:
    new = baseline(**changes)
    assert plan_update([new], {WORKLOAD: baseline()}, {new.suite: {WORKLOAD}}) == [
        PlannedChange(Action.UPDATE, WORKLOAD, new, (detail,))
    ]


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
