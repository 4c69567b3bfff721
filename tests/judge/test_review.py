"""A run beside its stored baseline: the review, the plan of what is written, and processes that
join a baseline.
"""

import re
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from kernelgauge.errors import BaselineError, NewerBaselineError
from kernelgauge.judge import Status, review
from kernelgauge.judge.baseline import (
    Baseline,
    Process,
    Recorded,
    decode_baseline,
    encode_baseline,
    from_run,
)
from kernelgauge.judge.evidence import FileNote, RunDoubt
from kernelgauge.judge.review import (
    Action,
    Group,
    PlannedChange,
    Reviewed,
    without_times,
)
from kernelgauge.judge.structure import judge_structure
from kernelgauge.judge.timing import Limits
from kernelgauge.report.stored import doubt_text, review_lines
from kernelgauge.run import COMPILE_TIMERS, KernelChoice, Run, Sample, Timer
from kernelgauge.trace import KernelRecord
from kernelgauge.trace.kernel import Resources
from tests import builders
from tests.builders import (
    ELSEWHERE,
    HERE,
    OTHER_SOURCE,
    baseline,
    calibrated,
    counts,
    fingerprint,
    judged_time,
    pair,
    reviewed_run,
    run,
    with_added,
)

NOISY = (150.0, 250.0, 200.0, 260.0)
DRIVER, MIG = fingerprint(driver="590.1"), fingerprint(mig=True)
XBLOCK_512 = {"kernels": builders.mlp_kernels(xblock=512)}
SOURCE = {"kernels": builders.mlp_kernels(source=OTHER_SOURCE)}


def steady(factor: float = 1.0) -> tuple[float, ...]:
    return (200.0 * factor,) * 4


def measured(**changes: Any) -> Baseline:
    return from_run(
        run(**{"device": steady()} | changes),
        suite="perf",
        recorded=Recorded("then", "4e3642b", "0.1.0"),
    )


def reviewed(
    old: Baseline | BaselineError | None, *, of: dict[str, Any] | None = None, **changes: Any
) -> Reviewed:
    """A review of a run that differs from the usual one in `of`, beside a baseline."""
    recorded = Recorded("thereafter", "4e3642b", "0.1.0")
    observed = run(**{"device": steady(), "end_to_end": (301.0,) * 4} | (of or {}))
    return reviewed_run(observed, old, **{"recorded": recorded} | changes)


@pytest.mark.parametrize(
    ("changes", "group"),
    [
        ({}, Group.SAME_SPEED),
        ({"samples": {}}, Group.UNTIMED),
        (SOURCE, Group.SAME_SPEED),
        ({"device": steady(1.1)}, Group.SPEED),
        ({"device": steady(0.9)}, Group.SPEED),
        ({"host": (90.0,) * 4}, Group.SPEED),
        (XBLOCK_512, Group.CONFIGURATION),
        ({"kernels": builders.mlp_kernels()[::-1]}, Group.KERNELS),
        ({"counts": counts(dispatcher_ops=2)}, Group.KERNELS),
        ({"machine": fingerprint(power_limit_watts=350.0)}, Group.NEW),
    ],
)
def test_review_group_is_what_moved_most(changes: dict[str, Any], group: Group) -> None:
    found = reviewed(measured(), of=changes)
    assert (found.group, found.doubts) == (group, ())
    assert found.change.action is (KEEP if changes in ({}, {"samples": {}}) else UPDATE)


KEEP, UPDATE = Action.KEEP, Action.UPDATE
INCONCLUSIVE = "GPU time 200.0 -> 210.1 us  "
CONFLICT = BaselineError("it holds a merge conflict", next_command="git checkout")
OF_NOISE = {"of": {"device": NOISY}}
# another time of them is no surprise
OTHER_KERNELS = {"of": {"device": NOISY, "counts": counts(launches=5)}}
OLDER = {"recorded": Recorded("before", "4e3642b", "0.1.0")}
DOUBTS = [
    (None, {"doubts": (RunDoubt("error", "a test failed"),)}, "a test failed", True, True),
    (CONFLICT, {}, "it holds a merge conflict; git checkout", True, False),
    (
        NewerBaselineError("written by a newer version"),
        {},
        "written by a newer version",
        False,
        True,
    ),
    (measured(), OF_NOISE, INCONCLUSIVE, True, False),
    (measured(), OF_NOISE | {"limits": Limits(sensitivity={Timer.DEVICE: 9.0})}, "", True, False),
    (measured(), OTHER_KERNELS, "", True, False),
    (measured(), OLDER, "older than the baseline", True, False),
]


