"""What no profiler writes, and what would take the square of its size to look at."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush

from .model import STEP_PREFIX

__all__ = ["MOST_STEPS_AT_ONCE", "too_many_steps_at"]

# Steps follow one another. Each holds what happened in it: if all were open at once, the square of the trace.
MOST_STEPS_AT_ONCE = 64


def too_many_steps_at(annotations: Iterable[tuple[str, float, float]]) -> float | None:
    """When more steps than that are open at once; None if never. (name, start, end), in order of start."""
    ends: list[float] = []  # a heap
    for name, start, end in annotations:
        if name.startswith(STEP_PREFIX):
            while ends and ends[0] <= start:
                heappop(ends)
            heappush(ends, end)
            if len(ends) > MOST_STEPS_AT_ONCE:
                return start
    return None
