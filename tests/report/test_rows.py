"""Runs and verdicts -> one row for each workload."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kernelgauge.judge import RelativeChange, Status, Verdict
from kernelgauge.report.rows import Row, rows
from tests.builders import counts, run

CHANGE = RelativeChange(0.081, 0.079, 0.084, 0.95)


def verdict(status: Status, subject: str = "structure", workload: str = "mlp-eager-bf16-1") -> Verdict:
    return Verdict(status, workload, subject, "headline")


def timed(status: Status, subject: str = "device time", workload: str = "mlp-eager-bf16-1") -> Verdict:
    return Verdict(status, workload, subject, "headline", before_us=205.1, after_us=221.8, change=CHANGE)


def test_of_nothing_there_are_no_rows() -> None:
    assert rows([], []) == []


def test_a_run_with_its_verdicts_is_one_row() -> None:
    measured = run(workload="mlp-eager-bf16-1", device=(221.8, 221.8), counts=counts(launches=5))
    (row,) = rows([measured], [verdict(Status.PASS), timed(Status.REGRESSED)])
    assert row.device_time_us == pytest.approx(221.8)
    assert replace(row, device_time_us=None) == Row(
        "mlp-eager-bf16-1", 5, None, 205.1, CHANGE, Status.REGRESSED, ("device time",)
    )


def test_a_run_without_verdicts_has_no_status_and_the_geometric_mean_of_its_replicates() -> None:
    (row,) = rows([run(workload="a", device=(2.0, 8.0))], [])
    assert row.device_time_us == pytest.approx(4.0)
    assert replace(row, device_time_us=None) == Row("a", 4, None, None, None, None, ())


def test_a_verdict_without_a_run_has_no_measurement() -> None:
    assert rows([], [verdict(Status.INVALID, "measurement")]) == [
        Row("mlp-eager-bf16-1", None, None, None, None, Status.INVALID, ("measurement",))
    ]


def test_a_run_without_device_time_shows_none() -> None:
    (row,) = rows([run(workload="a", device=None)], [])
    assert row.device_time_us is None
    assert row.launches == 4


def test_the_worst_verdict_is_shown_with_the_subjects_that_it_comes_from() -> None:
    verdicts = [
        verdict(Status.REGRESSED, "structure"),
        timed(Status.IMPROVED),
        timed(Status.REGRESSED, "host dispatch"),
        verdict(Status.REGRESSED, "structure"),
    ]
    (row,) = rows([], verdicts)
    assert row.status is Status.REGRESSED
    assert row.subjects == ("structure", "host dispatch")


def test_a_pass_needs_no_subjects() -> None:
    (row,) = rows([], [verdict(Status.PASS), timed(Status.PASS)])
    assert (row.status, row.subjects) == (Status.PASS, ())


def test_baseline_and_change_are_those_of_the_device_time_only() -> None:
    (row,) = rows([], [timed(Status.REGRESSED, "host dispatch"), timed(Status.REGRESSED, "end to end")])
    assert (row.baseline_us, row.change) == (None, None)


def test_verdicts_of_other_workloads_do_not_mix() -> None:
    first, second = rows([], [verdict(Status.PASS, workload="a"), timed(Status.REGRESSED, workload="b")])
    assert (first.status, first.baseline_us) == (Status.PASS, None)
    assert (second.status, second.baseline_us) == (Status.REGRESSED, 205.1)


def test_rows_are_in_order_of_measurement_and_then_of_judgement() -> None:
    measured = [run(workload="b"), run(workload="a")]
    verdicts = [verdict(Status.PASS, workload=name) for name in ("d", "a", "c", "b")]
    assert [row.workload for row in rows(measured, verdicts)] == ["b", "a", "d", "c"]