@pytest.mark.parametrize(("old", "changes", "doubt", "has_change", "is_doubted_when_fresh"), DOUBTS)
def test_review_refuses_for_these_reasons(
    old: Any, changes: Any, doubt: str, has_change: bool, is_doubted_when_fresh: bool
) -> None:
    found, fresh = (reviewed(old, is_fresh=is_fresh, **changes) for is_fresh in (False, True))
    assert "; ".join(map(doubt_text, found.doubts)).startswith(doubt)
    assert (len(found.doubts), bool(fresh.doubts)) == (bool(doubt), is_doubted_when_fresh)
    assert (found.change is not None) == (fresh.change is not None) == has_change
    assert not found.change or (found.change.action is Action.CREATE) is (old is None)


def test_slow_host_is_compared_with_its_own_past() -> None:
    """A GPU of another, slower host in the baseline says nothing of this one."""
    stored = calibrated(
        [run(device=steady()), run(device=steady(), gpu=ELSEWHERE, host_control_us=100.0)]
    )
    said = "this host was 329 % slower (reference 14.0 -> 60.0 us)"
    for control_us, gpu, doubts in (
        (2.9 * 14, HERE, []),
        (60.0, HERE, [said]),
        (0.2, HERE, []),
        (60.0, "new", []),
    ):
        found = reviewed(stored, of={"host_control_us": control_us, "gpu": gpu})
        assert list(map(doubt_text, found.doubts)) == doubts


@pytest.mark.parametrize(
    ("changes", "group"),
    [
        ({"counts": counts(memsets=3)}, Group.KERNELS),
        ({"kernels": builders.mlp_kernels()[:3]}, Group.KERNELS),
        (XBLOCK_512, Group.CONFIGURATION),
        ({"device": steady(2.0)}, Group.SPEED),
        ({"counts": counts(memsets=3), "machine": DRIVER}, Group.KERNELS),
    ],
)
def test_structure_of_a_slow_host_is_accepted_without_times(
    changes: dict[str, Any], group: Group
) -> None:
    """What ran does not depend on the clock, but the times of another driver are of that one."""
    old = measured()
    found = reviewed(old, of={"device": steady(2.0), "host_control_us": 60.0} | changes)
    assert (found.group, found.change is not None) == (group, True)
    if group is Group.SPEED or "machine" in changes:
        assert len(found.doubts) == 1
        return
    assert found.doubts == ()
    planned = found.change.baseline
    new = measured(device=steady(2.0), host_control_us=60.0, **changes)
    assert (planned.processes, planned.counts) == (old.processes, new.counts)
    assert planned.entries[0].kernels == new.entries[0].kernels
    lines = [line.text for line in review_lines(found.change.details)]
    said = "its times stay: this run has none to trust"
    assert lines[lines.index(said) - 1].startswith("this host was 329 % slower")
    quiet = run(**{"device": steady()} | changes)
    assert judge_structure(quiet, planned).status is Status.PASS
    assert judged_time(Timer.DEVICE, quiet, planned).status is Status.PASS


LATER: dict[str, Any] = {
    "host_work": {"net.py:Net.forward": 9},
    "choices": (KernelChoice("scale", "128", "SIZE=64"),),
    "data": {"aten::index": ("8 numbers found",)},
    "counts": counts(compiled_ops=7),
    "kernels": tuple(
        msgspec.structs.replace(each, arguments=("p=0.5",)) for each in builders.mlp_kernels()
    ),
}


@pytest.mark.parametrize(
    ("processes", "added"),
    [(1, "choices, host_work, data, counts, entries"), (2, "choices, host_work, counts")],
)
def test_unmoved_run_adds_what_an_older_version_lacks(processes: int, added: str) -> None:
    """Times stay, and what differed between several processes stays out."""
    runs = [run(device=steady(), gpu=gpu) for gpu in (HERE, ELSEWHERE)[:processes]]
    old = msgspec.structs.replace(calibrated(runs), suite="perf")
    found = reviewed(old, of=LATER)
    assert (found.group, found.doubts) == (Group.SAME_SPEED, ())
    notes = [each for each in found.evidence if isinstance(each, FileNote)]
    assert [sorted(each.after.split(", ")) for each in notes] == [sorted(added.split(", "))]
    assert found.change is not None
    fuller = found.change.baseline
    assert fuller is not None
    assert (fuller.processes, fuller.recorded) == (old.processes, old.recorded)
    assert fuller.host_work == LATER["host_work"]
    again = reviewed(fuller, of=LATER)
    assert again.change is not None
    assert again.change.action is KEEP
    slower = reviewed(fuller, of=LATER | {"host_work": {"net.py:Net.forward": 90}})
    assert slower.group is Group.KERNELS


