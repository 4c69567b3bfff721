"""A time against its baseline, in words: every status, and the causes of a change."""

from __future__ import annotations

import math
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
from kernelgauge.judge.slope import DISPATCH_SLOPE
from kernelgauge.run import Run, Sample, Timer
from tests.builders import (
    ELSEWHERE,
    H200,
    HERE,
    baseline,
    counts,
    fingerprint,
    mlp_kernels,
    of_grids,
    pair,
    policy,
    run,
    sample,
)

QUIET = (199.9, 200.0, 200.0, 200.1)
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


def times(factor: float, replicates: Sequence[float] = QUIET) -> tuple[float, ...]:
    return tuple(factor * value for value in replicates)


def of(verdict: Verdict, label: str) -> list[str]:
    return [reason.text for reason in verdict.reasons if reason.label == label]


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
    parts = of(verdict, "why")
    assert parts[0] == f"GPU busy {busy}"
    assert parts[1].startswith(f"GPU idle {idle}: ")
    assert verdict.before_us is not None
    assert verdict.after_us is not None
    told = sum(float(re.findall(r"\(([+-][\d.]+)\)", part)[0]) for part in parts)
    assert told == pytest.approx(verdict.after_us - verdict.before_us, abs=0.11)


def test_where_the_gpu_waits_longer_than_it_works_the_launches_bind() -> None:
    assert of(latency((170.0, 170.0), (400.0, 400.0)), "why")[1].endswith(": launch-bound")
    assert of(latency((260.0, 260.0), (360.0, 360.0)), "why")[1].endswith(": the host, or the launches")


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


# -- the host's own speed -------------------------------------------------------------------------------------------


def on_hosts(before_us: float | None, after_us: float | None, factor: float, timer: Timer = Timer.HOST) -> Verdict:
    """A clock of the host that moved by `factor`, on a host whose control moved too."""
    no_device = mlp_kernels(0.1, 0.1, 0.1, us=0.1)  # of a latency too, all is the host's
    stored = from_run(run(kernels=no_device, samples={timer: sample(QUIET, control_us=before_us)}), suite="perf")
    second = run(kernels=no_device, samples={timer: sample(times(factor), control_us=after_us)})
    return judge_time(timer, second, stored, compare(H200, H200))


@pytest.mark.parametrize("timer", [Timer.HOST, Timer.END_TO_END])
@pytest.mark.parametrize(
    ("before", "after", "factor", "status"),
    [
        pytest.param(14.0, 14.0, 1.0, Status.PASS, id="the same"),
        pytest.param(14.0, 14.5, 14.5 / 14, Status.PASS, id="the host a little slower, and all with it"),
        pytest.param(14.0, 14.0, 1.1, Status.REGRESSED, id="a tenth slower on the same host"),
        pytest.param(14.0, 14.0, 0.9, Status.IMPROVED, id="a tenth faster on the same host"),
        pytest.param(14.0, 13.5, 1.1, Status.REGRESSED, id="a tenth slower on a faster host"),
        pytest.param(14.0, 28.0, 6.0, Status.REGRESSED, id="six times slower on a host of half the speed"),
        pytest.param(28.0, 14.0, 0.15, Status.IMPROVED, id="far faster than the host became"),
        pytest.param(None, 14.0, 2.0, Status.UNDECIDED, id="no control before"),
        pytest.param(14.0, None, 2.0, Status.UNDECIDED, id="no control now"),
        pytest.param(None, None, 2.0, Status.UNDECIDED, id="no control"),
    ],
)
def test_a_clock_of_the_host_is_compared_at_equal_speed_of_the_host(
    timer: Timer, before: float | None, after: float | None, factor: float, status: Status
) -> None:
    assert on_hosts(before, after, factor, timer).status is status


def latency_of(mlp_us: float, control_us: float, *, against: tuple[float, float]) -> Verdict:
    """Of an MLP whose kernels take 204.6 us; `against`: the same two of its baseline."""

    def measured(mlp_us: float, control_us: float) -> Run:
        spread = (0.996, 0.998, 1.0, 1.0, 1.0, 1.002, 1.002, 1.004)
        latency = sample([mlp_us * each for each in spread], control_us=control_us)
        return run(samples={Timer.DEVICE: sample([204.5, 204.6, 204.7]), Timer.END_TO_END: latency})

    stored = from_run(measured(*against), suite="perf")
    return judge_time(Timer.END_TO_END, measured(mlp_us, control_us), stored, compare(H200, H200))


