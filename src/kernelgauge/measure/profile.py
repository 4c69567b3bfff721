"""One profiler session: schedule, export, and a refusal to believe records that do not pair."""

from __future__ import annotations

import math
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch.profiler import profile, record_function, schedule

from ..errors import MeasurementError
from ..results.files import unwritable
from ..trace import (
    REGION,
    Execution,
    KernelIdentity,
    Trace,
    Window,
    configuration_text,
    executions,
    is_dispatched,
    parse,
)
from . import Settings
from .device import Device
from .instance import Instance
from .nvml import Reading

_WAIT = 1  # calls before the profiler starts
# A session whose records do not pair is measured again. A profiler that loses records three times
# running does not recover in this process, and the answer is INVALID.
_ATTEMPTS = 3
_SHOWN_PROBLEMS = 5
_LOOK_EVERY = 8
# of a trace: the profiler takes seconds to tabulate that of a whole model
_LARGEST_TABLED_BYTES = 1_000_000
_HELD_SHARE = 0.9  # the middle half of the iterations does not see the rest

# of tensors that ops were given, by the op's id and the place among its inputs
_Lists = dict[int | None, dict[int, list[Any]]]


@dataclass(frozen=True)
class ProfilerSession:
    """The records of one session: a window for each iteration, all of them alike."""

    trace: Trace
    windows: tuple[Window, ...]
    executions: tuple[tuple[Execution, ...], ...]  # of each window, in launch order
    trace_json: bytes  # Perfetto opens it
    table: str  # the profiler's own; empty where it is not kept
    readings: Sequence[Reading]  # of the GPU's state, while it was held

    @property
    def usual_dispatch_us(self) -> float:
        """Host time of one call under the profiler.

        The slowest are left out, as many as need not be held.
        """
        ordered = sorted(window.duration_us for window in self.windows)
        return ordered[math.ceil(_HELD_SHARE * len(ordered)) - 1]

    @property
    def kernels(self) -> list[KernelIdentity]:
        """The kernels of each call, in launch order."""
        return [execution.identity for execution in self.executions[0]]

    @cached_property
    def replays_graphs(self) -> bool:
        """Whether it launches CUDA graphs."""
        return any(
            launch.call.is_graph_launch for window in self.windows for launch in window.launches
        )

    @property
    def runs_compiled_code(self) -> bool:
        """Whether it calls what Dynamo compiled."""
        return any(op.name == "TorchDynamo Cache Lookup" for op in self.windows[-1].ops)

    @property
    def was_held(self) -> bool:
        """Whether nearly all calls were dispatched in full before their first kernel began."""
        launches = [window.launches for window in self.windows if window.launches]
        held = [each[0].record.start_us >= each[-1].call.start_us for each in launches]
        return sum(held) >= _HELD_SHARE * len(held)


def profile_session(
    device: Device,
    instance: Instance,
    *,
    iterations: int,
    warmup: int = 1,
    hold_us: float = 0.0,
    is_structure: bool = False,
) -> ProfilerSession:
    """Profile `iterations` calls (schedule wait=1, warmup, active=iterations), each on a cold
    cache.

    Times need more `warmup` than structure: starting the profiler leaves the device idle, and its
    clock falls. They need `hold_us` too: the device is kept busy for that long while the call is
    dispatched, so that its kernels follow each other as they do in a full queue. Without it a slow
    host puts gaps between them, and a GEMM after a gap is 1 to 2 % faster: the host's speed would
    show in the device time. NVML is read a few times while the device is held. `is_structure`:
    record shapes, and keep the profiler's table.

    Raises `MeasurementError` if three sessions running have records that do not pair, or iterations
    that differ.
    """
    calls = _WAIT + warmup + iterations
    looks = range(_LOOK_EVERY - 1, calls, _LOOK_EVERY) or range(calls - 1, calls)
    readings: list[Reading] = []
    trace_json, table, problems = b"", "", list[str]()
    lists: _Lists = {}

    def export(profiler: Any) -> None:
        nonlocal trace_json, table, lists
        trace_json = exported(profiler)
        if is_structure and device.gpu is None:
            lists = _lists_of(profiler)
        if is_structure and len(trace_json) > _LARGEST_TABLED_BYTES:
            table = "The trace beside this file is too long for the profiler's table: kernelgauge trace TRACE\n"
        elif is_structure:
            averages = profiler.key_averages()
            table = averages.table(
                sort_by=device.table_sort_key, row_limit=-1, max_name_column_width=100
            )

    for _ in range(_ATTEMPTS):
        profiler = Profiler(
            activities=device.activities,
            schedule=schedule(wait=_WAIT, warmup=warmup, active=iterations, repeat=1),
            on_trace_ready=export,
            record_shapes=is_structure,
        )
        with warnings.catch_warnings(), profiler:
            # Each cycle is exported as it ends, so nothing is lost when the next one clears it.
            warnings.filterwarnings(
                "ignore", message=".*Profiler clears events", category=UserWarning
            )
            for index in range(calls):
                instance.prepare()
                device.flush_cache()
                if hold_us:
                    device.hold(hold_us)
                else:
                    device.synchronize()
                with record_function(REGION):
                    instance.call()
                if hold_us and index in looks:
                    readings.append(device.monitor.read())
                device.synchronize()
                profiler.step()
        trace = _with_lists(parse(trace_json, has_ops=is_structure or device.gpu is None), lists)
        windows = tuple(trace.regions(REGION))
        ran = tuple(tuple(executions(window, on_cpu=device.gpu is None)) for window in windows)
        session = ProfilerSession(trace, windows, ran, trace_json, table, readings)
        problems = _problems(session, iterations)
        if not problems:
            return session
    raise _untrusted(instance, session, iterations, problems)


