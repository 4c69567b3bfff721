"""The process that calls a candidate, and the memory that the judge shares with it, or reads from outside.

Nobody believes the process: `contest.py` reads its outputs with `OutsideMemory`, on its own clock.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import math
import os
import pickle
import secrets
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import msgspec
import torch
from torch import nn
from torch.utils._pytree import keystr, tree_leaves, tree_leaves_with_path, tree_map

from ..errors import CandidateRefused
from ..run import Run

if TYPE_CHECKING:
    from .device import Device
    from .instance import Arguments

_ALIGNMENT, _SLACK = 512, 64  # bytes: of arguments, and how many times that lies between them at most
_QUIET_FACTOR, _QUIET_SECONDS = 10.0, 1e-3  # a GPU that others compute on shares its time in slices of milliseconds
# Of a file without `:NAME`: ours, KernelBench's, and GPU MODE's.
_NAMES = ("run", "ModelNew", "Model", "custom_kernel", "ref_kernel")
_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS, _CAPABILITY_VERSION = 1, 38, 0x20080522  # of prctl.h and capability.h


# -- memory -----------------------------------------------------------------------------------------------------------


class _IpcHandle(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_char * 64),)


class Output(msgspec.Struct, frozen=True):
    """Where a tensor of a result lies. It may be a lie."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    address: int  # in the process; with a handle, the offset in what the handle opens
    handle: str = ""  # of CUDA IPC, as hexadecimal digits


@dataclass(frozen=True)
class ArgumentPlace:
    """A tensor of an argument: where it lies in the arena, in bytes."""

    offset: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    requires_grad: bool = False

    def view(self, arena: torch.Tensor) -> torch.Tensor:
        """Return the tensor there."""
        end = self.offset + self.dtype.itemsize * span_of(self.shape, self.strides)
        return arena[self.offset : end].view(self.dtype).as_strided(self.shape, self.strides)


