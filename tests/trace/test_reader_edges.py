"""Traces that were picked: deep, long, many of something, or nearly JSON. The rest is made up in test_reader_fuzz.py."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from kernelgauge.errors import TraceError
from kernelgauge.trace import events, parse
from tests.builders import call, chrome, kernel, op, step, trace_of
from tests.trace.outcome import outcome


@pytest.mark.parametrize("depth", [15, 17, 300, 100_000])
@pytest.mark.parametrize("block", [64, 4096, None])
@pytest.mark.parametrize("field", ["more", "Input Dims"])
def test_json_of_any_depth_is_read_or_refused(field: str, depth: int, block: int | None) -> None:
    row = json.dumps(op("aten::mm", 1, 2) | {"args": {field: 0}}).replace("0}}", "[" * depth + "]" * depth + "}}")
    trace = outcome(HEAD + row.encode() + b"]}", block)
    assert (trace is not None) == (depth <= (17 if field == "Input Dims" else 300))


def test_all_numbers_have_64_bits() -> None:
    """Python's dict compares every key with every other whose hash is the same: 100,000 would take minutes."""
    modulus = 2**61 - 1  # of the hash of an int
    rows = [kernel(modulus * number, 1) for number in range(100_000)]
    with pytest.raises(TraceError, match="correlation"):
        trace_of(*rows)


def test_a_category_that_is_no_text_is_of_a_row_that_nobody_reads() -> None:
    others = [op("x", 1, 1) | {"cat": category} for category in ([], {}, 1, None)]
    assert [row.name for row in trace_of(*others, op("aten::mm", 2, 1)).ops] == ["aten::mm"]


def test_a_name_that_is_not_utf_8_is_read_and_shown_as_such() -> None:
    content = chrome(op("before", 1, 1), kernel(1, 2, name="gemm???"), op("behind", 3, 1)).replace(
        b"???", b"\xff\xe2\x82"
    )
    for block in (1, 50, None):
        trace = outcome(content, block)
        assert trace is not None
        assert trace.records[0].name == "gemm\ufffd\ufffd"
        assert [row.name for row in trace.ops] == ["before", "behind"]


HEAD = b'{"traceEvents":['
ROW = json.dumps(op("aten::mm", 1, 2)).encode()
OBJECTS = b'{"args":[' + b'{"a":{}},' * 30 + b"0]}"


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(HEAD + ROW + b",]}", id="a comma behind the last event"),
        pytest.param(b"[" + ROW + b",]", id="a comma behind the last of a list"),
        pytest.param(HEAD + b"," + ROW + b"]}", id="a comma before the first event"),
        pytest.param(HEAD + ROW + b",," + ROW + b"]}", id="two commas"),
        pytest.param(HEAD + ROW + b" " + ROW + b"]}", id="no comma"),
        pytest.param(HEAD + ROW + b"\x0b," + ROW + b"]}", id="white space that JSON does not know"),
        pytest.param(HEAD + ROW + b"}", id="no end of the list"),
        pytest.param(HEAD + ROW + b"}}", id="another end of the list"),
        pytest.param(b"[" + ROW + b"] x", id="text behind a list"),
        pytest.param(HEAD + b"," + OBJECTS + b"," + ROW + b"]}", id="a comma before many objects"),
        pytest.param(HEAD + OBJECTS + b" " + ROW + b"]}", id="no comma behind many objects"),
        pytest.param(HEAD + OBJECTS + b"x" + OBJECTS + b"," + ROW + b"]}", id="something else than a comma"),
        pytest.param(HEAD + ROW + b"]]}", id="two ends of the list"),
        pytest.param(HEAD + ROW + b'],"traceEvents":[' + ROW + b"]}", id="two lists"),
        pytest.param(HEAD + ROW + b'],"traceEvents":[]}', id="a second list, empty"),
        pytest.param(b'{"traceEvents"\x0b:[' + ROW + b"]}", id="white space that JSON does not know before the list"),
        pytest.param(b'{"a":{"traceEvents":[' + ROW + b"]}}", id="a list in something else"),
        pytest.param(b"[{},{},{}]", id="a list without an event"),
    ],
)
def test_what_is_refused_at_once_is_refused_in_blocks_of_every_size(content: bytes) -> None:
    for block in range(1, len(content) + 2):
        assert outcome(content, block) is None, block


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(
            b'{"a":{"traceEvents":[{}]},"traceEvents" :\n[' + ROW + b"]}", id="another list in something else"
        ),
        pytest.param(b'{"a":"\\"traceEvents\\":[","traceEvents":[' + ROW + b"]}", id="another list in a text"),
        pytest.param(b'{"traceEvents":null,"traceEvents":[' + ROW + b"]}", id="no list before it"),
        pytest.param(HEAD + ROW + b'],"a":{"traceEvents":[{}]},"b":[[],"]"]}', id="another list behind it"),
        pytest.param(HEAD + OBJECTS + b"," + ROW + b"]}", id="many objects in an event"),
        pytest.param(HEAD + b'{"name":"' + b"},{" * 30 + b'\\\\"},' + ROW + b"]}", id="a name like many events"),
        pytest.param(b" [" + ROW + b" ] ", id="a list alone"),
        pytest.param(b'{"\xff":1,"traceEvents":[' + ROW + b'],"\xe2\x82":2}', id="keys that are not UTF-8"),
        pytest.param(HEAD + ROW + b',{"ph":"X","cat":"\xff","name":5}]}', id="a category that is not UTF-8"),
    ],
)
def test_what_is_read_at_once_is_read_in_blocks_of_every_size(content: bytes) -> None:
    expected = trace_of(op("aten::mm", 1, 2))
    for block in range(1, len(content) + 2):
        assert outcome(content, block) == expected, block


