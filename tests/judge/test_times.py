"""The rules for times, as a verdict shows them.

Noise is drawn with a fixed seed where it matters.
"""

import math
import random
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pytest

from kernelgauge.judge import Status, Verdict
from kernelgauge.judge.baseline import Baseline
from kernelgauge.judge.review import Group
from kernelgauge.judge.time_verdict import (
    Context,
    confirm,
    followed_reference,
    judge,
    not_measured,
    run_doubts,
)
from kernelgauge.judge.timing import Limits, Prior, Spreads, largest_quantile
from kernelgauge.report import findings
from kernelgauge.report.stored import doubt_text
from kernelgauge.report.words import headline
from kernelgauge.run import CompileEvent, Lack, Observation, ProcessTime, Run, Sample, Timer
from kernelgauge.trace import KernelIdentity, KernelRecord
from tests import builders
from tests.builders import (
    ELSEWHERE,
    H200,
    Case,
    baseline,
    calibrated,
    counts,
    fingerprint,
    judged_ratio,
    judged_time,
    launched,
    mlp_kernels,
    pair,
    reasons,
    reviewed_run,
    run,
    with_added,
)

DEVICE, HOST, LATENCY = Timer.DEVICE, Timer.HOST, Timer.END_TO_END
FIELDS = {DEVICE: "device", HOST: "host", LATENCY: "end_to_end"}
CPU, NEW_GPU = fingerprint(device="a CPU", arch="cpu"), fingerprint(device="Another GPU")


def times(factor: float = 1.0) -> tuple[float, ...]:
    return tuple(factor * value for value in (199.9, 200.0, 200.0, 200.1))


def on_host(name: str, **changes: Any) -> Run:
    return msgspec.structs.replace(run(**changes), host=name)


def known(factors: Sequence[float] = (1.0,), *, timer: Timer = DEVICE, **changes: Any) -> Baseline:
    """A baseline of a process for each factor."""
    return calibrated([run(**{FIELDS[timer]: times(each)} | changes) for each in factors])


def judged(
    factor: float = 1.0,
    *,
    timer: Timer = DEVICE,
    before: Baseline | None = None,
    limits: Any = None,
    **changes: Any,
) -> Verdict:
    observed = run(**({FIELDS[timer]: times(factor)} | changes))
    return judged_time(
        timer, observed, before or known(timer=timer), **({"limits": limits} if limits else {})
    )


def sensitivity(verdict: Verdict) -> float:
    return (verdict.change and verdict.change.sensitivity) or math.nan


