"""Summaries and comparisons of traces as plain data, for `--json`. Names are whole, times in microseconds, bytes in bytes.

`schema` counts up when a key changes its meaning or goes; new keys come without that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from ..trace.difference import Difference
from ..trace.kernel import KernelIdentity
from ..trace.lane import LaneKernel
from ..trace.names import decode
from ..trace.summary import KernelGroup, Summary
from .conclusion import Comparison, conclusion

__all__ = ["compare_data", "json_text", "show_data"]

_SCHEMA = 1


def json_text(data: Mapping[str, Any]) -> str:
    return msgspec.json.format(msgspec.json.encode(data), indent=2).decode()


def show_data(summary: Summary, *, name: str) -> dict[str, Any]:
    """`kernels`: sums over the whole trace. `step`: means over the steps that launched the same."""
    lane, host, bound = summary.lane, summary.host, summary.bound
    return {
        "schema": _SCHEMA,
        "trace": name,
        "devices": list(summary.devices),
        "on_cpu": lane.on_cpu,
        "steps": 0 if lane.is_whole_trace else len(lane.all_windows),
        "steps_alike": 0 if lane.is_whole_trace else len(lane.windows),
        "not_read": dict(summary.not_read),
        "kernels": [
            {
                "name": total.name,
                "kind": decode(total.name).kind.value,
                "launches": total.launches,
                "device_time_us": total.device_time_us,
                "grid": total.grid,
                "block": total.block,
            }
            for total in summary.totals
        ],
        "step": {
            "device_time_us": lane.device_time_us,
            "kernels": [
                _kernel(kernel) | {"limit": msgspec.to_builtins(share) if share else None}
                for kernel, share in zip(lane.kernels, summary.shares, strict=True)
            ],
            "groups": [_group(group) for group in summary.groups],
            "memsets": msgspec.to_builtins(summary.memsets),
            "copies": msgspec.to_builtins(summary.copies),
            "host": msgspec.to_builtins(host),
            "activity": [msgspec.to_builtins(one) | {"idle_us": one.idle_us} for one in summary.activity],
            "bound": msgspec.to_builtins(bound) if bound else None,
        },
        "problems": list(summary.problems),
    }


def compare_data(comparison: Comparison, *, names: tuple[str, str]) -> dict[str, Any]:
    """`differences` sum to the difference of the two device times."""
    sides = (comparison.before, comparison.after)
    return {
        "schema": _SCHEMA,
        "conclusion": conclusion(comparison),
        "changed": comparison.gpu_changed,
        **{
            label: {
                "trace": name,
                "devices": list(side.devices),
                "on_cpu": side.lane.on_cpu,
                "steps": 0 if side.lane.is_whole_trace else len(side.lane.all_windows),
                "device_time_us": side.lane.device_time_us,
                "problems": list(side.problems),
            }
            for label, name, side in zip(("before", "after"), names, sides, strict=True)
        },
        "differences": [_difference(difference) for difference in comparison.differences],
        "host": msgspec.to_builtins(comparison.host),
    }


def _difference(difference: Difference) -> dict[str, Any]:
    return {
        "what": difference.what.value,
        "before": [_kernel(kernel) for kernel in difference.before],
        "after": [_kernel(kernel) for kernel in difference.after],
        "delta_us": difference.delta_us,
        "details": difference.details,
    }


def _kernel(kernel: LaneKernel) -> dict[str, Any]:
    return {
        **_identity(kernel.identity),
        "device_time_us": kernel.device_time_us,
        "durations_us": list(kernel.durations_us),
        "op": kernel.op,
        "input_shapes": kernel.input_shapes,
        "input_types": kernel.input_types,
    }


def _group(group: KernelGroup) -> dict[str, Any]:
    return {
        **_identity(group.identity),
        "launches": group.launches,
        "device_time_us": group.device_time_us,
        "launched_by": list(group.ops),
        "input_shapes": list(group.shapes),
        "flops": group.work.flops if group.work else None,
        "bytes": group.work.bytes if group.work else None,
        "limit": msgspec.to_builtins(group.limit) if group.limit else None,
    }


def _identity(identity: KernelIdentity) -> dict[str, Any]:
    """With every key, also those that are not known: a reader need not guess."""
    decoded = decode(identity.name)
    return {
        **{field: getattr(identity, field) for field in identity.__struct_fields__},
        "backend": decoded.backend,
        "short": decoded.short,
        "ops": list(decoded.ops),
        "dtype": decoded.dtype,
        "tile": decoded.tile,
        "stages": decoded.stages,
        "layout": decoded.layout,
        "split_k": decoded.split_k,
        "bias_epilogue": decoded.bias_epilogue,
    }
