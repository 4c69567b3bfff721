"""Each kernel leads to the module and the line that asked for it: eager and compiled code, forward and backward."""

from __future__ import annotations

import inspect
import linecache
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._functorch.config as functorch
import torch._inductor.config as inductor
import torch.nn.functional as F
from msgspec.structs import replace
from torch import nn
from torch.overrides import _get_current_function_mode

from kernelgauge.measure.device.cpu import CpuDevice
from kernelgauge.run import Origin, Run, SourceLine, common_path
from tests.measure.conftest import measured, tiny

SOURCE = Path(__file__).read_text(encoding="utf-8").splitlines()


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(8, 16, bias=False), nn.Linear(8, 16, bias=False)
        self.down = nn.Linear(16, 8, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        g = F.silu(self.gate(x))
        h = g * self.up(x)
        return self.down(h)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Gated(), Gated()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return x


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8, bias=False)
        self.second = self.first

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x))


def ran(cpu: CpuDevice, build: Callable[[], Any], **changes: Any) -> Run:
    inputs = lambda: (torch.randn(4, 8, requires_grad=True),)  # noqa: E731
    return measured(cpu, tiny(build=build, inputs=inputs, **changes)).run


def places(run: Run) -> list[tuple[str, str, str]]:
    """Name, module and code of each kernel; the code as it stands in this file, at the line that is given."""
    found = []
    for kernel, origin in zip(run.kernels, run.origins, strict=True):
        assert origin is not None, kernel
        codes = []
        for line in origin.lines:
            if line.file.startswith("tests"):
                assert SOURCE[line.line - 1].strip() == line.code
            codes.append(line.code)
        found.append((kernel.identity.name, origin.module, " | ".join(codes)))
    return found


LINES = ("g = F.silu(self.gate(x))", "h = g * self.up(x)", "return self.down(h)", "x = x + layer(x)")


def test_eager_kernel_has_its_line_and_module(cpu: CpuDevice) -> None:
    """An operator is no call in Python: its line is not that of the call around it."""
    expected = []
    for layer in ("layers.0", "layers.1"):
        expected += [
            ("aten::mm", f"{layer}.gate", LINES[0]),
            ("aten::silu", layer, LINES[0]),
            ("aten::mm", f"{layer}.up", LINES[1]),
            ("aten::mul", layer, LINES[1]),
            ("aten::mm", f"{layer}.down", LINES[2]),
            ("aten::add", "Net", LINES[3]),
        ]
    assert places(ran(cpu, Net)) == expected


def test_kernel_of_the_backward_pass_has_the_line_of_the_forward_op(cpu: CpuDevice) -> None:
    run = ran(cpu, Net, pass_="train")
    found = places(run)
    backward = [origin is not None and origin.is_backward for origin in run.origins]
    assert backward[:14] == [False] * 14  # the forward pass, and the loss with its gradient
    assert found[12][1:] == ("Net", "def total_of(output: Any) -> torch.Tensor:")
    assert all(backward[14:])
    assert [each for each in found if each[0] == "aten::silu_backward"] == [
        ("aten::silu_backward", f"layers.{layer}", LINES[0]) for layer in (1, 0)
    ]


@pytest.fixture
def no_cache() -> Iterator[None]:
    """No graph is that of an earlier version of this file."""
    with inductor.patch(fx_graph_cache=False), functorch.patch(enable_autograd_cache=False):
        yield


@pytest.mark.usefixtures("no_cache")
@pytest.mark.parametrize("pass_", ["forward", "train"])
def test_compiled_kernel_has_the_lines_that_were_fused(cpu: CpuDevice, pass_: str) -> None:
    found = places(ran(cpu, Net, compile={}, pass_=pass_))
    fused = [each for each in found if "silu" in each[0] and "backward" not in each[0]]
    assert fused
    for _, module, code in fused:
        assert module == "layers.*"  # both layers are the same code
        assert set(code.split(" | ")) >= set(LINES[:2])
    assert {*LINES[2:]} & {line for _, _, code in found for line in code.split(" | ")}


MOVED = """\
import torch
from torch import nn

class Scaled(nn.Module):
    def forward(self, x):
        return x.sin() * 3.25

def build():
    return Scaled()
"""
LINE = "        return x.sin() * 3.25\n"


