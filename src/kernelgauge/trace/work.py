"""How much work an op does, by its recorded shapes and types; and what share of a GPU's published peaks it reached.

`work.json` has the ops that are known, and the peaks of GPUs with their sources.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from math import inf, prod
from pkgutil import get_data
from typing import Any, NamedTuple

import msgspec

from .names import Kind, kind_of_words

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Work:
    """How much an op has to do. A field is None where the recorded shapes and types do not say."""

    flops: float | None  # a multiply-add counts 2; None for ops that only move data too
    bytes: float | None  # to and from memory, each operand read once and the result written once


class DeviceLimits(msgspec.Struct, frozen=True):
    """Published peaks of one GPU: at boost clock, without sparsity, a multiply-add counted as 2.

    Peaks are those of the matrix units where a type has them (Tensor Cores, Matrix Cores), with sums in fp32. Of figures
    that NVIDIA prints only with sparsity, it is half.
    """

    name: str
    memory_gb_per_s: float  # 10^9 bytes
    tflop_per_s: Mapping[str, float]  # by dtype: bf16, fp16, tf32, fp32, fp64, fp8, int8; only what is published
    source: str


class _Tables(msgspec.Struct):
    """What is known of ops (aten/src/ATen/native/native_functions.yaml; transformers/cuda/attention.cu) and of GPUs."""

    # Names of C++ types as the compiler of torch spells them. Seen with torch 2.11 and 2.13; "short" and "long" are Clang's.
    element_bytes: dict[str, int]
    dtypes: dict[str, str]  # their short names
    pointwise: list[tuple[int, str]]  # how many of the first arguments are operands; a tensor after them is `out`
    of_bool: str  # of these, the result is of bool
    overwriting: str  # these read nothing of their first argument
    reductions: str
    like_first: dict[str, list[int]]  # the result is like the first argument; the places of what is read
    gemms: dict[str, tuple[int, int, int]]  # the places of A and B, and how many arguments precede an `out`
    # Where the lengths of packed sequences stand, forward and backward; and whether tensors are [batch, length, heads,
    # size], and not [batch, heads, length, size].
    attention: dict[str, tuple[int | None, int | None, bool]]
    # These return a view or rewrite sizes and strides (aten/src/ATen/native/TensorShape.cpp, each is declared as a view or
    # alias). A reshape copies what is not contiguous, so that it is composite too.
    metadata: str
    allocation: str  # these only obtain memory
    composite: str  # these only choose which other op does the work (CompositeImplicitAutograd)
    devices: list[DeviceLimits]


_TABLES = msgspec.json.decode(get_data(__package__, "work.json") or b"", type=_Tables)
_POINTWISE = {name: count for count, names in _TABLES.pointwise for name in names.split()}
DTYPES = _TABLES.dtypes
_OF_BOOL, _OVERWRITING = frozenset(_TABLES.of_bool.split()), frozenset(_TABLES.overwriting.split())
METADATA_OPS, ALLOCATION_OPS, COMPOSITE_OPS = (
    frozenset(f"aten::{name}" for name in names.split())
    for names in (_TABLES.metadata, _TABLES.allocation, _TABLES.composite)
)
_REDUCTIONS = frozenset(_TABLES.reductions.split())
_FLOATS = frozenset({"c10::Half", "c10::BFloat16", "float", "double"})
# What the profiler writes in place of a type where an argument is no tensor; "" is also a tensor that was not given.
NO_TENSOR = frozenset({"", "Scalar", "ScalarList"})
_MOST_ELEMENTS = 2**63 - 1  # torch counts in int64


class _Input(NamedTuple):
    """One argument: a tensor, or `shape` () with the profiler's word for what it is instead."""

    shape: Shape
    type: str  # "" if it is not known

    @property
    def is_tensor(self) -> bool:
        return self.type not in NO_TENSOR

    @property
    def bytes(self) -> int | None:
        """Return the bytes of the tensor; None if the size of its elements is not known."""
        size = _TABLES.element_bytes.get(self.type)
        return None if size is None else prod(self.shape) * size


