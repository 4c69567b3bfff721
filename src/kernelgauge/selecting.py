"""Which tests run, for which workloads, in this process."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import pytest

from .fixtures import bare_name, workload_of
from .standard import JUDGING_OTHERS, MEASURING
from .suites import Options
from .workload import Workload

__all__ = [
    "are_ours",
    "keep",
    "matches",
    "measure_something",
    "sort_by_workload",
    "that_may_judge_times",
    "workloads_of",
    "wrong_mark",
]


def wrong_mark(mark: pytest.Mark, workloads: Sequence[Workload]) -> str | None:
    """Why a mark `workloads` cannot mean what it says; None if it can."""
    if mark.args or not mark.kwargs:
        return "the mark workloads takes fields by name, and at least one"
    unknown = [name for name in mark.kwargs if workloads and not hasattr(workloads[0], name)]
    if unknown:
        return f"a workload has no field {', '.join(unknown)}"
    if not any(matches(workload, mark.kwargs) for workload in workloads):
        return "the mark selects no workload, so its test would never run"
    return None


def matches(workload: Workload, fields: Mapping[str, object]) -> bool:
    return all(_is_meant(getattr(workload, name, None), wanted) for name, wanted in fields.items())


def _is_meant(value: object, wanted: object) -> bool:
    # A tuple means one of its parts, but a shape is a tuple itself.
    return value == wanted or (isinstance(wanted, tuple) and value in wanted)


def workloads_of(items: Sequence[pytest.Item]) -> list[Workload]:
    """Each once, in order of their first test."""
    return list({workload.id: workload for item in items if (workload := workload_of(item))}.values())


def measure_something(items: Sequence[pytest.Item]) -> list[bool]:
    """Of each test: whether a calibration needs it."""
    return [bare_name(item) in MEASURING and workload_of(item) is not None for item in items]


def that_may_judge_times(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Tests that may judge a device or dispatch time: those that ask for `gauge`, but for ours that judge something else."""
    return [
        item for item in items if "gauge" in getattr(item, "fixturenames", ()) and bare_name(item) not in JUDGING_OTHERS
    ]


def are_ours(items: Sequence[pytest.Item], options: Options) -> list[bool]:
    """Of each test: whether it is in this machine's share."""
    ids = options.kept(workloads_of(items))
    return [workload.id in ids if (workload := workload_of(item)) else options.keeps(item.nodeid) for item in items]


def sort_by_workload(items: list[pytest.Item], workloads: Sequence[Workload]) -> None:
    """All tests of a workload together, in the order of `workloads`. Tests without a workload run first if the first test is
    one of them, else last."""
    others = -1 if items and workload_of(items[0]) is None else len(workloads)
    places = {workload.id: place for place, workload in enumerate(workloads)}

    def place(item: pytest.Item) -> int:
        workload = workload_of(item)
        return others if workload is None else places[workload.id]

    items.sort(key=place)


def keep(config: pytest.Config, items: list[pytest.Item], kept: Sequence[bool]) -> None:
    """Deselect the others."""
    others = [item for item, keep in zip(items, kept, strict=True) if not keep]
    if others:
        config.hook.pytest_deselected(items=others)
        items[:] = itertools.compress(items, kept)
