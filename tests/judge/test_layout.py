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
