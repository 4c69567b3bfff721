"""The rule for times, as a verdict shows it. Noise is drawn with a fixed seed where it matters."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from kernelgauge.judge import Baseline, Limits, Status, Verdict, calibrated, compare, from_run, judge_time
from kernelgauge.judge.baseline import merge_entries
from kernelgauge.run import Fingerprint, Run, Sample, Timer
from tests.builders import ELSEWHERE, H200, HERE, counts, fingerprint, mlp_kernels, pair, reasons, run

FIELDS = {Timer.DEVICE: "device", Timer.HOST: "host", Timer.END_TO_END: "end_to_end"}
QUIET = (199.9, 200.0, 200.0, 200.1)
CPU = fingerprint(device="a CPU", arch="cpu")


def times(factor: float) -> tuple[float, ...]:
    return tuple(factor * value for value in QUIET)


def known(factors: Sequence[float] = (1.0,), *, timer: Timer = Timer.DEVICE, **changes: Any) -> Baseline:
    """A baseline of a process for each factor."""
    return calibrated([run(**{FIELDS[timer]: times(each)} | changes) for each in factors], suite="perf")


def judged(
    factor: float = 1.0,
    before: Baseline | None = None,
    *,
    timer: Timer = Timer.DEVICE,
    rule: Any = None,
    **changes: Any,
) -> Verdict:
    observed = run(**({FIELDS[timer]: times(factor)} | changes))
    stored = before or known(timer=timer)
    return judge_time(timer, observed, stored, compare(stored.fingerprint, observed.fingerprint), **(rule or {}))


# -- alarms and passes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("timer", "factor", "status"),
    [
        (Timer.DEVICE, 1.0, Status.PASS),
        (Timer.DEVICE, 1.002, Status.PASS),  # below the gate of 0.3 %
        (Timer.DEVICE, 1.01, Status.REGRESSED),
        (Timer.DEVICE, 0.99, Status.IMPROVED),
        (Timer.HOST, 1.04, Status.PASS),
        (Timer.HOST, 1.3, Status.REGRESSED),
        (Timer.HOST, 0.7, Status.IMPROVED),
        (Timer.END_TO_END, 1.2, Status.PASS),  # below the gate of 25 %
        (Timer.END_TO_END, 1.5, Status.REGRESSED),
    ],
)
def test_time_change_gives_status(timer: Timer, factor: float, status: Status) -> None:
    verdict = judged(factor, timer=timer)
    assert (verdict.status, verdict.subject) == (status, timer.label)
    assert verdict.before_us == pytest.approx(200.0, abs=0.05)
    assert verdict.after_us == pytest.approx(200 * factor, abs=0.05)
    assert verdict.change is not None
    assert verdict.change.estimate == pytest.approx(factor - 1, abs=1e-4)


def test_pass_names_the_slowdown_that_would_have_failed() -> None:
    verdict = judged()
    assert verdict.change is not None
    assert verdict.change.sensitivity is not None
    shown = float(verdict.headline.rpartition("+")[2].removesuffix(" % or more would have failed"))
    assert verdict.change.sensitivity <= shown / 100 <= 1.1 * verdict.change.sensitivity  # rounded up
    assert judged(1 + 1.5 * verdict.change.sensitivity).status is Status.REGRESSED


def test_sensitivity_beyond_what_is_asked_is_undecided() -> None:
    change = judged().change
    assert change is not None
    assert change.sensitivity is not None
    asked = judged(rule={"limits": Limits(sensitivity={Timer.DEVICE: 0.9 * change.sensitivity})})
    assert asked.status is Status.UNDECIDED
    assert "inconclusive" in asked.headline
    assert reasons(asked, "next")[0].startswith("kernelgauge calibrate")
    assert judged(rule={"limits": Limits(sensitivity={Timer.DEVICE: 1.1 * change.sensitivity})}).status is Status.PASS


def test_gate_of_the_suite_decides_what_is_a_finding() -> None:
    assert judged(1.01, rule={"limits": Limits(gate={Timer.DEVICE: 0.02})}).status is Status.PASS
    assert judged(1.01, rule={"limits": Limits(gate={Timer.HOST: 0.02})}).status is Status.REGRESSED


def test_single_replicate_is_undecided() -> None:
    assert judged(device=(200.0,)).status is Status.UNDECIDED


def test_more_comparisons_need_a_larger_change() -> None:
    few, many = (judged(rule={"comparisons": count}).change for count in (3, 300))
    assert few is not None
    assert many is not None
    assert few.sensitivity is not None
    assert many.sensitivity is not None
    assert few.sensitivity < many.sensitivity


def test_noisy_baseline_needs_a_larger_change() -> None:
    steady, noisy = known([1.0] * 6), known([0.99, 1.0, 1.01] * 2)
    assert judged(1.01, steady).status is Status.REGRESSED
    assert judged(1.01, noisy).status is Status.PASS


def test_unknown_gpu_model_has_wide_priors() -> None:
    other = fingerprint(device="Another GPU")
    assert judged(1.01).status is Status.REGRESSED
    assert judged(1.01, known(machine=other), machine=other).status is Status.PASS


def test_disturbed_replicates_widen_the_interval() -> None:
    assert judged(device=(204, 200, 208, 204)).status is Status.PASS
    assert judged(device=(204.0, 203.9, 204.1, 204.0)).status is Status.REGRESSED


@pytest.mark.parametrize("huge", [1e-3, 1e12])
def test_absurd_durations_are_judged_without_overflow(huge: float) -> None:
    verdict = judged(device=(huge, huge, huge))
    assert verdict.change is not None
    assert math.isfinite(verdict.change.estimate)


# -- GPUs and hosts ----------------------------------------------------------------------------------------------------


def on_host(measured: Run, name: str) -> Run:
    return msgspec.structs.replace(measured, host=name)


def fleet(gpus: int, *, hosts: int, slope: float = 0.0, spread: float = 0.0) -> Baseline:
    """A baseline of one process for each GPU, whose times follow the reference GEMM."""
    chance = random.Random(7)
    runs = []
    for number in range(gpus):
        speed = chance.gauss(0, 0.01)
        off = math.exp(slope * speed + chance.gauss(0, spread))
        controls = pair(gemm=150 * math.exp(speed))
        runs.append(on_host(run(device=times(off), gpu=f"gpu{number}", controls=controls), f"host{number % hosts}"))
    return calibrated(runs, suite="perf")


def test_unknown_gpu_needs_a_larger_change() -> None:
    assert judged(1.007, gpu=ELSEWHERE).status is Status.PASS
    assert judged(1.007).status is Status.REGRESSED
    assert judged(1.06, gpu=ELSEWHERE).status is Status.REGRESSED


def test_unknown_gpu_is_predicted_by_the_reference_gemm() -> None:
    known_gpus = fleet(8, hosts=8, slope=0.45)
    slow = {"gpu": ELSEWHERE, "controls": pair(gemm=150 * math.exp(0.03))}
    assert judged(math.exp(0.45 * 0.03), known_gpus, **slow).change.estimate == pytest.approx(0.0, abs=2e-3)  # type: ignore[union-attr]
    assert judged(1.04, known_gpus, **slow).status is Status.REGRESSED


def test_gpus_of_one_host_count_as_one() -> None:
    of_one, of_many = (judged(1.0, fleet(8, hosts=hosts), gpu=ELSEWHERE).change for hosts in (1, 8))
    assert of_one is not None
    assert of_many is not None
    assert of_one.sensitivity is not None
    assert of_many.sensitivity is not None
    assert of_one.sensitivity > of_many.sensitivity


@pytest.mark.parametrize("timer", [Timer.HOST, Timer.END_TO_END])
def test_host_clock_on_unknown_gpu_is_not_judged(timer: Timer) -> None:
    verdict = judged(3.0, timer=timer, gpu=ELSEWHERE)
    assert verdict.status is Status.NOT_JUDGED
    assert verdict.headline.endswith("not judged: the baseline does not know this machine")


@pytest.mark.parametrize("timer", [Timer.HOST, Timer.END_TO_END])
def test_host_clock_on_slow_host_is_not_judged(timer: Timer) -> None:
    verdict = judged(3.0, timer=timer, host_control_us=28.0)
    assert verdict.status is Status.NOT_JUDGED
    assert "this host was 100 % slower (reference 14.0 -> 28.0 us)" in verdict.headline


def test_dispatch_is_judged_at_equal_host_speed() -> None:
    assert judged(1.2, timer=Timer.HOST, host_control_us=1.2 * 14.0).status is Status.PASS
    assert "at equal host speed" in judged(1.5, timer=Timer.HOST).headline


def test_time_on_unknown_cpu_host_is_not_judged() -> None:
    def measured(factor: float, host: str) -> Run:
        return on_host(run(device=times(factor), machine=CPU, gpu=None, controls={}), host)

    stored = from_run(measured(1.0, "here"), suite="perf")
    for factor, host, status in (
        (2.0, "there", Status.NOT_JUDGED),
        (2.0, "here", Status.REGRESSED),
        (1.2, "here", Status.PASS),
    ):
        verdict = judge_time(Timer.DEVICE, measured(factor, host), stored, compare(CPU, CPU))
        assert verdict.status is status


# -- the machine -------------------------------------------------------------------------------------------------------


def test_slower_gpu_is_no_regression_and_told_once() -> None:
    verdict = judged(1.01, controls=pair(gemm=150 * 1.012))
    assert verdict.status is Status.PASS
    assert reasons(verdict, "machine") == ["the GPU itself changed its speed (reference copy +0.0 %, gemm +1.2 %)"]


def test_regression_beyond_the_machine_is_found() -> None:
    assert judged(1.03, controls=pair(gemm=150 * 1.01)).status is Status.REGRESSED


def test_machine_that_changed_too_much_is_undecided() -> None:
    verdict = judged(1.3, controls=pair(gemm=150 * 1.3))
    assert verdict.status is Status.UNDECIDED
    assert "the GPU's own change of speed hides +25 %" in verdict.headline


def test_other_reference_kernels_are_not_compared() -> None:
    verdict = judged(1.01, controls=pair(gemm=150 * 1.012, gemm_kernel="another"))
    assert verdict.status is Status.REGRESSED


# -- the autotuner's choice --------------------------------------------------------------------------------------------


def chosen(xblock: int, us: float, **changes: Any) -> Run:
    total = 200.0 - 38.1 + us
    return run(kernels=mlp_kernels(us=us, xblock=xblock), device=times(total / 200), **changes)


def of_choices(*choices: tuple[int, float]) -> Baseline:
    return calibrated([chosen(*each) for each in choices], suite="perf")


def judged_choice(stored: Baseline, xblock: int, us: float, timer: Timer = Timer.DEVICE) -> Verdict:
    return judge_time(timer, chosen(xblock, us), stored, compare(H200, H200))


def test_slower_unknown_choice_fails_with_its_cost() -> None:
    verdict = judged_choice(of_choices((1024, 38.1)), 512, 55.0)
    assert verdict.status is Status.REGRESSED
    (tuning,) = reasons(verdict, "tuning")
    assert "not in the baseline (+16.9 us against the fastest" in tuning
    assert "XBLOCK 1024 -> 512" in tuning


def test_unknown_choice_between_known_ones_passes() -> None:
    verdict = judged_choice(of_choices((1024, 38.1), (512, 55.0)), 2048, 50.0)
    assert verdict.status is Status.PASS
    assert "not in the baseline" in reasons(verdict, "tuning")[0]


def test_known_slower_choice_passes_with_its_cost() -> None:
    verdict = judged_choice(of_choices((1024, 38.1), (512, 55.0)), 512, 55.0)
    assert verdict.status is Status.PASS
    assert "takes 16.9 us less" in reasons(verdict, "tuning")[0]


def test_latency_of_unknown_choice_is_not_judged() -> None:
    assert judged_choice(of_choices((1024, 38.1)), 512, 55.0, Timer.END_TO_END).status is Status.NOT_JUDGED


# -- causes, and what cannot be compared -------------------------------------------------------------------------------


def test_regression_names_the_kernel_and_the_machine() -> None:
    slow = mlp_kernels(us=48.1)
    verdict = judged(1.05, kernels=slow)
    assert "triton_poi_fused" in reasons(verdict, "why")[0]
    assert reasons(verdict, "machine") == ["unchanged (reference copy +0.0 %, gemm +0.0 %)"]


def test_latency_regression_splits_busy_and_idle() -> None:
    verdict = judged(
        2.0, timer=Timer.END_TO_END, device=times(0.5), before=known(timer=Timer.END_TO_END, device=times(0.5))
    )
    busy, idle = reasons(verdict, "why")[:2]
    assert busy.startswith("GPU busy 100.0 -> 100.0 us")
    assert idle == "GPU idle 100.0 -> 300.0 us (+200.0): launch-bound"


def test_dispatch_regression_names_more_ops() -> None:
    verdict = judged(2.0, timer=Timer.HOST, counts=counts(dispatcher_ops=9))
    assert reasons(verdict, "why") == ["dispatcher ops 3 -> 9"]


def test_missing_time_is_invalid() -> None:
    assert judged(device=None, incomplete="the GPU no longer answers").status is Status.INVALID


def test_other_kind_of_machine_is_incomparable() -> None:
    other: Fingerprint = fingerprint(device="NVIDIA H100")
    assert judged(machine=other).status is Status.INCOMPARABLE


# -- rates -------------------------------------------------------------------------------------------------------------

_SUITES = 400


def _suite(chance: random.Random, spread: float, machine: Fingerprint) -> Run:
    values = times(math.exp(chance.gauss(0, spread)))
    return run(samples={Timer.DEVICE: Sample(values, 12)}, machine=machine, gpu=HERE)


@pytest.mark.parametrize(
    ("spread", "device", "processes"),
    [(0.0006, "NVIDIA H200", 1), (0.0006, "NVIDIA H200", 10), (0.0024, "Any GPU", 1), (0.0024, "Any GPU", 10)],
)
def test_false_alarms_stay_below_the_level(spread: float, device: str, processes: int) -> None:
    chance, machine = random.Random(1), fingerprint(device=device)
    alarms = 0
    for _ in range(_SUITES):
        singles = [from_run(_suite(chance, spread, machine), suite="perf") for _ in range(processes)]
        stored = msgspec.structs.replace(singles[0], entries=merge_entries(singles))
        verdict = judge_time(Timer.DEVICE, _suite(chance, spread, machine), stored, compare(machine, machine))
        alarms += verdict.status is not Status.PASS
    assert alarms <= 0.04 * _SUITES  # one comparison at 1 % one-sided, with IMPROVED at 1 % too
