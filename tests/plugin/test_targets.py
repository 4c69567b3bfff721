"""Triton kernels that a test compiles for a GPU by its name: for real, without a GPU."""

import re
import sys

import pytest

from kernelgauge.judge.baseline import decode_baseline
from tests.commands.conftest import Command
from tests.plugin.inner_project import Run, text_of

pytest.importorskip("triton")
pytestmark = pytest.mark.timeout(300)

KERNELS = """
import os
import pytest, torch, triton
import triton.language as tl

IS_NEW = "NEW" in os.environ
x = torch.empty(4096, 4096, dtype=torch.bfloat16, device="meta")

@triton.jit
def scale(x, y, n, FACTOR: tl.constexpr, SIZE: tl.constexpr):
    place = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.store(y + place, tl.load(x + place, mask=place < n) * FACTOR, mask=place < n)

@triton.jit
def softmax(x, y, columns, SIZE: tl.constexpr):
    place = tl.program_id(0) * columns + tl.arange(0, SIZE)
    value = tl.exp(tl.load(x + place).to(tl.float32) - 1)
    tl.store(y + place, value / tl.sum(value, 0))

choices = [triton.Config({"SIZE": size}, num_warps=warps) for size, warps in ((1024, 4), (2048, 8))]
tuned = triton.autotune(choices, key=["n"])(scale)

def change(x):
    y = torch.empty_like(x)
    scale[triton.cdiv(x.numel(), 1024),](x, y, x.numel(), FACTOR=3 if IS_NEW else 2, SIZE=1024)
    tuned[lambda chosen: (triton.cdiv(x.numel(), chosen["SIZE"]),)](x, y, x.numel(), FACTOR=2)

@triton.jit
def product(x, y, SIZE: tl.constexpr):
    place = tl.arange(0, SIZE)[:, None] * SIZE + tl.arange(0, SIZE)
    tl.store(y + place, tl.dot(tl.load(x + place), tl.load(y + place)).to(tl.bfloat16))

ones = torch.ones(4, 4)

@pytest.mark.parametrize("target", ["sm_90", "sm_100", "gfx942"])
def test_product(kernelgauge, target):
    sums = []

    def call():
        sums.append((ones @ ones).sum())
        for _ in "ab":
            product[1,](x, x, SIZE=64)

    kernel, again = kernelgauge.using(target=target)(call).kernels
    assert kernel == again
    assert sum(sums) == 0  # a large product takes a CPU without fast bf16 hours
    resources = kernel.resources
    assert min(resources.tensor_core_instructions, resources.memory_instructions) > 0
    assert (resources.conversions > 0) is target.startswith("sm")  # gfx942 has none to bf16

@pytest.mark.kernelgauge(target="sm_90")
def test_harmless(kernelgauge):
    run = kernelgauge(change, x)
    assert [kernel.identity.grid[0] for kernel in run.kernels] == [16384, 16384, 8192]
    assert [kernel.resources.is_tuned for kernel in run.kernels] == [False, True, True]
    assert triton.runtime.driver._active is None  # nothing is left behind

def rows(x, **options):
    y = torch.empty_like(x)
    softmax[len(x),](x, y, 4096, SIZE=4096, **options)

@pytest.mark.kernelgauge(target="sm_90")
@pytest.mark.parametrize("warps", [1, 2])
def test_rows(kernelgauge, warps):  # one warp has 128 values in each thread
    limit = {"maxnreg": 64} if IS_NEW and warps == 1 else {}
    kernelgauge(rows, x, num_warps=warps, **limit)

@pytest.mark.kernelgauge(target="sm_100")
def test_occupancy(kernelgauge):
    kernelgauge(rows, x, num_warps=4, **({} if IS_NEW else {"maxnreg": 32}))
"""
WRONG = """
import pytest, sys, torch
from test_kernels import product, rows, x

@pytest.mark.parametrize("target", ["sm_90", "H100"])
def test_name(kernelgauge, target):
    kernelgauge.using(target=target)(torch.relu, torch.randn(4))

@pytest.mark.kernelgauge(target="sm_90")
def test_shared(kernelgauge):
    kernelgauge(lambda: product[1,](x, x, SIZE=256, num_warps=8))

@pytest.mark.kernelgauge(target="sm_90")
def test_missing(kernelgauge, monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    kernelgauge(rows, x)
"""
CHOICES = """
import json, os
import pytest, torch, triton
import triton.language as tl

MOST = tl.constexpr(int(os.environ["MOST"]))
x = torch.empty(4096, device="meta")

@triton.jit
def double(x, SIZE: tl.constexpr):
    tl.static_assert(SIZE <= MOST, "too large")
    tl.store(x + tl.arange(0, SIZE), tl.load(x + tl.arange(0, SIZE)) * 2)

choices = [triton.Config({"SIZE": size}) for size in json.loads(os.environ["SIZES"])]
tuned = triton.autotune(choices, key=[])(double)

@pytest.mark.kernelgauge(target="sm_90")
def test_double(kernelgauge):
    kernelgauge(lambda: tuned[1,](x))
"""


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run pytest on one of the two files: its output without line breaks."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(pytester.path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")
    pytester.makeini("[pytest]\npythonpath = .\n")
    pytester.makepyfile(test_kernels=KERNELS, test_wrong=WRONG, test_choices=CHOICES)

    def call(*arguments: str, code: int) -> str:
        result = pytester.runpytest_inprocess(*arguments)
        assert result.ret == code, text_of(result)
        return " ".join(text_of(result).split())

    return call