@pytest.mark.parametrize(
    ("before", "after", "status"),
    [
        pytest.param(
            (280.6, 60.4), (275.9, 38.7), Status.PASS, id="recorded on a slow host, as it was seen on an H200"
        ),
        pytest.param((281.9, 40.3), (280.6, 60.4), Status.PASS, id="measured on a slow host, as it was seen"),
        pytest.param((280.6, 40.0), (280.6, 40.0), Status.PASS, id="the same"),
        pytest.param((280.6, 40.0), (308.7, 40.0), Status.REGRESSED, id="a tenth slower on the same host"),
        pytest.param((280.6, 60.4), (308.7, 55.0), Status.REGRESSED, id="a tenth slower on a somewhat faster host"),
        pytest.param((280.6, 55.0), (308.7, 60.4), Status.REGRESSED, id="a tenth slower on a somewhat slower host"),
    ],
)
def test_a_latency_may_follow_the_host_or_not(
    before: tuple[float, float], after: tuple[float, float], status: Status
) -> None:
    """Of what the device does not fill, some waits for the GPU: on one host it stays while the control halves."""
    assert latency_of(*after, against=before).status is status


# What two H200s of one host showed while its processors were busy with other work: the latencies and their controls of
# one process, judged against one that ran before that.
LIGER_CALM = (252.4, 62.0)
LIGER_US = (355.7, 334.7, 331.0, 327.0, 333.7, 312.9, 322.5, 319.6, 326.3, 324.0, 357.8, 331.0)
LIGER_CONTROL_US = (97.6, 91.7, 93.9, 95.1, 91.8, 95.6, 89.6, 93.0, 93.2, 94.8, 99.3, 94.1)


def test_a_host_so_slow_that_a_full_gpu_waits_for_it_is_no_regression() -> None:
    """Its launches take as long as the kernels: the latency of an MLP, else the device's, follows the host in full."""

    def measured(latency: Sample) -> Run:
        return run(samples={Timer.DEVICE: sample([212.4, 212.6, 212.8]), Timer.END_TO_END: latency})

    calm_us, control_us = LIGER_CALM
    spread = (0.995, 0.998, 1.0, 1.0, 1.002, 1.005)
    stored = from_run(measured(sample([calm_us * each for each in spread], control_us=control_us)), suite="perf")
    slow = measured(Sample(LIGER_US, 20, LIGER_CONTROL_US))
    verdict = judge_time(Timer.END_TO_END, slow, stored, compare(H200, H200), comparisons=108)
    assert verdict.status is Status.UNDECIDED
    assert verdict.headline.endswith("(control): the host's own speed may be all of it")
    assert verdict.change is not None
    assert verdict.change.estimate > 0.15
    on_the_same_host = measured(Sample(LIGER_US, 20, tuple(control / 1.5 for control in LIGER_CONTROL_US)))
    again = judge_time(Timer.END_TO_END, on_the_same_host, stored, compare(H200, H200), comparisons=108)
    assert again.status is Status.REGRESSED


@pytest.mark.parametrize(("scale", "status"), [(1.0, Status.REGRESSED), (12.0, Status.UNDECIDED)])
def test_replicates_that_scatter_far_more_than_usual_tell_of_a_host_whose_mean_is_off_as_well(
    scale: float, status: Status
) -> None:
    """Twenty replicates are no twenty independent ones: what disturbs a host lasts."""
    deviations = (-1.5, -1.0, -0.6, -0.3, -0.1, 0.1, 0.3, 0.6, 1.0, 1.5)
    dispatch = [125.0 * math.exp(0.01 * scale * each) for each in (*deviations, *deviations)]
    stored = from_run(
        run(samples={Timer.HOST: sample([100.0 * each for each in (0.99, 1.0, 1.0, 1.01)], control_us=27.0)}),
        suite="perf",
    )
    after = run(samples={Timer.HOST: sample(dispatch, control_us=27.0)})
    verdict = judge_time(Timer.HOST, after, stored, compare(H200, H200), comparisons=108)
    assert verdict.status is status
    assert verdict.suspicious  # a second look finds it calmer, perhaps
    if status is Status.UNDECIDED:
        assert verdict.headline.endswith(
            "the host was disturbed while it measured: its replicates scatter by far more than usual"
        )


