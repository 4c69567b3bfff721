"""The judge's side of a contest: processes that run only while they are waited for, outputs read from outside, and the clock.

A candidate may patch whatever its own process has. Causality is what it cannot patch: the inputs of a batch do not exist
before the clock starts, and the clock stops once results lie in memory of the judge (docs/design/judge.md). On a GPU, calls
are queued before their inputs exist, and its clock leaves the host out.
"""

from __future__ import annotations

import ctypes
import math
import pickle
import secrets
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from statistics import median
from typing import Any

import msgspec
import torch

from ..errors import CandidateRefused, KernelgaugeError
from ..results.files import GpuLock
from ..run import Run, Sample
from .device import Device
from .guest import GuestProcess, Reply
from .instance import TORCH_DTYPES, Arguments
from .memory import Arena, Gate
from .oracle import NORMAL, VALUES, Case, Oracle

_PROCESSES = 2  # of each side: the fewest that show a spread
_REPLICATES, _BATCHES = 4, 3  # of each process; and each is the fastest of so many batches
_BATCH_SECONDS = 0.02
_CALLS = {"cpu": (4, 16), "cuda": (8, 64)}  # in a batch: the fewest, the most
_READ_SHARE = 8  # one in so many outputs is read before the clock stops, and nobody knows which
_ARENA_BYTES = {"cpu": 2**28, "cuda": 2**31}
# The GPU waits so long for a process to queue a batch: so many times what the whole batch took before, and at most the second.
_HOLDS, _LONGEST_HOLD_S = 3.0, 0.1
_HOLD_ATTEMPTS = 3  # of the reference: each has twice the time of the last
_FILLS = 5  # how often arguments are written alone, to learn how long that takes
_QUIET_PATIENCE_S = 10.0  # for the GPU to be idle: the start of another process takes less
_PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER = 4, 36  # of prctl.h
_CANDIDATE, _REFERENCE = "candidate", "reference"
_RANDOM = secrets.SystemRandom()

_Drawn = tuple[list[Arguments], list[Any]]
_Times = dict[tuple[Case, bool, int], list[float]]  # of the batches of each process, by the GPU's clock or the host's


class CaseTimes(msgspec.Struct):
    """The times of one case, in microseconds a call: a sample of each process."""

    case: str
    reference: list[Sample]
    candidate: list[Sample]
    calls: int  # in a batch
    input_bytes: int
    output_bytes: int
    clock: str  # "gpu": of queued calls, without the host's part; "host": from arguments to results
    floor_us: float | None  # that no call can be below: writing its outputs at the peak of the memory


class Contest(msgspec.Struct):
    """What was observed of a candidate that is correct."""

    cases: list[CaseTimes]
    checked_calls: int
    checked_values: list[str]  # kinds of inputs
    is_cpu: bool
    peak_bytes_per_second: float | None
    runs: list[Run | None]  # of reference and candidate, as each process observed itself


