"""What the article measured of its workloads: set beside this machine's figures in the reports, and judged by nobody.

The article is "Profiling in PyTorch (Part 2): From nn.Linear to a Fused MLP" (https://huggingface.co/blog/torch-mlp-fusion,
its text: torch-mlp-fusion.md of https://github.com/huggingface/blog). Only what it says in numbers stands here, each
with its place there; the numbers of claims are those of docs/claims.md. Times are averages of its profiler.
"""

from __future__ import annotations

from kernelgauge.results import Published, Unit

__all__ = ["LINEAR", "MLP_COMPILED", "MLP_EAGER", "MLP_LIGER"]


def _article(
    claim: str, figure: str, value: float, unit: Unit, *, kind: str | None = None, place: int = 0
) -> Published:
    return Published(
        figure=figure,
        value=value,
        unit=unit,
        device="NVIDIA A100-SXM4-80GB",
        source="Profiling in PyTorch (Part 2): From nn.Linear to a Fused MLP",
        url="https://huggingface.co/blog/torch-mlp-fusion",
        claim=claim,
        kind=kind,
        place=place,
    )


# Eager and compiled: "exactly one kernel per forward, and it is the same kernel both times".
LINEAR = (_article("C1", "kernels of one call", 1, "launches"),)

MLP_EAGER = (
    # "Stacking three Linears: the MLP", below figure 7.
    _article("C9", "kernels of one call", 5, "launches"),
    # "Why are there two types of GEMM kernels?": the table's column "avg CUDA".
    _article("C13", "GEMM of gate_proj", 0.19, "ms", kind="gemm", place=0),
    _article("C13", "GEMM of up_proj", 0.19, "ms", kind="gemm", place=1),
    _article("C13", "GEMM of down_proj", 0.17, "ms", kind="gemm", place=2),
)

MLP_COMPILED = (
    # "Conclusion", the table: one fused kernel, and the three GEMMs untouched.
    _article("C14", "kernels of one call", 4, "launches"),
    # "Why tuned kernels are better", point 2, as the one below.
    _article("C23", "Inductor's fused kernel", 89.4, "us", kind="pointwise"),
)

# Of the layer from the Hub; the package has the same kernel.
MLP_LIGER = (
    _article("C20", "kernels of one call", 4, "launches"),
    _article("C23", "Liger's fused kernel", 92.8, "us", kind="pointwise"),
)
