"""How noisy a comparison is: what the baseline and the run show of each level, weighed against what is expected."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.special import stdtrit

from kernelgauge.judge import DEFAULT_POLICIES, Prior, Seen, Status, decide, process_noise
from kernelgauge.judge.noise import alike, difference, host_explains, of_another_gpu, sources
from kernelgauge.judge.seen import comparable_to
from kernelgauge.judge.slope import DISPATCH_SLOPE
from kernelgauge.judge.stats import NO_INTERVAL, change, quantile, standard_error
from kernelgauge.run import Timer
from tests.builders import ELSEWHERE, HERE, observation, policy, seen

QUIET = Prior(0.0)


def error(before: list[Seen], after: Seen | None = None, **of_policy: Any) -> float:
    return standard_error(sources(before, after or seen(), policy(**of_policy)))


def processes(count: int, *, spread: float = 0.0, **changes: Any) -> list[Seen]:
    """Processes whose means alternate about 200 us, `spread` apart from it."""
    return [seen(200.0 * math.exp(spread * (-1) ** number), **changes) for number in range(count)]


# -- what is expected and what is seen ------------------------------------------------------------------------------


def test_an_observed_variance_and_the_expected_one_are_weighed_by_their_degrees() -> None:
    source = Prior(0.1, degrees=10.0).weighed(200.0, 0.04, 30.0)
    assert source.variance == pytest.approx((10 * 0.01 + 30 * 0.04) / 40)
    assert source.degrees == 40


def test_where_nothing_was_observed_the_expected_variance_holds() -> None:
    source = Prior(0.1, degrees=10.0).weighed(200.0, 0.0, 0.0)
    assert (source.variance, source.degrees) == (pytest.approx(0.01), 10.0)


def test_what_one_kernel_can_be_resolved_to_matters_where_times_are_short() -> None:
    prior = Prior(0.002, absolute_us=0.02)
    assert math.sqrt(prior.variance(2000.0)) == pytest.approx(0.002, rel=0.01)
    assert math.sqrt(prior.variance(1.0)) == pytest.approx(0.02, rel=0.01)


def test_a_time_of_which_the_host_has_a_part_is_expected_to_be_steadier_by_that_part_and_a_quarter_at_least() -> None:
    priors = {"replicate": Prior(0.04), "process": Prior(0.02), "machine": Prior(0.08)}
    whole = policy(of_the_host=True, **priors)
    for share, kept in ((1.0, 1.0), (0.5, 0.5), (0.1, 0.25), (0.0, 0.25)):
        expected = whole.for_share(share)
        assert (expected.replicate.relative, expected.process.relative, expected.machine.relative) == pytest.approx(
            (0.04 * kept, 0.02 * kept, 0.08 * kept)
        )


def test_a_latency_that_is_all_the_devices_is_expected_to_be_steadier_than_one_with_a_half_of_the_host() -> None:
    latency = DEFAULT_POLICIES[Timer.END_TO_END]
    shares = [1.0, 0.5, 0.25, 0.1, 0.0]
    errors = [standard_error(sources([seen(host_share=s)], seen(host_share=s), latency)) for s in shares]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] == pytest.approx(errors[2])  # a quarter is the least


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 1.0])
def test_the_priors_of_a_device_time_are_of_no_host_and_hold_as_they_are(share: float) -> None:
    device = DEFAULT_POLICIES[Timer.DEVICE]
    assert device.for_share(share) == device
    assert [timer for timer, rule in DEFAULT_POLICIES.items() if not rule.of_the_host] == [Timer.DEVICE]


# -- levels ---------------------------------------------------------------------------------------------------------


def test_with_every_prior_met_the_variances_of_all_levels_add() -> None:
    before, after = [seen(spread=0.002, replicates=16)], seen(spread=0.002, replicates=16)
    of_mean, of_process = 0.002**2 / 16, 0.0005**2
    assert error(before, after) == pytest.approx(math.sqrt(2 * of_mean + 2 * of_process))


def test_more_processes_in_the_baseline_leave_the_noise_of_the_run_alone() -> None:
    assert error(processes(1)) > error(processes(3)) > error(processes(30)) > 0
    alone = math.sqrt(0.002**2 / 12 + 0.0005**2 / 16)  # the run's replicates, and a quarter of what was expected
    assert error(processes(1000)) == pytest.approx(alone, rel=0.02)


def test_processes_that_differ_more_than_expected_widen_the_interval() -> None:
    assert error(processes(10, spread=0.02)) > 0.014 > 5 * error(processes(10))


def test_replicates_that_differ_more_than_expected_widen_the_interval() -> None:
    assert error([seen()], seen(spread=0.2)) > 0.04 > 5 * error([seen()], seen())


def test_more_replicates_of_the_run_narrow_the_interval_down_to_what_lies_between_processes() -> None:
    few, many, most = (error(processes(10), seen(replicates=count)) for count in (2, 20, 2000))
    assert few > many > most > error(processes(10), seen(replicates=2000), process=QUIET) > 0


def test_processes_that_agree_are_never_taken_for_free_of_noise() -> None:
    assert process_noise(processes(1000), policy()) == pytest.approx(0.0005 / 4)


def test_what_the_replicates_explain_of_the_difference_between_processes_is_not_the_processes() -> None:
    far_apart = processes(1000, spread=0.01)
    explained = [seen(one.observation.mean_us, spread=0.1, replicates=100) for one in far_apart]
    assert process_noise(far_apart, policy()) == pytest.approx(0.01, rel=0.02)
    assert process_noise(explained, policy()) < 0.0025


def test_one_replicate_on_either_side_leaves_no_interval() -> None:
    assert sources([seen(replicates=1)], seen(), policy()) == NO_INTERVAL
    assert sources([seen()], seen(replicates=1), policy()) == NO_INTERVAL
    assert sources([seen(), seen(replicates=1)], seen(), policy()) == NO_INTERVAL


# -- one estimate of the processes, for the mean of the baseline and for the run -------------------------------------

SILENT = {"replicate": QUIET, "process": Prior(0.01, degrees=6.0)}  # all noise lies between processes


def test_what_processes_differ_by_is_one_source_with_its_degrees_counted_once() -> None:
    """Both the mean of four processes and the run have it; two sources would pass for estimates of their own."""
    before = [seen(one.observation.mean_us, spread=0.0) for one in processes(4, spread=0.02)]
    found = sources(before, seen(spread=0.0), policy(**SILENT))
    of_one = (6 * 0.01**2 + 4 * 0.02**2) / (6 + 3)
    (shared,) = (source for source in found if source.variance)
    assert (shared.variance, shared.degrees) == pytest.approx((of_one * (1 + 1 / 4), 6 + 3))
    assert quantile(found, 0.98) == pytest.approx(float(stdtrit(9, 0.99)))


def test_of_few_processes_and_nothing_expected_one_in_a_hundred_is_beyond_the_interval_and_not_two() -> None:
    """Student's t of three degrees; of the 4.4 that two sources would make of them, 1.8 % are beyond."""
    generator = np.random.default_rng(20240607)
    nothing = policy(replicate=QUIET, process=Prior(1e-9, degrees=1e-6))
    repeats, beyond = 10_000, 0
    for logs in generator.normal(0, 0.01, (repeats, 5)):
        *before, after = (seen(200.0 * math.exp(log), spread=0.0) for log in logs)
        low = change(difference(before, after, nothing), sources(before, after, nothing), confidence=0.98).low
        assert low is not None
        beyond += low > 0
    assert beyond / repeats == pytest.approx(0.01, abs=0.004)  # four standard errors of the count


