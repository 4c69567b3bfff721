"""Many runs of unchanged code -> one baseline."""

from __future__ import annotations

from typing import Any

import pytest

from kernelgauge.conditions import Conditions
from kernelgauge.judge import Recorded, RecordedConditions, calibrated, encode_baseline, from_run
from kernelgauge.run import Timer
from tests.builders import ELSEWHERE, H200, HERE, OTHER_SOURCE, counts, drawn, fingerprint, mlp_kernels, run


def test_of_one_run_it_is_the_baseline_of_that_run() -> None:
    assert calibrated([run()], suite="perf") == from_run(run(), suite="perf")


def test_every_process_is_kept_with_its_gpu_and_its_times() -> None:
    runs = [run(device=(200.0, 201.0), gpu=HERE), run(device=(210.0, 211.0), gpu=ELSEWHERE)]
    (entry,) = calibrated(runs, suite="perf").entries
    assert entry.draws == 2
    assert list(entry.processes) == [from_run(one, suite="perf").entries[0].processes[0] for one in runs]


def test_processes_are_grouped_by_configuration_and_the_most_frequent_comes_first() -> None:
    stored = drawn({512: 1, 1024: 3, 256: 2})
    assert [(entry.draws, len(entry.processes)) for entry in stored.entries] == [(3, 3), (2, 2), (1, 1)]
    tuned = [entry.kernels[2].identity.kernel_kwargs for entry in stored.entries]
    assert tuned == ["XBLOCK=1024", "XBLOCK=256", "XBLOCK=512"]


def test_another_source_of_the_same_configuration_is_no_group_of_its_own() -> None:
    runs = [run(), run(kernels=mlp_kernels(source=OTHER_SOURCE))]
    assert [entry.draws for entry in calibrated(runs, suite="perf").entries] == [2]


def test_a_kernels_time_is_the_mean_over_the_processes_of_its_own_configuration() -> None:
    runs = [run(kernels=mlp_kernels(us=us)) for us in (38.0, 38.5)]
    runs.append(run(kernels=mlp_kernels(us=55.4, xblock=512)))
    first, second = calibrated(runs, suite="perf").entries
    assert [kernel.device_time_us for kernel in first.kernels] == [56.0, 58.0, 38.25, 53.0]
    assert second.kernels[2].device_time_us == 55.4


def test_calibrated_with_a_missing_timer_keeps_the_others() -> None:
    stored = calibrated([run(host=None), run()], suite="perf")
    assert len(stored.times(Timer.HOST, stored.entries[0])) == 1
    assert len(stored.times(Timer.DEVICE, stored.entries[0])) == 2


def test_the_same_runs_give_the_same_bytes() -> None:
    runs = [run(kernels=mlp_kernels(xblock=xblock)) for xblock in (512, 1024, 1024)]
    assert encode_baseline(calibrated(runs, suite="perf")) == encode_baseline(calibrated(runs, suite="perf"))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"counts": counts(memsets=3)}, "counted differently"),
        ({"kernels": mlp_kernels()[::-1]}, "ran different kernels"),
        ({"machine": fingerprint(driver="590.1")}, "different machines or software"),
        ({"machine": fingerprint(device="NVIDIA A100-SXM4-80GB")}, "different machines or software"),
    ],
)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_processes_that_differ_in_what_is_exact_are_no_noise(place: int, changes: dict[str, Any], said: str) -> None:
    runs = [run(), run()]
    runs.insert(place, run(**changes))
    with pytest.raises(ValueError, match=said):
        calibrated(runs, suite="perf")


def test_gpus_of_one_kind_may_have_a_little_less_memory() -> None:
    """It moves with the driver, and with the rows that a GPU gave up: nothing that a time depends on."""
    other = run(machine=fingerprint(memory_bytes=H200.memory_bytes - (2 << 20)), gpu=ELSEWHERE)
    assert len(calibrated([run(), other], suite="perf").entries[0].processes) == 2


def test_what_was_recorded_has_the_conditions_of_all_processes() -> None:
    watched = [
        Conditions(lowest_sm_clock_mhz=clock, max_temperature_c=heat) for clock, heat in ((1700, 50), (1600, 48))
    ]
    runs = [run(conditions=each) for each in (*watched, None)]
    stored = calibrated(runs, suite="perf", recorded=Recorded("2026-11-21T10:00:00+00:00", "abc", "0.1.0"))
    assert stored.recorded == Recorded(
        "2026-11-21T10:00:00+00:00",
        "abc",
        "0.1.0",
        RecordedConditions(lowest_sm_clock_mhz=1600, max_temperature_c=50),
    )