def test_review_of_the_stored_run_is_settled() -> None:
    stored = measured(device=NOISY, end_to_end=(301.0,) * 4)
    found = reviewed(stored, of={"device": NOISY}, doubts=(RunDoubt("unmeasured"),))
    assert (found.group, found.doubts, found.change.action) == (Group.SAME_SPEED, (), KEEP)
    assert found.evidence == (FileNote("accepted already"),)
    again = reviewed(measured(device=NOISY), of={"device": NOISY})
    assert (again.group, len(again.doubts)) == (Group.SPEED, 1)  # what is not known is not as fast


def plan_one(
    old: Baseline, new: Run, *, suite: str = "perf", comparisons: int = 3
) -> PlannedChange:
    change = reviewed_run(new, old, suite=suite, comparisons=comparisons).change
    assert change is not None
    return change


def host_only(us: float, control_us: float = builders.CONTROL_US) -> dict[str, Any]:
    return {"host": (us,) * 4, "end_to_end": None, "host_control_us": control_us}


def with_fresh(
    old: Sequence[Process], fresh: Sequence[Process], timer: Timer
) -> tuple[Process, ...]:
    """Return old processes without a time, and fresh ones with that time only."""
    return *without_times(old, {timer}), *without_times(fresh, set(Timer) - {timer})


SLOW_HOST = {
    "gpu": ELSEWHERE,
    "device": steady(),
    "host": steady(1.9),
    "end_to_end": steady(1.9),
    "host_control_us": 26.6,
}
UNMOVED = [
    # kernel times within the noise
    (baseline(), {"kernels": builders.mlp_kernels(gate=56.4)}, KEEP),
    (baseline(device=(200.0,)), {"device": (210.0,)}, KEEP),  # one replicate
    (baseline(device=steady()), {"device": NOISY}, KEEP),
    (baseline(host=steady()), {"host": steady(2), "host_control_us": None}, KEEP),
    (baseline(host=steady(), host_control_us=None), {"host": steady(2)}, KEEP),
    *((baseline(**host_only(50.0)), host_only(50 * us / 14, us), KEEP) for us in (9.0, 25.0)),
    (baseline(device=steady(), host=steady(), end_to_end=steady()), SLOW_HOST, KEEP),
    # All is slower by 1.5 %, and so is the copy of our own: that is no change of the workload.
    (baseline(device=steady()), {"device": steady(1.015)}, UPDATE),
    (baseline(device=steady()), {"device": steady(1.015), "controls": pair(copy=30.45)}, KEEP),
]


@pytest.mark.parametrize(("old", "new", "action"), UNMOVED)
def test_plan_keeps_what_did_not_move(old: Baseline, new: dict[str, Any], action: Action) -> None:
    change = plan_one(old, run(**new))
    assert change.action is action
    if action is not KEEP:
        assert change.baseline.processes == with_fresh(
            old.processes, baseline(**new).processes, Timer.DEVICE
        )


def test_plan_replaces_a_time_of_a_slower_moment_of_the_same_host() -> None:
    of_host = {name: host_only(50.0, us) for name, us in (("usual", 14.0), ("slow", 28.0))}
    for stored, now, action in (("slow", "usual", UPDATE), ("usual", "slow", KEEP)):
        old, new = (
            msgspec.structs.replace(run(**of_host[each]), host="h") for each in (stored, now)
        )
        assert plan_one(calibrated([old]), new).action is action
        elsewhere = msgspec.structs.replace(new, host="other")
        assert plan_one(calibrated([old]), elsewhere).action is KEEP


