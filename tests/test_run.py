"""What was observed is plain data that cannot hold nonsense."""

from __future__ import annotations

import math
from typing import get_args

import msgspec
import pytest

from kernelgauge.run import Conditions, Run, Sample, Statistic, Timer, is_duration, summarize
from kernelgauge.trace import KernelIdentity
from tests.builders import run

# -- samples --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [0.0, -1.0, 5e-324, 9e-4, 1.1e12, 1e50, 1e308, math.nan, math.inf, -math.inf])
def test_a_duration_is_from_a_nanosecond_to_days(value: float) -> None:
    with pytest.raises(ValueError, match=r"durations are positive and finite, 0\.001 to 1e\+12 us"):
        Sample((1.0, value), 40)


@pytest.mark.parametrize("value", [0.001, 1.0, 1e12])
def test_every_duration_between_can_be_held(value: float) -> None:
    assert is_duration(value)
    assert Sample((value,), 40).replicates_us == (value,)


def test_a_sample_has_a_replicate() -> None:
    with pytest.raises(ValueError, match="at least one replicate"):
        Sample((), 40)


@pytest.mark.parametrize("replicates", ["[]", "[0]", "[1, -1]", "[1e50]", "[1e-50]", "[1e999]", '["1"]', "[null]", "1"])
def test_a_sample_that_cannot_be_is_refused_when_it_is_read(replicates: str) -> None:
    text = f'{{"replicates_us": {replicates}, "iterations": 40}}'
    with pytest.raises(msgspec.DecodeError):
        msgspec.json.decode(text, type=Sample)


def test_a_sample_is_the_same_after_it_was_written_and_read() -> None:
    sample = Sample((38.1, 0.1 + 0.2), 40)
    assert msgspec.json.decode(msgspec.json.encode(sample), type=Sample) == sample


def test_a_sample_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Sample((1.0,), 40).iterations = 1  # type: ignore[misc]


@pytest.mark.parametrize("control", [0.0, -1.0, 1e50, math.nan, math.inf])
def test_the_control_of_a_replicate_is_a_duration_too(control: float) -> None:
    with pytest.raises(ValueError, match="durations are positive and finite"):
        Sample((1.0, 2.0), 40, (14.0, control))


@pytest.mark.parametrize("controls", [(14.0,), (14.0, 14.0, 14.0)])
def test_each_replicate_has_a_control_or_none_has(controls: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match=f"{len(controls)} controls for 2 replicates"):
        Sample((1.0, 2.0), 40, controls)


def test_a_second_measurement_adds_its_replicates_and_their_controls() -> None:
    joined = Sample((1.0, 2.0), 40, (14.0, 15.0)).joined(Sample((3.0,), 40, (16.0,)))
    assert joined == Sample((1.0, 2.0, 3.0), 40, (14.0, 15.0, 16.0))


def test_a_second_measurement_without_controls_is_not_mixed_with_one_that_has_them() -> None:
    with pytest.raises(ValueError, match="1 controls for 2 replicates"):
        Sample((1.0,), 40, (14.0,)).joined(Sample((3.0,), 40))


# -- one value for many iterations ----------------------------------------------------------------------------------

STATISTICS: tuple[Statistic, ...] = get_args(Statistic)


def test_the_interquartile_mean_is_the_mean_of_the_middle_half() -> None:
    assert summarize([1.0, 10.0, 11.0, 90.0], "interquartile mean") == 10.5
    assert summarize([90.0, 12.0, 10.0, 1.0, 11.0, 13.0, 2.0, 80.0], "interquartile mean") == 11.5


def test_the_interquartile_mean_is_not_moved_by_a_quarter_of_slow_iterations() -> None:
    quiet = [10.0 + 0.1 * place for place in range(40)]
    disturbed = quiet[:30] + [1000.0 * value for value in quiet[30:]]
    assert summarize(disturbed, "interquartile mean") == pytest.approx(summarize(quiet, "interquartile mean"))


def test_the_interquartile_mean_resolves_finer_than_the_steps_of_the_clock() -> None:
    on_one_step = [2.720] * 30 + [2.752] * 10
    on_two_steps = [2.720] * 25 + [2.752] * 15
    assert summarize(on_one_step, "interquartile mean") < summarize(on_two_steps, "interquartile mean") < 2.752


def test_the_lower_decile_has_a_tenth_of_the_durations_below_it() -> None:
    durations = [float(value) for value in range(100, -1, -1)]
    assert summarize(durations, "lower decile") == pytest.approx(10)


def test_the_lower_decile_is_not_moved_by_what_disturbs_most_iterations() -> None:
    quiet = [10.0 + 0.1 * place for place in range(40)]
    disturbed = quiet[:20] + [1000.0 * value for value in quiet[20:]]
    assert summarize(disturbed, "lower decile") == pytest.approx(summarize(quiet, "lower decile"))


@pytest.mark.parametrize("statistic", STATISTICS)
@pytest.mark.parametrize("durations", [[7.0], [7.0, 7.0], [7.0, 7.0, 7.0]])
def test_equal_durations_stand_for_themselves(durations: list[float], statistic: Statistic) -> None:
    assert summarize(durations, statistic) == 7


@pytest.mark.parametrize("statistic", STATISTICS)
@pytest.mark.parametrize("count", [2, 3, 4, 5, 10, 100])
def test_what_stands_for_the_iterations_lies_within_them(count: int, statistic: Statistic) -> None:
    durations = [float(value) for value in range(1, count + 1)]
    assert 1 <= summarize(durations, statistic) <= count
    assert summarize(durations[::-1], statistic) == summarize(durations, statistic)


def test_device_time_is_an_interquartile_mean_and_host_clocks_are_lower_deciles() -> None:
    assert {timer: timer.statistic for timer in Timer} == {
        Timer.DEVICE: "interquartile mean",
        Timer.END_TO_END: "lower decile",
        Timer.HOST: "lower decile",
    }


# -- a run as a file ------------------------------------------------------------------------------------------------


def test_a_run_is_the_same_after_it_was_written_and_read() -> None:
    measured = run(conditions=Conditions(lowest_sm_clock_mhz=1905, event_reasons=("power cap",)))
    assert msgspec.json.decode(msgspec.json.encode(measured), type=Run) == measured


# -- kernels --------------------------------------------------------------------------------------------------------


def test_two_launches_with_another_configuration_are_two_kernels() -> None:
    narrow = KernelIdentity("triton_poi_fused_gelu_mul_0", "pointwise", grid=(24576, 1, 1), block=(128, 1, 1))
    wide = msgspec.structs.replace(narrow, grid=(49152, 1, 1), block=(256, 1, 1))
    assert narrow != wide
    assert len({narrow, wide, msgspec.structs.replace(narrow)}) == 2


def test_what_is_not_known_of_a_kernel_takes_no_room_in_a_file() -> None:
    assert msgspec.to_builtins(KernelIdentity("aten::mm", "gemm")) == {"name": "aten::mm", "kind": "gemm"}
