"""The judge's side of a contest: processes that run only while they are waited for, outputs read from outside, and the clock.

A candidate may patch whatever its own process has. Causality is what it cannot patch: the inputs of a batch do not exist
before the clock starts, and the clock stops once results lie in memory of the judge (docs/design/judge.md).
"""

from __future__ import annotations

import ctypes
import os
import pickle
import secrets
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch.multiprocessing.reductions import reduce_tensor
from torch.utils._pytree import tree_leaves

from ..errors import CandidateRefused, KernelgaugeError
from ..processes import compile_caches
from ..results.files import GpuLock
from ..run import Run, Sample
from .device import Device
from .guest import Arena, ArgumentPlace, OutsideMemory, Reply, tensors_of
from .instance import TORCH_DTYPES, Arguments
from .oracle import NORMAL, VALUES, Case, Oracle

_PROCESSES = 2  # of each side: the fewest that show a spread
_REPLICATES, _BATCHES = 4, 3  # of each process; and each is the fastest of so many batches
_BATCH_SECONDS = 0.02
_CALLS = {"cpu": (4, 16), "cuda": (8, 64)}  # in a batch: the fewest, the most
_READ_SHARE = 8  # one in so many outputs is read before the clock stops, and nobody knows which
_ARENA_BYTES = {"cpu": 2**28, "cuda": 2**31}
_PATIENCE_S = 300.0  # for one answer: the first one compiles
_QUIET_PATIENCE_S = 10.0  # for the GPU to be idle: the start of another process takes less
_LARGEST_REPLY = 2**25  # bytes
_MAIN = "from kernelgauge.measure.guest import serve; serve()"  # as `__main__`, it would have classes of its own
_PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER = 4, 36  # of prctl.h
_CANDIDATE, _REFERENCE = "candidate", "reference"
_RANDOM = secrets.SystemRandom()

_Times = dict[tuple[Case, int], list[float]]  # of the batches of each process


class CaseTimes(msgspec.Struct):
    """The times of one case, in microseconds a call: a sample of each process."""

    case: str
    reference: list[Sample]
    candidate: list[Sample]
    calls: int  # in a batch
    input_bytes: int
    output_bytes: int
    floor_us: float | None  # that no call can be below: writing its outputs at the peak of the memory


class Contest(msgspec.Struct):
    """What was observed of a candidate that is correct."""

    cases: list[CaseTimes]
    checked_calls: int
    checked_values: list[str]  # kinds of inputs
    is_cpu: bool
    peak_bytes_per_second: float | None
    runs: list[Run | None]  # of reference and candidate, as each process observed itself


