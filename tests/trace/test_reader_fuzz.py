"""Whatever the bytes are, the reader gives what a plain reading of the JSON gives, or refuses: in blocks of any size."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.builders import call, chrome, event, kernel, op, step
from tests.trace.reading import ARGS, CATEGORIES, NOT_READ, is_text, is_triple, is_whole, read_in_blocks, read_plainly

TIMES = int(os.environ.get("KERNELGAUGE_FUZZ_TIMES", "1"))  # how many times as many examples
Usual = st.SearchStrategy[Any]

BLOCKS = st.lists(st.one_of(st.integers(1, 70), st.integers(1, 4000)), min_size=1, max_size=3)
TOKENS = st.sampled_from(
    [
        *b'{ } [ ] , : " \\ \\" },{ ]} ]}} "traceEvents": "traceEvents":[ {"traceEvents":[ [{ }] {} [] null'.split(),
        *b"-0 1e999 NaN 9223372036854775808 \\ud800 \\u0022 \xff \xed\xa0\x80 \xef\xbb\xbf \xe2\x80\xae /* //".split(),
        *(b" ", b"\n", b"\t", b"\x0b", b"\x00", b", ", b"} ,", b",\n{"),
        *(b'"ph":"X",', b'"args":{},', b'"cat":"kernel",', b"true"),
    ]
)
ODD_TEXT = st.sampled_from(
    [
        *("},{", "]}", '"traceEvents": [', '{"traceEvents":[{', "ends in a backslash\\", 'ends in a quote"', "\\\\"),
        *("\\u0041", "\x00\x1b[31m\x7f", "\u202egnp.exe", "\u2028", "\ud800", "a\udfffb", "\U0001f600", "n" * 10_000),
        *("},\n  {" * 30, "", "aten::reshape", "ProfilerStep#1", "cudaLaunchKernel", "not UTF-8: \ue000"),
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
NAMES = st.one_of(TEXT, st.sampled_from("ProfilerStep#1 cudaLaunchKernel cudaGraphLaunch aten::t aten::mm".split()))
CATEGORY = st.sampled_from(
    [*sorted(CATEGORIES), *sorted(NOT_READ), "cpu_op", "kernel", "cuda_runtime", "user_annotation", "ac2g"]
)


def rows(mostly: Callable[[Usual], Usual]) -> Usual:
    """Draw lists of events of which each field is `mostly` of its type."""
    usual = {is_whole: SMALL, is_triple: st.lists(SMALL, min_size=3, max_size=3), is_text: TEXT}
    args = {key: mostly(usual[fits]) for key, fits in ARGS.items()}
    args["Input Dims"] = mostly(st.lists(st.one_of(SIZES, st.lists(SIZES, max_size=2)), max_size=3))
    args["Input type"] = mostly(st.lists(TEXT, max_size=3))
    args["more"] = st.one_of(ANYTHING, st.just([{"a": {}}, {"b": "},"}, {"c": [{}, {}]}] * 3))
    chosen = st.fixed_dictionaries({"correlation": args.pop("correlation")}, optional=args)
    optional = {"name": mostly(NAMES), "ts": mostly(NUMBERS), "dur": mostly(NUMBERS), "args": mostly(chosen)}
    optional |= {"tid": mostly(st.one_of(SMALL, TEXT)), "pid": ANYTHING}
    kinds = {"ph": mostly(st.sampled_from("XXXXXXXM")), "cat": mostly(CATEGORY)}
    return st.lists(st.fixed_dictionaries(kinds, optional=optional), max_size=12)


ANY_ROWS = st.one_of(
    rows(lambda usual: usual), rows(lambda usual: st.integers(0, 60).flatmap(lambda n: usual if n else ANYTHING))
)
OTHERS = st.dictionaries(st.sampled_from(["schemaVersion", "displayTimeUnit", "a", "", "other"]), ANYTHING, max_size=3)
DEVICES = st.one_of(st.lists(st.dictionaries(TEXT, ANYTHING, max_size=3), max_size=2), ANYTHING)


@st.composite
def documents(draw: st.DrawFn) -> bytes:
    """Draw Chrome JSON in any layout: with other keys before and behind the events, or the events alone."""
    found: Any = draw(ANY_ROWS)
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
NEARLY_JSON = st.builds(
    lambda start, tokens: start + b"".join(tokens),
    st.sampled_from([b"", b"[", b'{"traceEvents":[']),
    st.lists(TOKENS, max_size=25),
)


@pytest.mark.parametrize(
    ("contents", "examples"),
    [
        pytest.param(st.binary(max_size=200), 150, id="bytes"),
        pytest.param(NEARLY_JSON, 150, id="nearly JSON"),
        pytest.param(documents(), 300, id="JSON"),
        pytest.param(damaged(TRACES), 400, id="damaged trace"),
        pytest.param(damaged(documents()), 200, id="damaged JSON"),
    ],
)
def test_reader_any_bytes_agrees_with_plain_reading(contents: st.SearchStrategy[bytes], examples: int) -> None:
    @settings(
        derandomize=TIMES == 1,
        deadline=None,
        max_examples=examples * TIMES,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(contents, BLOCKS)
    def agrees(content: bytes, blocks: list[int]) -> None:
        expected = read_plainly(content)
        for block in (None, *blocks):
            assert read_in_blocks(content, block) == expected, block

    agrees()
