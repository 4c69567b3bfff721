"""The process that calls a candidate, from its inside, and as the judge holds it from outside.

Nobody believes it: `contest.py` reads its outputs with `OutsideMemory`, on its own clock.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import os
import pickle
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import torch
from torch import nn
from torch.multiprocessing.reductions import reduce_tensor
from torch.utils._pytree import tree_leaves, tree_map

from ..errors import CandidateRefused
from ..processes import compile_caches
from ..run import Run
from .memory import Arena, ArgumentPlace, Output, OutsideMemory, event, event_of, ipc_handle_of, tensors_of

# Of a file without `:NAME`: ours, KernelBench's, and GPU MODE's.
_NAMES = ("run", "ModelNew", "Model", "custom_kernel", "ref_kernel")
_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS, _CAPABILITY_VERSION = 1, 38, 0x20080522  # of prctl.h and capability.h

_PATIENCE_S = 300.0  # for one answer: the first one compiles
_LARGEST_REPLY = 2**25  # bytes
_MAIN = "from kernelgauge.measure.guest import serve; serve()"  # as `__main__`, it would have classes of its own


class Reply(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer to one request: the outputs of each call, or an error."""

    outputs: tuple[tuple[Output, ...], ...] = ()
    error: str = ""
    run: Run | None = None  # as the process observed itself
    done: str = ""  # the handle of an event behind all calls; it may be a lie


