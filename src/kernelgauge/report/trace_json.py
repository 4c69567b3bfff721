"""One trace (`kernelgauge show --json`), or what changed between two (`kernelgauge diff --json`), as data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import msgspec

from ..trace.kernel import KernelIdentity, LaunchRow, resources_of
from ..trace.names import decode
from ..trace.summary import Summary
from .traces import TraceComparison, conclusion

_SCHEMA = 5  # counts up when a key changes its meaning or goes; new keys come without that
_OF_A_LAUNCH = ("kind", "device_time_us", "durations_us", "op", "module", "input_shapes", "input_types", "stream")
_DIGITS = 6  # of microseconds: sums of binary fractions have up to 16


def json_text(data: Mapping[str, Any]) -> str:
    """Return JSON with a line for each key, and for each item of a list of objects."""
    lines = []
    for key, value in data.items():
        is_list = isinstance(value, list) and value and isinstance(value[0], dict)
        items = [msgspec.json.encode(item).decode() for item in (value if is_list else [value])]
        lines.append(f'"{key}": ' + ("[\n  {}\n]" if is_list else "{}").format(",\n  ".join(items)))
    return "{\n" + ",\n".join(lines) + "\n}"


def show_data(summary: Summary, *, name: str, by: str | None = None) -> dict[str, Any]:
    """Return a trace as data. `kernels`: sums over all of it; `step`: medians over the steps that launched the same."""
    arch = summary.arch
    return {
        "schema": _SCHEMA,
        **_side_data(summary, name),
        "steps_alike": 0 if summary.noun == "trace" else len(summary.windows),
        "not_read": summary.not_read,
        "kernels": [
            {"name": name, "kind": decode(name).kind.value, "launches": len(us), "device_time_us": sum(us)}
            | {"grid": grid, "block": block}
            for (name, grid, block), us in summary.totals.items()
        ],
        "step": {
            **_step_data(summary),
            "bound": summary.bound,
            "kernels": [
                _identity(kernel.identity)
                | {field: getattr(kernel, field) for field in _OF_A_LAUNCH}
                | {field: getattr(kernel, field) or None for field in ("op", "module")}
                | {"code": resources_of(kernel.identity, kernel.resources, arch)}
                for kernel in summary.kernels
            ],
            "groups": [
                (_identity(group.identities[0]) if len(group.identities) == 1 else {})
                | {key: value for key, value in vars(group).items() if key != "identities"}
                for group in summary.groups(by or "config")
            ],
            "memsets": summary.transfers("gpu_memset"),
            "copies": summary.transfers("gpu_memcpy"),
            "host": summary.host,
        },
    }


def _side_data(summary: Summary, name: str) -> dict[str, Any]:
    return {
        "trace": name,
        "devices": summary.devices,
        "on_cpu": summary.on_cpu,
        "steps": 0 if summary.noun == "trace" else len(summary.all_windows),
        "problems": summary.problems,
    }


def _step_data(summary: Summary) -> dict[str, Any]:
    """Return the time of a step, and its parts on each device."""
    parts = [asdict(time) | {"busy_us": time.busy_us, "idle_us": time.idle_us} for time in summary.times]
    return {"device_time_us": summary.device_time_us, "wall_us": summary.wall_us, "times": parts}


def compare_data(comparison: TraceComparison, *, names: tuple[str, str]) -> dict[str, Any]:
    """Return two traces as data. `differences` sum to the difference of the two device times, and refer to `kernels`."""
    kernels = dict.fromkeys(k.identity.name for each in comparison.differences for k in (*each.before, *each.after))
    places = {name: place for place, name in enumerate(kernels)}
    sides = zip(("before", "after"), names, comparison.sides, strict=True)
    return {
        "schema": _SCHEMA,
        "conclusion": "\n".join(conclusion(comparison)),
        "changed": comparison.gpu_changed,
        **{label: _side_data(side, name) | _step_data(side) for label, name, side in sides},
        "kernels": [{key: value for key, value in _decoded(name).items() if value} for name in kernels],
        "differences": [
            {
                "what": each.what.value,
                "before": _kernels_data(each.before, places),
                "after": _kernels_data(each.after, places),
                "delta_us": round(each.delta_us, _DIGITS),
                "details": each.details,
            }
            # Times are judged by op and module.
            | {
                key: value
                for key in ("op", "module")
                if not each.what.is_change and (value := getattr(each.before[0], key))
            }
            for each in comparison.differences
        ],
        "modules": [dict(zip(("module", "before_us", "after_us"), row, strict=True)) for row in comparison.modules],
        "host": comparison.host,
    }


def _kernels_data(kernels: Sequence[LaunchRow], places: Mapping[str, int]) -> list[dict[str, Any]]:
    """Return launches of one kernel together: its place in `kernels`, and what is known of its launch configuration."""
    found: dict[KernelIdentity, list[float]] = {}
    for kernel in kernels:
        found.setdefault(kernel.identity, []).append(kernel.device_time_us)
    return [
        {"kernel": places[each.name], "launches": len(us), "device_time_us": round(sum(us), _DIGITS)}
        | {key: value for key, value in msgspec.to_builtins(each).items() if key not in ("name", "kind")}
        for each, us in found.items()
    ]


def _identity(identity: KernelIdentity) -> dict[str, Any]:
    """Return every key, also of what is not known: a reader need not guess."""
    return _decoded(identity.name) | msgspec.structs.asdict(identity)


def _decoded(name: str) -> dict[str, Any]:
    fields = asdict(decode(name))
    return {"name": fields.pop("raw"), **fields}
