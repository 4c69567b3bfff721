"""On a GPU: a ratio without a baseline, a Triton kernel in one line, and a random result of compiled code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.plugin.inner_project import VERDICT, junit_cases

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

KERNEL = """
import torch
import triton
import triton.language as tl

@triton.jit
def _double(x, y, size, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, 2 * tl.load(x + at, mask=at < size), mask=at < size)

def double(x):
    y = torch.empty_like(x)
    _double[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), BLOCK=1024)
    return y

def slow(x):
    return double(x + 0)
"""
SUITE = """
from dataclasses import replace
import torch
from torch import nn
from kernelgauge import Workload
from my_kernels import double, slow

def inputs():
    return (torch.randn(1024, 1024),)

def pytest_kernelgauge_workloads():
    x = torch.randn(4096, 4096, dtype=torch.bfloat16)
    return [
        replace(Workload.from_callable(double, x), module="double", variant="good", faster_than="slow", by=0.3),
        replace(Workload.from_callable(slow, x), module="double", variant="slow", faster_than="good"),
        Workload("dropout", "compiled", lambda: nn.Dropout(0.5), inputs, dtype="fp32", compile={}),
    ]
"""


@pytest.mark.timeout(300)
def test_slower_variant_fails_its_ratio_and_the_faster_passes(tmp_path: Path) -> None:
    for name, text in (
        ("my_kernels", KERNEL),
        ("conftest", SUITE),
        ("test_perf", "from kernelgauge.standard import *\n"),
    ):
        (tmp_path / f"{name}.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-p", "kernelgauge.plugin", "--perf-device=cuda", "--junitxml=junit.xml"]
    done = subprocess.run([*command, "-m", "not structure"], cwd=tmp_path, capture_output=True, text=True, check=False)
    cases = {(case.name, case.parameters): case for case in junit_cases(tmp_path / "junit.xml")}
    ratio, numerics = "test_faster_than_other_variant", "test_result_matches_float64"
    assert cases[ratio, "double-good-4096x4096"].properties[VERDICT] == "PASS", done.stdout
    assert cases[ratio, "double-slow-4096x4096"].properties[VERDICT] == "REGRESSED", done.stdout
    assert cases[numerics, "double-good-4096x4096"].properties[VERDICT] == "PASS", done.stdout
    assert cases[numerics, "dropout-compiled-fp32"].properties[VERDICT] == "NOT_JUDGED", done.stdout
