"""What was observed: one workload, measured once, on one machine.

Plain data, the same in memory and in JSON.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from hashlib import sha256
from statistics import fmean, geometric_mean, quantiles
from typing import Annotated, Any, Literal

import msgspec

from .errors import MeasurementError
from .trace import KernelRecord
from .trace import Origin as Origin
from .trace import SourceLine as SourceLine

# What no call takes: less than a baseline keeps, or more than eleven days. Of numbers beyond,
# ratios end in overflow.
_SHORTEST_US, _LONGEST_US = 1e-3, 1e12
Duration = Annotated[float, msgspec.Meta(ge=_SHORTEST_US, le=_LONGEST_US)]  # in microseconds
Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
_Some = Annotated[int, msgspec.Meta(ge=1, le=10**9)]
Day = Annotated[str, msgspec.Meta(pattern=r"^\d{4}-\d\d-\d\d$")]  # UTC

Statistic = Literal["interquartile mean", "lower decile", "lower decile of runs"]
# Calls in a row, whose mean a latency takes: a cost in each fifth call is in each. Another job
# disturbs longer runs more often.
RUN_OF_CALLS = 5


class Timing(msgspec.Struct, frozen=True):
    """What a time is, and what is asked of a verdict on it.

    A change is a fraction; gates and sensitivity are choices.
    """

    label: str  # the subject of verdicts on it
    noise: str  # the spread that unchanged code showed, by its name in `judge.timing`
    gate: float  # a smaller change is no finding
    sensitivity: float = 1.0  # the largest slowdown that a PASS may miss
    near_gate: float = (
        # as `gate`, between processes of the same minutes: they agree better than those of several
        # nights
        0.0
    )
    wanted: float | None = (
        # the change that enough of these processes exclude. None: no further ones are asked for
        None
    )
    statistic: Statistic = "lower decile"
    is_host_clock: bool = True
    is_confirmed: bool = True  # a fresh process must be slower too
    # what it is called on a CPU, where it is shown and not judged. Empty: it is judged there
    on_cpu: str = ""


class Timer(str, Enum):
    """The times of a workload.

    They are measured and judged apart: each hides what another shows.
    """

    DEVICE = "device_time"  # sum of kernel durations of one call, L2 flushed before it
    END_TO_END = "end_to_end"  # host clock from call to synchronised result, L2 flushed before it
    HOST = "host_dispatch"  # host clock until the call returns, on an idle device
    # Host clock from the first call to its synchronised result. They are measured where they are
    # asked for.
    COLD_COMPILE = "cold_compile"  # with empty compile caches
    WARM_COMPILE = "warm_compile"  # with the caches that a cold one has filled

    @property
    def timing(self) -> Timing:
        return _TIMINGS[self]

    @property
    def label(self) -> str:
        """Return its name, which is the subject of verdicts on it."""
        return self.timing.label

    def label_on(self, fingerprint: Fingerprint) -> str:
        """Return what it is called beside a number: on a CPU, the time of the ops stands for that
        of the kernels.
        """
        return self.label if self.is_judged_on(fingerprint) else self.timing.on_cpu

    def is_judged_on(self, fingerprint: Fingerprint) -> bool:
        """Whether there are verdicts on it.

        Other jobs slow the ops of a CPU by any factor: their time is shown only.
        """
        return not (self.timing.on_cpu and fingerprint.arch == "cpu")


TIMER_NAMES = ", ".join(each.value for each in Timer)  # as an error names them
_COMPILE = Timing("", "compile", 0.25, 3.0, 0.1, 0.25, is_confirmed=False)
# What stands for the iterations of one replicate: durations of kernels come in steps of 32 ns, 1 %
# of the shortest. A median stays on a step, the mean of the middle half does not, and is as robust.
# What disturbs a host clock only ever adds time, so its lower decile is far steadier than its
# median: on an H200 the host dispatch time of the compiled MLP spreads by 3.3 % between replicates
# instead of 10.4 %. See Chen and Revels, "Robust benchmarking in noisy environments", 2016. The
# decile of single calls hides what every second call costs, so a latency takes that of runs of
# calls.
_TIMINGS = {
    Timer.DEVICE: Timing(
        *("GPU time", "GPU time", 0.003, 0.25, 0.002, 0.005, "interquartile mean"),
        is_host_clock=False,
        on_cpu="CPU time",
    ),
    # It asks for no further processes: it is made of the other two.
    Timer.END_TO_END: Timing(
        "end to end", "latency", 0.25, near_gate=0.1, statistic="lower decile of runs"
    ),
    Timer.HOST: Timing("host dispatch", "dispatch", 0.05, near_gate=0.02, wanted=0.05),
    Timer.COLD_COMPILE: msgspec.structs.replace(_COMPILE, label="cold compile"),
    Timer.WARM_COMPILE: msgspec.structs.replace(_COMPILE, label="warm compile"),
}
CALL_TIMERS = tuple(timer for timer in Timer if timer.timing.is_confirmed)
COMPILE_TIMERS = tuple(timer for timer in Timer if not timer.timing.is_confirmed)
# Of the steps of a trace.
KERNELS_OF_STEP = Timing(
    "GPU time",
    "kernels of a step",
    0.02,
    is_host_clock=False,
    is_confirmed=False,
    on_cpu="CPU time",
)
STEP = Timing("step time", "step", 0.25, is_confirmed=False)


class Counts(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is exact, per call: gated without tolerance. None: not observable on this device."""

    launches: Count
    kernels: Count  # distinct names among the launches
    memsets: Count
    copies: Count
    synchronizations: Count
    dispatcher_ops: Count
    graph_breaks: Count
    recompiles: Count  # over the whole measurement, fresh allocations included
    peak_allocated_bytes: Count | None
    grown_bytes: int | None = None  # held after a call and not before it, again and again
    cyclic_bytes: Count | None = None  # of tensors in cycles of references, which no call frees
    compiled_ops: Count | None = None  # that torch.compile traced: they are what compiling costs
    autograd_nodes: Count | None = None  # that the call records for a backward
    # that torch.compile made for the first call, or the first sequence of calls
    graphs: Count | None = None
    # As `grown_bytes`: of Python's allocators, and on a GPU of torch's tensors on the host.
    grown_host_bytes: int | None = None
    # of Python's allocators: the most that a call holds at once
    peak_host_bytes: Count | None = None
    # Of tensors: those that the module holds behind its first call; on a CPU also those that each
    # call leaves elsewhere until the next one, by a graph of autograd too. Without gradients.
    held_bytes: Count | None = None
    # that allocate or free memory of a GPU, or pin that of the host
    allocator_calls: Count | None = None
    graph_launches: Count | None = None  # of CUDA graphs
    # Of a compile; None: not asked for.
    generated_kernels: Count | None = None  # by Inductor
    # that its autotuner chooses from, with empty caches
    autotuned_configurations: Count | None = None
    # that it compiles although an earlier compile has filled its cache
    uncached_graphs: Count | None = None


