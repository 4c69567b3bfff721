"""What a trace ran, as one sequence: the launches of a profiler step, each with its time in every step.

Steps that launched the same kernels are one measurement repeated. Where they differ, those that launched what most of
the steps did stand for the trace.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from .host import computing_ops
from .kernel import KernelIdentity, identity_of_op, identity_of_record
from .model import REGION, WHOLE, ApiCall, DeviceRecord, Op, Trace, Window
from .names import Kind

__all__ = ["Execution", "Lane", "LaneKernel", "executions", "lane_of"]


@dataclass(frozen=True)
class Execution:
    """One kernel that ran. `op` launched it; on a CPU it is the kernel. `record` is None there."""

    identity: KernelIdentity
    duration_us: float
    op: Op | None
    call: ApiCall | None
    record: DeviceRecord | None


@dataclass(frozen=True)
class LaneKernel:
    """One launch of the sequence. `durations_us`: one for each step."""

    identity: KernelIdentity
    durations_us: tuple[float, ...]
    op: str | None
    input_shapes: tuple[Any, ...] = ()
    input_types: tuple[str, ...] = ()
    does_the_op: bool = True  # the op launched no other kernel to do its work

    @property
    def device_time_us(self) -> float:
        return fmean(self.durations_us)


@dataclass(frozen=True)
class Lane:
    """The launch sequence that stands for a trace.

    `windows` are the steps whose times it has; `all_windows` those of the trace, among them some that launched
    something else. Without profiler steps there is one window, the whole trace.
    """

    kernels: tuple[LaneKernel, ...]
    windows: tuple[Window, ...]
    all_windows: tuple[Window, ...]
    on_cpu: bool

    @property
    def device_time_us(self) -> float:
        return sum(kernel.device_time_us for kernel in self.kernels)

    @property
    def is_whole_trace(self) -> bool:
        """There were no profiler steps: what is said is of the trace, and of no step."""
        return self.all_windows[0].name == WHOLE


def lane_of(trace: Trace, windows: Sequence[Window] | None = None) -> Lane:
    """`windows`: default the calls that `pytest perf` marks, else the profiler's steps, else the whole trace."""
    chosen = tuple(windows if windows is not None else trace.regions(REGION) or trace.steps()) or (trace.whole(),)
    # Launches without a single record are records that were lost, and no CPU.
    on_cpu = not trace.records and not trace.not_read and not any(call.is_launch for call in trace.calls)
    ran = [executions(window, on_cpu=on_cpu) for window in chosen]
    sequences = [tuple(execution.identity for execution in each) for each in ran]
    # The last of equally frequent ones: the first steps of a session are those that warm up. A step in which nothing was
    # launched stands for the trace only if nothing ever was.
    most, _ = Counter(filter(None, reversed(sequences))).most_common(1)[0] if any(sequences) else ((), 0)
    alike = [index for index, sequence in enumerate(sequences) if sequence == most]
    return Lane(
        kernels=_kernels([ran[index] for index in alike]),
        windows=tuple(chosen[index] for index in alike),
        all_windows=chosen,
        on_cpu=on_cpu,
    )


def executions(window: Window, *, on_cpu: bool) -> list[Execution]:
    """The kernels of a window, in launch order; those whose launch is not in the trace come last."""
    if on_cpu:
        return [Execution(identity_of_op(op), op.duration_us, op, None, None) for op in computing_ops(window)]
    return [
        *(
            Execution(identity_of_record(one.record, one.op), one.record.duration_us, one.op, one.call, one.record)
            for one in window.launches
        ),
        *(
            Execution(identity_of_record(record, None), record.duration_us, None, None, record)
            for record in window.orphans
            if record.category == "kernel"
        ),
    ]


def _kernels(ran: Sequence[Sequence[Execution]]) -> tuple[LaneKernel, ...]:
    last = ran[-1]
    launched = Counter(
        id(execution.op)
        for execution in last
        # What adds up the parts of a split-K product belongs to it: the product itself has done the op's work.
        if execution.op is not None and execution.identity.kind != Kind.SPLITK_REDUCE.value
    )
    return tuple(
        LaneKernel(
            execution.identity,
            tuple(each[place].duration_us for each in ran),
            execution.op.name if execution.op else None,
            execution.op.input_shapes if execution.op else (),
            execution.op.input_types if execution.op else (),
            does_the_op=launched[id(execution.op)] == 1 and execution.identity.kind != Kind.SPLITK_REDUCE.value,
        )
        for place, execution in enumerate(last)
    )
