"""The plan of an update: what is created, updated, kept and trimmed; and calibrations that join."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pytest

from kernelgauge.judge import (
    Action,
    Baseline,
    PlannedChange,
    Recorded,
    Status,
    calibrated,
    compare,
    decode_baseline,
    encode_baseline,
    from_run,
    joined,
    judge_time,
    plan_update,
)
from kernelgauge.judge.update import comparison_count
from kernelgauge.run import ControlTime, Run, Timer
from tests.builders import (
    CONTROL_US,
    ELSEWHERE,
    H200,
    HERE,
    OTHER_SOURCE,
    WORKLOAD,
    baseline,
    counts,
    drawn,
    fingerprint,
    mlp_kernels,
    pair,
    run,
)

STEADY = (200.0, 200.0, 200.0, 200.0)
COMPARISONS = 3  # of a calibration with one workload


def steady(factor: float) -> tuple[float, ...]:
    return tuple(factor * value for value in STEADY)


# Half of it is no move and twice as much is one, on four replicates.
MOVES = {Timer.DEVICE: 0.005, Timer.END_TO_END: 0.2, Timer.HOST: 0.07}


def plan_one(old: Baseline | None, new: Baseline) -> PlannedChange:
    (change,) = plan_update([new], {new.workload: old}, {"perf": {new.workload}})
    return change


def test_plan_creates_what_is_not_stored() -> None:
    new = baseline(device=STEADY, host=None, end_to_end=None)
    (change,) = plan_update([new], {}, {"perf": {WORKLOAD}})
    assert change == PlannedChange(Action.CREATE, WORKLOAD, new, ("4 launches", "device time 200.0 us"))


@pytest.mark.parametrize("processes", [1, 10])
def test_plan_keeps_what_did_not_move(processes: int) -> None:
    change = plan_one(drawn({1024: processes}), baseline())
    assert change == PlannedChange(Action.KEEP, WORKLOAD, None)


@pytest.mark.parametrize("timer", Timer)
@pytest.mark.parametrize(
    ("share", "action"), [(0.5, Action.KEEP), (-0.5, Action.KEEP), (2.0, Action.UPDATE), (-2.0, Action.UPDATE)]
)
def test_plan_updates_a_time_that_moved(timer: Timer, share: float, action: Action) -> None:
    field = {Timer.DEVICE: "device", Timer.HOST: "host", Timer.END_TO_END: "end_to_end"}[timer]
    moved = [value * (1 + share * MOVES[timer]) for value in STEADY]
    change = plan_one(baseline(**{field: STEADY}), baseline(**{field: moved}))
    assert change.action is action
    assert [detail.startswith(f"{timer.label} 200.0 -> ") for detail in change.details] == (
        [True] if action is Action.UPDATE else []
    )


def test_plan_names_device_time_alone_where_only_it_moved() -> None:
    """The share of the host becomes another one, and its control is no common scale of the two."""
    slower = baseline(device=steady(1.1), kernels=mlp_kernels(us=58.6))
    (detail,) = plan_one(baseline(device=STEADY), slower).details
    assert detail.startswith("device time 200.0 -> 220.0 us (+10.0 %)")


# -- what is not decided keeps the file -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param(baseline(device=(200.0,)), baseline(device=(210.0,)), id="one replicate on both sides"),
        pytest.param(baseline(device=STEADY), baseline(device=(210.0,)), id="one replicate now"),
        pytest.param(baseline(device=STEADY), baseline(device=(150.0, 250.0, 200.0, 260.0)), id="noise"),
        pytest.param(baseline(host=STEADY), baseline(host=steady(2), host_control_us=None), id="no control now"),
        pytest.param(baseline(host=STEADY, host_control_us=None), baseline(host=steady(2)), id="no control before"),
    ],
)
def test_plan_keeps_a_file_where_nothing_is_decided(old: Baseline, new: Baseline) -> None:
    """What a noisy run says is no better than what is stored, and may be worse."""
    content = encode_baseline(old)
    plan = plan_one(old, new)
    assert (plan.action, plan.baseline) == (Action.KEEP, None)
    assert encode_baseline(old) == content


def test_plan_on_unknown_gpu_names_clocks_not_compared() -> None:
    plan = plan_one(baseline(), baseline(gpu=ELSEWHERE))
    assert plan.action is Action.KEEP
    assert [detail.partition(" ")[0] for detail in plan.details] == ["end", "host"]
    assert all(detail.endswith("not compared: the baseline does not know this machine") for detail in plan.details)


def test_plan_on_unknown_cpu_host_records_it() -> None:
    cpu = fingerprint(device="a CPU", arch="cpu")
    here, there = (
        from_run(msgspec.structs.replace(run(machine=cpu, gpu=None, controls={}), host=host), suite="perf")
        for host in ("here", "there")
    )
    plan = plan_one(here, there)
    assert plan.action is Action.UPDATE
    assert plan.details[0].endswith("not compared: the baseline does not know this machine")


@pytest.mark.parametrize("control_us", [9.0, 16.0, 25.0])
def test_plan_keeps_clocks_that_follow_the_host(control_us: float) -> None:
    follows = [50.0 * control_us / CONTROL_US] * 4
    old = baseline(host=(50.0,) * 4, end_to_end=None)
    assert plan_one(old, baseline(host=follows, end_to_end=None, host_control_us=control_us)).action is Action.KEEP


def test_plan_names_a_dispatch_change_at_equal_host_speed() -> None:
    old = baseline(host=(50.0,) * 4, end_to_end=None)
    slower = baseline(host=(100.0,) * 4, end_to_end=None, host_control_us=1.1 * CONTROL_US)
    assert plan_one(old, slower).details == ("host dispatch 50.0 -> 100.0 us (+81.8 %)",)


def test_plan_keeps_host_clocks_of_a_gpu_not_in_the_baseline() -> None:
    new = baseline(gpu=ELSEWHERE, device=STEADY, host=steady(2), end_to_end=steady(3))
    assert plan_one(baseline(device=STEADY), new).action is Action.KEEP


# -- the rule that judges -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workloads", [1, 200])
def test_plan_updates_what_a_test_would_call_slower(workloads: int) -> None:
    """Each workload has three timers. A level of its own would move files that the tests call unchanged."""
    old = baseline(device=STEADY)
    others = [msgspec.structs.replace(old, workload=f"{number}-x-bf16-1") for number in range(workloads - 1)]
    moved: list[bool] = []
    for percent in np.arange(0.1, 1.5, 0.02):
        observed = run(device=steady(1 + percent / 100))
        verdict = judge_time(Timer.DEVICE, observed, old, compare(H200, H200), comparisons=3 * workloads)
        (change,) = (
            each
            for each in plan_update([from_run(observed, suite="perf"), *others], {WORKLOAD: old}, {})
            if each.workload == WORKLOAD
        )
        moved.append(verdict.status is Status.REGRESSED)
        assert change.action is (Action.UPDATE if moved[-1] else Action.KEEP), percent
    # At the level of one comparison the first moves no later.
    alone = [
        judge_time(Timer.DEVICE, run(device=steady(1 + percent / 100)), old, compare(H200, H200)).status
        is Status.REGRESSED
        for percent in np.arange(0.1, 1.5, 0.02)
    ]
    assert 0 < sum(moved) <= sum(alone) < len(alone)
    assert workloads == 1 or sum(moved) < sum(alone)


def test_as_many_comparisons_are_made_as_timers_were_measured() -> None:
    assert comparison_count([]) == 1
    assert comparison_count([baseline(), baseline(host=None), baseline(host=None, end_to_end=None)]) == 3 + 2 + 1


def test_plan_predicts_an_unknown_gpu_by_its_reference_gemm() -> None:
    """Eight GPUs, and times that follow the GEMM by one half: 1 % more is no slow GPU where the GEMM is as usual."""
    speeds = [0.03 * (place / 7 - 0.5) for place in range(8)]
    old = calibrated(
        [
            run(device=steady(1 + speed / 2), gpu=str(place), controls=pair(gemm=150.0 * (1 + speed)))
            for place, speed in enumerate(speeds)
        ],
        suite="perf",
    )

    def planned(gemm: dict[str, ControlTime]) -> Action:
        return plan_one(old, baseline(device=steady(1.01), gpu="new", controls=gemm)).action

    assert planned(pair(gemm=150.0)) is Action.UPDATE
    assert planned(pair(gemm=150.0 * 1.02)) is Action.KEEP
    assert planned(pair(gemm=150.0, gemm_kernel="another")) is Action.KEEP


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
def test_plan_replaces_all_where_something_exact_differs(changes: dict[str, Any], detail: str) -> None:
    new, old = baseline(**changes), drawn({1024: 3, 512: 2})
    assert plan_update([new], {WORKLOAD: old}, {new.suite: {WORKLOAD}}) == [
        PlannedChange(
            Action.UPDATE,
            WORKLOAD,
            new,
            (detail, "processes that it knows 5 -> 1 (kernelgauge calibrate records more)"),
        )
    ]


# -- launch configurations ------------------------------------------------------------------------------------------


def test_plan_adds_an_unknown_configuration() -> None:
    old, new = drawn({1024: 3, 512: 2}), baseline(kernels=mlp_kernels(xblock=256))
    change = plan_one(old, new)
    assert change.action is Action.UPDATE
    assert change.details == ("a launch configuration that was not known: 3 now",)
    assert change.baseline is not None
    assert change.baseline.entries == (*old.entries, *new.entries)


def test_plan_replaces_only_the_entry_that_moved() -> None:
    old = drawn({1024: 3, 512: 2}, device=STEADY)
    new = baseline(device=steady(1.1), kernels=mlp_kernels(xblock=512))
    change = plan_one(old, new)
    assert change.action is Action.UPDATE
    assert change.baseline is not None
    first, second = change.baseline.entries
    assert first == old.entries[0]
    assert (second.draws, second.kernels, second.processes) == (2, new.entries[0].kernels, new.entries[0].processes)


def test_plan_keeps_a_known_configuration() -> None:
    old = drawn({1024: 3, 512: 2}, device=STEADY)
    for xblock in (1024, 512):
        new = baseline(device=STEADY, kernels=mlp_kernels(xblock=xblock))
        assert plan_one(old, new) == PlannedChange(Action.KEEP, WORKLOAD, None)


def test_plan_replaces_an_entry_of_another_source() -> None:
    old, new = drawn({1024: 3, 512: 2}), baseline(kernels=mlp_kernels(source=OTHER_SOURCE))
    change = plan_one(old, new)
    assert change.details == (
        "generated source of its kernels",
        "processes that it knows 3 -> 1 (kernelgauge calibrate records more)",
    )
    assert change.baseline is not None
    assert [entry.draws for entry in change.baseline.entries] == [3, 2]
    assert change.baseline.entries[0].kernels == new.entries[0].kernels
    assert change.baseline.entries[1] == old.entries[1]


@pytest.mark.parametrize(
    ("processes", "told"), [(1, []), (5, ["processes that it knows 5 -> 1 (kernelgauge calibrate records more)"])]
)
@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"device": steady(1.1)}, id="a time"),
        pytest.param({"device": STEADY, "kernels": mlp_kernels(source=OTHER_SOURCE)}, id="a source"),
    ],
)
def test_plan_names_the_processes_that_it_replaces(changes: dict[str, Any], processes: int, told: list[str]) -> None:
    change = plan_one(drawn({1024: processes}, device=STEADY), baseline(**changes))
    assert change.baseline is not None
    assert len(change.baseline.entries[0].processes) == 1
    assert list(change.details[1:]) == told


def test_plan_keeps_a_time_that_the_machine_explains() -> None:
    """All is slower by 1.5 %, and so is the copy of our own: that is no change of the workload."""
    old, slower = (baseline(device=steady(factor), controls=pair(copy=30.0)) for factor in (1.0, 1.015))
    with_the_copy = baseline(device=steady(1.015), controls=pair(copy=30.45))
    assert plan_one(old, slower).action is Action.UPDATE
    assert plan_one(old, with_the_copy).action is Action.KEEP


def test_plan_keeps_processes_of_other_configurations() -> None:
    """Those of the other configuration stay."""
    old = drawn({1024: 4, 512: 2}, device=STEADY)
    change = plan_one(old, baseline(device=steady(1.1), kernels=mlp_kernels(xblock=512)))
    assert change.baseline is not None
    assert [len(entry.processes) for entry in change.baseline.entries] == [4, 1]
    assert change.details[1:] == ("processes that it knows 2 -> 1 (kernelgauge calibrate records more)",)


def test_a_configuration_that_is_added_takes_no_processes_away() -> None:
    change = plan_one(drawn({1024: 3}), baseline(kernels=mlp_kernels(xblock=256)))
    assert not any("processes" in detail for detail in change.details)


def test_what_is_planned_can_be_stored_and_read_again() -> None:
    change = plan_one(drawn({1024: 3, 512: 2}), baseline(kernels=mlp_kernels(xblock=256)))
    assert change.baseline is not None
    content = encode_baseline(change.baseline)
    assert decode_baseline(content, where="x.json", workload=WORKLOAD) == change.baseline


# -- what is there already ------------------------------------------------------------------------------------------


def test_plan_ignores_kernel_times_within_the_noise() -> None:
    assert plan_one(baseline(), baseline(kernels=mlp_kernels(gate=56.4))).action is Action.KEEP


def test_a_timer_that_the_stored_one_lacks_is_added() -> None:
    change = plan_one(baseline(host=None), baseline(host=STEADY))
    assert change.action is Action.UPDATE
    assert change.details == ("host dispatch (none) -> 200.0 us",)


def test_plan_replaces_an_unreadable_file() -> None:
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


def test_plan_does_not_trim_what_was_measured() -> None:
    (change,) = plan_update([baseline()], {WORKLOAD: baseline()}, {"perf": set()})
    assert change.action is Action.KEEP


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


def test_plan_updates_a_workload_of_another_suite() -> None:
    new = baseline(suite="perf/nightly")
    plan = plan_update([new], {WORKLOAD: baseline(suite="perf")}, {"perf": set(), "perf/nightly": {WORKLOAD}})
    assert [change.action for change in plan] == [Action.UPDATE]


def test_plan_does_not_trim_a_workload_that_moved() -> None:
    plan = plan_update([], {WORKLOAD: baseline(suite="perf")}, {"perf": set(), "perf/nightly": {WORKLOAD}})
    assert plan == []


def test_a_timer_that_would_be_lost_is_named() -> None:
    change = plan_one(baseline(), baseline(host=None, counts=counts(memsets=3)))
    assert any("host dispatch" in detail for detail in change.details)


# -- two calibrations in one baseline ---------------------------------------------------------------------------------


def of_gpu(gpu: str, *xblocks: int, us: float = 38.0, **changes: Any) -> Baseline:
    return calibrated(
        [run(gpu=gpu, kernels=mlp_kernels(us=us, xblock=each), **changes) for each in xblocks], suite="perf"
    )


def together(*baselines: Baseline) -> Baseline:
    first, *others = baselines
    for other in others:
        first = joined(first, other, comparisons=COMPARISONS)
    return first


def test_joined_processes_are_in_the_entry_of_their_configuration() -> None:
    whole = together(of_gpu(HERE, 1024, 1024, 512), of_gpu(ELSEWHERE, 512, 512, 256))
    tuned = [(entry.kernels[2].identity.kernel_kwargs, entry.draws) for entry in whole.entries]
    assert tuned == [("XBLOCK=512", 3), ("XBLOCK=1024", 2), ("XBLOCK=256", 1)]
    assert [process.gpu for process in whole.entries[0].processes] == [HERE, ELSEWHERE, ELSEWHERE]


def test_a_kernels_time_is_then_the_mean_over_all_processes() -> None:
    whole = together(of_gpu(HERE, 1024, 1024, 1024, us=40.0), of_gpu(ELSEWHERE, 1024, us=44.0))
    assert whole.entries[0].kernels[2].device_time_us == 41.0


def test_draws_that_nobody_measured_do_not_count_in_it() -> None:
    """An update of a calibrated baseline keeps its draws, and one process."""
    (entry,) = of_gpu(HERE, 1024, us=50.0).entries
    updated = msgspec.structs.replace(of_gpu(HERE, 1024), entries=(msgspec.structs.replace(entry, draws=10),))
    (whole,) = together(updated, of_gpu(ELSEWHERE, *[1024] * 4, us=40.0)).entries
    assert (whole.draws, whole.kernels[2].device_time_us) == (14, 42.0)


def test_one_after_the_other_is_all_at_once() -> None:
    runs = [run(gpu=gpu, kernels=mlp_kernels(us=us)) for gpu, us in ((HERE, 38.0), (ELSEWHERE, 38.5), ("c", 39.0))]
    assert together(*(calibrated([each], suite="perf") for each in runs)) == calibrated(runs, suite="perf")


def test_joined_remembers_what_was_recorded_last() -> None:
    recorded = Recorded("2026-11-22T10:00:00+00:00", "abc", "0.1.0")
    old = of_gpu(HERE, 1024)
    new = calibrated([run(gpu=ELSEWHERE)], suite="perf", recorded=recorded)
    assert together(old, new).recorded == together(new, old).recorded == recorded


def test_joined_takes_a_baseline_of_schema_2() -> None:
    before = encode_baseline(of_gpu(HERE, 1024)).replace(b'"schema_version": 4', b'"schema_version": 2')
    old = decode_baseline(before, where="", workload=WORKLOAD)
    whole = together(old, of_gpu(ELSEWHERE, 1024))
    assert decode_baseline(encode_baseline(whole), where="", workload=WORKLOAD) == whole
    assert whole.entries[0].draws == 2


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"counts": counts(memsets=3)}, r"^memsets 2 -> 3$"),
        ({"machine": fingerprint(driver="590.1")}, r"^driver \S+ -> 590\.1$"),
        ({"machine": fingerprint(power_limit_watts=500.0)}, r"^power_limit_watts 700\.0 -> 500\.0$"),
    ],
)
def test_other_software_and_other_work_do_not_join_and_are_named(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        together(of_gpu(HERE, 1024), of_gpu(ELSEWHERE, 1024, **changes))


def test_a_memory_that_moved_by_some_mebibytes_is_no_other_machine() -> None:
    other = of_gpu(ELSEWHERE, 1024, machine=fingerprint(memory_bytes=150_100_000_000))
    assert together(of_gpu(HERE, 1024), other).entries[0].draws == 2


def test_kernels_of_another_source_are_other_code() -> None:
    other = calibrated([run(gpu=ELSEWHERE, kernels=mlp_kernels(source=OTHER_SOURCE))], suite="perf")
    with pytest.raises(ValueError, match=r"^generated source of triton_"):
        together(of_gpu(HERE, 1024), other)


def around(us: float) -> tuple[float, ...]:
    return tuple(us * factor for factor in (0.9995, 1.0, 1.0005, 1.0)) * 4


def processes(gpu: str, device: float = 205.0, host: float = 50.0) -> Sequence[Run]:
    return [run(gpu=gpu, device=around(device), host=around(host), end_to_end=around(device + 20)) for _ in range(3)]


@pytest.mark.parametrize(("gpu", "device"), [(HERE, 215.0), (HERE, 195.0), (ELSEWHERE, 225.0)])
def test_a_device_time_that_moved_is_a_change_and_no_noise(gpu: str, device: float) -> None:
    old = calibrated(processes(HERE), suite="perf")
    with pytest.raises(ValueError, match=rf"^device time 205\.\d -> {device:.1f} us \([+-]"):
        together(old, calibrated(processes(gpu, device), suite="perf"))


def test_a_host_clock_that_moved_is_one_on_the_same_host_only() -> None:
    old = calibrated(processes(HERE), suite="perf")
    with pytest.raises(ValueError, match=r"^host dispatch 50\.0 -> 80\.0 us"):
        together(old, calibrated(processes(HERE, host=80.0), suite="perf"))
    assert together(old, calibrated(processes(ELSEWHERE, host=80.0), suite="perf")).entries[0].draws == 6


def test_a_gpu_whose_copy_is_slower_as_copies_are_may_join() -> None:
    new = [run(gpu=ELSEWHERE, device=around(206.0), controls=pair(copy=30.5)) for _ in range(3)]
    assert together(calibrated(processes(HERE), suite="perf"), calibrated(new, suite="perf")).entries[0].draws == 6


def test_another_configuration_of_another_source_is_other_code() -> None:
    new = calibrated([run(gpu=ELSEWHERE, kernels=mlp_kernels(xblock=512, source=OTHER_SOURCE))], suite="perf")
    with pytest.raises(ValueError, match=r"^generated source of triton_"):
        together(of_gpu(HERE, 1024), new)


def test_a_host_that_dispatches_slower_shows_in_another_configuration_too() -> None:
    """Its GPU is known by another configuration, and the host's work is the same whatever was tuned."""
    there = [run(gpu=ELSEWHERE, host=around(50.0), kernels=mlp_kernels(xblock=512)) for _ in range(3)]
    old = calibrated([*processes(HERE), *there], suite="perf")
    new = [run(gpu=ELSEWHERE, host=around(80.0), device=around(205.0)) for _ in range(3)]
    with pytest.raises(ValueError, match=r"host dispatch 50\.0 -> 80\.0 us"):
        together(old, calibrated(new, suite="perf"))


def test_another_configuration_may_take_another_time() -> None:
    new = calibrated([run(device=around(224.0), kernels=mlp_kernels(us=56.0, xblock=512))] * 2, suite="perf")
    assert [entry.draws for entry in together(calibrated(processes(HERE), suite="perf"), new).entries] == [3, 2]
