"""The line over several runs, and the dashed one of the baseline: at the height that its value has on the line's scale."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kernelgauge.judge import Status
from kernelgauge.report.html import html
from kernelgauge.report.html_history import History, changed, histories
from kernelgauge.results import Results
from tests.builders import H200, fingerprint, run
from tests.report.pages import Parsed, results, timed, workload

ID = "mlp-eager-bf16-8"


def runs(*times_us: float, baseline_us: float | None = 205.0) -> list[Results]:
    """One run for each time, every one of them judged against `baseline_us`; None: not judged."""
    verdict = replace(timed(Status.PASS, ID, 0.001), before_us=baseline_us)
    verdicts = () if baseline_us is None else (verdict,)
    return [
        results(
            workload(ID, observed=run(workload=ID, device=(us, us)), verdicts=verdicts),
            started_at=f"2026-11-{day:02}T03:00:00+00:00",
        )
        for day, us in enumerate(times_us, start=1)
    ]


def history(*times_us: float, baseline_us: float | None = 205.0) -> History:
    return histories(runs(*times_us, baseline_us=baseline_us))[ID]


def test_the_baseline_lies_where_a_run_of_its_time_would() -> None:
    one = history(200.0, 205.0, 220.0)
    assert one.baseline_y == pytest.approx(one.points[1].y)
    between = history(200.0, 220.0, baseline_us=210.0)
    assert between.baseline_y == pytest.approx((between.points[0].y + between.points[1].y) / 2)


@pytest.mark.parametrize("baseline_us", [100.0, 400.0])
def test_a_baseline_beyond_all_runs_stays_within_the_chart(baseline_us: float) -> None:
    one = history(200.0, 210.0, baseline_us=baseline_us)
    assert one.baseline_y == pytest.approx(90.0 if baseline_us == 100.0 else 10.0)  # slower is higher
    assert all(9.9 <= point.y <= 90.1 for point in one.points)


def test_what_was_judged_last_says_which_baseline() -> None:
    old, new = runs(200.0, baseline_us=190.0)[0], runs(200.0, 210.0, baseline_us=210.0)[1]
    one = histories([old, new])[ID]
    assert one.baseline_y == pytest.approx(one.points[1].y)


def test_it_is_drawn_dashed_from_edge_to_edge_and_only_where_there_is_a_baseline() -> None:
    page = Parsed(html(runs(200.0, 205.0, 220.0)))
    height = history(200.0, 205.0, 220.0).baseline_y
    assert height is not None
    # Those of the intervals are upright.
    level = [
        each.attributes for each in page.all("line", class_="zero") if each.attributes["x1"] != each.attributes["x2"]
    ]
    assert [(each["x1"], each["x2"]) for each in level] == [("0", "100%")] * 2  # in the table and below
    assert {each["y1"] for each in level} == {each["y2"] for each in level} == {f"{round(height, 2)}%"}
    style = page.one("style").text
    assert "stroke-dasharray" in style[style.index(".zero {") :].partition("}")[0]
    without = Parsed(html(runs(200.0, 205.0, baseline_us=None)))
    assert len(without.all("polyline")) == 2
    assert without.all("line", class_="zero") == []


def test_an_upgrade_is_of_what_times_depend_on() -> None:
    """The memory moves with the driver by a few MiB."""
    new = fingerprint(driver="590.1", liger_kernel="0.9", memory_bytes=1)
    assert changed(H200, new) == ["driver 580.159.04 -> 590.1", f"liger kernel {H200.liger_kernel} -> 0.9"]
    assert changed(H200, fingerprint(memory_bytes=1)) == []
