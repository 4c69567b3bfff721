"""How much work an op does, by its recorded shapes and types; and what share of a GPU's published peaks it reached."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, prod
from types import MappingProxyType
from typing import Any

from .names import Kind

__all__ = ["DeviceLimits", "LimitShare", "Work", "kind_of_op", "limits_of", "share_of_limit", "work_of"]

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
    the result written once, whatever the strides. An op that only calls others has their work too: whoever adds up
    counts one of them. A kernel that Inductor generated is given all of its tensors, and each counts once. Of a
    convolution nothing is known: its stride and padding are not in the shapes.
    """
    inputs = _read_inputs(input_shapes, input_types)
    if inputs is None:
        return None
    if name in GEMMS:
        return _gemm_work(name, GEMMS[name], inputs)
    if name in ATTENTIONS:
        return _attention_work(ATTENTIONS[name], inputs)
    if name.startswith("triton_"):
        tensors = [given for given in inputs if given.is_tensor]
        return Work(None, _total(tensor.bytes for tensor in tensors)) if tensors else None
    return _memory_work(name, inputs)


# --- inputs ----------------------------------------------------------------------------------------------------------

# "Input type" holds names of C++ types as the compiler of torch spells them. Seen with torch 2.11 and 2.13 (GCC); the
# short spellings are Clang's.
ELEMENT_BYTES = {
    "bool": 1, "unsigned char": 1, "signed char": 1,
    "short int": 2, "short": 2, "int": 4, "long int": 8, "long": 8, "long long": 8,
    "short unsigned int": 2, "unsigned short": 2, "unsigned int": 4, "long unsigned int": 8, "unsigned long": 8,
    "c10::Half": 2, "c10::BFloat16": 2, "float": 4, "double": 8,
    "c10::complex<c10::Half>": 4, "c10::complex<float>": 8, "c10::complex<double>": 16,
    "c10::Float8_e4m3fn": 1, "c10::Float8_e4m3fnuz": 1, "c10::Float8_e5m2": 1, "c10::Float8_e5m2fnuz": 1,
    "c10::Float8_e8m0fnu": 1, "c10::Float4_e2m1fn_x2": 1,
}  # fmt: skip
# Each kind of number in an operation turns the kinds before it into its own.
_INTEGERS = ("unsigned char", "signed char", "short int", "short", "int", "long int", "long", "long long")
_FLOATS = ("c10::BFloat16", "c10::Half", "float", "double")
_LEVELS = {
    "bool": 0,
    **dict.fromkeys(_INTEGERS, 1),
    **dict.fromkeys(_FLOATS, 2),
    **{f"c10::complex<{name}>": 3 for name in _FLOATS},
}
# What the profiler writes in place of a type where an argument is no tensor; "" is also a tensor that was not given.
_NO_TENSOR = frozenset({"", "Scalar", "ScalarList"})
_TENSOR_LIST = "TensorList"
_MOST_DIMENSIONS = 64
_MOST_ELEMENTS = 2**63 - 1  # torch counts in int64


@dataclass(frozen=True, slots=True)
class Input:
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


def _read_inputs(shapes: object, types: object) -> tuple[Input, ...] | None:
    """Return the arguments in order; None if anything in them is not as the profiler writes it."""
    if not isinstance(shapes, tuple) or not isinstance(types, tuple) or len(shapes) != len(types):
        return None
    inputs = []
    for shape, type_name in zip(shapes, types, strict=True):
        if type_name == _TENSOR_LIST:
            inputs.append(Input((), _TENSOR_LIST))
        elif isinstance(type_name, str) and _is_shape(shape) and (type_name not in _NO_TENSOR or shape == ()):
            inputs.append(Input(shape, type_name))
        else:
            return None
    return tuple(inputs)


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
    size = ELEMENT_BYTES.get(type_name) if type_name is not None else None
    return None if size is None else prod(shape) * size


def _total(parts: Iterable[int | None]) -> float | None:
    """Return the sum in bytes; None if a part is not known."""
    known = list(parts)
    return None if None in known else float(sum(part for part in known if part is not None))


def _multiply_adds(type_name: str) -> int:
    """Return real multiply-adds for one step of a product: a complex one takes 4, a pair of fp4 values 2."""
    if type_name.startswith("c10::complex<"):
        return 4
    return 2 if type_name.endswith("_x2") else 1