class Referee:
    """Judges candidates by one reference: its processes are timed before a candidate exists, and when it is dead.

    Raises `KernelgaugeError` if the reference is of no use.
    """

    def __init__(self, reference: str, device: Device, stack: ExitStack, progress: Callable[[str], None]) -> None:
        if not sys.platform.startswith("linux"):
            raise KernelgaugeError("judge reads memory as Linux has it", got=sys.platform, expected="Linux")
        for option, value in ((_PR_SET_CHILD_SUBREAPER, 1), (_PR_SET_DUMPABLE, 0)):  # nobody escapes, or reads this
            ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
        progress("asking the reference for inputs and results")
        self._device, self._stack, self._progress, self._gpu_lock = device, stack, progress, GpuLock()
        self._oracle, kind = Oracle(reference, device), device.torch_device.type
        self._kinds = {case: self._oracle.legal_values(case) for case in self._oracle.cases}
        self._bytes = {case: self._oracle.sizes(case) for case in self._oracle.cases}
        self._calls: dict[Case, int] = {}  # in a batch
        self._fill_s: dict[Case, float] = {}  # to write the arguments of a batch
        self._checked = 0
        self._gate = Gate(device) if device.gpu is not None else None
        taken = max(Arena.room(given, tensors) for given, _, tensors in self._bytes.values())
        room = max(3 * taken, min(_ARENA_BYTES[kind], (_CALLS[kind][1] + 1) * taken))
        self._processes: list[GuestProcess] = []
        self._arena = Arena(device, room, 2**20 + 4 * max(given + taken for given, taken, _ in self._bytes.values()))
        self._folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="kernelgauge-"))
        try:
            self._references = self._start(_REFERENCE, reference)
            with self._alone():
                self._arena.learn_quiet()
                for case in self._oracle.cases:
                    self._choose_size(case)
                progress("timing the reference")
                self._before = self._times(self._references, _BATCHES * _REPLICATES // 2, self._oracle.cases)
                queued = self._oracle.cases if self._gate is not None else []
                self._before |= self._times(self._references, _BATCHES * _REPLICATES // 2, queued, on_gpu=True)
                self._run = self._observed(self._references[0])
        except (CandidateRefused, RuntimeError) as error:  # torch's own: no CUDA IPC here
            raise KernelgaugeError("the reference cannot be judged", got=str(error)) from error

    def judge(self, candidate: str) -> Contest:
        """Check and time a candidate. Raises `CandidateRefused` if it is not correct or cheats."""
        self._checked = 0
        self._progress("checking the candidate")
        candidates: list[GuestProcess] = []
        try:
            candidates += self._start(_CANDIDATE, candidate)
            with self._alone():
                for case, kinds in self._kinds.items():
                    for each in candidates:
                        self._check_values(each, case, kinds)
                self._progress("timing the candidate")
                queued = [case for case in self._oracle.cases if (case, True, 0) in self._before]
                times = self._times(candidates, _BATCHES * _REPLICATES, queued, on_gpu=True)
                others = [case for case in self._oracle.cases if (case, True, 0) not in times]
                times |= self._times(candidates, _BATCHES * _REPLICATES, others)
                run = self._observed(candidates[0])
        finally:
            for each in [each for each in self._processes if each.side == _CANDIDATE]:
                each.end()
        self._progress("timing the reference again")
        with self._alone():
            after = self._times(self._references, _BATCHES * _REPLICATES // 2, others)
            queued = [case for case in queued if case not in others]
            after |= self._times(self._references, _BATCHES * _REPLICATES // 2, queued, on_gpu=True)
        if after.keys() != times.keys():
            raise KernelgaugeError(
                "the reference no longer queues its calls in time", expected="a host that is less busy"
            )
        both = {key: self._before[key] + after[key] for key in after}
        self._before |= after
        cases = [self._case_times(case, both, times) for case in self._oracle.cases]
        values = [each for each in VALUES if any(each in legal for legal in self._kinds.values())]
        peak, runs = self._device.peak_bytes_per_second, [self._run, run]
        return Contest(cases, self._checked, values, self._device.gpu is None, peak, runs)

    def _start(self, side: str, target: str) -> list[GuestProcess]:
        """Start the processes of one side, all at once."""
        processes = [GuestProcess(target, self._arena, self._folder, side, self._processes) for _ in range(_PROCESSES)]
        for each in processes:
            self._stack.callback(each.end)
            each.answer()
            each.stop()
        for each in processes:
            for dtype in dict.fromkeys(case.dtype for case in self._oracle.cases):
                each.ask("prepare", TORCH_DTYPES[dtype], self._oracle.arguments, self._oracle.state)
            for case in self._oracle.cases:  # the first call compiles
                self._batch(each, case, [NORMAL], is_alone=False)
        return processes

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Let no other run of ours use the GPU."""
        if self._device.gpu is not None:
            self._gpu_lock.hold(self._device.gpu, self._progress)
        try:
            yield
        finally:
            self._gpu_lock.release()

    def _choose_size(self, case: Case) -> None:
        """Choose how many calls a batch has: about as many as take some milliseconds, and have room in the arena."""
        fewest, most = _CALLS[self._device.torch_device.type]
        given, _, tensors = self._bytes[case]
        room = max(2, self._arena.tensor.numel() // Arena.room(given, tensors) - 1)
        warm, few = (*self._references, *self._references), min(room, fewest)
        seconds = [self._batch(each, case, [NORMAL] * few) / few for each in warm][-1]
        self._calls[case] = min(room, max(fewest, min(most, int(_BATCH_SECONDS / seconds))))
        if self._gate is not None:
            calls = [self._oracle.draw(case) for _ in range(self._calls[case])]
            stages, fills = self._arena.staged(self._arena.place(calls), calls), []
            for _ in range(_FILLS):
                self._gate.close(_LONGEST_HOLD_S, stages)
                self._gate.stop()
                fills.append(self._gate.seconds())
            self._fill_s[case] = median(fills)

    def _check_values(self, process: GuestProcess, case: Case, kinds: Sequence[str]) -> None:
        """Check values of each kind twice, in no order."""
        several, count = _RANDOM.sample([*kinds, *kinds], 2 * len(kinds)), self._calls[case]
        for place in range(0, len(several), count):
            self._batch(process, case, several[place : place + count])

    def _times(
        self, processes: Sequence[GuestProcess], batches: int, cases: Sequence[Case], *, on_gpu: bool = False
    ) -> _Times:
        """Time batches of each case, the processes in turns. Return microseconds a call.

        By the GPU's clock, a case is left out if a process does not queue its calls: it looks at its results, say.
        """
        times: _Times = {}
        for case in cases:
            kinds, found = [NORMAL] * self._calls[case], _Times()
            # The first one after a pause finds cold caches.
            holds = [min(_LONGEST_HOLD_S, _HOLDS * self._batch(each, case, kinds)) * on_gpu for each in processes]
            for number, process in [*enumerate(processes)] * batches:
                seconds = math.nan
                # A candidate could have its slow batches repeated.
                for attempt in range(_HOLD_ATTEMPTS if process.side == _REFERENCE else 1):
                    seconds = self._batch(process, case, kinds, hold_s=holds[number] * 2**attempt)
                    if not math.isnan(seconds):
                        break
                else:
                    break
                found.setdefault((case, on_gpu, number), []).append(1e6 * seconds / len(kinds))
            else:
                times |= found
        return times

    def _draw(self, case: Case, kinds: Sequence[str], *, writes: bool) -> _Drawn:
        """Draw arguments. Return them, and where they lie, or will lie."""
        calls = [self._oracle.draw(case, values) for values in kinds]
        return calls, self._arena.write(calls) if writes else self._arena.place(calls)

    def _idle_draw(self, process: GuestProcess, draw: Callable[[], _Drawn]) -> _Drawn:
        """Draw arguments while the GPU does nothing else. Raises `CandidateRefused` if it computes all the time.

        The start of a judge beside this one keeps it busy for a moment. What is drawn meanwhile is not used.
        """
        until = time.monotonic() + _QUIET_PATIENCE_S
        while time.monotonic() < until:
            was_quiet = self._arena.is_quiet()
            drawn = draw()
            if was_quiet and self._arena.is_quiet():
                return drawn
        got = f"at any time in {_QUIET_PATIENCE_S:.0f} s"
        raise CandidateRefused(f"the GPU computes although the {process.side} is stopped", got=got)

    def _batch(
        self, process: GuestProcess, case: Case, kinds: Sequence[str], *, is_alone: bool = True, hold_s: float = 0.0
    ) -> float:
        """Make one call for each kind of values. Return the seconds from their inputs to results in the judge's memory.

        With `hold_s`, the GPU waits so long before the inputs exist, and the seconds are by its clock. NaN: the process
        has not queued all calls meanwhile, or writing the inputs took less time than usual by more than the calls took.
        Raises `CandidateRefused` if a result is wrong.
        """
        process.ask("forget")
        gate = self._gate if hold_s else None
        draw = partial(self._draw, case, kinds, writes=gate is None)
        calls, places = self._idle_draw(process, draw) if is_alone else draw()
        if gate is not None:
            gate.close(hold_s, self._arena.staged(places, calls))
        chosen = {len(calls) - 1, *_RANDOM.sample(range(len(calls)), max(1, len(calls) // _READ_SHARE))}
        seconds, reply, early = self._timed(process, self._request(case, places, gate), chosen, gate)
        if gate is not None:
            seconds -= self._fill_s[case]
        read = partial(self._read, process, reply)
        results = [read(number) for number in range(len(calls))]
        if not all(_same(place.view(self._arena.tensor), value) for place, value in self._arena.pairs(places, calls)):
            raise CandidateRefused(f"the {process.side} writes to its inputs", where=case.name)
        for values, arguments, result in zip(kinds, calls, results, strict=True):
            self._oracle.require_right(case, values, arguments, result)
        self._arena.tensor.bitwise_not_()  # what an output shares with an input changes now
        self._arena.device.synchronize()
        for number, result in enumerate(results):
            for again in (read(number), early.get(number, result)):
                if not all(_same(each, again[name]) for name, each in result.items()):
                    what = "an output changes after its call, or shares memory with an input"
                    raise CandidateRefused(what, where=case.name)
        self._checked += len(calls)
        return seconds if seconds > 0 else math.nan

    @staticmethod
    def _request(case: Case, places: list[Any], gate: Gate | None) -> bytes:
        return pickle.dumps(("call", (TORCH_DTYPES[case.dtype], places, gate.handle if gate else b"")))

    def _timed(
        self, process: GuestProcess, request: bytes, chosen: Collection[int], gate: Gate | None
    ) -> tuple[float, Reply, dict[int, dict[str, torch.Tensor]]]:
        """Let a process make its calls. Return the seconds until the chosen results lie here, its reply, and these results."""
        start = time.perf_counter()
        process.resume(request)
        reply = process.answer()
        if len(reply.outputs) != (count := max(chosen) + 1):  # the last call is always chosen
            got = str(len(reply.outputs))
            raise CandidateRefused(f"the {process.side} left out calls", got=got, expected=str(count))
        is_late = gate is not None and gate.is_open()
        if gate is not None:
            process.await_queue(reply.done)
        early = {number: self._read(process, reply, number) for number in chosen}
        if gate is not None:
            gate.stop()
        self._arena.device.synchronize()
        seconds = time.perf_counter() - start if gate is None else math.nan if is_late else gate.seconds()
        process.stop()
        return seconds, reply, early

    @staticmethod
    def _read(process: GuestProcess, reply: Reply, number: int) -> dict[str, torch.Tensor]:
        return {each.name: process.memory.read(each) for each in reply.outputs[number]}

    def _case_times(self, case: Case, reference: _Times, candidate: _Times) -> CaseTimes:
        """Sum up the batches of a case. Raises `CandidateRefused` if no memory is as fast."""
        sides, on_gpu = list[list[Sample]](), (case, True, 0) in candidate
        for times in (reference, candidate):
            batches = [times[case, on_gpu, number] for number in range(_PROCESSES)]
            fastest = [[min(each[at : at + _BATCHES]) for at in range(0, len(each), _BATCHES)] for each in batches]
            sides.append([Sample(tuple(each), _BATCHES) for each in fastest])
        count, (given, taken, _), peak = self._calls[case], self._bytes[case], self._device.peak_bytes_per_second
        written = count * taken - self._device.cache_bytes  # the cache may keep the rest
        floor_us = 1e6 * written / peak / count if peak and written > 0 else None
        least_us = min(us for each in sides[1] for us in each.replicates_us)
        if floor_us is not None and least_us < floor_us:
            got, expected = f"{least_us:.2f} us", f"at least {floor_us:.2f} us"
            raise CandidateRefused("faster than memory can take its outputs", got=got, expected=expected)
        return CaseTimes(case.name, sides[0], sides[1], count, given, taken, "gpu" if on_gpu else "host", floor_us)

    def _observed(self, process: GuestProcess) -> Run | None:
        """Return what a process says of its kernels. None: nothing that makes sense."""
        case = self._oracle.cases[0]
        with suppress(CandidateRefused):
            return process.ask("profile", TORCH_DTYPES[case.dtype], self._arena.write([self._oracle.draw(case)])).run
        return None


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors have the same bits."""
    return torch.equal(*(each.contiguous().flatten().view(torch.uint8) for each in (one, other)))
