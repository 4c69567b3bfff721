"""Which part of a suite one machine measures."""

from __future__ import annotations

import re
from typing import Any

import pytest

from kernelgauge import Workload
from kernelgauge.workload import Share, divided


def workload(module: str = "mlp", variant: str = "eager", **fields: Any) -> Workload:
    return Workload(module=module, variant=variant, build=lambda: None, inputs=lambda: (), **fields)


def test_divided_puts_the_longest_first() -> None:
    suite = [workload(shape=(size,), compile={}) for size in range(4)]
    suite += [workload(shape=(9,), variant="tuned", compile={"mode": "max-autotune"}), workload("linear")]
    assert [[(each.module, each.shape) for each in part] for part in divided(suite, 2)] == [
        [("mlp", (9,)), ("linear", ())],  # 6 + 1
        [("mlp", (0,)), ("mlp", (1,)), ("mlp", (2,)), ("mlp", (3,))],  # 4 x 2: the fourth stays with its module
    ]


def test_divided_keeps_modules_together_among_equals() -> None:
    suite = [workload(module, shape=(size,)) for size in (1, 2) for module in ("mlp", "linear")]
    assert [{each.module for each in part} for part in divided(suite, 2)] == [{"mlp"}, {"linear"}]


def test_divided_counts_a_backward_pass_for_more() -> None:
    trained, *others = [workload(pass_="train"), workload(shape=(1,)), workload(shape=(2,)), workload(shape=(3,))]
    first, second = divided([*others, trained], 2)
    assert trained in first
    assert len(second) == 2


@pytest.mark.parametrize("text", ["2", "0/2", "3/2", "a/b", "1/", "/2", "-1/2", "1/2/3", "", "1.0/2"])
def test_share_with_invalid_text_raises(text: str) -> None:
    with pytest.raises(ValueError, match=re.escape("a share is I/N")):
        Share.parse(text)