# a faster host explains nothing of a call that waits for the GPU
WAITS = {"counts": counts(synchronizations=1)}
FASTER_HOST = {"host_control_us": 14 / 1.2}
SLOW_HOST = "this host was 100 % slower (reference 14.0 -> 28.0 us)"
UNKNOWN = "does not know this machine"
STEADY_PAIR = known([1.0, 1.00001])
DISTURBED = known(host=(120.0, 200.0, 320.0, 208.0))  # recorded beside another job
JUDGED = [
    (DEVICE, 1.002, {}, "PASS", ""),  # below the gate of 0.3 %
    (DEVICE, 0.99, {}, "IMPROVED", ""),
    (DEVICE, 1.01, {"limits": Limits(gate={DEVICE: 0.02})}, "PASS", ""),
    (HOST, 1.3, {}, "REGRESSED", "at equal host speed"),
    (HOST, 1.3, {"before": DISTURBED}, "NOT_JUDGED", ""),
    (HOST, 1.2, {"host_control_us": 1.2 * 14}, "PASS", ""),  # it follows the host
    (HOST, 1.0, FASTER_HOST, "REGRESSED", ""),
    (HOST, 1.0, FASTER_HOST | WAITS | {"before": known(timer=HOST, **WAITS)}, "PASS", ""),
    (LATENCY, 1.5, {}, "REGRESSED", ""),
    (DEVICE, 1.007, {}, "REGRESSED", ""),
    (DEVICE, 1.007, {"gpu": ELSEWHERE}, "PASS", ""),  # an unknown GPU needs a larger change
    (DEVICE, 1.06, {"gpu": ELSEWHERE}, "REGRESSED", ""),
    (DEVICE, 1.01, {"before": known([0.99, 1.0, 1.01] * 2)}, "PASS", ""),  # noisy processes
    (DEVICE, 1.0045, {"before": STEADY_PAIR}, "REGRESSED", ""),
    # below its gate
    (DEVICE, 1.0045, {"before": STEADY_PAIR, "controls": pair(gemm=150 * 1.0029)}, "REGRESSED", ""),
    (DEVICE, 1.006, {"before": known(machine=NEW_GPU), "machine": NEW_GPU}, "PASS", ""),
    (DEVICE, 1.01, {"controls": pair(gemm=150 * 1.012)}, "PASS", ""),  # a slower GPU
    (DEVICE, 1.01, {"controls": pair(gemm=150 * 1.012, gemm_kernel="x")}, "REGRESSED", ""),
    (DEVICE, 1, {"device": (200.0,)}, "UNDECIDED", "one replicate"),
    (DEVICE, 1.3, {"controls": pair(gemm=195)}, "UNDECIDED", "own change of speed hides +25 %"),
    (HOST, 1.15, {"gpu": ELSEWHERE}, "REGRESSED", "at equal host speed"),
    (
        HOST,
        1.15 * 1.2,
        {"gpu": ELSEWHERE, "host_control_us": 1.2 * 14},
        "REGRESSED",
        "at equal host speed",
    ),
    # another host, which is slower
    (HOST, 1.2, {"gpu": ELSEWHERE, "host_control_us": 1.2 * 14}, "PASS", ""),
    # With another driver, dispatch still follows the host reference, as on a known machine.
    (HOST, 1.0, {"gpu": ELSEWHERE, "machine": fingerprint(driver="590.1")}, "PASS", ""),
    (
        HOST,
        1.15,
        {"gpu": ELSEWHERE, "machine": fingerprint(driver="590.1")},
        "REGRESSED",
        "at equal host speed",
    ),
    (HOST, 1.9, {"gpu": ELSEWHERE, "host_control_us": 28.0}, "NOT_JUDGED", UNKNOWN),
    (HOST, 1.9, {"gpu": ELSEWHERE, "host_control_us": None}, "NOT_JUDGED", UNKNOWN),
    (
        HOST,
        1.9,
        {"gpu": ELSEWHERE} | WAITS | {"before": known(timer=HOST, **WAITS)},
        "NOT_JUDGED",
        UNKNOWN,
    ),
    (LATENCY, 1.9, {"gpu": ELSEWHERE}, "NOT_JUDGED", UNKNOWN),
    (LATENCY, 3.0, {"host_control_us": 28.0}, "NOT_JUDGED", SLOW_HOST),
    # Far more than hosts differ, and than this one became slower.
    (LATENCY, 2.1, {"gpu": ELSEWHERE}, "REGRESSED", UNKNOWN),
    (HOST, 4.1, {"host_control_us": 28.0}, "REGRESSED", SLOW_HOST),
    (HOST, 1.9, {"host_control_us": 7.0}, "NOT_JUDGED", "faster"),
    (DEVICE, 1, {"device": None, "incomplete": "lost GPU"}, "INVALID", "not measured: lost GPU"),
    (DEVICE, 1, {"machine": fingerprint(device="NVIDIA H100")}, "INCOMPARABLE", "device"),
    (HOST, 1, {"before": known(host=None)}, "NO_BASELINE", "has no host dispatch"),
]


@pytest.mark.parametrize(("timer", "factor", "changes", "status", "said"), JUDGED)
def test_judge_time_gives_status_and_says_why(
    timer: Timer, factor: float, changes: Any, status: str, said: str
) -> None:
    verdict = judged(factor, timer=timer, **changes)
    assert (verdict.status, verdict.subject) == (Status(status), timer.label)
    assert said in headline(verdict)


@pytest.mark.parametrize(("us", "is_by_host"), [(24.0, True), (26.0, False)])
def test_latency_is_of_the_host_where_the_gpu_idles_most(us: float, is_by_host: bool) -> None:
    """Of a call of 200 us, four kernels take more or less than half."""
    kernels = {"kernels": mlp_kernels(us, us, us, us=us)}
    verdict = judged(1.5, timer=LATENCY, before=known(timer=LATENCY, **kernels), **kernels)
    assert ("at equal host speed" in headline(verdict)) is is_by_host


