"""What a trace says: launches in order, the host's ops behind them, where the time of a step went,
and what is missing.

Steps that launched the same kernels are one measurement repeated. Where they differ, those that
launched what most of the steps did stand for the trace.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import chain, pairwise
from math import inf
from operator import attrgetter
from statistics import median
from typing import Any, TypeAlias

from .kernel import (
    COMPILE_PREFIXES,
    KernelIdentity,
    KernelRecord,
    dispatcher_ops,
    executions,
    launch_sequence,
    metadata_ops_that_launched,
    places_of,
    resources_of,
)
from .model import (
    DEVICE_CATEGORIES,
    REGION,
    WHOLE,
    ApiCall,
    DeviceRecord,
    Trace,
    Window,
    busy_us,
    grouped,
)
from .names import Kind, decode

_START = attrgetter("start_us")
_STILL_RUNNING = 128  # records before a moment that are looked at: as many as a device has streams
_LOADER = "enumerate(DataLoader)"  # how torch names the rows of fetching a batch
_WARP = 32  # threads: AMD's have 64, where torch gives numbers that NVIDIA has too
_MOST_BETWEEN_STEPS = 0.5  # of the step before: a longer time between two steps was not profiled
# What takes more than this share of a step is worth naming before the kernels.
_MOST_BESIDE_COMPUTE = 0.25
_LEAST_BUSY = 0.5  # of a step that its kernels make as long as it is

_Span: TypeAlias = "tuple[float, float]"  # from, until
Size: TypeAlias = "tuple[int, int, int] | None"


@dataclass(frozen=True)
class StepTime:
    """Where the time of the median step went on one device: of two, their mean.

    All parts add up to `wall_us`.
    """

    device: int
    streams: int
    wall_us: float
    compute_us: float  # with a kernel running
    communication_us: float  # with communication running, and no other kernel
    copy_us: float  # with nothing but copies and memsets running
    launch_us: float  # idle: the host had not launched yet what ran next
    input_us: float  # idle: the host was between two steps, or fetched a batch
    copy_wait_us: float  # idle: a copy was launched and had not begun
    unknown_us: float  # idle: for another stream, on the launch's way to the device, ...

    @property
    def busy_us(self) -> float:
        return self.compute_us + self.communication_us + self.copy_us

    @property
    def idle_us(self) -> float:
        return self.wall_us - self.busy_us


@dataclass(frozen=True)
class KernelGroup:
    """Launches of a step that are shown as one. Times are sums of medians over the steps."""

    title: str
    kind: str
    launches: int
    device_time_us: float
    launched_by: list[str]  # ops, the most frequent first
    input_shapes: list[tuple[Any, ...]]
    identities: list[KernelIdentity]
    code: list[dict[str, str]]  # what it takes: registers, occupancy, shared memory


# What a row of `kernelgauge trace --by` has in common.
GROUPINGS: Mapping[str, Callable[[KernelRecord], object]] = {
    "launch": id,
    "config": lambda kernel: kernel.identity,
    "name": lambda kernel: kernel.identity.name,
    "op": lambda kernel: kernel.op or "(no op)",
    "module": lambda kernel: kernel.module or "(no module)",
}


@dataclass(frozen=True)
class Transfers:
    """Memsets or copies of one name. Per step."""

    name: str
    count: float
    time_us: float
    bytes: float


@dataclass(frozen=True)
class HostLane:
    """The host's side of one step: how often each op ran."""

    duration_us: float  # median over the steps: the host stumbles in one now and then
    dispatcher_ops: Mapping[str, int]
    metadata_ops_that_launched: tuple[str, ...]
    compile_ops: tuple[str, ...]
    synchronizations: int


@dataclass(frozen=True)
class Bound:
    """What makes the step as long as it is, on the busiest device: `share` of its time goes
    there.
    """

    by: str  # "compute", "communication", "copy", "input" or "overhead"
    share: float


