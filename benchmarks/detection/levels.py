"""The workloads that are slowed down, and by how much. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

__all__ = ["BEHIND_A_SPIN", "LEVELS", "NONE", "SETTLE_S", "WORKLOAD_IDS", "Level", "peer_level"]

# A pause before each measurement of any method, counted for none. A peer's hot loop leaves the GPU at its power cap,
# slower for some tenths of a second.
SETTLE_S = 0.25

Kind = Literal["none", "device", "host"]


@dataclass(frozen=True, order=True)
class Level:
    """An injected slowdown, in percent of the unslowed workload's own GPU time or dispatch time."""

    kind: Kind
    percent: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in ("none", "device", "host") or (self.kind == "none") != (self.percent == 0):
            raise ValueError(f"a level is none, or device or host with a percentage: got {self.kind} {self.percent}")

    def __str__(self) -> str:
        return "none" if self.kind == "none" else f"{self.kind}+{self.percent:g}%"

    @classmethod
    def parse(cls, text: str) -> Level:
        """Parse ``none``, ``device+0.5%`` or ``host+10%``. Raise ValueError for anything else."""
        if text == "none":
            return NONE
        kind, plus, percent = text.partition("+")
        if kind not in ("device", "host") or not plus or not percent.endswith("%"):
            raise ValueError(f"unknown level {text!r}: expected none, device+0.5% or host+10%")
        return cls(kind, float(percent[:-1]))  # type: ignore[arg-type]  # one of the two


NONE = Level("none")

_LINEAR = "linear-eager-bf16-1024x32x64"
_MLP_LEVELS = [Level("device", 0.5), Level("device", 1), Level("device", 2), Level("host", 10)]

# Three MLPs of 200 us and more, and a linear of 3 us. None of them needs a package beside torch.
LEVELS: dict[str, list[Level]] = {
    **{f"mlp-{variant}-64x128x768x3072": _MLP_LEVELS for variant in ("eager-bf16", "compiled-bf16", "eager-fp16")},
    _LINEAR: [Level("device", 3), Level("host", 10)],
}
WORKLOAD_IDS = tuple(LEVELS)

# 3 % of 3 us are less than the shortest kernel takes: here the unslowed workload launches a spinning kernel too.
BEHIND_A_SPIN = frozenset({_LINEAR})


def peer_level(levels: Sequence[Level], slot: int) -> Level:
    """Return the one level that the peers measure in this slot; over consecutive slots each comes equally often."""
    return levels[slot % len(levels)]
