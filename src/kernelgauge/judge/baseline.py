"""A baseline: what one workload showed on one kind of machine, as bytes and back; and how machines
compare.
"""

from __future__ import annotations

import json
import math
import textwrap
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from statistics import fmean
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from msgspec.structs import replace

from ..errors import BaselineError, NewerBaselineError, printable
from ..run import (
    INDICES,
    RETURNED,
    CompileEvent,
    ControlTime,
    Count,
    Counts,
    Day,
    Fingerprint,
    KernelChoice,
    Observation,
    Origin,
    PeakPart,
    ProcessTime,
    Run,
    Timer,
    amounts_of,
    observe,
)
from ..trace import (
    KernelRecord,
    SourceLine,
    are_alike,
    common_arguments,
    is_dispatched,
    other_texts,
    with_current_kind,
)
from .evidence import Move, OtherPlacement
from .host import joined_work

SCHEMA_VERSION: Final = 5
# Nanoseconds: the profiler's own resolution is 32 ns on an H200. More digits would differ in each
# recording for nothing.
_DECIMALS = 3
_SPREAD_DECIMALS = 6
_WIDTH = 120  # of a line of the file

# Another device, or the same one cut or capped differently: its times answer another question
# (INCOMPARABLE).
_FOREIGN_FIELDS = ("device", "arch", "sm_count", "power_limit_watts", "mig")
# Software: times stay comparable, and the change is named in every verdict. `memory_bytes` is in
# neither: it moves with the driver by a few MiB on one device.
# unknown in an older baseline: then no change
_ADDED_FIELDS = ("cudnn", "fp32_matmul", "cudnn_tf32", "deterministic")
SET_BY_CODE = ("fp32_matmul", "cudnn_tf32")  # those of them that a commit may change
SOFTWARE_FIELDS = ("driver", "cuda", "torch", "triton", "liger_kernel", "python", *_ADDED_FIELDS)


@dataclass(frozen=True)
class Comparison:
    """How the machine of a run differs from that of its baseline."""

    foreign: tuple[Move, ...]  # the baseline is of another kind of machine: nothing is compared
    # the baseline is an older one: all is compared, and every verdict names this
    moved: tuple[Move, ...]

    @property
    def moves(self) -> tuple[Move, ...]:
        return self.foreign + self.moved

    @property
    def identical(self) -> bool:
        """The same kind of machine with the same software."""
        return not self.moves

    def __str__(self) -> str:
        return ", ".join(map(str, self.moves)) or "identical"


def compare_fingerprints(
    before: Fingerprint, after: Fingerprint, *, without: Sequence[str] = ()
) -> Comparison:
    """Compare the fingerprint of a baseline with that of a run, without some fields."""

    def changes(fields: Sequence[str]) -> tuple[Move, ...]:
        sides = ((field, getattr(before, field), getattr(after, field)) for field in fields)
        return tuple(
            Move(field, *(None if each is None else str(each) for each in (old, new)))
            for field, old, new in sides
            if old != new
            and field not in without
            and (old is not None or field not in _ADDED_FIELDS)
        )

    return Comparison(changes(_FOREIGN_FIELDS), changes(SOFTWARE_FIELDS))


# By how much memory of unchanged code moves, as a share and in bytes. The peak of training steps and
# ResNets moved by 0.3 to 1.1 % between processes on an H100: workspaces. What Python keeps of a call
# varies by up to 1,707 bytes, of a Llama that decodes on H200s (torch 2.11), and by 1,159, of nested
# tensors (torch 2.13). A few indices that are found in random data move the peak of a small call.
# What a module holds does not vary.
_NOISE = {
    "grown_bytes": (0.02, 0),
    "grown_host_bytes": (0.02, 3072),
    "cyclic_bytes": (0.02, 4096),
    "peak_allocated_bytes": (0.02, 4096),
    "peak_host_bytes": (0.02, 65536),
}
_COUNTS_OF_COMPILER = (
    "compiled_ops",
    "generated_kernels",
    "autotuned_configurations",
    "uncached_graphs",
)
COMPILE_COUNTS = ("graphs", *_COUNTS_OF_COMPILER)  # what a compile time depends on
# A module that draws data on import has another seed in each process. Counts of hits with four
# coordinates spread by 2 roots.
_CHANCE = 6.0
# Software that a count belongs to as much as to the code: another version of it may count otherwise
# for the same work.
_SOFTWARE_OF = dict.fromkeys(
    (
        "dispatcher_ops",
        "autograd_nodes",
        "peak_allocated_bytes",
        "grown_bytes",
        "cyclic_bytes",
        "grown_host_bytes",
        "held_bytes",  # autograd chooses what it saves
        *_COUNTS_OF_COMPILER,
    ),
    frozenset({"torch"}),
) | {"peak_host_bytes": frozenset({"torch", "python"})}


