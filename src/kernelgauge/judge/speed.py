"""The speeds of one GPU: its clock moves by a step at times and stays there for a minute, and NVML does not show it."""

from __future__ import annotations

import math
from collections.abc import Sequence

__all__ = ["at_the_speed_of", "speeds"]

# Of the control GEMM, as a logarithm. Processes at one speed spread by 0.1 to 0.15 %; the step of an H200 was 0.67 %.
_NEXT = 0.003


def speeds(gemm_us: Sequence[float | None]) -> list[int]:
    """A number for each process on one GPU, the same for those whose control GEMM says that they had one speed.

    Neighbours in order of their time that are nearer than a step belong together (single linkage; Sneath, "The application
    of computers to taxonomy", 1957): where the speed drifted instead, nothing is told apart. Nor is it where one is not known.
    """
    known = [each for each in gemm_us if each is not None]
    if len(known) < len(gemm_us):
        return [0] * len(gemm_us)
    numbers: dict[float, int] = {}
    before: float | None = None
    number = 0
    for each in sorted(known):
        if before is not None and math.log(each / before) > _NEXT:
            number += 1
        numbers[each] = number
        before = each
    return [numbers[each] for each in known]


def at_the_speed_of(own: float | None, gemm_us: Sequence[float | None]) -> list[int]:
    """Places of the processes on one GPU that had the speed of a run on it; of all of them if none had."""
    first, *others = speeds([own, *gemm_us])
    return [place for place, speed in enumerate(others) if speed == first] or list(range(len(others)))
