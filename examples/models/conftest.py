"""A suite of whole models of transformers, timm and torchvision."""

from __future__ import annotations

import torch
from models import LLAMA, TOKENS, Decode, Prefill, Step, resnet, vit

from kernelgauge import Workload


def ids(rows: int, tokens: int) -> tuple[torch.Tensor]:
    return (torch.randint(LLAMA["vocab_size"], (rows, tokens)),)


def images(rows: int) -> tuple[torch.Tensor]:
    return (torch.randn(rows, 3, 224, 224),)


def pytest_kernelgauge_workloads() -> list[Workload]:
    return [
        Workload("llama", "prefill", Prefill, lambda: ids(1, TOKENS), (TOKENS,)),
        Workload("llama", "prefill", Prefill, lambda: ids(1, TOKENS), (TOKENS,), dtype="fp32"),
        Workload("llama", "decode", Decode, lambda: ids(1, 1), (TOKENS,)),
        Workload("llama", "step", Step, lambda: ids(2, TOKENS), (2, TOKENS), dtype="bf16"),
        Workload("vit", "eager", vit, lambda: images(8), (8,)),
        Workload("vit", "eager", vit, lambda: images(8), (8,), dtype="fp32"),
        Workload("vit", "eager", vit, lambda: images(8), (8,), pass_="train"),
        Workload("resnet", "eager", lambda: resnet().eval(), lambda: images(8), (8,)),
        Workload("resnet", "eager", lambda: resnet().eval(), lambda: images(8), (8,), dtype="fp32"),
        Workload("resnet", "eager", resnet, lambda: images(8), (8,), pass_="train"),
        Workload("resnet", "eager", resnet, lambda: images(8), (8,), dtype="fp32", pass_="train"),
    ]
