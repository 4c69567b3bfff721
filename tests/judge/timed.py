"""Times of which a test says by how much they moved."""

from __future__ import annotations

from collections.abc import Sequence

QUIET = (199.9, 200.0, 200.0, 200.1)
STEADY = (200.0, 200.0, 200.0, 200.0)


def times(factor: float, replicates: Sequence[float] = QUIET) -> tuple[float, ...]:
    return tuple(factor * value for value in replicates)


def steady(factor: float) -> tuple[float, ...]:
    return times(factor, STEADY)
