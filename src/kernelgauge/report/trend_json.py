"""Trends as JSON, for other tools. Times are in microseconds, moments in UTC."""

from __future__ import annotations

from typing import Any

import msgspec

from .trend import Chart, Series, Trends

__all__ = ["trend_json"]


def trend_json(trends: Trends) -> bytes:
    whole = {
        "timer": trends.timer.value,
        "entries": trends.entries,
        "charts": [_chart(chart) for chart in trends.charts],
        "not_shown": list(trends.set_aside),
    }
    return msgspec.json.format(msgspec.json.encode(whole), indent=1) + b"\n"


def _chart(chart: Chart) -> dict[str, Any]:
    return {
        "workload": chart.workload,
        "machine": chart.machine,
        "last_us": chart.last_us,
        "change": chart.change,
        "series": [_series(series) for series in chart.series],
    }


def _series(series: Series) -> dict[str, Any]:
    def when(index: int) -> str:
        return series.moments[index].started_at.isoformat()

    return {
        "gpu": series.gpu,
        "started_at": [moment.started_at.isoformat() for moment in series.moments],
        "commit": [moment.commit for moment in series.moments],
        "us": list(series.values_us),
        "corrected_us": list(series.corrected_us),
        "corrected_for": list(series.corrected_for),
        "environment_changes": [
            {"index": mark.index, "started_at": when(mark.index), "changes": list(mark.changes)}
            for mark in series.marks
        ],
        "change_points": [
            {
                "index": shift.index,
                "started_at": when(shift.index),
                "before_us": shift.before_us,
                "after_us": shift.after_us,
                "commit_before": series.moments[shift.index - 1].commit,
                "commit_after": series.moments[shift.index].commit,
            }
            for shift in series.shifts
            if not shift.nights
        ],
        "drifts": [
            {
                "index": shift.index,
                "started_at": when(shift.index),
                "nights": shift.nights,
                "per_night": shift.per_night,
                "before_us": shift.before_us,
                "after_us": shift.after_us,
            }
            for shift in series.shifts
            if shift.nights
        ],
    }
