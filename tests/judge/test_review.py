"""What a review makes of saved results beside the baselines: groups, evidence, and reasons against accepting."""

from __future__ import annotations

from typing import Any

import pytest

from kernelgauge.errors import BaselineError, NewerBaselineError
from kernelgauge.judge import Action, Baseline, Candidate, Group, Limits, Recorded, Review, Reviewed, from_run, review
from kernelgauge.run import Timer
from tests.builders import OTHER_SOURCE, WORKLOAD, counts, fingerprint, mlp_kernels, run

STEADY, SLOWER = (200.0,) * 4, (220.0,) * 4
NOISY = (150.0, 250.0, 200.0, 260.0)
DRIVER = fingerprint(driver="590.1")


def measured(*, at: str = "now", workload: str = WORKLOAD, **changes: Any) -> Baseline:
    observed = run(**({"device": STEADY, "workload": workload} | changes))
    return from_run(observed, suite="perf", recorded=Recorded(at, "4e3642b", "0.1.0"))


def reviewed_all(stored: Any, *candidates: Candidate, declared: Any = None) -> Review:
    names = [each.workload for each in candidates]
    return review("NVIDIA H200", candidates, stored, {"perf": names} if declared is None else declared)


def candidate(observed: Baseline | None, **changes: Any) -> Candidate:
    return Candidate(observed.workload if observed else WORKLOAD, "perf", observed, **changes)


def reviewed(old: Baseline | BaselineError | None, new: Baseline | None, **changes: Any) -> Reviewed:
    (found,) = reviewed_all({} if old is None else {WORKLOAD: old}, candidate(new, **changes)).reviewed
    return found


@pytest.mark.parametrize(
    ("changes", "group"),
    [
        ({}, Group.SAME_SPEED),
        ({"machine": DRIVER}, Group.SAME_SPEED),
        ({"kernels": mlp_kernels(source=OTHER_SOURCE)}, Group.SAME_SPEED),
        ({"device": SLOWER}, Group.SPEED),
        ({"device": (180.0,) * 4}, Group.SPEED),
        ({"host": (90.0,) * 4}, Group.SPEED),
        ({"kernels": mlp_kernels(xblock=512)}, Group.CONFIGURATION),
        ({"kernels": mlp_kernels()[::-1]}, Group.KERNELS),
        ({"counts": counts(dispatcher_ops=2)}, Group.KERNELS),
        ({"machine": fingerprint(power_limit_watts=350.0)}, Group.NEW),
    ],
)
def test_review_group_is_what_moved_most(changes: dict[str, Any], group: Group) -> None:
    found = reviewed(measured(at="before"), measured(**changes))
    assert (found.group, found.doubts, found.waits) == (group, (), bool(changes))


def test_run_without_times_is_not_slower() -> None:
    found = reviewed(measured(at="before"), measured(samples={}))
    assert (found.group, found.evidence, found.waits) == (Group.SAME_SPEED, (), False)


INCONCLUSIVE = "GPU time: inconclusive"
CONFLICT = BaselineError("it holds a merge conflict", next_command="git checkout")
ASKED = Limits(sensitivity={Timer.DEVICE: 9.0})


@pytest.mark.parametrize(
    ("old", "new", "changes", "doubts", "can_be_forced"),
    [
        (None, {}, {"doubts": ("a test failed",)}, ("a test failed",), True),
        (CONFLICT, {}, {}, ("it holds a merge conflict; git checkout",), True),
        (NewerBaselineError("written by a newer version"), {}, {}, ("written by a newer version",), False),
        (measured(), {"device": NOISY}, {}, (INCONCLUSIVE,), True),
        (measured(), {"device": NOISY}, {"limits": ASKED}, (), True),
        (measured(), {"device": NOISY, "counts": counts(launches=5)}, {}, (), True),  # another time is no surprise
    ],
)
def test_review_refuses_for_these_reasons(old: Any, new: Any, changes: Any, doubts: Any, can_be_forced: bool) -> None:
    found = reviewed(old, measured(at="after", **new), **changes)
    assert (found.doubts, found.change is not None) == (doubts, can_be_forced)


def test_review_of_the_stored_run_is_settled() -> None:
    noisy = measured(device=NOISY)
    found = reviewed(noisy, noisy, doubts=(INCONCLUSIVE,))
    assert (found.group, found.doubts, found.evidence) == (Group.SAME_SPEED, (), ("accepted already",))
    assert found.change.action is Action.KEEP
    again = reviewed(noisy, measured(at="another", device=NOISY))
    assert (again.group, again.doubts) == (Group.SPEED, (INCONCLUSIVE,))  # what is not known is not as fast


def test_review_names_a_file_it_cannot_read_and_leaves_others() -> None:
    stored = {"x": BaselineError("truncated"), "elsewhere": measured(workload="elsewhere")}
    (found,) = reviewed_all(stored, declared={"other": []}).reviewed
    assert (found.workload, found.group, found.doubts) == ("x", Group.NOT_MEASURED, ("truncated",))