# --- matrix products -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Gemm:
    """Where a product's operands stand among its arguments (aten/src/ATen/native/native_functions.yaml)."""

    a: int = 0
    b: int = 1
    added: int | None = None  # what is added to the product: a bias, or C
    scales: tuple[int, ...] = ()
    transposed: bool = False  # B is [N, K]
    result: str | None = None  # the result's type where it is not that of A and B

    @property
    def tensors(self) -> tuple[int, ...]:
        added = () if self.added is None else (self.added,)
        return (self.a, self.b, *added, *self.scales)


GEMMS = {
    **dict.fromkeys(("aten::mm", "aten::bmm", "aten::mv", "aten::dot", "aten::matmul"), _Gemm()),
    **dict.fromkeys(("aten::addmm", "aten::addmm_", "aten::baddbmm", "aten::baddbmm_"), _Gemm(1, 2, 0)),
    "aten::linear": _Gemm(added=2, transposed=True),
    "aten::_int_mm": _Gemm(result="int"),
    "aten::_scaled_mm": _Gemm(added=4, scales=(2, 3, 5)),  # 5 is a scale of the result
}


def _gemm_work(name: str, gemm: _Gemm, inputs: tuple[Input, ...]) -> Work | None:
    """Return FLOPs of the product, as torch.utils.flop_counter counts; bytes of A, B, what is added, and the result."""
    if len(inputs) <= gemm.b or not (inputs[gemm.a].is_tensor and inputs[gemm.b].is_tensor):
        return None
    a, b = inputs[gemm.a], inputs[gemm.b]
    product = _product(gemm, a.shape, b.shape)
    if product is None:
        return None
    shape, depth = product
    steps = prod(shape) * depth
    operands = [inputs[at] for at in gemm.tensors if at < len(inputs) and inputs[at].is_tensor]
    added = inputs[gemm.added].shape if gemm.added is not None and gemm.added < len(inputs) else ()
    if _broadcast(added, shape) != shape:
        return None
    result = _tensor_bytes(shape, _gemm_result_type(name, gemm, inputs))
    return Work(2.0 * steps * _multiply_adds(a.type), _total([*(operand.bytes for operand in operands), result]))


def _product(gemm: _Gemm, a: Shape, b: Shape) -> tuple[Shape, int] | None:
    """Return shape and depth (K) of A times B, with torch.matmul's rules for vectors and batches."""
    if not a or not b or (gemm.transposed and len(b) > 2):
        return None
    if gemm.transposed:
        b = b[::-1]
    rows, columns = a[-2:-1], b[-1:] if len(b) > 1 else ()
    batches = _broadcast(a[:-2], b[:-2])
    if batches is None or a[-1] != b[-2:][0]:
        return None
    return (*batches, *rows, *columns), a[-1]


def _gemm_result_type(name: str, gemm: _Gemm, inputs: tuple[Input, ...]) -> str | None:
    last = max(gemm.tensors)
    out = next((given.type for given in inputs[last + 1 :] if given.is_tensor), None)
    if out is not None:
        return out
    if name.endswith("_"):
        return inputs[0].type
    # A number behind A and B is a type for the result; that of addmm is a factor.
    if gemm.a == 0 and any(given.type == "Scalar" for given in inputs[last + 1 : last + 2]):
        return None
    a, b = inputs[gemm.a], inputs[gemm.b]
    return gemm.result or (a.type if a.type == b.type else None)


# --- attention -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Attention:
    """How an op lays out its arguments (native_functions.yaml; transformers/cuda/attention.cu).

    Query, key and value come first, after the gradient of the output in a backward.
    """

    heads_first: bool = True  # [batch, heads, length, size]; else [batch, length, heads, size]
    backward: bool = False
    lengths: int | None = None  # where the lengths of packed sequences stand: with them, shapes do not say the work


_FUSED = tuple(
    f"aten::_scaled_dot_product_{library}"
    for library in (
        "flash_attention flash_attention_for_cpu efficient_attention cudnn_attention fused_attention_overrideable"
    ).split()
)
ATTENTIONS = {
    "aten::scaled_dot_product_attention": _Attention(),
    **dict.fromkeys(_FUSED, _Attention()),
    **{f"{name}_backward": _Attention(backward=True) for name in _FUSED},
    "aten::_flash_attention_forward": _Attention(heads_first=False, lengths=3),
    "aten::_efficient_attention_forward": _Attention(heads_first=False, lengths=4),
    "aten::_cudnn_attention_forward": _Attention(lengths=4),
    "aten::_flash_attention_backward": _Attention(heads_first=False, backward=True, lengths=6),
    "aten::_efficient_attention_backward": _Attention(heads_first=False, backward=True, lengths=6),
    "aten::_cudnn_attention_backward": _Attention(backward=True, lengths=9),
}