def test_plan_moves_what_a_test_would_call_slower() -> None:
    """A level of its own would move files that the tests call unchanged."""
    old, moved = baseline(device=steady()), []
    for step in range(10, 150, 8):
        observed = run(device=steady(1 + step / 10_000))
        moved.append(
            judged_time(Timer.DEVICE, observed, old, comparisons=600).status is Status.REGRESSED
        )
        assert plan_one(old, observed, comparisons=600).action is (UPDATE if moved[-1] else KEEP), (
            step
        )
    assert 0 < sum(moved) < 18


def test_plan_without_stored_compile_times_says_so() -> None:
    timed = {"samples": run().samples | dict.fromkeys(COMPILE_TIMERS, Sample((1e6, 1.1e6), 1))}
    stored = builders.calibrated([msgspec.structs.replace(run(), **timed)])
    change = plan_one(stored, run(counts=counts(memsets=3)))
    assert (
        "its old times are dropped, as this run measured none: cold compile, warm compile   (--perf-compile)"
        in [line.text for line in review_lines(change.details)]
    )


@pytest.mark.parametrize(
    ("changes", "detail"),
    [
        ({"counts": counts(memsets=3)}, "memsets 2 -> 3"),
        ({"kernels": builders.mlp_kernels()[:3]}, "1 kernel gone: nvjet_"),
        ({"machine": MIG}, "mig False -> True"),
        ({"suite": "perf/nightly"}, "suite perf -> perf/nightly"),
    ],
)
def test_plan_replaces_all_where_something_exact_differs(
    changes: dict[str, Any], detail: str
) -> None:
    observed = {name: value for name, value in changes.items() if name != "suite"}
    change = plan_one(calibrated([run()] * 5), run(**observed), suite=changes.get("suite", "perf"))
    assert (change.action, msgspec.structs.replace(change.baseline, anchors=())) == (
        UPDATE,
        baseline(**changes),
    )
    lines = [line.text for line in review_lines(change.details)]
    assert any(line.startswith(detail) for line in lines)
    assert (
        lines[-1]
        == "its new times are of 1 process, the old ones of 5 (kernelgauge calibrate records more)"
    )


def test_plan_replaces_all_times_of_another_launch_configuration() -> None:
    old = calibrated([run(device=steady())] * 3)
    change = plan_one(old, run(**XBLOCK_512))
    assert change.action is UPDATE
    assert change.baseline.entries == baseline(**XBLOCK_512).entries
    said = "its new times are of 1 process, the old ones of 3"
    assert any(line.text.startswith(said) for line in review_lines(change.details))


@pytest.mark.parametrize("kernels", [builders.mlp_kernels(gate=56.4), SOURCE["kernels"]])
def test_accepted_dispatch_leaves_gpu_times_of_all_processes(kernels: Any) -> None:
    old = calibrated(
        [
            run(device=steady(1 + number / 10_000), gpu=gpu)
            for number, gpu in enumerate((HERE, "b", HERE))
        ]
    )
    slower = run(device=steady(1.0005), host=(90.0,) * 4, kernels=kernels)
    change = plan_one(old, slower)
    new = change.baseline
    assert new.processes == with_fresh(
        old.processes, from_run(slower, suite="perf").processes, Timer.HOST
    )
    assert new.entries[0].device_time_us == old.entries[0].device_time_us
    assert review_lines(change.details)[-1].text.startswith(
        "its new times are of 1 process, the old ones of 3 "
    )
    again = reviewed_run(slower, new)
    assert (again.change.action, again.evidence) == (KEEP, (FileNote("accepted already"),))
    assert with_added(new, [slower]) == new


def hand_written(width: int, us: float = 56.0, **of_fused: Any) -> tuple[KernelRecord, ...]:
    return builders.launched(builders.GEMM, us, grid=(width, 1, 1)), *builders.mlp_kernels(
        **of_fused
    )[1:]


def test_plan_replaces_what_no_autotuner_chose() -> None:
    """Otherwise the way back to the slower configuration would be no regression."""
    old_source = builders.mlp_kernels(us=138.1, source=OTHER_SOURCE), builders.mlp_kernels()
    for slower, faster in ((hand_written(132, 156.0, xblock=512), hand_written(264)), old_source):
        back = run(device=steady(1.5), kernels=slower)
        accepted = plan_one(calibrated([back, back]), run(device=steady(), kernels=faster)).baseline
        (entry,) = accepted.entries
        assert [each.identity for each in entry.kernels] == [each.identity for each in faster]
        judged = judge_structure(back, accepted), judged_time(Timer.DEVICE, back, accepted)
        assert Status.REGRESSED in [each.status for each in judged]


