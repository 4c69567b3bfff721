"""What verdicts are founded on, as data. `kernelgauge.report.words` says it: a class here has one entry there."""

from __future__ import annotations

from enum import Enum
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from ..run import SourceLine

Counted = tuple[tuple[str, int], ...]  # names, and how often each occurs


class Evidence(msgspec.Struct, frozen=True, omit_defaults=True, tag=True):
    """A fact. Times are in microseconds, changes are fractions."""


class Conclusion(Evidence, frozen=True):
    """What a verdict says first."""


class Reason(Evidence, frozen=True):
    """What stands below it."""


class Doubt(Reason, frozen=True):
    """Why a time is not judged, or is judged all the same."""


class Change(msgspec.Struct, frozen=True, omit_defaults=True, tag=True):
    """What happened in one place of the code."""


class Move(msgspec.Struct, frozen=True):
    """A field of the machine or its software, before and after. None where it is absent."""

    name: str
    before: str | None
    after: str | None

    def __str__(self) -> str:
        """Return ``driver 580.1 -> 580.2``."""
        return f"{self.name} {self.before or '(none)'} -> {self.after or '(none)'}"


class RelativeChange(msgspec.Struct, frozen=True):
    """A change against the baseline (0.05 is 5 % slower), with a confidence interval.

    `low` and `high` are None where nothing is known about the noise. `sensitivity`: a slowdown that fails in 95 of 100
    runs; None: not known.
    """

    estimate: float
    low: float | None
    high: float | None
    confidence: float
    sensitivity: float | None = None


# -- structure ----------------------------------------------------------------------------------------------------------


class StructureCompared(Conclusion, frozen=True):
    """What differs: "kernels", their "configurations", or none of both; `placed`: "shapes", "dtypes", "streams"."""

    kernels: str = ""
    placed: tuple[str, ...] = ()


class CountMoved(Reason, frozen=True):
    """A count of `Counts`. `is_judged`: not where another version of torch may count otherwise."""

    field: str
    before: int | None
    after: int | None
    is_judged: bool = True


class KernelMoved(Reason, frozen=True):
    """A kernel that is gone (`after` is None), new (`before` is None), or launched in another configuration."""

    before: str | None
    after: str | None
    configuration: str = ""


class DeclaredCompared(Conclusion, frozen=True):
    """A workload beside what it declares."""


class Mismatch(Reason, frozen=True):
    """A list of launches, or a count, that is not as declared.

    Attributes:
        source: where the expectation was seen.
        launches: the name or kind of each launch, and the expected one; None if it is as declared, "" if none was expected.
    """

    what: str
    got: int
    expected: int
    source: str = ""
    launches: tuple[tuple[str, str | None], ...] = ()


# -- what changed, and where --------------------------------------------------------------------------------------------


class OtherKernels(Change, frozen=True):
    """Launches that took the place of others.

    Attributes:
        what: a value of `What`; "replaced" where several differ.
        before, after: names of kernels.
        author: who made the new ones: "inductor", "liger", ...
        kind: of all that were there; empty if they are of several kinds.
        layers, places: in how many they are.
        dtypes: of each side; sizes: of the tensors that differ; ops: the new ones, which launched these kernels.
    """

    what: str
    before: Counted
    after: Counted
    author: str = ""
    kind: str = ""
    layers: int = 0
    places: int = 1
    dtypes: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    sizes: tuple[tuple[str, str], ...] = ()
    ops: tuple[str, ...] = ()


class OtherPlacement(Change, frozen=True):
    """The same kernels on other tensors, or on another stream. `other_tensors`: more or fewer ones, alike in dtype and size."""

    kernels: Counted
    dtypes: tuple[tuple[str, str], ...] = ()
    sizes: tuple[tuple[str, str], ...] = ()
    stream: tuple[int, int] | None = None
    other_tensors: bool = False


class OtherSpeed(Change, frozen=True):  # the same kernels in another time
    kernels: Counted
    before_us: float
    after_us: float


class OtherIdentity(Change, frozen=True):
    """The same kernel, launched or compiled otherwise. `source`: beginnings of the digests of its source."""

    kernel: str
    configuration: str = ""
    source: tuple[str, str] | None = None
    is_autotuned: bool = False
    is_dynamic: bool = False


class CompilerEvent(Change, frozen=True):  # A graph break or a recompile. `reason`: as Dynamo has it
    event: str
    reason: str
    times: int = 1


class MemoryGrowth(Change, frozen=True):  # what each call leaves in memory, beyond the baseline
    bytes: int


