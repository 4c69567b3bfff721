"""One profiler session: schedule, export, and a refusal to believe records that do not pair."""

from __future__ import annotations

import math
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch.profiler import profile, record_function, schedule

from ..errors import MeasurementError
from ..trace import REGION, KernelIdentity, Trace, Window, parse
from ..trace.kernel import configuration_text
from .device import Device, Execution
from .instance import Instance

__all__ = ["ProfilerSession", "are_alike", "listed", "profile_session", "told_apart", "without"]

_WAIT = 1
_LOOKUP = "TorchDynamo Cache Lookup"  # the op of a call of compiled code
# A session whose records do not pair is measured again. A profiler that loses records three times running does not
# recover in this process, and the answer is INVALID.
_ATTEMPTS = 3
_LOOK_EVERY = 8
_HELD_SHARE = 0.9  # the middle half of the iterations does not see the rest


@dataclass(frozen=True)
class ProfilerSession:
    """What one session saw: a window for each iteration, all of them alike.

    `trace_json` and `table` are the artifacts: a trace that Perfetto opens, and the profiler's own table.
    """

    trace: Trace
    windows: tuple[Window, ...]
    executions: tuple[tuple[Execution, ...], ...]  # of each window, in launch order
    trace_json: bytes
    table: str

    @property
    def dispatch_us(self) -> float:
        """Host time of one call under the profiler: the longest of them."""
        return max(window.duration_us for window in self.windows)

    @property
    def usual_dispatch_us(self) -> float:
        """The same of nearly all calls: the slowest are left out, as many as need not be held."""
        ordered = sorted(window.duration_us for window in self.windows)
        return ordered[math.ceil(_HELD_SHARE * len(ordered)) - 1]

    @property
    def replays_graphs(self) -> bool:
        """Whether it launches CUDA graphs."""
        return any(launch.call.is_graph_launch for window in self.windows for launch in window.launches)

    @property
    def runs_compiled_code(self) -> bool:
        """Whether it calls what Dynamo compiled."""
        return any(op.name == _LOOKUP for op in self.windows[-1].ops)

    @property
    def was_held(self) -> bool:
        """Whether nearly all calls were dispatched in full before their first kernel began."""
        held = [
            window.launches[0].record.start_us >= window.launches[-1].call.start_us
            for window in self.windows
            if window.launches
        ]
        return sum(held) >= _HELD_SHARE * len(held)


def profile_session(
    device: Device,
    instance: Instance,
    *,
    iterations: int,
    warmup: int = 1,
    hold_us: float = 0.0,
    look: Callable[[], None] = lambda: None,
    flush: bool = True,
    record_shapes: bool = False,
    keep_table: bool = False,
) -> ProfilerSession:
    """Profile `iterations` calls (schedule wait=1, warmup, active=iterations), each on a cold cache.

    Times need more `warmup` than structure: starting the profiler leaves the device idle, and its clock falls. They need
    `hold_us` too: the device is kept busy for that long while the call is dispatched, so that its kernels follow each
    other as they do in a full queue. Without it a slow host puts gaps between them, and a GEMM after a gap is 1 to 2 %
    faster: the host's speed would show in the device time. `look` is called a few times while the device is busy.
    `flush`: whether each call finds a cold cache.

    Raises `MeasurementError` if, three times running, launches and device records do not pair or the iterations
    differ from one another.
    """
    problems: list[str] = []
    for _ in range(_ATTEMPTS):
        session = _profile_once(device, instance, iterations, warmup, hold_us, look, flush, record_shapes, keep_table)
        problems = session_problems(session, iterations)
        if not problems:
            return session
    shown = "\n".join(problems[:5]) + (f"\nand {len(problems) - 5} more" if len(problems) > 5 else "")
    raise MeasurementError(
        f"{instance.workload.id}: the profiler's records cannot be trusted",
        got=f"{shown}\n  in each of {_ATTEMPTS} sessions",
        expected="one device record for each launch, and the same launches in every iteration",
        next_command="run again in a fresh process; no other profiler (CUPTI has one subscriber) may be attached",
    )