def count_changes(
    before: Counts, after: Counts, others: AbstractSet[str] = frozenset()
) -> dict[str, bool | None]:
    """Return the counts that changed, and whether each is a loss. None: fewer or more distinct
    kernels are neither.

    A CUDA graph that is launched no more is a loss, and the first one is none.

    Memory changed where it moved by more than recorded runs of unchanged code do. A count that one
    side lacks, as an older baseline does, is not compared. `others`: software that has another
    version, whose counts are left out.
    """
    found: dict[str, bool | None] = {}
    for field in after.__struct_fields__:
        old, new = getattr(before, field), getattr(after, field)
        if None in (old, new) or old == new or others & _SOFTWARE_OF.get(field, frozenset()):
            continue
        share, least = _NOISE.get(field, (0.0, 0))
        if abs(new - old) <= max(share * old, least):
            continue
        is_graph = field == "graph_launches" and 0 in (old, new)
        found[field] = None if field == "kernels" else old > 0 if is_graph else new > old
    return found


def other_data(
    before: Mapping[str, Sequence[str]], after: Mapping[str, Sequence[str]]
) -> dict[str, OtherPlacement]:
    """Return what differs in `Run.data`, by op. What one side lacks is not known there."""
    found: dict[str, OtherPlacement] = {}
    for op in (op for op in after if op in before):
        (old, old_texts), (new, new_texts) = (amounts_of(side[op]) for side in (before, after))
        pairs = ((kind, old.get(kind), new.get(kind)) for kind in old | new)
        amounts = tuple(each for each in pairs if not _are_alike(*each))
        texts = other_texts(old_texts, new_texts)
        if texts or amounts:
            found[op] = OtherPlacement((), arguments=texts, amounts=amounts)
    return found


def _are_alike(kind: str, old: int | None, new: int | None) -> bool:
    """Tell whether two amounts are equal, or may be those of data of two seeds."""
    if kind == INDICES and None in (old, new):
        return True  # an older baseline lacks them; or they follow from data
    if old is None or new is None or kind in (RETURNED, INDICES):
        return old == new
    return abs(new - old) <= _CHANCE * math.sqrt(old + new)


class Process(msgspec.Struct, frozen=True, omit_defaults=True):
    """The measurements of one process. A baseline learns its noise from several."""

    gpu: str | None  # a digest of the GPU's UUID. None: a CPU
    timers: dict[Timer, Observation]
    controls: dict[str, ControlTime]  # the reference kernels beside them, by name
    host: str | None = None  # a digest of the host's name, or another label of it. None: not known
    day: Day | None = None  # when it was measured. None: not known

    @property
    def host_references_us(self) -> dict[Timer, float]:
        """The host reference beside each time."""
        return {
            timer: each.control_us
            for timer, each in self.timers.items()
            if each.control_us is not None
        }

    @property
    def place(self) -> str | None:
        """The machine that its times are of: the GPU, or the host where there is none."""
        return self.gpu or self.host


class Entry(msgspec.Struct, frozen=True):
    """The workload's kernels in their launch configurations, and the times of each process."""

    kernels: tuple[KernelRecord, ...]
    processes: Annotated[tuple[Process, ...], msgspec.Meta(min_length=1)]

    @property
    def device_time_us(self) -> float:
        return sum(kernel.device_time_us for kernel in self.kernels)

    def kernels_in(self, device_us: float | None) -> Sequence[KernelRecord]:
        """Return its kernels where a call takes so long on the device, in microseconds; None: as
        they are stored.

        They are means over all processes, and one GPU is faster or slower than that in all of them.
        """
        usual_us = [
            each.timers[Timer.DEVICE].mean_us
            for each in self.processes
            if Timer.DEVICE in each.timers
        ]
        if device_us is None or not usual_us:
            return self.kernels
        factor = device_us / fmean(usual_us)
        return [
            rounded(replace(each, device_time_us=factor * each.device_time_us))
            for each in self.kernels
        ]


