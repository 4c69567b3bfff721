"""The rule for two variants of one run: faster by a fraction, not so, or not known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from kernelgauge.judge import Status, Verdict
from kernelgauge.judge.time_verdict import judge_ratio
from kernelgauge.report.words import headline
from tests.builders import H200, fingerprint, reasons, run

OTHER = "mlp-eager-bf16-64x128x768x3072"
STEADY = (-0.0005, 0.0, 0.0, 0.0005)
CPU = fingerprint(device="a CPU", arch="cpu")


def times(us: float, noise: Sequence[float] = STEADY) -> tuple[float, ...]:
    return tuple(us * (1 + each) for each in noise)


def ratio(us: float, by: float = 0.05, *, noise: Sequence[float] = STEADY, **changes: object) -> Verdict:
    """Judge a variant of `us` beside another of 200 us."""
    this, other = (
        run(device=times(time, noise), workload=name, **changes) for time, name in ((us, "mlp"), (200.0, OTHER))
    )
    return judge_ratio(this, other, "eager", by=by, comparisons=12)


NEW_GPU = fingerprint(device="Another GPU")


@pytest.mark.parametrize(
    ("us", "by", "machine", "status"),
    [
        (188.0, 0.05, H200, Status.PASS),
        (190.0, 0.05, H200, Status.UNDECIDED),  # 5 % less, as measured: the interval holds more and less
        (192.0, 0.05, H200, Status.REGRESSED),
        (198.0, 0.0, H200, Status.PASS),
        (200.0, 0.0, H200, Status.UNDECIDED),
        (202.0, 0.0, H200, Status.REGRESSED),
        (185.0, 0.05, NEW_GPU, Status.PASS),
        (189.0, 0.05, NEW_GPU, Status.UNDECIDED),  # four times as wide where no data is
        (160.0, 0.05, CPU, Status.UNDECIDED),
        (100.0, 0.05, CPU, Status.PASS),
        (400.0, 0.05, CPU, Status.REGRESSED),
    ],
)
def test_ratio_is_judged_by_its_interval(us: float, by: float, machine: Any, status: Status) -> None:
    verdict = ratio(us, by, machine=machine)
    assert (verdict.status, verdict.subject, verdict.workload) == (status, "ratio", "mlp")
    assert not verdict.is_by_baseline  # so that no update overrules it


def test_headline_says_what_was_asked_and_measured() -> None:
    said = "{}5 % faster than eager: GPU time {} us against 200.0 us, {}"
    assert headline(ratio(180.0)).startswith(said.format("", "180.0", "-10.00 % (-10."))
    assert headline(ratio(210.0)).startswith(said.format("not ", "210.0", "+5.00 % (+4."))
    undecided = ratio(190.0)
    assert headline(undecided).startswith(said.format("not known to be ", "190.0", "-5.00 % (-5."))
    assert reasons(undecided, "why") == ["the interval holds the fraction that is asked for"]


@pytest.mark.parametrize("noise", [(-0.08, 0.08, -0.05, 0.05), (0.0,)], ids=["scatter", "one replicate"])
def test_ratio_of_scattered_replicates_is_undecided(noise: Sequence[float]) -> None:
    verdict = ratio(180.0, noise=noise)
    assert verdict.status is Status.UNDECIDED
    assert ("one replicate shows no spread" in reasons(verdict, "why")) == (len(noise) == 1)


def test_ratio_without_a_time_is_invalid() -> None:
    missing = run(device=None, workload=OTHER, incomplete="the GPU was throttled")
    verdict = judge_ratio(run(workload="mlp"), missing, "eager", by=0.05)
    assert (verdict.status, verdict.workload, verdict.subject) == (Status.INVALID, "mlp", "ratio")
    assert headline(verdict) == "eager: GPU time was not measured: the GPU was throttled"