def test_pass_names_the_slowdown_that_would_have_failed() -> None:
    verdict = judged()
    seen = sensitivity(verdict)
    shown = float(headline(verdict).rpartition("+")[2].removesuffix(" % or more would have failed"))
    assert seen <= shown / 100 <= 1.1 * seen  # rounded up
    assert judged(1 + 1.5 * seen).status is Status.REGRESSED
    change = judged(1.05).change
    assert change.gate == 0.003
    assert judged(limits=Limits(gate={DEVICE: 0.02})).change.gate == 0.02
    assert 0.04 < change.low < change.estimate < change.high < 0.06
    insensitive = judged(limits=Limits(sensitivity={DEVICE: 0.9 * seen}))
    assert insensitive.status is Status.UNDECIDED
    assert "inconclusive" in headline(insensitive)
    assert reasons(insensitive, "next")[0].startswith("kernelgauge calibrate")
    assert judged(limits=Limits(sensitivity={DEVICE: 1.1 * seen})).status is Status.PASS


def fleet(*, hosts: int, slope: float = 0.0) -> Baseline:
    """A baseline of one process for each of eight GPUs, whose times follow the reference GEMM."""
    chance = random.Random(7)
    runs = []
    for number in range(8):
        speed = chance.gauss(0, 0.01)
        at = {
            "device": times(math.exp(slope * speed)),
            "controls": pair(gemm=150 * math.exp(speed)),
        }
        runs.append(on_host(f"host{number % hosts}", gpu=f"gpu{number}", **at))
    return calibrated(runs)


def test_unknown_gpu_is_predicted_by_the_reference_gemm() -> None:
    before = fleet(hosts=8, slope=0.45)
    slow: dict[str, Any] = {
        "before": before,
        "gpu": ELSEWHERE,
        "controls": pair(gemm=150 * math.exp(0.03)),
    }
    assert judged(math.exp(0.45 * 0.03), **slow).change.estimate == pytest.approx(0.0, abs=2e-3)
    assert judged(1.04, **slow).status is Status.REGRESSED
    of_one, of_many = (judged(before=fleet(hosts=hosts), gpu=ELSEWHERE) for hosts in (1, 8))
    assert sensitivity(of_one) > sensitivity(of_many)  # the GPUs of one host count as one


ATTENTION = KernelRecord(KernelIdentity("fmha", "attention"), 150.0)
FUSED = KernelRecord(KernelIdentity("triton_red_fused", "reduction"), 40.0)
SHORT = KernelRecord(KernelIdentity("nvjet", "gemm"), 3.0)


@pytest.mark.parametrize(
    ("kernels", "followed"),
    [
        ((SHORT,), "copy"),
        ((SHORT,) * 100, "copy"),
        ((FUSED,), "copy"),
        (mlp_kernels(), "gemm"),
        ((ATTENTION, FUSED), "gemm"),
        ((ATTENTION, *(FUSED,) * 5), "copy"),
        ((), "copy"),
    ],
)
def test_time_follows_the_reference_that_bounds_it(kernels: Any, followed: str) -> None:
    """On another GPU, the copy is slower by 2 % and the GEMM faster by 3 %."""
    there = {
        "gpu": ELSEWHERE,
        "controls": pair(copy=30 * math.exp(0.02), gemm=150 * math.exp(-0.03)),
    }
    expected = {"copy": 0.8 * 0.02, "gemm": 0.4 * -0.03}
    assert followed_reference(kernels) == followed
    before = known(kernels=kernels)
    moved = judged(1.0, before=before, kernels=kernels, **there).change
    assert math.log1p(moved.estimate) == pytest.approx(-expected[followed], abs=1e-6)


def test_kernels_of_other_gpus_are_predicted_within_three_percent() -> None:
    """A call of 3 us, on a GPU of another host whose copy is slower: one process of one GPU is
    known.
    """
    short: dict[str, Any] = {"kernels": (SHORT,)}
    before = calibrated([run(device=(3.0, 3.0, 3.0), **short)])
    slower = {"gpu": ELSEWHERE, "controls": pair(copy=30 * 1.015), **short}
    assert judged(before=before, device=(3.036,) * 3, **slower).status is Status.PASS
    assert judged(before=before, device=(3.036 * 1.03,) * 3, **slower).status is Status.REGRESSED


