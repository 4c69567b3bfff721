"""How far unchanged models and planted bugs are from float64, and what the comparison allows them.

    python benchmarks/numerics.py [--seeds 3] [-k llama] [--device cpu] [--eager-runs 1]

Needs torchvision, timm and transformers. A CPU takes about half an hour. `--eager-runs 1`: with the eager run alone, not moved by rounding.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import timm
import torch
import torchvision
from torch import nn
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaForCausalLM

from kernelgauge import Workload
from kernelgauge.measure import numerics
from kernelgauge.measure.device import choose_device
from kernelgauge.measure.numerics import NotComparedError, compare_with_float64


class Llama(nn.Module):
    """A Llama that returns its loss too."""

    def __init__(self, layers: int, hidden: int) -> None:
        super().__init__()
        sizes: dict[str, Any] = {"hidden_size": hidden, "intermediate_size": 2 * hidden, "num_hidden_layers": layers}
        self.model = LlamaForCausalLM(LlamaConfig(vocab_size=1000, num_attention_heads=4, use_cache=False, **sizes))

    def forward(self, ids: torch.Tensor) -> Any:
        return self.model(ids, labels=ids, use_cache=False)


class Autocast(nn.Module):
    """A module in bf16 by autocast."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: torch.Tensor) -> Any:
        with torch.autocast(args[0].device.type, torch.bfloat16):
            return self.module(*args)


class Scales(nn.Module):
    """Blocks with parameters of one number: the gradients of these err little or much by chance."""

    def __init__(self, layers: int = 12) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(128), nn.Linear(128, 256), nn.PReLU(), nn.Linear(256, 128))
            for _ in range(layers)
        )
        self.scales = nn.ParameterList(nn.Parameter(torch.tensor(0.5)) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for scale, block in zip(self.scales, self.blocks, strict=True):
            x = x + scale * block(x)
        x = F.normalize(x, dim=-1)
        return F.cross_entropy(2 * x @ x.T, torch.arange(len(x), device=x.device))


class Block(nn.Module):
    """A small transformer; `bug` names what is wrong with its last layer."""

    def __init__(self, bug: str = "", layers: int = 4) -> None:
        super().__init__()
        self.bug = bug
        self.qkv = nn.ModuleList(nn.Linear(256, 768) for _ in range(layers))
        self.up = nn.ModuleList(nn.Linear(256, 1024) for _ in range(layers))
        self.down = nn.ModuleList(nn.Linear(1024, 256) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        layers: Any = zip(self.qkv, self.up, self.down, strict=True)
        for index, (qkv, up, down) in enumerate(layers):
            bug = self.bug if index == len(self.qkv) - 1 else ""
            heads = qkv(F.layer_norm(x, (256,), eps=1e-3 if bug == "eps" else 1e-5)).unflatten(-1, (3, 4, 64))
            q, k, v = heads.permute(2, 0, 3, 1, 4)
            ones = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device)
            y = F.scaled_dot_product_attention(q, k, v, ones.tril(1 if bug == "mask" else 0))
            x = y.transpose(1, 2).flatten(-2) + (0 if bug == "residual" else x)
            y = F.gelu(F.linear(x, up.weight, 0 * up.bias if bug == "bias" else up.bias))
            if bug == "accumulate":  # in the dtype itself, as some kernels do; in fp32, in bf16
                parts = zip(torch.split(y, 16, -1), torch.split(down.weight, 16, -1), strict=True)
                total = down.bias.bfloat16().expand(*y.shape[:-1], -1)
                for part, weight in parts:
                    total = total + F.linear(part, weight).bfloat16()
                x = x + total.to(x.dtype)
            elif bug == "tf32":  # ten bits of mantissa
                x = x + F.linear(y.half().to(x.dtype), down.weight.half().to(x.dtype), down.bias)
            else:
                x = x + down(y)
        return x


def evaluated(build: Callable[[], nn.Module]) -> nn.Module:
    return build().eval()


def unchanged() -> Iterator[Workload]:
    ids, image = lambda: (torch.randint(0, 1000, (2, 64)),), lambda: (torch.randn(4, 3, 64, 64),)
    models: dict[str, tuple[Callable[[], Any], Callable[[], Any], tuple[Any, ...]]] = {
        "resnet18": (torchvision.models.resnet18, image, ("fp32", "bf16")),
        "resnet50": (torchvision.models.resnet50, image, ("fp32",)),
        "vit-base": (lambda: timm.create_model("vit_base_patch16_224"), lambda: (torch.randn(1, 3, 224, 224),), ("bf16",)),
        "llama4": (lambda: Llama(4, 256), ids, ("fp32", "bf16", "fp16")),
        "scales": (Scales, lambda: (torch.randn(64, 128),), ("fp32", "bf16")),
        "llama24": (lambda: Llama(24, 256), ids, ("bf16",)),
        "llama2-autocast": (lambda: Autocast(Llama(2, 256)), ids, (None,)),
    }  # fmt: skip
    for name, (build, inputs, dtypes) in models.items():
        for dtype in dtypes:
            one = Workload(name, "eager", partial(evaluated, build), inputs, dtype=dtype)
            yield from (one, replace(one, variant="compiled", compile={}))
            trained = replace(one, build=build, pass_="train")
            yield from (trained, replace(trained, variant="compiled", compile={}))


def planted() -> Iterator[Workload]:
    for bug in ("none", "residual", "bias", "mask", "eps", "accumulate", "tf32"):
        one = Workload(f"block-{bug}", "eager", partial(Block, bug), lambda: (torch.randn(2, 64, 256),))
        for dtype in ("fp32", "bf16"):
            for pass_ in ("forward", "train"):
                yield replace(one, dtype=dtype, pass_=pass_, reference=Block)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("-k", default="", help="workloads whose id contains this text")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--eager-runs", type=int, default=numerics._EAGER_RUNS)
    options = parser.parse_args()
    numerics._EAGER_RUNS = options.eager_runs
    device = choose_device(options.device)
    for workload in (each for each in (*unchanged(), *planted()) if options.k in each.id):
        for seed in range(options.seeds):
            start = time.perf_counter()
            try:
                errors = compare_with_float64(workload, device, seed=seed)
            except NotComparedError as error:
                print(f"{workload.id:32} {seed}  not judged: {error.one_line}", flush=True)
                continue
            worst = max(errors, key=lambda each: each.error / each.bound)
            red = sum(not each.within_bound for each in errors)
            verdict = f"red ({red} of {len(errors)})" if red else "green"
            seconds = time.perf_counter() - start
            print(f"{workload.id:32} {seed}  {seconds:5.1f} s  {verdict:16} {worst}", flush=True)


if __name__ == "__main__":
    main()
