"""WORKLOADS: one entry for each module x variant x shape x dtype x pass. This is THE place to add
one.

The default ones are those of the article "Profiling in PyTorch (Part 2): From nn.Linear to a Fused
MLP" (https://huggingface.co/blog/torch-mlp-fusion): its shapes, in bf16.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import nn

import expectations as seen
from hub_layer import load_liger_geglu_mlp
from kernelgauge import Dtype, Expectation, Workload
from modules import GegluMlp, MatmulAdd, liger_geglu_mlp

_NO_TRITON = (
    "Liger's kernel is Triton code: it needs a GPU (Triton's interpreter has no libdevice.tanh)"
)
_TOO_LARGE = "this shape is sized for a GPU"
_MEANT_FOR_GPU = "this compile mode changes nothing on a CPU"

_MLP_SHAPE = (64, 128, 768, 3072)  # batch, sequence, dim, hidden
_CPU_MLP_SHAPE = (16, 4, 768, 3072)  # and fp32: many processors have no bf16
_LLM_SHAPE = (1, 2048, 4096, 14336)
_ONE_TOKEN = (1, 1, 768, 3072)
_LINEAR_SHAPE = (1024, 32, 64)  # rows, in, out


def _linear(
    variant: str, shape: tuple[int, int, int], dtype: Dtype = "bf16", **fields: object
) -> Workload:
    rows, n_in, n_out = shape
    workload = Workload(
        module="linear",
        variant=variant,
        build=lambda: nn.Linear(n_in, n_out, bias=True),
        inputs=lambda: (torch.randn(rows, n_in),),
        shape=shape,
        dtype=dtype,
        compile={} if variant == "compiled" else None,
        graph_breaks=0,
    )
    return replace(workload, **fields)  # type: ignore[arg-type]  # the fields of Workload, by name


def _matmul_add(
    variant: str, expectations: tuple[Expectation, ...], dtype: Dtype = "bf16"
) -> Workload:
    rows, n_in, n_out = _LINEAR_SHAPE
    return Workload(
        module="matmul_add",
        variant=variant,
        build=lambda: MatmulAdd(n_in, n_out),
        inputs=lambda: (torch.randn(rows, n_in),),
        shape=_LINEAR_SHAPE,
        dtype=dtype,
        compile={} if variant == "compiled" else None,
        graph_breaks=0,
        expectations=expectations,
    )


def _mlp(
    variant: str,
    shape: tuple[int, int, int, int] = _MLP_SHAPE,
    dtype: Dtype = "bf16",
    layer: Callable[[int, int], nn.Module] = GegluMlp,
    **fields: object,
) -> Workload:
    batch, sequence, dim, hidden = shape
    workload = Workload(
        module="mlp",
        variant=variant,
        build=lambda: layer(dim, hidden),
        inputs=lambda: (torch.randn(batch, sequence, dim),),
        shape=shape,
        dtype=dtype,
        compile={} if variant.startswith("compiled") else None,
        graph_breaks=0,
        reference=lambda: GegluMlp(dim, hidden),
        on_cpu=_TOO_LARGE,
    )
    if variant.startswith("liger"):
        fields["on_cpu"] = _NO_TRITON
    elif (shape, dtype) == (_MLP_SHAPE, "bf16") and "on_cpu" not in fields:
        fields["on_cpu"] = _mlp(variant, _CPU_MLP_SHAPE, "fp32", layer, **fields)
    return replace(workload, **fields)  # type: ignore[arg-type]  # the fields of Workload, by name


_DEFAULT = [
    _matmul_add("eager", seen.MATMUL_ADD_EAGER),
    _matmul_add("compiled", seen.ONE_GEMM_WITH_BIAS),
    _linear("eager", _LINEAR_SHAPE, expectations=seen.LINEAR),
    _linear("compiled", _LINEAR_SHAPE, expectations=seen.LINEAR),
    _mlp("eager", expectations=seen.MLP_EAGER),
    _mlp("compiled", expectations=seen.MLP_COMPILED),
    _mlp("liger", layer=liger_geglu_mlp, expectations=seen.MLP_LIGER),
    _mlp("liger-hub", layer=load_liger_geglu_mlp, expectations=seen.MLP_LIGER),
]

_FULL = [
    # Other dtypes.
    *(
        entry
        for dtype in ("fp16", "fp32")
        for entry in (
            _matmul_add("eager", seen.MATMUL_ADD_EAGER_KINDS, dtype),
            _matmul_add("compiled", seen.ONE_GEMM_WITH_BIAS, dtype),
            _linear("eager", _LINEAR_SHAPE, dtype, expectations=seen.ONE_GEMM_WITH_BIAS),
            _linear("compiled", _LINEAR_SHAPE, dtype, expectations=seen.ONE_GEMM_WITH_BIAS),
            _mlp("eager", dtype=dtype, expectations=seen.MLP_EAGER_KINDS),
            _mlp("compiled", dtype=dtype, expectations=seen.MLP_COMPILED_KINDS),
            _mlp("liger", dtype=dtype, layer=liger_geglu_mlp, expectations=seen.MLP_LIGER_KINDS),
            _mlp(
                "liger-hub",
                dtype=dtype,
                layer=load_liger_geglu_mlp,
                expectations=seen.MLP_LIGER_KINDS,
            ),
        )
    ),
    # Compute-bound, and decode: few rows, so that a GEMM splits K to fill the GPU.
    _linear("eager", (4096, 4096, 4096), on_cpu=_TOO_LARGE, expectations=seen.ONE_GEMM_WITH_BIAS),
    _linear(
        "compiled", (4096, 4096, 4096), on_cpu=_TOO_LARGE, expectations=seen.ONE_GEMM_WITH_BIAS
    ),
    _linear("eager", (16, 4096, 4096), expectations=seen.LINEAR_SPLIT_K),
    _linear("compiled", (16, 4096, 4096), expectations=seen.LINEAR_SPLIT_K),
    # An LLM's MLP (8B parameters: dim 4096, hidden 14336), and one token.
    _mlp("eager", _LLM_SHAPE, expectations=seen.MLP_EAGER_KINDS),
    _mlp("compiled", _LLM_SHAPE, expectations=seen.MLP_COMPILED_KINDS),
    _mlp("liger", _LLM_SHAPE, layer=liger_geglu_mlp, expectations=seen.MLP_LIGER_KINDS),
    _mlp("eager", _ONE_TOKEN, on_cpu=None, expectations=seen.MLP_EAGER_ONE_TOKEN),
    _mlp("compiled", _ONE_TOKEN, on_cpu=None, expectations=seen.MLP_COMPILED_ONE_TOKEN),
    _mlp("liger", _ONE_TOKEN, layer=liger_geglu_mlp, expectations=seen.MLP_LIGER_ONE_TOKEN),
    # Forward and backward.
    _mlp("eager", pass_="train", expectations=seen.MLP_EAGER_TRAIN),
    _mlp("compiled", pass_="train", expectations=seen.MLP_COMPILED_TRAIN),
    _mlp("liger", layer=liger_geglu_mlp, pass_="train", expectations=seen.MLP_LIGER_TRAIN),
    _mlp("liger-hub", layer=load_liger_geglu_mlp, pass_="train", expectations=seen.MLP_LIGER_TRAIN),
    # torch.compile's other modes.
    _mlp(
        "compiled-reduce-overhead",
        compile={"mode": "reduce-overhead"},
        on_cpu=_MEANT_FOR_GPU,
        expectations=seen.MLP_CUDA_GRAPH,
    ),
    # No expectation: which template wins is what is autotuned.
    _mlp("compiled-max-autotune", compile={"mode": "max-autotune"}, on_cpu=_MEANT_FOR_GPU),
]

WORKLOADS = [*_DEFAULT, *(replace(workload, matrix="full") for workload in _FULL)]