def load_target(target: str) -> tuple[ModuleType, Any]:
    """Import ``FILE.py[:NAME]`` or ``module:NAME``. Return the module, and the function or class of that name.

    Raises `LookupError` if there is none, and what the import raises.
    """
    path, _, name = target.partition(":") if ".py:" not in target else target.rpartition(":")
    is_file = path.endswith(".py")
    sys.path.append(str(Path(path).resolve().parent) if is_file else os.getcwd())  # behind what is installed
    if is_file:
        spec = importlib.util.spec_from_file_location(Path(path).stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # Triton and pickle look for it
        spec.loader.exec_module(module)
    else:
        module = importlib.import_module(path)
    names = [name] if name else [each for each in _NAMES if hasattr(module, each)]
    found = next((getattr(module, each, None) for each in names), None)
    if not callable(found):
        raise LookupError(f"{path} has no function or class {name or ' or '.join(_NAMES)}")
    return module, found


def made(
    found: Any, arguments: Sequence[Any], state: Mapping[str, Any] | None, place: Callable[[nn.Module], Any]
) -> Any:
    """Return what is called: a function as it is; of a class of modules, an instance with this state."""
    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        return found
    module = found(*arguments)
    if state is not None:
        module.load_state_dict(state)
    return place(module.eval())


class _Guest:
    """Answers requests. `arena`: holds the arguments."""

    def __init__(self, target: str, device: str, arena: torch.Tensor) -> None:
        self._device, self._arena = torch.device(device), arena
        self._found = load_target(target)[1]
        self._functions: dict[torch.dtype, Any] = {}
        self._results: list[Any] = []  # of the last batch
        self._copies: list[torch.Tensor] = []  # of those that cannot be exported
        self._events: tuple[Any, Any] | None = None  # the gate, and the one behind all calls

    def prepare(self, dtype: torch.dtype, arguments: Sequence[Any], state: Mapping[str, Any] | None) -> Reply:
        """Make what is called with arguments of a dtype."""
        place = partial(nn.Module.to, device=self._device, dtype=dtype)
        with self._device:
            self._functions[dtype] = made(self._found, arguments, state, place)
        return Reply()

    def forget(self) -> Reply:
        """Give back the memory of the last results, filled with NaN: the next ones may come to lie there."""
        results = [each for _, each in tensors_of(self._results) if each.is_floating_point()]
        self._results, self._copies = [], []
        likes = [torch.empty_like(each, device="meta") for each in results]
        del results
        _poison = [torch.full_like(each, torch.nan, device=self._device) for each in likes]
        return Reply()

    def call(self, dtype: torch.dtype, calls: Sequence[Any], gate: bytes = b"") -> Reply:
        """Make these calls. Return when the device has done them; with a gate, when they are queued behind it."""
        function, arena = self._functions[dtype], self._arena
        if gate:
            if self._events is None:
                self._events = event_of(gate), event(interprocess=True)
            self._events[0].wait()

        def argument(value: Any) -> Any:
            if not isinstance(value, ArgumentPlace):
                return value
            return value.view(arena).requires_grad_(value.requires_grad)

        trains = any(isinstance(each, ArgumentPlace) and each.requires_grad for each in tree_leaves(calls))
        with torch.set_grad_enabled(trains):
            for positional, keywords in calls:
                self._results.append(function(*tree_map(argument, positional), **tree_map(argument, keywords)))
        if self._device.type == "cuda" and not gate:
            torch.cuda.synchronize()
        places = tuple(tuple(self._located(*each) for each in tensors_of(result)) for result in self._results)
        if not gate or self._events is None:
            return Reply(places)
        self._events[1].record()
        return Reply(places, done=self._events[1].ipc_handle().hex())

    def _located(self, name: str, tensor: torch.Tensor) -> Output:
        address, handle = tensor.data_ptr(), ""
        if tensor.device.type == "cuda" and tensor.numel():
            try:
                address, handle = ipc_handle_of(address)
            except OSError:  # not of the allocator: an input, or memory of another library
                tensor = tensor.clone()
                self._copies.append(tensor)
                torch.cuda.synchronize()
                address, handle = ipc_handle_of(tensor.data_ptr())
        dtype = str(tensor.dtype).removeprefix("torch.")
        return Output(name, dtype, tuple(tensor.shape), tuple(tensor.stride()), address, handle)

    def profile(self, dtype: torch.dtype, calls: Sequence[Any]) -> Reply:
        """Return the kernels of one call, where they come from and what they take."""
        # Here, because a process that only calls starts in half the time.
        from ..workload import Workload
        from . import Settings
        from .compiler import torch_set_up
        from .device import choose_device
        from .instance import build
        from .subject import Subject

        ((positional, keywords),) = tree_map(
            lambda each: each.view(self._arena) if isinstance(each, ArgumentPlace) else each, calls
        )
        workload = Workload.from_callable(partial(self._functions[dtype]), *positional, **keywords)
        device = choose_device("cpu" if self._device.type == "cpu" else "cuda")
        with torch_set_up():
            subject = Subject(workload, build(workload, device), device, Settings.of(2))
            for number in range(2):
                subject.measure_once(number, None)
            result = subject.result(device.fingerprint(), {})
        if isinstance(result, Exception):
            raise result
        return Reply(run=result.run)


def _give_up_privileges() -> None:
    """Give up what root may do to the memory of the judge, for good: CAP_SYS_PTRACE (19) and CAP_SYS_ADMIN (21)."""
    libc = ctypes.CDLL(None)
    header, sets = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION), (ctypes.c_uint32 * 6)()
    libc.capget(header, sets)
    for place in range(3):  # effective, permitted, inheritable
        sets[place] &= ~(1 << 19 | 1 << 21)
    libc.capset(header, sets)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def serve() -> None:
    """Answer requests until there are no more."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # a stopped process outlives no judge
    _give_up_privileges()
    target, device = sys.argv[1:3]
    # `arena`: the descriptor of a file; negative: it is sent first.
    requests, replies, letters, arena, size = map(int, sys.argv[3:])
    with os.fdopen(requests, "rb") as source, os.fdopen(replies, "wb", buffering=0) as sink:
        guest: _Guest | None = None

        def received() -> Any:
            return pickle.loads(os.pread(letters, int.from_bytes(source.read(8), "little"), 0))

        def start() -> Reply:
            nonlocal guest
            shared: torch.Tensor
            if arena >= 0:
                shared = torch.from_file(f"/proc/self/fd/{arena}", shared=True, size=size, dtype=torch.uint8)
            else:
                rebuild, arguments = received()
                shared = rebuild(*arguments)
            guest = _Guest(target, device, shared)
            return Reply()

        def answer(request: Callable[[], Reply]) -> None:
            try:
                reply = request()
            except BaseException as error:  # `sys.exit` too
                reply = Reply(error=f"{type(error).__name__}: {error}"[:2000])
            sink.write(msgspec.json.encode(reply) + b"\n")

        answer(start)
        while guest is not None:
            try:
                method, arguments = received()
            except EOFError:
                break
            answer(partial(getattr(guest, method), *arguments))


# -- seen from the judge ---------------------------------------------------------------------------------------------------


class GuestProcess:
    """A process that calls the candidate or the reference. It runs only while the judge waits for it."""

    def __init__(self, target: str, arena: Arena, folder: str, side: str, all_processes: list[GuestProcess]) -> None:
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
        self._done: Any = None  # an event behind the last queued calls
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

    def await_queue(self, handle: str) -> None:
        """Wait until the GPU has done the queued calls. Raises `CandidateRefused` if it does not."""
        until = time.monotonic() + _PATIENCE_S
        try:
            if self._done is None:
                self._done = event_of(bytes.fromhex(handle))
            while not self._done.query():
                if time.monotonic() > until:
                    raise ValueError(f"no end in {_PATIENCE_S:.0f} s")
        except (RuntimeError, ValueError) as error:
            raise CandidateRefused(f"the queue of the {self.side} has no end", got=str(error)) from None

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