def test_quantile_of_one_time_is_students_t() -> None:
    stdtrit = pytest.importorskip("scipy.special").stdtrit
    for dof in (1.0, 2.23, 3.0, 4.39, 7.5, 18.0, 60.0, 400.0, 1000.0):
        for level in (0.1, 0.05, 0.01, 1e-3, 1e-4, 1e-6):
            expected = stdtrit(dof, 1 - level)
            assert largest_quantile(dof, level) == pytest.approx(expected, rel=1e-3)
        assert largest_quantile(dof, 0.0) == math.inf


@pytest.mark.parametrize(("dof", "count"), [(2.0, 7), (4.39, 7), (4.39, 100), (30.0, 26)])
def test_quantile_of_several_holds_for_their_largest(dof: float, count: int) -> None:
    """Times that share one estimate of their noise, drawn."""
    chance = np.random.default_rng(0)
    largest = chance.standard_normal((50_000, count)).max(axis=1)
    spread = np.sqrt(chance.chisquare(dof, 50_000) / dof)
    above = (largest / spread > largest_quantile(dof, 0.05, count)).mean()
    assert above == pytest.approx(0.05, abs=0.004)


def test_what_each_kernel_differs_by_elsewhere_adds_up() -> None:
    """On another GPU, calls of 200 us in 10 and in 100 kernels are predicted by the copy."""
    few, many = (
        judged(gpu=ELSEWHERE, before=known(kernels=kernels), kernels=kernels).change.sensitivity
        for kernels in ((SHORT,) * 10, (SHORT,) * 100)
    )
    assert few is not None
    assert many is not None
    assert many > 2 * few


@pytest.mark.parametrize(("is_alone", "count"), [(True, 10), (True, 300), (False, 300)])
def test_false_alarms_of_many_times_are_few(is_alone: bool, count: int) -> None:
    """Kernels of a step, one run on each side, that are noisier than expected by factors of their
    own, or by one of the machine.
    """
    noise = Spreads(process=0.01, dof=4.0)
    prior = Prior(noise, gate=0.0, sensitivity=1.0, level=0.01)
    steady = ProcessTime(Observation(100.0, 0.0, 8, 1))
    context = Context(3 * count, is_alone=is_alone)
    change = judge([steady], [steady], prior, context).change
    assert change.high is not None
    chance = np.random.default_rng(0)
    factors = chance.chisquare(4.0, (20_000, count if is_alone else 1)) / 4.0
    moved = 0.01 * math.sqrt(2) * chance.standard_normal((20_000, count)) / np.sqrt(factors)
    assert 0.002 < (moved > math.log1p(change.high)).any(axis=1).mean() < 0.01 / 3 + 0.002


def test_more_gpus_of_one_host_make_no_verdict_blinder() -> None:
    alike = [
        on_host("here", gpu=f"gpu{place}", device=times(each))
        for place, each in enumerate((1.0, 1.002, 0.998))
    ]
    of_one, of_three = (judged(before=calibrated(alike[:count]), gpu=ELSEWHERE) for count in (1, 3))
    assert sensitivity(of_three) < sensitivity(of_one)


NEW_DRIVER = {"machine": fingerprint(driver="590.1")}


def test_no_reference_excuses_other_software() -> None:
    slower: dict[str, Any] = {"controls": pair(copy=30 * 1.05, gemm=150 * 1.05)}
    assert judged(1.05, **slower).status is Status.PASS  # the GPU itself
    assert judged(1.05, **slower, **NEW_DRIVER).status is Status.REGRESSED
    far = {"gpu": ELSEWHERE} | slower
    assert sensitivity(judged(**far, **NEW_DRIVER)) > 1.3 * sensitivity(judged(**far))


def suite_on(gpu: str, factors: dict[str, float], **changes: Any) -> list[Case]:
    """Workloads of the same kernels, whose baselines know one GPU."""
    pairs = (
        (run(workload=name, gpu=gpu, device=times(each), **changes), known())
        for name, each in factors.items()
    )
    return [(now, msgspec.structs.replace(before, workload=now.workload)) for now, before in pairs]


