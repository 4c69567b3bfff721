"""Which part of a suite one machine measures."""

from __future__ import annotations

import random
import re
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelgauge import Workload
from kernelgauge.plugin.options import Options
from kernelgauge.plugin.suites import is_in_share
from kernelgauge.workload import Share, divided


def workload(module: str = "mlp", variant: str = "eager", **fields: Any) -> Workload:
    return Workload(module=module, variant=variant, build=lambda: None, inputs=lambda: (), **fields)


SUITES = st.lists(
    st.builds(
        workload,
        st.sampled_from(["mlp", "linear", "attention"]),
        st.sampled_from(["eager", "compiled", "liger"]),
        shape=st.tuples(st.integers(1, 3)),
        compile=st.sampled_from([None, {}]),
    ),
    unique_by=lambda each: each.id,
)


@given(SUITES, st.integers(1, 6))
def test_divided_puts_each_workload_into_one_part(workloads: list[Workload], count: int) -> None:
    parts = divided(workloads, count)
    assert len(parts) == count
    assert sorted(each.id for part in parts for each in part) == sorted(each.id for each in workloads)
    shares = [Share(index, count).of(workloads) for index in range(1, count + 1)]
    assert shares == [{each.id for each in part} for part in parts]


@given(SUITES, st.integers(1, 6))
def test_divided_keeps_variants_together(workloads: list[Workload], count: int) -> None:
    homes: dict[tuple[object, ...], set[int]] = {}
    for place, part in enumerate(divided(workloads, count)):
        for each in part:
            homes.setdefault((each.module, each.shape, each.dtype, each.pass_), set()).add(place)
    assert all(len(places) == 1 for places in homes.values())


def item(of: Workload | str) -> Any:
    """Return as much of a test as decides its machine."""
    if isinstance(of, str):
        return SimpleNamespace(nodeid=of)
    return SimpleNamespace(nodeid=of.id, callspec=SimpleNamespace(params={"workload": of}))


@given(SUITES, st.lists(st.text(min_size=1), unique=True), st.integers(1, 4), st.randoms())
def test_each_test_is_on_one_machine_in_any_order(
    workloads: list[Workload], others: list[str], count: int, chance: random.Random
) -> None:
    here = Path()
    items = [item(each) for each in (*workloads, *others)]
    mixed = chance.sample(items, len(items))
    homes = Counter[str]()
    for index in range(1, count + 1):
        options = Options(here, here, here, share=Share(index, count))
        kept, kept_of_mixed = (
            {each.nodeid for each, is_kept in zip(order, is_in_share(order, options), strict=True) if is_kept}
            for order in (items, mixed)
        )
        assert kept == kept_of_mixed
        homes.update(kept)
    assert homes == Counter(each.nodeid for each in items)


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
