"""Times that no undisturbed machine shows: in a run, and in a baseline that a run meets."""

from __future__ import annotations

from typing import Any

import pytest

from kernelgauge.judge import Status
from kernelgauge.judge.review import DifferentRunsError, Group, review_run, with_runs
from kernelgauge.judge.time_verdict import judge_time, run_doubts
from kernelgauge.report.stored import doubt_text
from kernelgauge.report.words import headline
from kernelgauge.run import Sample, Timer
from tests.builders import baseline, calibrated, counts, fingerprint, reasons, run


def with_references(device_us: float, latency_us: float) -> dict[str, Any]:
    """A run on a CPU, with the host references of its two times."""
    times = {Timer.DEVICE: (205.0, device_us), Timer.END_TO_END: (300.0, latency_us)}
    samples = {timer: Sample((us,) * 4, 40, (control_us,) * 4) for timer, (us, control_us) in times.items()}
    return {"samples": samples, "machine": fingerprint(arch="cpu", device="a CPU", sm_count=None), "gpu": None}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"device": (30451.0,) * 4, "end_to_end": (303.0,) * 4}, "GPU time cannot be: 30451.0 us cannot be a part of"),
        ({"host": (1000.0,) * 4}, "host dispatch cannot be: 1000.0 us"),
        (with_references(840.0, 14.0), "CPU time cannot be: "),
        (with_references(14.0, 840.0), "end to end cannot be: "),
        (with_references(14.0, 60.0), ""),
        ({"device": (3500.0,) * 4}, ""),  # four kernels on as many streams
        ({"device": (3500.0,) * 4, "counts": counts(launches=1)}, "GPU time cannot be"),
        ({"device": (3500.0,) * 4, "end_to_end": None}, ""),
    ],
)
def test_run_with_a_time_that_cannot_be_is_doubted(changes: dict[str, Any], said: str) -> None:
    doubts = list(run_doubts(run(**changes)))
    assert (bool(doubts), ", ".join(map(doubt_text, doubts))[: len(said)]) == (bool(said), said)


@pytest.mark.parametrize("stored", [{"device": (30451.0,) * 4}, {"host": (4000.0,) * 4, "host_control_us": 840.0}])
def test_stored_time_that_cannot_be_is_named_and_replaced(stored: dict[str, Any]) -> None:
    wrong, now = calibrated([run(), run(**stored)]), run(device=(100.0,) * 4, end_to_end=(301.5,) * 4)
    verdict = judge_time(Timer.DEVICE if "device" in stored else Timer.HOST, now, wrong)
    assert verdict.status is Status.NOT_JUDGED
    assert headline(verdict).endswith("not judged: that of the baseline cannot be")
    assert "cannot be a part of" in reasons(verdict, "why")[0]
    assert "kernelgauge accept" in reasons(verdict, "next")[0]
    found = review_run(now, wrong, suite="perf", recorded=None, comparisons=3)
    assert (found.group, found.change.baseline) == (Group.SPEED, baseline(device=(100.0,) * 4, end_to_end=(301.5,) * 4))
    with pytest.raises(DifferentRunsError) as error:
        with_runs(wrong, [now], suite="perf", recorded=None, comparisons=3)
    assert doubt_text(error.value.facts[0]).startswith("a stored time cannot be")


def test_stored_host_reference_is_held_against_that_of_the_run() -> None:
    slow = {"device": None, "end_to_end": None, "host_control_us": 840.0}
    for changes, cannot_be in (({}, True), ({"gpu": "another"}, False), ({"host_control_us": 100.0}, False)):
        verdict = judge_time(Timer.HOST, run(), baseline(**slow | changes))
        assert headline(verdict).endswith("cannot be") is cannot_be