class CompiledOps(Change, frozen=True):  # how many ops torch.compile was given
    before: int | None
    after: int | None


class OtherOps(Change, frozen=True):  # ops of the dispatcher that are new, and that are gone
    new: Counted
    gone: Counted = ()


class OtherDtype(Change, frozen=True):  # the dtype that most kernels of a trace work in
    before: str
    after: str


class Place(msgspec.Struct, frozen=True):
    """A line of code, the module that runs it, and in which passes. `line.inner`: the library's line that owns the kernel."""

    line: SourceLine
    module: str = ""
    passes: tuple[str, ...] = ()

    @property
    def deepest(self) -> SourceLine:
        return self.line.inner or self.line


if TYPE_CHECKING:
    AnyChange = Change
else:
    AnyChange = reduce(or_, Change.__subclasses__())


class Cause(Reason, frozen=True):
    """What changed in one place.

    Attributes:
        change: None: nothing but what the host does there.
        waits, copies: synchronising calls and copies that are new there.
        had_kernels: whether the place had kernels before.
        places: its lines of code, in order of launch; `more_places`: lines that are not among them.
        dearest: the number of the most expensive one.
        delta_us: what it adds to a call; None: not known, or not measured well enough to be said.
        weight_us: by which causes are ordered: the size of `delta_us`, also where that is not said.
        explains: whether other causes follow from it, as those of a recompile do.
    """

    change: AnyChange | None = None
    waits: Counted = ()
    copies: Counted = ()
    had_kernels: bool = False
    places: tuple[Place, ...] = ()
    more_places: int = 0
    dearest: Annotated[int, msgspec.Meta(ge=0)] = 0
    delta_us: float | None = None
    weight_us: float = 0.0
    explains: bool = False

    @property
    def identity(self) -> Cause:
        """The cause without what it costs and where it is: other timers see the same one at other costs."""
        return Cause(self.change, self.waits, self.copies, self.had_kernels)


class Rest(Reason, frozen=True):
    """The kernels that did not change, and how their time did. `is_unchanged`: within the spread of one kernel."""

    kernels: int
    share: float
    delta_us: float
    is_unchanged: bool


# -- times --------------------------------------------------------------------------------------------------------------


class Unclear(Doubt, frozen=True):  # why a time cannot be judged
    why: Literal["unknown machine", "scattered replicates", "one replicate", "both possible", "unknown choice"]


class OtherHostSpeed(Doubt, frozen=True):  # the reference on the host takes another time than beside the baseline
    before_us: Annotated[float, msgspec.Meta(gt=0)]
    after_us: float


class NoHostReference(Doubt, frozen=True):  # nobody measured how fast the host was
    side: Literal["run", "baseline"]


class Noise(Doubt, frozen=True):
    """The noise that hides a slowdown of the requested size: of "replicates", of "processes", or of the "gpu" itself."""

    of: Literal["replicates", "processes", "gpu"]
    sensitivity: float


class PartExceedsCall(Doubt, frozen=True):  # A time that is longer than the call that it is a part of
    part_us: float
    call_us: float


class SlowReference(Doubt, frozen=True):
    """A reference beside a time that took many times as long as elsewhere on that host."""

    us: float
    fastest_us: float


if TYPE_CHECKING:
    AnyDoubt = Doubt
else:
    AnyDoubt = reduce(or_, Doubt.__subclasses__())


class TimeCompared(Conclusion, frozen=True):
    """A time beside that of the baseline. `is_other_choice`: the autotuner's choice is in no baseline."""

    at_host_speed: bool = False
    is_other_choice: bool = False
    doubt: AnyDoubt | None = None


class TimeDoubted(Conclusion, frozen=True):
    """A time that is not compared: the autotuner's choice is new, or the stored time is impossible."""

    doubt: AnyDoubt


class RatioCompared(Conclusion, frozen=True):
    """A time beside that of another variant, of which it should take the fraction `by` less."""

    label: str
    other: str
    by: float
    us: float
    other_us: float
    change: RelativeChange


class Choice(Reason, frozen=True):
    """The autotuner's choice, which no baseline has, against the fastest one that is known."""

    cost_us: float
    kernels: tuple[KernelMoved, ...]


class DispatcherOps(Reason, frozen=True):
    """How many ops the dispatcher had. Equal numbers: the host took another time for them."""

    before: int
    after: int
    is_slower: bool = False