def test_line_of_a_cached_graph_is_where_the_code_stands_now(
    cpu: CpuDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inductor's cache finds a graph by what it computes: its lines may be those of an older file, or of another folder."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    found = []
    for folder, above in (
        ("one", ""),
        ("one", "# moved\n\n"),
        ("two", ""),
        ("one", f"# moved again\nSAME = '''\n{LINE}'''\n"),
    ):
        file = tmp_path / folder / "scaled.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text(above + MOVED, encoding="utf-8")
        monkeypatch.chdir(file.parent)
        linecache.checkcache()
        namespace: dict[str, Any] = {"__name__": "scaled"}
        exec(compile(file.read_text(encoding="utf-8"), str(file), "exec"), namespace)
        found.append(ran(cpu, namespace["build"], compile={}).origins)
    line = SourceLine("scaled.py", 6, LINE.strip())
    moved = (Origin("Scaled", (replace(line, line=8),)),)
    assert found == [(Origin("Scaled", (line,)),), moved, (Origin("Scaled", (line,)),), (None,)]


@pytest.mark.usefixtures("no_cache")
def test_graphs_after_a_break_have_lines(cpu: CpuDevice) -> None:
    class Broken(Gated):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.gate(x)
            torch._dynamo.graph_break()
            return y.cos()

    found = places(ran(cpu, Broken, compile={}, graph_breaks=1))
    assert [code for name, _, code in found if "cos" in name] == ["return y.cos()"]


def test_module_with_two_names_has_both(cpu: CpuDevice) -> None:
    assert [module for _, module, _ in places(ran(cpu, Twice))] == ["first = second"] * 2


def test_module_of_torch_alone_has_its_line(cpu: CpuDevice) -> None:
    (origin,) = ran(cpu, lambda: nn.Linear(8, 4, bias=False)).origins
    assert origin is not None
    assert (origin.module, origin.lines[0].file) == ("Linear", "torch/nn/modules/linear.py")
    assert origin.lines[0].code.startswith("return F.linear(")


def test_function_has_a_line_and_no_module(cpu: CpuDevice) -> None:
    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x * 2.0

    assert places(ran(cpu, lambda: scaled)) == [("aten::mul", "", "return x * 2.0")]


@pytest.mark.parametrize(("differs", "known"), [("__torch_function__", True), ("origins_of", False)])
def test_call_that_launches_something_else_has_no_origins(cpu: CpuDevice, differs: str, known: bool) -> None:
    """The call is made once more for its lines. If that is other work, it is made without what tells an operator's line."""

    def build() -> Callable[[torch.Tensor], torch.Tensor]:
        mode = lambda: _get_current_function_mode() is not None  # noqa: E731
        again = lambda: any(frame.function == "origins_of" for frame in inspect.stack())  # noqa: E731
        is_other = mode if differs == "__torch_function__" else again
        return lambda x: x.cos() if is_other() else x.sin()

    run = ran(cpu, build)
    assert run.kernel_names() == ["aten::sin"]
    assert bool(run.origins) is known


def test_torch_without_the_tree_of_events_has_no_origins(cpu: CpuDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch.profiler.python_tracer

    monkeypatch.delattr(torch.profiler.python_tracer, "_prefix_regex")
    run = ran(cpu, Net)
    assert run.kernels
    assert run.origins == ()


@pytest.mark.parametrize(
    ("paths", "common"),
    [
        (["mlp"], "mlp"),
        (["layers.0.mlp", "layers.1.mlp"], "layers.*.mlp"),
        (["layers.0.norm1", "layers.1.norm2"], "layers.*.{norm1,norm2}"),
        (["a", "b", "c", "d"], "*"),
        (["layers.0", "head"], "layers.0, head"),
        (["{a,b}.c", "{a,b}.d"], "{a,b}.c, {a,b}.d"),
        (["{a,b}", "Block"], "{a,b}, Block"),
        (["", "a.b"], ", a.b"),
    ],
)
def test_common_path_of_modules(paths: list[str], common: str) -> None:
    assert common_path(paths) == common
