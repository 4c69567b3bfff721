"""The forms of a trace, by a pattern that the first block of each has."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import TypeAlias

from . import nsys
from .model import Trace
from .reader import parse_blocks

Parse: TypeAlias = Callable[[Iterable[bytes], str], Trace]  # of blocks, and where they are
# Any other file is parsed as JSON of torch.profiler.
SOURCES: Mapping[re.Pattern[bytes], Parse] = {
    nsys.HEADER: nsys.parse_csv,
}


def read_blocks(blocks: Iterable[bytes], where: str) -> Trace:
    """Parse a trace of any form, in blocks, best of `BLOCK_BYTES` each. Raises `TraceError`."""
    first = next(blocks := iter(blocks), b"")
    parse = next((parse for begins, parse in SOURCES.items() if begins.search(first)), parse_blocks)
    return parse(chain([first], blocks), where)