def _untrusted(
    instance: Instance, session: ProfilerSession, iterations: int, problems: Sequence[str]
) -> MeasurementError:
    """Return why no session can be believed: the calls differ, or the profiler has lost records."""
    shown = "\n".join(problems[:_SHOWN_PROBLEMS])
    got = f"{shown}\n  in each of {_ATTEMPTS} sessions"
    # no record is missing
    if len(session.windows) == iterations and not session.trace.pairing_problems():
        return MeasurementError(
            f"{instance.workload.id}: its calls differ in their work",
            got=got,
            expected='the same launches in every call: let it begin by resetting what earlier calls left; pass_="step" does so with weights',
        )
    return MeasurementError(
        f"{instance.workload.id}: the profiler's records cannot be trusted",
        got=got,
        expected="one device record for each launch, and the same launches in every iteration",
        next_command="run again in a fresh process; no other profiler (CUPTI has one subscriber) may be attached",
    )


class Profiler(profile):
    """torch's profiler, which imports no Inductor to ask for one of its settings: that takes
    seconds.
    """

    def prepare_trace(self) -> None:
        with _without_inductor():
            super().prepare_trace()

    def start_trace(self) -> None:
        with _without_inductor():
            super().start_trace()


@contextmanager
def _without_inductor() -> Iterator[None]:
    """Let torch have no attribute `_inductor`, unless it was imported already (torch/__init__.py)."""
    lazy: set[str] = getattr(torch, "_lazy_modules", set())
    hidden = lazy & {"_inductor"} if "torch._inductor" not in sys.modules else set()
    lazy -= hidden
    try:
        yield
    finally:
        lazy |= hidden


def exported(profiler: Any) -> bytes:
    """Return a trace as the profiler writes it."""
    with tempfile.TemporaryDirectory(prefix="kernelgauge-") as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        try:
            return path.read_bytes()
        except OSError as error:  # the profiler itself only logs that it could not write
            elsewhere = f"df -h {path.parent.parent}; ulimit -f   (TMPDIR=DIR: elsewhere)"
            raise unwritable(path, error, elsewhere=elsewhere) from error


def _lists_of(profiler: Any) -> _Lists:
    """Return the lists of tensors that ops were given. A trace lacks their dtypes, and the whole of
    a list of more than 30 tensors.
    """
    found: _Lists = {}
    with suppress(AttributeError):  # private names: another version may lack them
        waiting = [*profiler.profiler.kineto_results.experimental_event_tree()]
        while waiting:
            event = waiting.pop()
            waiting += event.children
            kind, extra = event.typed
            if kind.name == "TorchOp":
                lists = {at: it for at, it in enumerate(extra.inputs) if isinstance(it, list)}
                found |= {event.correlation_id: lists} if lists else {}
    return found


def _with_lists(trace: Trace, lists: _Lists) -> Trace:
    """Return a trace whose ops have these lists."""
    ops = []
    for each in trace.ops if lists else ():
        op = each
        for place, tensors in lists.get(each.external_id, {}).items():
            sizes, strides = (
                [tuple(getattr(tensor, name)) for tensor in tensors]
                for name in ("sizes", "strides")
            )
            dtypes = [str(tensor.dtype).removeprefix("torch.") for tensor in tensors]
            op = op.with_list(place, sizes, dtypes, strides)
        ops.append(op)
    return replace(trace, ops=tuple(ops)) if lists else trace


@lru_cache
def parameters_of(op: str, count: int) -> dict[int, tuple[str, bool]]:
    """Return the name of each parameter of an op but its tensors, by place, and whether it is a
    dtype. All its schemas of so many arguments agree on it.
    """
    schemas = [each.arguments for each in schemas_of(op) if len(each.arguments) == count]
    found = {}
    for place, parts in enumerate(zip(*schemas, strict=True)):
        others = {
            (each.name, "ScalarType" in str(each.real_type))
            for each in parts
            if str(each.type) != "Tensor"
        }
        if len(others) == 1:
            found[place] = others.pop()
    return found


