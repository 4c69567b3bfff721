"""The recording, what each method catches, how that is shown, and what the recording on four H200s shows."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from detection.data import LEVELS, NONE, WORKLOAD_IDS, Key, Level, Process, load, load_all, save
from detection.evaluate import (
    Evaluation,
    Share,
    Where,
    alarms_of,
    caught_by,
    evaluate,
    is_slower,
    our_detector,
    ties,
    wilson,
)

from tests.benchmarks.processes import FIVE, HALF, TEN, above_one_percent, process

ALL_SESSIONS = "kernel durations, all sessions > 0.35 %"


def caught_of(evaluation: Evaluation, baseline: str = "all others", where: str = "same GPU") -> dict:
    return {
        (row.method, row.module, row.level): row.share
        for row in evaluation.caught
        if (row.baseline, row.where) == (baseline, where)
    }


def alarms_in(evaluation: Evaluation, baseline: str = "all others", where: str = "same GPU") -> dict[str, Share]:
    return {row.method: row.suites for row in evaluation.alarms if (row.baseline, row.where) == (baseline, where)}


@pytest.mark.parametrize(("share", "expected"), [(0, (0, 0.2775)), (0.5, (0.2366, 0.7634)), (1, (0.7225, 1))])
def test_wilson_of_ten_is_that_of_the_literature(share: float, expected: tuple[float, float]) -> None:
    assert wilson(share, 10) == pytest.approx(expected, abs=1e-4)


def test_slowdown_is_caught_by_its_own_timer() -> None:
    processes = [process(number, levels=(HALF, FIVE, TEN)) for number in range(4)]
    evaluation = evaluate(processes, above_one_percent)
    found = {(method, level): share.share for (method, module, level), share in caught_of(evaluation).items()}
    assert [found["kernelgauge", level] for level in (HALF, FIVE, TEN)] == [0, 1, 1]  # 0.5 % is less than its 1 %
    assert found[ALL_SESSIONS, HALF] == 1
    assert (ALL_SESSIONS, TEN) not in found  # it reads no dispatch
    assert found["do_bench, median > 5 %", HALF] == 0
    assert found["do_bench, median, matched", HALF] == 1
    achieved = evaluation.achieved
    assert achieved["mlp", FIVE].median == pytest.approx(0.05, abs=0.001)
    assert achieved["linear", TEN].low < achieved["linear", TEN].median < achieved["linear", TEN].high
    assert achieved["linear", TEN].median == pytest.approx(0.10, abs=0.001)


def test_other_gpu_is_a_row_of_its_own() -> None:
    processes = [process(number, gpu="ab"[number // 3], us=100 + 10 * (number // 3)) for number in range(6)]
    evaluation = evaluate(processes, above_one_percent)
    for where, caught, alarms in (("same GPU", 6, 0), ("other GPU", 3, 3)):  # of the slower GPU
        assert caught_of(evaluation, where=where)["kernelgauge", "mlp", FIVE].hits == caught
        assert alarms_in(evaluation, where=where)["kernelgauge"].hits == alarms


def test_alarm_counts_once_for_a_suite() -> None:
    evaluation = evaluate([process(0), process(1), process(2, us=120.0)], above_one_percent)
    assert alarms_in(evaluation)["kernelgauge"] == Share(1, 3, 3)
    assert alarms_in(evaluation, "one process")["do_bench, median > 5 %"] == Share(2, 6, 3)
    assert alarms_in(evaluation, where="other GPU")["kernelgauge"].trials == 0
    assert evaluation.matched_rate["all others"] == pytest.approx(1 / 3)


def test_ties_need_as_many_catches_and_no_more_alarms() -> None:
    processes = [process(number, levels=(HALF, FIVE)) for number in range(4)]
    found = {(tie.method, tie.level) for tie in ties(evaluate(processes, above_one_percent))}
    assert ("kernel durations, 1 session > 1 %", FIVE) in found
    assert ("do_bench, median > 5 %", FIVE) not in found  # it catches some, not all
    assert {level for _, level in found} == {FIVE}  # ours catches nothing else
    assert not ties(evaluate([*processes, process(9, us=102.0)], lambda *_: False))


@pytest.mark.parametrize(
    ("level", "gemm", "us", "flagged"),
    [
        *((FIVE, gemm, 200.0, True) for gemm in (None, 0.95, 1.0, 1.002, 1.01)),
        (FIVE, 1.05, 200.0, False),  # as slow as the machine itself
        (NONE, 1.006, 200.0 * 1.006, False),
        (NONE, None, 200.0 * 1.006, True),
        (Level("host", 20), 2.0, 200.0, True),  # dispatch, whatever the GPU does
    ],
)
def test_slower_machine_explains_gpu_time_alone(level: Level, gemm: float | None, us: float, flagged: bool) -> None:
    """`gemm`: how much longer the reference GEMM took beside the process; None: it was not measured."""
    pair = {"copy": [67.0], "gemm": [178.0]}
    known = [process(number, us=200.0, control_pair_us=pair).at() for number in range(6)]
    meta = {} if gemm is None else {"control_pair_us": {**pair, "gemm": [gemm * 178.0]}}
    test = process(6, us=us, levels=() if level == NONE else (level,), **meta)
    assert is_slower("mlp-eager", "host" if level.kind == "host" else "device", known, test.at(level)) is flagged


@pytest.fixture(scope="module")
def recorded() -> list[Process]:
    return load(Path(__file__).resolve().parents[2] / "benchmarks" / "data" / "detection_h200.xz")


def test_recorded_slowdowns_are_caught(recorded: list[Process]) -> None:
    """At least as often as docs/detection.md says."""
    rows = caught_by(our_detector(is_slower), recorded, "all others", "same GPU")
    found = {(row.module, str(row.level)): row.share for row in rows}
    least = {
        ("mlp", "device+0.5%"): (97, 111),
        ("mlp", "device+1%"): (111, 111),
        ("mlp", "device+2%"): (111, 111),
        ("linear", "device+3%"): (37, 37),
        ("mlp", "host+10%"): (31, 33),
        ("linear", "host+10%"): (10, 11),
    }
    assert {key: share.trials for key, share in found.items()} == {key: trials for key, (_, trials) in least.items()}
    assert not [key for key, (hits, _) in least.items() if found[key].hits < hits]


@pytest.mark.parametrize(("where", "hits", "trials"), [("same GPU", 1, 37), ("other GPU", 3, 259)])
def test_recorded_unchanged_suites_are_silent(recorded: list[Process], where: Where, hits: int, trials: int) -> None:
    suites = alarms_of(our_detector(is_slower), recorded, "all others", where).suites
    assert suites.trials == trials
    assert suites.hits <= hits


def test_levels_are_of_workloads_of_the_suite(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "perf"))
    from workloads import WORKLOADS

    assert set(WORKLOAD_IDS) == set(LEVELS) <= {workload.id for workload in WORKLOADS}


def test_recording_reads_back_in_nanoseconds(tmp_path: Path) -> None:
    saved = [process(0), process(11, gpu="b", us=3.0, levels=(HALF, TEN), seconds=0.6)]
    save(tmp_path / "raw.xz", saved)
    read = load_all([tmp_path / "raw.xz"])
    assert [(one.number, one.gpu, one.levels) for one in read] == [
        (0, "a", saved[0].levels),
        (11, "b", [HALF, TEN, NONE]),
    ]
    assert read[1].meta == saved[1].meta
    for before, after in zip(saved, read, strict=True):
        assert set(after.samples) == set(before.samples)
        for key, values in before.samples.items():
            expected = np.sort(values, axis=min(1, values.ndim - 1))  # of calls nobody reads the order
            assert after.samples[key].shape == values.shape
            assert np.abs(after.samples[key] - expected).max() <= 0.0005001
    save(tmp_path / "again.xz", read)
    assert (tmp_path / "again.xz").read_bytes() == (tmp_path / "raw.xz").read_bytes()


@pytest.mark.parametrize("value", [math.nan, 5e6, -1.0])
def test_recording_of_an_invalid_time_is_refused(value: float, tmp_path: Path) -> None:
    broken = Process("a", 1, {Key("mlp-eager", NONE, "do_bench"): np.array([value])}, {})
    with pytest.raises(ValueError, match="process 1, mlp-eager/none/do_bench"):
        save(tmp_path / "raw.xz", [broken])
