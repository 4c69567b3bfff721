"""Adaptors find what other projects' benchmarks time: small imitations of them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from adaptors import perf_report, tritonbench
from kernelgauge import Workload, WorkloadError
from kernelgauge.adaptors import liger
from kernelgauge.measure.device import Device
from kernelgauge.measure.latency import Rounds
from kernelgauge.measure.numerics import NotComparedError, compare_with_float64
from kernelgauge.measure.subject import Measured
from tests.measure.conftest import results_of

triton_testing = pytest.importorskip("triton.testing")

REPORT = """
import torch
import triton
import triton.testing
from triton.testing import do_bench as timed

@triton.testing.perf_report([
    triton.testing.Benchmark(
        x_names=["rows", "columns"], x_vals=[64, (32, 16)], line_arg="provider", line_vals=["torch", "by hand"],
        line_names=["Torch", "By hand"], plot_name=f"softmax ({mode})", args={"mode": mode},
    )
    for mode in ("forward", "backward")
])
def benchmark(rows, columns, provider, mode):
    x = torch.randn(rows, columns, requires_grad=True)
    function = torch.softmax if provider == "torch" else lambda x, dim: x.exp() / x.exp().sum(dim, keepdim=True)
    if mode == "forward":
        try:
            return timed(lambda: function(x, -1), quantiles=[0.5])
        except Exception:
            return 0.0
    y = function(x, -1)

    def backward():
        assert x.grad is None
        y.backward(y.detach(), retain_graph=True)

    return triton.testing.do_bench(backward, grad_to_none=[x], rep=5)

benchmark.run(print_data=True)
"""
LIGER = """
from sizes import SingleBenchmarkRunInput
import torch

def setup_scale(input: SingleBenchmarkRunInput):
    cfg = input.extra_benchmark_config
    rows = input.x if isinstance(input.x, int) else cfg["rows"]
    x = torch.randn(rows, cfg["hidden_size"], requires_grad=True)
    layer = torch.nn.Linear(cfg["hidden_size"], cfg["hidden_size"])
    return x, layer if input.kernel_provider == "liger" else torch.nn.Sequential(layer, torch.nn.ReLU())
"""
SIZES = "from types import SimpleNamespace as SingleBenchmarkRunInput"


class Operator:
    """An operator of tritonbench, which doubles tensors of three sizes."""

    def __init__(self, arguments: argparse.Namespace, _: list[str]) -> None:
        self.backward, self.sizes = arguments.bwd, iter((8, 16, 32))

    def get_example_inputs(self) -> tuple[torch.Tensor]:
        return (torch.randn(next(self.sizes), requires_grad=True),)

    def _get_bm_func(self, name: str) -> Callable[[], Any]:
        def double() -> torch.Tensor:
            (x,) = self.example_inputs
            return x * 2 if name == "aten" else x + x

        y = double()
        return (lambda: y.backward(torch.ones_like(y), retain_graph=True)) if self.backward else double


def get_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    parser.add_argument("--op")
    parser.add_argument("--bwd", action="store_true")
    return parser


ENABLED = {"aten": True, "never": False, "by_add": True}
BENCHMARKS = {"double": {name: SimpleNamespace(enabled=is_enabled) for name, is_enabled in ENABLED.items()}}
TRITONBENCH = {
    "operators": {"load_opbench_by_name": {"double": Operator}.__getitem__},
    "utils.parser": {"get_parser": get_parser},
    "utils.triton_op": {"REGISTERED_BENCHMARKS": BENCHMARKS},
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with two scripts of benchmarks, and let the imitation of tritonbench be imported."""
    for name, text in {"report.py": REPORT, "benchmark_scale.py": LIGER, "sizes.py": SIZES}.items():
        (tmp_path / name).write_text(text)
    monkeypatch.delitem(sys.modules, "sizes", raising=False)
    for name, content in TRITONBENCH.items():
        monkeypatch.setitem(sys.modules, f"tritonbench.{name}", SimpleNamespace(**content))
    return tmp_path


def called(workload: Workload) -> Any:
    """Build a workload and call it as a forward pass is."""
    module = workload.build()
    with torch.no_grad():
        return module(*workload.inputs())


def test_report_gives_what_do_bench_would_time(folder: Path) -> None:
    workloads = {each.id: each for each in perf_report(folder / "report.py")}
    lines = [f"{line}-{shape}" for shape in ("64x64", "32x16") for line in ("torch", "by-hand")]
    assert list(workloads) == [f"softmax-{mode}-{each}" for mode in ("forward", "backward") for each in lines]
    before = triton_testing.do_bench
    torch.manual_seed(0)
    one, other = (called(workloads["softmax-forward-torch-32x16"]) for _ in range(2))
    assert one.sum(-1).allclose(torch.ones(32))
    assert not torch.equal(one, other)  # fresh tensors
    function = workloads["softmax-backward-by-hand-32x16"].build()
    with torch.no_grad():
        function()
        function()  # asserts that it starts without a gradient
    assert triton_testing.do_bench is before


def test_script_without_a_benchmark_is_an_error(tmp_path: Path) -> None:
    plot = triton_testing.Benchmark(["n"], [1], "provider", ["torch"], ["Torch"], "empty", {})
    (workload,) = perf_report(triton_testing.perf_report(plot)(lambda n, provider: n))
    with pytest.raises(WorkloadError, match="never called do_bench"):
        workload.build()
    for find in (perf_report, lambda path: liger(path, 64, provider="liger", config={})):
        with pytest.raises(WorkloadError, match="no such benchmark"):
            find(tmp_path / "none.py")


@pytest.mark.parametrize(
    ("x", "name", "rows"), [(64, "scale-liger-train-64", 64), ("llama", "scale-llama-liger-train", 8)]
)
def test_liger_script_gives_layer_and_input(folder: Path, x: Any, name: str, rows: int) -> None:
    config = {"hidden_size": 16, "rows": 8}
    workload = liger(folder / "benchmark_scale.py", x, provider="liger", config=config, pass_="train")
    assert workload.id == name
    assert isinstance(workload.build(), torch.nn.Linear)
    (value,) = workload.inputs()
    assert (value.shape, value.requires_grad) == ((rows, 16), True)


def test_tritonbench_gives_enabled_implementations(folder: Path) -> None:
    workloads = tritonbench("double", inputs=(0, 2))
    assert [each.id for each in workloads] == ["double-aten-0", "double-by_add-0", "double-aten-2", "double-by_add-2"]
    assert [len(called(each)) for each in workloads] == [8, 8, 32, 32]
    assert called(tritonbench("double", "--bwd")[0]) is None


def test_workloads_of_adaptors_are_measured(folder: Path) -> None:
    scale = liger(folder / "benchmark_scale.py", 64, provider="liger", config={"hidden_size": 16}, pass_="train")
    others = [*perf_report(folder / "report.py")[3::4], tritonbench("double")[0]]
    cpu = Device()
    assert {type(each) for each in results_of(cpu, scale, *others).values()} == {Measured}
    for each in (scale, *others):
        Rounds(each, cpu, replicates=1, iterations=1).time()
    assert all(error.within_bound for error in compare_with_float64(scale, cpu, seed=1))
    for each in others:
        with pytest.raises(NotComparedError):
            compare_with_float64(each, cpu, seed=1)