@pytest.mark.parametrize(
    ("control_us", "factor", "status"),
    [(14.0 / 1.3, 1.25, Status.REGRESSED), (14.0 * 1.3, 0.8, Status.IMPROVED), (14.0 * 1.3, 0.998, Status.PASS)],
)
def test_a_dispatch_time_is_compared_at_equal_speed_and_no_more_is_explained_by_it(
    control_us: float, factor: float, status: Status
) -> None:
    """What a slope does not know of a time that is all the host's is in its own variance."""
    factor *= (control_us / 14.0) ** DISPATCH_SLOPE.value
    assert on_hosts(14.0, control_us, factor).status is status


@pytest.mark.parametrize(
    ("percent", "status"), [(0.28, Status.PASS), (0.33, Status.REGRESSED), (-0.33, Status.IMPROVED)]
)
def test_a_device_time_may_differ_by_three_tenths_of_a_percent(percent: float, status: Status) -> None:
    processes = [run(samples={Timer.DEVICE: sample(times(1.0))}) for _ in range(12)]
    after = run(samples={Timer.DEVICE: sample(times(1 + percent / 100, QUIET * 8))})
    verdict = judge_time(Timer.DEVICE, after, calibrated(processes, suite="perf"), compare(H200, H200))
    assert verdict.status is status


@pytest.mark.parametrize(
    ("before", "after", "factor"),
    [(14.0, 28.0, 2**DISPATCH_SLOPE.value), (28.0, 14.0, 0.5**DISPATCH_SLOPE.value)],
    ids=["slower", "faster"],
)
def test_what_moved_as_much_as_the_host_itself_is_no_change_and_both_are_told(
    before: float, after: float, factor: float
) -> None:
    verdict = on_hosts(before, after, factor)
    assert verdict.status not in (Status.REGRESSED, Status.IMPROVED)
    assert "+0.00 % at equal host speed" in verdict.headline.replace("-0.00", "+0.00")
    assert f", the host itself {before} -> {after} us (control)" in verdict.headline


def test_the_parts_of_a_latency_are_of_the_processes_that_it_is_compared_with() -> None:
    """Of a baseline of two hosts, one of them half as slow again."""
    of_20_us = of_grids(*[(128, 1, 1)] * 6)

    def taking(us: float, control: float, gpu: str) -> Run:
        times = {"device": (20.0, 20.0) * 6, "end_to_end": (us, us + 0.1) * 6}
        return run(**times, kernels=of_20_us, host_control_us=control, gpu=gpu)

    hosts = {32.0: 50.0, 55.0: 110.0}
    processes = [taking(us, control, f"{control}{place}") for control, us in hosts.items() for place in range(8)]
    observed = taking(70.0, 32.0, "another")
    verdict = judge_time(Timer.END_TO_END, observed, calibrated(processes, suite="perf"), compare(H200, H200))
    assert verdict.status is Status.REGRESSED
    assert verdict.headline.startswith("end to end 50.0 -> 70.0 us  +")
    assert of(verdict, "why")[1].startswith("GPU idle 30.1 -> 50.0 us (+20.0)")


def test_a_gpu_that_is_not_known_is_as_fast_in_the_copy_as_one_that_is() -> None:
    processes = [run(device=(us, us * 1.001) * 4, gpu=f"{us}") for us in (204.0, 205.0, 206.0, 205.0, 204.5)]
    observed = run(device=(260.0, 260.1) * 6, controls=pair(gemm=153.0), gpu="another")
    verdict = judge_time(Timer.DEVICE, observed, calibrated(processes, suite="perf"), compare(H200, H200))
    assert verdict.status is Status.REGRESSED
    assert of(verdict, "machine") == [
        "another GPU of the kind, as fast in the copy as one that the baseline knows (copy +0.0 %, gemm +2.0 %)"
    ]
