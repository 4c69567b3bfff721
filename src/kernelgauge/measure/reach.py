"""What a call reaches: the tensors of its arguments, closures and globals, and of the objects there, moved in place."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves

from ..workload import Workload, copy_arguments, copy_module, is_copied
from .compiler import owner_of

_PLAIN = (str, bytes, int, float, complex, type(None), torch.dtype, torch.device, torch.Size, ModuleType)
# Their objects lead to other tests, or to the state of the interpreter, and hold no tensor of a call.
_CLOSED = {"pytest", "_pytest", "pluggy", "kernelgauge", "logging", "threading", "unittest", "numpy", "triton", "xdist"}
_HOLDERS = {
    "types",
    "collections",
    "functools",
    "dataclasses",
    "contextlib",
    "enum",
}  # of Python, that hold others' objects


@contextmanager
def moved_to(device: torch.device, workloads: Sequence[Workload]) -> Iterator[None]:
    """Move what the functions of workloads reach to a device, and at the end back to where it was.

    Tensors stay the same objects, so that an optimizer keeps its parameters. Those that share memory still share it. What
    each replicate copies is left where it is. Not moved: results that autograd has recorded, what an installed package keeps in
    globals, and what an extension in C holds.
    """
    if device.type == "cpu" and not torch.cuda.is_available():
        yield  # there is nowhere else to be
        return
    roots = [(each.build, each.inputs, each.reference) for each in workloads]
    before = {id(each): (each, each.device) for each in reached_tensors(roots)}
    _move({id(each): device for each, _ in before.values()}, (each for each, _ in before.values()))
    try:
        yield
    finally:
        # The call may have made others: the state of an optimizer.
        were_elsewhere = [place for _, place in before.values() if place != device]
        home = {"new": were_elsewhere[0]} if were_elsewhere and len(were_elsewhere) == len(before) else {}
        after = reached_tensors(roots) if home else []
        places = {id(each): home["new"] for each in after} | {key: place for key, (_, place) in before.items()}
        _move(places, [*(each for each, _ in before.values()), *after])


def reached_tensors(roots: object) -> list[torch.Tensor]:
    """Return each tensor that objects hold, once, without what each replicate has copies of (`copy_module`, `copy_arguments`)."""
    found: list[torch.Tensor] = []
    seen: dict[int, object] = {}  # by id; held, so that no other object takes it
    waiting: deque[object] = deque([roots])
    while waiting:
        value = waiting.popleft()
        if isinstance(value, _PLAIN) or id(value) in seen:
            continue
        seen[id(value)] = value
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, partial) and value.func in (copy_module, copy_arguments):
            seen |= {id(each): each for each in _copied(value)}
        waiting.extend(_parts(value))
    return found


def _copied(call: partial[Any]) -> Iterator[object]:
    """Yield what each replicate copies: tensors among the arguments, or the parameters and buffers of the module."""
    if call.func is copy_arguments:
        yield from (each for each in tree_leaves(call.args) if isinstance(each, torch.Tensor))
    elif is_copied(module := call.args[0]):
        yield from (*module.parameters(), *module.buffers())


def _parts(value: Any) -> Iterable[object]:
    """Return what an object holds."""
    if isinstance(value, torch.Tensor):
        return [value.grad] if value.is_leaf else []
    if isinstance(value, dict):
        return [*value.values(), *_attributes(value)]
    if isinstance(value, (list, tuple, set, frozenset, deque)):
        return [*value, *_attributes(value)]
    if isinstance(value, partial):
        return [value.func, value.args, value.keywords]
    if isinstance(value, MethodType):
        return [value.__self__, value.__func__]
    if isinstance(value, (staticmethod, classmethod)):
        return [value.__func__]
    if isinstance(value, property):
        return [value.fget]
    if isinstance(value, FunctionType):
        return [*_cells(value), value.__defaults__, value.__kwdefaults__, vars(value), *_globals_of(value)]
    if isinstance(value, torch.optim.Optimizer):
        return _of_optimizer(value)
    return _attributes(value)


def _attributes(value: Any) -> list[object]:
    """Return the attributes of an object and of its class; none of a class or object that leads elsewhere."""
    kind = value if isinstance(value, type) else type(value)
    module = kind.__module__ or ""
    root = module.partition(".")[0]
    if root in _CLOSED or module.startswith("torch._") or (root in sys.stdlib_module_names and root not in _HOLDERS):
        return []
    own = list(getattr(value, "__dict__", {}).values())
    slots = {name for each in kind.__mro__ for name in _names(each.__dict__.get("__slots__", ()))}
    if not isinstance(value, type):
        with suppress(Exception):  # an object may refuse to be read
            own += [
                getattr(value, name)
                for name in slots
                if name not in ("__dict__", "__weakref__") and hasattr(value, name)
            ]
    classes = kind.__mro__ if not isinstance(value, type) else kind.__mro__[1:]
    return [*own, *(each for each in classes if (each.__module__ or "").partition(".")[0] not in ("torch", "builtins"))]


def _names(slots: Any) -> tuple[str, ...]:
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _cells(function: FunctionType) -> Iterator[object]:
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # not filled yet
            yield cell.cell_contents


def _globals_of(function: FunctionType) -> Iterator[object]:
    """Yield the globals that a function of the user's names, and what it names in the modules among them."""
    if owner_of(function.__code__.co_filename) != "user":
        return
    names = set(_names_in(function.__code__))
    for name in names & function.__globals__.keys():
        value = function.__globals__[name]
        yield value
        if isinstance(value, ModuleType):
            root = value.__name__.partition(".")[0]
            if root not in _CLOSED | {"torch"} and root not in sys.stdlib_module_names:
                yield from (vars(value)[each] for each in names & vars(value).keys())


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _names_in(each)


def _of_optimizer(optimizer: torch.optim.Optimizer) -> list[object]:
    """Return the parameters of an optimizer and its state, as `Optimizer.load_state_dict` places it."""
    found: list[object] = []
    for group in optimizer.param_groups:
        on_device = bool(group.get("fused") or group.get("capturable"))
        for parameter in group["params"]:
            state = optimizer.state.get(parameter, {})
            found += [parameter, *(value for name, value in state.items() if name != "step" or on_device)]
    return found


def _move(places: dict[int, torch.device], tensors: Iterable[torch.Tensor]) -> None:
    """Move tensors in place, each to the device under its id. Those that share memory share it behind the move."""
    memory: dict[tuple[int, torch.device], torch.UntypedStorage] = {}
    held = []  # else another storage may take the address of one that has moved
    for tensor in tensors:
        device = places[id(tensor)]
        if tensor.device == device or tensor.is_meta or tensor.grad_fn is not None:
            continue
        with suppress(RuntimeError, TypeError, NotImplementedError), torch.no_grad():  # of a kind that does not move
            if is_traceable_wrapper_subclass(tensor):
                torch.utils.swap_tensors(tensor, tensor.to(device))
            elif tensor.layout is not torch.strided or tensor.is_conj() or tensor.is_neg():
                tensor.data = tensor.data.to(device)
            else:
                storage = tensor.untyped_storage()
                held.append(storage)
                key = storage.data_ptr(), device
                if key not in memory:
                    flat = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
                    memory[key] = flat.to(device).untyped_storage()
                shape = tensor.storage_offset(), tensor.size(), tensor.stride()
                tensor.data = torch.empty(0, dtype=tensor.dtype, device=device).set_(memory[key], *shape)
