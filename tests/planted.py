"""A suite with a fault planted in each workload, and what its failures say of it."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from kernelgauge.report import findings
from kernelgauge.results import Results, read_results

# Calls of tests that lose something, if the environment says so: on a CPU and on a GPU.
LOSING = """
import os
import pytest, torch
from torch import nn

LOST = "LOST" in os.environ
pytestmark = pytest.mark.kernelgauge(timing=False)
kept = []

def square(size=64):
    return torch.rand(size, size)

def test_sparse(kernelgauge):
    kernelgauge(torch.mm, (square() > (0.5 if LOST else 0.99)).float().to_sparse_csr(), square())

def test_found(kernelgauge):
    kernelgauge(lambda x: x.nonzero(), square() > (0.5 if LOST else 0.99))

def test_kept(kernelgauge):
    kernelgauge(lambda x: (kept.append(bytearray(20_000 if LOST else 0)), x.relu())[1], square())
"""
MODEL = """\
import itertools
import os
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

FAULTY = "FAULTY" in os.environ
BUILT = itertools.count()

class CastBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.double().to(gradient.dtype)

if torch.cuda.is_available():
    import triton
    import triton.language as tl

    @triton.jit
    def squash_kernel(x, y, count, SIZE: tl.constexpr):
        places = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
        value = tl.load(x + places, mask=places < count)
        tl.store(y + places, value * 0.5, mask=places < count)

@torch.library.custom_op("planted::squash", mutates_args=())
def squash(x: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x)
    squash_kernel[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), SIZE=1024)
    return y

@squash.register_fake
def _(x):
    return torch.empty_like(x)

def scale_output(module, inputs, output):
    return output * 1.5

class RMSNorm(nn.Module):
    def __init__(self, dim, fault):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.fault = fault

    def forward(self, x):
        if self.fault != "fp32_norm":
            return F.rms_norm(x, x.shape[-1:], self.weight)
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)
        return y.to(x.dtype) * self.weight

class Attention(nn.Module):
    def __init__(self, dim, heads, fault):
        super().__init__()
        self.heads, self.fault = heads, fault
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        b, s, d = x.shape
        q, k, v = self.qkv(x).view(b, s, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        with sdpa_kernel(SDPBackend.MATH) if self.fault == "math_attention" else nullcontext():
            y = F.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).reshape(b, s, d))

class SwiGLU(nn.Module):
    def __init__(self, dim, hidden, fault):
        super().__init__()
        self.fault = fault
        self.tag = str(next(BUILT))
        self.gate, self.up = (nn.Linear(dim, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, dim, bias=False)
        if fault == "hook":
            self.up.register_forward_hook(scale_output)

    def forward(self, x):
        u = self.up(x)
        if self.fault == "cast_backward":
            u = CastBackward.apply(u)
        if self.fault == "custom_op":
            u = squash(u)
        if self.fault == "grad":
            u = torch.func.grad(lambda row: row.sin().sum())(u)
        if self.fault == "clone":
            u = u.clone()
        if self.fault == "item":
            u[0, 0, 0].item()
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
        h = F.silu(g) * u
        if self.fault == "more_work":
            h = h * torch.sigmoid(h)
        if self.fault == "error":
            h = h.view(-1, 3, 7)
        return self.down(h)

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
from model import FAULTY, Block

ON_GPU = torch.cuda.is_available()
COMPILE = {"compiled": {}, "captured": {"backend": "eager"}}  # by Dynamo alone
DIM, HEADS, HIDDEN, BATCH, TOKENS = (1024, 16, 2816, 8, 512) if ON_GPU else (32, 2, 64, 2, 8)

def workload(fault, variant, pass_):
    return Workload(
        fault,
        variant,
        build=lambda: Block(DIM, HEADS, HIDDEN, fault),
        inputs=lambda: (torch.randn(BATCH, TOKENS, DIM),),
        dtype="bf16" if ON_GPU else "fp32",
        compile=None if variant == "eager" else COMPILE[variant] | {"dynamic": True if fault == "dynamic" and FAULTY else None},
        pass_=pass_,
    )

def pytest_kernelgauge_workloads():
    return [workload(*each.split("-")) for each in os.environ["CAUSES"].split()]
"""


class Failure(NamedTuple):
    """What the first failing verdict of a workload names first."""

    cause: str
    code: str


def run_pytest(folder: Path, *arguments: str, **variables: str) -> str:
    """Run pytest in a process of its own; return its output."""
    command = [sys.executable, "-m", "pytest", "-p", "kernelgauge.plugin", *arguments]
    own = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **variables}
    ran = subprocess.run(command, cwd=folder, env=own, capture_output=True, text=True, check=False)
    return ran.stdout + ran.stderr


def run_suite(
    folder: Path,
    workloads: Sequence[str],
    *arguments: str,
    run_pytest: Callable[..., str] = run_pytest,
) -> tuple[str, Results]:
    """Record each ``FAULT-VARIANT-PASS`` without its fault, then run it with the fault.

    Return the output and the results of the second run, which has these arguments.

    Without faults all are the same code: one of each variant and pass is recorded, for all of them.
    """
    tests = "from kernelgauge.standard import *\n"
    files = {
        "model.py": MODEL,
        "conftest.py": CONFTEST,
        "test_all.py": tests,
        "pytest.ini": "[pytest]\n",
    }
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")

    def run(chosen: Iterable[str], *more: str, **faulty: str) -> str:
        return run_pytest(
            folder, "-q", "-o", "kernelgauge_replicates=2", *more, CAUSES=" ".join(chosen), **faulty
        )

    parts = [each.partition("-") for each in workloads]
    first = {kind: fault for fault, _, kind in parts}
    recorded = run(
        (f"{fault}-{kind}" for kind, fault in first.items()),
        "-k",
        "not float64",
        "--perf-update=force",
    )
    assert "failed" not in recorded.splitlines()[-1], recorded
    for fault, _, kind in parts:
        # A dtype follows, so that "eager" is not "eager-train".
        pattern = f"*/{first[kind]}-{kind.removesuffix('-forward')}-[bf]*.json"
        for file in (folder / "baselines").glob(pattern):
            text = file.read_text(encoding="utf-8").replace(f"{first[kind]}-", f"{fault}-")
            file.with_name(file.name.replace(first[kind], fault, 1)).write_text(
                text, encoding="utf-8"
            )
    printed = run(workloads, "-k", "not latency and not float64", *arguments, FAULTY="1")
    return printed, read_results(folder / "reports" / "latest" / "results.json")


def failure(results: Results, workload: str) -> Failure:
    """Return what the first failing verdict names; ``FAULT-VARIANT-PASS`` is the workload."""
    (result,) = (
        each
        for each in results.workloads
        if f"{each.module}-{each.variant}-{each.pass_}" == workload
    )
    verdicts = [verdict for verdict in result.verdicts if verdict.status.fails]
    named = [
        (reason.label, reason.text) for verdict in verdicts for reason in findings.reasons(verdict)
    ]
    first = dict(reversed(named))
    return Failure(
        first.get("cause", "").partition("\n")[0], first.get("code", "").partition("\n")[0]
    )


def line_of(code: str) -> str:
    """Return ``model.py:17`` for the first line of the model that starts with this."""
    return f"model.py:{next(n for n, line in enumerate(MODEL.splitlines(), 1) if line.strip().startswith(code))}"
