"""Which shards of a suite results say they are, by the arguments of their runs of pytest: ``--perf-shard 2/4``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..shares import Share

__all__ = ["joined_arguments", "missing_shards"]

_OPTION = "--perf-shard"
_MOST = 10_000  # shards: a number in somebody's file is no reason to count to it


def joined_arguments(parts: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Those of the first; of shards, with the option for each, and without it where they are all there."""
    rest, _ = _split(parts[0])
    asked = [_split(arguments)[1] for arguments in parts]
    shards = sorted({share for some in asked for share in some}, key=lambda share: (share.count, share.index))
    if not all(asked) or not _missing(shards):  # one run was of the whole suite, or they are together
        return tuple(rest)
    return (*rest, *(text for share in shards for text in (_OPTION, str(share))))


def missing_shards(parts: Sequence[tuple[str, ...]]) -> list[Share]:
    """Those that no part's arguments name, of as many as they say there are."""
    return _missing([share for arguments in parts for share in _split(arguments)[1]])


def _missing(shards: Sequence[Share]) -> list[Share]:
    counts = sorted({share.count for share in shards if share.count <= _MOST})
    return [
        missing for count in counts for index in range(1, count + 1) if (missing := Share(index, count)) not in shards
    ]


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
        try:
            shards.append(Share.parse(text))
        except ValueError:
            rest += [argument] if equals else [argument, text]
    return rest, shards
