"""One workload while it is measured: prepared, with its replicates, and the errors that end it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn

from ..errors import KernelgaugeError, MeasurementError, WorkloadError
from ..run import CompileEvent
from ..workload import Workload
from .compiler import compile_counts, reset_compiler
from .device import Device
from .instance import Instance, build, call_duration_us, first_call, reporting, warm_up
from .origins import Modules, Origins, origins_of
from .profile import ProfilerSession, profile_session
from .replicate import Pace, Replicate
from .settings import Settings


@dataclass(eq=False)
class Subject:
    """One workload while it is measured. Owned by the pass that measures it.

    Attributes:
        replicates: those that count.
        spoilt: on a disturbed machine.
        wanted: how many are to count, by a confirmation; None: as many as pin it down.
        only_instance: what all replicates are made on; None: each on one of its own.
    """

    workload: Workload
    structure: ProfilerSession
    pace: Pace
    graph_breaks: int
    peak: int | None
    modules: Modules
    origins: Origins = field(default_factory=Origins)
    is_control: bool = False
    recompiles: int = 0
    compile_events: tuple[CompileEvent, ...] = ()
    replicates: list[Replicate] = field(default_factory=list)
    spoilt: list[Replicate] = field(default_factory=list)
    wanted: int | None = None
    only_instance: Instance | None = None
    error: KernelgaugeError | None = None

    def own(self, settings: Settings) -> Settings:
        """How long to measure this one."""
        own = settings.for_call(self.pace.call_us)
        if self.wanted is None:
            return own
        return replace(own, replicates=self.wanted, most_replicates=self.wanted, budget_seconds=math.inf)

    def is_done(self, settings: Settings) -> bool:
        own = self.own(settings)
        if self.error is not None:
            return True
        times = [each.device_us for each in self.replicates]
        seconds = math.fsum(each.seconds for each in (*self.replicates, *self.spoilt))
        return own.is_enough(times, seconds)

    def end(self, error: KernelgaugeError) -> None:
        """Measure it no more. The memory of its instance is for the others."""
        self.error = error
        self.only_instance = None


def told(error: KernelgaugeError, device: Device) -> KernelgaugeError:
    """Return the error as it is reported: without the frames, which hold a workload's memory while others are measured."""
    if device.lost():
        return DeviceLost(error)
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)


class DeviceLost(MeasurementError):
    """Nothing can be measured any more. What was before is sound."""

    def __init__(self, error: KernelgaugeError | None = None) -> None:
        super().__init__(
            "the GPU no longer answers",
            got=None if error is None else str(error),
            expected="no CUDA error: after one, nothing in this process can be measured",
            next_command="dmesg | grep -i xid   (what happened to it?)",
        )


# -- before anything is timed: compile, call and profile ------------------------------------------------------------------

_NOTHING_COMPILED = CompileEvent("graph break", "torch.compile is switched off: all of it runs eagerly")
_STRUCTURE_ITERATIONS = 3  # the article's schedule (docs/claims.md, C24): wait=1, warmup=1, active=3


def prepare_together(
    waiting: Sequence[Workload],
    device: Device,
    failed: dict[str, KernelgaugeError],
    progress: Callable[[str], None],
) -> tuple[list[Subject], list[Workload]]:
    """Compile and profile as many workloads as can share a process's compiled code; (those, the others).

    Those that fail are put into `failed`, by id.
    """
    reset_compiler()
    subjects: list[Subject] = []
    deferred: list[Workload] = []
    roots: set[object] = set()
    for workload in waiting:
        instance: Instance | None = None  # gone before the next one is built
        try:
            instance = build(workload, device)
            root = None if workload.compile is None else _compiled_root(instance.module)
            # After a graph break functions are compiled on their own that the next workload may call too.
            if root is not None and (root in roots or compile_counts().graph_breaks):
                deferred.append(workload)
                continue
            if root is not None:
                roots.add(root)  # before it runs: one that fails may have compiled as well
            progress(f"{workload.id}: {'profiling' if root is None else 'compiling and profiling'}")
            subjects.append(prepare(workload, instance, device))
        except KernelgaugeError as error:
            failed[workload.id] = told(error, device)
    return subjects, deferred


def _compiled_root(module: Any) -> object:
    """Return what Dynamo keeps the compiled code under. Two workloads of one root would see each other's: another shape of the
    same code compiles for dynamic shapes, with other kernels."""
    if isinstance(module, nn.Module):
        # A module of torch itself is compiled through a wrapper that all of them share (torch/_dynamo/eval_frame.py).
        if type(module).__module__.startswith("torch.nn."):
            return "torch.nn"
        return getattr(getattr(type(module), "forward", None), "__code__", type(module))
    return getattr(module, "__code__", type(module))


def prepare(workload: Workload, instance: Instance, device: Device) -> Subject:
    with reporting(workload, "measuring"), instance.grad_mode():
        before = compile_counts()
        first_call(instance)
        after = compile_counts()
        warm_up(device, instance, calls=device.warm_up_calls, seconds=0)
        call_us = call_duration_us(device, instance)
        session = profile_session(device, instance, iterations=_STRUCTURE_ITERATIONS, is_structure=True)
        if not session.executions[0]:
            raise WorkloadError(f"{workload.id}: it runs no kernel, so there is nothing to measure")
        instance.prepare()
        prepared = compile_counts()
        peak = device.peak_allocated_bytes(instance.call)
        modules = Modules(instance.module, before.traced)
        breaks, events = after.graph_breaks - before.graph_breaks, modules.located(prepared.events_since(before))
        if workload.compile is not None and not events and not session.runs_compiled_code:
            breaks, events = breaks + 1, (*events, _NOTHING_COMPILED)
        return Subject(
            workload=workload,
            structure=session,
            pace=Pace.of(call_us, session),
            graph_breaks=breaks,
            recompiles=prepared.recompiles_since(after),
            compile_events=events,
            peak=peak,
            modules=modules,
            origins=origins_of(instance, modules, session, device),
            # Inductor records a CUDA graph for the addresses of each instance, and keeps them all: a call looks for its own
            # among them, so that its dispatch would take longer with each (docs/measuring.md).
            only_instance=instance if session.replays_graphs else None,
        )
