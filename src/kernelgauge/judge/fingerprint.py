"""Which machines can be compared, and what moved between two of them."""

from __future__ import annotations

from dataclasses import dataclass

from ..run import Fingerprint

__all__ = ["SOFTWARE_FIELDS", "Comparison", "FieldChange", "compare"]

# Another device, or the same one cut or capped differently: its times answer another question (INCOMPARABLE).
_FOREIGN_FIELDS = ("device", "arch", "sm_count", "power_limit_watts", "mig")
# Software: times stay comparable, and the change is named in every verdict.
_ADDED_FIELDS = (
    "cudnn",
    "fp32_matmul",
    "cudnn_tf32",
    "deterministic",
)  # unknown in a baseline from before them: then no change
SOFTWARE_FIELDS = ("driver", "cuda", "torch", "triton", "liger_kernel", "python", *_ADDED_FIELDS)
# `memory_bytes` is in neither: it moves with the driver by a few MiB on one and the same device.


@dataclass(frozen=True)
class FieldChange:
    """One field of the fingerprint that differs."""

    field: str
    before: object
    after: object

    def __str__(self) -> str:
        return f"{self.field} {_shown(self.before)} -> {_shown(self.after)}"


@dataclass(frozen=True)
class Comparison:
    """How the machine of a run differs from that of its baseline.

    Attributes:
        foreign: what makes the baseline one of another kind of machine: nothing is compared.
        moved: what makes it an older one: all is compared, and every verdict names this.
    """

    foreign: tuple[FieldChange, ...]
    moved: tuple[FieldChange, ...]

    @property
    def comparable(self) -> bool:
        return not self.foreign

    @property
    def identical(self) -> bool:
        """The same kind of machine with the same software."""
        return not self.foreign and not self.moved

    def __str__(self) -> str:
        changes = (*self.foreign, *self.moved)
        return ", ".join(map(str, changes)) if changes else "identical"


def compare(before: Fingerprint, after: Fingerprint) -> Comparison:
    """Compare the fingerprint of a baseline with that of a run."""
    return Comparison(_changes(before, after, _FOREIGN_FIELDS), _changes(before, after, SOFTWARE_FIELDS))


def _changes(before: Fingerprint, after: Fingerprint, fields: tuple[str, ...]) -> tuple[FieldChange, ...]:
    pairs = [(field, getattr(before, field), getattr(after, field)) for field in fields]
    return tuple(
        FieldChange(field, old, new)
        for field, old, new in pairs
        if old != new and not (old is None and field in _ADDED_FIELDS)
    )


def _shown(value: object) -> str:
    return "(none)" if value is None else str(value)