class Arena:
    """Memory that all processes share: arguments lie in it, elsewhere in each batch.

    Attributes:
        inherited: the descriptor of its file, on the host.
        most_bytes: that an output may have.
    """

    def __init__(self, device: Device, size: int, most_bytes: int) -> None:
        self.device, self.most_bytes = device, most_bytes
        self.inherited: list[int] = []
        if device.gpu is None:
            self.inherited = [os.memfd_create("kernelgauge")]
            os.truncate(self.inherited[0], size)
            path = f"/proc/self/fd/{self.inherited[0]}"
            self.tensor = torch.from_file(path, shared=True, size=size, dtype=torch.uint8)
        else:
            self.tensor = torch.empty(size, dtype=torch.uint8, device=device.torch_device)
        self._quiet_s = math.inf

    @staticmethod
    def room(size: int, tensors: int) -> int:
        """Return the bytes that so many tensors of this size in all take at most."""
        return size + _ALIGNMENT * (_SLACK + 1) * tensors

    def write(self, calls: Sequence[Arguments]) -> list[Any]:
        """Write arguments, each at an address of its own. Return where they lie."""
        end = 0

        def placed(value: Any) -> Any:
            nonlocal end
            if not isinstance(value, torch.Tensor):
                return value
            strides = torch.empty_like(value, device="meta").stride()  # without the gaps of an expanded one
            offset = _ALIGNMENT * (-(-end // _ALIGNMENT) + secrets.randbelow(_SLACK))
            place = ArgumentPlace(offset, value.dtype, tuple(value.shape), strides, value.requires_grad)
            end = offset + value.element_size() * span_of(place.shape, strides)
            place.view(self.tensor).copy_(value.detach())
            return place

        places = list(tree_map(placed, list(calls)))
        self.device.synchronize()
        return places

    def learn_quiet(self) -> None:
        """Time an eviction of the cache while nothing computes."""
        self._quiet_s = self._flush_s()

    def _flush_s(self) -> float:
        """Evict the last-level cache. Return the seconds that takes at best: more if another process computes."""
        seconds = []
        for _ in range(5):
            start = time.perf_counter()
            self.device.flush_cache()
            self.device.synchronize()
            seconds.append(time.perf_counter() - start)
        return min(seconds)

    def is_quiet(self) -> bool:
        """Evict the cache. Return whether the device computes nothing else meanwhile."""
        return self._flush_s() <= max(_QUIET_SECONDS, _QUIET_FACTOR * self._quiet_s)


class OutsideMemory:
    """The memory of another process, on the host and on the device."""

    def __init__(self, pid: int, arena: Arena) -> None:
        self._arena = arena
        self._host = os.open(f"/proc/{pid}/mem", os.O_RDONLY)
        self._opened: dict[str, int] = {}  # device memory, by handle

    def read(self, output: Output) -> torch.Tensor:
        """Copy an output. Raises `CandidateRefused` if it does not lie there."""
        dtype, sizes = getattr(torch, output.dtype, None), (*output.shape, *output.strides)
        if not isinstance(dtype, torch.dtype) or len(sizes) != 2 * len(output.shape) or min((0, *sizes)) < 0:
            raise CandidateRefused("an output that no tensor has", got=str(output)[:200])
        size = dtype.itemsize * span_of(output.shape, output.strides)
        if size > self._arena.most_bytes:
            raise CandidateRefused("an output is too large", got=f"{size} bytes")
        target = self._arena.device.torch_device if output.handle else torch.device("cpu")
        memory = torch.empty(size, dtype=torch.uint8, device=target)
        try:
            if size and output.handle:
                self._copy_exported(output, memory)
            elif size:
                view = memoryview(memory.numpy().data)
                done = 0
                while done < size:
                    count = os.preadv(self._host, [view[done:]], output.address + done)
                    if not count:
                        raise ValueError("nothing lies there")
                    done += count
        except (OSError, OverflowError, ValueError) as error:
            raise CandidateRefused("an output cannot be read", got=f"{output.name}: {error}") from None
        return memory.view(dtype).as_strided(output.shape, output.strides).to(self._arena.device.torch_device)

    def _copy_exported(self, output: Output, memory: torch.Tensor) -> None:
        """Copy an output on the device, asynchronously. Raises `OSError` or `ValueError` if it does not lie there."""
        if output.handle not in self._opened:
            address, handle = ctypes.c_uint64(), _IpcHandle.from_buffer_copy(bytes.fromhex(output.handle))
            driver_call("cuIpcOpenMemHandle_v2", ctypes.byref(address), handle, ctypes.c_uint(1))
            self._opened[output.handle] = address.value
        base, size = ctypes.c_uint64(), ctypes.c_size_t()
        start = ctypes.c_uint64(self._opened[output.handle])
        driver_call("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size), start)
        if not 0 <= output.address <= size.value - memory.numel():
            raise ValueError("outside of its allocation")
        places = ctypes.c_uint64(memory.data_ptr()), ctypes.c_uint64(base.value + output.address)
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        driver_call("cuMemcpyDtoDAsync_v2", *places, ctypes.c_size_t(memory.numel()), stream)

    def close(self) -> None:
        for address in self._opened.values():
            with suppress(OSError):
                driver_call("cuIpcCloseMemHandle", ctypes.c_uint64(address))
        os.close(self._host)


def ipc_handle_of(address: int) -> tuple[int, str]:
    """Return the offset of device memory in its allocation, and the handle by which another process opens that."""
    base, size = ctypes.c_uint64(), ctypes.c_size_t()
    handle = _IpcHandle()
    driver_call("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size), ctypes.c_uint64(address))
    driver_call("cuIpcGetMemHandle", ctypes.byref(handle), base)
    return address - base.value, bytes(handle).hex()


def driver_call(name: str, *arguments: Any) -> None:
    """Call a function of CUDA's driver. Raises `OSError` if it fails."""
    if status := getattr(ctypes.CDLL("libcuda.so.1"), name)(*arguments):
        raise OSError(f"{name} fails with CUDA error {status}")


def tensors_of(value: Any) -> list[tuple[str, torch.Tensor]]:
    """Return the tensors in tuples, lists, dicts and what else torch can take apart, with their paths."""
    return [(keystr(path), each) for path, each in tree_leaves_with_path(value) if isinstance(each, torch.Tensor)]


def span_of(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Return how many elements lie from the first to the last one of a tensor."""
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))


# -- the process ------------------------------------------------------------------------------------------------------


class Reply(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer to one request: the outputs of each call, or an error."""

    outputs: tuple[tuple[Output, ...], ...] = ()
    error: str = ""
    run: Run | None = None  # as the process observed itself


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

    def call(self, dtype: torch.dtype, calls: Sequence[Any]) -> Reply:
        """Make these calls, and return when the device has done them."""
        function, arena = self._functions[dtype], self._arena

        def argument(value: Any) -> Any:
            if not isinstance(value, ArgumentPlace):
                return value
            return value.view(arena).requires_grad_(value.requires_grad)

        trains = any(isinstance(each, ArgumentPlace) and each.requires_grad for each in tree_leaves(calls))
        with torch.set_grad_enabled(trains):
            for positional, keywords in calls:
                self._results.append(function(*tree_map(argument, positional), **tree_map(argument, keywords)))
        if self._device.type == "cuda":
            torch.cuda.synchronize()
        return Reply(tuple(tuple(self._located(*each) for each in tensors_of(result)) for result in self._results))

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
