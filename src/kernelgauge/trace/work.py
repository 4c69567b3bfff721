"""How much work an op does, from the shapes and types that a profiler with `record_shapes=True` writes on its row."""

from __future__ import annotations

from typing import Any

from .attention_work import ATTENTIONS, attention_work
from .gemm_work import GEMMS, gemm_work
from .memory_work import memory_work
from .operands import Input, Work, read_inputs, total

__all__ = ["Work", "work_of"]


def work_of(name: str, input_shapes: tuple[Any, ...], input_types: tuple[str, ...]) -> Work | None:
    """The work of one call of the op `name`; None for an op that is not known, or for shapes that fit none.

    `input_shapes` and `input_types` are "Input Dims" and "Input type", lists as tuples. They are untrusted: this never
    raises.

    FLOPs: matrix products and attention. Bytes: the least traffic that such an op causes, with each operand read once
    and the result written once. Strides are not looked at: an expanded tensor counts as if it were whole, and one that
    is passed twice counts twice. An op that only calls others (`aten::linear` calls `aten::addmm`) has their work too:
    whoever adds up counts one of them.

    A kernel that Inductor generated (`triton_...`) is given all of its tensors, results included, and each counts once,
    also one that is read and then written. What it indexes into counts whole. Its FLOPs are not known, of templates
    (`triton_tem_...`) neither.

    A convolution is not known: its stride and padding are not in the shapes, so neither is the size of its output.
    """
    inputs = read_inputs(input_shapes, input_types)
    if inputs is None:
        return None
    if name in GEMMS:
        return gemm_work(name, GEMMS[name], inputs)
    if name in ATTENTIONS:
        return attention_work(ATTENTIONS[name], inputs)
    if name.startswith("triton_"):
        return _generated_work(inputs)
    return memory_work(name, inputs)


def _generated_work(inputs: tuple[Input, ...]) -> Work | None:
    tensors = [given for given in inputs if given.is_tensor]
    return Work(None, total(tensor.bytes for tensor in tensors)) if tensors else None
