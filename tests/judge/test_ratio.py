"""The rule for two variants of one run: faster by a fraction, not so, or not known."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from kernelgauge.judge import Status, Verdict
from kernelgauge.judge.time_verdict import judge_ratio
from kernelgauge.report.words import headline
from tests.builders import H200, fingerprint, reasons, run

STEADY = (-0.0005, 0.0, 0.0, 0.0005)
CPU, NEW_GPU = fingerprint(device="a CPU", arch="cpu"), fingerprint(device="Another GPU")


def ratio(us: float, by: float = 0.05, *, noise: Sequence[float] = STEADY, **changes: object) -> Verdict:
    """Judge a variant of `us` beside another of 200 us."""
    this, other = (
        run(device=[time * (1 + each) for each in noise], workload=name, **changes)
        for time, name in ((us, "mlp"), (200.0, "mlp-eager"))
    )
    return judge_ratio(this, other, "eager", by=by, comparisons=12)


@pytest.mark.parametrize(
    ("us", "by", "machine", "status"),
    [
        (188.0, 0.05, H200, "PASS"),
        (190.0, 0.05, H200, "UNDECIDED"),  # 5 % less, as measured: the interval holds more and less
        (192.0, 0.05, H200, "REGRESSED"),
        (198.0, 0.0, H200, "PASS"),
        (202.0, 0.0, H200, "REGRESSED"),
        (185.0, 0.05, NEW_GPU, "PASS"),
        (189.0, 0.05, NEW_GPU, "UNDECIDED"),  # four times as wide where no data is
        (160.0, 0.05, CPU, "UNDECIDED"),
        (100.0, 0.05, CPU, "PASS"),
        (400.0, 0.05, CPU, "REGRESSED"),
    ],
)
def test_ratio_is_judged_by_its_interval(us: float, by: float, machine: object, status: str) -> None:
    verdict = ratio(us, by, machine=machine)
    assert (verdict.status, verdict.subject, verdict.workload) == (Status(status), "ratio", "mlp")
    assert not verdict.is_by_baseline  # no update overrules it


def test_ratio_headline_says_asked_and_measured() -> None:
    said = "{}5 % faster than eager: GPU time {} us against 200.0 us, {}"
    assert headline(ratio(180.0)).startswith(said.format("", "180.0", "-10.00 % (-10."))
    assert headline(ratio(210.0)).startswith(said.format("not ", "210.0", "+5.00 % (+4."))
    undecided = ratio(190.0)
    assert headline(undecided).startswith(said.format("not known to be ", "190.0", "-5.00 % (-5."))
    assert reasons(undecided, "why") == ["the interval holds the fraction that is asked for"]


def test_ratio_of_scattered_replicates_is_undecided() -> None:
    assert ratio(180.0, noise=(-0.08, 0.08, -0.05, 0.05)).status is Status.UNDECIDED
    one = ratio(180.0, noise=(0.0,))
    assert (one.status, reasons(one, "why")) == (Status.UNDECIDED, ["one replicate shows no spread"])


def test_ratio_without_a_time_is_invalid() -> None:
    verdict = judge_ratio(run(workload="mlp"), run(device=None, incomplete="the GPU was throttled"), "eager", by=0.05)
    assert (verdict.status, verdict.workload, verdict.subject) == (Status.INVALID, "mlp", "ratio")
    assert headline(verdict) == "eager: GPU time was not measured: the GPU was throttled"
