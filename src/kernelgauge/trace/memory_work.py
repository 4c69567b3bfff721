"""The work of ops whose time goes into moving data: pointwise ops, reductions, normalisations."""

from __future__ import annotations

from enum import Enum

from .names import Kind
from .operands import Input, Work, broadcast, total, written
from .result_types import is_floating, promoted

__all__ = ["kind_of_op", "memory_work"]


class _Result(Enum):
    """The type of a pointwise result."""

    PROMOTED = "the type that the operands promote to"
    FLOATING = "that, if it is a floating type: what integers and complex numbers give is another"
    FIRST = "that of the first operand"
    BOOL = "bool"


def _table(result: _Result, operands: int, names: str) -> dict[str, tuple[_Result, int]]:
    return dict.fromkeys(names.split(), (result, operands))


# How many of the first arguments are operands; a tensor after them is `out`.
_POINTWISE = {
    **_table(_Result.PROMOTED, 1, "clone neg relu relu6 sign square ceil floor round trunc bitwise_not threshold"),
    **_table(_Result.FLOATING, 1, "abs exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal sin cos tanh erf"),
    **_table(_Result.FLOATING, 1, "sigmoid gelu silu mish softplus elu celu selu leaky_relu hardtanh hardswish"),
    **_table(_Result.FLOATING, 1, "hardsigmoid"),
    **_table(_Result.BOOL, 1, "logical_not isnan isinf isfinite"),
    **_table(_Result.PROMOTED, 2, "add sub rsub mul maximum minimum fmod remainder pow"),
    **_table(_Result.PROMOTED, 2, "bitwise_and bitwise_or bitwise_xor"),
    **_table(_Result.FLOATING, 2, "div true_divide atan2 threshold_backward gelu_backward silu_backward mish_backward"),
    **_table(_Result.FLOATING, 2, "sigmoid_backward tanh_backward leaky_relu_backward hardtanh_backward"),
    **_table(_Result.FLOATING, 2, "hardswish_backward"),
    **_table(_Result.BOOL, 2, "eq ne lt le gt ge logical_and logical_or logical_xor"),
    **_table(_Result.PROMOTED, 3, "where clamp lerp addcmul addcdiv"),
    **_table(_Result.FIRST, 3, "masked_fill"),
}
# These overwrite their first argument and read nothing of it.
_OVERWRITING = frozenset({"fill_", "zero_", "normal_", "uniform_", "exponential_", "random_"})
# The result is a part of the input whose size the shapes do not say, unless there is an `out`.
_REDUCTIONS = frozenset(
    "sum nansum mean amax amin prod argmax argmin any all logsumexp var std norm linalg_vector_norm".split()
)
# Where a type for the result may stand.
_SOFTMAX = {"softmax": 2, "log_softmax": 2, "_softmax": None, "_log_softmax": None}
_NORMS = frozenset({"layer_norm", "native_layer_norm", "rms_norm", "_fused_rms_norm"})  # weight at 2, bias at 3


def kind_of_op(op: str) -> Kind | None:
    """What an op of these tables does (``gelu``, ``add_``); None for another."""
    plain = op.removesuffix("_")
    if plain in _POINTWISE:
        return Kind.POINTWISE
    if op in _OVERWRITING:
        return Kind.FILL
    if plain in _REDUCTIONS or op in _SOFTMAX:
        return Kind.REDUCTION
    return Kind.NORM if op in _NORMS else None


def memory_work(name: str, inputs: tuple[Input, ...]) -> Work | None:
    """None for an op that is not known here. FLOPs are not counted: memory is what bounds these ops."""
    op = name.removeprefix("aten::")
    if op == name or not inputs or not any(given.is_tensor for given in inputs):
        return None
    if op == "copy_":
        return _copy(inputs)
    if op in _OVERWRITING:
        return Work(None, total([inputs[0].bytes])) if inputs[0].is_tensor else None
    if op in _REDUCTIONS:
        return Work(None, total(given.bytes for given in inputs if given.is_tensor)) if inputs[0].is_tensor else None
    if op in _SOFTMAX:
        return _softmax(_SOFTMAX[op], inputs)
    if op in _NORMS:
        return _norm(inputs)
    in_place = op.endswith("_") and op[:-1] in _POINTWISE
    rule = _POINTWISE.get(op[:-1] if in_place else op)
    return _pointwise(*rule, inputs, in_place) if rule is not None else None


def _copy(inputs: tuple[Input, ...]) -> Work | None:
    if len(inputs) < 2 or not (inputs[0].is_tensor and inputs[1].is_tensor):
        return None
    target, source = inputs[0], inputs[1]
    if broadcast(target.shape, source.shape) != target.shape:
        return None
    return Work(None, total([source.bytes, target.bytes]))


def _pointwise(result: _Result, count: int, inputs: tuple[Input, ...], in_place: bool) -> Work | None:
    operands = inputs[:count]
    tensors = [operand for operand in operands if operand.is_tensor]
    shape = broadcast(*(tensor.shape for tensor in tensors))
    if len(inputs) < count or not tensors or shape is None:
        return None
    if in_place and (not inputs[0].is_tensor or shape != inputs[0].shape):
        return None
    out = next((given.type for given in inputs[count:] if given.is_tensor), None)
    if in_place:
        type_name: str | None = inputs[0].type
    else:
        type_name = out or _result_type(result, operands)
    return Work(None, total([*(tensor.bytes for tensor in tensors), written(shape, type_name)]))


def _result_type(result: _Result, operands: tuple[Input, ...]) -> str | None:
    if result is _Result.BOOL:
        return "bool"
    if result is _Result.FIRST:
        return operands[0].type
    type_name = promoted(operands)
    if result is _Result.FLOATING and not (type_name and is_floating(type_name)):
        return None
    return type_name


def _softmax(type_at: int | None, inputs: tuple[Input, ...]) -> Work | None:
    """`_softmax` may widen a 16-bit input to fp32, by a flag that is not recorded: the least is counted."""
    given = inputs[0]
    if not given.is_tensor:
        return None
    typed = type_at is not None and len(inputs) > type_at and inputs[type_at].type == "Scalar"
    return Work(None, total([given.bytes, written(given.shape, None if typed else given.type)]))


def _norm(inputs: tuple[Input, ...]) -> Work | None:
    """Input, weight, bias and output; the means and deviations, one for each row, are left out."""
    given = inputs[0]
    parameters = [parameter for parameter in inputs[2:4] if parameter.is_tensor]
    if not given.is_tensor or any(broadcast(given.shape, parameter.shape) != given.shape for parameter in parameters):
        return None
    same = all(parameter.type == given.type for parameter in parameters)
    result = written(given.shape, given.type if same else None)
    return Work(None, total([given.bytes, *(parameter.bytes for parameter in parameters), result]))
