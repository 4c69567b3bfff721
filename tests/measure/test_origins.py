"""Each kernel leads to the module and the line that asked for it: eager and compiled code, forward and backward."""

from __future__ import annotations

import functools
import inspect
import itertools
import linecache
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch._functorch.config as functorch
import torch._inductor.config as inductor
import torch.nn.functional as F
from torch import nn
from torch.overrides import _get_current_function_mode
from torch.utils.checkpoint import checkpoint

from kernelgauge.errors import shown_path
from kernelgauge.measure.compiler import (
    _generated,
    compile_counts,
    owner_of,
    reset_compiler,
    stacks_at,
    torch_set_up,
)
from kernelgauge.measure.device import Device
from kernelgauge.measure.instance import build
from kernelgauge.measure.origins import Modules, _Places
from kernelgauge.measure.subject import Subject
from kernelgauge.run import Origin, Run, SourceLine, common_path
from tests.measure.conftest import QUICK, measured, tiny

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


def ran(cpu: Device, build: Callable[[], Any], **changes: Any) -> Run:
    inputs = lambda: (torch.randn(4, 8, requires_grad=True),)  # noqa: E731
    return measured(cpu, tiny(build=build, inputs=inputs, **changes)).run


def places(run: Run) -> list[tuple[str, str, str]]:
    """Name, module and code of each kernel; the code as it stands in this file, at the line that is given."""
    found = []
    for kernel, origin in zip(run.kernels, run.origins, strict=True):
        assert origin is not None, kernel
        for line in (each for each in origin.lines if each.file.startswith("tests")):
            source = SOURCE[line.line - 1].strip()
            assert source == line.code or source.startswith(line.code.replace("in ", "def ", 1))
        found.append((kernel.identity.name, origin.module, " | ".join(line.code for line in origin.lines)))
    return found


LINES = ("g = F.silu(self.gate(x))", "h = g * self.up(x)", "return self.down(h)", "x = x + layer(x)")


def test_eager_kernel_has_its_line_and_module(cpu: Device) -> None:
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
    run = ran(cpu, Net)
    assert places(run) == expected
    assert set(run.op_origins) == {name for name in run.op_names() if "::" in name}
    silus = [(each.module, each.lines[0].code) for each in run.op_origins["aten::silu"]]
    assert silus == [("layers.0", LINES[0]), ("layers.1", LINES[0])]


class Keeps(nn.Module):
    """Keeps what each call computed, as a list of losses does; `most`: how many of them."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most, self.kept = most, list[torch.Tensor]()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.detach().cos()
        self.kept.append(x.detach().sin())
        self.kept.append(torch.cat((y, y)))
        del self.kept[: -self.most]
        return y


@pytest.mark.parametrize(
    ("build", "pass_", "grown"),
    [
        (lambda: Keeps(1000), "forward", (3 * 128, ["torch.cat((y, y))", "x.detach().sin()"])),
        (lambda: Keeps(2), "forward", (0, [])),  # as much is freed as is kept
        (Net, "train", (0, [])),  # gradients replace those of the call before
    ],
    ids=["kept", "replaced", "gradients"],
)
def test_growth_of_memory_has_the_lines_that_asked_for_it(
    cpu: Device, build: Callable[[], nn.Module], pass_: str, grown: tuple[int, list[str]]
) -> None:
    run = ran(cpu, build, pass_=pass_)
    codes = [each.lines[0].code.removeprefix("self.kept.append(")[:-1] for each in run.growth_origins]
    assert (run.counts.grown_bytes, codes) == grown


LIBRARY = """
from torch import nn
class Block(nn.Sequential):
    def forward(self, x):
        return self[0](x)
"""


class Stacked(nn.Module):
    """Calls a block of a library."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.block(x)


