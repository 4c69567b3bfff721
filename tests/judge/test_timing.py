"""A time against its baseline: every status, and the text of a regression."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from kernelgauge.judge import DEFAULT_POLICIES, Policy, Reason, Status, Verdict, compare, from_run, judge_time
from kernelgauge.run import Sample, Timer
from tests.builders import H200, baseline, fingerprint, mlp_kernels, run

POLICY = Policy(tolerance=0.02, floor_us=0.1)
QUIET = (199.9, 200.0, 200.0, 200.1)


def judged(
    before: Sequence[float] | None,
    after: Sequence[float] | None,
    *,
    policy: Policy = POLICY,
    timer: Timer = Timer.DEVICE,
    **changes: Any,
) -> Verdict:
    field = {Timer.DEVICE: "device", Timer.HOST: "host", Timer.END_TO_END: "end_to_end"}[timer]
    stored = baseline(**{field: before})
    observed = run(**({field: after} | changes))
    return judge_time(timer, observed, stored, compare(stored.fingerprint, observed.fingerprint), policy)


def times(factor: float, sample: Sequence[float] = QUIET) -> tuple[float, ...]:
    return tuple(factor * value for value in sample)


@pytest.mark.parametrize("timer", Timer)
@pytest.mark.parametrize(
    ("factor", "status"),
    [
        (1.0, Status.PASS),
        (1.015, Status.PASS),
        (0.985, Status.PASS),
        (1.03, Status.REGRESSED),
        (2.0, Status.REGRESSED),
        (0.97, Status.IMPROVED),
        (0.5, Status.IMPROVED),
    ],
)
def test_quiet_samples_are_decided_by_the_tolerance(timer: Timer, factor: float, status: Status) -> None:
    verdict = judged(QUIET, times(factor), timer=timer)
    assert verdict.status is status
    assert verdict.subject == timer.label
    assert verdict.before_us == 200.0
    assert verdict.after_us == pytest.approx(200 * factor)
    assert verdict.change is not None
    assert verdict.change.estimate == pytest.approx(factor - 1)


@pytest.mark.parametrize("factor", [1.02, 0.98])
def test_an_interval_across_the_edge_of_the_tolerance_is_undecided(factor: float) -> None:
    verdict = judged(QUIET, times(factor))
    assert verdict.status is Status.UNDECIDED
    assert verdict.headline.endswith("tolerance 2 %: too noisy to tell")


def test_a_large_change_in_noise_is_undecided_and_not_slower() -> None:
    verdict = judged((150.0, 200.0, 250.0, 200.0), (160.0, 300.0, 230.0, 240.0))
    assert verdict.change is not None
    assert verdict.change.estimate > 10 * POLICY.tolerance / 2
    assert verdict.status is Status.UNDECIDED


def test_no_change_in_noise_is_undecided_and_not_a_pass() -> None:
    verdict = judged((150.0, 200.0, 250.0, 200.0), (160.0, 210.0, 240.0, 200.3))
    assert abs(verdict.after_us - verdict.before_us) > POLICY.floor_us  # type: ignore[operator]
    assert verdict.status is Status.UNDECIDED


def test_below_the_floor_a_change_passes_whatever_its_share() -> None:
    assert judged((1.0, 1.0, 1.0), (1.09, 1.09, 1.09)).status is Status.PASS
    assert judged((1.0, 1.0, 1.0), (1.11, 1.11, 1.11)).status is Status.REGRESSED
    assert judged((1.0, 1.0, 1.0), (0.91, 0.91, 0.91)).status is Status.PASS
    assert judged((1.0, 1.0, 1.0), (0.89, 0.89, 0.89)).status is Status.IMPROVED


def test_without_spread_the_edge_itself_still_passes() -> None:
    edge = Policy(tolerance=0.25, floor_us=0.0)
    assert judged((4.0, 4.0), (5.0, 5.0), policy=Policy(0.2500001, 0.0)).status is Status.PASS
    assert judged((4.0, 4.0), (5.01, 5.01), policy=edge).status is Status.REGRESSED


@pytest.mark.parametrize(("before", "after"), [((200.0,), times(2)), (QUIET, (400.0,))])
def test_one_replicate_decides_nothing_beyond_the_floor(before: Sequence[float], after: Sequence[float]) -> None:
    verdict = judged(before, after)
    assert verdict.status is Status.UNDECIDED
    assert "+100.0 % [no interval: one replicate]" in verdict.headline


def test_one_replicate_within_the_floor_passes() -> None:
    assert judged((200.0,), (200.05,)).status is Status.PASS


@pytest.mark.parametrize("timer", Timer)
def test_a_timer_that_was_not_measured_is_not_valid(timer: Timer) -> None:
    verdict = judged(QUIET, None, timer=timer)
    assert verdict.status is Status.INVALID
    assert verdict.headline == f"{timer.label} was not measured"


@pytest.mark.parametrize("timer", Timer)
def test_a_timer_that_the_baseline_lacks_has_no_baseline(timer: Timer) -> None:
    verdict = judged(None, QUIET, timer=timer)
    assert verdict.status is Status.NO_BASELINE
    assert verdict.headline == f"the baseline has no {timer.label}"


def test_a_timer_that_neither_has_is_not_valid() -> None:
    assert judged(None, None, timer=Timer.HOST).status is Status.INVALID


@pytest.mark.parametrize("after", [QUIET, times(2), None])
def test_on_a_foreign_machine_nothing_is_compared(after: Sequence[float] | None) -> None:
    verdict = judged(QUIET, after, machine=fingerprint(power_limit_watts=500.0))
    assert verdict.status is Status.INCOMPARABLE
    assert verdict.headline == "device time not compared: power_limit_watts 700.0 -> 500.0"
    assert (verdict.before_us, verdict.change) == (None, None)


def test_other_software_is_compared() -> None:
    assert judged(QUIET, times(1.03), machine=fingerprint(driver="590.1")).status is Status.REGRESSED


def test_a_pass_and_an_undecided_name_no_kernels() -> None:
    assert judged(QUIET, QUIET).reasons == ()
    assert judged(QUIET, times(1.02), kernels=mlp_kernels(gate=80)).reasons == ()


def test_an_improvement_names_its_kernels_as_well() -> None:
    verdict = judged(QUIET, times(0.9), kernels=mlp_kernels(us=18.1))
    assert [reason.label for reason in verdict.reasons] == ["why", "rest"]


@pytest.mark.parametrize("timer", [Timer.HOST, Timer.END_TO_END])
def test_a_host_time_has_no_kernels_to_name(timer: Timer) -> None:
    verdict = judged(QUIET, times(2), timer=timer, kernels=mlp_kernels(gate=80))
    assert verdict.status is Status.REGRESSED
    assert verdict.reasons == ()


def test_each_timer_has_a_policy_of_its_own() -> None:
    assert set(DEFAULT_POLICIES) == set(Timer)
    for policy in DEFAULT_POLICIES.values():
        assert 0 < policy.tolerance < 1
        assert policy.floor_us > 0
    assert DEFAULT_POLICIES[Timer.DEVICE].tolerance == min(policy.tolerance for policy in DEFAULT_POLICIES.values())


REGRESSION = """\
mlp-compiled-bf16-64x128x768x3072: REGRESSED  device time 205.1 -> 221.8 us  +8.1 % [95 % CI +8.0, +8.3], tolerance 0.5 %
  why      triton_poi_fused__unsafe_view_gelu_mul_0  38.1 -> 55.4 us: same source (crp6dxk5), other launch configuration:
           XBLOCK 1024 -> 512, num_warps 4 -> 8: Inductor's autotuner chose differently
  rest     3 GEMMs unchanged (same identity, -0.1 %)
  baseline baselines/nvidia-h200/mlp-compiled-bf16-64x128x768x3072.json   environment: identical
  accept   pytest perf -k mlp-compiled --perf-update"""


def test_a_regression_by_the_autotuner_reads_like_this() -> None:
    stored = baseline(device=(204.9, 205.0, 205.2, 205.3))
    observed = run(device=(221.5, 221.8, 221.8, 222.0), kernels=mlp_kernels(us=55.4, xblock=512, down=52.8))
    comparison = compare(H200, observed.fingerprint)
    verdict = judge_time(Timer.DEVICE, observed, stored, comparison, Policy(tolerance=0.005, floor_us=0.1))
    path = "baselines/nvidia-h200/mlp-compiled-bf16-64x128x768x3072.json"
    verdict = verdict.because(
        Reason("baseline", f"{path}   environment: {comparison}"),
        Reason("accept", "pytest perf -k mlp-compiled --perf-update"),
    )
    assert str(verdict) == REGRESSION


# -- the host's own speed -------------------------------------------------------------------------------------------


def on_hosts(before_control_us: float | None, after_control_us: float | None, factor: float) -> Verdict:
    """A host dispatch time that moved by `factor`, on a host whose control moved too."""
    first = run(samples={Timer.HOST: Sample(QUIET, 100, before_control_us)})
    second = run(samples={Timer.HOST: Sample(times(factor), 100, after_control_us)})
    stored = from_run(first, suite="perf")
    return judge_time(Timer.HOST, second, stored, compare(stored.fingerprint, second.fingerprint), POLICY)


@pytest.mark.parametrize(("before", "after", "factor"), [(14.0, 25.4, 1.8), (25.4, 14.0, 1.0), (25.4, 14.0, 0.6)])
def test_what_the_hosts_own_speed_may_explain_is_undecided(before: float, after: float, factor: float) -> None:
    verdict = on_hosts(before, after, factor)
    assert verdict.status is Status.UNDECIDED
    assert f"the host itself changed speed (control {before} -> {after} us)" in verdict.headline


def test_as_fast_as_before_on_a_slower_host_is_a_pass_and_on_a_faster_one_may_hide_something() -> None:
    assert on_hosts(14.0, 25.4, 1.0).status is Status.PASS
    assert on_hosts(25.4, 14.0, 1.0).status is Status.UNDECIDED


def test_a_small_change_is_not_blamed_on_the_code_where_the_host_moved_as_much() -> None:
    assert on_hosts(11.4, 13.0, 1.14).status is Status.UNDECIDED
    assert on_hosts(11.4, 11.4, 1.14).status is Status.REGRESSED


@pytest.mark.parametrize(
    ("before", "after", "factor", "status"),
    [
        (14.0, 25.4, 3.0, Status.REGRESSED),  # the host is 1.8 times slower, the call 3 times
        (14.0, 25.4, 0.5, Status.IMPROVED),
        (25.4, 14.0, 1.1, Status.REGRESSED),  # on a faster host
        (25.4, 14.0, 0.3, Status.IMPROVED),
    ],
)
def test_what_the_hosts_own_speed_cannot_explain_is_decided(
    before: float, after: float, factor: float, status: Status
) -> None:
    assert on_hosts(before, after, factor).status is status


@pytest.mark.parametrize(("before", "after"), [(14.0, 14.1), (14.1, 14.0), (14.0, 14.0), (None, 14.0), (14.0, None)])
def test_where_the_host_is_as_fast_as_before_its_clock_decides(before: float | None, after: float | None) -> None:
    assert on_hosts(before, after, 1.8).status is Status.REGRESSED
    assert on_hosts(before, after, 1.0).status is Status.PASS