@dataclass(frozen=True)
class Summary:
    """What a trace says, by the launch sequence that stands for it.

    `windows` are the steps whose times it has; `all_windows` those of the trace, among them some
    that launched something else. Without profiler steps there is one window, the whole trace. Times
    of a step are medians over `windows`, as one call that was interrupted would move a mean, and
    ops those of the last one.
    """

    trace: Trace
    kernels: tuple[KernelRecord, ...]
    windows: tuple[Window, ...]
    all_windows: tuple[Window, ...]
    on_cpu: bool

    @property
    def device_time_us(self) -> float:
        return sum(kernel.device_time_us for kernel in self.kernels)

    @property
    def arch(self) -> str:
        """Return the architecture of all its NVIDIA GPUs, such as ``sm_90``; empty if not known, or
        if there are several.
        """
        known = {
            (it.get("computeMajor"), it.get("computeMinor"), it.get("warpSize"))
            for it in self.trace.device_properties
        }
        major, minor, warp = known.pop() if len(known) == 1 else (None, None, None)
        return f"sm_{major}{minor}" if warp == _WARP else ""

    @property
    def noun(self) -> str:
        """Return what a window is: "step", "call", or "trace" if there were no steps."""
        first = self.all_windows[0]
        return "trace" if first.name == WHOLE else "step" if first.is_step else "call"

    def groups(self, by: str = "config") -> list[KernelGroup]:
        """Return the kernels of a step in groups by one of `GROUPINGS`: launches in order, else the
        longest first.
        """
        arch = self.arch
        groups = [
            KernelGroup(
                title=key if isinstance(key, str) else kernels[0].identity.name,
                kind=kernels[0].kind,
                launches=len(kernels),
                device_time_us=sum(kernel.device_time_us for kernel in kernels),
                launched_by=[
                    name
                    for name, _ in Counter(
                        kernel.op for kernel in kernels if kernel.op
                    ).most_common()
                ],
                input_shapes=list(
                    dict.fromkeys(kernel.input_shapes for kernel in kernels if kernel.input_shapes)
                ),
                identities=list(dict.fromkeys(kernel.identity for kernel in kernels)),
                code=[
                    resources_of(*it, arch)
                    for it in dict.fromkeys((it.identity, it.resources) for it in kernels)
                ],
            )
            for key, kernels in grouped(self.kernels, GROUPINGS[by]).items()
        ]
        return groups if by == "launch" else sorted(groups, key=lambda group: -group.device_time_us)

    @property
    def totals(self) -> dict[tuple[str, Size, Size], list[float]]:
        """Return the durations of each kernel and launch configuration in the whole trace, the
        longest first.
        """
        kernels = (record for record in self.trace.records if record.category == "kernel")
        found = grouped(kernels, attrgetter("name", "grid", "block"))
        durations_us = {
            key: [record.time_us for record in records] for key, records in found.items()
        }
        return dict(sorted(durations_us.items(), key=lambda item: -sum(item[1])))

    def transfers(self, *categories: str) -> list[Transfers]:
        """Return memsets ("gpu_memset") or copies ("gpu_memcpy"), by their name."""
        moved = (
            record
            for window in self.windows
            for record in window.records
            if record.category in categories
        )
        found = []
        for name, records in grouped(moved, attrgetter("name")).items():
            totals = (
                len(records),
                sum(each.time_us for each in records),
                sum(each.bytes or 0 for each in records),
            )
            found.append(Transfers(name, *(total / len(self.windows) for total in totals)))
        return found

    @cached_property
    def host(self) -> HostLane:
        windows, last = self.windows, self.windows[-1]
        return HostLane(
            duration_us=median(window.duration_us for window in windows),
            dispatcher_ops=Counter(op.name for op in dispatcher_ops(last)),
            metadata_ops_that_launched=tuple(metadata_ops_that_launched(last)),
            compile_ops=tuple(op.name for op in last.ops if op.name.startswith(COMPILE_PREFIXES)),
            synchronizations=last.synchronizations,
        )

    @cached_property
    def times(self) -> list[StepTime]:
        """Return where the time of a step went, for each device that ran something for the
        steps.
        """
        devices = {record.device for window in self.windows for record in window.records}
        # By their name, or by the op that launched them.
        names = {
            name
            for name in {record.name for record in self.trace.records}
            if _is_communication(decode(name).kind)
        }
        names |= {kernel.identity.name for kernel in self.kernels if _is_communication(kernel.kind)}
        spans, waits = sorted(self._spans, key=lambda span: span[1] - span[0]), _input_waits(self)
        middle = spans[(len(spans) - 1) // 2 : len(spans) // 2 + 1]
        ran = grouped(
            (each for each in self.trace.records if each.duration_us >= 0), attrgetter("device")
        )
        return [
            _step_time(self, device, ran.get(device, []), middle, waits, names)
            for device in sorted(devices)
        ]

    @cached_property
    def problems(self) -> tuple[str, ...]:
        """Return launches without kernels and kernels without launches, anywhere in the trace."""
        return self.trace.pairing_problems()

    @property
    def problems_inside(self) -> int:
        """Return how many launches in the windows have no kernel."""
        return sum(window.lost for window in self.windows)

    @property
    def not_read(self) -> Mapping[str, int]:
        """Return the number of rows of other devices, and of rows with an odd field, by
        category.
        """
        return {**self.trace.not_read, **self.trace.malformed}

    @property
    def devices(self) -> list[str]:
        return [str(device.get("name", "")) for device in self.trace.device_properties]

    @property
    def busiest(self) -> StepTime | None:
        """Return where the time of a step went on the device that worked most."""
        return max(self.times, key=lambda time: time.busy_us, default=None)

    @property
    def bound(self) -> Bound | None:
        """Return what makes the step so long; None where nothing ran, records are lost, or the
        trace does not show it.
        """
        time = self.busiest
        if self.problems_inside or time is None or not time.wall_us:
            return None
        causes = {
            "overhead": time.launch_us,
            "input": time.input_us,
            "communication": time.communication_us,
            "copy": time.copy_us + time.copy_wait_us,
        }
        most = max(causes, key=lambda cause: causes[cause])
        share, busy = causes[most] / time.wall_us, time.busy_us / time.wall_us
        if share <= _MOST_BESIDE_COMPUTE and busy > _LEAST_BUSY:
            return Bound("compute", busy)
        return Bound(most, share) if causes[most] >= time.unknown_us else None

    @cached_property
    def _spans(self) -> list[_Span]:
        return [span for run in _runs(self) for span in _step_spans(run, self.trace.records)]

    @property
    def durations_us(self) -> list[float]:
        """Return the time of each step."""
        return [end - start for start, end in self._spans]

    @property
    def wall_us(self) -> float:
        """Return the time of one step."""
        return median(self.durations_us)

    @property
    def elapsed_us(self) -> float:
        """Return the time of one step from its begin on the host until host and device are done: a
        CPU has the same span.
        """
        times_us: list[float] = []
        for run in _runs(self):
            ends = (record.end_us for window in run for record in window.records)
            starts = [window.start_us for window in run]
            times_us += (
                end - start for start, end in pairwise([*starts, max([run[-1].end_us, *ends])])
            )
        return median(times_us)

    @property
    def busy_us(self) -> float:
        """Return how long at least one kernel of a step ran, summed over devices: less than their
        times if streams overlap.
        """
        ran = [
            record
            for window in self.windows
            for record in window.records
            if record.category == "kernel"
        ]
        total_us = sum(record.time_us for record in ran)
        covered_us = sum(map(busy_us, grouped(ran, attrgetter("device")).values()))
        return self.device_time_us * (covered_us / total_us if total_us else 1.0)

    @cached_property
    def places(self) -> dict[int | None, tuple[str, str]]:
        """Return by External id of an op of the last step the modules and the Python function
        around it.
        """
        ops = self.windows[-1].ops
        found = places_of(self.trace.modules, ops)
        return {op.external_id: found[id(op)] for op in ops if id(op) in found}


def summarize_trace(trace: Trace, windows: Sequence[Window] | None = None) -> Summary:
    """Summarize the most frequent windows.

    `windows`: default the calls that `pytest perf` marks, else the profiler's steps, else the whole
    trace.
    """
    chosen = tuple(windows if windows is not None else trace.regions(REGION) or trace.steps()) or (
        trace.whole(),
    )
    # Launches without a single record are records that were lost, and no CPU. So are records that
    # could not be read.
    lost = trace.not_read or trace.malformed.keys() & DEVICE_CATEGORIES
    on_cpu = not trace.records and not lost and not any(call.is_launch for call in trace.calls)
    ran = [executions(window, on_cpu=on_cpu) for window in chosen]
    sequences = [tuple(each.identity.name for each in kernels) for kernels in ran]
    # The last of equally frequent ones: the first steps of a session are those that warm up. A step
    # in which nothing was launched stands for the trace only if nothing ever was.
    most, _ = (
        Counter(filter(None, reversed(sequences))).most_common(1)[0] if any(sequences) else ((), 0)
    )
    alike = [index for index, sequence in enumerate(sequences) if sequence == most]
    kernels = launch_sequence([ran[index] for index in alike], trace.modules)
    return Summary(trace, kernels, tuple(chosen[index] for index in alike), chosen, on_cpu)


# --- where the time of a step went
# -----------------------------------------------------------------------------------


def _is_communication(kind: str) -> bool:
    return kind == Kind.COMMUNICATION.value


def _step_time(
    lane: Summary,
    device: int,
    records: Sequence[DeviceRecord],
    spans: Sequence[_Span],
    waits: Sequence[_Span],
    communicating: set[str],
) -> StepTime:
    """Return where the time of these spans went on a device: with what running, or else waiting for
    what.
    """
    parts, streams = defaultdict[str, float](float), set[int]()
    for start, end in spans:
        until = dict.fromkeys(("all", "kernels", "computing"), start)  # when the last of these ends
        for record in _running_between(start, end, records):
            streams.add(record.stream)
            if record.start_us > until["all"]:
                _add_causes(parts, until["all"], record, lane.trace.launch_of(record), waits)
            kinds = ["all"]
            if record.category == "kernel":
                kinds += ["kernels"] if record.name in communicating else ["kernels", "computing"]
            last = min(record.end_us, end)
            for kind in kinds:
                parts[kind] += max(0.0, last - max(until[kind], record.start_us))
                until[kind] = max(until[kind], last)
        parts["wall_us"] += end - start
        parts["input_us" if lane.windows[0].is_step else "unknown_us"] += end - until["all"]
    parts["compute_us"] = parts["computing"]
    parts["communication_us"] = parts["kernels"] - parts["computing"]
    parts["copy_us"] = parts["all"] - parts["kernels"]
    return StepTime(
        device, len(streams), *(parts[field.name] / len(spans) for field in fields(StepTime)[2:])
    )


def _runs(lane: Summary) -> list[list[Window]]:
    """Return the windows of a lane: steps that follow one another together, other windows alone."""
    runs: list[list[Window]] = []
    chosen = set(map(id, lane.windows))
    until = -inf  # the latest start of a step that follows the one before
    for window in lane.all_windows:
        if id(window) not in chosen:
            until = -inf
            continue
        if window.start_us <= until:
            runs[-1].append(window)
        else:
            runs.append([window])
        until = window.end_us + _MOST_BETWEEN_STEPS * window.duration_us if window.is_step else -inf
    return runs


def _span(run: Sequence[Window], records: Sequence[DeviceRecord]) -> _Span:
    """Return when steps that follow one another began and ended.

    Steps begin and end on the host, unless the device is behind it at the end. Then they end with
    their last record, and begin as far behind the host, at most when the device had done what was
    launched before. A region begins when it had.
    """
    own = [record for window in run for record in window.records if record.duration_us >= 0]
    start, end = run[0].start_us, run[-1].end_us
    if not own:
        return start, end
    first, last = min(record.start_us for record in own), max(record.end_us for record in own)
    if run[0].name == WHOLE:
        return first, last
    # None of these is one of theirs: they start before the first of those.
    earlier = _running_between(start, first, records)
    drained = max(start, min(first, max((record.end_us for record in earlier), default=start)))
    behind = max(0.0, last - end)
    return min(drained, start + behind) if run[0].is_step else drained, max(end, last)


def _step_spans(run: Sequence[Window], records: Sequence[DeviceRecord]) -> Iterable[_Span]:
    """Return when each of these steps began and ended: a step begins when the device is done with
    the one before.
    """
    start, end = _span(run, records)
    edges = [start]
    for window, follower in pairwise(run):
        done_us = max((record.end_us for record in window.records), default=start)
        edges.append(min(end, max(edges[-1], follower.start_us, done_us)))
    return pairwise([*edges, end])


def _running_between(
    start_us: float, end_us: float, records: Sequence[DeviceRecord]
) -> list[DeviceRecord]:
    """Return those that start there, and those that were launched before the window and still
    ran.
    """
    first, last = (bisect_left(records, at, key=_START) for at in (start_us, end_us))
    earlier = records[max(0, first - _STILL_RUNNING) : first]
    return [*(record for record in earlier if record.end_us > start_us), *records[first:last]]


def _input_waits(lane: Summary) -> list[_Span]:
    """Return when the host fetched batches, or was between two steps: until the first op of a step
    behind the loader's rows.
    """
    loading = [
        row for row in chain(lane.trace.ops, lane.trace.annotations) if row.name.startswith(_LOADER)
    ]
    loading.sort(key=_START)
    waits = [(row.start_us, row.end_us) for row in loading]
    launched = -inf  # the last one of the step before
    for window in lane.windows if lane.windows[0].is_step else ():
        asking = [call for call in window.calls if call.asks]
        if asking:
            first_us = asking[0].start_us
            inside = [bisect_left(loading, at, key=_START) for at in (window.start_us, first_us)]
            since = max((row.end_us for row in loading[slice(*inside)]), default=window.start_us)
            working = bisect_left(window.ops, since, key=_START)
            waits.append(
                (
                    launched,
                    min([first_us, *(op.start_us for op in window.ops[working : working + 1])]),
                )
            )
            launched = asking[-1].end_us
    apart: list[_Span] = []
    for start, end in sorted(waits):
        since, until = apart.pop() if apart and start <= apart[-1][1] else (start, end)
        apart.append((since, max(end, until)))
    return apart


def _add_causes(
    parts: dict[str, float],
    since: float,
    record: DeviceRecord,
    call: ApiCall | None,
    waits: Sequence[_Span],
) -> None:
    """Add to `parts` for what a device waited from `since` until this record began."""
    launched, rest = since, "unknown_us"
    if call is not None:
        is_copy = record.category == "gpu_memcpy"
        launched = max(since, min(record.start_us, call.start_us if is_copy else call.end_us))
        rest = "copy_wait_us" if is_copy else rest
    near = waits[
        max(0, bisect_left(waits, (since, since)) - 1) : bisect_left(waits, (launched, -inf))
    ]
    fetching = sum(max(0.0, min(end, launched) - max(start, since)) for start, end in near)
    parts["input_us"] += fetching
    parts["launch_us"] += launched - since - fetching
    parts[rest] += record.start_us - launched
