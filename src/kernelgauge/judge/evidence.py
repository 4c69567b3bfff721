"""What verdicts are founded on, as data.

`kernelgauge.report.words` says it: a class here has one entry there.
"""

from __future__ import annotations

from enum import Enum
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from ..run import SourceLine

Counted = tuple[tuple[str, int], ...]  # names, and how often each occurs
Pairs = tuple[tuple[str, str], ...]  # of before and after


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
    """A change against the baseline (0.05 is 5 % slower), with a confidence interval."""

    estimate: float
    low: float | None  # as `high`, None where nothing is known about the noise
    high: float | None
    confidence: float
    sensitivity: float | None = None  # a slowdown that fails in 95 of 100 runs; None: not known
    gate: float | None = None  # a smaller change is no finding; None: not known, or none was asked


# -- structure -------------------------------------------------------------------------------------

# what the same kernels may differ in
PLACED = ("shapes", "dtypes", "strides", "arguments", "streams", "compiled code")


class StructureCompared(Conclusion, frozen=True):
    kernels: str = ""  # what differs: "kernels", their "configurations", "kinds of steps"; or none
    placed: tuple[str, ...] = ()  # of `PLACED`


class CountMoved(Reason, frozen=True):
    field: str  # of `Counts`
    before: int | None
    after: int | None
    is_judged: bool = True  # not where another version of torch may count otherwise


class KernelMoved(Reason, frozen=True):
    """A kernel that is gone (`after` is None), new (`before` is None), or launched in another
    configuration.
    """

    before: str | None
    after: str | None
    configuration: str = ""


class DeclaredCompared(Conclusion, frozen=True):
    """A workload beside what it declares."""


class ChoiceMoved(Reason, frozen=True):
    """An autotuner's choice that is another than in the baseline."""

    kernel: str
    before: str
    after: str
    is_lost: bool = False  # it could not run as before
    # of the compiler, then: the first one for a GPU that is not here. Empty: the code does not
    # offer it
    error: str = ""
    gain: float | None = None  # by the tuner's own times, as a fraction; None: not known
    # for a GPU that is not here, how many configurations compile, and of how many
    compiled: tuple[int, int] | None = None


class Mismatch(Reason, frozen=True):  # a list of launches, or a count, that is not as declared
    what: str
    got: int
    expected: int
    source: str = ""  # where the expectation was seen
    # The name or kind of each launch, and the expected one; None if it is as declared, "" if none
    # was expected.
    launches: tuple[tuple[str, str | None], ...] = ()


# -- what changed, and where -----------------------------------------------------------------------


class OtherKernels(Change, frozen=True):  # launches that took the place of others
    what: str  # a value of `ChangeKind`; "replaced" where several differ
    before: Counted
    after: Counted
    author: str = ""  # of the new ones: "inductor", "liger", ...
    kind: str = ""  # of all that were there; empty if they are of several kinds
    layers: int = 0  # in how many they are
    places: int = 1
    dtypes: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())  # of each side
    sizes: tuple[tuple[str, str], ...] = ()  # of the tensors that differ
    layouts: tuple[str, str] | None = None  # of the inputs of the same op, as `Resources.layout`
    ops: tuple[str, ...] = ()  # the new ones, which launched these kernels
    # how often some ran in all before, and now: far more often
    repeated: tuple[tuple[str, int, int], ...] = ()


# the same kernels on other tensors, or on another stream
class OtherPlacement(Change, frozen=True):
    kernels: Counted
    dtypes: tuple[tuple[str, str], ...] = ()
    sizes: tuple[tuple[str, str], ...] = ()
    stream: tuple[int, int] | None = None
    other_tensors: bool = False  # more or fewer ones, alike in dtype and size
    arguments: Pairs = ()  # also the texts that `Run.data` has of an op
    layouts: tuple[str, str] | None = None  # of their inputs, as `Resources.layout`
    # what it counts of the op: the kind, before, and after; None where it is absent
    amounts: tuple[tuple[str, int | None, int | None], ...] = ()

    def joined(self, other: OtherPlacement) -> OtherPlacement:
        """Return both as one, on the same stream."""
        return msgspec.structs.replace(
            self,
            sizes=tuple(dict.fromkeys((*self.sizes, *other.sizes))),
            other_tensors=self.other_tensors or other.other_tensors,
            arguments=tuple(dict.fromkeys((*self.arguments, *other.arguments))),
            layouts=self.layouts or other.layouts,
        )


