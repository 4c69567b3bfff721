"""Slowdowns that are each too small to fail: anchors beside a baseline, and alarms over nights."""

import math
import random
from typing import Any

import msgspec
import pytest

from kernelgauge.judge.baseline import Baseline, Recorded, decode_baseline, encode_baseline
from kernelgauge.judge.creep import find_creep
from kernelgauge.judge.review import Reviewed, review_run, with_runs
from kernelgauge.report.stored import review_lines
from kernelgauge.run import Timer
from tests.builders import WORKLOAD, calibrated, counts, fingerprint, mlp_kernels, pair, run

FIRST = calibrated([run(device=(200.0,) * 4)], recorded=Recorded("2025-12-01T00:00:00", None, "0.1.0", "v1.2"))


def reviewed(old: Baseline, us: float, month: int, release: str | None = "v1.2", **changes: Any) -> Reviewed:
    """A run after an upgrade in some month of the next year."""
    recorded = Recorded(f"2026-{month:02}-01T00:00:00", None, "0.1.0", release)
    upgraded = run(**{"device": (us,) * 4, "machine": fingerprint(driver=f"590.{month}")} | changes)
    return review_run(upgraded, old, suite="perf", recorded=recorded, comparisons=600)


def accepted(old: Baseline, us: float, month: int, release: str | None = "v1.2", **changes: Any) -> Baseline:
    written: Any = reviewed(old, us, month, release, **changes).change
    return decode_baseline(encode_baseline(written.baseline), where="", workload=WORKLOAD)


def creep(found: Reviewed) -> list[str]:
    return [line.text for line in review_lines(found.evidence) if line.label == "creep"]


def anchors(stored: Baseline) -> dict[Timer, tuple[str | None, float]]:
    found = [(each, process) for each in stored.anchors for process in each.processes]
    return {timer: (each.release, time.mean_us) for each, process in found for timer, time in process.timers.items()}


def test_upgrades_that_add_up_are_named() -> None:
    stored, said = FIRST, []
    for step in range(1, 13):
        said.append(creep(reviewed(stored, us := 200 * 1.0015**step, step)))
        stored = accepted(stored, us, step)
    assert (said[:2], said[-1]) == ([[], []], ["GPU time +1.8 % since v1.2 (2025-12-01), in 12 accepted steps"])
    assert anchors(stored)[Timer.DEVICE] == ("v1.2", 200.0)
    assert creep(reviewed(stored, 203.6, 12)) == said[-1]  # the file stays as it is
    slow = {"controls": pair(copy=30.6)}
    assert creep(reviewed(stored, 203.6, 12, **slow)) == []  # the GPU itself may be slow now
    assert creep(reviewed(accepted(stored, 203.6, 11, **slow), 203.6, 12, **slow)) != []  # and since the upgrade
    slower = {"kernels": mlp_kernels()[:3], "counts": counts(launches=3, kernels=2)}
    assert anchors(accepted(stored, 210.0, 12, **slower)) == anchors(stored)  # slower kernels creep too
    assert anchors(accepted(stored, 210.0, 12, machine=fingerprint(mig=True))) == {}  # of another device
    undated = accepted(msgspec.structs.replace(FIRST, recorded=None), 200.1, 4, None)
    assert creep(reviewed(undated, 203.0, 5)) == ["GPU time +1.5 % since the anchor, in 2 accepted steps"]


def test_added_nights_leave_the_anchor() -> None:
    stored, said = FIRST, []
    for night in range(1, 14):
        added = run(device=(200 * 1.0005**night,) * 4)
        said.append(creep(reviewed(stored, 200 * 1.0005**night, 12)) != [])
        stored = with_runs(stored, [added], suite="perf", recorded=FIRST.recorded, comparisons=600)
    assert (anchors(stored)[Timer.DEVICE], len(stored.processes)) == (("v1.2", 200.0), 14)
    assert 6 < said.index(True) < 12


def test_release_anchors_only_the_times_that_moved() -> None:
    """What is within the noise keeps its anchor: it adds up over releases."""
    stored = accepted(accepted(FIRST, 200.3, 4), 202.0, 5)
    assert creep(reviewed(stored, 202.1, 6, "v1.3")) == ["GPU time +1.1 % since v1.2 (2025-12-01), in 3 accepted steps"]
    released = accepted(stored, 202.1, 6, "v1.3")
    assert anchors(released) == {**anchors(stored), Timer.DEVICE: ("v1.3", 202.0)}
    after = [("v1.3", 202.0), ("v1.3", 202.0), ("v1.4", 204.0)]
    for month, release in enumerate((None, "v1.3", "v1.4"), 7):  # no tag, as in a shallow clone, is no new one
        released = accepted(released, 204.0, month, release)
        assert anchors(released)[Timer.DEVICE] == after[month - 7]


@pytest.mark.parametrize(
    ("levels", "drift", "spread", "since", "percent"),
    [
        ([200.0] * 200, 0.0, 0.01, None, 0.0),  # nights show more noise than the rule expects
        ([200.0] * 30, 5e-4, 6e-4, 20, 0.5),
        ([200.0] * 60, 5e-4, 6e-4, 20, 2.0),  # of several alarms the lowest level counts
        ([200.0] * 20 + [202.0] * 10 + [200.0] * 10, 0.0, 6e-4, None, 0.0),  # mended
        ([200.0] * 20 + [180.0] * 20 + [182.0] * 10, 0.0, 6e-4, 40, 1.1),  # of what was gained
        ([200.0] * 20 + [300.0] + [200.0] * 20, 0.0, 6e-4, None, 0.0),  # an outlier
    ],
)
def test_creep_is_a_rise_that_stays(
    levels: Any, drift: float, spread: float, since: int | None, percent: float
) -> None:
    rng = random.Random(5)
    nights = [math.log(us) + drift * max(0, n - 19) + rng.gauss(0, spread) for n, us in enumerate(levels)]
    found = find_creep([(each, 6e-4) for each in nights])
    assert (found is None) == (since is None)
    if found and since:
        assert found.since == pytest.approx(since, abs=2)
        assert 100 * found.change == pytest.approx(percent, abs=0.12)