def _attention_work(attention: _Attention, inputs: tuple[Input, ...]) -> Work | None:
    """Count the full square of scores: whether a mask is causal is not recorded. A causal kernel does half of it.

    A forward is two products (scores, output), a backward five (scores again, and one for each of the gradients of the
    weights, value, query and key), as torch.utils.flop_counter counts them. Bytes are those of query, key, value and
    output, and in a backward also of the output's gradient and of three more results. A mask is left out, for it is
    often one row expanded. The logarithm of the softmax's sum is not counted either: it is at most one value for each row of
    the output.
    """
    first = 1 if attention.backward else 0
    tensors = inputs[: first + 3]
    if len(tensors) < first + 3 or any(len(tensor.shape) != 4 or not tensor.is_tensor for tensor in tensors):
        return None
    lengths = () if attention.lengths is None else inputs[attention.lengths :][:2]
    if any(given.is_tensor and given.shape != (0,) for given in lengths):
        return None
    query, key, value = tensors[first:]
    shapes = [t.shape if attention.heads_first else (t.shape[0], t.shape[2], t.shape[1], t.shape[3]) for t in tensors]
    (batch, heads, rows, size), (_, groups, columns, _), (*_, value_size) = shapes[first:]
    fits = (
        shapes[first + 1] == (batch, groups, columns, size)
        and shapes[first + 2] == (batch, groups, columns, value_size)
        and (heads == groups or (groups > 0 and heads % groups == 0))
        and (not attention.backward or shapes[0] == (batch, heads, rows, value_size))
    )
    if not fits:
        return None
    output = (batch, heads, rows, value_size)
    # From fp8 inputs the output is of a wider type, which is not recorded.
    same_types = len({tensor.type for tensor in tensors}) == 1 and "Float8" not in query.type
    moved = [query.bytes, key.bytes, value.bytes, _tensor_bytes(output, query.type if same_types else None)]
    width = size + value_size
    if attention.backward:
        moved = [*moved, *moved]  # the gradients, of the same shapes
        width = 3 * size + 2 * value_size
    steps = prod((batch, heads, rows, columns)) * width
    return Work(2.0 * steps * _multiply_adds(query.type), _total(moved))


# --- ops that are bound by memory: pointwise ops, reductions, normalisations -----------------------------------------


