"""What a baseline remembers: how it was recorded, and those that it replaced, back to the first."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kernelgauge.conditions import Conditions
from kernelgauge.judge import (
    Ancestor,
    Baseline,
    Recorded,
    RecordedConditions,
    ancestor_of,
    calibrated,
    conditions_of,
    decode_baseline,
    descended,
    encode_baseline,
    from_run,
)
from kernelgauge.judge.ancestry import digest
from kernelgauge.run import Timer
from tests.builders import OTHER_SOURCE, WORKLOAD, baseline, drawn, fingerprint, launched, mlp_kernels, run

RECORDED = Recorded("2026-11-20T19:10:12+00:00", "4e3642b", "0.1.0")


def recorded(*, at: str = RECORDED.at, **changes: Any) -> Baseline:
    return from_run(run(**changes), suite="perf", recorded=msgspec.structs.replace(RECORDED, at=at))


# -- how it was recorded --------------------------------------------------------------------------------------------


def test_a_baseline_remembers_when_from_which_commit_and_under_which_conditions() -> None:
    watched = Conditions(
        lowest_sm_clock_mhz=1620,
        max_temperature_c=58,
        max_power_watts=699.96,
        throttled_ms={"power cap": 12.34, "sync boost": 1.0},
        other_processes=1,
    )
    stored = recorded(conditions=watched).recorded
    assert stored == msgspec.structs.replace(RECORDED, conditions=RecordedConditions(1620, 58, 700.0, 13.3, 1))


def test_where_nobody_watched_there_are_no_conditions() -> None:
    assert recorded().recorded == RECORDED
    assert conditions_of([run(), run()]) is None


def test_what_is_not_known_of_the_conditions_stays_unknown() -> None:
    assert conditions_of([run(conditions=Conditions())]) == RecordedConditions()


def test_conditions_of_several_runs_are_their_extremes_and_throttling_adds_up() -> None:
    runs = [
        run(conditions=Conditions(1700, max_power_watts=500.0, throttled_ms={"power cap": 1.0}, other_processes=0)),
        run(),
        run(conditions=Conditions(1650, max_power_watts=600.0, throttled_ms={"power cap": 2.5}, other_processes=2)),
    ]
    assert conditions_of(runs) == RecordedConditions(1650, None, 600.0, 3.5, 2)


def test_a_baseline_with_all_that_it_remembers_can_be_read_again() -> None:
    whole = descended(recorded(conditions=Conditions(1620)), recorded(at="2026-10-01T00:00:00+00:00"))
    content = encode_baseline(whole)
    assert decode_baseline(content, where="x.json", workload=WORKLOAD) == whole
    assert list(msgspec.json.decode(content))[-2:] == ["recorded", "ancestors"]


def test_what_is_not_remembered_is_not_in_the_file() -> None:
    assert not {"recorded", "ancestors"} & set(msgspec.json.decode(encode_baseline(baseline())))


# -- the line of ancestors ------------------------------------------------------------------------------------------


def test_what_is_replaced_becomes_an_ancestor_with_its_environment_and_its_means() -> None:
    (ancestor,) = descended(recorded(machine=fingerprint(driver="590.1")), recorded()).ancestors
    assert ancestor == Ancestor(
        at=RECORDED.at,
        commit="4e3642b",
        driver="580.159.04",
        cuda="13.0",
        torch="2.11.0+cu130",
        triton="3.6.0",
        liger_kernel="0.8.5",
        launches=4,
        configuration=digest(mlp_kernels()),
        times_us={Timer.DEVICE: 205.1, Timer.END_TO_END: 301.498, Timer.HOST: 50.747},
    )


def test_of_a_baseline_in_schema_2_it_is_not_known_when_it_was_recorded() -> None:
    (ancestor,) = descended(recorded(), baseline()).ancestors
    assert (ancestor.at, ancestor.commit) == (None, None)


def test_the_first_and_the_last_99_are_kept() -> None:
    line = recorded(at="first")
    for number in range(150):
        line = descended(recorded(at=str(number)), line)
    kept = [ancestor.at for ancestor in line.ancestors]
    assert kept == ["first", *(str(number) for number in range(50, 149))]
    assert decode_baseline(encode_baseline(line), where="x.json", workload=WORKLOAD) == line


def test_each_ancestor_is_one_line_of_the_file() -> None:
    line, before = recorded(), 0
    for number in range(4):
        lines = encode_baseline(line).decode().splitlines()
        if number > 1:
            assert len(lines) == before + 1
        before = len(lines)
        line = descended(recorded(at=str(number)), line)


def test_the_mean_is_that_of_the_configuration_that_the_new_one_has() -> None:
    """The lottery of the autotuner is no drift."""
    old = calibrated(
        [run(device=(us, us), kernels=mlp_kernels(xblock=xblock)) for xblock, us in ((1024, 205.0), (512, 223.0))],
        suite="perf",
    )
    for xblock, us in ((1024, 205.0), (512, 223.0)):
        (ancestor,) = descended(baseline(kernels=mlp_kernels(xblock=xblock)), old).ancestors
        assert ancestor.times_us[Timer.DEVICE] == us
        assert ancestor.configuration == digest(mlp_kernels(xblock=xblock))


def test_the_mean_is_that_of_all_its_processes() -> None:
    old = calibrated([run(device=(us, us)) for us in (200.0, 242.0)], suite="perf")
    assert ancestor_of(old, old.entries[0]).times_us[Timer.DEVICE] == 220.0


@pytest.mark.parametrize("changes", [{"power_limit_watts": 350.0}, {"mig": True}, {"device": "NVIDIA A100"}])
def test_on_another_kind_of_machine_the_line_begins_anew(changes: dict[str, Any]) -> None:
    old = descended(recorded(), recorded())
    assert len(old.ancestors) == 1
    assert descended(recorded(machine=fingerprint(**changes)), old).ancestors == ()


def test_a_digest_tells_kernels_their_order_and_their_configurations_apart_and_no_source() -> None:
    digests = [
        digest(kernels)
        for kernels in (mlp_kernels(), mlp_kernels(xblock=512), mlp_kernels()[::-1], (launched("gemm", 1.0),), ())
    ]
    assert len(set(digests)) == len(digests)
    assert digest(mlp_kernels(us=99.0, source=OTHER_SOURCE)) == digest(mlp_kernels())


def test_several_entries_stay_several_when_the_line_grows() -> None:
    old = drawn({1024: 3, 512: 2})
    assert descended(old, old).entries == old.entries