@pytest.mark.parametrize(
    ("twins", "changes", "status"),
    [
        ({"a": 1.0, "b": 1.001}, {}, "REGRESSED"),
        ({"a": 1.01, "b": 1.01}, {}, "PASS"),  # the GPU is slower
        ({"a": 1.0}, {}, "PASS"),  # one alone may have changed itself
        ({"a": 1.0, "b": 1.012}, {}, "PASS"),  # as one of these two did
        ({"a": 1.0, "b": 1.0}, NEW_DRIVER, "PASS"),  # that may have changed them
        ({"a": 1.0, "b": 1.0}, {"kernels": ()}, "PASS"),
    ],
)
def test_unknown_gpu_is_predicted_by_workloads_of_the_same_kernels(
    twins: dict[str, float], changes: Any, status: str
) -> None:
    beside = suite_on(ELSEWHERE, twins, **changes)
    verdict = judged_time(DEVICE, run(device=times(1.007), gpu=ELSEWHERE), known(), beside=beside)
    assert verdict.status is Status(status)
    if status == "REGRESSED":
        assert reasons(verdict, "machine") == [
            "this GPU is not in the baseline; workloads with the same kernels moved by +0.0 %"
        ]
    assert (
        judged_time(DEVICE, run(device=times(1.06), gpu=ELSEWHERE), known(), beside=beside).status
        is Status.REGRESSED
    )


def test_noise_of_a_machine_is_that_of_all_its_workloads() -> None:
    before, now = known([1.0, 1.0]), run(device=times(1.005))
    steady, noisy = (
        [(run(workload="other"), known([1.0, 1.0 + each, 1.0 - each, 1.0]))]
        for each in (0.0001, 0.004)
    )
    assert judged_time(DEVICE, now, before, beside=steady).status is Status.REGRESSED
    assert judged_time(DEVICE, now, before, beside=noisy).status is Status.PASS


def test_processes_of_one_night_know_less_than_of_many() -> None:
    one, many = (
        calibrated(
            [
                msgspec.structs.replace(run(), day=f"2026-01-0{1 + number * step}")
                for number in range(5)
            ]
        )
        for step in (0, 1)
    )
    assert sensitivity(judged_time(DEVICE, run(), many)) < sensitivity(
        judged_time(DEVICE, run(), one)
    )


def test_few_processes_do_not_overrule_the_prior() -> None:
    assert sensitivity(judged(before=known([1.0, 1.0]))) > 0.9 * sensitivity(
        judged(before=known([1.0] * 20))
    )


COMPILES = (900e3, 1050e3, 980e3, 940e3, 1010e3)


@pytest.mark.parametrize(
    ("factor", "control_us", "status"),
    [(1.0, 14.0, "PASS"), (4.5, 14.0, "REGRESSED"), (1.9, 28.0, "NOT_JUDGED")],
)
def test_compile_time_of_a_large_suite_is_judged(
    factor: float, control_us: float, status: str
) -> None:
    def compiled(factor: float, control_us: float) -> Run:
        each = tuple(factor * us for us in COMPILES)
        return msgspec.structs.replace(
            run(), samples={Timer.COLD_COMPILE: Sample(each, 1, (control_us,) * len(each))}
        )

    before = calibrated([compiled(1.0, 14.0)])
    found = judged_time(Timer.COLD_COMPILE, compiled(factor, control_us), before, comparisons=80)
    assert found.status is Status(status)


AT_HOST_SPEED = "at equal host speed"
SCATTERED = (120.0, 400.0, 90.0, 350.0)
ON_CPU = [
    (times(9.0), "there", 1.0, "REGRESSED", UNKNOWN),
    ((9000.0, 120.0, 11000.0, 130.0), "there", 1.0, "NOT_JUDGED", UNKNOWN),  # beside another job
    (SCATTERED, "here", 1.0, "NOT_JUDGED", "scatter too much on this host"),
    # A host that is slower by 26 % needs so much more for an unchanged call.
    (times(1.26), "here", 1.26, "PASS", AT_HOST_SPEED),
    (times(1.26 * 1.6), "here", 1.26, "REGRESSED", AT_HOST_SPEED),
]


