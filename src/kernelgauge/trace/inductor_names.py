"""Inductor's kernels: the heuristic, the ops merged into the name, and the number within the graph."""

from __future__ import annotations

import re

from .cpp_names import Parsed, clip
from .inductor_ops import ATTENTION_OPS, CONVOLUTION_OPS, MATMUL_OPS, REDUCING_OPS, split_ops
from .kernel_name import KernelName, Kind

__all__ = ["inductor_autotuned", "inductor_cpp", "inductor_template", "inductor_triton"]

# The first three letters of the heuristic (codegen/triton.py: define_kernel, wrapper_benchmark.py: its choices).
# "unk" is any other heuristic: upstream the cooperative reductions, elsewhere whole backends.
_CATEGORIES = {
    "poi": Kind.POINTWISE, "for": Kind.POINTWISE, "red": Kind.REDUCTION, "per": Kind.REDUCTION, "spl": Kind.REDUCTION,
}  # fmt: skip
_SPECIALISATION = re.compile(r"_(?:\d+[cde]+)+$", re.ASCII)  # `_0d1d2de`: appended to names by Triton 2.x
_TRAILING_ID = re.compile(r"(?:^|_)(?P<id>\d{1,9})$", re.ASCII)


def _kind_of_ops(ops: tuple[str, ...], otherwise: Kind) -> Kind:
    found = frozenset(ops)
    for kind, names in (
        (Kind.ATTENTION, ATTENTION_OPS),
        (Kind.CONVOLUTION, CONVOLUTION_OPS),
        (Kind.GEMM, MATMUL_OPS),
    ):
        if found & names:
            return kind
    return otherwise


def inductor_triton(name: Parsed, match: re.Match[str]) -> KernelName:
    merged = _SPECIALISATION.sub("", match["rest"])
    number = _TRAILING_ID.search(merged)
    ops = split_ops(merged[: number.start()] if number else merged)
    category = match["category"]
    kind = _CATEGORIES.get(category, Kind.OTHER)
    if category == "tem":
        kind = _kind_of_ops(ops, Kind.OTHER)
    elif category == "unk" and REDUCING_OPS.intersection(ops):
        kind = Kind.REDUCTION
    graph_id = int(number["id"]) if number else None
    return KernelName(name.raw, kind, "inductor-triton", clip(name.text), ops, graph_id=graph_id)


def inductor_cpp(name: Parsed, match: re.Match[str]) -> KernelName:
    number = _TRAILING_ID.search(match["rest"])
    ops = split_ops(match["rest"][: number.start()] if number else match["rest"])
    kind = Kind.REDUCTION if REDUCING_OPS.intersection(ops) else Kind.POINTWISE
    graph_id = int(number["id"]) if number else None
    # `graph_N_` is left out of `short`: N counts the graphs of the process and says nothing of the kernel.
    return KernelName(name.raw, kind, "inductor-cpp", clip(match["name"]), ops, graph_id=graph_id)


def inductor_autotuned(name: Parsed, match: re.Match[str]) -> KernelName:
    ops = split_ops(_TRAILING_ID.sub("", match["rest"] or ""))
    return KernelName(name.raw, _kind_of_ops(ops, Kind.OTHER), "inductor-triton", clip(name.text), ops)


def inductor_template(name: Parsed, match: re.Match[str]) -> KernelName:
    ops = split_ops(match["rest"] or "")
    backend = f"inductor-{match['backend'].replace('_', '-')}"
    return KernelName(name.raw, _kind_of_ops(ops, Kind.OTHER), backend, clip(name.text), ops)
