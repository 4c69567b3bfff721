"""The process that calls a candidate. Nobody believes it: `contest.py` reads its outputs from outside, on its own clock."""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import os
import pickle
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

from ..run import Run
from .memory import ArgumentPlace, Output, ipc_handle_of, tensors_of

# Of a file without `:NAME`: ours, KernelBench's, and GPU MODE's.
_NAMES = ("run", "ModelNew", "Model", "custom_kernel", "ref_kernel")
_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS, _CAPABILITY_VERSION = 1, 38, 0x20080522  # of prctl.h and capability.h


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
