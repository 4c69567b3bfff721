"""Memory and the queue of a GPU, which the judge shares with processes that it does not trust.

Arguments lie in an arena, results are read from outside, and a gate holds calls back until their arguments exist.
"""

from __future__ import annotations

import ctypes
import math
import os
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import torch
from torch.utils._pytree import keystr, tree_leaves, tree_leaves_with_path, tree_map

from ..errors import CandidateRefused

if TYPE_CHECKING:
    from .device import Device
    from .instance import Arguments

_ALIGNMENT, _SLACK = 512, 64  # bytes: of arguments, and how many times that lies between them at most
_QUIET_FACTOR, _QUIET_SECONDS = 10.0, 1e-3  # a GPU that others compute on shares its time in slices of milliseconds


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

    def place(self, calls: Sequence[Arguments]) -> list[Any]:
        """Choose where arguments will lie, each at an address of its own."""
        end = 0

        def placed(value: Any) -> Any:
            nonlocal end
            if not isinstance(value, torch.Tensor):
                return value
            strides = torch.empty_like(value, device="meta").stride()  # without the gaps of an expanded one
            offset = _ALIGNMENT * (-(-end // _ALIGNMENT) + secrets.randbelow(_SLACK))
            place = ArgumentPlace(offset, value.dtype, tuple(value.shape), strides, value.requires_grad)
            end = offset + value.element_size() * span_of(place.shape, strides)
            return place

        return list(tree_map(placed, list(calls)))

    def write(self, calls: Sequence[Arguments]) -> list[Any]:
        """Write arguments, and return where they lie."""
        places = self.place(calls)
        for place, value in self.pairs(places, calls):
            place.view(self.tensor).copy_(value)
        self.device.synchronize()
        return places

    def staged(self, places: list[Any], calls: Sequence[Arguments]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return what `Gate.close` inverts into the arena, and where: bytes."""
        stages = []
        for place, value in self.pairs(places, calls):
            dense = torch.empty_strided(place.shape, place.strides, dtype=place.dtype, device=value.device).copy_(value)
            size = span_of(place.shape, place.strides)
            stage = dense.as_strided((size,), (1,)).view(torch.uint8).bitwise_not()
            stages.append((stage, self.tensor[place.offset : place.offset + stage.numel()]))
        return stages

    @staticmethod
    def pairs(places: list[Any], calls: Sequence[Arguments]) -> Iterator[tuple[ArgumentPlace, torch.Tensor]]:
        """Return each tensor of the arguments with its place."""
        chosen = [each for each in tree_leaves(places) if isinstance(each, ArgumentPlace)]
        return zip(chosen, (each.detach() for _, each in tensors_of(list(calls))), strict=True)

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


class Gate:
    """Holds back what other processes queue on the GPU until their arguments are written, and times them by the GPU's clock."""

    def __init__(self, device: Device) -> None:
        self._device, self._opening = device, event(interprocess=True)
        self.handle: bytes = self._opening.ipc_handle()
        self._start, self._end = (event(enable_timing=True) for _ in range(2))

    def close(self, seconds: float, stages: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Let the GPU wait so long. Then the clock starts, arguments are written, the cache is evicted, and the gate opens."""
        self._device.hold(1e6 * seconds)
        self._start.record()
        for stage, place in stages:
            torch.bitwise_not(stage, out=place)  # a kernel: a copy engine could write while kernels run
        self._device.flush_cache()
        self._opening.record()

    def is_open(self) -> bool:
        return bool(self._opening.query())

    def stop(self) -> None:
        """Stop the clock behind all that this process has queued."""
        self._end.record()

    def seconds(self) -> float:
        self._end.synchronize()
        return float(self._start.elapsed_time(self._end)) / 1e3


def event(**options: bool) -> Any:
    """Return an event of CUDA."""
    return torch.cuda.Event(**options)  # type: ignore[no-untyped-call]


def event_of(handle: bytes) -> Any:
    """Return the event of another process."""
    here = torch.device("cuda", torch.cuda.current_device())
    return torch.cuda.Event.from_ipc_handle(here, handle)  # type: ignore[no-untyped-call]


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