def session_problems(session: ProfilerSession, iterations: int) -> list[str]:
    """Why a session cannot be believed; empty if it can."""
    problems = list(session.trace.pairing_problems())
    if len(session.windows) != iterations:
        problems.append(f"lost: {len(session.windows)} of {iterations} iterations are in the trace")
    sequences = {tuple(execution.identity for execution in executions) for executions in session.executions}
    if len(sequences) > 1:
        counts = sorted({len(sequence) for sequence in sequences})
        problems.append(f"the iterations differ: {len(sequences)} launch sequences, of {counts} launches")
    for what in ("memsets", "copies", "synchronizations", "occupancy queries", "launch calls"):
        seen = sorted({str(_exact(window)[what]) for window in session.windows})
        if len(seen) > 1:
            problems.append(f"the iterations differ in {what}: {', '.join(seen)}")
    return problems


def _exact(window: Window) -> dict[str, object]:
    """Return what must be the same in each iteration, or some of it was lost."""
    return {
        "memsets": len(window.memsets),
        "copies": len(window.copies),
        "synchronizations": window.synchronizations,
        "occupancy queries": window.occupancy_queries,
        "launch calls": [launch.call.name for launch in window.launches],
    }


def _profile_once(
    device: Device,
    instance: Instance,
    iterations: int,
    warmup: int,
    hold_us: float,
    look: Callable[[], None],
    flush: bool,
    record_shapes: bool,
    keep_table: bool,
) -> ProfilerSession:
    calls = _WAIT + warmup + iterations
    with tempfile.TemporaryDirectory(prefix="kernelgauge-") as folder:
        path = Path(folder) / "trace.json"
        exported: list[str] = []

        def export(profiler: profile) -> None:
            profiler.export_chrome_trace(str(path))
            if keep_table:
                averages = profiler.key_averages()
                exported.append(averages.table(sort_by=device.table_sort_key, row_limit=-1, max_name_column_width=100))

        profiler = profile(
            activities=device.activities,
            schedule=schedule(wait=_WAIT, warmup=warmup, active=iterations, repeat=1),
            on_trace_ready=export,
            record_shapes=record_shapes,
        )
        with warnings.catch_warnings(), profiler:
            # Each cycle is exported as it ends, so nothing is lost when the next one clears it.
            warnings.filterwarnings("ignore", message=".*Profiler clears events", category=UserWarning)
            for index in range(calls):
                instance.prepare()
                if flush:
                    device.flush_cache()
                if hold_us:
                    device.hold(hold_us)
                else:
                    device.synchronize()
                with record_function(REGION):
                    instance.call()
                if index % _LOOK_EVERY == _LOOK_EVERY - 1 or index == calls - 1 < _LOOK_EVERY - 1:
                    look()
                device.synchronize()
                profiler.step()
        trace_json = path.read_bytes()
    trace = parse(trace_json)
    windows = tuple(trace.regions(REGION))
    return ProfilerSession(
        trace=trace,
        windows=windows,
        executions=tuple(tuple(device.executions(window)) for window in windows),
        trace_json=trace_json,
        table="".join(exported),
    )


# -- which kernels ran, as far as it takes to notice that a compiler chose others ------------------------------------------


def told_apart(identities: Iterable[KernelIdentity]) -> list[str]:
    """Of each kernel the name; of one that Inductor tunes, with what its choice shows in: another one is another kernel."""
    return [
        f"{identity.name} (grid {identity.grid}, block {identity.block})" if identity.is_inductors else identity.name
        for identity in identities
    ]


def are_alike(one: Iterable[KernelIdentity], other: Iterable[KernelIdentity]) -> bool:
    """Whether they are the same kernels, in the same launch configurations and order."""
    return [each.without_source for each in one] == [each.without_source for each in other]


def without(one: Sequence[KernelIdentity], other: Sequence[KernelIdentity]) -> list[KernelIdentity]:
    """Return what `one` has more often than `other`; all of it if nothing but their order differs."""
    left = Counter(each.without_source for each in other)
    left.subtract(each.without_source for each in one)
    more = {identity: -count for identity, count in left.items() if count < 0}
    found = []
    for each in reversed(one):
        if more.get(each.without_source, 0) > 0:
            more[each.without_source] -= 1
            found.append(each)
    return found[::-1] or list(one if len(one) == len(other) else ())


def listed(identities: Iterable[KernelIdentity]) -> str:
    """Names and launch configurations, as messages show them."""
    return ", ".join(f"{each.shown} {configuration_text(each)}".rstrip() for each in identities) or "nothing else"
