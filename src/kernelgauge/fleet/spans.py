"""When results say they were measured, and what is odd about it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta, timezone

from ..results import Results, moment

__all__ = ["named", "overlaps", "seconds_of_all", "start", "strange_times"]

# A start is told in whole seconds.
_RESOLUTION = timedelta(seconds=1)


def start(results: Results) -> datetime:
    """In UTC; the earliest time there is if it cannot be read."""
    return moment(results.started_at) or datetime.min.replace(tzinfo=timezone.utc)


def _end(results: Results, begun: datetime) -> datetime:
    try:
        return begun + timedelta(seconds=max(0.0, results.seconds))
    except OverflowError:
        return begun


def _timed(parts: Sequence[Results]) -> list[tuple[Results, datetime]]:
    return [(part, begun) for part in parts if (begun := moment(part.started_at)) is not None]


def seconds_of_all(parts: Sequence[Results]) -> float:
    """From the earliest start to the latest end; without any start, the longest."""
    timed = _timed(parts)
    if not timed:
        return max(part.seconds for part in parts)
    return (max(_end(part, begun) for part, begun in timed) - min(begun for _, begun in timed)).total_seconds()


def strange_times(results: Results, now: datetime | None) -> Iterator[str]:
    """`now`: aware of its time zone; None: the future is not looked at."""
    begun = moment(results.started_at)
    if begun is None:
        yield f"{named(results)}: that is no time, so it counts as the earliest"
    if results.seconds < 0:
        yield f"{named(results)} lasted {results.seconds:g} s: a clock ran backwards"
    if begun is not None and now is not None and begun > now + _RESOLUTION:
        yield f"{named(results)}: that is in the future, so a clock is wrong"


def overlaps(parts: Sequence[Results]) -> Iterator[str]:
    """Parts that used one GPU at the same time: each was the other's neighbour."""
    timed = _timed([part for part in parts if part.gpu is not None])
    for number, (part, begun) in enumerate(timed):
        for other, other_begun in timed[number + 1 :]:
            first, second = sorted(((begun, part), (other_begun, other)), key=lambda each: each[0])
            if part.gpu == other.gpu and _end(first[1], first[0]) - second[0] > _RESOLUTION:
                yield f"{named(first[1])} and {named(second[1])} used GPU {part.gpu} at the same time"


def named(results: Results) -> str:
    return f"the results that started at {results.started_at or '(not known)'}"