def is_host_only(timer: Timer, counts: Counts, device_us: float, call_us: float) -> bool:
    """Return whether the host does not wait for the GPU within a call, or the GPU idles for more
    than half of it.
    """
    waits = timer is Timer.END_TO_END or counts.synchronizations > 0
    return timer in (Timer.HOST, Timer.END_TO_END) and (not waits or 2 * device_us < call_us)


class Recorded(msgspec.Struct, frozen=True, omit_defaults=True):
    """How the last acceptance of a baseline came about."""

    at: str  # when the accepted run began: UTC, ISO 8601
    # of the measured working tree, with ``+`` behind it if that had changes; None: not known
    commit: str | None
    kernelgauge: str  # its version
    release: str | None = None  # the nearest tag of that commit; None: none, or not known
    because: str = ""  # what the person who accepted it gave as the reason
    # whether its result was compared with float64; None: not known, as in older files
    compared: bool | None = None


class Anchor(msgspec.Struct, frozen=True):
    """Times that no acceptance moves (`judge.review`).

    Each time of a workload has at most one anchor.
    """

    at: str  # when the newest of them was measured; empty: not known
    release: str | None  # the latest one when they became the anchor
    accepted: Count  # how often the file was written since
    processes: tuple[Process, ...]  # one for each GPU, or for each host of a CPU


class Baseline(msgspec.Struct, frozen=True, omit_defaults=True):
    """One file of `baselines/<gpu>/`.

    Field order is the order in the file; older files lack the last fields.
    """

    schema_version: Literal[5]
    suite: str  # folder of the suite that declares the workload: what may be trimmed with it
    workload: str
    fingerprint: Fingerprint
    counts: Counts
    # One. Older files have an entry for each configuration that an autotuner chose, the most
    # frequent first.
    entries: Annotated[tuple[Entry, ...], msgspec.Meta(min_length=1)]
    recorded: Recorded | None = None
    origins: tuple[Origin | None, ...] = ()  # of each kernel; shown and never judged
    ops: dict[str, Count] = {}  # how often each dispatcher op ran
    # that wait for the device or copy: ``aten::item: cudaStreamSynchronize``
    host_calls: dict[str, Count] = {}
    data: dict[str, tuple[str, ...]] = {}  # as `Run.data`
    # graph breaks and recompiles, from the first call on
    compile_events: tuple[CompileEvent, ...] = ()
    peak: tuple[PeakPart, ...] = ()  # where a call allocated the memory of its peak, the most first
    # as `Run.host_work`
    host_work: dict[str, Count] = {}
    host_spread: dict[str, Count] = {}
    anchors: tuple[Anchor, ...] = ()
    choices: tuple[KernelChoice, ...] = ()  # as `Run.choices`
    calling_code: dict[str, Count] = {}  # as `Run.calling_code`
    statements: tuple[str, ...] = ()  # as `Run.statement_keys`
    functions: str = ""  # as `Run.functions`
    # fields of a newer version, which stay in the file while it is added to
    newer: dict[str, Any] = {}

    @property
    def is_compared(self) -> bool | None:
        """Whether its result was compared with float64. None: not known."""
        return self.recorded.compared if self.recorded is not None else None

    def choices_to_replay(self) -> tuple[KernelChoice, ...]:
        """Return the choices that a run must take: an older baseline tells those of Inductor's
        kernels by their launches.
        """
        identities = {each.identity for each in self.kernels if each.identity.is_inductors}
        return self.choices or tuple(
            KernelChoice(each.unnumbered, "", config, each.source_hash or "")
            for each in sorted(identities, key=lambda it: it.name)
            if (config := each.choice)
        )

    @property
    def entry(self) -> Entry:
        return self.entries[0]

    @property
    def kernels(self) -> tuple[KernelRecord, ...]:
        return self.entry.kernels

    @property
    def processes(self) -> tuple[Process, ...]:
        return self.entry.processes

    def times(self, timer: Timer, *, gemm: str | None = None) -> list[ProcessTime]:
        """Return the times of each process.

        `gemm`: name of the run's reference GEMM. The time of another one is not comparable.
        """
        times_us = [each.timers[timer].mean_us for each in self.processes if timer in each.timers]
        is_by_host = is_compared_by_host(timer, self, self.entry.device_time_us, times_us)
        return times_of(self.processes, timer, is_by_host, gemm)


