"""What a calibration found, as its table; and times in a review."""

import re
from dataclasses import replace

import pytest

from kernelgauge.judge.baseline import Baseline
from kernelgauge.judge.evidence import RelativeChange, TimeCompared
from kernelgauge.report.stored import calibration_section, review_lines
from kernelgauge.report.text import as_text
from tests.builders import calibrated, fingerprint, run, verdict


def columns(stored: Baseline, timer: str = "GPU time", *, comparisons: int = 21) -> list[float]:
    """Time, noise, smallest change here and on another GPU; infinity for a dash."""
    text = as_text(
        [calibration_section({"mlp": stored}, comparisons=comparisons)], width=100, color=False
    )
    (numbers,) = re.findall(rf"^mlp +{timer} +([\d. -]+)$", text, re.MULTILINE)
    return [float("inf") if word == "-" else float(word) for word in numbers.split()]


def test_gpu_time_on_another_gpu_needs_a_larger_change() -> None:
    time_us, noise, here, there = columns(calibrated([run()] * 10))
    assert 0 < noise < here < there < 100 < time_us
    assert (
        columns(calibrated([run()] * 10), "host dispatch")[2]
        < columns(calibrated([run()] * 10), "host dispatch")[3]
        < 30
    )
    # there is no number for a latency elsewhere
    assert columns(calibrated([run()] * 10), "end to end")[3] == float("inf")
    assert (
        columns(calibrated([run()] * 10), comparisons=1000)[3]
        > there
        > columns(calibrated([run()] * 10), comparisons=1)[3]
    )
    on_cpu = calibrated([run(machine=fingerprint(arch="cpu")) for _ in range(2)], suite="perf")
    assert columns(on_cpu, "end to end")[3] == float("inf")
    with pytest.raises(ValueError, match="not enough values"):  # its ops have a time and no verdict
        columns(on_cpu, "CPU time")


@pytest.mark.parametrize(
    ("after_us", "conclusion", "said"),
    [
        (190.0, TimeCompared(at_host_speed=True), "205.1 -> 190.0 us +0.5 % at equal host speed"),
        (190.0, TimeCompared(), "205.1 -> 190.0 us +0.5 % at equal GPU speed"),
        (206.0, TimeCompared(at_host_speed=True), "206.0 us +0.5 %"),
    ],
)
def test_review_shows_both_times_if_their_ratio_is_another(
    after_us: float, conclusion: TimeCompared, said: str
) -> None:
    same = replace(
        verdict(change=RelativeChange(0.005, -0.1, 0.1, 0.99)),
        after_us=after_us,
        conclusion=conclusion,
    )
    assert [line.text for line in review_lines([verdict(subject="structure"), same])] == [
        f"GPU time {said}"
    ]


def test_sensitivity_ignores_a_process_on_a_slow_host() -> None:
    """An H200's latency of 255 us was 432 us once, when its host was twice as slow."""
    usual = [run(end_to_end=[us, us + 1] * 4, host_control_us=30.0) for us in (255.0, 256.0) * 4]
    slow = run(end_to_end=[432.0, 436.0] * 4, host_control_us=57.0)
    alone, among = (
        columns(calibrated(runs, suite="perf"), "end to end")[2] for runs in (usual, [*usual, slow])
    )
    assert among == pytest.approx(alone, rel=0.05)