def work_of(name: str, input_shapes: tuple[Any, ...], input_types: tuple[str, ...]) -> Work | None:
    """Return the work of one call of the op `name`; None for an op that is not known, or for too few arguments.

    `input_shapes` and `input_types` are "Input Dims" and "Input type", lists as tuples. FLOPs are known of matrix products
    and attention. Bytes are the least traffic: each operand read once and the result written once, whatever the strides.
    Ops are those that launch kernels: one that only calls others has no work here. A kernel that Inductor generated is
    given all of its tensors, and each counts once. Of a convolution nothing is known: its stride and padding are not in
    the shapes.
    """
    inputs = [_Input(*each) for each in zip(input_shapes, input_types, strict=False)]
    # Of a list of tensors the types are not recorded, so that its bytes are not known.
    inputs = [_Input((), each.type) if each.type == "TensorList" else each for each in inputs]
    if len(input_shapes) != len(input_types) or not all(_is_shape(each.shape) for each in inputs):
        return None
    op = name.removeprefix("aten::")
    if name.startswith("triton_"):
        return _moving([each.bytes for each in inputs if each.is_tensor])
    if op == name or not inputs:
        return None
    if op in _TABLES.gemms:
        return _gemm_work(op, inputs)
    attention, _, passed = op.rpartition("_") if op.endswith(("_forward", "_backward")) else (op, "", "")
    if attention in _TABLES.attention:
        return _attention_work(attention, inputs, is_backward=passed == "backward")
    return _memory_work(op, inputs)


def _is_shape(shape: Sequence[Any]) -> bool:
    is_flat = all(isinstance(size, int) and size >= 0 for size in shape)
    return is_flat and prod(max(size, 1) for size in shape) <= _MOST_ELEMENTS


def _moving(parts: Sequence[int | None], flops: float | None = None) -> Work | None:
    """Return the work of moving these bytes; if a part is not known, the sum is not. None where nothing moves."""
    known = [part for part in parts if part is not None]
    return Work(flops, float(sum(known)) if len(known) == len(parts) else None) if parts else None


def _widest(inputs: Sequence[_Input]) -> str | None:
    """Return the floating type that these have together. None for integers, which are often counters, and for others.

    A tensor without dimensions may be a Python number, which does not widen the type of the others.
    """
    types = {each.type for each in inputs if each.is_tensor and each.shape}
    is_known = types and types <= _FLOATS and not types >= {"c10::Half", "c10::BFloat16"}
    return max(types, key=lambda name: _TABLES.element_bytes[name]) if is_known else None


def _gemm_work(op: str, inputs: Sequence[_Input]) -> Work | None:
    """Return FLOPs of the product, as torch.utils.flop_counter counts; bytes of all operands and the result.

    None for complex numbers, and for two in a byte: their multiply-adds are others.
    """
    at, b_at, count = _TABLES.gemms[op]
    if len(inputs) <= b_at:
        return None
    a, b = inputs[at], inputs[b_at]
    fits = len(a.shape) == len(b.shape) > 1 and a.shape[:-2] == b.shape[:-2] and a.shape[-1] == b.shape[-2]
    if not fits or a.bytes is None or b.bytes is None:
        return None
    out = [given.type for given in inputs[count:] if given.is_tensor]
    # A number behind A and B is a type for the result; those of addmm are factors.
    has_type = "add" not in op and [given.type for given in inputs[count : count + 1]] == ["Scalar"]
    result = out[0] if out else a.type if a.type == b.type and not has_type else None
    shape = (*a.shape[:-1], b.shape[-1])
    operands = [given.bytes for given in inputs[:count] if given.is_tensor]
    return _moving([*operands, _Input(shape, result or "").bytes], 2.0 * prod(shape) * a.shape[-1])


def _attention_work(op: str, inputs: Sequence[_Input], *, is_backward: bool) -> Work | None:
    """Count the full square of scores: whether a mask is causal is not recorded. A causal kernel does half of it.

    Query, key and value come first, after the gradient of the output in a backward. A forward is two products (scores,
    output), a backward five (scores again, and one for each of the gradients of the weights, value, query and key), as
    torch.utils.flop_counter counts them. Bytes are those of query, key, value and output, and in a backward also of their
    gradients. A mask, which is often one row expanded, and the logarithm of the softmax's sum are not counted. None for
    packed sequences: shapes do not say their work.
    """
    *lengths_at, is_heads_last = _TABLES.attention[op]
    at = lengths_at[is_backward]
    tensors = inputs[is_backward : is_backward + 3]
    is_packed = at is not None and any(each.is_tensor and each.shape != (0,) for each in inputs[at : at + 2])
    if len(tensors) < 3 or is_packed or any(len(each.shape) != 4 or each.bytes is None for each in tensors):
        return None
    query, key, value = (
        (batch, heads, rows, size) if not is_heads_last else (batch, rows, heads, size)
        for batch, heads, rows, size in (each.shape for each in tensors)
    )
    scores, size, value_size = 2.0 * prod(query[:3]) * key[2], query[3], value[3]
    type_name = _widest(tensors) if len({each.type for each in tensors}) == 1 else None
    output = _Input((*query[:3], value_size), type_name or "").bytes
    moved = [*(each.bytes for each in tensors), output]
    if is_backward:
        return _moving(2 * moved, scores * (3 * size + 2 * value_size))
    return _moving(moved, scores * (size + value_size))


