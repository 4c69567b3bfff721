"""A time of which the host has a part, against its baseline: at equal speed of the host."""

from __future__ import annotations

import math

import pytest

from kernelgauge.judge import (
    Status,
    Verdict,
    calibrated,
    compare,
    from_run,
    judge_time,
)
from kernelgauge.judge.slope import DISPATCH_SLOPE
from kernelgauge.run import Run, Sample, Timer
from tests.builders import (
    H200,
    mlp_kernels,
    of_grids,
    reasons,
    run,
    sample,
)
from tests.judge.timed import QUIET, times


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
    assert reasons(verdict, "why")[1].startswith("GPU idle 30.1 -> 50.0 us (+20.0)")