class _Process:
    """A process that calls the candidate or the reference. It runs only while the judge waits for it."""

    def __init__(self, target: str, arena: Arena, folder: str, side: str, all_processes: list[_Process]) -> None:
        self.side, self._all, kind = side, all_processes, arena.device.torch_device.type
        (source, self._requests), (self._replies, sink) = os.pipe(), os.pipe()
        self._letters = os.memfd_create("kernelgauge")  # requests: a pipe would be full while nobody reads
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the process)
        inherited = [source, sink, self._letters, *arena.inherited]
        numbers = [source, sink, self._letters, *(arena.inherited or [-1]), arena.tensor.numel()]
        # Memory of other allocators cannot be exported.
        environment = {name: value for name, value in os.environ.items() if not name.endswith("ALLOC_CONF")}
        self._popen = subprocess.Popen(
            [sys.executable, "-c", _MAIN, target, kind, *map(str, numbers)],
            env=environment | compile_caches(f"{folder}/{side}") | {"PYTHONSAFEPATH": "1"},
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            pass_fds=inherited,
            start_new_session=True,
        )
        os.close(source)
        os.close(sink)
        self.memory = OutsideMemory(self._popen.pid, arena)
        self._tree: list[int] = []  # processes below it
        all_processes.append(self)
        if not arena.inherited:
            self._write(pickle.dumps(reduce_tensor(arena.tensor)))  # type: ignore[no-untyped-call]

    def ask(self, method: str, *arguments: Any) -> Reply:
        """Let it run until it has answered. Raises `CandidateRefused` if it fails or does not answer."""
        self.resume(pickle.dumps((method, arguments)))
        try:
            return self.answer()
        finally:
            self.stop()

    def resume(self, request: bytes) -> None:
        self._write(request)
        for pid in (self._popen.pid, *self._tree):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def answer(self) -> Reply:
        until, received = time.monotonic() + _PATIENCE_S, b""
        while not received.endswith(b"\n"):
            ready, _, _ = select.select([self._replies], [], [], max(0.0, until - time.monotonic()))
            block = os.read(self._replies, 2**20) if ready else b""
            received += block
            if not block or len(received) > _LARGEST_REPLY:
                got = self._end() if ready else f"no answer in {_PATIENCE_S:.0f} s"
                raise CandidateRefused(f"the process of the {self.side} does not answer", got=got)
        try:
            reply = msgspec.json.decode(received, type=Reply)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise CandidateRefused(f"the process of the {self.side} answers nonsense", got=str(error)) from None
        if reply.error:
            raise CandidateRefused(f"the {self.side} fails", got=reply.error)
        return reply

    def _write(self, data: bytes) -> None:
        os.pwrite(self._letters, data, 0)
        with suppress(BrokenPipeError):  # its end shows when an answer is waited for
            os.write(self._requests, len(data).to_bytes(8, "little"))

    def _end(self) -> str:
        """Return how the process ended, with the last line of its output."""
        with suppress(subprocess.TimeoutExpired):
            self._popen.wait(1)
        self._log.seek(0)
        last = self._log.read()[-2000:].decode(errors="replace").strip().splitlines()[-1:]
        return ": ".join([f"exit code {self._popen.returncode}", *last])

    def stop(self) -> None:
        """Stop it and all that it has started, and wait until they stand."""
        running = [self._popen.pid, *self._tree]
        for _ in range(100):  # while one is stopped, another may fork
            for pid in running:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
            self._tree = self._below()
            running = [pid for pid in (self._popen.pid, *self._tree) if _stat(pid)[0] not in "TtZX"]
            if not running:
                return
        raise CandidateRefused(f"processes of the {self.side} do not stop", got=f"{len(running)} are running")

    def end(self) -> None:
        """Kill it and all that it has started."""
        if self not in self._all:
            return
        for pid in (*self._below(), self._popen.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._popen.wait()
        self.memory.close()
        for each in (self._requests, self._replies, self._letters):
            os.close(each)
        self._log.close()
        self._all.remove(self)

    def _below(self) -> list[int]:
        """Return what it has started, with orphans: these are children of the judge."""
        others = {each._popen.pid for each in self._all}
        children: dict[int, list[int]] = {}
        for pid in (int(entry) for entry in os.listdir("/proc") if entry.isdigit()):
            children.setdefault(int(_stat(pid)[1]), []).append(pid)
        found, left = [], [os.getpid(), self._popen.pid]
        while left:
            below = [each for each in children.get(left.pop(), []) if each not in others]
            found += below
            left += below
        return found


def _stat(pid: int) -> list[str]:
    """Return the state of a process, its parent, and more."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:  # it has ended
        return ["X", "0"]


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
        self._checked = 0
        taken = max(Arena.room(given, tensors) for given, _, tensors in self._bytes.values())
        room = max(3 * taken, min(_ARENA_BYTES[kind], (_CALLS[kind][1] + 1) * taken))
        self._processes: list[_Process] = []
        self._arena = Arena(device, room, 2**20 + 4 * max(given + taken for given, taken, _ in self._bytes.values()))
        self._folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="kernelgauge-"))
        try:
            self._references = self._start(_REFERENCE, reference)
            with self._alone():
                self._arena.learn_quiet()
                for case in self._oracle.cases:
                    self._choose_size(case)
                progress("timing the reference")
                self._before = self._times(self._references, _BATCHES * _REPLICATES // 2)
                self._run = self._observed(self._references[0])
        except (CandidateRefused, RuntimeError) as error:  # torch's own: no CUDA IPC here
            raise KernelgaugeError("the reference cannot be judged", got=str(error)) from error

    def judge(self, candidate: str) -> Contest:
        """Check and time a candidate. Raises `CandidateRefused` if it is not correct or cheats."""
        self._checked = 0
        self._progress("checking the candidate")
        candidates: list[_Process] = []
        try:
            candidates += self._start(_CANDIDATE, candidate)
            with self._alone():
                for case, kinds in self._kinds.items():
                    for each in candidates:
                        self._check_values(each, case, kinds)
                self._progress("timing the candidate")
                times = self._times(candidates, _BATCHES * _REPLICATES)
                run = self._observed(candidates[0])
        finally:
            for each in [each for each in self._processes if each.side == _CANDIDATE]:
                each.end()
        self._progress("timing the reference again")
        with self._alone():
            after = self._times(self._references, _BATCHES * _REPLICATES // 2)
        both, self._before = {key: self._before[key] + after[key] for key in after}, after
        cases = [self._case_times(case, both, times) for case in self._oracle.cases]
        values = [each for each in VALUES if any(each in legal for legal in self._kinds.values())]
        peak, runs = self._device.peak_bytes_per_second, [self._run, run]
        return Contest(cases, self._checked, values, self._device.gpu is None, peak, runs)

    def _start(self, side: str, target: str) -> list[_Process]:
        """Start the processes of one side, all at once."""
        processes = [_Process(target, self._arena, self._folder, side, self._processes) for _ in range(_PROCESSES)]
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
        warm = (*self._references, *self._references)
        seconds = [self._batch(each, case, [NORMAL] * 2) / 2 for each in warm][-1]
        fewest, most = _CALLS[self._device.torch_device.type]
        given, _, tensors = self._bytes[case]
        room = self._arena.tensor.numel() // Arena.room(given, tensors) - 1
        self._calls[case] = max(2, min(room, max(fewest, min(most, int(_BATCH_SECONDS / seconds)))))

    def _check_values(self, process: _Process, case: Case, kinds: Sequence[str]) -> None:
        """Check values of each kind twice, in no order."""
        several, count = _RANDOM.sample([*kinds, *kinds], 2 * len(kinds)), self._calls[case]
        for place in range(0, len(several), count):
            self._batch(process, case, several[place : place + count])

    def _times(self, processes: Sequence[_Process], batches: int) -> _Times:
        """Time batches of each case, the processes in turns. Return microseconds a call."""
        times: _Times = {}
        for case, count in self._calls.items():
            for number, process in [*enumerate(processes)] * (1 + batches):
                seconds = self._batch(process, case, [NORMAL] * count)
                times.setdefault((case, number), []).append(1e6 * seconds / count)
        return {key: each[1:] for key, each in times.items()}  # the first one after a pause finds cold caches

    def _draw(self, case: Case, kinds: Sequence[str]) -> tuple[list[Arguments], list[Any]]:
        """Draw arguments. Return them, and where they lie."""
        calls = [self._oracle.draw(case, values) for values in kinds]
        return calls, self._arena.write(calls)

    def _idle_draw(self, process: _Process, case: Case, kinds: Sequence[str]) -> tuple[list[Arguments], list[Any]]:
        """Draw arguments while the GPU does nothing else. Raises `CandidateRefused` if it computes all the time.

        The start of a judge beside this one keeps it busy for a moment. What is drawn meanwhile is not used.
        """
        until = time.monotonic() + _QUIET_PATIENCE_S
        while time.monotonic() < until:
            was_quiet = self._arena.is_quiet()
            drawn = self._draw(case, kinds)
            if was_quiet and self._arena.is_quiet():
                return drawn
        got = f"at any time in {_QUIET_PATIENCE_S:.0f} s"
        raise CandidateRefused(f"the GPU computes although the {process.side} is stopped", got=got)

    def _batch(self, process: _Process, case: Case, kinds: Sequence[str], *, is_alone: bool = True) -> float:
        """Make one call for each kind of values. Return the seconds from their inputs to results in the judge's memory.

        Raises `CandidateRefused` if a result is wrong.
        """
        process.ask("forget")
        calls, places = self._idle_draw(process, case, kinds) if is_alone else self._draw(case, kinds)
        chosen = {len(calls) - 1, *_RANDOM.sample(range(len(calls)), max(1, len(calls) // _READ_SHARE))}
        request = pickle.dumps(("call", (TORCH_DTYPES[case.dtype], places)))
        start = time.perf_counter()
        process.resume(request)
        reply = process.answer()
        if len(reply.outputs) != len(calls):
            got, expected = str(len(reply.outputs)), str(len(calls))
            raise CandidateRefused(f"the {process.side} left out calls", got=got, expected=expected)

        def read(number: int) -> dict[str, torch.Tensor]:
            return {each.name: process.memory.read(each) for each in reply.outputs[number]}

        early = {number: read(number) for number in chosen}
        self._arena.device.synchronize()
        seconds = time.perf_counter() - start
        process.stop()
        results = [read(number) for number in range(len(calls))]
        written = [each.view(self._arena.tensor) for each in tree_leaves(places) if isinstance(each, ArgumentPlace)]
        if not all(map(_same, written, (each.detach() for _, each in tensors_of(calls)))):
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
        return seconds

    def _case_times(self, case: Case, reference: _Times, candidate: _Times) -> CaseTimes:
        """Sum up the batches of a case. Raises `CandidateRefused` if no memory is as fast."""
        sides: list[list[Sample]] = []
        for times in (reference, candidate):
            batches = [times[case, number] for number in range(_PROCESSES)]
            fastest = [[min(each[at : at + _BATCHES]) for at in range(0, len(each), _BATCHES)] for each in batches]
            sides.append([Sample(tuple(each), _BATCHES) for each in fastest])
        count, (given, taken, _), peak = self._calls[case], self._bytes[case], self._device.peak_bytes_per_second
        written = count * taken - self._device.cache_bytes  # the cache may keep the rest
        floor_us = 1e6 * written / peak / count if peak and written > 0 else None
        least_us = min(us for each in sides[1] for us in each.replicates_us)
        if floor_us is not None and least_us < floor_us:
            got, expected = f"{least_us:.2f} us", f"at least {floor_us:.2f} us"
            raise CandidateRefused("faster than memory can take its outputs", got=got, expected=expected)
        return CaseTimes(case.name, sides[0], sides[1], count, given, taken, floor_us)

    def _observed(self, process: _Process) -> Run | None:
        """Return what a process says of its kernels. None: nothing that makes sense."""
        case = self._oracle.cases[0]
        with suppress(CandidateRefused):
            return process.ask("profile", TORCH_DTYPES[case.dtype], self._arena.write([self._oracle.draw(case)])).run
        return None


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors have the same bits."""
    return torch.equal(*(each.contiguous().flatten().view(torch.uint8) for each in (one, other)))
