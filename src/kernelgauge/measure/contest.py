"""The judge's side of a contest: inputs that nobody can know, outputs read from outside of the process, and the clock.

A candidate may patch whatever its own process has. Causality is what it cannot patch: the inputs of a batch do not exist
before the clock starts, and the clock stops once results lie in memory of the judge (docs/judge.md).
"""

from __future__ import annotations

import copy
import ctypes
import math
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
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import nn
from torch.multiprocessing.reductions import reduce_tensor
from torch.utils._pytree import tree_map

from ..errors import CandidateRefused, KernelgaugeError
from ..processes import compile_caches
from ..run import Run, Sample
from ..workload import Dtype
from .device import Device
from .guest import Output, Place, Reply, driver_call, load_target, made, span_of, tensors_of
from .instance import TORCH_DTYPES, Arguments, cast, read_arguments
from .numerics import BOUNDS

_PROCESSES = 2  # of each side: the fewest that show a spread
_REPLICATES = 4  # of each process, each the fastest of so many batches
_BATCHES = 3
_BATCH_SECONDS = {"cpu": 0.02, "cuda": 0.02}
_CALLS = {"cpu": (4, 16), "cuda": (8, 64)}  # in a batch: the fewest, the most
_READ_SHARE = 8  # one in so many outputs is read before the clock stops, and nobody knows which
_ARENA_BYTES = {"cpu": 2**28, "cuda": 2**31}
_ALIGNMENT, _SLACK = 512, 64  # bytes: of arguments, and how many times that lies between them at most
_PATIENCE_S, _SLOWER = 300.0, 50.0  # for a start; and times what the reference takes
_STOPPED = frozenset("TtZX")  # states in /proc
_QUIET_FACTOR, _QUIET_SECONDS = 10.0, 1e-3  # a GPU that others compute on shares its time in slices of milliseconds
_MAIN = "from kernelgauge.measure.guest import main; main()"  # as `__main__`, it would have classes of its own
_LARGEST_REPLY = 2**25  # bytes
_FACTOR = 4  # times the reference's own error, as in `numerics`
_DRAWS = 3  # of the reference's own error, before anything is compared
_PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER = 4, 36  # of prctl.h


class Wrong(msgspec.Struct, frozen=True):
    """The first wrong element of a result."""

    case: str
    values: str  # kind of its inputs
    output: str
    index: tuple[int, ...]
    got: float
    expected: float
    allowed: float  # absolute error


@dataclass(frozen=True)
class Case:
    """One shape in one dtype."""

    shape: tuple[int, ...]
    dtype: Dtype

    @property
    def name(self) -> str:
        return "-".join(filter(None, [self.dtype, "x".join(map(str, self.shape))]))


@dataclass
class CaseTimes:
    """The times of one case, in microseconds a call: a sample of each process."""

    case: str
    reference: list[Sample]
    candidate: list[Sample]
    calls: int  # in a batch
    input_bytes: int
    output_bytes: int
    floor_us: float | None  # that no call can be below: writing its outputs at the peak of the memory


@dataclass
class Contest:
    """What was observed of a candidate that is correct."""

    cases: list[CaseTimes]
    checked_calls: int
    values: tuple[str, ...]  # kinds of inputs that it was checked on
    is_cpu: bool
    through_host: bool  # CUDA IPC is missing: the times hold copies through the host
    runs: tuple[Run | None, Run | None] = (None, None)  # of reference and candidate, as each process observed itself
    notes: list[str] = field(default_factory=list)


# -- inputs, and what is right --------------------------------------------------------------------------------------------


def _scaled(scale: Callable[[torch.finfo], float]) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda each: each * scale(torch.finfo(each.dtype))


def _mixed(each: torch.Tensor) -> torch.Tensor:
    """Return rows of other sizes: a shortcut in fewer bits overflows, or loses the small ones."""
    rows = torch.randint(-6, 6, (*each.shape[:-1], 1), device=each.device) if each.ndim else torch.zeros(())
    return each * torch.exp2(rows.to(each.device, each.dtype))


def _with_nan(each: torch.Tensor) -> torch.Tensor:
    odd = torch.tensor([math.nan, math.inf, -math.inf], device=each.device, dtype=each.dtype)
    places = torch.randint(0, max(1, each.numel()), (3,), device=each.device)
    return each.reshape(-1).index_put((places,), odd).reshape(each.shape) if each.numel() else each


