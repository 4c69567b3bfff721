"""A trace read, and asked all that can be asked of it; or refused."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from kernelgauge.errors import TraceError
from kernelgauge.trace import Trace, Window, computing_ops, dispatcher_ops, events, metadata_ops_that_launched, parse


def outcome(content: bytes, block: int | None = None) -> Trace | None:
    """None: refused, and properly so. With `block`, that many bytes are read at once."""
    try:
        with pytest.MonkeyPatch.context() as patch:
            if block is not None:
                patch.setattr(events, "BLOCK_BYTES", block)
            trace = parse(content, where="some.json")
    except TraceError as error:
        refused = error
    else:
        use(trace)
        return trace
    assert refused.where == "some.json"
    assert refused.got
    assert refused.expected
    return None


def use(trace: Trace) -> None:
    """Nothing that is asked of a trace raises."""
    trace.pairing_problems()
    names = {mark.name for mark in trace.annotations[:20]}
    windows: Iterable[Window] = [trace.whole(), *trace.steps(), *(one for name in names for one in trace.regions(name))]
    for window in windows:
        computing_ops(window)
        dispatcher_ops(window)
        metadata_ops_that_launched(window)
        window.op_names()
        assert window.device_time_us is not None
        assert window.synchronizations + window.occupancy_queries <= 2 * len(window.calls)
    hash(trace.ops + trace.annotations)
