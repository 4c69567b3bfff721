"""The modules of the gallery: each in plain torch, and with other people's kernels.

All variants have the same parameters.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F


class RMSNorm(nn.Module):
    """The norm of Llama: the mean square is taken in fp32."""

    def __init__(self, dim: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x if x.dtype == torch.float64 else x.float()
        normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * normed.to(x.dtype)


def liger_rms_norm(dim: int) -> nn.Module:
    from liger_kernel.transformers import LigerRMSNorm

    norm: nn.Module = LigerRMSNorm(dim)
    return norm


class LanguageModelHead(nn.Module):
    """The last layer of a language model and its loss: the logits have a column for each word of
    the vocabulary.
    """

    def __init__(self, dim: int, vocabulary: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(vocabulary, dim) / dim**0.5)

    def forward(self, x: torch.Tensor, *, target: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(F.linear(x, self.weight), target)


class LigerLanguageModelHead(LanguageModelHead):
    """Never holds all logits: it takes a chunk of rows at a time, and computes gradients on the way
    forward.
    """

    def __init__(self, dim: int, vocabulary: int) -> None:
        from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

        super().__init__(dim, vocabulary)
        self.loss = LigerFusedLinearCrossEntropyLoss()

    def forward(self, x: torch.Tensor, *, target: torch.Tensor) -> torch.Tensor:
        return self.loss(self.weight, x, target)


class Attention(nn.Module):
    """Causal attention over [batch, heads, sequence, size]."""

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


class FlexAttention(nn.Module):
    """The same by a mask that a function defines. It is fast only where it is compiled."""

    def __init__(self, sequence: int) -> None:
        from torch.nn.attention.flex_attention import create_block_mask

        super().__init__()
        device = str(torch.get_default_device())
        self.mask = create_block_mask(
            lambda _batch, _head, query, key: query >= key,
            None,
            None,
            sequence,
            sequence,
            device=device,
        )

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        from torch.nn.attention.flex_attention import flex_attention

        return flex_attention(q, k, v, block_mask=self.mask)


class FlashAttention(nn.Module):
    """The same by the package flash-attn, which takes [batch, sequence, heads, size]."""

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        from flash_attn import flash_attn_func

        return flash_attn_func(
            *(each.transpose(1, 2) for each in (q, k, v)), causal=True
        ).transpose(1, 2)


class Rope(nn.Module):
    """Rotary position embeddings of queries and keys: [batch, heads, sequence, size], [1, sequence,
    size].
    """

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
        return q * cos + _rotated(q) * sin, k * cos + _rotated(k) * sin


def _rotated(x: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


class LigerRope(nn.Module):
    """Writes its results over its inputs."""

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> Any:
        from liger_kernel.transformers import liger_rotary_pos_emb

        return liger_rotary_pos_emb(q, k, cos, sin)


class Block(nn.Module):
    """A pre-norm transformer block: attention and a SwiGLU MLP, each after a norm and beside a
    residual.
    """

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm, self.mlp_norm = self.make_norm(dim), self.make_norm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.gate_up, self.down = (
            nn.Linear(dim, 8 * dim, bias=False),
            nn.Linear(4 * dim, dim, bias=False),
        )

    def make_norm(self, dim: int) -> nn.Module:
        return RMSNorm(dim)

    def activate(self, gate: torch.Tensor, up: torch.Tensor) -> Any:
        return F.silu(gate) * up

    def forward(self, x: torch.Tensor) -> Any:
        batch, sequence, dim = x.shape
        qkv = self.qkv(self.attention_norm(x)).view(
            batch, sequence, 3, self.heads, dim // self.heads
        )
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, sequence, dim))
        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, dim=-1)
        return x + self.down(self.activate(gate, up))


class LigerBlock(Block):
    """The same with Liger's norm and SwiGLU."""

    def make_norm(self, dim: int) -> nn.Module:
        return liger_rms_norm(dim)

    def activate(self, gate: torch.Tensor, up: torch.Tensor) -> Any:
        from liger_kernel.ops import LigerSiLUMulFunction

        return LigerSiLUMulFunction.apply(gate, up)