def test_processes_of_every_gpu_tell_how_processes_differ_each_about_the_mean_of_its_gpu() -> None:
    here, there = processes(2, spread=0.01), processes(4, spread=0.03, gpu=ELSEWHERE)
    other_speed = [seen(1.5 * one.observation.mean_us, gpu=ELSEWHERE) for one in there]
    degrees = 6 + 2 - 1 + 4 - 1
    of_one = (6 * 0.01**2 + 2 * 0.01**2 + 4 * 0.03**2) / degrees
    for elsewhere in (there, other_speed):
        before = [seen(one.observation.mean_us, gpu=one.gpu, spread=0.0) for one in (*here, *elsewhere)]
        own = sources(before, seen(spread=0.0), policy(**SILENT))[0]
        # Compared is the mean of the two that ran here.
        assert (own.variance, own.degrees) == pytest.approx((of_one * (1 + 1 / 2), degrees))


def test_processes_of_another_gpu_make_surer_of_one_that_the_baseline_knows() -> None:
    here, elsewhere = processes(2, spread=0.0005), processes(20, spread=0.0005, gpu=ELSEWHERE)
    alone, with_others = (sources(before, seen(), policy()) for before in (here, here + elsewhere))
    assert quantile(with_others, 0.999) < quantile(alone, 0.999)
    noisy = processes(20, spread=0.02, gpu=ELSEWHERE)
    assert error(here + noisy) > 5 * error(here + elsewhere)