@pytest.mark.usefixtures("no_cache")
@pytest.mark.parametrize("compile_", [None, {}], ids=["eager", "compiled"])
def test_kernel_of_a_library_has_its_line(cpu: Device, tmp_path: Path, compile_: dict[str, Any] | None) -> None:
    """The innermost frame is one of `nn.Linear`. Where code of the user calls the library, its line comes first."""
    file = tmp_path / "site-packages" / "blocks.py"
    file.parent.mkdir()
    file.write_text(LIBRARY, encoding="utf-8")
    namespace: dict[str, Any] = {"__name__": "blocks"}
    exec(compile(LIBRARY, str(file), "exec"), namespace)
    block = namespace["Block"](nn.Linear(8, 8))
    (origin,) = ran(cpu, lambda: block, compile=compile_).origins
    assert origin is not None
    inner = SourceLine("blocks.py", 5, "return self[0](x)")
    assert origin.lines == (inner,)
    (origin,) = ran(cpu, lambda: Stacked(block), compile=compile_).origins
    assert origin is not None
    assert [(line.code, line.inner) for line in origin.lines] == [("return self.block(x)", inner)]


def test_kernel_of_the_backward_pass_has_the_line_of_the_forward_op(cpu: Device) -> None:
    run = ran(cpu, Net, pass_="train")
    found = places(run)
    backward = [origin is not None and origin.is_backward for origin in run.origins]
    assert backward[:14] == [False] * 14  # the forward pass, and the loss with its gradient
    assert found[12][1:] == ("Net", "in total_of")
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
def test_compiled_kernel_has_the_lines_that_were_fused(cpu: Device, pass_: str) -> None:
    run = ran(cpu, Net, compile={}, pass_=pass_)
    marked = [origin.is_backward for origin in run.origins if origin is not None]
    assert marked == sorted(marked)
    assert marked.count(True) > (4 if pass_ == "train" else -1)
    found = places(run)
    fused = [each for each in found if "silu" in each[0] and "backward" not in each[0]]
    assert fused
    for _, module, code in fused:
        assert module == "layers.*"  # both layers are the same code
        assert set(code.split(" | ")) >= set(LINES[:2])
    assert {*LINES[2:]} & {line for _, _, code in found for line in code.split(" | ")}


SCALED = """\
import torch
from torch import nn

class Scaled(nn.Module):
    def forward(self, x):
        return x.sin() * 3.25
"""
LINE = "        return x.sin() * 3.25\n"


