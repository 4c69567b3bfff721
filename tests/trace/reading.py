"""The reader in blocks of any size, and a plain calculation to compare the summary with."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest

from kernelgauge.errors import TraceError
from kernelgauge.trace import Trace, parse, reader
from kernelgauge.trace.summary import summarize_trace

DEVICE = {"kernel", "gpu_memset", "gpu_memcpy"}
API = {"cuda_runtime", "cuda_driver", "hip_runtime", "hip_driver"}


def read_in_blocks(content: bytes, block: int | None = None) -> Trace | None:
    """Return the trace, read `block` bytes at once and summarized; None if it is refused."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader, "BLOCK_BYTES", block or reader.BLOCK_BYTES)
        try:
            trace = parse(content, where="some.json")
        except TraceError as error:
            refused = (error.where, bool(error.got), bool(error.expected))
            return None if refused == ("some.json", True, True) else pytest.fail(f"{error!r}")
    summarize_trace(trace)
    summarize_trace(trace, [trace.whole(), *trace.regions(trace.annotations[0].name if trace.annotations else "")])
    return trace


def plain_step_time(content: bytes) -> tuple[float, float]:
    """Return the time of a step and of it the GPU's busy time, of a trace whose steps all launch the same on one GPU."""
    rows = [row for row in json.loads(content)["traceEvents"] if row.get("ph") == "X"]
    spans = [(row["ts"], row["ts"] + row["dur"]) for row in rows if row["name"].startswith("ProfilerStep#")]
    spans = [(float(start), float(end)) for start, end in sorted(set(spans))]
    begin, end = spans[0][0], spans[-1][1]
    steps = {
        row["args"]["correlation"]
        for row in rows
        if row.get("cat") in API and "correlation" in row["args"] and begin <= row["ts"] < end
    }
    device = [row for row in rows if row.get("cat") in DEVICE]
    own = [row for row in device if row["args"]["correlation"] in steps]
    last = max(row["ts"] + row["dur"] for row in own)
    first = min(row["ts"] for row in own)
    earlier = [row["ts"] + row["dur"] for row in device if row not in own and row["ts"] < first]
    behind = max(0.0, last - end)
    begin, end = begin + min(behind, max(0.0, max(earlier, default=begin) - begin)), end + behind
    moments = sorted(
        {begin, end, *(min(max(at, begin), end) for row in device for at in (row["ts"], row["ts"] + row["dur"]))}
    )
    busy = sum(
        after - before
        for before, after in pairwise(moments)
        if any(row["ts"] <= before and after <= row["ts"] + row["dur"] for row in device)
    )
    return (end - begin) / len(spans), busy / len(spans)
