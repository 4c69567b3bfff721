"""The `type` of an argument, for argparse: of pytest's options and of the commands."""

from __future__ import annotations

import argparse
from collections.abc import Callable

__all__ = ["at_least"]


def at_least(least: int, why: str = "") -> Callable[[str], int]:
    """A whole number; `why` there is a least one."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"a whole number, got {text!r}") from None
        if value < least:
            raise argparse.ArgumentTypeError(f"at least {least}{why and f': {why}'}, got {value}")
        return value

    return parse