def test_line_of_a_cached_graph_is_where_the_code_stands_now(
    cpu: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
        file.write_text(above + SCALED, encoding="utf-8")
        monkeypatch.chdir(file.parent)
        linecache.checkcache()
        namespace: dict[str, Any] = {"__name__": "scaled"}
        exec(compile(file.read_text(encoding="utf-8"), str(file), "exec"), namespace)
        found.append(ran(cpu, namespace["Scaled"], compile={}).origins)
    assert found == [(Origin("Scaled", (SourceLine("scaled.py", number, LINE.strip()),)),) for number in (6, 8, 6, 10)]


def test_line_of_a_cached_graph_is_of_the_function_that_ran(
    cpu: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two functions of the same ops share what Inductor has in its cache, and what it says of their lines."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))

    class One(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.sin() * 4.25

    class Other(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.sin() * 4.25

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = torch.compile(One()), torch.compile(Other())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.one(x), self.other(x)

    def line_of(origin: Origin | None) -> int:
        assert origin is not None
        return origin.lines[0].line

    expected = [inspect.getsourcelines(each)[1] + 2 for each in (One, Other)]
    assert [line_of(ran(cpu, build, compile={}).origins[0]) for build in (One, Other)] == expected
    with torch_set_up():  # in one session too, where the second one finds what the first one compiled
        reset_compiler()
        workloads = [tiny(build=build, compile={}, module=build.__name__) for build in (One, Other)]
        subjects = [Subject(each, build(each, cpu), cpu, QUICK) for each in workloads]
    assert [line_of(each.origins.kernels[0]) for each in subjects] == expected
    assert ran(cpu, Both).origins == (None, None)  # one file of generated code: whose it is, it does not say


@pytest.mark.usefixtures("no_cache")
@pytest.mark.parametrize(
    ("file", "shown", "code", "compile_"),
    [
        ("<string>", "<string>", "", None),
        ("<ipython-input-1-a>", "<ipython-input-1-a>", LINE.strip(), None),
        ("/tmp/ipykernel_1/2.py", "2.py", LINE.strip(), None),
        ("/tmp/ipykernel_1/2.py", "2.py", LINE.strip(), {}),
    ],
)
def test_module_of_a_notebook_has_its_line(
    cpu: Device, monkeypatch: pytest.MonkeyPatch, file: str, shown: str, code: str, compile_: Any
) -> None:
    if code:  # IPython keeps the source of a cell there
        monkeypatch.setitem(linecache.cache, file, (len(SCALED), None, SCALED.splitlines(keepends=True), file))
    namespace = {"__name__": "__main__"}
    exec(compile(SCALED, file, "exec"), namespace)
    origins = ran(cpu, namespace["Scaled"], compile=compile_).origins
    assert set(origins) == {Origin("Scaled", (SourceLine(shown, 6, code),))}


class Squared(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.square()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return torch.mul(gradients[0], x)


class Inner(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Squared.apply(x)


class Checkpointed(Gated):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.halves, x, use_reentrant=False)

    def halves(self, x: torch.Tensor) -> torch.Tensor:
        h = self.gate(x) * torch.sigmoid(self.up(x))
        return self.down(h)


class Broken(Gated):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.gate(x)
        torch._dynamo.graph_break()
        return y.cos()


class Masked(nn.Module):
    """Calls an op without a gradient: it has the sequence number of the next node of autograd."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        positive = x.detach() > 0
        return x * positive


class Penalised(nn.Module):
    """Takes a gradient whose own gradient is taken."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        (gradient,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        return gradient


HALVES = "h = self.gate(x) * torch.sigmoid(self.up(x))"


@pytest.mark.usefixtures("no_cache")
@pytest.mark.parametrize(
    ("build", "fields", "op", "expected"),
    [
        (Broken, {"compile": {}, "graph_breaks": 1}, "cos", [("Broken", "return y.cos()", False)]),
        (Masked, {}, "aten::mul", [("Masked", "return x * positive", each) for each in (False, True)]),
        (Penalised, {}, "aten::neg", [("Penalised", "y = x.sin()", True)]),
        (lambda: nn.Sequential(Inner()), {}, "aten::mul", [("0", "return torch.mul(gradients[0], x)", True)]),
        # It runs again for the backward pass of whatever comes after it: of `down` here.
        (lambda: nn.Sequential(Checkpointed()), {}, "aten::sigmoid", [("0", HALVES, False), ("0", HALVES, True)]),
    ],
    ids=["after a break", "no gradient", "gradient of a gradient", "autograd function", "checkpointed"],
)
def test_kernel_leads_to_what_asked_for_it(
    cpu: Device, build: Callable[[], nn.Module], fields: Any, op: str, expected: list[tuple[str, str, bool]]
) -> None:
    run = ran(cpu, build, **({"pass_": "train"} if "compile" not in fields else {}), **fields)
    found = [
        (module, code, origin is not None and origin.is_backward)
        for (name, module, code), origin in zip(places(run), run.origins, strict=True)
        if (op in name if "compile" in fields else op == name)
    ]
    assert found == expected


def event(kind: str, extra: dict[str, Any], *children: Any, id_: int = 0, name: str = "", thread: int = 1) -> Any:
    """Return an event of the profiler's tree."""
    typed = (SimpleNamespace(name=kind), SimpleNamespace(**extra))
    return SimpleNamespace(typed=typed, correlation_id=id_, name=name, start_tid=thread, children=children)


def called(line: int, *children: Any, name: str = "") -> Any:
    """Return the call of a function in C from a line of this file."""
    return event("PyCCall", {"caller": SimpleNamespace(file_name=__file__, line_number=line)}, *children, name=name)


def places_of(*tree: Any, forward_threads: dict[int, int] | None = None) -> _Places:
    threads = [
        SimpleNamespace(correlation_id=lambda i=i: i, fwd_thread_id=lambda t=t: t)
        for i, t in (forward_threads or {}).items()
    ]
    return _Places(SimpleNamespace(experimental_event_tree=lambda: tree, events=lambda: threads), Modules(None))


def test_number_of_a_node_belongs_to_its_thread() -> None:
    """Checkpointing runs forward ops in the thread of the backward pass, which counts from zero."""

    def op(id_: int, *children: Any, thread: int, name: str = "aten::mul", sequence: int = 5) -> Any:
        extra = {"sequence_number": sequence, "scope": SimpleNamespace(name="FUNCTION")}
        return event("TorchOp", extra, *children, id_=id_, name=name, thread=thread)

    def node(id_: int) -> Any:
        return op(id_, op(id_ + 1, thread=2, sequence=-1), thread=2, name="autograd::engine::evaluate_function: M")

    tree = called(1, op(10, thread=1)), called(3, op(20, thread=2)), node(30), node(40)
    places = places_of(*tree, forward_threads={30: 1, 40: 2})
    assert [origin.lines[0].line for id_ in (31, 41) if (origin := places.origin(places.ops[id_]))] == [1, 3]


@pytest.mark.parametrize(("number", "is_known"), [(1, True), (2, False)])  # which of the two it is, nobody knows
def test_calls_that_wait_have_lines_if_there_are_as_many(number: int, is_known: bool) -> None:
    places = places_of(called(1, name="<built-in function _cuda_synchronize>"))
    calls = [("cudaDeviceSynchronize", None)] * number
    assert [origin is not None for origin in places.of_calls(calls, calls, places.waits)] == [is_known] * number


def test_compiled_function_in_eager_code_is_not_compiled_again(cpu: Device) -> None:
    """Nor is it by the second workload that calls it. A function of torch has no line of the user's but its caller's."""
    activated = torch.compile(F.silu)

    class Calls(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = activated(x)
            return y.cos()

    before = Counter[str]()
    inputs = lambda: (torch.randn(4, 8),)  # noqa: E731
    with torch_set_up():
        for name in ("one", "two"):
            workload = tiny(build=Calls, inputs=inputs, module=name)
            subject = Subject(workload, build(workload, cpu), cpu, QUICK)
            codes = [each.lines[0].code for each in subject.origins.kernels if each is not None]
            assert codes == ["y = activated(x)", "return y.cos()"]
            assert [each.lines[0].code for each in subject.origins.compiled] == ["y = activated(x)"]
            assert subject.compiled_ops == (1 if name == "one" else 0)
            before[name] = compile_counts().graphs
    assert before["one"] == before["two"]


class Dropped(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.dropout(x.sin())
        return y + torch.rand_like(y)


class Biased(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(8, 8)), nn.Parameter(torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x @ self.weight
        return y + self.bias


@pytest.mark.usefixtures("no_cache")
@pytest.mark.parametrize("pass_", ["forward", "train"])
@pytest.mark.parametrize(
    ("build", "op", "lines"),
    [
        (Biased, "addmm", ["y = x @ self.weight", "return y + self.bias"]),  # Inductor puts one op for both
        (Dropped, "randint", ["in forward"]),  # and draws all seeds at once
        (lambda: nn.Linear(8, 8), "addmm", ["return F.linear(input, self.weight, self.bias)"]),  # no code but torch's
    ],
)
def test_kernel_that_inductor_puts_for_others_has_their_lines(
    cpu: Device, pass_: Any, build: Callable[[], nn.Module], op: str, lines: list[str]
) -> None:
    run = ran(cpu, build, compile={}, dtype="fp32", pass_=pass_)
    assert None not in run.origins
    (found,) = (each for name, each in zip(run.kernel_names(), run.origins, strict=True) if op in name)
    assert found is not None
    assert [line.code for line in found.lines] == lines
    assert found.module == type(build()).__name__


class Unknown(nn.Module):
    """Calls an op whose output torch.compile cannot know."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return unknown(x.sin())


class Tagged(nn.Module):
    """Differs in each replicate, so that it is compiled again."""

    numbers = itertools.count()

    def __init__(self) -> None:
        super().__init__()
        self.tag = str(next(self.numbers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sin() if self.tag == "never" else x.cos()


class Counting(nn.Module):
    """Is compiled again in each call, because it counts them."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not hasattr(self, "calls"):
            self.calls = 0
        self.calls += 1
        return x.sin() * self.calls


@torch.library.custom_op("kernelgauge_tests::unknown", mutates_args=())
def unknown(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@pytest.mark.parametrize(
    ("build", "switches", "event"),
    [
        (Net, {"disable": True}, ("graph break", "torch.compile is switched off: all of it runs eagerly", "", "")),
        (Unknown, {"suppress_errors": True}, ("graph break", "all of `forward` runs eagerly", "Unknown", "in forward")),
        (
            Tagged,
            {"recompile_limit": 1},
            ("recompile", "no longer holds", "Tagged", 'return x.sin() if self.tag == "never" else x.cos()'),
        ),
    ],
)
def test_code_that_is_not_compiled_is_an_event(
    cpu: Device, build: Callable[[], nn.Module], switches: dict[str, Any], event: tuple[str, str, str, str]
) -> None:
    with torch._dynamo.config.patch(**switches):
        run = ran(cpu, build, compile={})
    kind, reason, module, code = event
    (found,) = run.compile_events
    assert (found.kind, found.module, found.code) == (kind, module, code)
    assert found.reason.endswith(reason)
    assert ("the recompile_limit of 1 is reached, so the rest runs eagerly; " in found.reason) is (build is Tagged)
    assert (run.counts.graph_breaks, run.counts.recompiles) == ((1, 0) if kind == "graph break" else (0, 1))


def test_recompile_names_first_what_keeps_failing(cpu: Device) -> None:
    """`hasattr` fails for the first compilation alone, the number of calls for each."""
    newest, *_, oldest = ran(cpu, Counting, compile={}).compile_events
    assert newest.reason.startswith("self.calls == ")
    assert oldest.reason == "not hasattr(self, 'calls') no longer holds"


@pytest.mark.parametrize(
    ("build", "path"),
    [
        (lambda: Net().layers[0].forward, "gate"),
        (lambda: functools.partial(Net()), "layers.0.gate"),
        (lambda: torch.compile(Net(), backend="eager"), "Net"),
        (lambda: (lambda net: lambda x: net(x))(Net()), "net.layers.0.gate"),
        (lambda: lambda x: x * 2.0, ""),
        (lambda: nn.Sequential(*[nn.Linear(8, 8, bias=False)] * 2), "0 = 1"),
    ],
)
def test_path_of_the_first_module(cpu: Device, build: Callable[[], Any], path: str) -> None:
    assert places(ran(cpu, build))[0][1] == path


@pytest.mark.parametrize(("differs", "known"), [("__torch_function__", True), ("origins_of", False)])
def test_call_that_launches_something_else_has_no_origins(cpu: Device, differs: str, known: bool) -> None:
    """The call is made once more for its lines. If that is other work, it is made without what tells an operator's line."""

    def build() -> Callable[[torch.Tensor], torch.Tensor]:
        mode = lambda: _get_current_function_mode() is not None  # noqa: E731
        again = lambda: any(frame.function == "origins_of" for frame in inspect.stack())  # noqa: E731
        is_other = mode if differs == "__torch_function__" else again
        return lambda x: x.cos() if is_other() else x.sin()

    run = ran(cpu, build)
    assert run.kernel_names() == ["aten::sin"]
    assert bool(run.origins) is known


def test_torch_without_the_tree_of_events_has_no_origins(cpu: Device, monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.parametrize(
    ("file", "shown", "is_own"),
    [
        ("{cwd}/models/mlp.py", "models/mlp.py", True),
        ("{cwd}/.venv/lib/python3.12/site-packages/liger_kernel/ops/swiglu.py", "liger_kernel/ops/swiglu.py", False),
        ("/usr/lib/python3/dist-packages/einops/einops.py", "einops/einops.py", False),
        ("/elsewhere/src/models/mlp.py", "models/mlp.py", True),  # as an editable installation has it
        ("/tmp/mlp.py", "mlp.py", True),
    ],
)
def test_file_is_shown_without_folders_of_the_machine(
    file: str, shown: str, is_own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend("/elsewhere/src")
    path = file.format(cwd=Path.cwd())
    assert shown_path(path) == shown
    assert (owner_of(path) == "user") is is_own


@pytest.mark.parametrize("between", ["", "stream0 = get_raw_stream(0)\n", "triton_poi_fused_gelu_0_xnumel = 10*s0\n"])
def test_handle_of_a_generated_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, between: str) -> None:
    stacks = ((("model.py", 1, "forward", "return F.gelu(x)"),),)
    path = tmp_path / "generated.py"
    monkeypatch.setitem(_generated, str(path), [(1, {"triton_poi_fused_gelu_0:1": stacks})])
    handle = "# [Provenance debug handles] triton_poi_fused_gelu_0:1"
    path.write_text(f"{handle}\n{between}triton_poi_fused_gelu_0.run(buf0)\n{between}other.run(buf1)\n")
    calls = [number for number, line in enumerate(path.read_text().splitlines(), 1) if ".run(" in line]
    assert [stacks_at(str(path), number) for number in calls] == [stacks, None]
