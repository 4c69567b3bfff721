"""The reader in blocks of any size."""

from __future__ import annotations

import pytest

from kernelgauge.errors import TraceError
from kernelgauge.trace import Trace, parse, reader
from kernelgauge.trace.summary import summarize_trace


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