NO_COUNTS = Counts(0, 0, 0, 0, 0, 0, 0, 0, None)


class Sample(msgspec.Struct, frozen=True):
    """Durations of one timer, in microseconds: one value (`Timing.statistic`) for each replicate.

    A replicate is a set of fresh allocations. There is at least one.
    """

    replicates_us: tuple[float, ...]
    iterations: _Some  # in each replicate
    # of timers that read the host's clock: how fast the host was during each
    controls_us: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not self.replicates_us:
            raise ValueError("a sample has at least one replicate")
        for values in (self.replicates_us, self.controls_us):
            if not all(_SHORTEST_US <= us <= _LONGEST_US for us in values):  # NaN is none
                limits = f"{_SHORTEST_US:g} to {_LONGEST_US:g} us"
                raise ValueError(f"durations are positive and finite, {limits}, got {values}")
        if self.controls_us and len(self.controls_us) != len(self.replicates_us):
            raise ValueError(
                f"{len(self.controls_us)} controls for {len(self.replicates_us)} replicates"
            )

    def joined(self, other: Sample) -> Sample:
        """Return both sets of replicates: a confirmation adds to what was measured, it never
        replaces it.
        """
        return Sample(
            self.replicates_us + other.replicates_us,
            self.iterations,
            self.controls_us + other.controls_us,
        )


