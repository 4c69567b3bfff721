"""How noisy a comparison is: what the baseline and the run show of each level, weighed against what is expected."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import stdtrit

from kernelgauge.judge import DEFAULT_POLICIES, Prior, Seen, process_noise
from kernelgauge.judge.noise import difference, sources
from kernelgauge.judge.stats import NO_INTERVAL, change, quantile, standard_error
from kernelgauge.run import Timer
from tests.builders import ELSEWHERE, observation, policy, seen
from tests.judge.noisy import error, processes

QUIET = Prior(0.0)


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
