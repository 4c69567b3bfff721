"""What a calibration found, as text."""

from __future__ import annotations

import re

import msgspec
import pytest

from kernelgauge.judge import Baseline, calibrated
from kernelgauge.report.calibration import calibration_text, odds_text
from kernelgauge.run import Timer
from kernelgauge.trace import KernelIdentity
from tests.builders import ELSEWHERE, FUSED, ONE_TOKEN, ONE_TOKEN_US, WORKLOAD, baseline, drawn, of_grids, run

QUIET = (200.0, 200.1, 199.9, 200.0) * 2


def told(stored: Baseline, *, comparisons: int = 21, width: int = 100) -> dict[str, list[float]]:
    """The numbers of each timer's line: time, noise, smallest change here and on another GPU."""
    text = calibration_text({"mlp": stored}, comparisons=comparisons, width=width, color=False)
    lines = [line.removeprefix("mlp").strip() for line in text.splitlines() if line.startswith("mlp")]
    found = [re.fullmatch(r"([a-z ]+?) +([\d. ]+)", line) for line in lines]
    return {match[1]: [float(number) for number in match[2].split()] for match in found if match}


def test_every_timer_that_was_measured_has_a_line() -> None:
    assert set(told(baseline())) == {timer.label for timer in Timer}
    assert set(told(baseline(host=None))) == {"device time", "end to end"}


def test_a_line_holds_the_time_and_a_smallest_change_that_is_larger_on_another_gpu() -> None:
    for time_us, noise, here, there in told(drawn({1024: 10})).values():
        assert time_us > 40
        assert 0 < noise < here < there


def test_the_more_processes_were_measured_the_smaller_a_change_is_seen() -> None:
    one, ten = (told(drawn({1024: count}, device=QUIET))["device time"][2] for count in (1, 10))
    assert ten < one


def test_the_more_is_compared_the_larger_a_change_must_be() -> None:
    stored = drawn({1024: 10}, device=QUIET)
    few, many = (told(stored, comparisons=comparisons)["device time"][2] for comparisons in (1, 1000))
    assert few < many


def test_processes_of_several_gpus_are_one_calibration() -> None:
    runs = [run(device=QUIET), run(device=[1.01 * value for value in QUIET], gpu=ELSEWHERE)] * 3
    assert told(calibrated(runs, suite="perf"))["device time"][1] < 0.1  # per cent: GPUs are no processes


def test_of_kernels_of_few_blocks_only_a_large_change_is_seen() -> None:
    few, many = (
        told(calibrated([run(kernels=of_grids(*grids), device=ONE_TOKEN_US)] * 4, suite="perf"))["device time"][2]
        for grids in (ONE_TOKEN, [(128, 1, 1)] * 5)
    )
    assert few > 3 > 1 > many  # per cent


def test_one_process_on_a_host_that_was_twice_as_slow_does_not_hide_what_the_others_show() -> None:
    """Of a latency of 255 us whose host was twice as slow once, as it was: 432 us."""
    usual = [run(device=QUIET, end_to_end=[us, us + 1] * 4, host_control_us=30.0) for us in (255.0, 256.0) * 4]
    slow = run(device=QUIET, end_to_end=[432.0, 436.0] * 4, host_control_us=57.0)
    alone, among = (told(calibrated(runs, suite="perf"))["end to end"] for runs in (usual, [*usual, slow]))
    assert among == pytest.approx(alone, rel=0.05)


@pytest.mark.parametrize("place", range(5))
def test_a_process_that_was_cut_short_changes_nothing_wherever_it_stands(place: int) -> None:
    runs = [run(device=[us * 1.0002**number for us in QUIET]) for number in range(4)]
    expected = told(calibrated(runs, suite="perf"))["device time"]
    runs.insert(place, run(device=(200.0,)))
    assert told(calibrated(runs, suite="perf"))["device time"] == expected


@pytest.mark.parametrize("width", [60, 80])
def test_the_table_is_never_wider_than_the_terminal(width: int) -> None:
    text = calibration_text({WORKLOAD * 3: baseline()}, comparisons=21, width=width, color=False)
    assert max(map(len, text.splitlines())) <= width
    assert "\x1b" not in text


def test_the_odds_of_each_configuration_are_told_the_most_frequent_first() -> None:
    assert odds_text({"mlp": drawn({512: 1, 1024: 3}, us={512: 55.4, 1024: 38.1})}) == [
        "mlp: the autotuner drew 2 launch configurations",
        f"  3 of 4: 205.1 us  {FUSED} 38.1 us (XBLOCK=1024, num_warps=4)",
        f"  1 of 4: 222.4 us  {FUSED} 55.4 us (XBLOCK=512, num_warps=8)",
    ]


def test_in_a_cuda_graph_the_grid_tells_the_configuration() -> None:
    """As recorded on an H200 with `mode="reduce-overhead"`: nothing in a graph that is replayed says what was chosen."""
    replace = msgspec.structs.replace
    chosen = drawn({512: 1, 1024: 3}, us={512: 55.4, 1024: 38.1})
    entries = [
        replace(
            entry,
            kernels=tuple(
                replace(each, identity=replace(each.identity, kernel_kwargs=None, num_warps=None, num_stages=None))
                for each in entry.kernels
            ),
        )
        for entry in chosen.entries
    ]
    lines = odds_text({"mlp": replace(chosen, entries=tuple(entries))})
    assert [line.partition(FUSED)[2] for line in lines[1:]] == [
        " 38.1 us (grid 24576x1x1 block 128x1x1)",
        " 55.4 us (grid 49152x1x1 block 256x1x1)",
    ]


def test_a_kernel_with_nothing_to_tune_is_no_part_of_the_odds() -> None:
    replace = msgspec.structs.replace
    chosen = drawn({512: 1, 1024: 3})
    fixed = replace(
        chosen.entries[0].kernels[0], identity=KernelIdentity("triton_per_fused_sum_1", "reduction", kernel_kwargs="")
    )
    entries = tuple(replace(entry, kernels=(*entry.kernels, fixed)) for entry in chosen.entries)
    lines = odds_text({"mlp": replace(chosen, entries=entries)})
    assert all(FUSED in line and "triton_per" not in line for line in lines[1:])


def test_where_one_configuration_was_drawn_there_are_no_odds() -> None:
    assert odds_text({"mlp": drawn({1024: 4})}) == []
