"""Host ops read as a tree: which of them compute, which only rewrite metadata, which belong to the compiler.

Without a GPU the ops that compute *are* the kernels: the outermost op that does work, with all that it calls inside.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass

from .model import Op, Window

__all__ = ["METADATA_OPS", "computing_ops", "dispatcher_ops", "is_compile_op", "metadata_ops_that_launched"]

# Ops that return a view or rewrite sizes and strides: no data is read or written (aten/src/ATen/native/TensorShape.cpp,
# each is declared as a view or alias in native_functions.yaml).
METADATA_OPS = frozenset(
    f"aten::{name}"
    for name in (
        "t transpose as_strided view reshape _unsafe_view expand detach alias squeeze unsqueeze permute select slice "
        "narrow split chunk unbind resolve_conj resolve_neg _reshape_alias numpy_T flatten unflatten"
    ).split()
)
# Ops that only obtain memory.
_ALLOCATION_OPS = frozenset(
    f"aten::{name}" for name in "empty empty_like empty_strided new_empty new_empty_strided".split()
)
# Ops that only choose which other op does the work (CompositeImplicitAutograd in native_functions.yaml).
_COMPOSITE_OPS = frozenset(
    f"aten::{name}" for name in "linear matmul to _to_copy zeros ones ones_like reshape flatten".split()
)  # reshape and flatten are metadata ops on what is contiguous, and copy what is not: what they call tells which
# Rows that torch.compile adds to the host lane (torch/_dynamo, torch/_functorch; seen with torch 2.11 and 2.13).
_COMPILE_PREFIXES = (
    "TorchDynamo Cache Lookup",
    "Torch-Compiled Region",
    "Pregraph bytecode",
    "AOTDispatcher Runtime Wrapper",
    "## Call CompiledFxGraph",
    "CompiledFunction",
    "CompiledAutograd",
)
# Autograd's own rows wrap the ops of the backward pass.
_AUTOGRAD_PREFIXES = ("autograd::engine", "torch::autograd")


def is_compile_op(name: str) -> bool:
    return name.startswith(_COMPILE_PREFIXES)


def dispatcher_ops(window: Window) -> list[Op]:
    """The ops that went through the dispatcher (`namespace::name`), in order, nested ones too."""
    return [op for op in window.ops if "::" in op.name and not op.name.startswith(_AUTOGRAD_PREFIXES)]


@dataclass(frozen=True, slots=True)
class _Open:
    op: Op
    hidden: bool  # inside an op that is already counted, or that computes nothing


def computing_ops(window: Window) -> list[Op]:
    """The outermost ops that compute, in order: what takes the place of kernels on a machine without a GPU."""
    found: list[Op] = []
    stacks: dict[int | str, list[_Open]] = {}
    for op in window.ops:
        stack = stacks.setdefault(op.thread, [])
        while stack and op.start_us >= stack[-1].op.end_us:
            stack.pop()
        inside_hidden = bool(stack) and stack[-1].hidden
        if not inside_hidden and _only_wraps(op.name):
            stack.append(_Open(op, hidden=False))
        elif inside_hidden or op.name in METADATA_OPS or op.name in _ALLOCATION_OPS:
            stack.append(_Open(op, hidden=True))
        else:
            found.append(op)
            stack.append(_Open(op, hidden=True))
    return found


def _only_wraps(name: str) -> bool:
    if name in _COMPOSITE_OPS or is_compile_op(name) or name.startswith(_AUTOGRAD_PREFIXES):
        return True
    # "MmBackward0" and "LigerGELUMulFunction" wrap the ops they call; a generated C++ kernel does not.
    return "::" not in name and "cpp_" not in name and "triton_" not in name


def metadata_ops_that_launched(window: Window) -> list[str]:
    """Names of metadata ops during which something was launched: a `reshape` that had to copy, for example."""
    starts = sorted(launch.call.start_us for launch in window.launches)
    return [
        op.name
        for op in window.ops
        if op.name in METADATA_OPS and bisect_left(starts, op.start_us) < bisect_right(starts, op.end_us)
    ]