class OtherSpeed(Change, frozen=True):  # the same kernels in another time
    kernels: Counted
    before_us: float
    after_us: float
    # of its compiled code; of machine code alone, the digests may be equal
    moves: tuple[Move, ...] = ()


class OtherCode(Change, frozen=True):  # the same kernels, compiled to spill or to a lower occupancy
    kernels: Counted
    moves: tuple[Move, ...]


class OtherIdentity(Change, frozen=True):  # the same kernel, launched or compiled otherwise
    kernel: str
    configuration: str = ""
    source: tuple[str, str] | None = None  # beginnings of the digests of its source
    is_autotuned: bool = False
    is_dynamic: bool = False
    moves: tuple[Move, ...] = ()


class CompilerEvent(Change, frozen=True):  # a graph break or a recompile
    event: str
    reason: str  # as Dynamo has it
    times: int = 1


class MemoryGrowth(Change, frozen=True):  # what each call leaves in memory, beyond the baseline
    bytes: int
    # of the process, outside of the memory that torch allocates on the device
    is_host: bool = False
    is_cyclic: bool = False  # until Python collects cycles of references
    is_held: bool = False  # it does not add up: the next call replaces it
    # whether its lines keep it; else they allocate it, or are new. None: no line is known
    is_kept: bool | None = None


# how often a call asks the device for memory, or gives it back
class AllocatorCalls(Change, frozen=True):
    before: int
    after: int
    ops: Counted  # ``aten::empty: cudaMalloc``


class NoLonger(Change, frozen=True):  # what a call does not do any more
    what: Literal["compile", "detach", "drop gradients", "skip autograd"]
    nodes: tuple[int, int] | None = None  # that autograd records, before and after, if they differ
    held_bytes: int = 0  # more than before, behind a call


class LostGraph(Change, frozen=True):  # what CUDA graphs launched is launched one by one
    """Of one call of the workload."""


class PeakMemory(Change, frozen=True):  # the most that a call holds at once
    before: int
    after: int
    more: int = 0  # bytes, at the first line of code shown
    is_host: bool = False  # of Python's allocators
    is_new_line: bool = False  # the baseline has none at that line: these are all


class CompiledOps(Change, frozen=True):  # how many ops torch.compile was given
    before: int | None
    after: int | None
    new: tuple[str, ...] = ()  # functions that it was not given before
    gone: tuple[str, ...] = ()


class OtherOps(Change, frozen=True):  # ops of the dispatcher that are new, and that are gone
    new: Counted
    gone: Counted = ()
    repeated: tuple[tuple[str, int, int], ...] = ()  # as of `OtherKernels`


# calls of a function of Python or C, as `Run.host_work` names it
class HostCalls(Change, frozen=True):
    function: str
    before: int
    after: int
    more: int = 0  # calls of all functions at that line
    ops: Counted = ()  # new ones that these calls make


class OtherDtype(Change, frozen=True):  # the dtype that most kernels of a trace work in
    before: str
    after: str


class BesideKernels(Change, frozen=True):  # what a GPU does in a step of a trace but to run kernels
    what: Literal["copies", "idle"]
    before: float  # how many copies and memsets, or microseconds
    after: float


class Place(msgspec.Struct, frozen=True):
    """A line of code, the module that runs it, and in which passes.

    `line.inner`: the line of the library.
    """

    line: SourceLine
    module: str = ""
    passes: tuple[str, ...] = ()
    # of the deepest line, before and after; None: as often, or not known
    runs: tuple[int, int] | None = None
    outer_runs: tuple[int, int] | None = None  # of the line that leads to it