def test_of_a_process_without_a_control_of_the_host_nothing_is_known_on_any_gpu() -> None:
    """Its time at equal speed of the host is not known: beside those of its GPU that are, it would seem far off."""
    there = [seen(50.0, gpu=ELSEWHERE, host_share=1.0), Seen(observation(50.0), ELSEWHERE, 1.0)]
    here = seen(50.0, host_share=1.0)
    assert sources([here, *there], here, policy()) == NO_INTERVAL
    assert sources([here, there[0]], here, policy()) != NO_INTERVAL


# -- GPUs -----------------------------------------------------------------------------------------------------------


def test_processes_of_the_same_gpu_are_compared_with_and_no_others() -> None:
    before = [seen(200.0), seen(100.0, gpu=ELSEWHERE)]
    assert difference(before, seen(210.0), policy()) == pytest.approx(math.log(1.05))
    assert difference(before, seen(105.0, gpu=ELSEWHERE), policy()) == pytest.approx(math.log(1.05))
    assert comparable_to(seen(gpu="a third"), before) == []


def test_where_no_process_ran_on_this_gpu_all_are_compared_with() -> None:
    before = [seen(100.0), seen(400.0, gpu=ELSEWHERE)]
    assert difference(before, seen(200.0, gpu="a third"), policy()) == pytest.approx(0.0)


def test_another_gpu_adds_the_noise_between_gpus() -> None:
    here, there = (error(processes(10), seen(gpu=gpu)) for gpu in (HERE, ELSEWHERE))
    assert there**2 - here**2 == pytest.approx(2 * 0.0035**2)  # its own, and that of the one in the baseline


def test_several_gpus_in_the_baseline_say_more_of_another_one() -> None:
    one, three = ([seen(gpu=gpu) for gpu in gpus for _ in range(6)] for gpus in ("a", "abc"))
    assert error(three, seen(gpu="d")) < error(one, seen(gpu="d"))


def test_every_gpu_of_the_baseline_has_one_voice_however_many_processes_ran_on_it() -> None:
    uneven = [seen(100.0, gpu="a")] * 19 + [seen(400.0, gpu="b")]
    assert difference(uneven, seen(200.0, gpu="c"), policy()) == pytest.approx(0.0)


def test_gpus_that_differ_more_than_expected_widen_the_interval_of_another_one() -> None:
    alike = [seen(200.0, gpu=gpu) for gpu in "abcd"]
    apart = [seen(mean_us, gpu=gpu) for gpu, mean_us in zip("abcd", (190.0, 200.0, 210.0, 200.0), strict=True)]
    assert error(apart, seen(gpu="e")) > 2 * error(alike, seen(gpu="e"))


