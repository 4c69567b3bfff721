"""Whatever the bytes are, the reader gives what a plain reading of the JSON gives, or refuses: in any blocks."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, cycle
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernelgauge.trace import (
    events,
)
from kernelgauge.trace.events import Event, TraceParser
from tests.builders import RECORDED, call, chrome, event, kernel, op, region, step
from tests.trace.outcome import outcome
from tests.trace.plain_reading import ARGS, CATEGORIES, DEVICE, Json, reference, text, three, whole

TIMES = int(os.environ.get("KERNELGAUGE_FUZZ_TIMES", "1"))  # how much longer than in a run of all tests


def fuzzed(examples: int) -> settings:
    return settings(
        derandomize=TIMES == 1,
        deadline=None,
        max_examples=examples * TIMES,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


# -- what holds -----------------------------------------------------------------------------------------------------


def holds(content: bytes, blocks: Iterable[int]) -> None:
    expected = reference(content)
    assert outcome(content) == expected
    for block in blocks:
        assert outcome(content, block) == expected, block


# -- the bytes ------------------------------------------------------------------------------------------------------

BLOCKS = st.lists(st.one_of(st.integers(1, 70), st.integers(1, 4000)), min_size=1, max_size=3)
TOKENS = st.sampled_from(
    [
        *(
            b'{ } [ ] , : " \\ \\" },{ ]} ]}} "traceEvents": "traceEvents":[ {"traceEvents":[ [{ }] {} [] null true'.split()
        ),
        *(
            b"-0 1e999 NaN 9223372036854775808 \\ud800 \\u0022 \xff \xed\xa0\x80 \xef\xbb\xbf \xe2\x80\xae /* //".split()
        ),
        *(
            b" ",
            b"\n",
            b"\t",
            b"\x0b",
            b"\x00",
            b", ",
            b"} ,",
            b",\n{",
            b'"ph":"X",',
            b'"args":{},',
            b'"cat":"kernel",',
        ),
    ]
)
ODD_TEXT = st.sampled_from(
    [
        *(
            "},{",
            "]}",
            '"traceEvents": [',
            '{"traceEvents":[{',
            "ends in a backslash\\",
            'ends in a quote"',
            "\\\\",
            "\\u0041",
        ),
        *(
            "\x00\x1b[31m\x7f",
            "\u202egnp.exe",
            "\u2028",
            "\ud800",
            "a\udfffb",
            "\U0001f600",
            "n" * 10_000,
            "},\n  {" * 30,
        ),
        *("", "aten::reshape", "ProfilerStep#1", "cudaLaunchKernel", "cudaGraphLaunch", "not UTF-8: \ue000"),
    ]
)
TEXT = st.one_of(ODD_TEXT, st.text(max_size=8))
NUMBERS = st.one_of(
    st.integers(-3, 20),
    st.floats(-50, 50).map(lambda value: round(value, 3)),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([2**53 + 1, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 2**64, 10**30, 1e308, -1e308, 5e-324]),
)
ANYTHING = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, TEXT),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXT, inner, max_size=4)),
    max_leaves=8,
)


SIZES = st.lists(st.integers(0, 9), max_size=4)
SMALL = st.integers(-1, 6)
TRIPLES = st.lists(SMALL, min_size=3, max_size=3)
NAMES = st.one_of(
    TEXT, st.sampled_from(["ProfilerStep#1", "cudaLaunchKernel", "cudaGraphLaunch", "aten::t", "aten::mm"])
)
CATEGORY = st.sampled_from([*sorted(CATEGORIES), "cpu_op", "kernel", "cuda_runtime", "user_annotation", "ac2g"])
Usual = st.SearchStrategy[Any]


def rows(mostly: Callable[[Usual], Usual]) -> Usual:
    """Lists of events of which each field is `mostly` of its type."""
    args = {
        **{key: mostly(SMALL) for key in ARGS if ARGS[key] is whole},
        **{key: mostly(TRIPLES) for key in ARGS if ARGS[key] is three},
        **{key: mostly(TEXT) for key in ARGS if ARGS[key] is text},
        "Input Dims": mostly(st.lists(st.one_of(SIZES, st.lists(SIZES, max_size=2)), max_size=3)),
        "Input type": mostly(st.lists(TEXT, max_size=3)),
        "more": st.one_of(ANYTHING, st.just([{"a": {}}, {"b": "},"}, {"c": [{}, {}]}] * 3)),
    }
    chosen = st.fixed_dictionaries({"correlation": args.pop("correlation")}, optional=args)
    row = {"name": mostly(NAMES), "ts": mostly(NUMBERS), "args": mostly(chosen)}
    return st.lists(
        st.fixed_dictionaries(
            {"ph": mostly(st.sampled_from("XXXXXXXM")), "cat": mostly(CATEGORY)},
            optional={**row, "dur": mostly(NUMBERS), "tid": mostly(st.one_of(SMALL, TEXT)), "pid": ANYTHING},
        ),
        max_size=12,
    )


ANY_ROWS = st.one_of(
    rows(lambda usual: usual), rows(lambda usual: st.integers(0, 60).flatmap(lambda n: usual if n else ANYTHING))
)
ID, START, DURATION = st.one_of(st.none(), SMALL), st.integers(0, 60), st.integers(-5, 30)
API_NAMES = st.sampled_from(["cudaLaunchKernel", "cuGraphLaunch", "hipMemcpyAsync", "cudaMalloc"])
PLAUSIBLE_ROW = st.one_of(
    st.builds(step, SMALL, START, DURATION),
    st.builds(region, NAMES, START, DURATION),
    st.builds(op, NAMES, START, DURATION, thread=st.integers(1, 2), external_id=ID),
    st.builds(call, ID, START, name=API_NAMES),
    st.builds(
        kernel, ID, START, name=TEXT, duration=DURATION, category=st.sampled_from([*DEVICE, "Kernel"]), external_id=ID
    ),
)
LAUNCH = st.builds(lambda number, start: [call(number, start), kernel(number, start + 3)], SMALL, START)
PLAUSIBLE_ROWS = st.lists(st.one_of(st.lists(PLAUSIBLE_ROW, max_size=6), LAUNCH), max_size=6).map(
    lambda groups: list(chain.from_iterable(groups))
)
OTHERS = st.dictionaries(st.sampled_from(["schemaVersion", "displayTimeUnit", "a", "", "other"]), ANYTHING, max_size=3)
DEVICES = st.one_of(st.lists(st.dictionaries(TEXT, ANYTHING, max_size=3), max_size=2), ANYTHING)


@st.composite
def documents(draw: st.DrawFn) -> bytes:
    """Chrome JSON in any layout: what stands before the events, what behind them, or the events alone."""
    found: Json = draw(ANY_ROWS) + draw(PLAUSIBLE_ROWS)
    if draw(st.booleans()):
        found = [dict(draw(st.permutations(list(row.items())))) for row in draw(st.permutations(found))]
    if draw(st.integers(0, 5)):
        before, after = draw(OTHERS), draw(OTHERS)
        (before if draw(st.booleans()) else after)["deviceProperties"] = draw(DEVICES)
        found = {**before, "traceEvents": found, **{key: value for key, value in after.items() if key not in before}}
    indent = draw(st.sampled_from([None, None, 0, 2, "\t"]))
    separators = draw(st.sampled_from([(",", ":"), (", ", ": "), (" \r\n, ", "\t:\n ")]))
    written = json.dumps(found, indent=indent, separators=separators, ensure_ascii=draw(st.booleans()))
    space = st.text(" \t\r\n", max_size=5)
    content = (draw(space) + written + draw(space)).encode(errors="surrogatepass")
    return content.replace("\ue000".encode(), b"\xff\xc3").replace(b"\\ue000", b"\xe2\x82")


@st.composite
def mutated(draw: st.DrawFn, whole_ones: st.SearchStrategy[bytes]) -> bytes:
    content = draw(whole_ones)
    for _ in range(draw(st.integers(1, 3))):
        at, length = draw(st.integers(0, len(content))), draw(st.integers(0, 60))
        before, cut, after = content[:at], content[at : at + length], content[at + length :]
        content = draw(
            st.sampled_from(
                [
                    before,
                    before + after,
                    before + cut + cut + after,
                    before + after + cut,
                    before + draw(TOKENS) + cut + after,
                    before + draw(TOKENS) + after,
                    before + draw(st.binary(min_size=1, max_size=3)) + content[at + 1 :],
                    *[before + draw(st.sampled_from([b"1", b"x", b" ", b""])) + content[at + 1 :]] * 6,
                ]
            )
        )
    return content


SMALL_TRACE = chrome(
    step(1, 0, 50),
    op("aten::mm", 1, 9, external_id=7)
    | {"args": {"External id": 7, "Input Dims": [[2, 3], []], "Input type": ["a", ""]}},
    call(3, 2) | {"args": {"correlation": 3, "objects": [{"a": {}}, {"b": "},"}, {"c": [{}, {}]}]}},
    kernel(3, 4) | {"args": {"correlation": 3, "grid": [1, 2, 3], "device": 0, "stream": 7}},
    event("ac2g", "flow", 1, 1, "thread"),
    schemaVersion=1,
    deviceProperties=[{"id": 0, "name": "NVIDIA H200"}],
    traceName="x.json",
)
TRACES = st.sampled_from([SMALL_TRACE, json.dumps(json.loads(SMALL_TRACE), indent=1).encode()])


def test_the_plain_reading_reads_a_recorded_trace_as_the_reader_does() -> None:

    for path in RECORDED.glob("*.json.gz"):
        if path.name.startswith("l"):
            content = gzip.decompress(path.read_bytes())
            expected = reference(content)
            assert expected is not None
            assert outcome(content) == expected
            assert outcome(content, 777) == expected


@fuzzed(150)
@given(st.binary(max_size=200), BLOCKS)
def test_arbitrary_bytes_are_refused(content: bytes, blocks: list[int]) -> None:
    holds(content, blocks)


@fuzzed(150)
@given(st.lists(TOKENS, max_size=25).map(b"".join), st.sampled_from([b"", b"[", b'{"traceEvents":[']), BLOCKS)
def test_bytes_that_are_nearly_json_are_read_or_refused(content: bytes, start: bytes, blocks: list[int]) -> None:
    holds(start + content, blocks)


@fuzzed(400)
@given(documents(), BLOCKS)
def test_any_json_is_read_as_plainly_or_refused(content: bytes, blocks: list[int]) -> None:
    holds(content, blocks)


@fuzzed(600)
@given(mutated(TRACES), BLOCKS)
def test_a_damaged_trace_is_read_as_plainly_or_refused(content: bytes, blocks: list[int]) -> None:
    holds(content, blocks)


@fuzzed(200)
@given(mutated(documents()), BLOCKS)
def test_any_damaged_json_is_read_as_plainly_or_refused(content: bytes, blocks: list[int]) -> None:
    holds(content, blocks)


@fuzzed(100)
@given(st.one_of(documents(), mutated(TRACES)), st.lists(st.integers(0, 500), min_size=1, max_size=5), BLOCKS)
def test_the_sizes_in_which_the_bytes_come_do_not_matter(content: bytes, sizes: list[int], blocks: list[int]) -> None:
    def parsed(delivered: Iterable[bytes]) -> list[Event] | None:
        parser = TraceParser(lambda phase, category: True)
        try:
            return [event for piece in parser.pieces(delivered) for event in piece.events]
        except msgspec.DecodeError:
            return None

    def delivered() -> Iterator[bytes]:
        at = 0
        for size in cycle([*sizes, 1]):
            yield content[at : at + size]
            at += size
            if at >= len(content):
                return

    expected = parsed([content])
    assert parsed(delivered()) == expected
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(events, "BLOCK_BYTES", blocks[0])
        assert parsed(delivered()) == expected
