"""Hand-written Triton kernels: a bare identifier, whose words say what it does."""

from __future__ import annotations

import re

from .cpp_names import Build, Parsed, clip
from .kernel_name import KernelName, Kind

__all__ = ["triton_kernel"]

_WORDS_OF_KINDS = tuple(
    (re.compile(rf"(?:^|_)(?:{words})(?:_|$)"), kind)
    for kind, words in (
        (Kind.ATTENTION, r"attn|attention|flash|mla|sdpa"),
        (Kind.GEMM, r"matmul|gemm|mm|bmm|linear"),
        (Kind.NORM, r"norm|rmsnorm|layernorm"),
        (Kind.REDUCTION, r"softmax|sparsemax|ce|entropy|loss|kldiv|jsd|distance|sum|reduce"),
        (Kind.POINTWISE, r"geglu|swiglu|gelu|silu|relu|rope|mrope|dyt|mul|add"),
        (Kind.INDEX, r"embedding|gather|scatter"),
    )
)
_PASS = re.compile(r"_(?P<pass>forward|backward|fwd|bwd)(?=_|$)")


def triton_kernel(backend: str) -> Build:
    """A hand-written kernel: a bare identifier. Its op is what stands before the pass; a backward says so."""

    def build(name: Parsed, _: re.Match[str]) -> KernelName:
        kind = next((kind for words, kind in _WORDS_OF_KINDS if words.search(name.text)), Kind.OTHER)
        passed = _PASS.search(name.text)
        op = (name.text[: passed.start()] if passed else re.sub(r"_kernel.*", "", name.text)).strip("_")
        if op and passed and passed["pass"].startswith("b"):
            op += "_backward"
        return KernelName(name.raw, kind, backend, clip(name.text), (op,) if op else ())

    return build
