"""JSON for a reader of diffs: the same data, and what is short on one line."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kernelgauge.judge.layout import laid_out

LONG = ["x" * 30] * 5


@pytest.mark.parametrize(
    "value",
    [
        pytest.param({}, id="an empty object"),
        pytest.param([], id="an empty list"),
        pytest.param({"a": [1, 2.5, None, True, "b"]}, id="every type"),
        pytest.param({"a": LONG, "b": {"c": LONG}}, id="long and nested"),
        pytest.param({'"\\\n\x1b': "\u00e9\u4e2d" * 60}, id="characters to escape"),
        pytest.param((1, 2), id="a tuple"),
    ],
)
def test_it_is_json_of_the_same_value(value: Any) -> None:
    assert json.loads(laid_out(value)) == (list(value) if isinstance(value, tuple) else value)


def test_what_fits_stands_on_one_line() -> None:
    assert laid_out({"grid": [2, 64, 1], "block": [384, 1, 1]}) == '{"grid": [2, 64, 1], "block": [384, 1, 1]}'


def test_what_does_not_fit_is_spread_and_only_that() -> None:
    assert laid_out({"a": LONG, "b": [1, 2]}) == (
        '{\n  "a": [\n' + ",\n".join(f'    "{text}"' for text in LONG) + '\n  ],\n  "b": [1, 2]\n}'
    )


def test_an_array_of_a_line_each_has_them_however_long_and_wherever_it_stands() -> None:
    value = {"deep": {"lines": [LONG, LONG[:1]]}, "others": LONG, "lines": []}
    text = laid_out(value, a_line_each={"lines"})
    assert json.loads(text) == value
    assert f"      {json.dumps(LONG)},\n      {json.dumps(LONG[:1])}\n    ]" in text
    assert '"lines": []' in text


def test_one_more_in_an_array_of_a_line_each_is_one_more_line_of_a_diff() -> None:
    one, two = (laid_out({"lines": [LONG] * count, "x": LONG}, a_line_each={"lines"}).split("\n") for count in (1, 2))
    assert len(two) == len(one) + 1
