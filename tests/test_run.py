"""A run and its samples are plain data that cannot hold nonsense."""

from __future__ import annotations

import math
from typing import get_args

import msgspec
import pytest

from kernelgauge.run import Conditions, Run, Sample, Statistic, Timer, is_duration, summarize
from kernelgauge.trace import KernelIdentity
from tests.builders import run

STATISTICS: tuple[Statistic, ...] = get_args(Statistic)

# -- samples ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [0.0, -1.0, 5e-324, 9e-4, 1.1e12, 1e50, 1e308, math.nan, math.inf, -math.inf])
def test_sample_with_impossible_duration_raises(value: float) -> None:
    for replicates, controls in (((1.0, value), ()), ((1.0, 2.0), (14.0, value))):
        with pytest.raises(ValueError, match=r"durations are positive and finite, 0\.001 to 1e\+12 us"):
            Sample(replicates, 40, controls)


@pytest.mark.parametrize("value", [0.001, 1.0, 1e12])
def test_sample_holds_every_possible_duration(value: float) -> None:
    assert is_duration(value)
    assert Sample((value,), 40).replicates_us == (value,)


@pytest.mark.parametrize(
    ("replicates", "controls", "words"),
    [
        ((), (), "at least one replicate"),
        ((1.0, 2.0), (14.0,), "1 controls for 2 replicates"),
        ((1.0, 2.0), (14.0, 14.0, 14.0), "3 controls for 2 replicates"),
    ],
)
def test_sample_with_unequal_counts_raises(
    replicates: tuple[float, ...], controls: tuple[float, ...], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        Sample(replicates, 40, controls)


@pytest.mark.parametrize("replicates", ["[]", "[0]", "[1, -1]", "[1e50]", "[1e-50]", "[1e999]", '["1"]', "[null]", "1"])
def test_sample_read_with_nonsense_raises(replicates: str) -> None:
    with pytest.raises(msgspec.DecodeError):
        msgspec.json.decode(f'{{"replicates_us": {replicates}, "iterations": 40}}', type=Sample)


def test_sample_is_frozen() -> None:
    with pytest.raises(AttributeError):
        Sample((1.0,), 40).iterations = 1  # type: ignore[misc]


def test_joined_sample_has_all_replicates_and_controls() -> None:
    first = Sample((1.0, 2.0), 40, (14.0, 15.0))
    assert first.joined(Sample((3.0,), 40, (16.0,))) == Sample((1.0, 2.0, 3.0), 40, (14.0, 15.0, 16.0))
    with pytest.raises(ValueError, match="2 controls for 3 replicates"):
        first.joined(Sample((3.0,), 40))


@pytest.mark.parametrize(
    "value",
    [Sample((38.1, 0.1 + 0.2), 40), run(conditions=Conditions(lowest_sm_clock_mhz=1905, event_reasons=("power cap",)))],
)
def test_json_of_run_and_sample_is_lossless(value: Sample | Run) -> None:
    assert msgspec.json.decode(msgspec.json.encode(value), type=type(value)) == value


# -- one value for many iterations ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("durations", "statistic", "expected"),
    [
        ([1.0, 10.0, 11.0, 90.0], "interquartile mean", 10.5),
        ([90.0, 12.0, 10.0, 1.0, 11.0, 13.0, 2.0, 80.0], "interquartile mean", 11.5),
        ([2.720] * 25 + [2.752] * 15, "interquartile mean", 2.728),  # between two steps of the clock
        ([float(value) for value in range(100, -1, -1)], "lower decile", 10.0),
        *(([7.0] * count, statistic, 7.0) for count in (1, 2, 3) for statistic in STATISTICS),
    ],
)
def test_summarize_gives_the_statistic(durations: list[float], statistic: Statistic, expected: float) -> None:
    assert summarize(durations, statistic) == pytest.approx(expected)


@pytest.mark.parametrize(("statistic", "quiet"), [("interquartile mean", 30), ("lower decile", 20)])
def test_summarize_ignores_disturbed_iterations(statistic: Statistic, quiet: int) -> None:
    durations = [10.0 + 0.1 * place for place in range(40)]
    disturbed = durations[:quiet] + [1000.0 * value for value in durations[quiet:]]
    assert summarize(disturbed, statistic) == pytest.approx(summarize(durations, statistic))


@pytest.mark.parametrize("statistic", STATISTICS)
@pytest.mark.parametrize("count", [2, 3, 4, 5, 10, 100])
def test_summarize_stays_within_in_any_order(count: int, statistic: Statistic) -> None:
    durations = [float(value) for value in range(1, count + 1)]
    assert 1 <= summarize(durations, statistic) <= count
    assert summarize(durations[::-1], statistic) == summarize(durations, statistic)


def test_timers_of_the_host_are_lower_deciles() -> None:
    assert [timer.statistic for timer in (Timer.DEVICE, Timer.END_TO_END, Timer.HOST)] == [
        "interquartile mean",
        "lower decile",
        "lower decile",
    ]


# -- kernels ----------------------------------------------------------------------------------------------------------


def test_kernel_with_another_configuration_is_another() -> None:
    narrow = KernelIdentity("triton_poi_fused_gelu_mul_0", "pointwise", grid=(24576, 1, 1), block=(128, 1, 1))
    wide = msgspec.structs.replace(narrow, grid=(49152, 1, 1), block=(256, 1, 1))
    assert len({narrow, wide, msgspec.structs.replace(narrow)}) == 2


def test_kernel_json_leaves_out_what_is_unknown() -> None:
    assert msgspec.to_builtins(KernelIdentity("aten::mm", "gemm")) == {"name": "aten::mm", "kind": "gemm"}
