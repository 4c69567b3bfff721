"""Who else computes on the GPU, as NVML tells it."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

from kernelgauge.measure.conditions import (
    Reading,
)
from kernelgauge.measure.nvml import Monitor
from tests.measure.fake_nvml import ANOTHER, OTHER, OWN, Clock, FakeNvml

# -- other processes ------------------------------------------------------------------------------------------------


def others(reading: Reading) -> tuple[int | None, tuple[int, ...], int | None]:
    return reading.other_processes, reading.other_pids, reading.other_utilization_percent


def test_our_own_process_is_no_other(after_a_second: Callable[..., Reading]) -> None:
    assert others(after_a_second([(OWN, 5, 97)], pids=[OWN])) == (0, (), 0)


def test_another_busy_process_is_seen_with_its_pid(after_a_second: Callable[..., Reading]) -> None:
    reading = after_a_second([(OWN, 5, 30), (OTHER, 6, 2), (ANOTHER, 6, 63)], pids=[OWN, OTHER, ANOTHER])
    assert others(reading) == (2, (ANOTHER, OTHER), 63)


def test_the_most_that_a_process_used_counts(after_a_second: Callable[..., Reading]) -> None:
    reading = after_a_second([(OTHER, 5, 3), (OTHER, 6, 63), (OTHER, 7, 0)], pids=[OWN, OTHER])
    assert others(reading) == (1, (OTHER,), 63)


def test_a_process_that_the_list_lacks_is_seen_by_what_it_uses(after_a_second: Callable[..., Reading]) -> None:
    assert others(after_a_second([(OTHER, 6, 63)], pids=[OWN])) == (1, (OTHER,), 63)


def test_a_process_without_a_number_has_no_pid(after_a_second: Callable[..., Reading]) -> None:
    assert others(after_a_second([(0, 6, 63)], pids=[OWN, OTHER])) == (2, (), 63)


def test_the_first_reading_knows_no_utilisation(nvml: FakeNvml, monitor: Monitor) -> None:
    nvml.pids, nvml.samples = [OWN, OTHER], [(OTHER, 5, 63)]
    assert others(monitor.read(processes=True)) == (1, (OTHER,), None)


def test_what_was_sampled_before_the_last_reading_is_over(
    nvml: FakeNvml, after_a_second: Callable[..., Reading]
) -> None:
    nvml.samples = [(OTHER, 5, 63)]
    assert others(after_a_second([], pids=[OWN, OTHER])) == (1, (OTHER,), 0)


def test_no_sample_within_a_second_says_nothing(after_a_second: Callable[..., Reading]) -> None:
    assert others(after_a_second([], pids=[OWN, OTHER], seconds=0.06)) == (1, (OTHER,), None)


def test_a_sample_counts_however_short_the_time(after_a_second: Callable[..., Reading]) -> None:
    assert others(after_a_second([(OWN, 5, 80)], pids=[OWN, OTHER], seconds=0.06)) == (1, (OTHER,), 0)


def test_samples_that_nobody_took_are_left_out(nvml: FakeNvml, after_a_second: Callable[..., Reading]) -> None:
    nvml.samples = [(OTHER, 50, 1)]
    # nvtop#110: what the driver returned beside the true samples, whatever it was asked for.
    nvml.nvmlDeviceGetProcessUtilization = lambda handle, last: [  # type: ignore[method-assign]
        SimpleNamespace(pid=pid, timeStamp=at, smUtil=used) for pid, at, used in nvml.samples
    ]
    bogus = [(OTHER, 20, 99), (ANOTHER, 10**18, 4_294_967_295), (OTHER, 60, 7)]
    assert others(after_a_second(bogus, pids=[OWN, OTHER])) == (1, (OTHER,), 7)


def test_after_an_error_utilisation_begins_anew(nvml: FakeNvml, clock: Clock, monitor: Monitor) -> None:
    nvml.samples = [(OTHER, 5, 63)]
    nvml.failing["nvmlDeviceGetProcessUtilization"] = nvml.NVMLError
    monitor.read(processes=True)
    nvml.failing.clear()
    clock.now_s += 1
    assert monitor.read(processes=True).other_utilization_percent is None


# -- in a container: NVML counts processes as the host does ---------------------------------------------------------


def test_the_only_process_is_ours_whatever_its_number(after_a_second: Callable[..., Reading]) -> None:
    assert others(after_a_second([(OTHER, 5, 97)], pids=[OTHER])) == (0, (), 0)


def test_the_only_listed_process_is_ours_and_one_that_is_only_sampled_is_not(
    after_a_second: Callable[..., Reading],
) -> None:
    assert others(after_a_second([(OTHER, 5, 30), (ANOTHER, 5, 60)], pids=[OTHER])) == (1, (ANOTHER,), 60)


def test_of_several_strange_processes_all_but_one_are_others(after_a_second: Callable[..., Reading]) -> None:
    reading = after_a_second([(OTHER, 5, 90), (ANOTHER, 5, 20)], pids=[OTHER, ANOTHER, OWN + 3])
    assert others(reading) == (2, (), 20)


def test_of_several_strange_processes_the_only_busy_one_is_ours(after_a_second: Callable[..., Reading]) -> None:
    assert others(after_a_second([(OTHER, 5, 90)], pids=[OTHER, ANOTHER])) == (1, (), 0)


def test_an_empty_list_has_no_others(after_a_second: Callable[..., Reading]) -> None:
    assert others(after_a_second([], pids=[])) == (0, (), 0)