class Cause(Reason, frozen=True):  # what changed in one place
    change: AnyChange | None = None  # None: nothing but what the host does there
    waits: Counted = ()  # synchronising calls that are new there
    copies: Counted = ()
    had_kernels: bool = False  # whether the place had kernels before
    places: tuple[Place, ...] = ()  # its lines of code, in order of launch
    more_places: int = 0  # lines that are not among them
    dearest: Annotated[int, msgspec.Meta(ge=0)] = 0  # the number of the most expensive one
    delta_us: float | None = None  # what it adds to a call; None: not known, or too vaguely
    # by which causes are ordered: the size of `delta_us`, also where that is not said
    weight_us: float = 0.0
    explains: bool = False  # whether other causes follow from it, as those of a recompile do
    # the places, from 0, of the calls of a sequence that have it; empty: there is one call
    calls: tuple[int, ...] = ()

    @property
    def identity(self) -> Cause:
        """The cause without what it costs and where it is: other timers see the same one at other
        costs.
        """
        return Cause(self.change, self.waits, self.copies, self.had_kernels)


class Rest(Reason, frozen=True):  # the kernels that did not change, and how their time did
    kernels: int
    share: float
    delta_us: float
    is_unchanged: bool  # within the spread of one kernel


# -- times -----------------------------------------------------------------------------------------


_Noisy = Literal["scattered replicates", "scattered processes", "one replicate", "both possible"]
SCATTERED = ("scattered replicates", "scattered processes")


class Unclear(Doubt, frozen=True):  # why a time cannot be judged
    why: Literal["unknown machine"] | _Noisy


# the reference on the host takes another time than beside the baseline
class OtherHostSpeed(Doubt, frozen=True):
    before_us: Annotated[float, msgspec.Meta(gt=0)]
    after_us: float


class NoHostReference(Doubt, frozen=True):  # nobody measured how fast the host was
    side: Literal["run", "baseline"]


class Noise(Doubt, frozen=True):  # what hides a slowdown of the requested size
    of: Literal["replicates", "processes", "gpu"]
    sensitivity: float


# a time that is longer than the call that it is a part of
class PartExceedsCall(Doubt, frozen=True):
    part_us: float
    call_us: float


# the reference beside a time took far longer than elsewhere on that host
class SlowReference(Doubt, frozen=True):
    us: float
    fastest_us: float


class FreshProcess(Doubt, frozen=True):  # what one measured of a time that looked slower
    us: float
    change: RelativeChange
    status: str


# why a fresh process says nothing of a time that looked slower
class NoFreshProcess(Reason, frozen=True):
    why: Literal["failed", "other structure", "not measured"]
    text: str = ""  # of the error


class TimeCompared(Conclusion, frozen=True):  # a time beside that of the baseline
    at_host_speed: bool = False
    doubt: AnyDoubt | None = None


# the stored time is impossible
class TimeDoubted(Conclusion, frozen=True):
    doubt: AnyDoubt


# a time beside another variant's, of which it should take `by` less
class RatioCompared(Conclusion, frozen=True):
    label: str
    other: str
    by: float
    us: float
    other_us: float
    change: RelativeChange


# how many ops it had. Equal numbers: the host took another time for them
class DispatcherOps(Reason, frozen=True):
    before: int
    after: int
    is_slower: bool = False


class PartOfLatency(Reason, frozen=True):
    part: Literal["ops", "kernels", "without kernels"]
    before_us: float
    after_us: float
    transfers_us: float = 0.0  # of the time without kernels, where it is a good part
    is_launch_bound: bool = False  # it is longer than the kernels


class Machine(Reason, frozen=True):  # how the reference kernels moved, which the code cannot touch
    moves: tuple[tuple[str, float], ...] | None  # None: the baseline does not know this GPU
    is_own: bool = False
    twins: float | None = None  # how far workloads moved that run the same kernels
    # for how long the GPU held its clock down meanwhile, by cause
    limits_ms: tuple[tuple[str, float], ...] = ()


class Neighbours(Reason, frozen=True):  # other workers of the run that measured on this host
    workers: int


# why better is not called IMPROVED: another time is not judged, or not as good
class NotImproved(Reason, frozen=True):
    subject: str
    status: str


class ProcessesDiffer(Reason, frozen=True):  # in how many processes of a side structure is another
    other: int
    processes: int
    side: str


class SlowerInPairs(Reason, frozen=True):  # by the exact sign-flip test
    pairs: int
    probability: float  # of such a difference in unchanged code


# -- what there is to compare, and what to do ------------------------------------------------------