TEXT = ("str", "Optional[str]")  # types in a schema


@lru_cache
def texts_of(op: str) -> tuple[str, ...]:
    """Return the names of the parameters of an op that are texts, in any of its schemas."""
    every = chain.from_iterable(each.arguments for each in schemas_of(op))
    return tuple(dict.fromkeys(each.name for each in every if str(each.type) in TEXT))


def schemas_of(op: str) -> list[Any]:
    """Return the schemas of an op for tensors. TorchScript has others, of numbers and lists."""
    found = torch._C._jit_get_schemas_for_operator(op) if is_dispatched(op) else ()
    return [
        each
        for each in found
        if any("Tensor" in str(it.type) for it in (*each.arguments, *each.returns))
        and not each.overload_name.startswith("prim")
    ]


def _problems(session: ProfilerSession, iterations: int) -> list[str]:
    """Return why a session cannot be believed; empty if it can."""
    problems, windows = list(session.trace.pairing_problems()), session.windows
    if len(windows) != iterations:
        problems.append(f"lost: {len(windows)} of {iterations} iterations are in the trace")
    sequences = Counter(tuple(each.identity for each in it) for it in session.executions)
    if len(sequences) > 1:
        counts = sorted({len(sequence) for sequence in sequences})
        (usual, _), *others = sequences.most_common()
        sides = ((usual, others[-1][0]), (others[-1][0], usual))
        names = dict.fromkeys(
            each.shown for one, other in sides for each in multiset_difference(one, other)
        )
        problems.append(
            f"the iterations differ: {len(sequences)} launch sequences, of {counts} launches; "
            f"not in all: {', '.join([*names][:_SHOWN_PROBLEMS])}"
        )
    # what must be the same in each iteration, or some of it was lost
    exact: dict[str, list[object]] = {
        "memsets": [len(window.memsets) for window in windows],
        "copies": [len(window.copies) for window in windows],
        "synchronizations": [window.synchronizations for window in windows],
        "occupancy queries": [window.occupancy_queries for window in windows],
        "launch calls": [[launch.call.name for launch in window.launches] for window in windows],
    }
    for counted, values in exact.items():
        if len(different := sorted(set(map(str, values)))) > 1:
            problems.append(f"the iterations differ in {counted}: {', '.join(different)}")
    return problems


# Dispatch under the profiler varies with the host's speed; a hold that is too short is found out
# and doubled.
_HOLD_FACTOR = 1.5
_HOLD_LEAST_US = 50.0
# Longer than this, a call has more launches than a queue holds (1024), and no hold makes it follow
# without a gap.
_HOLD_MOST_US = 20_000.0


@dataclass
class HoldTime:
    """How one workload is called: learnt from its first sessions, corrected by later ones."""

    call_us: float
    hold_us: float
    is_settled: bool = False

    @classmethod
    def of(cls, call_us: float, structure: ProfilerSession) -> HoldTime:
        longest_us = max(window.duration_us for window in structure.windows)  # dispatch of a call
        return cls(call_us, min(_HOLD_MOST_US, max(_HOLD_LEAST_US, _HOLD_FACTOR * longest_us)))

    def held_session(
        self, device: Device, instance: Instance, settings: Settings
    ) -> ProfilerSession:
        """Make a session in whose calls the device had all launches before it began."""
        while True:
            session = profile_session(
                device,
                instance,
                iterations=settings.iterations_for(self.call_us),
                warmup=settings.warm_up_calls_for(self.call_us),
                hold_us=self.hold_us,
            )
            if any(window.synchronizations for window in session.windows):
                # a call that waits for the device itself cannot be dispatched ahead of it
                return session
            if session.was_held and not self.is_settled:
                # No longer than needed: the first session's slowest call is often several times
                # slower than the rest.
                self.hold_us = min(
                    self.hold_us, max(_HOLD_LEAST_US, _HOLD_FACTOR * session.usual_dispatch_us)
                )
            self.is_settled = True
            if session.was_held or self.hold_us >= _HOLD_MOST_US:
                return session
            self.hold_us = min(_HOLD_MOST_US, 2 * self.hold_us)


def multiset_difference(
    one: Sequence[KernelIdentity], other: Sequence[KernelIdentity]
) -> list[KernelIdentity]:
    """Return what `one` has more often than `other`; all of it if nothing but their order differs."""
    more = Counter(each.without_source for each in one) - Counter(
        each.without_source for each in other
    )
    return list(more.elements()) or list(one if len(one) == len(other) else ())


def names_with_configurations(identities: Iterable[KernelIdentity]) -> str:
    """Return names and launch configurations, as messages show them."""
    return (
        ", ".join(f"{each.shown} {configuration_text(each)}".rstrip() for each in identities)
        or "nothing else"
    )
