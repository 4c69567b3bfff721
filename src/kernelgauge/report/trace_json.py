"""One trace, or what changed between two (`kernelgauge trace --json`):
the types themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from ..trace import KernelRecord, Summary, decode, grouped
from .traces import TraceComparison, conclusion

_SCHEMA = 6  # counts up when a key changes its meaning or goes; new keys come without that
_OF_A_STEP = ("device_time_us", "wall_us", "times")
_OF_A_TOTAL = ("name", "grid", "block", "launches", "device_time_us")
_TIMES: dict[str, Any] = {"durations_us": (), "device_time_us": 0.0, "place": -1}


def json_text(data: Mapping[str, Any]) -> str:
    """Return JSON with a line for each key, and for each item of a list."""
    lines = []
    for key, value in data.items():
        is_list = isinstance(value, (list, tuple)) and value
        items = [msgspec.json.encode(item).decode() for item in (value if is_list else [value])]
        lines.append(f'"{key}": ' + ("[\n  {}\n]" if is_list else "{}").format(",\n  ".join(items)))
    return "{\n" + ",\n".join(lines) + "\n}"


def show_data(summary: Summary, *, name: str, by: str | None = None) -> dict[str, object]:
    """Return a trace as data.

    `kernels`: sums over all of it; `step`: medians over the steps that launched the same.
    """
    totals = [(*key, len(us), sum(us)) for key, us in summary.totals.items()]
    return {
        "schema": _SCHEMA,
        **_side(summary, name),
        "steps_alike": 0 if summary.noun == "trace" else len(summary.windows),
        "not_read": summary.not_read,
        "kernels": [dict(zip(_OF_A_TOTAL, each, strict=True)) for each in totals],
        "step": {
            **{
                field: getattr(summary, field)
                for field in (*_OF_A_STEP, "bound", "kernels", "host")
            },
            "groups": summary.groups(by or "config"),
            "memsets": summary.transfers("gpu_memset"),
            "copies": summary.transfers("gpu_memcpy"),
        },
        "names": _decoded(name for name, *_ in totals),
    }


def compare_data(comparison: TraceComparison, *, names: tuple[str, str]) -> dict[str, object]:
    """Return two traces as data. `differences` sum to the difference of the two device times."""
    sides = zip(("before", "after"), names, comparison.sides, strict=True)
    return {
        "schema": _SCHEMA,
        "conclusion": conclusion(comparison),
        "changed": comparison.gpu_changed,
        **{
            label: _side(side, name) | {field: getattr(side, field) for field in _OF_A_STEP}
            for label, name, side in sides
        },
        "differences": [
            vars(each)
            | {
                "before": _alike(each.before),
                "after": _alike(each.after),
                "delta_us": each.delta_us,
            }
            for each in comparison.differences
        ],
        "modules": comparison.modules,
        "host": comparison.host,
        "names": _decoded(
            it.identity.name
            for each in comparison.differences
            for it in (*each.before, *each.after)
        ),
    }


def _alike(launches: Sequence[KernelRecord]) -> list[dict[str, object]]:
    """Return launches that differ in nothing but their times as one, with their number.

    Times are sums, by step.
    """
    groups = grouped(
        launches, lambda each: msgspec.json.encode(msgspec.structs.replace(each, **_TIMES))
    )
    sums = (
        [sum(step) for step in zip(*(it.durations_us for it in each), strict=True)]
        for each in groups.values()
    )
    return [
        msgspec.structs.asdict(each[0])
        | {"module": each[0].module, "launches": len(each)}
        | {"durations_us": us, "device_time_us": sum(it.device_time_us for it in each)}
        for each, us in zip(groups.values(), sums, strict=True)
    ]


def _side(summary: Summary, name: str) -> dict[str, object]:
    steps = 0 if summary.noun == "trace" else len(summary.all_windows)
    known = {field: getattr(summary, field) for field in ("devices", "on_cpu", "problems")}
    return {"trace": name, "steps": steps, **known}


def _decoded(names: Iterable[str]) -> list[Any]:
    return [decode(name) for name in dict.fromkeys(names)]
