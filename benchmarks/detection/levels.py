"""Which workloads are slowed down, by how much, and which process measures which levels. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

__all__ = ["BARS", "LEVELS", "NONE", "SETTLE_S", "WORKLOAD_IDS", "Level", "chosen_levels", "rotation", "rotation_slot"]

# Before each measurement, whoever's, and in nobody's time: what a peer's hot loop leaves behind (a GPU at its power cap,
# 5 % slower for half a second) would else be in the next one's.
SETTLE_S = 0.5

Kind = Literal["none", "device", "host"]


@dataclass(frozen=True, order=True)
class Level:
    """An injected slowdown, in percent of the unslowed twin's own device or dispatch time."""

    kind: Kind
    percent: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in ("none", "device", "host") or (self.kind == "none") != (self.percent == 0):
            raise ValueError(f"a level is none, or device or host with a percentage: got {self.kind} {self.percent}")

    def __str__(self) -> str:
        return "none" if self.kind == "none" else f"{self.kind}+{self.percent:g}%"

    @classmethod
    def parse(cls, text: str) -> Level:
        """The inverse of `str`: ``none``, ``device+0.5%``, ``host+10%``."""
        if text == "none":
            return NONE
        kind, plus, percent = text.partition("+")
        if kind not in ("device", "host") or not plus or not percent.endswith("%"):
            raise ValueError(f"unknown level {text!r}: expected none, device+0.5% or host+10%")
        return cls(kind, float(percent[:-1]))  # type: ignore[arg-type]  # one of the two


NONE = Level("none")

_HOST = [Level("host", percent) for percent in (5, 10, 20)]
_LONG = [*(Level("device", percent) for percent in (0.25, 0.5, 1, 2, 5)), *_HOST]
_SHORT = [*(Level("device", percent) for percent in (1, 3, 5, 10)), *_HOST]

# Five of 200 us and more, and one of 3 us, whose levels start where a timestamp's own resolution ends.
LEVELS: dict[str, list[Level]] = {
    **{
        f"mlp-{variant}-64x128x768x3072": _LONG
        for variant in ("eager-bf16", "compiled-bf16", "liger-bf16", "eager-fp16", "liger-fp16")
    },
    "linear-eager-bf16-1024x32x64": _SHORT,
}
WORKLOAD_IDS = tuple(LEVELS)

# What kernelgauge promises to see: measured by every process, where the others take turns.
BARS = (Level("device", 0.5), Level("device", 3), Level("host", 10))


def rotation(levels: Sequence[Level], slot: int, count: int) -> list[Level]:
    """`count` of the levels, far apart; over consecutive slots each comes equally often, in each place."""
    count = min(count, len(levels))
    return [levels[(slot + place * len(levels) // count) % len(levels)] for place in range(count)]


def rotation_slot(process: int, gpus: int) -> int:
    """The slot of a process: each GPU goes through all levels in as many processes, the GPUs of one round have others.

    The process's own number would give a GPU the same levels again and again wherever the number of GPUs is a
    multiple of the rotation's length.
    """
    return process // gpus + process % gpus


def chosen_levels(workload: str, slot: int, count: int) -> list[Level]:
    """What one process measures of a workload: the unslowed twin, its share of the levels, and those of `BARS`."""
    return list(
        dict.fromkeys(
            [NONE, *rotation(LEVELS[workload], slot, count), *(bar for bar in BARS if bar in LEVELS[workload])]
        )
    )
