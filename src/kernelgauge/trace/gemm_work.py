"""The work of matrix products."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from .operands import Input, Work, broadcast, multiply_adds, total, written

__all__ = ["GEMMS", "Gemm", "gemm_work"]

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Gemm:
    """Where a product's operands stand among its arguments (aten/src/ATen/native/native_functions.yaml)."""

    a: int = 0
    b: int = 1
    added: int | None = None  # what is added to the product: a bias, or C
    scales: tuple[int, ...] = ()
    ranks: tuple[int, int] | None = None  # None: any, as matmul takes them
    transposed: bool = False  # B is [N, K]
    summed: bool = False  # the batch is summed up
    numbers: int = 0  # numbers among its arguments; one more is a type for the result
    result: str | None = None  # the result's type where it is not that of A and B

    @property
    def tensors(self) -> tuple[int, ...]:
        added = () if self.added is None else (self.added,)
        return (self.a, self.b, *added, *self.scales)


_ADDMM = Gemm(1, 2, 0, ranks=(2, 2), numbers=2)
_BADDBMM = Gemm(1, 2, 0, ranks=(3, 3), numbers=2)
_ADDBMM = Gemm(1, 2, 0, ranks=(3, 3), numbers=2, summed=True)
_ADDMV = Gemm(1, 2, 0, ranks=(2, 1), numbers=2)
GEMMS = {
    "aten::mm": Gemm(ranks=(2, 2)),
    "aten::bmm": Gemm(ranks=(3, 3)),
    "aten::addmm": _ADDMM,
    "aten::addmm_": _ADDMM,
    "aten::baddbmm": _BADDBMM,
    "aten::baddbmm_": _BADDBMM,
    "aten::addbmm": _ADDBMM,
    "aten::addbmm_": _ADDBMM,
    "aten::addmv": _ADDMV,
    "aten::addmv_": _ADDMV,
    "aten::mv": Gemm(ranks=(2, 1)),
    "aten::dot": Gemm(ranks=(1, 1)),
    "aten::matmul": Gemm(),
    "aten::linear": Gemm(added=2, transposed=True),
    "aten::_int_mm": Gemm(ranks=(2, 2), result="int"),
    # One number, use_fast_accum; 5 is a scale of the result.
    "aten::_scaled_mm": Gemm(added=4, scales=(2, 3, 5), ranks=(2, 2), numbers=1),
}


def gemm_work(name: str, gemm: Gemm, inputs: tuple[Input, ...]) -> Work | None:
    """FLOPs of the product alone, as torch.utils.flop_counter counts; bytes of A, B, what is added, and the result."""
    if len(inputs) <= gemm.b or not (inputs[gemm.a].is_tensor and inputs[gemm.b].is_tensor):
        return None
    a, b = inputs[gemm.a], inputs[gemm.b]
    product = _product(gemm, a.shape, b.shape)
    if product is None:
        return None
    shape, depth = product
    steps = prod(shape) * depth
    shape = shape[1:] if gemm.summed else shape
    operands = [inputs[at] for at in gemm.tensors if at < len(inputs) and inputs[at].is_tensor]
    added = inputs[gemm.added].shape if gemm.added is not None and gemm.added < len(inputs) else ()
    if broadcast(added, shape) != shape:
        return None
    result = written(shape, _result_type(name, gemm, inputs))
    return Work(2.0 * steps * multiply_adds(a.type), total([*(operand.bytes for operand in operands), result]))


def _product(gemm: Gemm, a: Shape, b: Shape) -> tuple[Shape, int] | None:
    """Shape and depth (K) of A times B, with torch.matmul's rules for vectors and batches."""
    if gemm.transposed:
        if len(b) > 2:
            return None
        b = b[::-1]
    if gemm.ranks is not None:
        batch = max(0, len(a) - 2)
        if (len(a), len(b)) != gemm.ranks or a[:batch] != b[:batch]:
            return None
    if not a or not b:
        return None
    rows, columns = a[-2:-1], b[-1:] if len(b) > 1 else ()
    batches = broadcast(a[:-2], b[:-2])
    if batches is None or a[-1] != b[-2:][0]:
        return None
    return (*batches, *rows, *columns), a[-1]


def _result_type(name: str, gemm: Gemm, inputs: tuple[Input, ...]) -> str | None:
    last = max(gemm.tensors)
    out = next((given.type for given in inputs[last + 1 :] if given.is_tensor), None)
    if out is not None:
        return out
    if name.endswith("_"):
        return inputs[0].type
    if sum(given.type == "Scalar" for given in inputs) > gemm.numbers:
        return None
    a, b = inputs[gemm.a], inputs[gemm.b]
    return gemm.result or (a.type if a.type == b.type else None)
