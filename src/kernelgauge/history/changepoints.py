"""Find where the level of a series of times changed or drifted. Advisory: no verdict comes from it.

Optimal partitioning (Jackson et al., "An algorithm for optimal partitioning of data on an interval", 2005) of logarithms
into segments, each a constant level or a straight line: a step of 1 % is the same at 3 and at 300 us. All series are cut
together: numpy cuts a year of 400 series in a third of a second.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Values: TypeAlias = "NDArray[np.float64]"

__all__ = ["LEAST_DRIFT", "LEAST_NIGHTS", "Segment", "segment_series"]

LEAST_NIGHTS = 3  # of one level: one or two bad nights are no new level
LEAST_DRIFT = 2 * LEAST_NIGHTS  # of one line: as many have a step
# A neighbourhood of five nights, so that one or two outliers are left out and a level of three is kept (Hampel's
# identifier: Davies and Gather, "The identification of multiple outliers", 1993).
_REACH = 2
_OUTLIER = 4.0  # standard deviations
# Of logarithms: how processes on one H200 differ beyond their replicates (docs/measuring.md). Fewer nights than it takes to
# know the noise may agree by chance; no series is steadier than this.
_LEAST_NOISE = 0.0005
# A change must gain this many times the noise's variance for each unit of log(n) (BIC has 2), and the noise of a short
# series, known only roughly, is taken larger by `_SHORT / n`: together at most one series of noise alone in a hundred has
# a false change, whether it has 6 nights or 365 (tests/history/test_changepoints.py). A slope costs as much as a change.
_PENALTY = 4.0
_SHORT = 15.0


@dataclass(frozen=True)
class Segment:
    """Nights of one level or of one line.

    Attributes:
        start, end: first night, and the one after the last.
        first, last: levels of the first and the last night as logarithms; equal unless the segment drifts.
        jumps: whether it starts with a step. A drift mostly begins and ends without one.
    """

    start: int
    end: int
    first: float
    last: float
    jumps: bool = False

    @property
    def drifts(self) -> bool:
        return self.first != self.last


def segment_series(series: Sequence[Values]) -> list[list[Segment]]:
    """Cut each series, logarithms in order of time, into segments. A series of too few nights is one segment."""
    noises = [_noise(each) for each in series]
    inliers = [_inliers(each, noise) for each, noise in zip(series, noises, strict=True)]
    penalties = [_PENALTY * np.log(max(2, len(each))) * (1 + _SHORT / max(1, len(each))) ** 2 for each in series]
    scaled = [(each[kept] - np.median(each)) / noise for each, kept, noise in zip(series, inliers, noises, strict=True)]
    cuts = _cut(scaled, np.asarray(penalties))
    return [list(_fit_segments(*each)) for each in zip(series, inliers, cuts, noises, strict=True)]


def _noise(values: Values) -> float:
    """Return the standard deviation from night to night. Steps and slow drifts hardly add to differences of neighbours."""
    if len(values) < 2:
        return _LEAST_NOISE
    differences = np.diff(values)
    deviation = np.median(np.abs(differences - np.median(differences)))
    return max(_LEAST_NOISE, float(1.4826 * deviation / np.sqrt(2)))


def _inliers(values: Values, noise: float) -> NDArray[np.intp]:
    """Return the indices of all nights that are near the median of the five around them.

    Outliers are left out and not replaced: the median of some good nights and two bad ones leans to the bad side.
    """
    if len(values) <= 2 * _REACH:
        return np.arange(len(values))
    medians = np.median(np.lib.stride_tricks.sliding_window_view(values, 2 * _REACH + 1), axis=1)
    kept = np.flatnonzero(np.abs(values - np.pad(medians, _REACH, mode="edge")) <= _OUTLIER * noise)
    return kept if len(kept) else np.arange(len(values))


def _cut(series: Sequence[Values], penalties: Values) -> list[list[tuple[int, int, bool]]]:
    """Return the cheapest segments (start, end, whether it is a line) of each series. The series have noise 1."""
    longest = max(map(len, series), default=0)
    padded = np.zeros((longest, len(series)))
    for column, each in enumerate(series):
        padded[: len(each), column] = each
    place = np.arange(longest, dtype=np.float64)[:, None]
    nothing = np.zeros((1, len(series)))
    sums = np.concatenate([nothing, np.cumsum(padded, axis=0)])
    moments = np.concatenate([nothing, np.cumsum(place * padded, axis=0)])
    cost = np.full((longest + 1, len(series)), np.inf)  # less the sum of squares, which is the same for all cuts
    cost[0] = 0.0
    start = np.zeros((longest + 1, len(series)), dtype=np.intp)
    line = np.zeros((longest + 1, len(series)), dtype=bool)
    columns = np.arange(len(series))
    for end in range(LEAST_NIGHTS, longest + 1):
        count = np.arange(end, LEAST_NIGHTS - 1, -1, dtype=np.float64)[:, None]  # nights of each candidate
        total = sums[end] - sums[: len(count)]
        candidates = cost[: len(count)] - total**2 / count
        lines = max(0, len(count) - (LEAST_DRIFT - LEAST_NIGHTS))  # candidates that are long enough
        long = count[:lines]
        across = moments[end] - moments[:lines] - (end - (long + 1) / 2) * total[:lines]
        gain = np.maximum(across**2 * (12 / (long * (long**2 - 1))) - penalties, 0)
        candidates[:lines] -= gain
        start[end] = chosen = candidates.argmin(axis=0)
        cost[end] = candidates[chosen, columns] + penalties
        if lines:
            line[end] = (chosen < lines) & (gain[np.minimum(chosen, lines - 1), columns] > 0)
    return [_trace_back(len(each), start[:, column], line[:, column]) for column, each in enumerate(series)]


def _trace_back(end: int, start: NDArray[np.intp], line: NDArray[np.bool_]) -> list[tuple[int, int, bool]]:
    found = []
    while end > 0:
        found.append((int(start[end]), end, bool(line[end])))
        end = int(start[end])
    return found[::-1]


def _fit_segments(
    values: Values, inliers: NDArray[np.intp], cuts: Sequence[tuple[int, int, bool]], noise: float
) -> Iterator[Segment]:
    """Yield the segments of the whole series. An outlier between two levels belongs to the nearer one."""
    fits = [(inliers[begin:end], *_fit(values, inliers[begin:end], is_line)) for begin, end, is_line in cuts]
    start, jumps = 0, False
    for (nights, slope, level), following in zip_longest(fits, fits[1:]):
        stop, will_jump = len(values), False
        if following is not None:
            later, next_slope, next_level = following
            stop = int(later[0])
            while stop > nights[-1] + 1 and abs(values[stop - 1] - (next_level + next_slope * (stop - 1))) < abs(
                values[stop - 1] - (level + slope * (stop - 1))
            ):
                stop -= 1
            jump = abs(next_level + next_slope * stop - level - slope * (stop - 1))
            will_jump = not (slope or next_slope) or jump > max(abs(slope), abs(next_slope)) + _OUTLIER * noise
        yield Segment(start, stop, level + slope * start, level + slope * (stop - 1), jumps)
        start, jumps = stop, will_jump


def _fit(values: Values, nights: NDArray[np.intp], is_line: bool) -> tuple[float, float]:
    """Return the slope, and the level at night 0."""
    if not is_line:
        return 0.0, float(np.median(values[nights]))
    slope, level = np.polyfit(nights, values[nights], 1)
    return float(slope), float(level)
