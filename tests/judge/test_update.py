"""The plan of an update: what is created, updated, kept and trimmed; and calibrations that join."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kernelgauge.errors import BaselineError
from kernelgauge.judge import (
    Action,
    Baseline,
    PlannedChange,
    Status,
    compare,
    from_run,
    joined,
    judge_time,
    plan_update,
)
from kernelgauge.run import Run, Timer
from tests.builders import (
    CONTROL_US,
    ELSEWHERE,
    H200,
    HERE,
    OTHER_SOURCE,
    WORKLOAD,
    baseline,
    calibrated,
    counts,
    drawn,
    fingerprint,
    mlp_kernels,
    pair,
    run,
)

KEEP, UPDATE = Action.KEEP, Action.UPDATE
CPU = fingerprint(device="a CPU", arch="cpu")
SLOWER = "GPU time 200.0 -> 220.0 us (+10.0 %)"


def steady(factor: float = 1.0) -> tuple[float, ...]:
    return (200.0 * factor,) * 4


def plan_one(old: Baseline | BaselineError, new: Baseline) -> PlannedChange:
    (change,) = plan_update([new], {new.workload: old}, {new.suite: {new.workload}})
    return change


def forgets(count: int) -> tuple[str, ...]:
    """The detail of a plan that replaces processes by one."""
    return (f"processes that it knows {count} -> 1 (kernelgauge calibrate records more)",) if count > 1 else ()


def host_only(us: float, control_us: float = CONTROL_US) -> Baseline:
    return baseline(host=(us,) * 4, end_to_end=None, host_control_us=control_us)


NOISY = (150.0, 250.0, 200.0, 260.0)  # what it says is no better than what is stored, and may be worse


@pytest.mark.parametrize(
    ("old", "new", "action"),
    [
        (drawn({1024: 10}), baseline(), KEEP),
        (baseline(), baseline(kernels=mlp_kernels(gate=56.4)), KEEP),  # kernel times within the noise
        (drawn({1024: 3, 512: 2}), baseline(kernels=mlp_kernels(xblock=512)), KEEP),
        (baseline(device=(200.0,)), baseline(device=(210.0,)), KEEP),  # one replicate
        (baseline(device=steady()), baseline(device=NOISY), KEEP),
        (baseline(host=steady()), baseline(host=steady(2), host_control_us=None), KEEP),
        (baseline(host=steady(), host_control_us=None), baseline(host=steady(2)), KEEP),
        *((host_only(50.0), host_only(50 * us / 14, us), KEEP) for us in (9.0, 16.0, 25.0)),
        (baseline(device=steady()), baseline(gpu=ELSEWHERE, device=steady(), host=steady(2), end_to_end=steady(3)), KEEP),
        # All is slower by 1.5 %, and so is the copy of our own: that is no change of the workload.
        (baseline(device=steady()), baseline(device=steady(1.015)), UPDATE),
        (baseline(device=steady()), baseline(device=steady(1.015), controls=pair(copy=30.45)), KEEP),
    ],
)  # fmt: skip
def test_plan_keeps_what_did_not_move(old: Baseline, new: Baseline, action: Action) -> None:
    change = plan_one(old, new)
    assert (change.action, change.baseline) == (action, None if action is KEEP else new)


@pytest.mark.parametrize("workloads", [1, 200])
def test_plan_moves_what_a_test_would_call_slower(workloads: int) -> None:
    """Each workload has three timers. A level of its own would move files that the tests call unchanged."""
    old = baseline(device=steady())
    others = [msgspec.structs.replace(old, workload=f"z-{number}") for number in range(workloads - 1)]
    moved, alone = 0, 0
    for step in range(10, 150, 4):
        observed = run(device=steady(1 + step / 10_000))
        judged, single = (
            judge_time(Timer.DEVICE, observed, old, compare(H200, H200), comparisons=number).status
            for number in (3 * workloads, 1)
        )
        (change, *_) = plan_update([from_run(observed, suite="perf"), *others], {WORKLOAD: old}, {})
        assert change.action is (UPDATE if judged is Status.REGRESSED else KEEP), step
        moved += judged is Status.REGRESSED
        alone += single is Status.REGRESSED
    assert 0 < moved <= alone < 35
    assert workloads == 1 or moved < alone


@pytest.mark.parametrize(
    ("changes", "detail"),
    [
        ({"counts": counts(memsets=3)}, "memsets 2 -> 3"),
        ({"counts": counts(peak_allocated_bytes=None)}, "peak allocated bytes 1048576 -> None"),
        ({"kernels": mlp_kernels()[:3]}, "other kernels"),
        ({"machine": fingerprint(driver="590.1")}, "driver 580.159.04 -> 590.1"),
        ({"machine": fingerprint(mig=True)}, "mig False -> True"),
        ({"suite": "perf/nightly"}, "suite perf -> perf/nightly"),
    ],
)
def test_plan_replaces_all_where_something_exact_differs(changes: dict[str, Any], detail: str) -> None:
    new = baseline(**changes)
    expected = PlannedChange(UPDATE, WORKLOAD, new, (detail, *forgets(5)))
    assert plan_one(drawn({1024: 3, 512: 2}), new) == expected
    unreadable = BaselineError("it is truncated")
    assert plan_one(unreadable, new) == PlannedChange(UPDATE, WORKLOAD, new, ("the stored file cannot be read",))


@pytest.mark.parametrize(
    ("changes", "details", "replaced"),
    [
        ({"kernels": mlp_kernels(xblock=256)}, ("a launch configuration that was not known: 3 now",), None),
        ({"device": steady(1.1), "kernels": mlp_kernels(xblock=512)}, (SLOWER, *forgets(2)), 1),
        (
            {"device": steady(), "kernels": mlp_kernels(source=OTHER_SOURCE)},
            ("generated source of its kernels", *forgets(3)),
            0,
        ),
    ],
)
def test_plan_replaces_only_the_entry_that_moved(changes: Any, details: tuple[str, ...], replaced: int | None) -> None:
    old, new = drawn({1024: 3, 512: 2}, device=steady()), baseline(**changes)
    change = plan_one(old, new)
    assert (change.action, change.details) == (UPDATE, details)
    expected, (fresh,) = list(old.entries), new.entries
    if replaced is None:
        expected.append(fresh)
    else:
        expected[replaced] = msgspec.structs.replace(fresh, draws=old.entries[replaced].draws)
    assert list(change.baseline.entries) == expected


def together(first: Baseline, *others: Baseline) -> Baseline:
    for other in others:
        first = joined(first, other, comparisons=3)
    return first


def around(us: float) -> tuple[float, ...]:
    return tuple(us * factor for factor in (0.9995, 1.0, 1.0005, 1.0)) * 4


def processes(gpu: str = HERE, device: float = 205.0, host: float = 50.0, **changes: Any) -> list[Run]:
    times = {"device": around(device), "host": around(host), "end_to_end": around(device + 20)}
    return [run(gpu=gpu, **(times | changes)) for _ in range(3)]


def joined_with(**changes: Any) -> Baseline:
    return together(calibrated(processes(), suite="perf"), calibrated(processes(**changes), suite="perf"))


SLOW_CHOICE = {"kernels": mlp_kernels(us=56.0, xblock=512)}


@pytest.mark.parametrize(
    ("new", "said"),
    [
        ({"counts": counts(memsets=3)}, r"^memsets 2 -> 3$"),
        ({"machine": fingerprint(driver="590.1")}, r"^driver \S+ -> 590\.1$"),
        ({"machine": fingerprint(power_limit_watts=500.0)}, r"^power_limit_watts 700\.0 -> 500\.0$"),
        ({"kernels": mlp_kernels(source=OTHER_SOURCE)}, r"^generated source of triton_"),
        ({"kernels": mlp_kernels(xblock=512, source=OTHER_SOURCE)}, r"^generated source of triton_"),
        *(
            ({"gpu": gpu, "device": us}, rf"^GPU time 205\.\d -> {us:.1f} us \([+-]")
            for gpu, us in ((HERE, 215.0), (HERE, 195.0), (ELSEWHERE, 225.0))
        ),
        ({"host": 80.0}, r"^host dispatch 50\.0 -> 80\.0 us"),
        ({"host": 80.0, **SLOW_CHOICE}, r"host dispatch 50\.0 -> 80\.0 us"),
        ({"device": 225.5, "controls": pair(33.0, 165.0)}, "the GPU's own speed"),
    ],
)
def test_joined_of_a_change_is_refused_and_named(new: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        joined_with(**new)


@pytest.mark.parametrize(
    ("new", "draws"),
    [
        ({"gpu": ELSEWHERE, "host": 80.0}, [6]),
        ({"gpu": ELSEWHERE, "device": 206.0, "controls": pair(copy=30.5)}, [6]),
        ({"gpu": ELSEWHERE, "machine": fingerprint(memory_bytes=150_100_000_000)}, [6]),
        ({"device": 224.0, **SLOW_CHOICE}, [3, 3]),  # another choice takes another time
    ],
)
def test_joined_takes_noise_of_machines(new: dict[str, Any], draws: list[int]) -> None:
    assert [entry.draws for entry in joined_with(**new).entries] == draws


def test_update_keeps_processes_that_a_disturbed_cpu_does_not_refute() -> None:
    def once(*times: float) -> Run:
        return msgspec.structs.replace(
            run(device=times, machine=CPU, gpu=None, controls={}, host=None, end_to_end=None), host="here"
        )

    stored = calibrated([once(199.9, 200.0, 200.0, 200.1) for _ in range(10)], suite="perf")
    noisy = from_run(once(120.0, 400.0, 90.0, 350.0), suite="perf")
    assert plan_one(stored, noisy).action is KEEP


@pytest.mark.parametrize(
    ("stored", "declared", "trimmed"),
    [
        (baseline(), {"perf": {"another"}}, True),
        (None, {"perf": set()}, False),  # unreadable
        (baseline(suite="perf/nightly"), {"perf": {"another"}}, False),
        (baseline(), {"perf": {WORKLOAD}}, False),  # declared and not selected
        (baseline(), {}, False),
        (baseline(), {"perf": set(), "perf/nightly": {WORKLOAD}}, False),  # moved to another suite
    ],
)
def test_plan_trims_only_what_its_suite_declares_no_more(stored: Any, declared: Any, trimmed: bool) -> None:
    trim = PlannedChange(Action.TRIM, WORKLOAD, None, ("the suite no longer declares it",))
    assert plan_update([], {WORKLOAD: stored}, declared) == ([trim] if trimmed else [])
