"""Processes that differ by so much, and the error that is expected of a comparison with them."""

from __future__ import annotations

import math
from typing import Any

from kernelgauge.judge import Seen
from kernelgauge.judge.noise import sources
from kernelgauge.judge.stats import standard_error
from tests.builders import policy, seen


def error(before: list[Seen], after: Seen | None = None, **of_policy: Any) -> float:
    return standard_error(sources(before, after or seen(), policy(**of_policy)))


def processes(count: int, *, spread: float = 0.0, **changes: Any) -> list[Seen]:
    """Processes whose means alternate about 200 us, `spread` apart from it."""
    return [seen(200.0 * math.exp(spread * (-1) ** number), **changes) for number in range(count)]
