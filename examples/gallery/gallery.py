"""WORKLOADS: other people's kernels beside plain torch.

A module is one function here, a variant one way to compute it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

import layers
from kernelgauge import Expectation, Pass, Workload

_LIGER = "Liger's kernels are Triton code: they need a GPU"
_GRAPHS = "CUDA graphs need a GPU"
_FLEX_BACKWARD = "flex_attention has no backward pass on a CPU"
_SEEN = "the sources of Liger 0.8.5 and of Inductor in torch 2.11"


# its name, what builds it of a shape, fields of its own
Variant = tuple[str, Callable[..., nn.Module], dict[str, Any]]


def _on_any_gpu(*names: str) -> tuple[Expectation, ...]:
    return (Expectation(_SEEN, arch="gpu", names=names),)


def _variants(
    module: str,
    shapes: tuple[tuple[int, ...], tuple[int, ...]],
    inputs: Callable[..., Any],
    variants: Sequence[Variant],
    pass_: Pass = "forward",
) -> list[Workload]:
    """Return a workload for each variant.

    The first one is the reference of the others. `shapes`: on a GPU in bf16, and on a CPU in fp32.
    """
    _, reference, _ = variants[0]

    def workload(variant: str, build: Callable[..., nn.Module], shape: tuple[int, ...]) -> Workload:
        return Workload(
            module=module,
            variant=variant,
            build=lambda: build(*shape),
            inputs=lambda: inputs(*shape),
            shape=shape,
            compile={} if variant.startswith("compiled") or variant == "flex" else None,
            graph_breaks=0,
            reference=lambda: reference(*shape),
            pass_=pass_,
        )

    found = []
    for variant, build, fields in variants:
        on_gpu, on_cpu = (workload(variant, build, shape) for shape in shapes)
        own: dict[str, Any] = {"on_cpu": replace(on_cpu, dtype="fp32"), **fields}
        found.append(replace(on_gpu, **own))
    return found


# -- RMSNorm: bound by memory ----------------------------------------------------------------------


def _rms_norm(pass_: Pass) -> list[Workload]:
    def build(_rows: int, dim: int) -> nn.Module:
        return layers.RMSNorm(dim)

    def liger(_rows: int, dim: int) -> nn.Module:
        return layers.liger_rms_norm(dim)

    def inputs(rows: int, dim: int) -> Any:
        return (torch.randn(rows, dim, requires_grad=True),)

    is_forward = pass_ == "forward"
    compiled, one_kernel = _on_any_gpu("triton_*_fused_*"), _on_any_gpu("_rms_norm_forward_kernel")
    faster: dict[str, Any] = {"faster_than": "eager", "by": 0.3}
    return _variants(
        "rms_norm",
        ((8192, 4096), (64, 256)),
        inputs,
        [
            ("eager", build, {}),
            (
                "compiled",
                build,
                faster | ({"expectations": compiled} if is_forward else {"matrix": "full"}),
            ),
            (
                "liger",
                liger,
                faster | {"on_cpu": _LIGER, "expectations": one_kernel if is_forward else ()},
            ),
        ],
        pass_,
    )


# -- the loss of a language model: launches follow the shape, and memory is the point --------------


def _head(shape: tuple[int, ...], *, is_full: bool = False) -> list[Workload]:
    def build(_rows: int, dim: int, vocabulary: int) -> nn.Module:
        return layers.LanguageModelHead(dim, vocabulary)

    def liger(_rows: int, dim: int, vocabulary: int) -> nn.Module:
        return layers.LigerLanguageModelHead(dim, vocabulary)

    def inputs(rows: int, dim: int, vocabulary: int) -> Any:
        return (torch.randn(rows, dim, requires_grad=True),), {
            "target": torch.randint(vocabulary, (rows,))
        }

    variants: list[Variant] = [
        ("eager", build, {}),
        ("compiled", build, {"matrix": "full"}),
        ("liger", liger, {"on_cpu": _LIGER}),
    ]
    found = _variants("lm_head", (shape, (32, 64, 512)), inputs, variants, "train")
    return [replace(each, matrix="full") for each in found] if is_full else found


# -- attention: bound by arithmetic, and template kernels ------------------------------------------


def _attention(pass_: Pass) -> list[Workload]:
    def build(*_shape: int) -> nn.Module:
        return layers.Attention()

    def flex(_batch: int, _heads: int, sequence: int, _size: int) -> nn.Module:
        return layers.FlexAttention(sequence)

    def flash(*_shape: int) -> nn.Module:
        return layers.FlashAttention()

    def inputs(batch: int, heads: int, sequence: int, size: int) -> Any:
        return tuple(
            torch.randn(batch, heads, sequence, size, requires_grad=pass_ == "train") for _ in "qkv"
        )

    template: dict[str, Any] = {"expectations": _on_any_gpu("triton_tem_fused*flex_attention*")}
    variants: list[Variant] = [
        ("sdpa", build, {}),
        ("flex", flex, template if pass_ == "forward" else {"on_cpu": _FLEX_BACKWARD}),
    ]
    if find_spec("flash_attn") is not None:
        variants.append(("flash", flash, {"on_cpu": "flash-attn needs a GPU"}))
    return _variants("attention", ((4, 16, 2048, 128), (1, 2, 128, 64)), inputs, variants, pass_)


# -- RoPE: in place --------------------------------------------------------------------------------


def _rope() -> list[Workload]:
    def build(*_shape: int) -> nn.Module:
        return layers.Rope()

    def liger(*_shape: int) -> nn.Module:
        return layers.LigerRope()

    def inputs(batch: int, heads: int, sequence: int, size: int) -> Any:
        q, k = (
            torch.randn(batch, sequence, count, size).transpose(1, 2)
            for count in (heads, max(1, heads // 4))
        )
        angles = torch.arange(sequence)[:, None] * 10_000 ** (-torch.arange(0, size, 2) / size)
        both = torch.cat((angles, angles), dim=-1)[None]
        return q, k, both.cos(), both.sin()

    faster: dict[str, Any] = {"faster_than": "eager", "by": 0.3}
    return _variants(
        "rope",
        ((4, 32, 2048, 128), (1, 4, 64, 32)),
        inputs,
        [
            ("eager", build, {}),
            ("compiled", build, faster),
            (
                "liger",
                liger,
                faster | {"on_cpu": _LIGER, "expectations": _on_any_gpu("_triton_rope")},
            ),
        ],
    )


# -- a transformer block ---------------------------------------------------------------------------


def _block(pass_: Pass) -> list[Workload]:
    def build(_batch: int, _sequence: int, dim: int, heads: int) -> nn.Module:
        return layers.Block(dim, heads)

    def liger(_batch: int, _sequence: int, dim: int, heads: int) -> nn.Module:
        return layers.LigerBlock(dim, heads)

    def inputs(batch: int, sequence: int, dim: int, _heads: int) -> Any:
        return (torch.randn(batch, sequence, dim, requires_grad=True),)

    graphs: dict[str, Any] = {"compile": {"mode": "reduce-overhead"}, "on_cpu": _GRAPHS}
    variants: list[Variant] = [
        ("eager", build, {}),
        ("compiled", build, {"faster_than": "eager", "by": 0.03}),
        ("liger", liger, {"on_cpu": _LIGER, "matrix": "full"}),
    ]
    if pass_ == "forward":
        variants.append(("compiled-graphs", build, graphs))
    return _variants("block", ((4, 512, 1024, 16), (1, 32, 64, 4)), inputs, variants, pass_)


WORKLOADS = [
    *_rms_norm("forward"),
    *_rms_norm("train"),
    *_head((2048, 2048, 32000)),
    *_head((2048, 2048, 16384), is_full=True),
    *_attention("forward"),
    *_attention("train"),
    *_rope(),
    *_block("forward"),
    *_block("train"),
]

# The code of Liger's kernels depends on all sizes but the rows. So few rows are enough for a loss
# whose logits a CPU computes.
_BOTH_PASSES = (*_rms_norm("train"), *_head((4, 2048, 32000)), *_rope(), *_block("train"))
TRITON_KERNELS = [each for each in _BOTH_PASSES if each.variant == "liger"]
