"""What a calibration found, as text."""

from __future__ import annotations

import re

import msgspec
import pytest

from kernelgauge.judge import Baseline, calibrated
from kernelgauge.report.calibration import calibration_text, choices_text
from kernelgauge.run import Timer
from kernelgauge.trace import KernelIdentity
from tests.builders import ELSEWHERE, FUSED, WORKLOAD, baseline, drawn, run

QUIET = (200.0, 200.1, 199.9, 200.0) * 2


def told(stored: Baseline, *, comparisons: int = 21, width: int = 100) -> dict[str, list[float | None]]:
    """The numbers of each timer's line: time, noise, smallest change here and on another GPU. None: a dash."""
    text = calibration_text({"mlp": stored}, comparisons=comparisons, width=width, color=False)
    lines = [line.removeprefix("mlp").strip() for line in text.splitlines() if line.startswith("mlp")]
    found = [re.fullmatch(r"([a-z ]+?) +([\d. -]+)", line) for line in lines]
    return {match[1]: [None if word == "-" else float(word) for word in match[2].split()] for match in found if match}


def test_every_timer_that_was_measured_has_a_line() -> None:
    assert set(told(baseline())) == {timer.label for timer in Timer}
    assert set(told(baseline(host=None))) == {"device time", "end to end"}


def device_line(stored: Baseline, **options: int) -> tuple[float, float, float, float]:
    time_us, noise, here, there = told(stored, **options)["device time"]
    assert time_us is not None
    assert noise is not None
    assert here is not None
    assert there is not None
    return time_us, noise, here, there


def test_line_of_gpu_time_needs_a_larger_change_on_another_gpu() -> None:
    time_us, noise, here, there = device_line(drawn({1024: 10}))
    assert time_us > 40
    assert 0 < noise < here < there


@pytest.mark.parametrize("timer", ["host dispatch", "end to end"])
def test_line_of_host_clock_has_no_number_for_another_gpu(timer: str) -> None:
    _, noise, here, there = told(drawn({1024: 10}))[timer]
    assert noise is not None
    assert here is not None
    assert 0 < noise < here
    assert there is None


def test_more_processes_show_a_smaller_change() -> None:
    one, ten = (device_line(drawn({1024: count}, device=QUIET))[2] for count in (1, 10))
    assert ten < one


def test_more_comparisons_need_a_larger_change() -> None:
    stored = drawn({1024: 10}, device=QUIET)
    few, many = (device_line(stored, comparisons=comparisons)[3] for comparisons in (1, 1000))
    assert few < many


def test_noise_is_between_processes_and_not_between_gpus() -> None:
    runs = [run(device=QUIET), run(device=[1.01 * value for value in QUIET], gpu=ELSEWHERE)] * 3
    assert device_line(calibrated(runs, suite="perf"))[1] < 0.1  # per cent


def test_process_on_a_slow_host_hides_no_change() -> None:
    """An H200's latency of 255 us was 432 us once, when its host was twice as slow."""
    usual = [run(device=QUIET, end_to_end=[us, us + 1] * 4, host_control_us=30.0) for us in (255.0, 256.0) * 4]
    slow = run(device=QUIET, end_to_end=[432.0, 436.0] * 4, host_control_us=57.0)
    alone, among = (told(calibrated(runs, suite="perf"))["end to end"] for runs in (usual, [*usual, slow]))
    assert among[2] == pytest.approx(alone[2], rel=0.05)


@pytest.mark.parametrize("place", range(5))
def test_process_of_one_replicate_changes_little(place: int) -> None:
    runs = [run(device=[us * 1.0002**number for us in QUIET]) for number in range(4)]
    expected = device_line(calibrated(runs, suite="perf"))
    runs.insert(place, run(device=(200.0,)))
    assert device_line(calibrated(runs, suite="perf")) == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize("width", [60, 80])
def test_the_table_is_never_wider_than_the_terminal(width: int) -> None:
    text = calibration_text({WORKLOAD * 3: baseline()}, comparisons=21, width=width, color=False)
    assert max(map(len, text.splitlines())) <= width
    assert "\x1b" not in text


def test_choices_name_the_most_frequent_configuration_first() -> None:
    assert choices_text({"mlp": drawn({512: 1, 1024: 3}, us={512: 55.4, 1024: 38.1})}) == [
        "mlp: the autotuner chose 2 launch configurations",
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
    lines = choices_text({"mlp": replace(chosen, entries=tuple(entries))})
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
    lines = choices_text({"mlp": replace(chosen, entries=entries)})
    assert all(FUSED in line and "triton_per" not in line for line in lines[1:])


def test_where_one_configuration_was_drawn_there_are_no_odds() -> None:
    assert choices_text({"mlp": drawn({1024: 4})}) == []
