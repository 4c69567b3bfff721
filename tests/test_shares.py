"""Which part of a suite one machine measures."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelgauge import Workload
from kernelgauge.plugin.options import Options
from kernelgauge.workload import Share, divided


def workload(module: str = "mlp", variant: str = "eager", **fields: Any) -> Workload:
    return Workload(module=module, variant=variant, build=lambda: None, inputs=lambda: (), **fields)


MODULES = st.sampled_from(["mlp", "linear", "attention"])
SUITES = st.lists(
    st.builds(
        workload,
        MODULES,
        st.sampled_from(["eager", "compiled", "liger"]),
        shape=st.tuples(st.integers(1, 3)),
        compile=st.sampled_from([None, {}]),
    ),
    unique_by=lambda each: each.id,
)


@given(SUITES, st.integers(1, 6))
def test_every_workload_is_in_one_part(workloads: list[Workload], count: int) -> None:
    parts = divided(workloads, count)
    assert len(parts) == count
    assert sorted(each.id for part in parts for each in part) == sorted(each.id for each in workloads)


@given(SUITES, st.integers(1, 6))
def test_variants_that_are_compared_stay_together(workloads: list[Workload], count: int) -> None:
    homes: dict[tuple[object, ...], set[int]] = {}
    for place, part in enumerate(divided(workloads, count)):
        for each in part:
            homes.setdefault((each.module, each.shape, each.dtype, each.pass_), set()).add(place)
    assert all(len(places) == 1 for places in homes.values())


@given(SUITES, st.integers(1, 6))
def test_a_share_is_its_part(workloads: list[Workload], count: int) -> None:
    shares = [Share(index, count).of(workloads) for index in range(1, count + 1)]
    assert shares == [{each.id for each in part} for part in divided(workloads, count)]


@given(st.integers(1, 4), st.text(min_size=1))
def test_one_machine_has_a_test_of_no_workload(machines: int, node: str) -> None:
    here = Path()
    kept = [Options(here, here, here, share=Share(machine, machines)) for machine in range(1, machines + 1)]
    assert sum(options.keeps(node) for options in kept) == 1


@given(SUITES, st.integers(1, 4), st.randoms())
def test_the_order_of_collection_changes_nothing(workloads: list[Workload], count: int, chance: random.Random) -> None:
    here = Path()
    mixed = chance.sample(workloads, len(workloads))
    for index in range(1, count + 1):
        options = Options(here, here, here, share=Share(index, count))
        assert options.kept(workloads) == options.kept(mixed)


def test_the_longest_go_first_and_the_parts_take_about_as_long() -> None:
    suite = [workload(shape=(size,), compile={}) for size in range(4)]
    suite += [workload(shape=(9,), variant="tuned", compile={"mode": "max-autotune"}), workload("linear")]
    parts = [[(each.module, each.shape) for each in part] for part in divided(suite, 2)]
    assert parts == [
        [("mlp", (9,)), ("linear", ())],  # 6 + 1
        [("mlp", (0,)), ("mlp", (1,)), ("mlp", (2,)), ("mlp", (3,))],  # 4 x 2: the fourth stays with its module
    ]


def test_among_equals_a_module_stays_together() -> None:
    suite = [workload(module, shape=(size,)) for size in (1, 2) for module in ("mlp", "linear")]
    assert [{each.module for each in part} for part in divided(suite, 2)] == [{"mlp"}, {"linear"}]


def test_a_backward_pass_and_tuning_count_for_more() -> None:
    trained, *others = [workload(pass_="train"), workload(shape=(1,)), workload(shape=(2,)), workload(shape=(3,))]
    first, second = divided([*others, trained], 2)
    assert trained in first
    assert len(second) == 2


@pytest.mark.parametrize("text", ["2", "0/2", "3/2", "a/b", "1/", "/2", "-1/2", "1/2/3", "", "1.0/2"])
def test_what_is_no_share_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=re.escape("a share is I/N")):
        Share.parse(text)


def test_a_share_reads_what_it_says() -> None:
    assert Share.parse("2/4") == Share(2, 4)
    assert str(Share(2, 4)) == "2/4"
