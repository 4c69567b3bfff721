"""A suite of whole models of transformers, timm, torchvision and peft: prefill, decode, training
steps.
"""

from __future__ import annotations

from functools import partial

import torch
from models import (
    DECODED,
    LLAMA,
    TOKENS,
    Autocast,
    Decode,
    Float8Linear,
    Loss,
    Prefill,
    lora,
    moe,
    resnet,
    tokens,
    vit,
)

from kernelgauge import Training, Workload

ADAMW = Training(partial(torch.optim.AdamW, lr=1e-4))
SGD = Training(partial(torch.optim.SGD, lr=1e-3, momentum=0.9))


def ids(rows: int, count: int) -> tuple[torch.Tensor]:
    return (torch.randint(LLAMA["vocab_size"], (rows, count)),)


def images(rows: int) -> tuple[torch.Tensor]:
    return (torch.randn(rows, 3, 224, 224),)


def hidden(*shape: int) -> tuple[torch.Tensor]:
    return (torch.randn(*shape, 1024),)


def pytest_kernelgauge_workloads() -> list[Workload]:
    return [
        Workload("llama", "prefill", Prefill, lambda: ids(1, TOKENS), (TOKENS,)),
        Workload("llama", "decode", Decode, tokens, (TOKENS, DECODED)),
        Workload(
            "llama",
            "graphs",
            Decode,
            tokens,
            (TOKENS, DECODED),
            compile={"mode": "reduce-overhead"},
        ),
        Workload(
            "llama",
            "adamw",
            Loss,
            lambda: ids(2, TOKENS),
            (2, TOKENS),
            pass_="step",
            training=ADAMW,
        ),
        Workload("moe", "eager", moe, lambda: hidden(1, 256), (256,)),
        Workload(
            "lora", "eager", lora, lambda: hidden(1, 256), (256,), pass_="step", training=ADAMW
        ),
        Workload(
            "autocast",
            "eager",
            Autocast,
            lambda: hidden(256),
            (256,),
            dtype=None,
            pass_="step",
            training=ADAMW,
        ),
        Workload(
            "linear",
            "fp8",
            lambda: Float8Linear(1024, 4096, bias=False),
            lambda: hidden(256),
            (256,),
            on_cpu="GEMMs in fp8 are for GPUs",
        ),
        Workload("vit", "eager", vit, lambda: images(8), (8,)),
        Workload("resnet", "eager", lambda: resnet().eval(), lambda: images(8), (8,)),
        Workload(
            "resnet",
            "sgd",
            resnet,
            lambda: images(8),
            (8,),
            dtype="fp32",
            pass_="step",
            training=SGD,
        ),
    ]