def summarize(durations: Sequence[float], statistic: Statistic) -> float:
    """Return one value for the iterations of one replicate, in the order in which they were
    made.
    """
    if statistic == "lower decile of runs":
        size = min(RUN_OF_CALLS, (len(durations) + 1) // 2)
        durations = [
            fmean(durations[start : start + size]) for start in range(len(durations) - size + 1)
        ]
    ordered = sorted(durations)
    if statistic == "interquartile mean":
        quarter = len(ordered) // 4
        return fmean(ordered[quarter : len(ordered) - quarter])
    return ordered[0] if len(ordered) == 1 else quantiles(ordered, n=10, method="inclusive")[0]


# Replicates on a slow host are left out, by the host reference alone and never by the time itself.
# On a host that changes its speed by a factor of 1.6, those within this factor of the fastest
# spread by 1.4 to 1.6 % between processes, and all of them by 3.3 to 4.2 %
# (benchmarks/data/earlier_detection).
_AS_FAST = 1.08


class Observation(msgspec.Struct, frozen=True):
    """Replicates of one timer in one process."""

    mean_us: Duration  # geometric mean over the replicates
    # Standard deviation of the replicates' natural logarithms (0.01 is 1 %), at equal speed of the
    # host where the host alone fills the time. None: only one replicate.
    spread: Annotated[float, msgspec.Meta(ge=0, le=100)] | None
    replicates: _Some  # how many there are
    iterations: _Some  # calls in each
    # geometric mean of the host reference; None for the GPU time of a GPU
    control_us: Duration | None = None


def observe(sample: Sample, *, is_by_host: bool = False) -> Observation:
    """Sum up a sample; with a host reference, the replicates on the fastest host.

    `is_by_host`: whether the host alone fills the time, so that its spread is that of the ratio to
    the reference.
    """
    kept = on_the_fastest_host(len(sample.replicates_us), sample.controls_us)
    logs = [math.log(sample.replicates_us[index]) for index in kept]
    controls = [math.log(sample.controls_us[index]) for index in kept] if sample.controls_us else []
    values = (
        [log - control for log, control in zip(logs, controls, strict=True)]
        if is_by_host and controls
        else logs
    )
    count = len(values)
    return Observation(
        mean_us=math.exp(fmean(logs)),
        spread=math.dist(values, [fmean(values)] * count) / math.sqrt(count - 1)
        if count > 1
        else None,
        replicates=count,
        iterations=sample.iterations,
        control_us=math.exp(fmean(controls)) if controls else None,
    )


def least_of_most(sample: Sample) -> float:
    """Return what three of four replicates take at least: one that another job slowed does not move
    it.
    """
    kept = [
        sample.replicates_us[index]
        for index in on_the_fastest_host(len(sample.replicates_us), sample.controls_us)
    ]
    return sorted(kept)[len(kept) // 4]


def on_the_fastest_host(count: int, controls_us: Sequence[float]) -> list[int]:
    """Return which of `count` replicates count: those on the fastest host, by the host reference
    beside each.
    """
    limit = _AS_FAST * min(controls_us, default=math.inf)
    as_fast = [index for index, control_us in enumerate(controls_us) if control_us <= limit]
    return as_fast if len(as_fast) > 1 else list(range(count))


# Clocks of one host agree within this factor: beyond, its times are another machine's
# (benchmarks/data/host_states).
_SAME_HOST_FACTOR = 1.28


@dataclass(frozen=True)
class ProcessTime:
    """A time of one process, and what it is compared by."""

    observation: Observation
    # the day it was measured: processes of one night may share what changes until the next
    night: str | None = None
    # the GPU, or on a CPU the host, that it was measured on. None: not known
    place: str | None = None
    host: str | None = None  # GPUs of one host are alike
    is_host_clock: bool = False  # comparable on a known host only
    # the host alone fills it: it is compared by its ratio to the host reference
    is_by_host: bool = False
    most_us: float | None = None  # what three of four replicates take at least; None: not known
    # of the reference kernels beside it, by name
    references_us: Mapping[str, float] = field(default_factory=dict)

    @property
    def logarithm(self) -> float:
        """The value that is compared."""
        unit_us = (self.observation.control_us or 1.0) if self.is_by_host else 1.0
        return math.log(self.observation.mean_us / unit_us)

    @property
    def own_variance(self) -> float:
        """The variance of the mean, by its own replicates. Infinite for a single replicate."""
        spread, count = self.observation.spread, self.observation.replicates
        return math.inf if spread is None else spread**2 / count


def mean_of(processes: Sequence[ProcessTime]) -> ProcessTime:
    """Return one time for several processes of one machine: their geometric mean, with all their
    replicates.
    """
    seen = [each.observation for each in processes]
    spreads = [one.spread for one in seen if one.spread is not None]
    controls = [one.control_us for one in seen if one.control_us is not None]
    names = [
        name
        for name in processes[0].references_us
        if all(name in each.references_us for each in processes)
    ]
    whole = msgspec.structs.replace(
        seen[0],
        mean_us=geometric_mean(one.mean_us for one in seen),
        spread=math.sqrt(fmean(spread**2 for spread in spreads))
        if len(spreads) == len(seen)
        else None,
        replicates=sum(one.replicates for one in seen),
        control_us=geometric_mean(controls) if len(controls) == len(seen) else None,
    )
    references = {
        name: geometric_mean(each.references_us[name] for each in processes) for name in names
    }
    most_us = min((each.most_us for each in processes if each.most_us is not None), default=None)
    return replace(processes[0], observation=whole, references_us=references, most_us=most_us)


def on_same_host(processes: Sequence[ProcessTime], after: ProcessTime) -> list[ProcessTime]:
    """Return the processes at the host speed of `after`.

    Without host references nothing tells them apart.
    """
    now = after.observation.control_us

    def is_same(us: float | None) -> bool:
        return us is now or bool(
            us and now and abs(math.log(now / us)) <= math.log(_SAME_HOST_FACTOR)
        )

    return [each for each in processes if is_same(each.observation.control_us)]


def pick_common_host_speed(
    before: Sequence[ProcessTime], afters: Sequence[ProcessTime]
) -> ProcessTime:
    """Return the process of `afters` at the host speed that is most frequent on both sides: a host
    has several.
    """
    return max(
        afters, key=lambda each: min(len(on_same_host(side, each)) for side in (before, afters))
    )


def by_place(processes: Sequence[ProcessTime]) -> list[list[ProcessTime]]:
    groups: dict[str | None, list[ProcessTime]] = {}
    for each in processes:
        groups.setdefault(each.place, []).append(each)
    return list(groups.values())


MEASURED_GPUS = ("NVIDIA H200",)  # their noise was measured; docs/design/times.md
# of other GPUs: so many times as noisy, and soon overruled by what the baseline shows
UNKNOWN_FACTOR = 4.0


class Fingerprint(msgspec.Struct, frozen=True):
    """The machine and the software that a measurement holds for. None: not known, or not there."""

    device: str  # "NVIDIA H200", or the CPU's name
    arch: str  # "sm_90", "gfx90a", or "cpu"
    sm_count: int | None
    memory_bytes: int | None
    power_limit_watts: float | None
    mig: bool | None
    driver: str | None
    cuda: str | None
    torch: str
    triton: str | None
    liger_kernel: str | None
    python: str
    # Files from before these fields have None.
    cudnn: str | None = None
    fp32_matmul: str | None = None  # torch's precision: "highest" is without TF32
    cudnn_tf32: bool | None = None
    # whether Inductor chooses launch configurations without timing them
    deterministic: bool | None = None


class OpRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """An op of the host lane, in order of start."""

    name: str
    input_shapes: tuple[Any, ...] = ()  # nested tuples of ints, as recorded
    is_inner: bool = False  # another op of the dispatcher called it


class KernelChoice(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an autotuner chose for a kernel, or among the templates for an op.

    No launch holds it: it has a key, and the rivals, and several launches share it.
    """

    kernel: str  # its name, without a compiler's number; or that of the op
    key: str  # what it was chosen for: sizes and dtypes. Empty: not known
    # ``BLOCK=1024,num_stages=1,num_warps=4``. Empty: nothing was chosen, for a GPU that is not here
    config: str
    source: str = ""  # the beginning of a digest of the kernel's source. Empty: not known
    # what it was chosen from, itself too, or 0 if that compiles there; None: it could not run
    times_us: dict[str, float | None] = {}
    recorded: str = ""  # what the baseline has, where that could not be taken
    error: str = ""  # of its compiler. Empty: the code does not offer it

    @property
    def runnable(self) -> set[str]:
        """Return the configurations that could run, or that compile."""
        return {name for name, us in self.times_us.items() if us is not None}


def recorded_choice(
    choices: Sequence[KernelChoice], kernel: str, key: str, *sources: str
) -> KernelChoice | None:
    """Return the choice for a kernel and a key. None: none, or several."""
    # An older baseline knows no keys.
    alike = [it for it in choices if it.kernel == kernel and it.key in (key, "")]
    found = [it for it in alike if it.source in sources] or alike
    return found[0] if len({it.config for it in found}) == 1 else None


class CompileEvent(msgspec.Struct, frozen=True):
    """A graph break or a recompile of torch.compile, and the line of the user's code that caused
    it.
    """

    kind: Literal["graph break", "recompile"]
    reason: str
    file: str | None = None  # relative to the working directory, or to the packages
    line: int = 0
    code: str = ""
    module: str = ""  # as `Origin.module`
    function: str = ""  # that the line is in; empty: not known
    inner: SourceLine | None = None  # of a library that it called, where it happened


class PeakPart(msgspec.Struct, frozen=True):
    """Memory that a call had allocated at its peak, in one place."""

    bytes: int
    origin: Origin | None  # None: not known


def statement_key(code: str) -> str:
    """Return what a baseline keeps of a statement: a digest, and the head of a function as it is."""
    is_head = code.startswith("@") or (code.startswith("def ") and "(" not in code)
    return code if is_head else sha256(code.encode()).hexdigest()[:8]


_MOST_NAMES = 3  # of modules in braces
_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")  # of a layer, in the path of a module


# What `Run.data` counts of an op.
AMOUNTS = STORED, FOUND, RETURNED, INDICES = (
    "stored numbers",
    "numbers found",
    "numbers returned",
    "indices",
)
_AMOUNT = re.compile(rf"(\d+) ({'|'.join(AMOUNTS)})")


def amounts_of(texts: Iterable[str]) -> tuple[dict[str, int], list[str]]:
    """Return what texts of `Run.data` count, by kind, and those that count nothing."""
    found = [(_AMOUNT.fullmatch(text), text) for text in texts]
    amounts = {each[2]: int(each[1]) for each, _ in found if each}
    return amounts, [text for each, text in found if each is None]


def common_path(paths: Sequence[str]) -> str:
    """Return one path for several modules: ``layers.*.{norm1,norm2}``; without a common shape, the
    first ones: ``layers.*.norm, norm``.
    """
    names = list(dict.fromkeys(paths))
    parts = [path.split(".") for path in names]
    if len({len(each) for each in parts}) > 1 or (
        len(names) > 1 and any("{" in path for path in names)
    ):
        shapes: dict[str, list[str]] = {}
        for name in names:
            shapes.setdefault(_NUMBER.sub("*", name), []).append(name)
        names = [each[0] if len(each) == 1 else shape for shape, each in shapes.items()]
        return ", ".join(names[:_MOST_NAMES]) + (", ..." if len(names) > _MOST_NAMES else "")
    common: list[str] = []
    for place in zip(*parts, strict=True):
        each = list(dict.fromkeys(place))
        is_any = len(each) > _MOST_NAMES or each[0].isdecimal()
        common.append(each[0] if len(each) == 1 else "*" if is_any else f"{{{','.join(each)}}}")
    return ".".join(common)


class ControlTime(msgspec.Struct, frozen=True):
    """A workload of our own that no change of the code under test can touch: what moves it is the
    machine.
    """

    kernel: str  # name: another one, after an upgrade of cuBLAS say, is no measure of the machine
    device_time_us: Duration


class Conditions(msgspec.Struct, frozen=True):
    """A summary over one measurement. None: not known."""

    lowest_sm_clock_mhz: int | None = None  # of the readings that found the GPU busy
    median_sm_clock_mhz: float | None = None  # likewise
    max_temperature_c: int | None = None
    max_power_watts: float | None = None
    throttled_ms: dict[str, float] | None = None  # by cause, without those that cost nothing


LINES = "lines"  # of `Run.host_work`: lines of the user's code that run
OF_CLOCK = "(clock)"  # in `Run.host_spread`: the part of it that leaves the lines alone
# names in it of functions of C that come with ops and kernels: of torch, of Triton, of extensions;
# those of `torch._C` itself, as of the allocator, run none
OF_RUNTIME = re.compile(r"<(torch(?!\._C\._\w+>)|generated|_*triton|PyCapsule|function |\w+>)")
# names in it of functions that wait, wake up and clean up when chance says so
OF_THREADS = re.compile(
    r"<?_?(thread(ing)?|queue|weakref(set)?|select(ors)?|signal|concurrent|multiprocessing|asyncio)\b"
)
# How often these call others follows from the session: its stack, `sys.path` and log handlers.
OF_SESSION = re.compile(
    r"(traceback|linecache|importlib\.(_bootstrap(_external)?|metadata)"
    r"|logging\.(Logger\.)?_log$)\b(?!\._handle_fromlist)"
)


class CallRecord(msgspec.Struct, frozen=True):
    """One call of a sequence, as `Workload.inputs` yields it."""

    launches: int
    graphs: int  # that torch.compile made for it, the first time


class Lack(str, Enum):
    """Why times are missing that a device can measure, where that decides what follows."""

    NOT_ASKED = "not asked"  # no test of a time was selected
    OTHER_KERNELS = "other kernels"  # than were profiled


class Run(msgspec.Struct, frozen=True):
    """One workload measured once.

    `samples` lacks the timers that this device or session has not measured.
    """

    workload: str
    fingerprint: Fingerprint
    kernels: tuple[KernelRecord, ...]  # in launch order
    counts: Counts
    samples: dict[Timer, Sample]
    gpu: str | None = None  # which one of its kind: a digest of its UUID
    host: str | None = None  # a digest of the host's name
    # "copy", "gemm": measured beside it
    controls: dict[str, ControlTime] = msgspec.field(default_factory=dict)
    conditions: Conditions | None = None
    incomplete: str | None = None  # why `samples` lacks what this device can measure, in words
    lack: Lack | None = None  # the same; None: nothing is missing, or for another reason
    other_kernels: str = ""  # those that ran when it was timed, and not when it was profiled
    # processes of the same run of pytest that measured on this host at the same time
    neighbours: int = 0
    # What the claims of a suite look at, and a baseline does not keep.
    ops: tuple[OpRecord, ...] = ()
    # of each op, the place of the kernel that it belongs to. Empty: not known
    op_kernels: tuple[int | None, ...] = ()
    launch_apis: tuple[str, ...] = ()  # the host call behind each launch, in launch order
    occupancy_queries: int = 0
    metadata_ops_that_launched: tuple[str, ...] = ()
    steps: int = 0  # profiler steps in the trace
    transfers_us: float = 0.0  # copies and memsets of a call, which are in no GPU time
    # "aten::item: cudaStreamSynchronize", of one call of the workload
    synchronizing_ops: tuple[str, ...] = ()
    # of each dispatcher op, by its name, without repetitions
    op_origins: dict[str, tuple[Origin, ...]] = {}
    compiled_origins: tuple[Origin, ...] = ()  # of the calls of compiled code
    # of the memory that a call leaves behind, the most first
    growth_origins: tuple[Origin, ...] = ()
    host_growth_origins: tuple[Origin, ...] = ()  # likewise, of `Counts.grown_host_bytes`
    cyclic_origins: tuple[Origin, ...] = ()  # likewise, of `Counts.cyclic_bytes`
    host_peak_origins: tuple[Origin, ...] = ()  # the line at `Counts.peak_host_bytes`
    keeping_origins: tuple[Origin, ...] = ()  # the lines that keep what grows, where that is known
    allocating_ops: tuple[str, ...] = ()  # "aten::empty: cudaMalloc"
    allocation_origins: tuple[Origin, ...] = ()  # of these, without repetitions
    # What an op works on that neither shapes nor arguments tell: "655 stored numbers" of its sparse
    # tensors, "12 numbers found" in data or returned by an op of a library, "8 indices" in a list of
    # optional tensors, "'tanh'" for a text.
    # What differs between two calls is left out.
    data: dict[str, tuple[str, ...]] = {}
    peak: tuple[PeakPart, ...] = ()  # where a call allocated the memory of its peak, the most first
    # How often a call runs each function: ``copy.deepcopy``, ``net.py:Net.forward`` of the user's,
    # ``<list.append>`` of C; and `LINES`. Empty: not counted. `host_spread`: by how much some
    # differ between calls.
    host_work: dict[str, Count] = {}
    host_spread: dict[str, Count] = {}
    # How long a call of a function of C takes on a quiet host: by which more calls are a loss or
    # none. It is compared with nothing.
    host_us: dict[str, float] = {}
    # where each is called, the most frequent first
    host_work_origins: dict[str, tuple[Origin, ...]] = {}
    host_work_callers: dict[str, dict[str, Count]] = {}  # which functions call each, and how often
    # the code of each line of the user's that calls something, and of the blocks around; and how
    # often it runs in a call, 0 if that is not known
    calling_code: dict[str, Count] = {}
    # By the place of each of these lines, ``net.py:7``: its function, ``def Net.forward``. By the place
    # of a function: itself, its defaults and decorators, statements that ran, and those that it uses.
    statements: dict[str, tuple[SourceLine, ...]] = {}
    statement_keys: tuple[str, ...] = ()  # of all statements of these functions
    recorded_origins: tuple[Origin, ...] = ()  # where autograd records, the first line first
    # a digest of the code of all functions of the user's and of packages that ran. Empty: not known
    functions: str = ""
    copying_ops: tuple[str, ...] = ()  # "aten::clone: Memcpy DtoD (Device -> Device), 1024 bytes"
    # Of each kernel, each of `synchronizing_ops` and each of `copying_ops`; None: not known. Empty:
    # of none.
    origins: tuple[Origin | None, ...] = ()
    synchronization_origins: tuple[Origin | None, ...] = ()
    copy_origins: tuple[Origin | None, ...] = ()
    day: Day | None = None  # when it was measured
    trains: bool = False  # whether a call runs a backward
    # of a sequence, in order; their launches are those of `kernels`
    calls: tuple[CallRecord, ...] = ()
    compile_events: tuple[CompileEvent, ...] = ()  # each once; `counts` says how many there were
    choices: tuple[KernelChoice, ...] = ()  # of autotuners, by kernel and key

    @property
    def place(self) -> str | None:
        """The machine that its times are of: the GPU, or the host where there is none."""
        return self.gpu or self.host

    @property
    def is_timed(self) -> bool:
        """Whether a test asked for its times, even if they could not be measured."""
        return bool(self.samples) or (
            self.incomplete is not None and self.lack is not Lack.NOT_ASKED
        )

    def label(self, timer: Timer) -> str:
        """Return what a time is called on this machine."""
        return timer.label_on(self.fingerprint)

    @property
    def judged_timers(self) -> list[Timer]:
        """Return which of its times are judged."""
        return [
            timer
            for timer in Timer
            if timer in self.samples and timer.is_judged_on(self.fingerprint)
        ]

    def sample(self, timer: Timer) -> Sample | None:
        return self.samples.get(timer)

    def time_us(self, timer: Timer) -> float:
        """Return the mean over the replicates, in microseconds.

        Raises `MeasurementError` if it was not measured: a test that reads times has the mark
        ``timing``.
        """
        if timer not in self.samples:
            raise MeasurementError(
                f"{self.workload}: {timer.label_on(self.fingerprint)} was not measured",
                got=self.incomplete,
                expected=(
                    "the mark timing on the test that reads it, and a device that has this timer"
                ),
            )
        return observe(self.samples[timer]).mean_us

    def op_names(self) -> list[str]:
        return [op.name for op in self.ops]

    def kernel_names(self) -> list[str]:
        return [kernel.identity.name for kernel in self.kernels]

    def kinds(self) -> list[str]:
        return [kernel.identity.kind for kernel in self.kernels]