@pytest.mark.parametrize("start", [HEAD, b" [", b'{"a": 1, "traceEvents" : ['])
@pytest.mark.parametrize("block", [10, 60, 200, None])
def test_an_error_says_from_which_event_on_it_is(
    monkeypatch: pytest.MonkeyPatch, start: bytes, block: int | None
) -> None:
    broken = b'{"ph":"X",,}'
    content = start + b", ".join([ROW, ROW, broken, ROW]) + b"]"
    monkeypatch.setattr(events, "BLOCK_BYTES", block or len(content))
    with pytest.raises(TraceError) as caught:
        parse(content)
    found = re.search(r"traceEvents\[(\d+)\] or later, from byte (\d+) ", str(caught.value.got))
    assert found
    index, at = map(int, found.groups())
    assert content[:at].count(ROW) == index
    assert content[at:].lstrip().startswith((ROW, broken))


@pytest.mark.parametrize("shapes", ['[{"a":1}]', "[[9223372036854775808]]", "[[-9223372036854775808]]", "[1e999]", "5"])
def test_shapes_that_are_none_are_refused(shapes: str) -> None:
    row = json.dumps(op("aten::mm", 1, 2) | {"args": {"Input Dims": "?"}}).replace('"?"', shapes)
    assert outcome(HEAD + row.encode() + b"]}") is None


def test_a_shape_that_is_not_utf_8_is_shown_as_such() -> None:
    trace = outcome(HEAD + ROW.replace(b"{}", b'{"Input Dims":["\xff"]}') + b"]}")
    assert trace is not None
    assert trace.ops[0].input_shapes == ("\ufffd",)


MANY = 30_000
SQUARES = [
    pytest.param(
        [*(op("aten::t", at, 1) for at in range(MANY)), *(call(at, at) for at in range(MANY))]
        + [kernel(at, at) for at in range(MANY)],
        id="metadata ops and launches",
    ),
    pytest.param(
        [*(call(1, at) for at in range(MANY)), *(kernel(1, at, name="n" * 100) for at in range(MANY))],
        id="calls and records of one correlation",
    ),
    pytest.param([op("aten::mm", at, MANY - 2 * at) for at in range(MANY // 2)], id="ops within ops"),
    pytest.param([op("aten::mm", 1, 1) for _ in range(MANY)], id="ops that start together"),
    pytest.param([step(at, at, 0.5) for at in range(MANY)], id="steps"),
]


@pytest.mark.timeout(60)  # what is not linear takes minutes
@pytest.mark.parametrize("rows_of", SQUARES)
def test_what_is_asked_of_a_long_trace_takes_a_time_like_its_length(rows_of: list[dict[str, Any]]) -> None:
    trace = outcome(chrome(step(0, 0, MANY + 1), *rows_of))
    assert trace is not None
    assert trace.steps()[0].name == "ProfilerStep#0"


def test_the_records_of_a_correlation_belong_to_the_first_call_that_has_it() -> None:
    first, second = trace_of(step(1, 0, 5), call(1, 1), step(2, 5, 5), call(1, 6), kernel(1, 7), kernel(1, 8)).steps()
    assert [launch.call.start_us for launch in first.launches] == [1, 1]
    assert second.launches == ()


@pytest.mark.parametrize(("steps", "read"), [(64, True), (65, False)])
def test_steps_that_are_all_open_at_once_are_refused(steps: int, read: bool) -> None:
    one_by_one = [step(number, number, 1) for number in range(100)]
    at_once = [step(number, -number, 500) for number in range(1, steps)]
    assert (outcome(chrome(*one_by_one, *at_once)) is not None) == read
