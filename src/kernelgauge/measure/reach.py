"""What a call reaches: the tensors of its arguments, closures and globals, and of the objects
there, moved in place.

Nothing here runs a method of theirs. One may raise, import or compute: a tuple that refuses `len`,
a proxy that loads what it stands for, a property.
"""

from __future__ import annotations

import sys
import tracemalloc
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from types import (
    CodeType,
    FrameType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any, cast

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves

from ..errors import WorkloadError
from ..workload import Workload, copy_arguments, copy_module, is_copied
from .compiler import owner_of

_PLAIN = (str, bytes, int, float, complex, type(None), torch.dtype, torch.device, ModuleType)
# Their objects lead to other tests, or to the state of the interpreter. Of Python's own, these hold
# others' objects.
_CLOSED = {
    *"_pytest kernelgauge numpy pluggy pytest triton xdist".split(),
    *sys.stdlib_module_names,
} - {*"collections contextlib dataclasses functools types".split()}


@contextmanager
def moved_to(device: torch.device, workloads: Sequence[Workload]) -> Iterator[None]:
    """Move what the functions of workloads reach to a device, and at the end back to where it was.

    Tensors stay the same objects, so that an optimizer keeps its parameters. Those that share
    memory still share it. What each replicate copies is left where it is. They come back in new
    memory: a pinned tensor is not pinned any more, and a NumPy array not shared. Not moved: results
    that autograd has recorded, what an installed package keeps in globals, and what an extension in
    C holds.

    Raises `WorkloadError` if the device has no memory for them; what has moved comes back.
    """
    if device.type == "cpu" and not torch.cuda.is_available():
        yield  # there is nowhere else to be
        return
    before = [(each, each.device) for each in reached_tensors(workloads) if not each.is_meta]
    try:
        try:
            _move((each, device) for each, _ in before)
        except torch.OutOfMemoryError as error:
            names = ", ".join(each.id for each in workloads)
            raise WorkloadError(
                f"{names}: {device} has no memory for what the call reaches", got=str(error)
            ) from None
        yield
    finally:
        _move(before)
        known, homes = {id(each) for each, _ in before}, {home for _, home in before} - {device}
        if len(homes) == 1:  # of what the call has made, such as the state of an optimizer
            home = homes.pop()
            _move((each, home) for each in reached_tensors(workloads) if id(each) not in known)


def reached_tensors(roots: object) -> list[torch.Tensor]:
    """Return each tensor that objects hold, once, without what each replicate has copies of
    (`copy_module`, `copy_arguments`).
    """
    return [each for each in _reached(roots) if is_a(each, torch.Tensor)]


def is_a(value: object, *kinds: type) -> bool:
    """Return whether an object is of one of these kinds, whatever its `__class__` says."""
    return issubclass(type(value), kinds)


def attributes_of(value: object) -> Mapping[str, Any]:
    """Return the attributes that an object, a class or a module has of its own."""
    for kind in _bases_of(type(value)):
        slot = _variables_of(kind).get("__dict__")
        if type(slot) in (GetSetDescriptorType, MemberDescriptorType):  # no property
            with suppress(AttributeError):  # this one has none
                found: Any = slot.__get__(value)
                # a kind of its own may import, or make, what it does not hold yet
                return dict(dict.items(found)) if is_a(found, dict) else found
    return {}


_bases_of = type.__dict__["__mro__"].__get__
_variables_of = type.__dict__["__dict__"].__get__


def _reached(roots: object, without: tuple[type, ...] = ()) -> list[Any]:
    """Return all that objects hold, each once, likewise; nothing through objects of some kinds."""
    found: list[Any] = []
    seen: dict[int, object] = {}  # by id; held, so that no other object takes it
    waiting: deque[Any] = deque([roots])
    while waiting:
        value = waiting.popleft()
        if (
            issubclass(type(value), (*_PLAIN, *without))
            or type(value) in weakref.ProxyTypes
            or id(value) in seen
        ):
            continue
        seen[id(value)] = value
        found.append(value)
        if is_a(value, partial) and any(value.func is it for it in (copy_module, copy_arguments)):
            seen |= {id(each): each for each in _copied(value)}
        with torch._C.DisableTorchFunctionSubclass():
            waiting.extend(_parts(value))
    return found


def _copied(call: partial[Any]) -> Iterator[object]:
    """Yield what each replicate copies: tensors among the arguments, or the parameters and buffers
    of the module.
    """
    if call.func is copy_arguments:
        yield from (each for each in tree_leaves(call.args) if isinstance(each, torch.Tensor))
    elif is_copied(module := call.args[0]):
        yield from (*module.parameters(), *module.buffers())


def _parts(value: Any) -> Iterable[object]:
    """Return what an object holds."""
    return next(parts for kind, parts in _PARTS.items() if is_a(value, kind))(value)


def _attributes(value: Any) -> list[object]:
    """Return the attributes of an object and its classes; none of one that leads elsewhere."""
    kind = value if is_a(value, type) else type(value)
    module, own = _module_of(kind), attributes_of(value)
    # memory of a GPU cannot be pinned
    is_pinning = is_a(value, torch.utils.data.DataLoader) and own.get("pin_memory")
    if is_pinning or module.startswith("torch._") or module.partition(".")[0] in _CLOSED:
        return []
    found = list(own.values())
    for each in _bases_of(kind):
        variables = _variables_of(each)
        for slot in variables.values() if value is not kind and "__slots__" in variables else ():
            if type(slot) is MemberDescriptorType:
                with suppress(AttributeError):  # not set
                    found.append(slot.__get__(value))
    return [
        *found,
        *(each for each in _bases_of(kind) if _module_of(each).partition(".")[0] != "torch"),
    ]


def _module_of(kind: type) -> str:
    """Return the name of the module that a class is defined in; empty if it has none."""
    name = type.__dict__["__module__"].__get__(kind)
    return name if type(name) is str else ""


def _cells(function: FunctionType) -> Iterator[object]:
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # not filled yet
            yield cell.cell_contents


def _globals_of(function: FunctionType) -> Iterator[object]:
    """Yield the globals that a function of the user's names, and what it names in the modules among
    them.
    """
    if owner_of(function.__code__.co_filename) != "user":
        return
    names = set(_names_in(function.__code__))
    for name in names & function.__globals__.keys():
        value = function.__globals__[name]
        yield value
        own = attributes_of(value) if is_a(value, ModuleType) else {}
        if own and str(own.get("__name__")).partition(".")[0] not in {"torch", *_CLOSED}:
            yield from (own[each] for each in names & own.keys())


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _names_in(each)


def _of_optimizer(optimizer: torch.optim.Optimizer) -> Iterator[object]:
    """Yield the parameters of an optimizer and its state, as `Optimizer.load_state_dict` places it."""
    own = attributes_of(optimizer)
    if not {"state", "param_groups"} <= own.keys():  # it stands for another one
        yield from _attributes(optimizer)
        return
    states = {id(parameter): each for parameter, each in dict.items(own["state"])}
    for group in own["param_groups"]:
        on_device = bool(group.get("fused") or group.get("capturable"))
        for parameter in group["params"]:
            yield parameter
            state = states.get(id(parameter), {})
            yield from (value for name, value in state.items() if name != "step" or on_device)


def _of_function(function: FunctionType) -> Iterator[object]:
    yield from _cells(function)
    yield from (function.__defaults__, function.__kwdefaults__, vars(function))
    yield from _globals_of(function)


_PARTS: dict[type, Callable[[Any], Iterable[object]]] = {
    torch.Tensor: lambda it: [it.grad] if it.is_leaf else [],
    Workload: lambda it: [it.build, it.inputs, it.reference],
    torch.optim.Optimizer: _of_optimizer,
    dict: lambda it: [*dict.values(it), *_attributes(it)],
    list: lambda it: [*list.__iter__(it), *_attributes(it)],
    tuple: lambda it: [*tuple.__iter__(it), *_attributes(it)],
    set: lambda it: [*set.__iter__(it), *_attributes(it)],
    frozenset: lambda it: [*frozenset.__iter__(it), *_attributes(it)],
    deque: lambda it: [*deque.__iter__(it), *_attributes(it)],
    partial: lambda it: [it.func, it.args, it.keywords],
    MethodType: lambda it: [it.__self__, it.__func__],
    staticmethod: lambda it: [it.__func__],
    classmethod: lambda it: [it.__func__],
    property: lambda it: [it.fget],
    FunctionType: _of_function,
    object: _attributes,
}


@contextmanager
def _kept_if_unmovable() -> Iterator[None]:
    """Leave a tensor of a kind that does not move where it is."""
    try:
        yield
    except torch.OutOfMemoryError:  # a RuntimeError too
        raise
    except (RuntimeError, TypeError):  # no narrower error says that a kind does not move
        pass


def _move(tensors: Iterable[tuple[torch.Tensor, torch.device]]) -> None:
    """Move tensors in place, each to its device.

    Those that share memory share it behind the move.
    """
    # with the old one, whose address no other may take
    memory: dict[object, tuple[object, torch.UntypedStorage]] = {}
    for tensor, device in tensors:
        if tensor.device == device or tensor.is_meta or tensor.grad_fn is not None:
            continue
        with _kept_if_unmovable(), torch.no_grad():
            if is_traceable_wrapper_subclass(tensor):
                torch.utils.swap_tensors(tensor, tensor.to(device))
            elif tensor.layout is not torch.strided or tensor.is_conj() or tensor.is_neg():
                tensor.data = tensor.data.to(device)
            else:
                old = tensor.untyped_storage()
                key = old.data_ptr(), device
                if key not in memory:
                    flat = torch.empty(0, dtype=torch.uint8, device=old.device).set_(old)
                    memory[key] = old, flat.to(device).untyped_storage()
                place = tensor.storage_offset(), tensor.size(), tensor.stride()
                tensor.data = torch.empty(0, dtype=tensor.dtype, device=device).set_(
                    memory[key][1], *place
                )


def held_bytes(module: object) -> int | None:
    """Return the bytes of the tensors that a module holds: parameters, buffers and those in
    attributes, also of objects there, without gradients. None: of a plain function.
    """
    if not is_a(module, nn.Module):
        return None
    return sum({at._cdata: at.nbytes() for at in _memory(_held_tensors(module))}.values())


def held_addresses(module: object, inputs: object, *, are_new: bool) -> tuple[set[int], set[int]]:
    """Return the addresses of the memory that `held_bytes` counts, and of that which others drop:
    gradients, and inputs with what they hold.

    `are_new`: whether each call has inputs of its own.
    """
    own = _held_tensors(module) if is_a(module, nn.Module) else []
    with torch._C.DisableTorchFunctionSubclass():
        others = [each.grad for each in reached_tensors([module, inputs]) if each.is_leaf]
    others += reached_tensors(inputs) if are_new else []
    return set(_addresses(own)), set(_addresses(each for each in others if each is not None))


def _addresses(tensors: Iterable[torch.Tensor]) -> Iterator[int]:
    for each in _memory(tensors):
        with suppress(RuntimeError):  # a tensor without data tells none
            yield each.data_ptr()


def _held_tensors(module: object) -> list[torch.Tensor]:
    roots = [attributes_of(each) for each in cast(nn.Module, module).modules()]
    # through a function, or the class of an object, it would reach what others hold
    tensors = [
        it for it in _reached(roots, (type, FunctionType, MethodType)) if is_a(it, torch.Tensor)
    ]
    with torch._C.DisableTorchFunctionSubclass():
        gradients = {id(each.grad) for each in tensors if each.is_leaf}
    return [each for each in tensors if id(each) not in gradients]


def _memory(tensors: Iterable[torch.Tensor]) -> Iterator[torch.UntypedStorage]:
    """Yield the memory of tensors: tied weights share theirs."""
    with torch._C.DisableTorchFunctionSubclass():
        for each in tensors:
            if not is_lazy(each):  # a parameter of a lazy module has no memory yet
                with suppress(NotImplementedError):  # a sparse tensor tells none
                    yield each.untyped_storage()


_CALLS_WATCHED = 2  # what grows in each of them grows always


def lines_that_keep(
    roots: object, call: Callable[[], object], *, is_growing: bool
) -> list[tuple[str, int]]:
    """Return file and line of the user's code that keeps something of each call, in order; empty
    where nothing shows it.

    A container that the call reaches grows there. If none does, an attribute, a variable or a
    container gets another tensor: one that autograd has recorded, maybe with the graphs of all
    calls before. What a cache in C holds is not seen, nor code of another thread.

    `is_growing`: whether the calls keep ever more. Else any tensor counts, and no container that
    grows.
    """
    sizes = list(_sizes(roots)) if is_growing else []
    contents = list(_contents(roots, are_recorded=is_growing))
    for _ in range(_CALLS_WATCHED):
        lengths, held = [size() for size in sizes], [content() for content in contents]
        call()
        sizes = [size for size, old in zip(sizes, lengths, strict=True) if size() > old]
        contents = [content for content, old in zip(contents, held, strict=True) if content() - old]
    watched: list[Callable[[], Any]] = [*sizes] or contents
    states: list[Any] = [state() for state in watched]

    def has_changed() -> bool:
        nonlocal states
        before, states = states, [state() for state in watched]
        return any(
            new != old if sizes else new - old for new, old in zip(states, before, strict=True)
        )

    return list(dict.fromkeys(_lines_where(has_changed, call))) if watched else []


def line_at_peak(call: Callable[[], object]) -> list[tuple[str, int]]:
    """Return file and line of the user's code at which the most memory that Python holds rises
    most; empty if none does. `tracemalloc` runs.
    """
    tracemalloc.reset_peak()
    peak, most = tracemalloc.get_traced_memory()[1], 0

    def has_risen_most() -> bool:
        nonlocal peak, most
        before, peak = peak, tracemalloc.get_traced_memory()[1]
        is_most = peak - before > most
        most = max(most, peak - before)
        return is_most

    return _lines_where(has_risen_most, call)[-1:]


def _lines_where(is_seen: Callable[[], bool], call: Callable[[], object]) -> list[tuple[str, int]]:
    """Return file and line of the user's code behind which something is seen, in order."""
    found: list[tuple[str, int]] = []
    last: tuple[str, int] | None = None

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal last
        if owner_of(frame.f_code.co_filename) != "user":
            return None
        if event == "call":
            return trace
        if is_seen() and last is not None:
            found.append(last)
        caller = frame.f_back
        if event == "return" and caller is not None:  # the rest of the line that called it
            frame = caller
        is_users = owner_of(frame.f_code.co_filename) == "user"
        last = (frame.f_code.co_filename, frame.f_lineno) if is_users else last
        return trace

    tracing = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(tracing)
    return found


def _sizes(function: object) -> Iterator[Callable[[], int]]:
    """Yield for each container that a function reaches what returns its size."""
    yield from (
        partial(kind.__len__, each)
        for each in _reached(function)
        for kind in (list, dict, set, deque)
        if is_a(each, kind)
    )


def _contents(function: object, *, are_recorded: bool) -> Iterator[Callable[[], set[int]]]:
    """Yield for each function, object or container that a function reaches what returns its tensors,
    by id, with those in containers there.

    `are_recorded`: only those with a graph of autograd.
    """
    for value in _reached(function):
        if not is_a(value, type, torch.Tensor):
            yield partial(_tensors_of, value, are_recorded=are_recorded)


_ITEMS: dict[type, Callable[[Any], Iterable[object]]] = {
    dict: dict.values,
    list: list.__iter__,
    tuple: tuple.__iter__,
    set: set.__iter__,
    deque: deque.__iter__,
}
_DEEPEST = 3  # containers in containers


def _tensors_of(holder: object, *, are_recorded: bool) -> set[int]:
    found: set[int] = set()
    level: list[object] = [holder]
    if is_a(holder, FunctionType):
        level = [*_cells(cast(FunctionType, holder)), *_globals_of(cast(FunctionType, holder))]
    elif own := attributes_of(holder):
        level += own.values()
    with torch._C.DisableTorchFunctionSubclass():
        for _ in range(_DEEPEST):
            tensors = (cast(torch.Tensor, each) for each in level if is_a(each, torch.Tensor))
            found |= {id(it) for it in tensors if not are_recorded or it.grad_fn is not None}
            level = [it for each in level for it in _items(each)]
    return found


def _items(value: object) -> Iterable[object]:
    return next((items(value) for kind, items in _ITEMS.items() if is_a(value, kind)), ())