class NumericsCompared(Conclusion, frozen=True):  # a result beside its reference
    reference: str
    worst: str = ""  # of the tensors that are within their bounds
    unjudged: int = 0  # tensors


class NotCompared(Conclusion, frozen=True):  # the baseline is of another kind of machine
    moves: tuple[Move, ...]


class NotMeasured(Conclusion, frozen=True):  # a time is missing
    label: str
    why: str = ""
    side: str = ""  # the variant or revision
    is_known: bool = False  # the baseline has it, of the same code


class NoBaseline(Conclusion, frozen=True):
    is_partial: bool = False  # there is a baseline, which lacks this time


# a side of two has no run, or its processes differ
class NothingToCompare(Conclusion, frozen=True):
    side: str
    how: Literal["missing", "failed", "failed in some", "differ"]
    why: str = ""  # in what they differ


class Failed(Conclusion, frozen=True):  # an error, in its own words
    what: str
    so: str = ""  # what follows: "not judged", "GPU time not compared"


# a line of an error, the error of a tensor, or a seed. Nothing depends on it
class Detail(Reason, frozen=True):
    label: str
    text: str


class TraceFile(Reason, frozen=True):
    path: str  # beside the results


class BaselineFile(Reason, frozen=True):
    path: str
    moves: tuple[Move, ...] | None = ()  # since it was recorded. None: there is no such file


class Advice(str, Enum):
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


class Next(Reason, frozen=True):
    step: Advice
    command: str = ""  # for that
    measure: str = ""  # a command to run before it


# shares of the communication of a rank that ran beside other kernels
class OverlapCompared(Conclusion, frozen=True):
    rank: int
    # the fewest and the most kernels launched after a collective, mean of a step
    behind: tuple[int, int]
    now_behind: int
    before_us: float  # of what ran alone
    after_us: float
    before: float | None = None  # the least of all runs; None: not known
    after: float | None = None


# where a cause is, who is late, and what is not judged or not known
class InTrace(Reason, frozen=True):
    what: Literal[
        "where",
        "straggler",
        "seldom",
        "new",
        "gone",
        "unknown",
        "outside",
        "phase",
        "module",
        "moved",
        "blocks",
    ]
    names: tuple[str, ...] = ()  # of a renamed phase or module: before and after
    ranks: tuple[int, ...] = ()
    # In how many of the steps; the usual wait of the others in a step, and this one; launches
    # outside of steps, all, and the share of the time. Threads of a block, those of other ranks, and
    # how many these are.
    numbers: tuple[float, ...] = ()


# -- a review --------------------------------------------------------------------------------------


class MeasuredTime(Evidence, frozen=True):  # nothing is stored of it
    label: str
    us: float


_OfFile = Literal[
    "accepted already",
    "unchanged",
    "untimed",
    "undeclared",
    "times",
    "result",
    "facts",
]
_OfCounts = Literal[
    "fewer processes",
    "processes",
    "times stay",
    "launches",
    "graph_breaks",
    "recompiles",
    "unsteady",
]


class FileNote(Evidence, frozen=True):  # what becomes of a file of the baselines
    what: _OfFile | _OfCounts
    before: str = ""  # how many processes, launches, ... it has
    after: str = ""


_OfRun = Literal["cut short", "incomplete", "not measured", "unmeasured", "older", "error"]
_OfTests = Literal["test failed", "not checked", "other source"]


class RunDoubt(Evidence, frozen=True):  # what speaks against storing a run
    what: _OfRun | _OfTests
    text: str = ""  # of which test or time, why, or when
    other: str = ""
    is_of_times: bool = False  # the structure of the run is sound


class ImpossibleTime(Evidence, frozen=True):
    label: str
    why: Doubt


# msgspec reads a class by its name, and needs all of those that can stand at a place.
if TYPE_CHECKING:
    AnyConclusion = Conclusion
    AnyReason = Reason
    AnyDoubt = Doubt
    AnyChange = Change
else:
    AnyConclusion = reduce(or_, Conclusion.__subclasses__())
    AnyDoubt = reduce(or_, Doubt.__subclasses__())
    AnyReason = reduce(
        or_, (each for each in Reason.__subclasses__() if each is not Doubt), AnyDoubt
    )
    AnyChange = reduce(or_, Change.__subclasses__())