def is_compared_by_host(
    timer: Timer, of: Baseline | Run, device_us: float, times_us: Sequence[float]
) -> bool:
    """Return whether times of a call are compared by their ratio to the host reference.

    On a CPU the host does all of it.
    """
    is_by_host = bool(times_us) and is_host_only(timer, of.counts, device_us, fmean(times_us))
    return is_by_host or (timer is Timer.END_TO_END and of.fingerprint.arch == "cpu")


def times_of(
    processes: Iterable[Process], timer: Timer, is_by_host: bool = False, gemm: str | None = None
) -> list[ProcessTime]:
    """Return a time of stored processes as a side of a comparison.

    `gemm`: as in `Baseline.times`.
    """
    return [
        ProcessTime(
            each.timers[timer],
            night=each.day,
            place=each.place,
            host=each.host,
            is_host_clock=timer.timing.is_host_clock,
            is_by_host=is_by_host,
            references_us=references_us(each.controls, gemm),
        )
        for each in processes
        if timer in each.timers
    ]


def references_us(controls: Mapping[str, ControlTime], gemm: str | None) -> dict[str, float]:
    """Return the times of the reference kernels, in microseconds, without a GEMM of another name
    than `gemm`.
    """
    return {
        name: each.device_time_us
        for name, each in controls.items()
        if name != "gemm" or each.kernel == gemm
    }


def gemm_kernel(controls: Mapping[str, ControlTime]) -> str | None:
    """Return the name of the reference GEMM's kernel; None if it was not measured."""
    return controls["gemm"].kernel if "gemm" in controls else None


def process_of(run: Run) -> Process:
    """Return the times of a run as they are stored."""
    device_us = sum(each.device_time_us for each in run.kernels)
    timers = {
        timer: rounded(
            observe(
                sample,
                is_by_host=is_host_only(timer, run.counts, device_us, observe(sample).mean_us),
            )
        )
        for timer in Timer
        if (sample := run.sample(timer)) is not None
    }
    return Process(
        run.gpu,
        timers,
        {name: rounded(each) for name, each in run.controls.items()},
        run.host,
        run.day,
    )


def from_run(run: Run, *, suite: str = "", recorded: Recorded | None = None) -> Baseline:
    """Return the baseline that accepting `run` would store. `suite`: none if nothing stores it."""
    # msgspec 0.18 omits the default itself alone
    origins = tuple(map(_stored_origin, run.origins)) or ()
    kernels = _averaged(run.kernels, origins)
    return Baseline(
        schema_version=SCHEMA_VERSION,
        suite=suite,
        workload=run.workload,
        fingerprint=run.fingerprint,
        counts=run.counts,
        entries=(Entry(kernels, (process_of(run),)),),
        recorded=recorded,
        origins=origins,
        # by name, so that an op that runs earlier changes no line of the file
        ops=_by_name(Counter(each.name for each in run.ops if is_dispatched(each.name))),
        host_calls=_by_name(Counter((*run.synchronizing_ops, *run.copying_ops))),
        data=_by_name(run.data),
        compile_events=run.compile_events,
        peak=tuple(replace(each, origin=_stored_origin(each.origin)) for each in run.peak) or (),
        calling_code=run.calling_code,
        statements=run.statement_keys,
        functions=run.functions,
        host_work=_by_name(run.host_work),
        host_spread=_by_name(run.host_spread),
        choices=tuple(replace(each, recorded="", error="") for each in run.choices) or (),
    )


def _stored_origin(origin: Origin | None) -> Origin | None:
    """Return an origin without its callers and numbers of lines: a line that is added above would
    change all those below it.
    """
    if origin is None:
        return None
    return replace(origin, callers=(), lines=tuple(dict.fromkeys(map(_unnumbered, origin.lines))))


def _unnumbered(line: SourceLine) -> SourceLine:
    inner = line.inner and _unnumbered(line.inner)
    return replace(line, line=0 if line.code else line.line, inner=inner)


_Value = TypeVar("_Value")


def _by_name(values: Mapping[str, _Value]) -> dict[str, _Value]:
    return dict(sorted(values.items()))