# How many of the first arguments are operands; a tensor after them is `out`.
_POINTWISE = {
    name: operands
    for operands, names in (
        (1, "abs exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal sin cos tanh erf sigmoid gelu silu mish"),
        (
            1,
            "softplus elu celu selu leaky_relu hardtanh hardswish hardsigmoid clone neg relu relu6 sign square ceil floor",
        ),
        (1, "round trunc bitwise_not threshold logical_not isnan isinf isfinite"),
        (
            2,
            "add sub rsub mul maximum minimum fmod remainder pow bitwise_and bitwise_or bitwise_xor div true_divide atan2",
        ),
        (2, "threshold_backward gelu_backward silu_backward mish_backward sigmoid_backward tanh_backward"),
        (
            2,
            "leaky_relu_backward hardtanh_backward hardswish_backward eq ne lt le gt ge logical_and logical_or logical_xor",
        ),
        (3, "where clamp lerp addcmul addcdiv masked_fill"),
    )
    for name in names.split()
}
_OF_BOOL = frozenset("logical_not isnan isinf isfinite eq ne lt le gt ge logical_and logical_or logical_xor".split())
# Of integers they make the default floating type.
_OF_FLOATS = frozenset(
    "exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal sin cos tanh erf sigmoid div true_divide atan2".split()
)
# These overwrite their first argument and read nothing of it.
_OVERWRITING = frozenset({"fill_", "zero_", "normal_", "uniform_", "exponential_", "random_"})
# The result is a part of the input whose size the shapes do not say, unless there is an `out`.
_REDUCTIONS = frozenset(
    "sum nansum mean amax amin prod argmax argmin any all logsumexp var std norm linalg_vector_norm".split()
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


def _memory_work(name: str, inputs: tuple[Input, ...]) -> Work | None:
    """Return None for an op that is not known here. FLOPs are not counted: memory is what bounds these ops."""
    op = name.removeprefix("aten::")
    if op == name or not any(given.is_tensor for given in inputs):
        return None
    in_place = op.endswith("_") and op[:-1] in _POINTWISE
    plain = op[:-1] if in_place else op
    if plain in _POINTWISE:
        return _pointwise(plain, inputs, in_place)
    if not inputs[0].is_tensor:
        return None
    if op in _OVERWRITING:
        return Work(None, _total([inputs[0].bytes]))
    if op in _REDUCTIONS:
        return Work(None, _total(given.bytes for given in inputs if given.is_tensor))
    return _like_first(op, inputs) if op in _LIKE_FIRST else None


def _like_first(op: str, inputs: tuple[Input, ...]) -> Work | None:
    """Count what is read and the result: for a norm without means and deviations, one for each row.

    `_softmax` may widen a 16-bit input to fp32, by a flag that is not recorded: this is the least.
    """
    first = inputs[0]
    read = [inputs[at] for at in _LIKE_FIRST[op] if at < len(inputs) and inputs[at].is_tensor]
    if not read or any(_broadcast(first.shape, each.shape) != first.shape for each in read):
        return None
    has_type = op in ("softmax", "log_softmax") and [each.type for each in inputs[2:3]] == ["Scalar"]
    is_known = op == "copy_" or (not has_type and {each.type for each in read} == {first.type})
    return Work(
        None, _total([*(each.bytes for each in read), _tensor_bytes(first.shape, first.type if is_known else None)])
    )


def _pointwise(op: str, inputs: tuple[Input, ...], in_place: bool) -> Work | None:
    count = _POINTWISE[op]
    operands = inputs[:count]
    tensors = [operand for operand in operands if operand.is_tensor]
    shape = _broadcast(*(tensor.shape for tensor in tensors))
    if len(inputs) < count or not tensors or shape is None:
        return None
    if in_place and (not inputs[0].is_tensor or shape != inputs[0].shape):
        return None
    out = next((given.type for given in inputs[count:] if given.is_tensor), None)
    type_name = inputs[0].type if in_place else out or _pointwise_type(op, operands)
    return Work(None, _total([*(tensor.bytes for tensor in tensors), _tensor_bytes(shape, type_name)]))


def _pointwise_type(op: str, operands: Sequence[Input]) -> str | None:
    """Return the type of the result, as torch promotes types; None where it depends on what is not recorded.

    A tensor without dimensions may be a Python number. It changes the type only if its kind is a higher one, and then to
    a type that is not recorded. A number by value may be of any kind up to floating.
    """
    if op in _OF_BOOL:
        return "bool"
    if op in ("clone", "masked_fill"):
        return operands[0].type
    tensors = [each for each in (operands[1:] if op == "where" else operands) if each.is_tensor]
    types = {each.type for each in tensors if each.shape} or {each.type for each in tensors}
    if not types or not all(each.type in _LEVELS for each in tensors):
        return None
    level = max(_LEVELS[name] for name in types)
    has_number = any(each.type == "Scalar" for each in operands)
    if any(_LEVELS[each.type] > level for each in tensors) or (len(types) > 1 and not any(t.shape for t in tensors)):
        return None
    if level < 2 and (has_number or op in _OF_FLOATS):
        return None
    if op == "abs" and level == 3:
        return types.pop().removeprefix("c10::complex<").removesuffix(">")
    return _promoted(types, level)


def _promoted(types: set[str], level: int) -> str | None:
    """Return the type that holds all of these; `level` is that of the highest."""
    if level == 3:
        parts = {name.removeprefix("c10::complex<").removesuffix(">") for name in types if _LEVELS[name] >= 2}
        return f"c10::complex<{_promoted(parts, 2)}>"
    types = {name for name in types if _LEVELS[name] == level}
    if types in ({"c10::BFloat16", "c10::Half"}, {"unsigned char", "signed char"}):
        return "float" if level == 2 else "short"
    return max(types, key=lambda name: ELEMENT_BYTES[name])


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