class PartOfLatency(Reason, frozen=True):
    """A part of a latency: the "cpu" time of its ops, its "kernels", or the time "without" them.

    `transfers_us`: of the time without kernels, where it is a good part. `is_launch_bound`: it is longer than the kernels.
    """

    part: Literal["cpu", "kernels", "without"]
    before_us: float
    after_us: float
    transfers_us: float = 0.0
    is_launch_bound: bool = False


class Machine(Reason, frozen=True):
    """How the reference kernels moved, which no change of the code can touch. None: the baseline does not know this GPU."""

    moves: tuple[tuple[str, float], ...] | None
    is_own: bool = False


class Neighbours(Reason, frozen=True):  # other workers of the run that measured on this host
    workers: int


class NotImproved(Reason, frozen=True):  # why better is not called IMPROVED: another time is not judged, or not as good
    subject: str
    status: str


class ProcessesDiffer(Reason, frozen=True):  # in how many processes of a side structure is another
    other: int
    processes: int
    side: str


# -- what there is to compare, and what to do -----------------------------------------------------------------------------


class NumericsCompared(Conclusion, frozen=True):
    """A result beside its reference. `worst`: of the tensors that are within their bounds; `unjudged`: how many are not judged."""

    reference: str
    worst: str = ""
    unjudged: int = 0


class NotCompared(Conclusion, frozen=True):  # the baseline is of another kind of machine
    moves: tuple[Move, ...]


class NotMeasured(Conclusion, frozen=True):  # A time is missing. `side`: of which variant or revision
    label: str
    why: str = ""
    side: str = ""


class NoBaseline(Conclusion, frozen=True):  # no baseline. `is_partial`: the baseline lacks this time
    is_partial: bool = False


class NothingToCompare(Conclusion, frozen=True):  # A side of two has no run, or its processes differ. `why`: in what
    side: str
    how: Literal["missing", "failed", "failed in some", "differ"]
    why: str = ""


class Failed(Conclusion, frozen=True):
    """An error, in its own words. `so`: what follows: "not judged", "GPU time not compared", "GPU time not confirmed"."""

    what: str
    so: str = ""


class Detail(Reason, frozen=True):
    """A line of an error, the error of a tensor, a path, or a number to repeat something with."""

    label: str
    text: str


class BaselineFile(Reason, frozen=True):  # where the baseline is, and what has moved since
    path: str
    moves: tuple[Move, ...] = ()


class Step(str, Enum):
    """What to do next."""

    COMMAND = "command"  # another one: it is given
    ACCEPT = "accept"
    RECORD = "record"
    REPLACE = "replace"  # the stored time
    REPLICATES = "replicates"  # measure more of them
    CALIBRATE = "calibrate"
    SAME_LAUNCHES = "same-launches"  # make each call launch the same
    LOOK_AT_GPU = "look-at-gpu"  # is it throttled, or shared?
    AGAIN = "again"  # on a quiet machine
    MEND = "mend"  # or declare what fails
    TOLERATE = "tolerate"  # a larger error


class Next(Reason, frozen=True):  # what to do about it. `command`: for that; `measure`: a command to run before it
    step: Step
    command: str = ""
    measure: str = ""


# -- a review -----------------------------------------------------------------------------------------------------------


class MeasuredTime(Evidence, frozen=True):  # A time that nothing is stored of
    label: str
    us: float


class FileNote(Evidence, frozen=True):
    """What becomes of a file of the baselines. `before`, `after`: the suites, or how many processes or launches it has."""

    what: Literal["accepted already", "unchanged", "undeclared", "suite", "fewer processes", "processes", "launches"]
    before: str = ""
    after: str = ""


class RunDoubt(Evidence, frozen=True):
    """What speaks against storing a run. `text`, `other`: of which test or time, why, or when."""

    what: Literal[
        "cut short",
        "test failed",
        "not checked",
        "incomplete",
        "not measured",
        "unmeasured",
        "older",
        "other source",
        "error",
    ]
    text: str = ""
    other: str = ""


class ImpossibleTime(Evidence, frozen=True):  # A time that cannot be
    label: str
    why: Doubt


class DisturbedHost(Evidence, frozen=True):  # the host was many times as slow as beside the baseline
    before_us: float
    after_us: float


if TYPE_CHECKING:
    AnyConclusion = Conclusion
    AnyReason = Reason
else:
    AnyConclusion = reduce(or_, Conclusion.__subclasses__())
    AnyReason = reduce(or_, [each for each in (*Reason.__subclasses__(), *Doubt.__subclasses__()) if each is not Doubt])
