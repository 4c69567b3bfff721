"""Traces with one oddity each, as torch and Kineto write them, and damaged ones: in blocks of any
size the same is read.
"""

import json
import os
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernelgauge.trace.summary import summarize_trace
from tests.builders import Event, call, chrome, event, kernel, op, read_in_blocks, step

ROWS = [
    *(step(1, 0, 50), step(2, 50, 50)),
    *(
        op("aten::mm", 1, 9, external_id=7),
        call(1, 2, external_id=7),
        kernel(1, 12, name="gemm", external_id=7),
    ),
    *(call(2, 20), kernel(2, 30, name="gelu", duration=4)),
    *(call(3, 60), kernel(3, 70, name="gemm"), call(4, 80), kernel(4, 90, name="gelu", duration=4)),
    *(
        call(5, 95, name="cudaMemcpyAsync"),
        kernel(5, 97, name="Memcpy HtoD", duration=1, category="gpu_memcpy"),
    ),
]
OP, CALL, KERNEL = 2, 3, 4  # places in these rows
RUNTIME, DEVICE = {"cuda_runtime": "Runtime"}, {"kernel": "Kernel", "gpu_memcpy": "Memcpy"}
OLD = {"cpu_op": "Operator", "user_annotation": "Operator"} | RUNTIME | DEVICE
QUOTED = """f("demo", "IMPL", {"a": "b", "c": d["e"]}, 'x == "y"')"""
PATH, LINE = "C:\\Users\\new", "two\nlines"
FRAME = event("python_function", LINE, 1, 2, 404)
PROPERTIES = b'{"deviceProperties": [{"id": [1], "name": "x"}], '


def changed(place: int, **fields: Any) -> list[Event]:
    """Return the rows with other fields on one of them; `args` are added to its own."""
    args = {**ROWS[place]["args"], **fields.pop("args", {})}
    return [*ROWS[:place], {**ROWS[place], **fields, "args": args}, *ROWS[place + 1 :]]


def written(rows: list[Event], old: str = "", new: str = "") -> bytes:
    text = chrome(*rows).decode()
    assert old in text
    return text.replace(old, new).encode() if old else text.encode()


WHOLE = {
    "none": written(ROWS),
    "a call with text correlation": written(changed(CALL, args={"correlation": "1"})),
    "names of torch 1.8": written([row | {"cat": OLD[row["cat"]]} for row in ROWS]),
    "a kernel with text numbers": written(changed(KERNEL, dur="5", ts="12.0")),
    "a call without correlation": written([*ROWS, call(None, 99)]),
    "NaN that nobody needs": written(
        [*ROWS, event("python_function", "f", 1, 2, 404, value=777)], "777", "NaN"
    ),
    "inf on a kernel": written(changed(KERNEL, args={"GB/s": 777}), "777", "inf"),
    "a line end in a name": written([FRAME, *ROWS], "two\\nlines", LINE),
    "backslashes of Windows": written(
        [FRAME | {"name": PATH}, *ROWS], json.dumps(PATH)[1:-1], "C:\\Users\\1new"
    ),
    "NaN before the rows": b'{"a": NaN, ' + written(ROWS)[1:],
    "a device without an id": PROPERTIES + written(ROWS)[1:],
    "another category": written(
        [*ROWS, op("x", 1, 1) | {"cat": "new"}, op("x", 1, 1) | {"cat": [1]}]
    ),
    "a flow and metadata": written(
        [*ROWS, FRAME | {"ph": "s"}, FRAME | {"ph": "M", "args": {"grid": "no"}}]
    ),
    "a launch with text places": written(changed(CALL, args={"stream": "0x0", "grid": [3, 1, 1]})),
    "an op with text places": written(
        changed(OP, args={"grid": "grid(8192,)", "stream": 0, "num_warps": 4})
    ),
    "external ids of torch 1": written(changed(OP, args={"external id": 3, "External id": None})),
    "ids that are texts": written(changed(KERNEL, args={"correlation": "1", "External id": "7"})),
    "quotes in a name": written(
        [FRAME | {"name": QUOTED}, *ROWS], json.dumps(QUOTED)[1:-1], QUOTED
    ),
    "a type that is not UTF-8": written(changed(OP, args={"Input type": ["two"]})).replace(
        b"two", b"\xff"
    ),
    "a name that is not UTF-8": written(changed(KERNEL, name="two")).replace(
        b"two", b"\xff\xe2\x82"
    ),
}
ODDITIES = {name: (content, (4, 18.0, 1), {}) for name, content in WHOLE.items()} | {
    "a kernel with a text place": (
        written(changed(KERNEL, args={"stream": "7"})),
        (3, 13.0, 1),
        {"kernel": 1},
    ),
    "a kernel without correlation": (written([*ROWS, kernel(None, 99)]), (5, 23.0, 1), {}),
    "a copy without launch": (
        written([*ROWS, kernel(9, 99, category="gpu_memcpy")]),
        (4, 18.0, 2),
        {},
    ),
    "a negative duration": (written(changed(KERNEL, dur=-7)), (4, 13.0, 1), {}),
    "a type that is no name": (
        written(changed(OP, args={"Input type": [1]})),
        (4, 18.0, 1),
        {"cpu_op": 1},
    ),
    "NaN as a duration": (
        written(changed(KERNEL, dur=777), "777", "NaN"),
        (3, 13.0, 1),
        {"kernel": 1},
    ),
    "NaN in a shape": (
        written(changed(OP, args={"Input Dims": [[777]]}), "777", "NaN"),
        (4, 18.0, 1),
        {"cpu_op": 1},
    ),
}