_NORMAL, _NAN = "normal", "nan"
_VALUES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    _NORMAL: lambda each: each,
    "zeros": torch.zeros_like,
    "large": _scaled(lambda info: 1e2 if info.max < 1e5 else 1e4),
    "small": _scaled(lambda info: max(1e-30, 64 * info.tiny)),
    "denormal": _scaled(lambda info: info.tiny / 2),
    "mixed": _mixed,
    _NAN: _with_nan,
}


class Oracle:
    """The reference in the judge's process: it makes inputs, and says what is right."""

    def __init__(self, target: str, device: Device) -> None:
        self._device = device
        self._module, self._found = load_target(target)
        names = ("inputs", "get_inputs")
        self._inputs = next((found for name in names if (found := getattr(self._module, name, None))), None)
        if self._inputs is None:
            expected = "def inputs(shape, dtype), or KernelBench's get_inputs()"
            raise KernelgaugeError("the reference makes no inputs", where=target, expected=expected)
        dtypes = tuple(getattr(self._module, "DTYPES", ("fp32",)))
        shapes = [tuple(each) for each in getattr(self._module, "SHAPES", [()])]
        if not dtypes or not shapes or not set(dtypes) <= TORCH_DTYPES.keys():
            expected = f"SHAPES = [(rows, columns), ...] and DTYPES of {', '.join(TORCH_DTYPES)}"
            raise KernelgaugeError("invalid range of the reference", got=f"{shapes} {dtypes}", expected=expected)
        self.cases = [Case(shape, dtype) for dtype in dtypes for shape in shapes]
        self.allows_nan = bool(getattr(self._module, "NAN_INPUTS", False))
        self.functions: dict[str, Any] = {}
        self._errors: dict[
            tuple[Case, str, str], tuple[float, float]
        ] = {}  # relative, absolute: of the reference itself
        # Nobody can guess the parameters either.
        torch.manual_seed(secrets.randbits(63))
        make = getattr(self._module, "get_init_inputs", tuple)
        self.init_arguments = tuple(make())
        with device.torch_device:
            function = made(self._found, self.init_arguments, None, lambda each: each)
        self.state = function.state_dict() if isinstance(function, nn.Module) else None
        for dtype, place in [*TORCH_DTYPES.items(), ("fp64", torch.float64)]:
            own = copy.deepcopy(function) if isinstance(function, nn.Module) else function
            self.functions[dtype] = own.to(device.torch_device, place) if isinstance(own, nn.Module) else own

    def draw(self, case: Case, values: str = _NORMAL) -> Arguments:
        """Make arguments. Raises `KernelgaugeError` if the reference's function fails."""
        torch.manual_seed(secrets.randbits(63))
        parameters = (case.shape, TORCH_DTYPES[case.dtype]) if hasattr(self._module, "inputs") else ()
        assert self._inputs is not None
        with self._device.torch_device:
            made_inputs = read_arguments(self._inputs(*parameters))

        def varied(each: Any) -> Any:
            each = cast(each, self._device.torch_device, TORCH_DTYPES[case.dtype])
            is_float = isinstance(each, torch.Tensor) and each.is_floating_point()
            return _VALUES[values](each.detach()).requires_grad_(each.requires_grad) if is_float else each

        return tree_map(varied, made_inputs)  # type: ignore[no-any-return]

    def results(self, arguments: Arguments, dtype: str) -> dict[str, torch.Tensor]:
        """Call the reference on copies, in a dtype."""
        place = torch.float64 if dtype == "fp64" else None
        copies = tree_map(
            lambda each: cast(each.clone(), each.device, place) if isinstance(each, torch.Tensor) else each, arguments
        )
        trains = any(each.requires_grad for _, each in tensors_of(list(arguments)))
        with torch.set_grad_enabled(trains):
            found = dict(tensors_of(self.functions[dtype](*copies[0], **copies[1])))
        changed = [
            name
            for (name, each), (_, before) in zip(tensors_of(list(copies)), tensors_of(list(arguments)), strict=True)
            if not torch.equal(each.nan_to_num(), before.to(each.dtype).nan_to_num())
        ]
        if changed:
            raise KernelgaugeError("the reference writes to its inputs", got=", ".join(changed), expected="new tensors")
        return {name: each.detach() for name, each in found.items()}

    def exact(self, arguments: Arguments, own: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the results in float64, or those of its own dtype if it does not run there."""
        try:
            return self.results(arguments, "fp64")
        except KernelgaugeError:
            raise
        except Exception:
            return own

    def prepare(self, case: Case) -> list[str]:
        """Learn how exact the reference itself is. Return the kinds of inputs on which it is as exact as its dtype.

        Raises `KernelgaugeError` if inputs or results are not what a candidate can be compared by.
        """
        first, second = self.draw(case), self.draw(case)
        for arguments in (first, second):
            own, again = self.results(arguments, case.dtype), self.results(arguments, case.dtype)
            floor = BOUNDS[case.dtype]
            if not own or any(_errors(again[name], own[name])[0] > floor for name in own):
                got = f"{case.name}: {'no tensor' if not own else 'two calls with the same input differ'}"
                raise KernelgaugeError("the reference has no result to compare with", got=got)
        pairs = list(zip(tensors_of(list(first)), tensors_of(list(second)), strict=True))
        if all(torch.equal(one, other) for (_, one), (_, other) in pairs):
            expected = "inputs from torch's generator, without a seed of their own"
            raise KernelgaugeError("the inputs of the reference are the same each time", expected=expected)
        legal = []
        for values in _VALUES:
            if values == _NAN and not self.allows_nan:
                continue
            for _ in range(_DRAWS):
                arguments = self.draw(case, values)
                own = self.results(arguments, case.dtype)
                exact = self.exact(arguments, own)
                is_finite = all(each.isfinite().all() for each in (*own.values(), *exact.values()))
                errors = [self._learn(case, values, name, own[name], exact[name]) for name in own]
                if values not in (_NORMAL, _NAN) and not (is_finite and max(errors) <= _FACTOR * BOUNDS[case.dtype]):
                    break
            else:
                legal.append(values)
        return legal

    def _learn(self, case: Case, values: str, name: str, own: torch.Tensor, exact: torch.Tensor) -> float:
        """Add one draw to what is known of the reference's own error. Return its relative error."""
        if not own.is_floating_point():
            return 0.0
        key = case, values, name
        errors = _errors(own, exact)
        before = self._errors.get(key, (0.0, 0.0))
        self._errors[key] = max(before[0], errors[0]), max(before[1], errors[1])
        return errors[0]

    def first_wrong(
        self, case: Case, values: str, arguments: Arguments, got: dict[str, torch.Tensor]
    ) -> Wrong | str | None:
        """Compare a result. Return its first wrong element, or what else is wrong; None: nothing is."""
        own = self.results(arguments, case.dtype)
        exact = self.exact(arguments, own)
        if got.keys() != own.keys():
            return f"outputs {', '.join(map(repr, got))} instead of {', '.join(map(repr, own))}"
        for name, result in got.items():
            like = own[name]
            if (result.dtype, result.shape) != (like.dtype, like.shape):
                return f"output {name!r}: {_text(result)} instead of {_text(like)}"
            self._learn(case, values, name, like, exact[name])
            wrong = self._wrong_elements(case, values, name, result, like, exact[name])
            if wrong is None:
                continue
            is_wrong, allowed = wrong
            index = tuple(is_wrong.nonzero()[0].tolist())
            numbers = (float(each[index]) for each in (result, exact[name], allowed))
            return Wrong(case.name, values, name, index, *numbers)
        return None

    def _wrong_elements(
        self, case: Case, values: str, name: str, result: torch.Tensor, own: torch.Tensor, exact: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Return which elements are wrong, and the error that each may have; None: none is."""
        if not result.is_floating_point():
            is_wrong = result != own
            return (is_wrong, torch.zeros_like(exact, dtype=torch.float64)) if bool(is_wrong.any()) else None
        relative, absolute = self._errors[case, values, name]
        floor = max(BOUNDS[case.dtype], {torch.bfloat16: 1e-2, torch.float16: 1.5e-3}.get(result.dtype, 0.0))
        got, exact, own = result.double(), exact.double(), own.double()
        size = exact.abs().nan_to_num(0, 0, 0)
        row = size.square().mean(-1, keepdim=True).sqrt() if size.ndim else size
        allowed = floor * (size + row) + (_FACTOR * absolute + _FACTOR * torch.finfo(result.dtype).tiny)
        is_wrong = ~((got - exact).abs() <= allowed)
        if bool(is_wrong.any()):  # infinite and NaN as in the reference
            is_wrong &= ~((got == own) | (got == exact) | (got.isnan() & (own.isnan() | exact.isnan())))
        if bool(is_wrong.any()):
            return is_wrong, allowed
        bound = max(floor, _FACTOR * relative)
        if values in (_NORMAL, "mixed", "large") and _errors(got, exact)[0] > bound:
            errors = torch.where(got == exact, 0, (got - exact).abs()).nan_to_num(0, 0, 0)
            return errors == errors.max(), allowed  # each is within its limit, and all together are not
        return None


def _errors(got: torch.Tensor, exact: torch.Tensor) -> tuple[float, float]:
    """Return the norm of the difference over that of what is exact, and the largest difference, where both are finite."""
    got, exact = got.double(), exact.double()
    difference = torch.where(got == exact, 0, got - exact).nan_to_num(0, 0, 0)
    if not difference.numel():
        return 0.0, 0.0
    norm, size = float(difference.norm()), float(exact.nan_to_num(0, 0, 0).norm())
    return norm and (norm / size if size else math.inf), float(difference.abs().max())


def _text(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


# -- processes, and the clock -----------------------------------------------------------------------------------------------


class _Process:
    """A process that calls the candidate or the reference. It runs only while the judge waits for it."""

    def __init__(self, target: str, arena: _Arena, folder: str, side: str) -> None:
        self.side, self._arena = side, arena
        ends = [os.pipe(), os.pipe()]
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the process)
        left_out = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")  # memory of other allocators has no IPC
        environment = {name: value for name, value in os.environ.items() if name not in left_out}
        environment |= compile_caches(f"{folder}/{side}") | {"PYTHONSAFEPATH": "1"}
        self._letters = os.memfd_create("kernelgauge")  # requests: a pipe would be full while nobody reads
        inherited = [ends[0][0], ends[1][1], self._letters, *arena.inherited]
        numbers = [*inherited[:3], *(arena.inherited or [-1]), arena.tensor.numel()]
        self._popen = subprocess.Popen(
            [sys.executable, "-c", _MAIN, target, arena.device.torch_device.type, *map(str, numbers)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            pass_fds=inherited,
            start_new_session=True,
        )
        for each in (ends[0][0], ends[1][1]):
            os.close(each)
        self._requests, self._replies = ends[0][1], ends[1][0]
        self._memory = os.open(f"/proc/{self._popen.pid}/mem", os.O_RDONLY)
        self._opened: dict[str, int] = {}  # device memory, by handle
        self._tree: list[int] = []
        self._rest = b""
        if not arena.is_on_host:
            try:
                self._write(pickle.dumps(reduce_tensor(arena.tensor)))
            except RuntimeError as error:
                raise CandidateRefused("this machine has no CUDA IPC", got=str(error)) from None

    # -- requests

    def ask(self, method: str, *arguments: Any, patience_s: float = _PATIENCE_S) -> Reply:
        """Let it run until it has answered. Raises `CandidateRefused` if it fails or does not answer."""
        self.resume(pickle.dumps((method, arguments)))
        try:
            return self.answer(patience_s)
        finally:
            self.stop()

    def resume(self, request: bytes) -> None:
        self._write(request)
        for pid in (self._popen.pid, *self._tree):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def answer(self, patience_s: float) -> Reply:
        """Return its next reply."""
        until, received = time.monotonic() + patience_s, self._rest
        while b"\n" not in received:
            ready, _, _ = select.select([self._replies], [], [], max(0.0, until - time.monotonic()))
            block = os.read(self._replies, 2**20) if ready else b""
            received += block
            if not block or len(received) > _LARGEST_REPLY:
                got = f"no answer in {patience_s:.0f} s" if not ready else self._end()
                raise CandidateRefused(f"the process of the {self.side} does not answer", got=got)
        line, _, self._rest = received.partition(b"\n")
        try:
            reply = msgspec.json.decode(line, type=Reply)
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
        return f"exit code {self._popen.returncode}" + "".join(f": {each}" for each in last)

    # -- the processes below it

    def stop(self) -> None:
        """Stop it and all that it has started, and wait until they stand."""
        running = [self._popen.pid, *self._tree]
        for _ in range(100):  # while one is stopped, another may fork
            for pid in running:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
            below = descendants(os.getpid(), besides=self._arena.others(self))
            self._tree = [pid for pid in below if pid != self._popen.pid]
            running = [pid for pid in (self._popen.pid, *self._tree) if _state(pid) not in _STOPPED]
            if not running:
                return
        raise CandidateRefused(f"processes of the {self.side} do not stop", got=f"{len(running)} are running")

    def end(self) -> None:
        """Kill it and all that it has started."""
        if self not in self._arena.processes:
            return
        for pid in (*descendants(os.getpid(), besides=self._arena.others(self)), self._popen.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._popen.wait()
        for address in self._opened.values():
            with suppress(OSError):
                driver_call("cuIpcCloseMemHandle", ctypes.c_uint64(address))
        for each in (self._requests, self._replies, self._memory, self._letters):
            os.close(each)
        self._log.close()
        self._arena.processes.remove(self)

    @property
    def pid(self) -> int:
        return self._popen.pid

    # -- its memory

    def read(self, output: Output) -> torch.Tensor:
        """Copy an output from the memory of the process. Raises `CandidateRefused` if it does not lie there."""
        dtype = getattr(torch, output.dtype, None)
        shape, strides = output.shape, output.strides
        is_sound = isinstance(dtype, torch.dtype) and len(shape) == len(strides) and min((0, *shape, *strides)) >= 0
        size = dtype.itemsize * span_of(shape, strides) if is_sound else 0
        if not is_sound or size > self._arena.most_bytes:
            raise CandidateRefused("an output that no tensor has", got=str(output)[:200])
        on_device = bool(output.handle)
        target = self._arena.device.torch_device if on_device else torch.device("cpu")
        memory = torch.empty(size, dtype=torch.uint8, device=target)
        if on_device and size:
            self._read_device(output, memory)
        elif size:
            self._read_host(output, memory)
        return memory.view(dtype).as_strided(shape, strides)

    def _read_host(self, output: Output, memory: torch.Tensor) -> None:
        view, done = memoryview(memory.numpy()), 0
        try:
            while done < len(view):
                count = os.preadv(self._memory, [view[done:]], output.address + done)
                done += count or len(view) + 1
        except (OSError, OverflowError) as error:
            raise CandidateRefused("an output that cannot be read", got=f"{output.name}: {error}") from None
        if done != len(view):
            raise CandidateRefused("an output that cannot be read", got=output.name)

    def _read_device(self, output: Output, memory: torch.Tensor) -> None:
        try:
            if output.handle not in self._opened:
                handle = _IpcHandle.from_buffer_copy(bytes.fromhex(output.handle))
                opened = ctypes.c_uint64()
                driver_call("cuIpcOpenMemHandle_v2", ctypes.byref(opened), handle, ctypes.c_uint(1))
                self._opened[output.handle] = opened.value
            base, size = ctypes.c_uint64(), ctypes.c_size_t()
            opened = ctypes.c_uint64(self._opened[output.handle])
            driver_call("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size), opened)
            if not 0 <= output.address <= size.value - memory.numel():
                raise ValueError("outside of its allocation")
            source = ctypes.c_uint64(base.value + output.address)
            stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
            driver_call(
                "cuMemcpyDtoDAsync_v2",
                ctypes.c_uint64(memory.data_ptr()),
                source,
                ctypes.c_size_t(memory.numel()),
                stream,
            )
        except (OSError, ValueError) as error:
            raise CandidateRefused("an output that cannot be read", got=f"{output.name}: {error}") from None


class _IpcHandle(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_char * 64),)


def descendants(pid: int, besides: Sequence[int] = ()) -> list[int]:
    """Return all processes below one, without some of its children and what is below them."""
    parents: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (fields := _stat(int(entry))):
            parents.setdefault(int(fields[1]), []).append(int(entry))
    found, left = [], [pid]
    while left:
        children = [each for each in parents.get(left.pop(), []) if each not in besides]
        found += children
        left += children
    return found


def _stat(pid: int) -> list[str]:
    """Return the state of a process, its parent, and more; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def _state(pid: int) -> str:
    return (_stat(pid) or ["X"])[0]


class _Arena:
    """Memory that all processes share: arguments lie in it, elsewhere in each batch."""

    def __init__(self, device: Device, size: int, most_bytes: int, through_host: bool) -> None:
        self.device, self.most_bytes, self.through_host = device, most_bytes, through_host
        self.processes: list[_Process] = []
        self.inherited: list[int] = []
        self.is_on_host = through_host or device.gpu is None
        if self.is_on_host:
            self.inherited = [os.memfd_create("kernelgauge")]
            os.truncate(self.inherited[0], size)
            path = f"/proc/self/fd/{self.inherited[0]}"
            self.tensor = torch.from_file(path, shared=True, size=size, dtype=torch.uint8)
        else:
            self.tensor = torch.empty(size, dtype=torch.uint8, device=device.torch_device)
        self._quiet_s = self._flush_s()

    def others(self, process: _Process) -> list[int]:
        """Return the processes of the other side: those of the reference stand while the candidate runs."""
        return [each.pid for each in self.processes if each is not process]

    def write(self, calls: Sequence[Arguments]) -> list[Any]:
        """Write arguments, each at an address of its own. Return where they lie."""
        offset = _ALIGNMENT * secrets.randbelow(_SLACK)

        def placed(value: Any) -> Any:
            nonlocal offset
            if not isinstance(value, torch.Tensor):
                return value
            strides = torch.empty_like(value, device="meta").stride()  # an expanded one has gaps filled
            place = Place(offset, value.dtype, tuple(value.shape), strides, value.requires_grad)
            offset += value.element_size() * span_of(place.shape, strides)
            offset = -(-offset // _ALIGNMENT) * _ALIGNMENT + _ALIGNMENT * secrets.randbelow(_SLACK)
            place.view(self.tensor).copy_(value.detach())
            return place

        places = list(tree_map(placed, list(calls)))
        self.device.synchronize()
        return places

    def _flush_s(self) -> float:
        """Evict the last-level cache. Return how long that takes at best: longer if another process computes."""

        def once() -> float:
            start = time.perf_counter()
            self.device.flush_cache()
            self.device.synchronize()
            return time.perf_counter() - start

        return min(once() for _ in range(5))

    def require_quiet(self) -> None:
        """Evict the last-level cache. Raises `CandidateRefused` if the device computes although all processes stand."""
        seconds = self._flush_s()
        if seconds > max(_QUIET_SECONDS, _QUIET_FACTOR * self._quiet_s):
            got = f"a flush of the cache takes {1e6 * seconds:.0f} us, and took {1e6 * self._quiet_s:.0f}"
            raise CandidateRefused("the candidate computes on the GPU while it is stopped", got=got)


@dataclass
class _Judge:
    """Runs batches, and compares what comes of them."""

    oracle: Oracle
    arena: _Arena
    checked: int = 0
    sizes: dict[Case, int] = field(default_factory=dict)  # calls in a batch
    batches_us: dict[tuple[str, Case, int], list[float]] = field(default_factory=dict)

    def started(self, side: str, target: str, folder: str, stack: ExitStack) -> list[_Process]:
        """Start the processes of one side, all at once."""
        processes = []
        for _ in range(_PROCESSES):
            process = _Process(target, self.arena, folder, side)
            self.arena.processes.append(process)
            processes.append(process)
            stack.callback(process.end)
        for each in processes:
            each.answer(_PATIENCE_S)
            each.stop()
        for each in processes:
            for dtype in dict.fromkeys(case.dtype for case in self.oracle.cases):
                each.ask("prepare", TORCH_DTYPES[dtype], self.oracle.init_arguments, self.oracle.state)
        return processes

    def choose_size(self, references: Sequence[_Process], case: Case, taken_bytes: int) -> None:
        """Choose how many calls a batch has: about as many as take some milliseconds, and have room in the arena."""
        kind = self.arena.device.torch_device.type
        fewest, most = _CALLS[kind]
        for each in references:
            self.batch(each, case, [_NORMAL] * 2)
            seconds = self.batch(each, case, [_NORMAL] * 2) / 2
        room = self.arena.tensor.numel() // taken_bytes - 1
        self.sizes[case] = max(2, min(room, max(fewest, min(most, int(_BATCH_SECONDS[kind] / seconds)))))

    def check_values(self, process: _Process, case: Case, kinds: Sequence[str]) -> None:
        """Check values of each kind twice, in no order."""
        several = [*kinds, *kinds]
        _RANDOM.shuffle(several)
        for place in range(0, len(several), self.sizes[case]):
            self.batch(process, case, several[place : place + self.sizes[case]])

    def time(self, processes: Sequence[_Process], batches: int) -> None:
        """Time batches of each case, the processes in turns."""
        for case in self.oracle.cases:
            for _ in range(batches):
                for number, process in enumerate(processes):
                    count = self.sizes[case]
                    seconds = self.batch(process, case, [_NORMAL] * count)
                    self.batches_us.setdefault((process.side, case, number), []).append(1e6 * seconds / count)

    def times_of(self, case: Case, input_bytes: int, output_bytes: int) -> CaseTimes:
        """Sum up the batches of a case. Raises `CandidateRefused` if no memory is as fast."""
        sides = [
            [
                Sample(tuple(min(values[at : at + _BATCHES]) for at in range(0, len(values), _BATCHES)), _BATCHES)
                for values in (self.batches_us[side, case, number] for number in range(_PROCESSES))
            ]
            for side in (_REFERENCE, _CANDIDATE)
        ]
        device, count = self.arena.device, self.sizes[case]
        written, peak = count * output_bytes - device.cache_bytes, device.peak_bytes_per_second
        floor_us = 1e6 * written / peak / count if peak and written > 0 else None
        fastest_us = min(min(each.replicates_us) for each in sides[1])
        if floor_us is not None and fastest_us < floor_us:
            got, expected = f"{fastest_us:.2f} us", f"at least {floor_us:.2f} us"
            raise CandidateRefused(
                "faster than the memory can take its outputs", where=case.name, got=got, expected=expected
            )
        return CaseTimes(case.name, *sides, count, input_bytes, output_bytes, floor_us)

    def batch(self, process: _Process, case: Case, kinds: Sequence[str]) -> float:
        """Make one call for each kind of values. Return the seconds from their inputs to results in the judge's memory.

        Raises `CandidateRefused` if a result is wrong.
        """
        process.ask("forget")
        calls = [self.oracle.draw(case, values) for values in kinds]
        places = self.arena.write(calls)
        chosen = sorted({len(calls) - 1, *_RANDOM.sample(range(len(calls)), max(1, len(calls) // _READ_SHARE))})
        request = pickle.dumps(("call", (TORCH_DTYPES[case.dtype], places)))
        if process.side == _CANDIDATE:
            self.arena.require_quiet()
        else:
            self.arena.device.flush_cache()
            self.arena.device.synchronize()
        start = time.perf_counter()
        process.resume(request)
        reply = process.answer(_PATIENCE_S)
        if len(reply.outputs) != len(calls):
            raise CandidateRefused(
                "the candidate left out calls", got=str(len(reply.outputs)), expected=str(len(calls))
            )
        early = {number: self._read(process, reply, number) for number in chosen}
        self.arena.device.synchronize()
        seconds = time.perf_counter() - start
        process.stop()
        self._check(process, case, kinds, calls, places, reply, early)
        return seconds

    def _read(self, process: _Process, reply: Reply, number: int) -> dict[str, torch.Tensor]:
        return {each.name: process.read(each) for each in reply.outputs[number]}

    def _check(
        self,
        process: _Process,
        case: Case,
        kinds: Sequence[str],
        calls: Sequence[Arguments],
        places: Sequence[Any],
        reply: Reply,
        early: dict[int, dict[str, torch.Tensor]],
    ) -> None:
        results = [self._read(process, reply, number) for number in range(len(calls))]
        for (_, before), place in zip(tensors_of(list(calls)), _leaves(places), strict=True):
            if not _same(place.view(self.arena.tensor).to(before.device), before.detach()):
                raise CandidateRefused("the candidate writes to its inputs", where=case.name)
        for values, arguments, result in zip(kinds, calls, results, strict=True):
            on_device = {name: each.to(self.arena.device.torch_device) for name, each in result.items()}
            wrong = self.oracle.first_wrong(case, values, arguments, on_device)
            if isinstance(wrong, str):
                raise CandidateRefused("the result is of another form", where=case.name, got=wrong)
            if wrong is not None:
                raise CandidateRefused(
                    f"wrong result: {case.name}, {wrong.values} inputs",
                    wrong=wrong,
                )
        self.arena.tensor.bitwise_not_()  # what an output shares with an input changes now
        self.arena.device.synchronize()
        for number, result in enumerate(results):
            again = self._read(process, reply, number)
            for name, each in result.items():
                if not _same(each, again[name]) or (number in early and not _same(each, early[number][name])):
                    raise CandidateRefused(
                        "an output changes after its call, or shares memory with an input", where=case.name
                    )
        self.checked += len(calls)


_CANDIDATE, _REFERENCE = "candidate", "reference"
_RANDOM = secrets.SystemRandom()


def _leaves(places: Any) -> Iterator[Place]:
    from torch.utils._pytree import tree_leaves

    return (each for each in tree_leaves(places) if isinstance(each, Place))


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors have the same bits."""
    return torch.equal(
        *(
            each.contiguous().view(torch.uint8) if each.ndim else each.reshape(1).view(torch.uint8)
            for each in (one, other)
        )
    )


def hold_contest(candidate: str, reference: str, device: Device, progress: Callable[[str], None]) -> Contest:
    """Check and time a candidate beside a reference: the reference before the candidate exists, and when it is dead.

    Raises `CandidateRefused` if it is not correct or cheats, `KernelgaugeError` if the reference is of no use.
    """
    if not sys.platform.startswith("linux"):
        raise KernelgaugeError(
            "judge reads the memory of another process through /proc", got=sys.platform, expected="Linux"
        )
    libc, kind = ctypes.CDLL(None), device.torch_device.type
    for option, value in ((_PR_SET_CHILD_SUBREAPER, 1), (_PR_SET_DUMPABLE, 0)):  # no candidate escapes, or reads this
        libc.prctl(option, value, 0, 0, 0)
    oracle = Oracle(reference, device)
    kinds = {case: oracle.prepare(case) for case in oracle.cases}
    sizes = {case: _sizes(oracle, case) for case in oracle.cases}
    largest = max(sum(each) for each in sizes.values())
    choices = [False] if device.gpu is None else [False, True]
    for through_host in choices:
        with tempfile.TemporaryDirectory(prefix="kernelgauge-") as folder, ExitStack() as stack:
            wanted = (_CALLS[kind][1] + 1) * max(taken for _, _, taken in sizes.values())
            least = 3 * max(taken for _, _, taken in sizes.values())
            arena = _Arena(device, max(least, min(_ARENA_BYTES[kind], wanted)), 4 * largest + 2**20, through_host)
            judge = _Judge(oracle, arena)
            try:
                references = judge.started(_REFERENCE, reference, folder, stack)
                for case in oracle.cases:
                    judge.choose_size(references, case, sizes[case][2])
            except CandidateRefused as refusal:
                if through_host is choices[-1]:
                    raise KernelgaugeError(str(refusal), got=refusal.got, where=refusal.where) from refusal
                progress(f"through the host: {refusal}")
                continue
            half = _BATCHES * _REPLICATES // 2
            progress("timing the reference")
            judge.time(references, half)
            progress("checking the candidate")
            candidates = judge.started(_CANDIDATE, candidate, folder, stack)
            for case in oracle.cases:
                for each in candidates:
                    judge.check_values(each, case, kinds[case])
            progress("timing the candidate")
            judge.time(candidates, 2 * half)
            for each in candidates:
                each.end()
            progress("timing the reference again")
            judge.time(references, half)
            values = tuple(dict.fromkeys(each for case in oracle.cases for each in kinds[case]))
            times = [judge.times_of(case, *sizes[case][:2]) for case in oracle.cases]
            return Contest(times, judge.checked, values, kind == "cpu", through_host)
    raise AssertionError("one of the choices returns or raises")


def _sizes(oracle: Oracle, case: Case) -> tuple[int, int, int]:
    """Return the bytes of the inputs and outputs of one call, and those that its inputs take in the arena at most."""
    arguments = oracle.draw(case)
    inputs = [each for _, each in tensors_of(list(arguments))]
    sides = inputs, oracle.results(arguments, case.dtype).values()
    taken, given = (sum(each.numel() * each.element_size() for each in side) for side in sides)
    return taken, given, taken + _ALIGNMENT * (_SLACK + 1) * len(inputs)
