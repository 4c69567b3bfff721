"""Which part of a suite one machine measures. Pure: every machine computes the same, and asks nobody."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .workload import Workload

__all__ = ["Share", "divided"]

# What measuring costs beside an eager workload, roughly (full matrix on an H200): compiling it, tuning every template
# of its GEMMs, and a backward pass.
_COMPILED, _MAX_AUTOTUNE, _TRAIN = 2.0, 6.0, 1.5


@dataclass(frozen=True)
class Share:
    """Part `index` of `count`, from 1: ``2/4``."""

    index: int
    count: int

    def __post_init__(self) -> None:
        if not 1 <= self.index <= self.count:
            raise ValueError(f"a share is I/N with 1 <= I <= N, got {self.index}/{self.count}")

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    @classmethod
    def parse(cls, text: str) -> Share:
        """Raises `ValueError` for what is not I/N."""
        index, slash, count = text.partition("/")
        if not slash or not index.isdecimal() or not count.isdecimal():
            raise ValueError(f"a share is I/N, for example 2/4, got {text!r}")
        return cls(int(index), int(count))

    def of(self, workloads: Sequence[Workload]) -> set[str]:
        """Ids of this part's workloads."""
        return {workload.id for workload in divided(workloads, self.count)[self.index - 1]}


def divided(workloads: Sequence[Workload], count: int) -> list[list[Workload]]:
    """`count` parts that take about as long; a part may be empty.

    Variants of one module, shape, dtype and pass stay together: the claims of a suite compare them with each other, and
    the times of one GPU with the times of another would be no comparison. The largest group goes first, each to the
    part that has least (Graham, "Bounds on multiprocessing timing anomalies", 1969); among equals to the part that
    has most of its module, then to the first.
    """
    groups: dict[tuple[object, ...], list[Workload]] = {}
    for workload in workloads:
        groups.setdefault((workload.module, workload.shape, workload.dtype, workload.pass_), []).append(workload)
    parts: list[list[Workload]] = [[] for _ in range(count)]
    for group in sorted(groups.values(), key=_cost, reverse=True):  # stable: in order of declaration among equals
        module = group[0].module
        least = min(parts, key=lambda part: (_cost(part), -sum(workload.module == module for workload in part)))
        least.extend(group)
    return parts


def _cost(workloads: Sequence[Workload]) -> float:
    return sum(_cost_of(workload) for workload in workloads)


def _cost_of(workload: Workload) -> float:
    cost = 1.0
    if workload.compile is not None:
        cost = _MAX_AUTOTUNE if workload.compile.get("mode") == "max-autotune" else _COMPILED
    return cost * (_TRAIN if workload.pass_ == "train" else 1.0)