@pytest.mark.parametrize("block", [7, 100, None])
@pytest.mark.parametrize(("content", "figures", "malformed"), ODDITIES.values(), ids=ODDITIES)
def test_read_odd_trace_keeps_the_rest(
    content: bytes, figures: Any, malformed: Any, block: int | None
) -> None:
    trace = read_in_blocks(content, block)
    assert trace == read_in_blocks(content)
    whole = summarize_trace(trace, [trace.whole()])
    copies = sum(each.count for each in whole.transfers("gpu_memcpy"))
    assert (
        len(whole.kernels),
        sum(kernel.device_time_us for kernel in whole.kernels),
        copies,
    ) == figures
    assert (trace.malformed, trace.modules) == (malformed, ())
    assert sum(summarize_trace(trace).not_read.values()) == sum(malformed.values())


# -- damaged content -------------------------------------------------------------------------------

TIMES = int(os.environ.get("KERNELGAUGE_FUZZ_TIMES", "1"))  # how many times as many examples

BLOCKS = st.lists(st.one_of(st.integers(1, 70), st.integers(1, 4000)), min_size=1, max_size=3)
TEXTS = b"""{ } [ ] , : " \\ \\" },{ ]} ]}} "traceEvents": "traceEvents":[ {"traceEvents":[ [{ }] {} [] null true "ph":"X", "args":{},
    -0 1e999 NaN 9223372036854775808 \\ud800 \\u0022 \xff \xed\xa0\x80 \xef\xbb\xbf \xe2\x80\xae /* // "cat":"kernel","""
TOKENS = st.sampled_from(
    [*TEXTS.split(), b" ", b"\n", b"\t", b"\x0b", b"\x00", b", ", b"} ,", b",\n{"]
)
QUIET = {"deadline": None, "database": None, "suppress_health_check": [*HealthCheck]}


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """Draw a trace with one to three places cut, doubled, moved or overwritten."""
    content = draw(TRACES)
    for _ in range(draw(st.integers(1, 3))):
        at, length = draw(st.integers(0, len(content))), draw(st.integers(0, 60))
        before, cut, after = content[:at], content[at : at + length], content[at + length :]
        written = draw(
            st.one_of(TOKENS, st.sampled_from([b"1", b"x", b" ", b""]), st.binary(max_size=3))
        )
        texts = [
            before,
            before + cut + cut + after,
            before + after + cut,
            before + written + cut + after,
        ]
        content = draw(st.sampled_from([*texts, *[before + written + content[at + 1 :]] * 6]))
    return content


OBJECTS = changed(CALL, args={"objects": [{"a": {}}, {"b": "},"}, {"c": [{}, {}]}]})[:5]
TRACE = chrome(*OBJECTS, deviceProperties=[{"id": 0, "name": "G"}], traceName="x")
TRACES = st.sampled_from([TRACE, json.dumps(json.loads(TRACE), indent=1).encode()])


@settings(derandomize=TIMES == 1, max_examples=500 * TIMES, **QUIET)
@given(damaged(), BLOCKS)
def test_reader_damaged_trace_is_the_same_in_all_blocks(content: bytes, blocks: list[int]) -> None:
    expected = read_in_blocks(content)
    for block in blocks:
        assert read_in_blocks(content, block) == expected, block
