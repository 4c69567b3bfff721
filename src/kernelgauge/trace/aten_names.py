"""ATen's kernels: one kernel template per access pattern, and the op is the functor among its template arguments."""

from __future__ import annotations

import re

from .cpp_names import WORD, Build, Parsed, base_name, clip, cpp_dtype, snake_case
from .kernel_name import KernelName, Kind

__all__ = ["aten_functor"]

_FUNCTOR = re.compile(
    r"CUDAFunctor(?:OnSelf|OnOther)?_(?P<cuda>\w+)|launch_(?P<launch>\w+)"
    r"|(?P<functor>\w+?)_?[Ff]unctor|(?P<ops>\w+?)Ops|(?P<kernel>\w+?)_?(?:CUDA)?[Kk]ernel(?:_?[Ii]mpl)?(?:_cuda)?"
    r"|(?P<host>\w+?)_cuda(?:_out|_)?",
    re.ASCII,
)
_WRAPPER = re.compile(r"[AB]?(?:Unary|Binary|Ternary|Pointwise)(?:Op\w*)?|gpu(?:_index)?|opmath\w*", re.ASCII)
_PLAIN_FUNCTORS = {"plus": "add", "minus": "sub", "multiplies": "mul", "divides": "div", "Copy": "copy"}
_SAME_OP = {
    "arg_max": "argmax", "arg_min": "argmin", "welford": "var", "norm_two": "norm", "lp_norm": "norm", "max_nan": "max",
    "min_nan": "min", "pow_tensor_scalar": "pow", "pow_tensor_tensor": "pow", "clamp_scalar": "clamp",
    "compare_eq": "eq", "fused_adam_math": "fused_adam", "fused_sgd_math": "fused_sgd",
}  # fmt: skip


def _functor_op(args: str) -> str | None:
    """The op that the first functor in an ATen kernel's template arguments names; wrappers are passed over."""
    for word in WORD.findall(args):
        if word in _PLAIN_FUNCTORS:
            return _PLAIN_FUNCTORS[word]
        match = _FUNCTOR.fullmatch(word)
        stem = next((group for group in match.groups() if group), "") if match else ""
        if stem and not _WRAPPER.fullmatch(stem):
            op = snake_case(stem)
            return "copy" if op.endswith("_copy") and not op.startswith("index") else _SAME_OP.get(op, op)
    return None


def aten_functor(default: Kind) -> Build:
    """A rule for a kernel template of ATen; `default` is its kind where the functor's op does not say another."""
    kinds = {"copy": Kind.COPY, "fill": Kind.FILL, "norm": Kind.REDUCTION}

    def build(name: Parsed, _: re.Match[str]) -> KernelName:
        op = _functor_op(name.args)
        kind = Kind.INDEX if (op or "").startswith("index") else kinds.get(op or "", default)
        short = base_name(name) + (f"<{op}>" if op else "")
        return KernelName(name.raw, kind, "aten", clip(short), (op,) if op else (), cpp_dtype(name))

    return build