@pytest.mark.parametrize(("replicates", "host", "speed", "status", "said"), ON_CPU)
def test_cpu_latency_is_judged_on_its_quiet_host_only(
    replicates: Any, host: str, speed: float, status: str, said: str
) -> None:
    on_cpu: dict[str, Any] = {
        "machine": CPU,
        "gpu": None,
        "controls": {},
        "device": times(),
        "end_to_end": times(),
    }
    after = on_host(
        host, **on_cpu | {"end_to_end": replicates, "host_control_us": speed * builders.CONTROL_US}
    )
    before = [
        msgspec.structs.replace(on_host("here", **on_cpu), day=f"2026-01-0{day}") for day in "11223"
    ]
    assert DEVICE not in after.judged_timers
    verdict = judged_time(LATENCY, after, calibrated(before))
    assert verdict.status is Status(status)
    assert said in headline(verdict)


@pytest.mark.parametrize(
    ("fresh", "status"),
    [(times(9.0), "REGRESSED"), (SCATTERED, "NOT_JUDGED"), (times(), "NOT_JUDGED")],
)
def test_cpu_latency_is_red_only_if_a_fresh_process_agrees(fresh: Any, status: str) -> None:
    on_cpu: dict[str, Any] = {
        "machine": CPU,
        "gpu": None,
        "controls": {},
        "device": times(),
        "end_to_end": times(),
    }
    before = calibrated([msgspec.structs.replace(on_host("here", **on_cpu), day="2026-01-01")])
    first, second = (
        on_host("here", **on_cpu | {"end_to_end": each}) for each in (times(9.0), fresh)
    )
    verdict = judged_time(LATENCY, first, before)
    assert verdict.status is Status.REGRESSED
    assert confirm(verdict, LATENCY, first, second, before, Context(1)).status is Status(status)


@pytest.mark.parametrize(
    ("fresh", "status"),
    [(times(9.0), "REGRESSED"), (SCATTERED, "NOT_JUDGED"), (times(), "NOT_JUDGED")],
)
def test_dispatch_is_red_only_if_a_fresh_process_agrees(fresh: Any, status: str) -> None:
    before = calibrated([on_host("here", host=times()) for _ in range(2)])
    first, second = (on_host("here", host=each) for each in (times(9.0), fresh))
    verdict = judged_time(HOST, first, before)
    assert verdict.status is Status.REGRESSED
    assert confirm(verdict, HOST, first, second, before, Context(1)).status is Status(status)


def chosen(xblock: int, us: float) -> Run:
    return run(kernels=mlp_kernels(us=us, xblock=xblock), device=times((161.9 + us) / 200))


def test_slower_choice_of_autotuner_is_regressed() -> None:
    """Runs take the choices of the baseline: another one is no chance."""
    before = calibrated([chosen(1024, 38.1)])
    verdict = judged_time(DEVICE, chosen(512, 55.0), before)
    assert verdict.status is Status.REGRESSED
    assert "Inductor's autotuner chose another" in reasons(verdict, "cause")[0]
    assert judged_time(LATENCY, chosen(512, 55.0), before).status is not Status.NOT_JUDGED


LAUNCH_BOUND = {"device": (100.0,) * 4, "before": known(timer=LATENCY, device=(100.0,) * 4)}
BUSY_IDLE = [
    "kernels 100.0 -> 100.0 us (+0.0)",
    "without kernels 100.0 -> 300.0 us (+200.0): launch-bound",
]
GPU_CHANGED = "the GPU itself changed its speed (reference copy +0.0 %, gemm +1.2 %)"
CAUSES = [
    (DEVICE, 1.01, {"controls": pair(gemm=150 * 1.012)}, "machine", [GPU_CHANGED]),
    (DEVICE, 1.06, {"gpu": ELSEWHERE}, "machine", ["this GPU is not in the baseline"]),
    (HOST, 2.0, {"counts": counts(dispatcher_ops=9)}, "why", ["dispatcher ops 3 -> 9"]),
    (HOST, 2.0, {}, "why", ["the host is slower in the same 3 dispatcher ops, or around them"]),
    (LATENCY, 2.0, LAUNCH_BOUND, "why", BUSY_IDLE),
]