def kind_of_op(op: str) -> Kind:
    """Return what an op of ATen does (`gelu`, `add_`): by the tables, else by the words of its name."""
    plain = op.removesuffix("_")
    if op in ("copy_", "clone", "contiguous", "cat"):
        return Kind.COPY
    if plain in _POINTWISE:
        return Kind.POINTWISE
    if op in _OVERWRITING:
        return Kind.FILL
    if plain in _REDUCTIONS or op.endswith("softmax"):
        return Kind.REDUCTION
    return Kind.NORM if op in _TABLES.like_first else kind_of_words(op)


def _memory_work(op: str, inputs: Sequence[_Input]) -> Work | None:
    """Return None for an op that is not known here. FLOPs are not counted: memory is what bounds these ops."""
    plain, first = op.removesuffix("_"), inputs[0]
    if len(inputs) >= _POINTWISE.get(plain, inf):
        return _pointwise_work(plain, inputs, in_place=plain != op)
    if not first.is_tensor:
        return None
    if op in _OVERWRITING:
        return _moving([first.bytes])
    # The result is a part of the input whose size the shapes do not say, unless there is an `out`.
    if op in _REDUCTIONS:
        return _moving([given.bytes for given in inputs if given.is_tensor])
    if op not in _TABLES.like_first:
        return None
    # A norm has means and deviations too: one for each row. `_softmax` may widen a 16-bit input: this is the least.
    read = [inputs[at] for at in _TABLES.like_first[op] if at < len(inputs) and inputs[at].is_tensor]
    is_known = op == "copy_" or {each.type for each in read} == {first.type}
    return _moving([*(each.bytes for each in read), first.bytes if is_known else None]) if read else None


def _pointwise_work(op: str, inputs: Sequence[_Input], *, in_place: bool) -> Work | None:
    operands = inputs[: _POINTWISE[op]]
    tensors = [operand for operand in operands if operand.is_tensor]
    sizes = zip_longest(*(reversed(tensor.shape) for tensor in tensors), fillvalue=1)
    shape = tuple(0 if 0 in each else max(each) for each in sizes)  # PyTorch, "Broadcasting semantics"
    if in_place or op in ("clone", "masked_fill"):
        type_name: str | None = inputs[0].type
    else:
        out = [given.type for given in inputs[len(operands) :] if given.is_tensor]
        of_operands = "bool" if op in _OF_BOOL else _widest(operands[1:] if op == "where" else operands)
        type_name = out[0] if out else of_operands
    return _moving([*(tensor.bytes for tensor in tensors), _Input(shape, type_name or "").bytes]) if tensors else None


# --- what a GPU can do at most, as its vendor publishes it, and what share of that an op reached --------------------------


@dataclass(frozen=True)
class LimitShare:
    """How near an op came to the limit that binds it."""

    limit: str  # "memory", or the dtype whose arithmetic binds
    share: float  # 1 is the published peak; more if the data came from a cache, or the GPU clocks higher
    achieved: float
    unit: str  # "GB/s" or "TFLOP/s"


def limits_of(device_name: str) -> DeviceLimits | None:
    """Return the peaks of a device by the name in a trace's `deviceProperties`; None for one that is not known.

    Only whole names are known: "NVIDIA H100 PCIe" is another GPU than "NVIDIA H100 80GB HBM3", and "NVIDIA A100-SXM4-40GB
    MIG 1g.5gb" is a part of one.
    """
    return next((limits for limits in _TABLES.devices if limits.name == device_name.strip()), None)


def share_of_limit(work: Work, device_time_us: float, dtype: str | None, limits: DeviceLimits) -> LimitShare | None:
    """Return which limit binds an op, and what share of it was reached in `device_time_us` microseconds.

    The limit that binds is the one that takes longer: `work.bytes` at the memory's peak, or `work.flops` at that of
    `dtype` ("fp32" is no Tensor Core's: a product that may use TF32 is "tf32"). None where FLOPs or bytes are not known
    or have no published peak, for what binds is then not known, and where there is no work or no time.
    """
    if not work.bytes or not 0 < device_time_us < inf:  # NaN fails too
        return None
    memory_us = work.bytes / limits.memory_gb_per_s / 1e3
    if work.flops:
        peak = limits.tflop_per_s.get(dtype or "")
        if dtype is None or peak is None:
            return None
        compute_us = work.flops / peak / 1e6
        if compute_us > memory_us:
            return LimitShare(dtype, compute_us / device_time_us, work.flops / device_time_us / 1e6, "TFLOP/s")
    return LimitShare("memory", memory_us / device_time_us, work.bytes / device_time_us / 1e3, "GB/s")