def test_a_difference_between_gpus_is_no_noise_between_processes() -> None:
    before = [seen(mean_us, gpu=gpu) for gpu, mean_us in (("a", 190.0), ("b", 210.0)) for _ in range(5)]
    assert process_noise(before, policy()) < 0.0005


# -- another GPU, by its control GEMM -------------------------------------------------------------------------------

FOLLOWS = {"machine": Prior(0.0035, degrees=12.0), "beyond_gemm": Prior(0.002, degrees=20.0)}


def fleet(count: int = 8, *, slope: float = 0.45, gemm: bool = True) -> list[Seen]:
    """GPUs whose control GEMM differs by up to 2 %, and whose time follows it with `slope`."""
    speeds = [0.02 * (place / (count - 1) - 0.5) for place in range(count)]
    return [
        seen(200.0 * math.exp(slope * speed), gpu=str(place), gemm_us=150.0 * math.exp(speed) if gemm else None)
        for place, speed in enumerate(speeds)
    ]


def expected(before: list[Seen], gemm_us: float | None, **of_policy: Any) -> float:
    return math.exp(of_another_gpu(before, seen(gpu="new", gemm_us=gemm_us), policy(**of_policy)).expected)


def test_another_gpu_is_expected_to_be_as_fast_as_its_control_gemm_tells() -> None:
    slow, usual, fast = (expected(fleet(), 150.0 * factor, **FOLLOWS) for factor in (1.01, 1.0, 1 / 1.01))
    assert usual == pytest.approx(200.0)
    assert 200.0 < slow < 200.0 * 1.0045  # the slope is drawn towards none
    assert slow == pytest.approx(200.0 * 1.0045, rel=0.001)
    assert slow * fast == pytest.approx(200.0**2)


def test_a_time_that_does_not_follow_the_control_gemm_is_expected_as_it_was() -> None:
    assert expected(fleet(slope=0.0), 151.5, **FOLLOWS) == pytest.approx(200.0)


@pytest.mark.parametrize(
    ("before", "gemm_us", "of_policy"),
    [
        pytest.param(fleet(3), 151.5, FOLLOWS, id="too few GPUs"),
        pytest.param(fleet(gemm=False), 151.5, FOLLOWS, id="no GEMM before"),
        pytest.param([*fleet()[:-1], *fleet(gemm=False)[-1:]], 151.5, FOLLOWS, id="one GPU without a GEMM"),
        pytest.param(fleet(), None, FOLLOWS, id="no GEMM now"),
        pytest.param(fleet(), 151.5, {}, id="a timer that it tells nothing of"),
    ],
)
def test_where_the_control_gemm_tells_nothing_the_mean_of_the_gpus_is_expected(
    before: list[Seen], gemm_us: float | None, of_policy: dict[str, Any]
) -> None:
    mean = math.exp(sum(one.logarithm for one in before) / len(before))
    assert expected(before, gemm_us, **of_policy) == pytest.approx(mean)


def test_what_the_control_gemm_tells_of_another_gpu_narrows_its_interval() -> None:
    with_gemm, without = (seen(gpu="new", gemm_us=gemm_us) for gemm_us in (150.0, None))
    assert error(fleet(), with_gemm, **FOLLOWS) < 0.75 * error(fleet(), without, **FOLLOWS)


def test_the_further_the_control_gemm_lies_from_those_of_the_baseline_the_less_it_tells() -> None:
    near, far = (seen(gpu="new", gemm_us=gemm_us) for gemm_us in (150.0, 165.0))
    assert error(fleet(), far, **FOLLOWS) > 1.5 * error(fleet(), near, **FOLLOWS)


# -- the host's speed -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [1.0, 0.25])
def test_a_time_of_the_host_is_compared_at_equal_speed_of_the_host(share: float) -> None:
    follows = 2 ** (share * DISPATCH_SLOPE.value)
    before, after = seen(50.0, host_share=share), seen(50.0 * follows, host_share=share, control_us=28.0)
    assert difference([before], after, policy()) == pytest.approx(0.0)


