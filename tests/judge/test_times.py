"""The rule for times, as a verdict shows it. Noise is drawn with a fixed seed where it matters."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from kernelgauge.errors import OTHER_KERNELS
from kernelgauge.judge import RelativeChange, Status, Verdict
from kernelgauge.judge.baseline import Baseline
from kernelgauge.judge.time_verdict import judge_time, not_measured
from kernelgauge.judge.timing import Limits
from kernelgauge.report import findings
from kernelgauge.report.findings import in_full
from kernelgauge.report.words import headline
from kernelgauge.run import CompileEvent, Run, Sample, Timer
from tests.builders import CONTROL_US, ELSEWHERE, HERE, calibrated, counts, fingerprint, mlp_kernels, pair, reasons, run

DEVICE, HOST, LATENCY = Timer.DEVICE, Timer.HOST, Timer.END_TO_END
FIELDS = {DEVICE: "device", HOST: "host", LATENCY: "end_to_end"}
CPU = fingerprint(device="a CPU", arch="cpu")
OTHER_MODEL = fingerprint(device="Another GPU")


def times(factor: float = 1.0) -> tuple[float, ...]:
    return tuple(factor * value for value in (199.9, 200.0, 200.0, 200.1))


def on_host(name: str, **changes: Any) -> Run:
    return msgspec.structs.replace(run(**changes), host=name)


def known(factors: Sequence[float] = (1.0,), *, timer: Timer = DEVICE, **changes: Any) -> Baseline:
    """A baseline of a process for each factor."""
    return calibrated([run(**{FIELDS[timer]: times(each)} | changes) for each in factors])


def judged(
    factor: float = 1.0, *, timer: Timer = DEVICE, before: Baseline | None = None, rule: Any = None, **changes: Any
) -> Verdict:
    observed = run(**({FIELDS[timer]: times(factor)} | changes))
    return judge_time(timer, observed, before or known(timer=timer), **(rule or {}))


def change_of(verdict: Verdict) -> RelativeChange:
    assert verdict.change is not None
    return verdict.change


def sensitivity(verdict: Verdict) -> float:
    return change_of(verdict).sensitivity or math.nan


def asked(**limits: dict[Timer, float]) -> dict[str, Any]:
    return {"rule": {"limits": Limits(**limits)}}


@pytest.mark.parametrize(
    ("timer", "factor", "changes", "status"),
    [
        (DEVICE, 1.002, {}, "PASS"),  # below the gate of 0.3 %
        (DEVICE, 0.99, {}, "IMPROVED"),
        (DEVICE, 1.01, asked(gate={DEVICE: 0.02}), "PASS"),
        (DEVICE, 1.01, asked(gate={HOST: 0.02}), "REGRESSED"),
        (HOST, 1.04, {}, "PASS"),
        (HOST, 1.3, {}, "REGRESSED"),
        (HOST, 0.7, {}, "IMPROVED"),
        (HOST, 1.2, {"host_control_us": 1.2 * 14}, "PASS"),  # it follows the host
        (LATENCY, 1.2, {}, "PASS"),
        (LATENCY, 1.5, {}, "REGRESSED"),
        (DEVICE, 1.007, {}, "REGRESSED"),
        (DEVICE, 1.007, {"gpu": ELSEWHERE}, "PASS"),  # an unknown GPU needs a larger change
        (DEVICE, 1.06, {"gpu": ELSEWHERE}, "REGRESSED"),
        (DEVICE, 1.01, {"before": known([0.99, 1.0, 1.01] * 2)}, "PASS"),  # noisy processes
        (DEVICE, 1.01, {"before": known([1.0, 1.0001])}, "REGRESSED"),
        (DEVICE, 1.0045, {"before": known([1.0, 1.00001])}, "REGRESSED"),
        (DEVICE, 1.01, {"before": known(machine=OTHER_MODEL), "machine": OTHER_MODEL}, "PASS"),
        (DEVICE, 1, {"device": (204, 200, 208, 204)}, "PASS"),  # disturbed replicates
        (DEVICE, 1, {"device": (204.0, 203.9, 204.1, 204.0)}, "REGRESSED"),
        (DEVICE, 1.01, {"controls": pair(gemm=150 * 1.012)}, "PASS"),  # a slower GPU
        (DEVICE, 1.03, {"controls": pair(gemm=150 * 1.01)}, "REGRESSED"),
        (DEVICE, 1.01, {"controls": pair(gemm=150 * 1.012, gemm_kernel="x")}, "REGRESSED"),
    ],
)
def test_judge_time_change_gives_status(timer: Timer, factor: float, changes: Any, status: str) -> None:
    verdict = judged(factor, timer=timer, **changes)
    assert (verdict.status, verdict.subject) == (Status(status), timer.label)


MOVED = {"controls": pair(gemm=195)}
SLOW_HOST = "this host was 100 % slower (reference 14.0 -> 28.0 us)"


@pytest.mark.parametrize(
    ("timer", "factor", "changes", "status", "said"),
    [
        (DEVICE, 1, {"device": (200.0,)}, "UNDECIDED", "one replicate"),
        (DEVICE, 1.3, MOVED, "UNDECIDED", "own change of speed hides +25 %"),
        *((timer, 1.9, {"gpu": ELSEWHERE}, "NOT_JUDGED", "does not know this machine") for timer in (HOST, LATENCY)),
        *((timer, 3.0, {"host_control_us": 28.0}, "NOT_JUDGED", SLOW_HOST) for timer in (HOST, LATENCY)),
        # Far more than hosts differ, and than this one became slower.
        *((timer, 2.1, {"gpu": ELSEWHERE}, "REGRESSED", "does not know this machine") for timer in (HOST, LATENCY)),
        *((timer, 4.1, {"host_control_us": 28.0}, "REGRESSED", SLOW_HOST) for timer in (HOST, LATENCY)),
        *((timer, 1.9, {"host_control_us": 7.0}, "NOT_JUDGED", "faster") for timer in (HOST, LATENCY)),
        (HOST, 1.5, {}, "REGRESSED", "at equal host speed"),
        (DEVICE, 1, {"device": None, "incomplete": "lost GPU"}, "INVALID", "not measured: lost GPU"),
        (DEVICE, 1, {"machine": fingerprint(device="NVIDIA H100")}, "INCOMPARABLE", "device"),
        (HOST, 1, {"before": known(host=None)}, "NO_BASELINE", "has no host dispatch"),
    ],
)
def test_judge_time_without_pass_says_why(timer: Timer, factor: float, changes: Any, status: str, said: str) -> None:
    verdict = judged(factor, timer=timer, **changes)
    assert verdict.status is Status(status)
    assert said in headline(verdict)


def test_pass_names_the_slowdown_that_would_have_failed() -> None:
    verdict = judged()
    shown = float(headline(verdict).rpartition("+")[2].removesuffix(" % or more would have failed"))
    assert sensitivity(verdict) <= shown / 100 <= 1.1 * sensitivity(verdict)  # rounded up
    assert judged(1 + 1.5 * sensitivity(verdict)).status is Status.REGRESSED
    change = change_of(judged(1.05))
    assert 0.04 < (change.low or 0.0) < change.estimate < (change.high or 0.0) < 0.06


def test_sensitivity_beyond_what_is_asked_is_undecided() -> None:
    seen = sensitivity(judged())
    insensitive = judged(**asked(sensitivity={DEVICE: 0.9 * seen}))
    assert insensitive.status is Status.UNDECIDED
    assert "inconclusive" in headline(insensitive)
    assert reasons(insensitive, "next")[0].startswith("kernelgauge calibrate")
    assert judged(**asked(sensitivity={DEVICE: 1.1 * seen})).status is Status.PASS


def test_few_processes_do_not_overrule_the_prior() -> None:
    assert sensitivity(judged(before=known([1.0, 1.0]))) > 0.9 * sensitivity(judged(before=known([1.0] * 20)))
    assert sensitivity(judged(before=known([0.997, 1.003]))) < 0.05


def fleet(gpus: int, *, hosts: int, slope: float = 0.0) -> Baseline:
    """A baseline of one process for each GPU, whose times follow the reference GEMM."""
    chance = random.Random(7)
    runs = []
    for number in range(gpus):
        speed = chance.gauss(0, 0.01)
        at = {"device": times(math.exp(slope * speed)), "controls": pair(gemm=150 * math.exp(speed))}
        runs.append(on_host(f"host{number % hosts}", gpu=f"gpu{number}", **at))
    return calibrated(runs)


def test_unknown_gpu_is_predicted_by_the_reference_gemm() -> None:
    slow: dict[str, Any] = {
        "before": fleet(8, hosts=8, slope=0.45),
        "gpu": ELSEWHERE,
        "controls": pair(gemm=150 * math.exp(0.03)),
    }
    assert change_of(judged(math.exp(0.45 * 0.03), **slow)).estimate == pytest.approx(0.0, abs=2e-3)
    assert judged(1.04, **slow).status is Status.REGRESSED


ON_CPU: dict[str, Any] = {"machine": CPU, "gpu": None, "controls": {}, "device": times()}


def test_gpus_of_one_host_count_as_one() -> None:
    of_one, of_many = (judged(before=fleet(8, hosts=hosts), gpu=ELSEWHERE) for hosts in (1, 8))
    assert sensitivity(of_one) > sensitivity(of_many)


@pytest.mark.parametrize(
    ("device", "host", "status", "said"),
    [
        (times(2.0), "there", "NOT_JUDGED", "does not know this machine"),
        (times(2.0), "here", "REGRESSED", ""),
        (times(1.2), "here", "PASS", ""),
        ((120.0, 400.0, 90.0, 350.0), "here", "NOT_JUDGED", "scatter too much on this host"),
    ],
)
def test_cpu_time_is_judged_on_its_quiet_host_only(
    device: tuple[float, ...], host: str, status: str, said: str
) -> None:
    stored = calibrated([on_host("here", **ON_CPU)])
    verdict = judge_time(DEVICE, on_host(host, **ON_CPU | {"device": device}), stored)
    assert verdict.status is Status(status)
    assert said in headline(verdict)


@pytest.mark.parametrize(("slower", "status"), [(1.0, "PASS"), (1.6, "REGRESSED")])
def test_cpu_latency_is_judged_at_equal_host_speed(slower: float, status: str) -> None:
    before = on_host("here", end_to_end=times(), host_control_us=CONTROL_US, **ON_CPU)
    # A host that is slower by 26 % needs so much more for an unchanged call.
    after = on_host("here", end_to_end=times(1.26 * slower), host_control_us=1.26 * CONTROL_US, **ON_CPU)
    verdict = judge_time(LATENCY, after, calibrated([before]))
    assert verdict.status is Status(status)
    assert "at equal host speed" in headline(verdict)


def chosen(xblock: int, us: float) -> Run:
    return run(kernels=mlp_kernels(us=us, xblock=xblock), device=times((161.9 + us) / 200))


@pytest.mark.parametrize(
    ("known_choices", "choice", "status", "said"),
    [
        ([(1024, 38.1)], (512, 55.0), "REGRESSED", "not in the baseline (+16.9 us against the fastest"),
        ([(1024, 38.1), (512, 55.0)], (2048, 50.0), "PASS", "not in the baseline"),
    ],
)
def test_autotuners_choice_is_named_with_its_cost(known_choices: Any, choice: Any, status: str, said: str) -> None:
    verdict = judge_time(DEVICE, chosen(*choice), calibrated([chosen(*each) for each in known_choices]))
    (tuning,) = reasons(verdict, "tuning")
    assert verdict.status is Status(status)
    assert said in tuning
    assert f"XBLOCK 1024 -> {choice[0]}" in tuning


def test_latency_of_unknown_choice_is_not_judged() -> None:
    assert judge_time(LATENCY, chosen(512, 55.0), calibrated([chosen(1024, 38.1)])).status is Status.NOT_JUDGED


@pytest.mark.parametrize("processes", [1, 10])
@pytest.mark.parametrize(("spread", "device"), [(0.0006, "NVIDIA H200"), (0.0024, "Any GPU")])
def test_false_alarms_stay_below_the_level(spread: float, device: str, processes: int) -> None:
    chance, machine, suites = random.Random(1), fingerprint(device=device), 400

    def unchanged() -> Run:
        samples = {DEVICE: Sample(times(math.exp(chance.gauss(0, spread))), 12)}
        return run(samples=samples, machine=machine, gpu=HERE)

    alarms = 0
    for _ in range(suites):
        stored = calibrated([unchanged() for _ in range(processes)])
        alarms += judge_time(DEVICE, unchanged(), stored).status is not Status.PASS
    assert alarms <= 0.04 * suites  # one comparison at 1 % one-sided, with IMPROVED at 1 % too


LAUNCH_BOUND = {"device": (100.0,) * 4, "before": known(timer=LATENCY, device=(100.0,) * 4)}
BUSY_IDLE = ["kernels 100.0 -> 100.0 us (+0.0)", "without kernels 100.0 -> 300.0 us (+200.0): launch-bound"]
GPU_CHANGED = "the GPU itself changed its speed (reference copy +0.0 %, gemm +1.2 %)"


@pytest.mark.parametrize(
    ("timer", "factor", "changes", "label", "expected"),
    [
        (DEVICE, 1.05, {}, "machine", ["unchanged (reference copy +0.0 %, gemm +0.0 %)"]),
        (DEVICE, 1.01, {"controls": pair(gemm=150 * 1.012)}, "machine", [GPU_CHANGED]),
        (DEVICE, 1.06, {"gpu": ELSEWHERE}, "machine", ["this GPU is not in the baseline"]),
        (HOST, 2.0, {"counts": counts(dispatcher_ops=9)}, "why", ["dispatcher ops 3 -> 9"]),
        (HOST, 2.0, {}, "why", ["the host is slower in the same 3 dispatcher ops, or around them"]),
        (LATENCY, 2.0, LAUNCH_BOUND, "why", BUSY_IDLE),
    ],
)
def test_regression_names_its_cause(timer: Timer, factor: float, changes: Any, label: str, expected: list[str]) -> None:
    assert reasons(judged(factor, timer=timer, **changes), label) == expected


def test_time_of_other_kernels_says_what_to_look_for() -> None:
    """Calls differ by what the code does: the GPU is no suspect."""
    event = CompileEvent("recompile", "size mismatch at index 0", "model.py", 7, "x = self.up(x)", "mlp")
    verdict = not_measured(DEVICE, run(incomplete=OTHER_KERNELS, other_kernels="cos", compile_events=(event,)))
    found = [(each.label, each.text.partition(",")[0]) for each in findings.reasons(verdict)]
    assert found[0] == ("cause", "recompile: size mismatch at index 0")
    assert found[2:] == [("kernels", "cos"), ("next", "make each call launch the same: look for a recompile")]
    assert "nvidia-smi" in in_full(not_measured(DEVICE, run(device=None, incomplete="the machine changed its speed")))


def test_what_a_baseline_scatters_counts_as_noise() -> None:
    """One recorded beside another job does not say how fast the code is."""
    steady, disturbed = (calibrated([run(host=host)]) for host in ((100.0,) * 4, (60.0, 100.0, 160.0, 104.0)))
    statuses = [judge_time(HOST, run(host=(130.0,) * 4), stored).status for stored in (steady, disturbed)]
    assert statuses == [Status.REGRESSED, Status.NOT_JUDGED]


def test_dispatch_that_waits_for_the_gpu_does_not_follow_the_host() -> None:
    """Of a call that waits for the GPU, a faster host explains nothing, and a slower one neither."""
    stored = calibrated([run(host=(300.0,) * 4, counts=counts(synchronizations=1))])
    faster: dict[str, Any] = {"host": (300.0,) * 4, "host_control_us": 14 / 1.2}
    assert judge_time(HOST, run(counts=counts(synchronizations=1), **faster), stored).status is Status.PASS
    stored = calibrated([run(host=(300.0,) * 4)])
    assert judge_time(HOST, run(**faster), stored).status is Status.REGRESSED