def _averaged(
    kernels: Sequence[KernelRecord], origins: Sequence[Origin | None]
) -> tuple[KernelRecord, ...]:
    """Give equal launches of the same lines of code the mean of their times: a model has a layer
    many times.
    """
    places = origins if len(origins) == len(kernels) else [None] * len(kernels)
    keys = [
        replace(each, device_time_us=0.0, origin=place)
        for each, place in zip(kernels, places, strict=True)
    ]
    times: dict[object, list[float]] = defaultdict(list)
    for key, kernel in zip(keys, kernels, strict=True):
        times[key].append(kernel.device_time_us)
    return tuple(
        rounded(replace(key, device_time_us=fmean(times[key]), origin=None)) for key in keys
    )


_Stored = TypeVar("_Stored", KernelRecord, ControlTime, Observation)


def rounded(stored: _Stored) -> _Stored:
    numbers = {
        name: value
        for name, value in msgspec.structs.asdict(stored).items()
        if isinstance(value, float)
    }
    decimals = {"spread": _SPREAD_DECIMALS}
    return replace(
        stored,
        **{name: round(value, decimals.get(name, _DECIMALS)) for name, value in numbers.items()},
    )


def combined(runs: Sequence[Baseline]) -> Baseline:
    """Return the baseline of several runs of one workload, each from a process of its own.

    Raises `ValueError` if the runs ran other kernels or launch configurations, counted other things
    or ran on other machines: such a difference is a change and no noise.
    """
    first = runs[0]
    for other in runs[1:]:
        if count_changes(first.counts, other.counts):
            raise ValueError(
                f"the processes counted differently: {first.counts} and {other.counts}"
            )
        if not (comparison := compare_fingerprints(first.fingerprint, other.fingerprint)).identical:
            raise ValueError(f"the processes ran on different machines or software: {comparison}")
        if not are_alike(first.kernels, other.kernels):
            raise ValueError("the processes ran different kernels or launch configurations")
    data = {
        op: texts
        for op, texts in first.data.items()
        if all(each.data.get(op) == texts for each in runs)
    }
    work, spread = joined_work([(each.host_work, each.host_spread) for each in runs])
    functions = {each.functions for each in runs}
    return replace(
        first,
        entries=(joined_entry([each.entry for each in runs]),),
        data=data,
        host_work=work,
        host_spread=spread,
        functions=functions.pop() if len(functions) == 1 else "",
    )


def joined_entry(entries: Sequence[Entry]) -> Entry:
    """Return an entry with the processes of all, which have the same launch configurations."""
    processes = tuple(process for entry in entries for process in entry.processes)
    kernels: list[KernelRecord] = []
    for of_one in zip(*(entry.kernels for entry in entries), strict=True):
        times = (
            len(entry.processes) * each.device_time_us
            for entry, each in zip(entries, of_one, strict=True)
        )
        known = [each.resources for each in of_one if each.resources is not None]
        one = replace(of_one[0], device_time_us=math.fsum(times) / len(processes))
        one = replace(one, arguments=common_arguments([each.arguments for each in of_one]))
        resources = known[0].filled(known[-1]) if known else None
        if resources and len({each.layout for each in known if each.layout}) > 1:
            resources = replace(resources, layout="")
        kernels.append(rounded(replace(one, resources=resources)))
    return Entry(tuple(kernels), processes)


# -- the file --------------------------------------------------------------------------------------


class _Versioned(msgspec.Struct):
    schema_version: int


def encode_baseline(baseline: Baseline) -> bytes:
    """Return JSON with a stable key order, one line for each timer of each process, and a final
    newline.
    """
    return layout(fold_baseline(msgspec.to_builtins(baseline))).encode() + b"\n"


def fold_baseline(stored: Any) -> Any:
    """Return a baseline as its file has it: launches that are alike are one row, and so are
    origins.
    """
    stored |= stored.pop("newer", {})  # each is a field of the file, as it was
    for entry in stored["entries"]:
        folded, processes = fold(entry.pop("kernels")), entry.pop("processes")
        entry |= {"kernels": folded["rows"], "sequence": folded["sequence"], "processes": processes}
    if "origins" in stored:
        stored["origins"] = fold(stored["origins"])
    return stored


def unfold_baseline(stored: Any) -> Any:
    """Return the content of a file with each launch in full.

    Raises `ValueError` if a sequence fits no rows.
    """
    try:
        for index, entry in enumerate(stored["entries"]):
            where = f"entries[{index}]"
            entry["kernels"] = unfold(
                {"rows": entry["kernels"], "sequence": entry.pop("sequence")}, where
            )
        if "origins" in stored:
            stored["origins"] = unfold(stored["origins"], "origins")
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"no rows and sequence: {error!r}") from error
    return stored