@pytest.mark.parametrize("slope", [0.8, 1.0, 1.3])
def test_a_baseline_of_processes_at_several_speeds_knows_how_its_workload_follows_the_host(slope: float) -> None:
    def at(control_us: float, factor: float = 1.0) -> Seen:
        return seen(50.0 * factor * (control_us / 14.0) ** slope, host_share=1.0, control_us=control_us)

    before = [at(control_us) for control_us in (14.0, 16.0, 20.0, 26.0, 28.0)]
    same, slower = (difference(*alike(before, at(22.0, factor), policy()), policy()) for factor in (1.0, 1.1))
    assert abs(same) < 0.01
    assert slower == pytest.approx(same + math.log(1.1))


def test_what_a_slope_was_fitted_to_says_less_of_how_far_it_scatters() -> None:
    before = [seen(50.0, host_share=1.0, control_us=control_us) for control_us in (10.0, 14.0, 20.0)]
    fitted, _ = alike(before, before[0], policy())
    own = [replace(one, slope=replace(one.slope, fitted=0.0)) for one in fitted]
    degrees = [sources(each, each[0], policy())[0].degrees for each in (own, fitted)]
    assert fitted[0].slope.fitted > 0.1
    assert degrees[1] == pytest.approx(degrees[0] - fitted[0].slope.fitted)


def test_a_device_time_does_not_follow_the_host() -> None:
    assert difference([seen(50.0, control_us=14.0)], seen(50.0, control_us=28.0), policy()) == 0


def test_the_further_the_host_moved_the_less_its_control_explains() -> None:
    none, some, much = (
        error([seen(50.0, host_share=1.0)], seen(50.0, host_share=1.0, control_us=control))
        for control in (14.0, 15.0, 28.0)
    )
    assert none < some < much
    assert much > DISPATCH_SLOPE.deviation * math.log(2)


@pytest.mark.parametrize("unknown", ["before", "after", "both"])
def test_without_a_control_a_time_of_the_host_has_no_interval_and_is_shown_as_it_is(unknown: str) -> None:
    known, lost = seen(50.0, host_share=1.0), Seen(observation(50.0), HERE, 1.0)
    before = known if unknown == "after" else lost
    after = known if unknown == "before" else lost
    assert sources([before], after, policy()) == NO_INTERVAL
    assert difference([before], after, policy()) == 0


def test_a_latency_of_which_the_host_moves_nothing_is_told_so_by_a_baseline_at_several_speeds() -> None:
    rule = DEFAULT_POLICIES[Timer.END_TO_END]

    def at(control_us: float, us: float = 270.0) -> Seen:
        return seen(us, host_share=0.13, control_us=control_us)

    before = [at(control_us, 270.0 + wobble) for control_us, wobble in ((35, 0.0), (40, 0.4), (46, -0.4), (55, 0.1))]
    _, after = alike(before, at(36.0), rule)
    assert after.slope.value < 0.5
    assert math.sqrt(after.slope.variance) == pytest.approx(0.35, abs=0.06)  # another host may differ
    assert decide(before, at(36.0), rule, comparisons=21).status is Status.PASS
    assert decide(before, at(36.0, 300.0), rule, comparisons=21).status is Status.REGRESSED


@pytest.mark.parametrize("host_us", [14.0, 20.0])
def test_of_a_latency_the_host_of_the_runs_own_gpu_is_what_moved(host_us: float) -> None:
    """The baseline's processes on another GPU saw another host, and are not what it is compared with."""
    here = seen(host_share=0.5, control_us=14.0)
    elsewhere = seen(gpu=ELSEWHERE, host_share=0.5, control_us=28.0)
    after = seen(300.0, host_share=0.5, control_us=host_us)
    assert host_explains([here, elsewhere], after, 0.4) == host_explains([here], after, 0.4)
    assert host_explains([here], after, 0.4)[1] == pytest.approx(
        max(0.0, 1 - 0.5 * here.slope.value) * max(0.0, math.log(host_us / 14.0) - 0.1)
    )
