"""Traces with one oddity each, as torch and Kineto write them: the rest is read in any blocks, and summed without it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kernelgauge.trace import Trace
from kernelgauge.trace.summary import summarize_trace
from tests.builders import Event, call, chrome, event, kernel, op, read_in_blocks, step

ROWS = [
    *(step(1, 0, 50), step(2, 50, 50)),
    *(op("aten::mm", 1, 9, external_id=7), call(1, 2, external_id=7), kernel(1, 12, name="gemm", external_id=7)),
    *(call(2, 20), kernel(2, 30, name="gelu", duration=4)),
    *(call(3, 60), kernel(3, 70, name="gemm"), call(4, 80), kernel(4, 90, name="gelu", duration=4)),
    *(call(5, 95, name="cudaMemcpyAsync"), kernel(5, 97, name="Memcpy HtoD", duration=1, category="gpu_memcpy")),
]
OLD = {
    "cpu_op": "Operator", "user_annotation": "Operator", "cuda_runtime": "Runtime", "kernel": "Kernel", "gpu_memcpy": "Memcpy",
}  # fmt: skip
QUOTED = """f("demo", "IMPL", {"a": "b", "c": d["e"]}, 'x == "y"')"""
PROCESS = {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": 'a "b"'}}


def changed(place: int, **fields: Any) -> list[Event]:
    """Return the rows with other fields on one of them; `args` are added to its own."""
    args = {**ROWS[place]["args"], **fields.pop("args", {})}
    return [*ROWS[:place], {**ROWS[place], **fields, "args": args}, *ROWS[place + 1 :]]


def written(rows: list[Event], *replaced: tuple[str, str]) -> bytes:
    text = chrome(*rows).decode()
    for old, new in replaced:
        assert old in text
        text = text.replace(old, new)
    return text.encode()


PATH, LINE = "C:\\Users\\new", "two\nlines"
FRAME = event("python_function", LINE, 1, 2, 404)
NUMBER = event("python_function", "f", 1, 2, 404, value=777)
ALL = (4, 18.0, 1)  # kernels, their microseconds, copies
ODDITIES: dict[str, tuple[bytes, tuple[int, float, int], dict[str, int]]] = {
    "none": (written(ROWS), ALL, {}),
    "a copy call with text bytes": (written(changed(11, args={"bytes": "1", "kind": "2"})), ALL, {}),
    "a call with text correlation": (written(changed(3, args={"correlation": "1"})), ALL, {}),
    "names of torch 1.8": (written([row | {"cat": OLD[row["cat"]]} for row in ROWS]), ALL, {}),
    "a kernel with text numbers": (written(changed(4, dur="5", ts="12.0")), ALL, {}),
    "a kernel with a text place": (written(changed(4, args={"stream": "7"})), (3, 13.0, 1), {"kernel": 1}),
    "a call without correlation": (written([*ROWS, call(None, 99)]), ALL, {}),
    "a kernel without correlation": (written([*ROWS, kernel(None, 99)]), (5, 23.0, 1), {}),
    "a copy without launch": (written([*ROWS, kernel(9, 99, category="gpu_memcpy")]), (4, 18.0, 2), {}),
    "a negative duration": (written(changed(4, dur=-7)), (4, 13.0, 1), {}),
    "a type that is no name": (written(changed(2, args={"Input type": [1]})), ALL, {"cpu_op": 1}),
    "NaN that nobody needs": (written([*ROWS, NUMBER], ("777", "NaN")), ALL, {}),
    "inf on a kernel": (written(changed(4, args={"GB/s": 777}), ("777", "inf")), ALL, {}),
    "NaN as a duration": (written(changed(4, dur=777), ("777", "NaN")), (3, 13.0, 1), {"kernel": 1}),
    "NaN in a shape": (written(changed(2, args={"Input Dims": [[777]]}), ("777", "NaN")), ALL, {"cpu_op": 1}),
    "a line end in a name": (written([FRAME, *ROWS], ("two\\nlines", LINE)), ALL, {}),
    "backslashes of Windows": (
        written([{**FRAME, "name": PATH}, *ROWS], (json.dumps(PATH)[1:-1], "C:\\Users\\1new")),
        *(ALL, {}),
    ),
    "NaN before the rows": (b'{"a": NaN, ' + written(ROWS)[1:], ALL, {}),
    "inf behind the rows": (written(ROWS)[:-1] + b', "a": -inf}', ALL, {}),
    "a device without an id": (b'{"deviceProperties": [{"id": [1], "name": "x"}], ' + written(ROWS)[1:], ALL, {}),
    "another category": (written([*ROWS, op("x", 1, 1) | {"cat": "new"}, op("x", 1, 1) | {"cat": [1]}]), ALL, {}),
    "a flow and metadata": (
        written([*ROWS, FRAME | {"ph": "s"}, FRAME | {"ph": "M", "args": {"grid": "no"}}]),
        ALL,
        {},
    ),
    "a launch with text places": (written(changed(3, args={"stream": "0x0", "grid": [3, 1, 1]})), ALL, {}),
    "an op with text places": (written(changed(2, args={"grid": "grid(8192,)", "stream": 0, "num_warps": 4})), ALL, {}),
    "external ids of torch 1": (written(changed(2, args={"external id": 3, "External id": None})), ALL, {}),
    "ids that are texts": (written(changed(4, args={"correlation": "1", "External id": "7"})), ALL, {}),
    "quotes in a name": (written([{**FRAME, "name": QUOTED}, *ROWS], (json.dumps(QUOTED)[1:-1], QUOTED)), ALL, {}),
    "quotes in the name of a process": (written([PROCESS, *ROWS], ('a \\"b\\"', 'a "b"')), ALL, {}),
    "a type that is not UTF-8": (written(changed(2, args={"Input type": ["two"]})).replace(b"two", b"\xff"), ALL, {}),
    "a kernel's name that is not UTF-8": (written(changed(4, name="two")).replace(b"two", b"\xff\xe2\x82"), ALL, {}),
}


def figures(trace: Trace) -> tuple[int, float, int]:
    whole = summarize_trace(trace, [trace.whole()])
    kernels = whole.kernels
    return (
        len(kernels),
        sum(kernel.device_time_us for kernel in kernels),
        int(sum(each.count for each in whole.transfers("gpu_memcpy"))),
    )


@pytest.mark.parametrize("block", [7, 100, None])
@pytest.mark.parametrize(("content", "expected", "malformed"), ODDITIES.values(), ids=ODDITIES)
def test_read_odd_trace_keeps_the_rest(
    content: bytes, expected: tuple[int, float, int], malformed: dict[str, int], block: int | None
) -> None:
    trace = read_in_blocks(content, block)
    assert trace is not None
    assert trace == read_in_blocks(content)
    assert figures(trace) == expected
    assert (trace.malformed, trace.modules) == (malformed, ())
    assert sum(summarize_trace(trace).not_read.values()) == sum(malformed.values())
