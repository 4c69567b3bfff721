"""What structure sees on a GPU without a clock: the allocator, CUDA graphs, what an op is given,
and what a call keeps.
"""

from pathlib import Path

import pytest
import torch

from kernelgauge.judge import Status
from kernelgauge.results import read_results
from tests.planted import LOSING, run_pytest

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

OPS = (
    LOSING
    + """
def test_same(kernelgauge):
    kernelgauge(nn.Sequential(nn.Linear(64, 64), nn.GELU()), square())

def test_empty_cache(kernelgauge):
    def call(x):
        y = x.relu()
        if LOST:
            torch.cuda.empty_cache()
        return y + x.sin()
    kernelgauge(call, square(4096))

def test_pinned(kernelgauge):
    def call(x):
        if LOST:
            kept.append(torch.empty(1 << 20, pin_memory=True))
        return x.relu()
    kernelgauge(call, square())

def test_graph(kernelgauge):
    mode = "default" if LOST else "reduce-overhead"
    kernelgauge.using(compile={"mode": mode})(nn.Sequential(nn.Linear(64, 64), nn.GELU()), square())

def test_pow(kernelgauge):
    kernelgauge(lambda x: x.pow(2.3 if LOST else 2.2), square())

def test_strides(kernelgauge):
    kernelgauge(lambda x, y: torch.add(x, y.t() if LOST else y), square(), square())

def test_on_host(kernelgauge):
    def call(x):
        copy = x.cpu()
        if LOST:
            kept.append(copy)
        return x.relu()
    kernelgauge(call, square())
"""
)
# What the failure says, and the code of its line.
CAUSES = {
    "empty_cache": ("each call allocates or frees memory ", "torch.cuda.empty_cache()"),
    "pinned": ("each call allocates or frees memory ", "kept.append(torch.empty("),
    "graph": ("no CUDA graph any more", ""),
    "pow": ("exponent 2.2 -> 2.3 in 1 kernel", "x.pow(2.3 if LOST"),
    "strides": ("inputs contiguous -> [64,64] by strides 1,64", "x, y.t() if LOST"),
    "sparse": (" stored numbers in 1 kernel", ""),
    "found": (" numbers found in 1 kernel", ""),
    "kept": ("each call leaves 20.", "kept.append(bytearray("),
    "on_host": ("each call leaves 16.", "kept.append(copy)"),
}


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Record the calls, run them again, and run them with what each of them loses; return the last
    output.
    """
    folder: Path = tmp_path_factory.mktemp("structure")
    (folder / "test_ops.py").write_text(OPS)
    recorded = run_pytest(folder, "-q", "--perf-update")
    unchanged = run_pytest(folder, "-q")
    found = read_results(folder / "reports" / "latest" / "results.json")
    assert {each.status for each in found.workloads} == {Status.PASS}, recorded + unchanged
    return run_pytest(folder, "-q", LOST="1")


@pytest.mark.parametrize("name", CAUSES)
def test_structure_on_a_gpu_names_what_was_lost(said: str, name: str) -> None:
    cause, code = CAUSES[name]
    block = said[said.index(f"\ntest_ops-test_{name}: ") :].split("\n  baseline ", 1)[0]
    assert cause in block
    assert code in block


def test_structure_on_a_gpu_is_unchanged_where_nothing_was_lost(said: str) -> None:
    assert "\ntest_ops-test_same: " not in said