def around(us: float) -> tuple[float, ...]:
    return tuple(us * factor for factor in (0.9995, 1.0, 1.0005, 1.0)) * 4


def processes(
    gpu: str = HERE, device: float = 205.0, host: float = 50.0, place: int = 0, **changes: Any
) -> list[Run]:
    """Runs of three processes, a nanosecond apart: no two are equal."""
    times_us = [device + 0.001 * (3 * place + number) for number in range(3)]
    fixed = {"gpu": gpu, "host": around(host)} | changes
    return [run(device=around(us), end_to_end=around(us + 20), **fixed) for us in times_us]


def joined_with(**changes: Any) -> Baseline | review.NotAdded:
    return with_added(calibrated(processes()), processes(place=1, **changes))


NOT_JOINED = [
    ({"machine": fingerprint(power_limit_watts=500.0)}, r"^power_limit_watts 700\.0 -> 500\.0$"),
    ({"counts": counts(memsets=3)}, r"^memsets 2 -> 3$"),
    ({"machine": DRIVER}, r"^driver \S+ -> 590\.1$"),
    (SOURCE, r"^generated source of its kernels"),
    ({"gpu": ELSEWHERE, "device": 225.0}, r"^GPU time 205\.\d -> 225.0 us  [+]"),
    ({"host": 80.0}, r"host dispatch 50\.0 -> 80\.0 us"),
    (
        {"kernels": builders.mlp_kernels(us=56.0, xblock=512)},
        "launch configurations differ from the baseline",
    ),
    ({"device": 225.5, "controls": pair(33.0, 165.0)}, "the GPU itself changed its speed"),
]


@pytest.mark.parametrize(("new", "said"), NOT_JOINED)
def test_joined_of_a_change_is_refused_and_named(new: dict[str, Any], said: str) -> None:
    refused = joined_with(**new)
    assert isinstance(refused, review.NotAdded)
    assert re.search(said, doubt_text(refused).removeprefix("it cannot be added: "))


def test_joined_kernel_times_are_means_over_processes() -> None:
    stored = calibrated(processes()[:1])
    more = processes(place=1, kernels=builders.mlp_kernels(gate=60.0))
    (joined,) = with_added(stored, more).entries
    assert len(joined.processes) == 4
    # of two that are alike: 57 in one process, 59 in three
    assert joined.kernels[0].device_time_us == 58.5


# -- creep: slowdowns that are each too small to fail

FIRST = calibrated(
    [run(device=(200.0,) * 4)], recorded=Recorded("2025-12-01T00:00:00", None, "0.1.0", "v1.2")
)


def coded(registers: int, spilled_words: int | None = 0) -> tuple[Any, ...]:
    first, *others = builders.mlp_kernels()
    return msgspec.structs.replace(first, resources=Resources(registers, 0, spilled_words)), *others


def test_new_spill_is_accepted_and_other_code_is_no_change() -> None:
    old, unknown = measured(kernels=coded(64)), measured(kernels=builders.mlp_kernels())
    spilt = reviewed(old, of={"kernels": coded(64, 9)})
    assert spilt.group is Group.KERNELS
    assert spilt.change is not None
    assert spilt.change.baseline is not None
    assert spilt.change.baseline.entries[0].kernels[0].resources == Resources(64, 0, 9)
    assert (
        reviewed(old, of={"kernels": coded(63)}).group
        is reviewed(unknown, of={"kernels": coded(64)}).group
        is Group.SAME_SPEED
    )
    again = decode_baseline(encode_baseline(old), where="", workload=old.workload)
    assert again == old
    assert b"resources" not in encode_baseline(unknown)


def test_joined_has_the_code_and_counts_that_the_stored_lack() -> None:
    stored = measured(kernels=coded(64, None))
    newer = tuple(msgspec.structs.replace(each, arguments=("a=True",)) for each in coded(64, 7))
    joined = with_added(stored, [run(kernels=newer, device=steady(), gpu="two")])
    (kernel, *_) = joined.entries[0].kernels
    assert (kernel.resources, kernel.arguments) == (Resources(64, 0, 7), ("a=True",))
    assert joined_with(counts=counts(generated_kernels=2)).counts == counts(generated_kernels=2)


