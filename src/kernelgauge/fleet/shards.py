"""Which shards of a suite results say they are, by the arguments of their runs of pytest: ``--perf-shard 2/4``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from ..shares import Share

__all__ = ["joined_arguments", "missing_shards"]

_OPTION = "--perf-shard"
_MOST_MACHINES = 1_000_000  # a larger number in somebody's file is no number of shards
_MOST_SHOWN = 20


def joined_arguments(parts: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Those of the first; of shards, with the option for each, and without it where they are all there."""
    rest, _ = _split(parts[0])
    asked = [_split(arguments)[1] for arguments in parts]
    shards = sorted({share for some in asked for share in some}, key=lambda share: (share.count, share.index))
    if not all(asked) or not _missing_of(shards)[0]:  # one run was of the whole suite, or they are together
        return tuple(rest)
    return (*rest, *(text for share in shards for text in (_OPTION, str(share))))


def missing_shards(parts: Sequence[tuple[str, ...]]) -> tuple[list[Share], int]:
    """(the first of those that no part's arguments name, how many more), of as many as they say there are."""
    return _missing_of(share for arguments in parts for share in _split(arguments)[1])


def _missing_of(shards: Iterable[Share]) -> tuple[list[Share], int]:
    """Nothing counts to a number that somebody's file has."""
    known: dict[int, set[int]] = {}
    for share in shards:
        known.setdefault(share.count, set()).add(share.index)
    missing = (
        Share(index, count)
        for count, indices in sorted(known.items())
        for index in (each for each in range(1, count + 1) if each not in indices)
    )
    first = list(islice(missing, _MOST_SHOWN))
    return first, sum(count - len(indices) for count, indices in known.items()) - len(first)


def _split(arguments: Sequence[str]) -> tuple[list[str], list[Share]]:
    """(all other arguments, the shards). What is no share is left where it is."""
    rest: list[str] = []
    shards: list[Share] = []
    left: Iterator[str] = iter(arguments)
    for argument in left:
        option, equals, value = argument.partition("=")
        if option != _OPTION:
            rest.append(argument)
            continue
        text = value if equals else next(left, "")
        share = _share(text)
        if share is not None:
            shards.append(share)
        else:
            rest += [argument] if equals else [argument, text]
    return rest, shards


def _share(text: str) -> Share | None:
    try:
        share = Share.parse(text)
    except ValueError:
        return None
    return share if share.count <= _MOST_MACHINES else None
