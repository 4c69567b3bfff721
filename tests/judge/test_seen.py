"""Which processes of a baseline a run is held against."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kernelgauge.judge import DEFAULT_POLICIES, Seen, Status, decide, held_against
from kernelgauge.run import Timer
from tests.builders import seen

# -- several hosts in one baseline ----------------------------------------------------------------------------------


def on_hosts(*controls: float | None, share: float = 0.9) -> list[Seen]:
    """Processes on GPUs of their own."""
    return [seen(gpu=f"{place:08x}", host_share=share, control_us=control) for place, control in enumerate(controls)]


@pytest.mark.parametrize("share", [0.1, 0.9])
def test_a_host_clock_is_compared_with_hosts_of_its_speed(share: float) -> None:
    before = on_hosts(30.0, 33.0, 36.0, 31.0, 55.0, 58.0, share=share)
    slow = on_hosts(54.0, 55.0, 57.0, 60.0, share=share)
    run = seen(gpu="another", host_share=share, control_us=32.0)
    assert held_against(before, run) == before[:4]
    assert held_against([*before, *slow], replace(run, observation=slow[0].observation)) == [*before[4:], *slow]


def test_its_own_gpu_counts_whatever_the_host_did_if_it_never_had_this_speed() -> None:
    before = on_hosts(55.0, 31.0, 33.0, 32.0, 58.0)
    assert held_against(before, seen(gpu=before[0].gpu, host_share=0.9, control_us=32.0)) == before[:4]


def test_a_process_at_which_the_host_was_twice_as_slow_does_not_count_among_others_on_the_gpu() -> None:
    before = [seen(host_share=0.1, control_us=control) for control in (61.0, 114.0, 62.0, 64.0, 60.0)]
    assert held_against(before, seen(host_share=0.1, control_us=59.0)) == [before[0], *before[2:]]
    assert held_against(before, seen(host_share=0.1, control_us=114.0)) == before  # one alone says little


@pytest.mark.parametrize("controls", [(30.0, 55.0, 58.0, 31.0, 32.0), (55.0,) * 6, (None,) * 5])
def test_few_hosts_alike_do_not_say_how_far_processes_differ(controls: tuple[float | None, ...]) -> None:
    before = on_hosts(*controls)
    assert held_against(before, seen(gpu="another", host_share=0.9, control_us=32.0)) == before


@pytest.mark.parametrize(("share", "control"), [(0.0, 32.0), (1.0, 32.0), (0.9, None)])
def test_of_a_device_time_a_dispatch_time_and_an_unknown_host_all_count(share: float, control: float | None) -> None:
    before = on_hosts(30.0, 31.0, 32.0, 33.0, 55.0)
    assert held_against(before, seen(gpu="another", host_share=share, control_us=control)) == before


def test_a_slow_host_in_the_baseline_hides_no_slowdown_of_another() -> None:
    """As a host that was half as slow again did to every latency of the others."""
    before = [
        seen(50.0 * factor, gpu=f"{place}", host_share=0.9, control_us=32.0)
        for place, factor in enumerate((1.0, 1.01) * 4)
    ]
    before += [seen(us, gpu=f"slow{us}", host_share=0.9, control_us=55.0) for us in (100.0, 60.0, 140.0)]
    slower = seen(65.0, gpu="another", host_share=0.9, control_us=32.0)
    assert decide(before, slower, DEFAULT_POLICIES[Timer.END_TO_END], comparisons=21).status is Status.REGRESSED


def test_a_process_of_one_replicate_is_none_of_the_four() -> None:
    short = [seen(gpu=f"short{place}", host_share=0.9, control_us=32.0, replicates=1) for place in range(3)]
    before = [*short, *on_hosts(32.0, 45.0, 45.0, 46.0, 44.0)]
    assert held_against(before, seen(gpu="another", host_share=0.9, control_us=32.0)) == before[3:]
