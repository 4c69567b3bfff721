"""What a review makes of a run beside its stored baseline: the group, the evidence, and reasons against accepting."""

from __future__ import annotations

from typing import Any

import pytest

from kernelgauge.errors import BaselineError, NewerBaselineError
from kernelgauge.judge.baseline import Baseline, Recorded, from_run
from kernelgauge.judge.review import Action, Group, Reviewed, review_run
from kernelgauge.judge.timing import Limits
from kernelgauge.run import Timer
from tests.builders import ELSEWHERE, OTHER_SOURCE, calibrated, counts, fingerprint, mlp_kernels, run

STEADY, SLOWER = (200.0,) * 4, (220.0,) * 4
NOISY = (150.0, 250.0, 200.0, 260.0)
DRIVER = fingerprint(driver="590.1")


def measured(**changes: Any) -> Baseline:
    return from_run(run(**{"device": STEADY} | changes), suite="perf", recorded=Recorded("then", "4e3642b", "0.1.0"))


def reviewed(old: Baseline | BaselineError | None, *, of: dict[str, Any] | None = None, **changes: Any) -> Reviewed:
    """A review of a run that differs from the usual one in `of`, beside a baseline."""
    recorded = Recorded("thereafter", "4e3642b", "0.1.0")
    observed = run(**{"device": STEADY, "end_to_end": (301.0,) * 4} | (of or {}))
    return review_run(observed, old, **{"suite": "perf", "recorded": recorded, "comparisons": 3} | changes)


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
    found = reviewed(measured(), of=changes)
    assert (found.group, found.doubts) == (group, ())
    assert found.change.action is (Action.UPDATE if changes else Action.KEEP)


def test_run_without_times_is_not_slower() -> None:
    found = reviewed(measured(), of={"samples": {}})
    assert (found.group, found.change.action) == (Group.SAME_SPEED, Action.KEEP)


INCONCLUSIVE = "GPU time 200.0 -> 210.1 us  "
CONFLICT = BaselineError("it holds a merge conflict", next_command="git checkout")
ASKED = Limits(sensitivity={Timer.DEVICE: 9.0})


@pytest.mark.parametrize(
    ("old", "changes", "doubt", "can_be_forced"),
    [
        (None, {"doubts": ("a test failed",)}, "a test failed", True),
        (CONFLICT, {}, "it holds a merge conflict; git checkout", True),
        (NewerBaselineError("written by a newer version"), {}, "written by a newer version", False),
        (measured(), {"of": {"device": NOISY}}, INCONCLUSIVE, True),
        (measured(), {"of": {"device": NOISY}, "limits": ASKED}, "", True),
        # Another time of other kernels is no surprise.
        (measured(), {"of": {"device": NOISY, "counts": counts(launches=5)}}, "", True),
        (measured(), {"recorded": Recorded("before", "4e3642b", "0.1.0")}, "older than the baseline", True),
    ],
)
def test_review_refuses_for_these_reasons(old: Any, changes: Any, doubt: str, can_be_forced: bool) -> None:
    found = reviewed(old, **changes)
    assert "; ".join(found.doubts).startswith(doubt)
    assert (len(found.doubts), found.change is not None) == (bool(doubt), can_be_forced)


@pytest.mark.parametrize(
    ("old", "changes"),
    [
        (CONFLICT, {}),
        (measured(), {"of": {"device": NOISY}}),
        (measured(), {"recorded": Recorded("before", "4e3642b", "0.1.0")}),
    ],
)
def test_run_that_has_just_ended_overrules_the_file(old: Any, changes: Any) -> None:
    found = reviewed(old, is_fresh=True, **changes)
    assert (found.doubts, found.change is not None) == ((), True)


def test_slow_host_is_compared_with_its_own_past() -> None:
    """A GPU of another, slower host in the baseline says nothing of this one."""
    stored = calibrated([run(device=STEADY), run(device=STEADY, gpu=ELSEWHERE, host_control_us=100.0)])
    found = reviewed(stored, of={"host_control_us": 60.0})
    assert found.doubts == ("this host was 4 times as slow as in the baseline (reference 14.0 -> 60.0 us)",)


def test_review_of_the_stored_run_is_settled() -> None:
    found = reviewed(measured(device=NOISY, end_to_end=(301.0,) * 4), of={"device": NOISY}, doubts=("wrong",))
    assert (found.group, found.doubts, found.change.action) == (Group.SAME_SPEED, (), Action.KEEP)
    assert [reason.text for reason in found.evidence] == ["accepted already"]
    again = reviewed(measured(device=NOISY), of={"device": NOISY})
    assert (again.group, len(again.doubts)) == (Group.SPEED, 1)  # what is not known is not as fast


def test_review_of_a_change_names_its_cause_and_code() -> None:
    found = reviewed(measured(), of={"device": SLOWER, "kernels": mlp_kernels(us=58.1)})
    labels = [reason.label for reason in found.evidence]
    assert labels[:2] == ["time", "cause"]
    assert found.change.details[0].startswith("GPU time 200.0 -> 220.0 us  +10.00 %")
    assert found.change.details == tuple(reason.text for reason in found.evidence)