def fold(values: Sequence[Any]) -> dict[str, list[Any]]:
    """Return the different values, in order of the first of each, and the place of each value among
    them.
    """
    texts = [json.dumps(value) for value in values]
    places = {text: place for place, text in enumerate(dict.fromkeys(texts))}
    return {
        "rows": [json.loads(text) for text in places],
        "sequence": [places[text] for text in texts],
    }


def unfold(folded: Any, where: str) -> list[Any]:
    """Return the values again. Raises `ValueError` for a place without a row."""
    rows, sequence = folded["rows"], folded["sequence"]
    if not all(type(place) is int and 0 <= place < len(rows) for place in sequence):
        raise ValueError(f"not the places of {len(rows)} rows - at `$.{where}.sequence`")
    return [rows[place] for place in sequence]


def layout(value: Any, indent: str = "", name: str = "") -> str:
    """Write JSON for a reader of diffs: an object or an array stands on one line if it fits, and so
    does each row.
    """
    line = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, (dict, list, tuple)) or len(indent) + len(line) <= _WIDTH:
        return line
    inner = indent + "  "
    if isinstance(value, dict):
        parts = [
            f"{json.dumps(key, ensure_ascii=False)}: {layout(part, inner, key)}"
            for key, part in value.items()
        ]
    elif name == "sequence":
        parts = [part.removesuffix(",") for part in textwrap.wrap(line[1:-1], _WIDTH - len(inner))]
    elif name in ("kernels", "rows", "choices"):
        parts = [json.dumps(row, ensure_ascii=False) for row in value]
    else:
        parts = [layout(part, inner) for part in value]
    return f"{line[0]}\n" + ",\n".join(inner + part for part in parts) + f"\n{indent}{line[-1]}"


def decode_baseline(content: bytes, *, where: str, workload: str) -> Baseline:
    """Parse and validate a baseline file.

    Raises `BaselineError` if it is anything but a baseline of `workload` in this schema: a file
    that is there and cannot be read is never treated as one that is missing.
    """
    conflict = b"<<<<<<<" in content
    try:
        version = msgspec.json.decode(content, type=_Versioned).schema_version
        if version != SCHEMA_VERSION:
            is_newer = version > SCHEMA_VERSION
            mend = (
                "pip install --upgrade kernelgauge"
                if is_newer
                else "pytest --perf-update   (records it again)"
            )
            raise (NewerBaselineError if is_newer else BaselineError)(
                (
                    f"the baseline was written by {'a newer' if is_newer else 'an older'} "
                    "version of kernelgauge"
                ),
                where=f"{where}, field schema_version",
                got=str(version),
                expected=str(SCHEMA_VERSION),
                next_command=mend,
            )
        stored = unfold_baseline(msgspec.json.decode(content))
        newer = {name: stored.pop(name) for name in stored.keys() - set(Baseline.__struct_fields__)}
        baseline = replace(msgspec.convert(stored, type=Baseline), newer=newer)
        _refuse_contradictions(baseline, workload)
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise BaselineError(
            "the baseline holds an unresolved merge conflict"
            if conflict
            else "the baseline cannot be read",
            where=where,
            got="an empty file"
            if not content.strip()
            else "markers of git"
            if conflict
            else printable(str(error)),
            expected=f"a kernelgauge baseline, schema_version {SCHEMA_VERSION}",
            next_command=f"git checkout {'--theirs ' if conflict else ''}-- {where}   "
            "(or delete it and record again with --perf-update)",
        ) from error
    kernels = (replace(it, identity=with_current_kind(it.identity)) for it in baseline.kernels)
    return replace(baseline, entries=(replace(baseline.entry, kernels=tuple(kernels)),))


def _refuse_contradictions(baseline: Baseline, workload: str) -> None:
    """Raise `ValueError` for what the types allow and no measurement shows, such as what is left of
    a merge by hand.
    """
    if baseline.workload != workload:
        raise ValueError(f"it belongs to another workload, {baseline.workload[:200]}")
    launches = baseline.counts.launches
    if launches != (count := len(baseline.kernels)):
        raise ValueError(f"{launches} launches, but there are {count} kernels - at `$.entries[0]`")