def upgraded(
    old: Baseline,
    us: float,
    month: int,
    release: str | None = "v1.2",
    comparisons: int = 600,
    **changes: Any,
) -> Reviewed:
    """A run after an upgrade in some month of the next year."""
    recorded = Recorded(f"2026-{month:02}-01T00:00:00", None, "0.1.0", release)
    observed = run(**{"device": (us,) * 4, "machine": fingerprint(driver=f"590.{month}")} | changes)
    return reviewed_run(observed, old, recorded=recorded, comparisons=comparisons)


def accepted(
    old: Baseline, us: float, month: int, release: str | None = "v1.2", **changes: Any
) -> Baseline:
    written: Any = upgraded(old, us, month, release, **changes).change
    return decode_baseline(encode_baseline(written.baseline), where="", workload=builders.WORKLOAD)


def creep(found: Reviewed) -> list[str]:
    return [line.text for line in review_lines(found.evidence) if line.label == "creep"]


def anchors(stored: Baseline) -> dict[Timer, tuple[str | None, float]]:
    found = [(each, process) for each in stored.anchors for process in each.processes]
    return {
        timer: (each.release, time.mean_us)
        for each, process in found
        for timer, time in process.timers.items()
    }


def test_upgrades_that_add_up_are_named() -> None:
    stored, said = FIRST, []
    for step in range(1, 13):
        said.append(creep(upgraded(stored, us := 200 * 1.0015**step, step)))
        stored = accepted(stored, us, step)
    assert (said[:2], said[-1]) == (
        [[], []],
        ["GPU time +1.8 % since v1.2 (2025-12-01), in 12 accepted steps"],
    )
    assert anchors(stored)[Timer.DEVICE] == ("v1.2", 200.0)
    assert creep(upgraded(stored, 203.6, 12)) == said[-1]  # the file stays as it is
    slow = {"controls": pair(copy=30.6)}
    assert creep(upgraded(stored, 203.6, 12, **slow)) == []  # the GPU itself may be slow now
    # and since the upgrade
    assert creep(upgraded(accepted(stored, 203.6, 11, **slow), 203.6, 12, **slow)) != []
    slower = {"kernels": builders.mlp_kernels()[:3], "counts": counts(launches=3, kernels=2)}
    # slower kernels creep too
    assert anchors(accepted(stored, 210.0, 12, **slower)) == anchors(stored)
    # of another device
    assert anchors(accepted(stored, 210.0, 12, machine=fingerprint(mig=True))) == {}
    impossible = msgspec.structs.replace(
        stored, entries=calibrated([run(host=(2000.0,) * 4)]).entries
    )
    assert anchors(accepted(impossible, 200.0, 12)) == anchors(stored)
    undated = accepted(msgspec.structs.replace(FIRST, recorded=None), 200.1, 4, None)
    assert creep(upgraded(undated, 203.0, 5)) == [
        "GPU time +1.5 % since the anchor, in 2 accepted steps"
    ]


def test_added_nights_leave_the_anchor() -> None:
    stored, said = FIRST, []
    for night in range(1, 14):
        another = run(device=(200 * 1.0005**night,) * 4)
        said.append(creep(upgraded(stored, 200 * 1.0005**night, 12, comparisons=21)) != [])
        stored = with_added(stored, [another], recorded=FIRST.recorded, comparisons=21)
    assert (anchors(stored)[Timer.DEVICE], len(stored.processes)) == (("v1.2", 200.0), 14)
    assert 6 < said.index(True) < 12


def test_release_anchors_only_the_times_that_moved() -> None:
    """What is within the noise keeps its anchor: it adds up over releases."""
    stored = accepted(accepted(FIRST, 200.3, 4), 202.0, 5)
    assert creep(upgraded(stored, 202.1, 6, "v1.3")) == [
        "GPU time +1.1 % since v1.2 (2025-12-01), in 3 accepted steps"
    ]
    released = accepted(stored, 202.1, 6, "v1.3")
    assert anchors(released) == {**anchors(stored), Timer.DEVICE: ("v1.3", 202.0)}
    # no tag, as in a shallow clone, is no new one
    for month, release in ((7, None), (8, "v1.3"), (9, "v1.4")):
        released = accepted(released, 204.0, month, release)
        assert anchors(released)[Timer.DEVICE] == (
            ("v1.4", 204.0) if month == 9 else ("v1.3", 202.0)
        )
