"""Models of other packages, with random weights of their configurations: nothing is downloaded."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

LLAMA = {
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "vocab_size": 8192,
}
TOKENS = 512


def llama() -> Any:
    """Return a Llama of four layers, in eval mode."""
    transformers = pytest.importorskip("transformers")
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA)).eval()


class Prefill(nn.Module):
    """All tokens of a prompt at once."""

    def __init__(self) -> None:
        super().__init__()
        self.model = llama()

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.model(ids, use_cache=False).logits


class Decode(nn.Module):
    """One token more, behind a cache of `TOKENS` tokens. Each call begins with the same cache."""

    def __init__(self) -> None:
        super().__init__()
        self.model = llama()
        heads = LLAMA["num_key_value_heads"]
        size = LLAMA["hidden_size"] // LLAMA["num_attention_heads"]
        self.register_buffer("keys", torch.randn(LLAMA["num_hidden_layers"], 1, heads, TOKENS, size))
        self.register_buffer("values", torch.randn(LLAMA["num_hidden_layers"], 1, heads, TOKENS, size))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        from transformers import DynamicCache

        cache = DynamicCache()
        for layer, (keys, values) in enumerate(zip(self.keys, self.values, strict=True)):
            cache.update(keys, values, layer)
        return self.model(ids, past_key_values=cache).logits


class Step(nn.Module):
    """One training step with AdamW."""

    def __init__(self) -> None:
        super().__init__()
        self.model = llama().train()
        self.optimizer: torch.optim.Optimizer | None = None

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        if self.optimizer is None:  # its state has the dtype that the parameters have now
            self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        with torch.enable_grad():
            loss = self.model(ids, labels=ids).loss
            loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()


def vit() -> nn.Module:
    """Return timm's ViT-base, in eval mode."""
    timm = pytest.importorskip("timm")
    return timm.create_model("vit_base_patch16_224").eval()


def resnet() -> nn.Module:
    """Return torchvision's ResNet-50, in train mode."""
    return pytest.importorskip("torchvision").models.resnet50()
