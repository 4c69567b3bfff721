"""What a review says: groups of workloads, each with its evidence and the reasons against accepting it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from .ancestry import Ancestor, Recorded
from .baseline import Baseline
from .fingerprint import FieldChange
from .update import Action, PlannedChange, TimeChange

__all__ = ["Candidate", "Group", "Review", "Reviewed", "SinceFirst"]


class Group(str, Enum):
    """What became of a workload. The value is its name on the command line."""

    SAME_SPEED = "same-speed"
    SPEED = "speed"
    CONFIGURATION = "configuration"
    KERNELS = "kernels"
    NEW = "new"
    VANISHED = "vanished"
    NOT_MEASURED = "not-measured"

    @property
    def heading(self) -> str:
        return _HEADINGS[self]


_HEADINGS = {
    Group.SAME_SPEED: "same kernels, same speed",
    Group.SPEED: "same kernels, slower or faster",
    Group.CONFIGURATION: "same kernels, other launch configuration",
    Group.KERNELS: "other kernels, or other counts",
    Group.NEW: "new",
    Group.VANISHED: "vanished",
    Group.NOT_MEASURED: "not measured",
}


@dataclass(frozen=True)
class Candidate:
    """A workload of saved results, as accepting it would store it.

    Attributes:
        observed: None: it was not measured, and `why_not` says why.
        others: what other runs measured of it.
        doubts: why it is not accepted unless that is forced.
        never: why it cannot be accepted at all.
    """

    workload: str
    suite: str
    observed: Baseline | None
    others: tuple[Baseline, ...] = ()
    doubts: tuple[str, ...] = ()
    never: tuple[str, ...] = ()
    why_not: str = ""


@dataclass(frozen=True)
class SinceFirst:
    """What moved since the first baseline of the line: small steps, each accepted, add up here."""

    first: Ancestor
    accepted: int  # baselines since then, the stored one included
    times: tuple[TimeChange, ...]
    launches: int  # now
    other_configuration: bool  # kernels or launch configurations are not those of the first


@dataclass(frozen=True)
class Reviewed:
    """One workload. `change`: what accepting it does to its file; None: there is nothing to accept."""

    workload: str
    group: Group
    change: PlannedChange | None
    times: tuple[TimeChange, ...] = ()
    evidence: tuple[str, ...] = ()
    since_first: SinceFirst | None = None
    doubts: tuple[str, ...] = ()
    never: tuple[str, ...] = ()

    @property
    def waits(self) -> bool:
        """Whether accepting it would change a file."""
        return self.change is not None and self.change.action is not Action.KEEP

    @property
    def refused(self) -> tuple[str, ...]:
        return (*self.never, *self.doubts)


@dataclass(frozen=True)
class Review:
    """All of one kind of machine.

    Attributes:
        recorded: how the baselines came about, without their conditions, each with the number of workloads that it holds
            for. None: written in schema 2.
        environment: what moved between the baselines and the run, likewise.
    """

    device: str
    recorded: tuple[tuple[Recorded | None, int], ...]
    environment: tuple[tuple[FieldChange, int], ...]
    reviewed: tuple[Reviewed, ...]

    def of(self, group: Group) -> list[Reviewed]:
        return [each for each in self.reviewed if each.group is group]

    @property
    def settled(self) -> bool:
        """Whether nobody has to look at it: whatever was measured ran the same kernels at the same speed."""
        quiet = (Group.SAME_SPEED, Group.NOT_MEASURED)
        return all(each.group in quiet and not each.refused for each in self.reviewed)
