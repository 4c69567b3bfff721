"""Whatever the bytes are, the reader reads or refuses them, and does the same in blocks of any size."""

from __future__ import annotations

import json
import os

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.builders import call, chrome, event, kernel, op, read_in_blocks, step

TIMES = int(os.environ.get("KERNELGAUGE_FUZZ_TIMES", "1"))  # how many times as many examples

BLOCKS = st.lists(st.one_of(st.integers(1, 70), st.integers(1, 4000)), min_size=1, max_size=3)
TOKENS = st.sampled_from(
    [
        *b'{ } [ ] , : " \\ \\" },{ ]} ]}} "traceEvents": "traceEvents":[ {"traceEvents":[ [{ }] {} [] null'.split(),
        *b"-0 1e999 NaN 9223372036854775808 \\ud800 \\u0022 \xff \xed\xa0\x80 \xef\xbb\xbf \xe2\x80\xae /* //".split(),
        *(b" ", b"\n", b"\t", b"\x0b", b"\x00", b", ", b"} ,", b",\n{"),
        *(b'"ph":"X",', b'"args":{},', b'"cat":"kernel",', b"true"),
    ]
)


@st.composite
def damaged(draw: st.DrawFn, contents: st.SearchStrategy[bytes]) -> bytes:
    """Draw content with one to three places cut, doubled, moved or overwritten."""
    content = draw(contents)
    for _ in range(draw(st.integers(1, 3))):
        at, length = draw(st.integers(0, len(content))), draw(st.integers(0, 60))
        before, cut, after = content[:at], content[at : at + length], content[at + length :]
        moved = [before, before + after, before + cut + cut + after, before + after + cut]
        token, byte = draw(TOKENS), draw(st.one_of(st.sampled_from([b"1", b"x", b" ", b""]), st.binary(max_size=3)))
        written = [before + token + cut + after, before + token + after, *[before + byte + content[at + 1 :]] * 6]
        content = draw(st.sampled_from(moved + written))
    return content


MM = op("aten::mm", 1, 9, external_id=7)
MM["args"] |= {"Input Dims": [[2, 3], []], "Input type": ["a", ""]}
CALL, KERNEL = call(3, 2), kernel(3, 4)
CALL["args"] |= {"objects": [{"a": {}}, {"b": "},"}, {"c": [{}, {}]}]}
KERNEL["args"] |= {"grid": [1, 2, 3], "device": 0, "stream": 7}
FLOW = event("ac2g", "flow", 1, 1, "thread")
TRACE = chrome(
    step(1, 0, 50), MM, CALL, KERNEL, FLOW, schemaVersion=1, deviceProperties=[{"id": 0, "name": "G"}], traceName="x"
)
TRACES = st.sampled_from([TRACE, json.dumps(json.loads(TRACE), indent=1).encode()])


@settings(
    derandomize=TIMES == 1,
    deadline=None,
    max_examples=1000 * TIMES,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(damaged(TRACES), BLOCKS)
def test_reader_damaged_trace_is_the_same_in_all_blocks(content: bytes, blocks: list[int]) -> None:
    expected = read_in_blocks(content)
    for block in blocks:
        assert read_in_blocks(content, block) == expected, block
