"""A test that compares two implementations, by the GPU's clock."""

import pytest
import torch

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
    pytest.mark.timeout(600),
]

CODE = """
import copy
import pytest, torch
from torch import nn

def steps(x):
    return ((x.sin() * 2 + 1).relu() * 3 - x).exp()

def in_two(x):
    return (x * 0.5) + 1

def in_one(x):
    return torch.add(torch.ones((), device=x.device), x, alpha=0.5)

def wrong(x):
    return x * 0.5

@pytest.mark.parametrize("rows", [512, 4096])
def test_compiled(kernelgauge, rows):
    x = torch.randn(rows, 4096)
    run = kernelgauge.using(faster_than=steps, by=0.5)(torch.compile(steps), x)
    assert run.counts.launches == 1

def test_addmm(kernelgauge):
    x, weight, bias = torch.randn(4096, 256), torch.randn(256, 256), torch.randn(256)
    def separate(x, weight, bias):
        return x @ weight + bias
    kernelgauge.using(faster_than=separate)(lambda x, weight, bias: torch.addmm(bias, x, weight), x, weight, bias)

def test_module(kernelgauge):
    net = nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.LayerNorm(256), nn.GELU(), nn.Sigmoid(), nn.Tanh())
    kernelgauge.using(faster_than=net, by=0.05, dtype="bf16")(torch.compile(copy.deepcopy(net)), torch.randn(4096, 256))

def test_slower(kernelgauge):
    kernelgauge.using(faster_than=in_one)(in_two, torch.randn(4096, 4096))

def test_unequal(kernelgauge):
    kernelgauge.using(faster_than=in_two)(wrong, torch.randn(4096, 4096))

def test_as_fast(kernelgauge):
    kernelgauge.using(faster_than=in_two, by=0.05)(lambda x: x * 0.5 + 1, torch.randn(4096, 4096))
"""


def test_gpu_time_decides_which_implementation_is_faster(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_speed=CODE)
    done = pytester.runpytest_subprocess("-p", "kernelgauge.plugin", "-rA", "--perf-device=cuda")
    outcomes = {
        line.split("::")[1].split(" ")[0]: line.split(" ")[0]
        for line in done.outlines
        if "test_speed.py::" in line
    }
    passed = ["test_compiled[512]", "test_compiled[4096]", "test_addmm", "test_module"]
    assert [name for name, outcome in outcomes.items() if outcome == "PASSED"] == passed, (
        done.outlines
    )
    said = "\n".join(done.outlines)
    for each in (
        "test_speed-test_compiled-4096: PASS  50 % faster than steps: GPU time",
        "test_speed-test_slower: REGRESSED  not faster than in_one: GPU time",
        "test_speed-test_unequal: INVALID  result differs from the float64 reference",
        "5 % faster than in_two: GPU time",  # of `test_as_fast`: not, or not known to be
    ):
        assert each in said, said
