"""A time against its baseline, in words: every status, and the causes of a change."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest

from kernelgauge.judge import (
    DEFAULT_POLICIES,
    Policy,
    Reason,
    Status,
    Verdict,
    calibrated,
    compare,
    from_run,
    judge_time,
    policies_for,
)
from kernelgauge.run import Sample, Timer
from tests.builders import (
    ELSEWHERE,
    H200,
    HERE,
    baseline,
    counts,
    fingerprint,
    mlp_kernels,
    pair,
    policy,
    reasons,
    run,
    sample,
)
from tests.judge.timed import QUIET, times

FIELDS = {Timer.DEVICE: "device", Timer.HOST: "host", Timer.END_TO_END: "end_to_end"}


def judged(
    before: Sequence[float] | None = QUIET,
    after: Sequence[float] | None = QUIET,
    *,
    rule: Policy | None = None,
    timer: Timer = Timer.DEVICE,
    **changes: Any,
) -> Verdict:
    stored = baseline(**{FIELDS[timer]: before})
    observed = run(**({FIELDS[timer]: after} | changes))
    comparison = compare(stored.fingerprint, observed.fingerprint)
    return judge_time(timer, observed, stored, comparison, policy=rule or policy())


@pytest.mark.parametrize("timer", Timer)
@pytest.mark.parametrize(
    ("factor", "status"), [(1.0, Status.PASS), (1.005, Status.PASS), (1.03, Status.REGRESSED), (0.97, Status.IMPROVED)]
)
def test_a_verdict_holds_the_decision_and_both_times(timer: Timer, factor: float, status: Status) -> None:
    verdict = judged(after=times(factor), timer=timer)
    assert (verdict.status, verdict.subject) == (status, timer.label)
    assert verdict.before_us == pytest.approx(200.0, abs=0.05)
    assert verdict.after_us == pytest.approx(200 * factor, abs=0.05)
    assert verdict.change is not None
    assert verdict.change.estimate == pytest.approx(factor - 1, abs=1e-4)
    assert verdict.suspicious is (status is not Status.PASS)


def test_the_level_of_a_verdict_is_that_of_the_suite() -> None:
    stored = baseline()
    verdict = judge_time(Timer.DEVICE, run(), stored, compare(H200, H200), comparisons=21)
    assert verdict.change is not None
    assert verdict.change.confidence == pytest.approx(1 - 2 * 0.01 / 21)
    assert "[99.90 % CI " in verdict.headline


@pytest.mark.parametrize("timer", Timer)
def test_without_a_policy_a_timer_is_judged_by_its_own(timer: Timer) -> None:
    stored, observed = baseline(), run()
    own = judge_time(timer, observed, stored, compare(H200, H200), policy=DEFAULT_POLICIES[timer])
    assert judge_time(timer, observed, stored, compare(H200, H200)) == own


def test_of_all_timers_the_device_time_is_held_to_the_least() -> None:
    assert set(DEFAULT_POLICIES) == set(policies_for("cpu")) == set(Timer)
    assert policies_for("sm_90") is DEFAULT_POLICIES
    for rule in DEFAULT_POLICIES.values():
        assert 0 < rule.tolerance < rule.blind < 1
        assert 0 < rule.floor_us < rule.blind_us
    assert DEFAULT_POLICIES[Timer.DEVICE].tolerance == min(rule.tolerance for rule in DEFAULT_POLICIES.values())


@pytest.mark.parametrize(
    ("percent", "status"), [(0.28, Status.PASS), (0.33, Status.REGRESSED), (-0.33, Status.IMPROVED)]
)
def test_a_device_time_may_differ_by_three_tenths_of_a_percent(percent: float, status: Status) -> None:
    processes = [run(samples={Timer.DEVICE: sample(times(1.0))}) for _ in range(12)]
    after = run(samples={Timer.DEVICE: sample(times(1 + percent / 100, QUIET * 8))})
    verdict = judge_time(Timer.DEVICE, after, calibrated(processes, suite="perf"), compare(H200, H200))
    assert verdict.status is status


# -- what cannot be compared ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("timer", Timer)
def test_a_timer_that_was_not_measured_is_not_valid(timer: Timer) -> None:
    verdict = judged(after=None, timer=timer)
    assert (verdict.status, verdict.headline) == (Status.INVALID, f"{timer.label} was not measured")


def test_why_a_timer_was_not_measured_is_said_where_it_is_known() -> None:
    verdict = judged(after=None, incomplete="the GPU was taken away")
    assert verdict.headline == "device time was not measured: the GPU was taken away"


@pytest.mark.parametrize("timer", Timer)
def test_a_timer_that_the_baseline_lacks_has_no_baseline(timer: Timer) -> None:
    verdict = judged(before=None, timer=timer)
    assert (verdict.status, verdict.headline) == (Status.NO_BASELINE, f"the baseline has no {timer.label}")


def test_a_timer_that_neither_has_is_not_valid() -> None:
    assert judged(None, None, timer=Timer.HOST).status is Status.INVALID


@pytest.mark.parametrize("after", [QUIET, times(2), None])
def test_on_a_foreign_machine_nothing_is_compared(after: Sequence[float] | None) -> None:
    verdict = judged(after=after, machine=fingerprint(power_limit_watts=500.0))
    assert verdict.status is Status.INCOMPARABLE
    assert verdict.headline == "device time not compared: power_limit_watts 700.0 -> 500.0"
    assert (verdict.before_us, verdict.change) == (None, None)


def test_other_software_is_compared() -> None:
    assert judged(after=times(1.03), machine=fingerprint(driver="590.1")).status is Status.REGRESSED


# -- what is not decided --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("before", "after"), [((200.0,), times(2)), (QUIET, (400.0,))])
def test_one_replicate_decides_nothing_and_is_shown(before: Sequence[float], after: Sequence[float]) -> None:
    verdict = judged(before, after)
    assert verdict.status is Status.UNDECIDED
    assert verdict.headline == (
        "device time 200.0 -> 400.0 us  +100.00 % [no interval]: "
        "too little is known of the noise: one replicate, or no control of the host"
    )


def test_noisy_replicates_are_told_with_the_number_that_would_decide() -> None:
    verdict = judged(after=(150.0, 250.0, 200.0, 210.0))
    assert verdict.status is Status.UNDECIDED
    assert re.search(
        r": too noisy to tell; about \d+ more replicates would decide \(--perf-replicates\)$", verdict.headline
    )


def test_of_a_host_clock_the_replicates_that_are_told_are_those_to_measure() -> None:
    """Of twelve measured four are kept: for each that is missing, three more are measured."""
    noisy, bound = (150.0, 250.0, 200.0, 210.0), policy(blind=0.2)
    kept = judged(timer=Timer.HOST, after=noisy[:3], rule=bound, host_control_us=14.0)
    slow_hosts = Sample((*noisy[:3], *[999.0] * 6), 40, (14.0,) * 3 + (28.0,) * 6)
    stored = baseline(host=QUIET)
    observed = run(samples={Timer.HOST: slow_hosts})
    measured = judge_time(Timer.HOST, observed, stored, compare(H200, H200), policy=bound)
    assert measured.change == kept.change
    fewer, more = (int(re.findall(r"about (\d+) more", verdict.headline)[0]) for verdict in (kept, measured))
    assert more == 3 * fewer


@pytest.mark.parametrize(("gpu", "where"), [(HERE, "between processes"), (ELSEWHERE, "between machines")])
def test_noise_that_no_replicates_remove_is_told_by_its_level(gpu: str, where: str) -> None:
    blind = policy(blind=0.0001, blind_us=0.01)
    verdict = judged(rule=blind, gpu=gpu)
    assert verdict.status is Status.UNDECIDED
    assert verdict.headline.endswith(
        f"no number of replicates decides: the noise {where} is too large; kernelgauge calibrate measures it"
    )


def test_what_is_not_decided_names_no_kernels() -> None:
    assert judged((200.0,), times(1.3), kernels=mlp_kernels(gate=80)).reasons == ()


# -- which of the baseline's processes ------------------------------------------------------------------------------


def test_the_times_that_are_shown_are_those_that_are_compared() -> None:
    runs = [run(device=QUIET, gpu=HERE), run(device=times(1.04), gpu=ELSEWHERE)]
    stored = calibrated(runs, suite="perf")
    for observed, before_us in ((runs[0], 200.0), (runs[1], 208.0)):
        verdict = judge_time(Timer.DEVICE, observed, stored, compare(H200, H200))
        assert verdict.status is Status.PASS
        assert verdict.before_us == pytest.approx(before_us, abs=0.05)


# -- why ------------------------------------------------------------------------------------------------------------


def test_a_faster_gpu_of_the_baseline_carries_no_part_of_a_kernels_change() -> None:
    """The stored kernels are means over all GPUs; the run is compared with its own, on which each takes 2 % less."""
    slow, fast = (
        run(device=times(f), gpu=gpu, kernels=kernels)
        for f, gpu, kernels in (
            (1.02, ELSEWHERE, mlp_kernels(51.0, 51.0, 51.0, us=51.0)),
            (1.0, HERE, mlp_kernels(50.0, 50.0, 50.0, us=50.0)),
        )
    )
    stored = calibrated([slow, fast], suite="perf")
    observed = run(device=times(1.02), gpu=HERE, kernels=mlp_kernels(50.0, 50.0, 50.0, us=54.0))
    verdict = judge_time(Timer.DEVICE, observed, stored, compare(H200, H200), policy=policy())
    assert verdict.status is Status.REGRESSED
    (why,) = reasons(verdict, "why")
    assert "50.0 -> 54.0 us (+4.00)" in why
    assert reasons(verdict, "rest") == ["3 GEMMs unchanged (same identity, +0.0 %, +0.00 us)"]


def test_a_pass_names_no_kernels() -> None:
    assert judged(kernels=mlp_kernels(gate=56.5)).reasons == ()


def test_an_improvement_names_its_kernels_as_well() -> None:
    verdict = judged(after=times(0.9), kernels=mlp_kernels(us=18.1))
    assert [reason.label for reason in verdict.reasons] == ["why", "rest", "machine"]


def test_a_host_that_does_more_is_told_by_its_ops() -> None:
    verdict = judged(timer=Timer.HOST, after=times(2), counts=counts(dispatcher_ops=9))
    assert verdict.reasons == (Reason("why", "dispatcher ops 3 -> 9"),)


def test_a_host_that_does_as_much_and_takes_longer_is_told_so() -> None:
    verdict = judged(timer=Timer.HOST, after=times(2), kernels=mlp_kernels(gate=80))
    assert verdict.reasons == (Reason("why", "the host is slower in the same 3 dispatcher ops, or around them"),)


def latency(device: Sequence[float], end_to_end: Sequence[float]) -> Verdict:
    """Of a baseline on two GPUs, the second of which is slower in all."""
    here = run(device=(200.0, 200.0), end_to_end=(300.0, 300.0), gpu=HERE)
    there = run(device=(220.0, 220.0), end_to_end=(350.0, 350.0), gpu=ELSEWHERE)
    stored = calibrated([here, there], suite="perf")
    observed = run(device=device, end_to_end=end_to_end, gpu=HERE)
    return judge_time(Timer.END_TO_END, observed, stored, compare(H200, H200))


@pytest.mark.parametrize(
    ("device", "end_to_end", "busy", "idle"),
    [
        ((260.0, 260.0), (360.0, 360.0), "200.0 -> 260.0 us (+60.0)", "100.0 -> 100.0 us (+0.0)"),
        ((200.0, 200.0), (360.0, 360.0), "200.0 -> 200.0 us (+0.0)", "100.0 -> 160.0 us (+60.0)"),
        ((170.0, 170.0), (400.0, 400.0), "200.0 -> 170.0 us (-30.0)", "100.0 -> 230.0 us (+130.0)"),
    ],
)
def test_a_latency_is_told_by_its_parts_which_sum_to_its_change(
    device: Sequence[float], end_to_end: Sequence[float], busy: str, idle: str
) -> None:
    verdict = latency(device, end_to_end)
    assert verdict.status is Status.REGRESSED
    parts = reasons(verdict, "why")
    assert parts[0] == f"GPU busy {busy}"
    assert parts[1].startswith(f"GPU idle {idle}: ")
    assert verdict.before_us is not None
    assert verdict.after_us is not None
    told = sum(float(re.findall(r"\(([+-][\d.]+)\)", part)[0]) for part in parts)
    assert told == pytest.approx(verdict.after_us - verdict.before_us, abs=0.11)


def test_of_a_latency_on_a_processor_no_gpu_is_spoken_of() -> None:
    machine = fingerprint(arch="cpu", device="CPU")
    stored = from_run(run(device=(400.0, 400.0), end_to_end=(300.0, 300.0), gpu=None, machine=machine), suite="perf")
    observed = run(device=(410.0, 410.0), end_to_end=(900.0, 900.0), gpu=None, machine=machine)
    verdict = judge_time(Timer.END_TO_END, observed, stored, compare(machine, machine))
    assert verdict.status is Status.REGRESSED
    assert reasons(verdict, "why") == []


def test_where_the_gpu_waits_longer_than_it_works_the_launches_bind() -> None:
    assert reasons(latency((170.0, 170.0), (400.0, 400.0)), "why")[1].endswith(": launch-bound")
    assert reasons(latency((260.0, 260.0), (360.0, 360.0)), "why")[1].endswith(": the host, or the launches")


def test_a_latency_without_a_device_time_has_no_parts() -> None:
    assert judged(timer=Timer.END_TO_END, after=times(2), device=None).reasons == ()


REGRESSION = """\
mlp-compiled-bf16-64x128x768x3072: REGRESSED  device time 205.1 -> 221.8 us  +8.13 % [98.00 % CI +7.76, +8.51]
  why      triton_poi_fused__unsafe_view_gelu_mul_0  38.1 -> 55.4 us (+17.30): same source (crp6dxk5), other launch configuration:
           XBLOCK 1024 -> 512, num_warps 4 -> 8: Inductor's autotuner chose differently
  rest     3 GEMMs unchanged (same identity, -0.1 %, -0.20 us)
  machine  the control pair (copy +0.0 %, gemm +0.0 %) did not: it is not the machine
  baseline baselines/nvidia-h200/mlp-compiled-bf16-64x128x768x3072.json   environment: identical
  accept   pytest perf -k mlp-compiled --perf-update"""


def test_a_regression_by_the_autotuner_reads_like_this() -> None:
    path = "baselines/nvidia-h200/mlp-compiled-bf16-64x128x768x3072.json"
    verdict = judged(
        (204.9, 205.0, 205.2, 205.3), (221.5, 221.8, 221.8, 222.0), kernels=mlp_kernels(us=55.4, xblock=512, down=52.8)
    ).because(
        Reason("baseline", f"{path}   environment: identical"),
        Reason("accept", "pytest perf -k mlp-compiled --perf-update"),
    )
    assert str(verdict) == REGRESSION


def test_a_gpu_that_is_not_known_is_as_fast_in_the_copy_as_one_that_is() -> None:
    processes = [run(device=(us, us * 1.001) * 4, gpu=f"{us}") for us in (204.0, 205.0, 206.0, 205.0, 204.5)]
    observed = run(device=(260.0, 260.1) * 6, controls=pair(gemm=153.0), gpu="another")
    verdict = judge_time(Timer.DEVICE, observed, calibrated(processes, suite="perf"), compare(H200, H200))
    assert verdict.status is Status.REGRESSED
    assert reasons(verdict, "machine") == [
        "another GPU of the kind, as fast in the copy as one that the baseline knows (copy +0.0 %, gemm +2.0 %)"
    ]
