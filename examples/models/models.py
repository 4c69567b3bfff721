"""Models of other packages, with random weights of their configurations: nothing is downloaded."""

from __future__ import annotations

from collections.abc import Iterator
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
TOKENS = 512  # of a prompt
DECODED = 4  # tokens behind it


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
    """One token more, behind a static cache that already holds a prompt."""

    def __init__(self) -> None:
        super().__init__()
        self.model = llama()
        # By dtype, since the reference in float64 is a copy of this module: the cache, and its
        # tensors after the prompt.
        self.caches: dict[torch.dtype, Any] = {}
        self.cache: Any = None

    def start(self, prompt: torch.Tensor) -> None:
        """Fill the cache with the prompt.

        It runs once; later calls copy its keys and values back.
        """
        from transformers import StaticCache

        if self.model.dtype not in self.caches:
            cache = StaticCache(config=self.model.config, max_cache_len=TOKENS + 64)
            with torch.no_grad():
                self.model(prompt, past_key_values=cache)
            tensors = [
                each
                for layer in cache.layers
                for each in vars(layer).values()
                if torch.is_tensor(each)
            ]
            self.caches[self.model.dtype] = cache, [(each, each.clone()) for each in tensors]
        self.cache, filled = self.caches[self.model.dtype]
        for tensor, value in filled:
            tensor.copy_(value)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.model(ids, past_key_values=self.cache).logits


def tokens(decode: Decode) -> Iterator[tuple[torch.Tensor]]:
    """Yield the next tokens, behind the same prompt in each sequence."""
    decode.start(torch.randint(LLAMA["vocab_size"], (1, TOKENS)))
    for _ in range(DECODED):
        yield (torch.randint(LLAMA["vocab_size"], (1, 1)),)


class Loss(nn.Module):
    """A language model that is trained to say its input."""

    def __init__(self) -> None:
        super().__init__()
        self.model = llama().train()

    def forward(self, ids: torch.Tensor) -> Any:
        return self.model(ids, labels=ids, use_cache=False)


def moe() -> nn.Module:
    """Return the mixture of experts of a Mixtral: 8 experts, 2 for each token."""
    pytest.importorskip("transformers")
    from transformers.models.mixtral.modeling_mixtral import MixtralConfig, MixtralSparseMoeBlock

    sizes = {
        "hidden_size": 1024,
        "intermediate_size": 2816,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
    }
    block = MixtralSparseMoeBlock(MixtralConfig(**sizes))
    for each in block.parameters():
        nn.init.normal_(each, std=0.02)
    return block.eval()


def lora() -> nn.Module:
    """Return the MLP of a Llama with adapters of rank 16, as peft adds them."""
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    from transformers.models.llama.modeling_llama import LlamaMLP

    mlp = LlamaMLP(transformers.LlamaConfig(**LLAMA))
    for each in mlp.parameters():
        nn.init.normal_(each, std=0.02)
    config = peft.LoraConfig(
        r=16, target_modules=["gate_proj", "up_proj", "down_proj"], init_lora_weights=False
    )
    return peft.inject_adapter_in_model(config, mlp.eval())


class Autocast(nn.Module):
    """An MLP in fp32 that computes in bf16, as mixed precision does."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(1024, 4096), nn.GELU(), nn.LayerNorm(4096), nn.Linear(4096, 1024)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast(x.device.type, torch.bfloat16):
            return self.layers(x).float().pow(2).mean()


class Float8Linear(nn.Linear):
    """A linear layer that scales and rounds its input and its weight to fp8, tensor by tensor."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        (rows, scale), (weight, weight_scale) = to_float8(x.flatten(0, -2)), to_float8(self.weight)
        y = torch._scaled_mm(
            rows, weight.t(), scale_a=scale, scale_b=weight_scale, out_dtype=x.dtype
        )
        return y.view(*x.shape[:-1], -1)


def to_float8(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scale = x.abs().amax().float() / torch.finfo(torch.float8_e4m3fn).max
    return (x / scale).to(torch.float8_e4m3fn), scale


def vit() -> nn.Module:
    """Return timm's ViT-base, in eval mode."""
    timm = pytest.importorskip("timm")
    return timm.create_model("vit_base_patch16_224").eval()


def resnet() -> nn.Module:
    """Return torchvision's ResNet-50, in train mode."""
    return pytest.importorskip("torchvision").models.resnet50()
