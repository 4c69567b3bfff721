"""A suite with a fault planted in each workload, and what its failures say of it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from kernelgauge.results import Results, decode_results

MODEL = """\
import itertools
import os

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

FAULTY = "FAULTY" in os.environ
BUILT = itertools.count()


class RMSNorm(nn.Module):
    def __init__(self, dim, fault):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.fault = fault

    def forward(self, x):
        if self.fault == "fp32_norm":
            return self.in_float32(x)
        return F.rms_norm(x, x.shape[-1:], self.weight)

    def in_float32(self, x):
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)
        return y.to(x.dtype) * self.weight


class Attention(nn.Module):
    def __init__(self, dim, heads, fault):
        super().__init__()
        self.heads = heads
        self.fault = fault
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        b, s, d = x.shape
        q, k, v = self.qkv(x).view(b, s, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        if self.fault == "math_attention":
            with sdpa_kernel(SDPBackend.MATH):
                y = F.scaled_dot_product_attention(q, k, v)
        else:
            y = F.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).reshape(b, s, d))


class SwiGLU(nn.Module):
    def __init__(self, dim, hidden, fault):
        super().__init__()
        self.fault = fault
        self.tag = str(next(BUILT))
        self.gate = nn.Linear(dim, hidden, bias=False)
        self.up = nn.Linear(dim, hidden, bias=False)
        self.down = nn.Linear(hidden, dim, bias=False)

    def forward(self, x):
        u = self.up(x)
        if self.fault == "clone":
            u = u.clone()
        if self.fault == "item":
            u[0, 0, 0].item()
        if self.fault == "to_host":
            u[0].cpu()
        if self.fault == "wait":
            torch.cuda.synchronize()
        if self.fault == "graph_break":
            torch._dynamo.graph_break()
        if self.fault == "loop_break":
            for _ in range(2):
                print(end="")
        if self.fault == "recompile" and self.tag == "never":
            u = u + 1
        if self.fault == "contiguous":
            u = u.transpose(1, 2).contiguous().transpose(1, 2)
        g = self.gate(x)
        if self.fault == "float32_middle":
            g = g.float()
        h = F.silu(g) * u
        if self.fault == "more_work":
            h = h * torch.sigmoid(h)
        if self.fault == "error":
            h = h.view(-1, 3, 7)
        return self.down(h.to(x.dtype))


class Block(nn.Module):
    def __init__(self, dim, heads, hidden, fault):
        super().__init__()
        fault = fault if FAULTY else ""
        self.norm1 = RMSNorm(dim, fault)
        self.attention = Attention(dim, heads, fault)
        self.norm2 = RMSNorm(dim, fault)
        self.mlp = SwiGLU(dim, hidden, fault)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))
"""

CONFTEST = """\
import os

import torch
from kernelgauge import Workload
from model import Block

ON_GPU = torch.cuda.is_available()
DIM, HEADS, HIDDEN, BATCH, TOKENS = (1024, 16, 2816, 8, 512) if ON_GPU else (32, 2, 64, 2, 8)
VARIANTS = {"eager": None, "compiled": {}}


def pytest_kernelgauge_workloads():
    def workload(fault, variant, pass_):
        return Workload(
            module=fault,
            variant=variant,
            build=lambda: Block(DIM, HEADS, HIDDEN, fault),
            inputs=lambda: (torch.randn(BATCH, TOKENS, DIM),),
            dtype="bf16" if ON_GPU else "fp32",
            compile=VARIANTS[variant],
            pass_=pass_,
        )

    return [workload(*each.split("-")) for each in os.environ["CAUSES"].split()]
"""

TESTS = "from kernelgauge.standard import *\n"


class Failure(NamedTuple):
    """What the first failing verdict of a workload names first."""

    cause: str
    code: str


def run_suite(folder: Path, workloads: Iterable[str], *arguments: str) -> tuple[str, Results]:
    """Record a suite of ``FAULT-VARIANT-PASS``, then run it with its faults; return what the second run said, and its results.

    `arguments`: of the second run.
    """
    files = {"model.py": MODEL, "conftest.py": CONFTEST, "test_all.py": TESTS, "pytest.ini": "[pytest]\n"}
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    environment = {**os.environ, "CAUSES": " ".join(workloads), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "pytest", "-p", "kernelgauge.plugin", "-q"]

    def run(*more: str, **faulty: str) -> str:
        ran = subprocess.run(
            [*command, *more], cwd=folder, env=environment | faulty, capture_output=True, text=True, check=False
        )
        return ran.stdout + ran.stderr

    recorded = run("--perf-update=force", "-o", "kernelgauge_replicates=2")
    assert "failed" not in recorded.splitlines()[-1], recorded
    said = run(*arguments, FAULTY="1")
    file = folder / "reports" / "latest" / "results.json"
    return said, decode_results(file.read_bytes(), where=str(file))


def failure(results: Results, workload: str) -> Failure:
    """Return what the first failing verdict names; ``FAULT-VARIANT-PASS`` is the workload."""
    fault, variant, pass_ = workload.split("-")
    start = f"{fault}-{variant}-" + ("train-" if pass_ == "train" else "")
    (result,) = (
        each for each in results.workloads if each.id.startswith(start) and ("train" in each.id) is (pass_ == "train")
    )
    verdicts = [verdict for verdict in result.verdicts if verdict.status.fails]
    named = [(reason.label, reason.text) for verdict in verdicts for reason in verdict.reasons]
    first = dict(reversed(named))
    return Failure(first.get("cause", "").partition("\n")[0], first.get("code", "").partition("\n")[0])


def longest_failure(said: str) -> list[str]:
    """Return the longest failure of a verdict that pytest printed, with what it captured below."""
    blocks = (each.strip().splitlines() for each in re.split(r"(?m)^_{3,} .* _{3,}$|^={3,} .*={3,}$", said))
    return max((block for block in blocks if block and ": REGRESSED " in block[0]), key=len)


def line_of(code: str) -> str:
    """Return ``model.py:17`` for the first line of the model that starts with this."""
    lines = [line.strip() for line in MODEL.splitlines()]
    return f"model.py:{1 + next(index for index, line in enumerate(lines) if line.startswith(code))}"
