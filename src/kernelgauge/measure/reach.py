"""What a call reaches: the tensors of its arguments, closures and globals, and of the objects
there, moved in place.
"""

from __future__ import annotations

import copyreg
import sys
import tracemalloc
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from types import CodeType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any

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
    return [each for each in _reached(roots) if isinstance(each, torch.Tensor)]


def _reached(roots: object) -> list[object]:
    """Return all that objects hold, each once, likewise."""
    found: list[object] = []
    seen: dict[int, object] = {}  # by id; held, so that no other object takes it
    waiting: deque[object] = deque([roots])
    while waiting:
        value = waiting.popleft()
        if (
            issubclass(type(value), _PLAIN)
            or type(value) in weakref.ProxyTypes
            or id(value) in seen
        ):
            continue
        seen[id(value)] = value
        found.append(value)
        if isinstance(value, partial) and value.func in (copy_module, copy_arguments):
            seen |= {id(each): each for each in _copied(value)}
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
    match value:
        case torch.Tensor():
            return [value.grad] if value.is_leaf else []
        case Workload():
            return [value.build, value.inputs, value.reference]
        case torch.optim.Optimizer():
            return _of_optimizer(value)
        case dict():
            # a kind of its own may import, or make, what it does not hold yet
            return [*dict.values(value), *_attributes(value)]
        case list() | tuple() | set() | frozenset() | deque():
            return [*value, *_attributes(value)]
        case partial():
            return [value.func, value.args, value.keywords]
        case MethodType() | staticmethod() | classmethod():
            return [getattr(value, "__self__", None), value.__func__]
        case property():
            return [value.fget]
        case FunctionType():
            return [
                *_cells(value),
                value.__defaults__,
                value.__kwdefaults__,
                vars(value),
                *_globals_of(value),
            ]
    return _attributes(value)


def _attributes(value: Any) -> list[object]:
    """Return the attributes of an object and its classes; none of one that leads elsewhere."""
    kind = value if isinstance(value, type) else type(value)
    module = str(kind.__module__)
    # memory of a GPU cannot be pinned
    is_pinning = isinstance(value, torch.utils.data.DataLoader) and value.pin_memory
    if is_pinning or module.startswith("torch._") or module.partition(".")[0] in _CLOSED:
        return []
    names = [] if value is kind else copyreg._slotnames(kind)  # type: ignore[attr-defined]
    slots = [getattr(value, name) for name in names if hasattr(value, name)]
    own = list(getattr(value, "__dict__", {}).values())
    return [
        *own,
        *slots,
        *(each for each in kind.__mro__ if str(each.__module__).partition(".")[0] != "torch"),
    ]


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
        if isinstance(value, ModuleType) and value.__name__.partition(".")[0] not in {
            "torch",
            *_CLOSED,
        }:
            yield from (vars(value)[each] for each in names & vars(value).keys())


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _names_in(each)


def _of_optimizer(optimizer: torch.optim.Optimizer) -> Iterator[object]:
    """Yield the parameters of an optimizer and its state, as `Optimizer.load_state_dict` places it."""
    for group in optimizer.param_groups:
        on_device = bool(group.get("fused") or group.get("capturable"))
        for parameter in group["params"]:
            yield parameter
            state = optimizer.state.get(parameter, {})
            yield from (value for name, value in state.items() if name != "step" or on_device)


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
    """Return the bytes of the tensors that a module holds before its first call: parameters,
    buffers and those in attributes. None: it is no module.
    """
    if not isinstance(module, nn.Module):
        return None
    sizes: dict[int, int] = {}  # by memory: tied weights share theirs
    for each in module.modules():
        # parameters and buffers are in dictionaries there
        for tensor in tree_leaves([*vars(each).values()]):
            # a parameter of a lazy module has no memory yet
            if isinstance(tensor, torch.Tensor) and not is_lazy(tensor):
                with suppress(NotImplementedError):  # a sparse tensor tells none
                    memory = tensor.untyped_storage()
                    sizes[memory._cdata] = memory.nbytes()
    return sum(sizes.values())


_CALLS_WATCHED = 2  # what grows in each of them grows always


def lines_that_keep(function: object, call: Callable[[], object]) -> list[tuple[str, int]]:
    """Return file and line of the user's code that keeps something of each call, in order; empty
    where nothing shows it.

    A container that the call reaches grows there. If none does, an attribute or a variable gets
    another tensor that autograd has recorded, maybe with the graphs of all calls before. What a
    cache in C holds is not seen, nor code of another thread.
    """
    sizes, records = list(_sizes(function)), list(_records(function))
    for _ in range(_CALLS_WATCHED):
        lengths, recorded = [size() for size in sizes], [record() for record in records]
        call()
        sizes = [size for size, old in zip(sizes, lengths, strict=True) if size() > old]
        records = [record for record, old in zip(records, recorded, strict=True) if record() != old]
    watched: list[Callable[[], object]] = [*sizes] or records
    states: list[object] = [state() for state in watched]

    def has_changed() -> bool:
        nonlocal states
        before, states = states, [state() for state in watched]
        return states != before

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
        each.__len__ for each in _reached(function) if isinstance(each, (list, dict, set, deque))
    )


def _records(function: object) -> Iterator[Callable[[], object]]:
    """Yield for each function or object that a function reaches what returns its tensors with a
    graph of autograd, by id.
    """
    for value in _reached(function):
        if isinstance(value, FunctionType):
            yield partial(_recorded, lambda it: [*_cells(it), *_globals_of(it)], value)
        elif not isinstance(value, (type, torch.Tensor)) and hasattr(value, "__dict__"):
            yield partial(_recorded, lambda it: vars(it).values(), value)


def _recorded(values_of: Callable[[Any], Iterable[object]], holder: object) -> list[int]:
    return [
        id(each)
        for each in values_of(holder)
        if isinstance(each, torch.Tensor) and each.grad_fn is not None
    ]
