"""What was observed is plain data that cannot hold nonsense."""

from __future__ import annotations

import math

import msgspec
import pytest

from kernelgauge.run import KernelIdentity, Sample, Timer, summarize

# -- samples --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf, -math.inf])
def test_a_duration_is_positive_and_finite(value: float) -> None:
    with pytest.raises(ValueError, match="durations are positive and finite"):
        Sample((1.0, value), 40)


def test_a_sample_has_a_replicate() -> None:
    with pytest.raises(ValueError, match="at least one replicate"):
        Sample((), 40)


@pytest.mark.parametrize("replicates", ["[]", "[0]", "[1, -1]", "[1e999]", '["1"]', "[null]", "1"])
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


@pytest.mark.parametrize(("replicates", "middle"), [((3.0,), 3), ((1.0, 9.0), 5), ((9.0, 1.0, 2.0), 2)])
def test_a_sample_stands_for_the_median_of_its_replicates(replicates: tuple[float, ...], middle: float) -> None:
    assert Sample(replicates, 40).median_us == middle


# -- one value for many iterations ----------------------------------------------------------------------------------


def test_the_median_is_not_moved_by_one_slow_iteration() -> None:
    assert summarize([10, 11, 12, 13, 90_000], "median") == 12


def test_the_lower_decile_has_a_tenth_of_the_durations_below_it() -> None:
    durations = [float(value) for value in range(100, -1, -1)]
    assert summarize(durations, "lower decile") == pytest.approx(10)


def test_the_lower_decile_is_not_moved_by_what_disturbs_most_iterations() -> None:
    quiet = [10.0 + 0.1 * place for place in range(40)]
    disturbed = quiet[:20] + [1000.0 * value for value in quiet[20:]]
    assert summarize(disturbed, "lower decile") == pytest.approx(summarize(quiet, "lower decile"))


@pytest.mark.parametrize("statistic", ["median", "lower decile"])
@pytest.mark.parametrize("durations", [[7.0], [7.0, 7.0], [7.0, 7.0, 7.0]])
def test_equal_durations_stand_for_themselves(durations: list[float], statistic: str) -> None:
    assert summarize(durations, statistic) == 7  # type: ignore[arg-type]  # one of the two literals


@pytest.mark.parametrize("count", [2, 3, 4, 10, 100])
def test_the_lower_decile_lies_within_the_durations(count: int) -> None:
    durations = [float(value) for value in range(1, count + 1)]
    assert 1 <= summarize(durations, "lower decile") <= summarize(durations, "median")


def test_device_time_is_a_median_and_host_clocks_are_lower_deciles() -> None:
    assert {timer: timer.statistic for timer in Timer} == {
        Timer.DEVICE: "median",
        Timer.END_TO_END: "lower decile",
        Timer.HOST: "lower decile",
    }


# -- kernels --------------------------------------------------------------------------------------------------------


def test_two_launches_with_another_configuration_are_two_kernels() -> None:
    narrow = KernelIdentity("triton_poi_fused_gelu_mul_0", "pointwise", grid=(24576, 1, 1), block=(128, 1, 1))
    wide = msgspec.structs.replace(narrow, grid=(49152, 1, 1), block=(256, 1, 1))
    assert narrow != wide
    assert len({narrow, wide, msgspec.structs.replace(narrow)}) == 2


def test_what_is_not_known_of_a_kernel_takes_no_room_in_a_file() -> None:
    assert msgspec.to_builtins(KernelIdentity("aten::mm", "gemm")) == {"name": "aten::mm", "kind": "gemm"}
