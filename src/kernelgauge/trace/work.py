"""How much work an op does, by its recorded shapes and types; and what share of a GPU's published peaks it reached."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, prod
from types import MappingProxyType
from typing import Any

from .names import Kind

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Work:
    """How much an op has to do. A field is None where the recorded shapes and types do not say."""

    flops: float | None  # a multiply-add counts 2; None for ops that only move data too
    bytes: float | None  # to and from memory, each operand read once and the result written once


def work_of(name: str, input_shapes: tuple[Any, ...], input_types: tuple[str, ...]) -> Work | None:
    """Return the work of one call of the op `name`; None for an op that is not known, or for shapes that fit none.

    `input_shapes` and `input_types` are "Input Dims" and "Input type", lists as tuples. They are untrusted: this never
    raises. FLOPs are known of matrix products and attention. Bytes are the least traffic: each operand read once and
    the result written once, whatever the strides. Ops are those that launch kernels: one that only calls others has no
    work here. A kernel that Inductor generated is given all of its tensors, and each counts once. Of a convolution
    nothing is known: its stride and padding are not in the shapes.
    """
    inputs = _read_inputs(input_shapes, input_types)
    if inputs is None:
        return None
    if name in _GEMMS:
        return _gemm_work(name, inputs)
    if name in _LENGTHS_AT:
        return _attention_work(name, inputs)
    if name.startswith("triton_"):
        tensors = [given for given in inputs if given.is_tensor]
        return _moving([tensor.bytes for tensor in tensors]) if tensors else None
    return _memory_work(name.removeprefix("aten::"), inputs) if name.startswith("aten::") else None


# --- inputs ----------------------------------------------------------------------------------------------------------

# "Input type" holds names of C++ types as the compiler of torch spells them. Seen with torch 2.11 and 2.13 (GCC); the
# short spellings are Clang's.
_ELEMENT_BYTES = {
    "bool": 1, "unsigned char": 1, "signed char": 1, "short int": 2, "short": 2, "int": 4, "long int": 8, "long": 8,
    "c10::Half": 2, "c10::BFloat16": 2, "float": 4, "double": 8,
    "c10::Float8_e4m3fn": 1, "c10::Float8_e4m3fnuz": 1, "c10::Float8_e5m2": 1, "c10::Float8_e5m2fnuz": 1,
}  # fmt: skip
# What the profiler writes in place of a type where an argument is no tensor; "" is also a tensor that was not given.
_NO_TENSOR = frozenset({"", "Scalar", "ScalarList"})
_TENSOR_LIST = "TensorList"
_MOST_DIMENSIONS = 64
_MOST_ELEMENTS = 2**63 - 1  # torch counts in int64


@dataclass(frozen=True, slots=True)
class _Input:
    """One argument: a tensor, or `shape` () with the profiler's word for what it is instead.

    A list of tensors is a tensor of an unknown type: the types of its tensors are not recorded.
    """

    shape: Shape
    type: str

    @property
    def is_tensor(self) -> bool:
        return self.type not in _NO_TENSOR

    @property
    def bytes(self) -> int | None:
        return _tensor_bytes(self.shape, self.type)


def _read_inputs(shapes: object, types: object) -> list[_Input] | None:
    """Return the arguments in order; None if anything in them is not as the profiler writes it."""
    if not isinstance(shapes, tuple) or not isinstance(types, tuple) or len(shapes) != len(types):
        return None
    inputs = []
    for shape, type_name in zip(shapes, types, strict=True):
        if type_name == _TENSOR_LIST:
            inputs.append(_Input((), _TENSOR_LIST))
        elif isinstance(type_name, str) and _is_shape(shape) and (type_name not in _NO_TENSOR or shape == ()):
            inputs.append(_Input(shape, type_name))
        else:
            return None
    return inputs


def _is_shape(shape: object) -> bool:
    return (
        isinstance(shape, tuple)
        and len(shape) <= _MOST_DIMENSIONS
        and all(type(size) is int and size >= 0 for size in shape)  # a bool is no size
        and prod(max(size, 1) for size in shape) <= _MOST_ELEMENTS
    )


def _broadcast(*shapes: Shape) -> Shape | None:
    """Return the shape that all of `shapes` expand to (PyTorch, "Broadcasting semantics"); None if there is none."""
    rank = max((len(shape) for shape in shapes), default=0)
    result: list[int] = []
    for sizes in zip(*((1,) * (rank - len(shape)) + shape for shape in shapes), strict=True):
        wide = {size for size in sizes if size != 1}
        if len(wide) > 1:
            return None
        result.append(wide.pop() if wide else 1)
    return tuple(result)


def _tensor_bytes(shape: Shape, type_name: str | None) -> int | None:
    """Return the bytes of a tensor; None if the size of its elements is not known."""
    size = _ELEMENT_BYTES.get(type_name) if type_name is not None else None
    return None if size is None else prod(shape) * size


def _moving(parts: Sequence[int | None], flops: float | None = None) -> Work:
    """Return the work of moving these bytes; if a part is not known, the sum is not."""
    return Work(flops, None if None in parts else float(sum(part or 0 for part in parts)))


# --- matrix products -------------------------------------------------------------------------------------------------


# Where A, B and what is added to the product stand among the arguments (aten/src/ATen/native/native_functions.yaml), and
# how many arguments precede an `out`.
_GEMMS: Mapping[str, tuple[int, int, int | None, int]] = {
    **dict.fromkeys(("aten::mm", "aten::bmm", "aten::_int_mm"), (0, 1, None, 2)),
    **dict.fromkeys(("aten::addmm", "aten::addmm_", "aten::baddbmm", "aten::baddbmm_"), (1, 2, 0, 3)),
    "aten::_scaled_mm": (0, 1, 4, 6),  # the scales of A, B and the result are operands too
}


def _gemm_work(name: str, inputs: Sequence[_Input]) -> Work | None:
    """Return FLOPs of the product, as torch.utils.flop_counter counts; bytes of A, B, what is added, and the result.

    None for complex numbers, and for two in a byte: their multiply-adds are others.
    """
    at, b_at, added_at, count = _GEMMS[name]
    if len(inputs) <= b_at:
        return None
    a, b = inputs[at], inputs[b_at]
    fits = len(a.shape) == len(b.shape) > 1 and a.shape[:-2] == b.shape[:-2] and a.shape[-1] == b.shape[-2]
    if not fits or a.bytes is None or b.bytes is None:
        return None
    shape = (*a.shape[:-1], b.shape[-1])
    added = inputs[added_at].shape if added_at is not None and added_at < len(inputs) else ()
    if _broadcast(added, shape) != shape:
        return None
    operands = [given.bytes for given in inputs[:count] if given.is_tensor]
    result = inputs[0].type if name.endswith("_") else _gemm_result_type(name, a, b, inputs[count:])
    return _moving([*operands, _tensor_bytes(shape, result)], 2.0 * prod(shape) * a.shape[-1])


def _gemm_result_type(name: str, a: _Input, b: _Input, behind: Sequence[_Input]) -> str | None:
    out = [given.type for given in behind if given.is_tensor]
    if out:
        return out[0]
    if name == "aten::_int_mm":
        return "int"
    # A number behind A and B is a type for the result; those of addmm are factors.
    has_type = "add" not in name and [given.type for given in behind[:1]] == ["Scalar"]
    return a.type if a.type == b.type and not has_type else None


# --- attention -------------------------------------------------------------------------------------------------------


# The ops that launch, and where the lengths of packed sequences stand in their arguments: with them, shapes do not say
# the work (native_functions.yaml; transformers/cuda/attention.cu). Query, key and value come first, after the gradient of
# the output in a backward: [batch, length, heads, size], and of the others [batch, heads, length, size].
_HEADS_LAST = {
    "aten::_flash_attention_forward": 3,
    "aten::_efficient_attention_forward": 4,
    "aten::_flash_attention_backward": 6,
    "aten::_efficient_attention_backward": 6,
}
_LENGTHS_AT: Mapping[str, int | None] = {
    **_HEADS_LAST,
    "aten::_cudnn_attention_forward": 4,
    "aten::_cudnn_attention_backward": 9,
    **{
        f"aten::{name}{passed}": None
        for name in ("_scaled_dot_product_cudnn_attention", "_scaled_dot_product_flash_attention_for_cpu")
        for passed in ("", "_backward")
    },
}


def _attention_work(name: str, inputs: Sequence[_Input]) -> Work | None:
    """Count the full square of scores: whether a mask is causal is not recorded. A causal kernel does half of it.

    A forward is two products (scores, output), a backward five (scores again, and one for each of the gradients of the
    weights, value, query and key), as torch.utils.flop_counter counts them. Bytes are those of query, key, value and
    output, and in a backward also of the output's gradient and of three more results. A mask is left out, for it is
    often one row expanded. The logarithm of the softmax's sum is not counted either: it is at most one value for each row of
    the output.
    """
    first = 1 if name.endswith("backward") else 0
    tensors = inputs[: first + 3]
    if len(tensors) < first + 3 or any(len(tensor.shape) != 4 or tensor.bytes is None for tensor in tensors):
        return None
    lengths_at = _LENGTHS_AT[name]
    if lengths_at is not None and any(each.is_tensor and each.shape != (0,) for each in inputs[lengths_at:][:2]):
        return None
    query, key, value = tensors[first:]
    shapes = [tensor.shape for tensor in tensors]
    if name in _HEADS_LAST:
        shapes = [(batch, heads, rows, size) for batch, rows, heads, size in shapes]
    (batch, heads, rows, size), (_, groups, columns, _), (*_, value_size) = shapes[first:]
    output = (batch, heads, rows, value_size)
    fits = (
        shapes[first + 1 :] == [(batch, groups, columns, size), (batch, groups, columns, value_size)]
        and (heads == groups or (groups > 0 and heads % groups == 0))
        and shapes[:first] in ([], [output])
    )
    if not fits:
        return None
    # From fp8 inputs the output is of a wider type, which is not recorded.
    same_types = len({tensor.type for tensor in tensors}) == 1 and "Float8" not in query.type
    moved = [query.bytes, key.bytes, value.bytes, _tensor_bytes(output, query.type if same_types else None)]
    widths = 3 * size + 2 * value_size if first else size + value_size
    # The gradients have the same shapes.
    return _moving(moved * (1 + first), 2.0 * batch * heads * rows * columns * widths)


# --- ops that are bound by memory: pointwise ops, reductions, normalisations -----------------------------------------


# How many of the first arguments are operands; a tensor after them is `out`.
_POINTWISE = {
    name: operands
    for operands, names in (
        (1, "abs exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal sin cos tanh erf sigmoid gelu silu mish"),
        (1, "softplus elu celu selu leaky_relu hardtanh hardswish hardsigmoid clone neg relu relu6 sign square ceil"),
        (1, "floor round trunc bitwise_not threshold logical_not isnan isinf isfinite"),
        (2, "add sub rsub mul maximum minimum fmod remainder pow bitwise_and bitwise_or bitwise_xor div true_divide"),
        (2, "atan2 threshold_backward gelu_backward silu_backward mish_backward sigmoid_backward tanh_backward"),
        (2, "leaky_relu_backward hardtanh_backward hardswish_backward eq ne lt le gt ge"),
        (2, "logical_and logical_or logical_xor"),
        (3, "where clamp lerp addcmul addcdiv masked_fill"),
    )
    for name in names.split()
}
_OF_BOOL = frozenset("logical_not isnan isinf isfinite eq ne lt le gt ge logical_and logical_or logical_xor".split())
# Of integers they make the default floating type.
_OF_FLOATS = frozenset(
    "exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal sin cos tanh erf sigmoid div true_divide atan2".split()
)
_FLOATS = frozenset({"c10::Half", "c10::BFloat16", "float", "double"})
# These overwrite their first argument and read nothing of it.
_OVERWRITING = frozenset({"fill_", "zero_", "normal_", "uniform_", "exponential_", "random_"})
# The result is a part of the input whose size the shapes do not say, unless there is an `out`.
_REDUCTIONS = frozenset(
    "sum nansum mean amax amin max min prod argmax argmin any all logsumexp var std norm linalg_vector_norm".split()
)
# These have a result like their first argument; with the places of what they read.
_LIKE_FIRST = {
    **dict.fromkeys(("softmax", "log_softmax", "_softmax", "_log_softmax"), (0,)),
    **dict.fromkeys(("layer_norm", "native_layer_norm", "rms_norm", "_fused_rms_norm"), (0, 2, 3)),  # weight and bias
    "copy_": (1,),
}


def kind_of_op(op: str) -> Kind | None:
    """Return what a memory-bound op does (`gelu`, `add_`); None for another op."""
    plain = op.removesuffix("_")
    if plain in _POINTWISE:
        return Kind.POINTWISE
    if op in _OVERWRITING:
        return Kind.FILL
    if plain in _REDUCTIONS or op.endswith("softmax"):
        return Kind.REDUCTION
    return Kind.NORM if op in _LIKE_FIRST and op != "copy_" else None


def _memory_work(op: str, inputs: Sequence[_Input]) -> Work | None:
    """Return None for an op that is not known here. FLOPs are not counted: memory is what bounds these ops."""
    if op.removesuffix("_") in _POINTWISE:
        return _pointwise(op.removesuffix("_"), inputs, in_place=op.endswith("_"))
    if not inputs or not inputs[0].is_tensor:
        return None
    if op in _OVERWRITING:
        return _moving([inputs[0].bytes])
    if op in _REDUCTIONS:
        return _moving([given.bytes for given in inputs if given.is_tensor])
    return _like_first(op, inputs) if op in _LIKE_FIRST else None


def _like_first(op: str, inputs: Sequence[_Input]) -> Work | None:
    """Count what is read and the result: for a norm without means and deviations, one for each row.

    `_softmax` may widen a 16-bit input to fp32, by a flag that is not recorded: this is the least.
    """
    first = inputs[0]
    read = [inputs[at] for at in _LIKE_FIRST[op] if at < len(inputs) and inputs[at].is_tensor]
    if not read or any(_broadcast(first.shape, each.shape) != first.shape for each in read):
        return None
    has_type = op in ("softmax", "log_softmax") and [each.type for each in inputs[2:3]] == ["Scalar"]
    is_known = op == "copy_" or (not has_type and {each.type for each in read} == {first.type})
    return _moving([*(each.bytes for each in read), first.bytes if is_known else None])


def _pointwise(op: str, inputs: Sequence[_Input], *, in_place: bool) -> Work | None:
    count = _POINTWISE[op]
    operands, out = inputs[:count], [given.type for given in inputs[count:] if given.is_tensor]
    tensors = [operand for operand in operands if operand.is_tensor]
    shape = _broadcast(*(tensor.shape for tensor in tensors))
    if len(inputs) < count or not tensors or shape is None:
        return None
    if in_place and (not inputs[0].is_tensor or shape != inputs[0].shape):
        return None
    type_name = inputs[0].type if in_place else out[0] if out else _pointwise_type(op, operands)
    return _moving([*(tensor.bytes for tensor in tensors), _tensor_bytes(shape, type_name)])


def _pointwise_type(op: str, operands: Sequence[_Input]) -> str | None:
    """Return the widest floating type of the operands, or the one type of integers; None for what torch promotes else.

    A tensor without dimensions may be a Python number, which does not widen the type of the others.
    """
    if op in _OF_BOOL:
        return "bool"
    if op in ("clone", "masked_fill"):
        return operands[0].type
    tensors = [each for each in (operands[1:] if op == "where" else operands) if each.is_tensor]
    types = {each.type for each in tensors if each.shape}
    if types and types <= _FLOATS and not types >= {"c10::Half", "c10::BFloat16"}:
        return max(types, key=lambda name: _ELEMENT_BYTES[name])
    # Of a number, and of what makes numbers of the default type, the type is not recorded.
    types = {each.type for each in operands if each in tensors or not each.is_tensor}
    return types.pop() if len(types) == 1 and types <= _ELEMENT_BYTES.keys() and op not in _OF_FLOATS else None


# --- what a GPU can do at most, as its vendor publishes it, and what share of that an op reached --------------------------


@dataclass(frozen=True)
class DeviceLimits:
    """Published peaks of one GPU: at boost clock, without sparsity, a multiply-add counted as 2."""

    name: str
    memory_gb_per_s: float  # 10^9 bytes
    tflop_per_s: Mapping[str, float]  # by dtype: bf16, fp16, tf32, fp32, fp64, fp8, int8; only what is published
    source: str


@dataclass(frozen=True)
class LimitShare:
    """How near an op came to the limit that binds it."""

    limit: str  # "memory", or the dtype whose arithmetic binds
    share: float  # 1 is the published peak; more if the data came from a cache, or the GPU clocks higher
    achieved: float
    unit: str  # "GB/s" or "TFLOP/s"


_TYPES = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "int8")


def _limits(name: str, memory_gb_per_s: float, tflop_per_s: str, source: str) -> DeviceLimits:
    peaks = {dtype: float(peak) for dtype, peak in zip(_TYPES, tflop_per_s.split(), strict=True) if peak != "-"}
    return DeviceLimits(name, memory_gb_per_s, MappingProxyType(peaks), source)


# Peaks are those of the matrix units where a type has them (Tensor Cores, Matrix Cores), with sums in fp32: on GeForce
# cards sums in fp16 are twice as fast. Of figures that NVIDIA prints only with sparsity, it is half.
# fmt: off
_ALL = (
    # GB/s; TFLOP/s in fp64, fp32, tf32, bf16, fp16, fp8 and int8
    # The table for FP8 and memory is of eight GPUs. What other editions disagree on (TF32, FP32, FP64) is left out.
    _limits("NVIDIA B200", 8000, "- - - 2250 2250 4500 -",
            "NVIDIA DGX B200 datasheet; NVIDIA Blackwell Architecture Technical Brief, HGX B200"),
    _limits("NVIDIA H200", 4800, "67 67 494.5 989.5 989.5 1979 1979",
            "NVIDIA H200 Tensor Core GPU datasheet, H200 SXM"),
    _limits("NVIDIA H100 80GB HBM3", 3350, "67 67 494.5 989.5 989.5 1979 1979",
            "NVIDIA H100 Tensor Core GPU datasheet, H100 SXM"),
    _limits("NVIDIA H100 PCIe", 2000, "51 51 378 756.5 756.5 1513 1513",
            "NVIDIA H100 Tensor Core GPU datasheet, H100 PCIe"),
    _limits("NVIDIA A100-SXM4-80GB", 2039, "19.5 19.5 156 312 312 - 624", "NVIDIA A100 Tensor Core GPU datasheet"),
    _limits("NVIDIA A100 80GB PCIe", 1935, "19.5 19.5 156 312 312 - 624", "NVIDIA A100 Tensor Core GPU datasheet"),
    _limits("NVIDIA A100-SXM4-40GB", 1555, "19.5 19.5 156 312 312 - 624", "NVIDIA A100 Tensor Core GPU datasheet"),
    _limits("NVIDIA A100-PCIE-40GB", 1555, "19.5 19.5 156 312 312 - 624", "NVIDIA A100 Tensor Core GPU datasheet"),
    _limits("NVIDIA L40S", 864, "- 91.6 183 362.05 362.05 733 733", "NVIDIA L40S GPU datasheet"),
    _limits("NVIDIA L4", 300, "- 30.3 60 121 121 242.5 242.5", "NVIDIA L4 Tensor Core GPU datasheet"),
    _limits("NVIDIA A10", 600, "- 31.2 62.5 125 125 - 250", "NVIDIA A10 Tensor Core GPU datasheet"),
    _limits("NVIDIA GeForce RTX 4090", 1008, "- 82.6 82.6 165.2 165.2 330.3 660.6",
            "NVIDIA Ada GPU Architecture whitepaper v2.02, appendix A"),
    _limits("NVIDIA GeForce RTX 3090", 936, "- 35.6 35.6 71 71 - 284",
            "NVIDIA Ampere GA102 GPU Architecture whitepaper v2, appendix A"),
    # The datasheets of the V100 and the T4 have no bf16, and no TF32.
    _limits("Tesla V100-SXM2-16GB", 900, "7.8 15.7 - - 125 - -", "NVIDIA V100 Tensor Core GPU datasheet"),
    _limits("Tesla V100-SXM2-32GB", 900, "7.8 15.7 - - 125 - -", "NVIDIA V100 Tensor Core GPU datasheet"),
    _limits("Tesla V100-PCIE-16GB", 900, "7 14 - - 112 - -", "NVIDIA V100 Tensor Core GPU datasheet"),
    _limits("Tesla V100-PCIE-32GB", 900, "7 14 - - 112 - -", "NVIDIA V100 Tensor Core GPU datasheet"),
    # The datasheet has 300 GB/s, the product page "320+", which is what 256 bits at 10 Gbit/s give.
    _limits("Tesla T4", 320, "- 8.1 - - 65 - 130", "NVIDIA T4 Tensor Core GPU datasheet and product page"),
    _limits("AMD Instinct MI300X", 5300, "163.4 163.4 653.7 1307.4 1307.4 2614.9 2614.9",
            "AMD Instinct MI300X accelerator data sheet"),
    # The data sheet's figures are of a module; a device of PyTorch is one of its two dies.
    _limits("AMD Instinct MI250X", 1600, "47.85 47.85 - 191.5 191.5 - 191.5",
            "AMD Instinct MI200 series data sheet, MI250X: half of a module"),
)
# fmt: on
_BY_NAME = MappingProxyType({limits.name: limits for limits in _ALL})


def limits_of(device_name: str) -> DeviceLimits | None:
    """Return the peaks of a device by the name in a trace's `deviceProperties`; None for one that is not known.

    Only whole names are known: "NVIDIA H100 PCIe" is another GPU than "NVIDIA H100 80GB HBM3", "NVIDIA A10G" than
    "NVIDIA A10", and "NVIDIA A100-SXM4-40GB MIG 1g.5gb" is a part of one. Old drivers leave out "NVIDIA ".
    """
    name = device_name.strip()
    return _BY_NAME.get(name) or _BY_NAME.get(f"NVIDIA {name}")


def share_of_limit(work: Work, device_time_us: float, dtype: str | None, limits: DeviceLimits) -> LimitShare | None:
    """Return which limit binds an op, and what share of it was reached in `device_time_us` microseconds.

    The limit that binds is the one that takes longer: `work.bytes` at the memory's peak, or `work.flops` at that of
    `dtype` ("fp32" is no Tensor Core's: a product that may use TF32 is "tf32"). None where FLOPs or bytes are not known
    or have no published peak, for what binds is then not known, and where there is no work or no time.
    """
    if work.bytes is None or not 0 < device_time_us < inf:  # NaN fails too
        return None
    memory_us = work.bytes / limits.memory_gb_per_s / 1e3
    if work.flops:
        peak = limits.tflop_per_s.get(dtype) if dtype is not None else None
        if dtype is None or peak is None:
            return None
        compute_us = work.flops / peak / 1e6
        if compute_us > memory_us:
            return LimitShare(dtype, compute_us / device_time_us, work.flops / device_time_us / 1e6, "TFLOP/s")
    if memory_us > 0:
        return LimitShare("memory", memory_us / device_time_us, work.bytes / device_time_us / 1e3, "GB/s")
    return None