def test_kernels_are_compared_with_those_of_the_target(
    run: Run, pytester: pytest.Pytester, kernelgauge: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = pytester.path
    run("--perf-update", "test_kernels.py", code=0)  # a path stands where it may
    files = {
        (path.parent.name, path.stem.partition("test_")[2]): path
        for path in folder.glob("baselines/*/*.json")
    }
    assert sorted(files) == [
        ("compiled-for-gfx942", "kernels-test_product-gfx942"),
        *(
            ("compiled-for-sm-100", f"kernels-test_{name}")
            for name in ("occupancy", "product-sm_100")
        ),
        *(
            ("compiled-for-sm-90", f"kernels-test_{name}")
            for name in ("harmless", "product-sm_90", "rows-1", "rows-2")
        ),
    ]
    for file in files.values():
        (entry,) = decode_baseline(file.read_bytes(), where=str(file), workload=file.stem).entries
        assert all(
            each.resources and each.resources.code and each.resources.registers
            for each in entry.kernels
        )
        assert [each.host for each in entry.processes] == [None]  # it holds for every machine
    assert "7 passed" in run("test_kernels.py", "--perf-strict", code=0)
    monkeypatch.setenv("NEW", "1")
    out = run("test_kernels.py", "-v", code=1)
    assert "2 failed, 5 passed" in out
    assert "test_kernels-test_rows-1: CHANGED same kernels, other compiled code" in out
    assert re.search(r"spilled words 0 -> [1-9]\d*.*maxnreg \(none\) -> 64", out)
    assert re.search(
        r"test_kernels-test_occupancy: CHANGED.*compiled otherwise: softmax registers 32 -> .*occupancy",
        out,
    )
    code, out, _ = kernelgauge("review")
    changed = "other instructions: 1 kernel in 1 workload scale (test_kernels-test_harmless) FACTOR 2 -> 3"
    assert (code, changed in " ".join(out.split())) == (1, True)
    code, out, _ = kernelgauge("accept")
    assert (code, "3 written" in out) == (0, True)
    assert "7 passed" in run("test_kernels.py", "--perf-strict", code=0)


def test_wrong_targets_say_what_is_missing(run: Run) -> None:
    out = run("test_wrong.py", "-rs", "-v", code=1)
    assert "3 failed, 1 skipped" in out
    assert (
        "test_wrong-test_name-sm_90: it launches no Triton kernel expected a call of kernel[grid](...)"
        in out
    )
    assert "unknown target got 'H100' expected sm_90, sm_100, gfx942" in out
    assert "compiling for sm_90 failed" in out
    assert "out of resource: shared memory, Required: 262144, Hardware limit: 232448" in out
    assert "test_wrong-test_missing: Triton compiles for sm_90, and is not installed" in out


def test_choices_that_do_not_compile_are_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    some = "double: {} of {} configurations compile"
    wrong = " (CompileTimeAssertionFailure: too large); SIZE={},num_stages=3,num_warps=4 does not"
    gone = "; SIZE=64,num_stages=3,num_warps=4 is not offered by its code"
    for most, sizes, option, code, words in (
        ("64", "[32, 64, 128]", "-v", 1, (some + wrong).format(2, 3, 128)),
        ("64", "[32, 64, 128]", "--perf-update", 0, (some + wrong).format(2, 3, 128)),
        ("64", "[32, 64, 128]", "-v", 0, ""),  # the baseline has it so
        ("32", "[32, 64, 128]", "-v", 1, (some + wrong).format(1, 3, 64)),
        ("64", "[32]", "-v", 1, (some + gone).format(1, 1)),
    ):
        monkeypatch.setenv("MOST", most)
        monkeypatch.setenv("SIZES", sizes)
        monkeypatch.delitem(sys.modules, "test_choices", raising=False)
        out = run(option, "test_choices.py", code=code)
        assert ("configurations compile" in out) is bool(words)
        assert words in out