@pytest.mark.parametrize(("timer", "factor", "changes", "label", "expected"), CAUSES)
def test_regression_names_its_cause(
    timer: Timer, factor: float, changes: Any, label: str, expected: list[str]
) -> None:
    assert reasons(judged(factor, timer=timer, **changes), label) == expected


def test_time_of_other_kernels_says_what_to_look_for() -> None:
    """Calls differ by what the code does: the GPU is no suspect."""
    event = CompileEvent(
        "recompile", "size mismatch at index 0", "model.py", 7, "x = self.up(x)", "mlp"
    )
    verdict = not_measured(
        DEVICE,
        run(
            incomplete="other",
            lack=Lack.OTHER_KERNELS,
            other_kernels="cos",
            compile_events=(event,),
        ),
    )
    found = [(each.label, each.text.partition(",")[0]) for each in findings.reasons(verdict)]
    assert found[0] == ("cause", "recompile: size mismatch at index 0")
    assert found[2:] == [
        ("kernels", "+ cos"),
        ("next", "make each call launch the same: look for a recompile"),
    ]
    lost = not_measured(DEVICE, run(device=None, incomplete="the machine changed its speed"))
    assert "nvidia-smi" in findings.in_full(lost)


# -- times that no undisturbed machine shows -------------------------------------------------------


def with_references(device_us: float, latency_us: float) -> dict[str, Any]:
    """A run on a CPU, with the host references of its two times."""
    times = {DEVICE: (205.0, device_us), LATENCY: (300.0, latency_us)}
    samples = {
        timer: Sample((us,) * 4, 40, (control_us,) * 4) for timer, (us, control_us) in times.items()
    }
    return {
        "samples": samples,
        "machine": fingerprint(arch="cpu", device="a CPU", sm_count=None),
        "gpu": None,
    }


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"device": (30451.0,) * 4, "end_to_end": (303.0,) * 4},
            "GPU time cannot be: 30451.0 us cannot be a part of",
        ),
        ({"host": (1000.0,) * 4}, "host dispatch cannot be: 1000.0 us"),
        (with_references(840.0, 14.0), "CPU time cannot be: "),
        (with_references(14.0, 840.0), "end to end cannot be: "),
        (with_references(14.0, 60.0), ""),
        ({"device": (3500.0,) * 4}, ""),  # four kernels on as many streams
        ({"device": (3500.0,) * 4, "counts": counts(launches=1)}, "GPU time cannot be"),
    ],
)
def test_run_with_a_time_that_cannot_be_is_doubted(changes: dict[str, Any], said: str) -> None:
    doubts = list(run_doubts(run(**changes)))
    assert (bool(doubts), ", ".join(map(doubt_text, doubts))[: len(said)]) == (bool(said), said)


@pytest.mark.parametrize(
    ("timer", "stored"),
    [
        (DEVICE, {"device": (30451.0,) * 4}),
        (HOST, {"host": (4000.0,) * 4, "host_control_us": 840.0}),
    ],
)
def test_stored_time_that_cannot_be_is_named_and_replaced(
    timer: Timer, stored: dict[str, Any]
) -> None:
    wrong, now = (
        calibrated([run(), run(**stored)]),
        run(device=(100.0,) * 4, end_to_end=(301.5,) * 4),
    )
    verdict = judged_time(timer, now, wrong)
    assert verdict.status is Status.NOT_JUDGED
    assert headline(verdict).endswith("not judged: that of the baseline cannot be")
    assert "cannot be a part of" in reasons(verdict, "why")[0]
    assert "kernelgauge accept" in reasons(verdict, "next")[0]
    assert reviewed_run(now, wrong).group is Group.SPEED
    assert doubt_text(with_added(wrong, [now]).facts[0]).startswith("a stored time cannot be")


def test_stored_host_reference_is_held_against_that_of_the_run() -> None:
    slow = {"device": None, "end_to_end": None, "host_control_us": 840.0}
    for changes, cannot_be in (
        ({}, True),
        ({"gpu": "another"}, False),
        ({"host_control_us": 100.0}, False),
    ):
        verdict = judged_time(HOST, run(), baseline(**slow | changes))
        assert headline(verdict).endswith("cannot be") is cannot_be


# -- two variants of one run -----------------------------------------------------------------------

STEADY = (-0.0005, 0.0, 0.0, 0.0005)


def ratio(
    us: float, by: float = 0.05, *, noise: Sequence[float] = STEADY, **changes: object
) -> Verdict:
    """Judge a variant of `us` beside another of 200 us."""
    this, other = (
        run(device=[time * (1 + each) for each in noise], workload=name, **changes)
        for time, name in ((us, "mlp"), (200.0, "mlp-eager"))
    )
    return judged_ratio(this, other, by=by)


@pytest.mark.parametrize(
    ("us", "by", "machine", "status", "said"),
    [
        (188.0, 0.05, H200, "PASS", "5 % faster than eager"),
        # as measured: the interval holds more and less
        (190.0, 0.05, H200, "UNDECIDED", "not known to be 5 % faster"),
        (192.0, 0.05, H200, "REGRESSED", "not 5 % faster"),
        (198.0, 0.0, H200, "PASS", "faster than eager"),
        (189.0, 0.05, NEW_GPU, "UNDECIDED", ""),  # four times as wide where no data is
        (160.0, 0.05, CPU, "UNDECIDED", ""),
    ],
)
def test_ratio_is_judged_by_its_interval(
    us: float, by: float, machine: object, status: str, said: str
) -> None:
    verdict = ratio(us, by, machine=machine)
    assert (verdict.status, verdict.subject, verdict.workload) == (Status(status), "ratio", "mlp")
    assert headline(verdict).startswith(said)
    assert not verdict.is_by_baseline  # no update overrules it


def test_ratio_without_a_time_or_a_spread_is_no_pass() -> None:
    assert ratio(180.0, noise=(0.0,)).status is Status.UNDECIDED
    verdict = judged_ratio(
        run(workload="mlp"), run(device=None, incomplete="the GPU was throttled"), by=0.05
    )
    assert (verdict.status, verdict.workload, verdict.subject) == (Status.INVALID, "mlp", "ratio")
    assert headline(verdict) == "eager: GPU time was not measured: the GPU was throttled"


@pytest.mark.parametrize("gpu", [builders.HERE, ELSEWHERE])
def test_far_slower_dispatch_fails_though_it_scatters(gpu: str) -> None:
    known = calibrated(
        [on_host("one", host=(50.0 + i, 50.5 + i, 51.0, 51.5), end_to_end=None) for i in range(3)]
    )
    name = "one" if gpu == builders.HERE else "another"
    now = on_host(name, host=(110.0, 110.0, 110.0, 9000.0), end_to_end=None, gpu=gpu)
    assert judged_time(HOST, now, known, comparisons=45).status is Status.REGRESSED


TWELVE = tuple(launched(f"short {number}", 2.75, kind="index") for number in range(12))


@pytest.mark.parametrize(
    ("processes", "kernels", "slower", "status"),
    [
        (1, TWELVE, 1.009, "PASS"),  # one kernel of 0.3 us more: one of a hundred does that
        (1, TWELVE, 1.03, "REGRESSED"),
        (3, TWELVE, 1.009, "REGRESSED"),  # none of three processes has shown it
        (1, TWELVE[:2], 1.009, "REGRESSED"),  # of so few kernels, none is expected to
        (1, mlp_kernels(), 1.009, "REGRESSED"),  # they are long
    ],
)
def test_step_of_a_short_kernel_is_no_finding_beside_one_process(
    processes: int, kernels: tuple[KernelRecord, ...], slower: float, status: str
) -> None:
    us = sum(each.device_time_us for each in kernels)

    def at(factor: float) -> Run:
        return run(device=[us * factor * (1 + each) for each in (-1e-4, 1e-4) * 4], kernels=kernels)

    before = calibrated([at(1.0 + 1e-5 * number) for number in range(processes)])
    verdict = judged_time(DEVICE, at(slower), before)
    assert verdict.status.value == status
    assert sensitivity(verdict) > 0.017 or (processes, kernels) != (1, TWELVE)
