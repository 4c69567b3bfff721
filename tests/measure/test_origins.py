"""Each kernel leads to the module and the line that asked for it: eager and compiled code, forward
and backward.
"""

import linecache
import sys
import traceback
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch._functorch.config as functorch
import torch._inductor.config as inductor
import torch.nn.functional as F
from torch import nn
from torch.overrides import BaseTorchFunctionMode, _get_current_function_mode

from kernelgauge.errors import shown_path
from kernelgauge.measure import compiler
from kernelgauge.measure.compiler import reset_compiler, source_line, torch_set_up
from kernelgauge.measure.device import Device
from kernelgauge.measure.instance import build
from kernelgauge.measure.measurement import Measurement
from kernelgauge.run import Origin, Run, SourceLine, common_path
from tests.measure.conftest import QUICK, measured, raising, tiny

SOURCE = """\
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up, self.down = (nn.Linear(8, 8, bias=False) for _ in range(3))
        self.weight, self.bias = nn.Parameter(torch.ones(8, 8)), nn.Parameter(torch.ones(8))
        self.tag, self.kept = str(id(self)), []

    def forward(self, x):
        g = F.silu(self.gate(x))
        h = g * self.up(x)
        return self.down(h)

    def halves(self, x):
        h = self.gate(x) * torch.sigmoid(self.up(x))
        return self.down(h)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Gated(), Gated()])

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return x
"""
LINES = (
    "g = F.silu(self.gate(x))",
    "h = g * self.up(x)",
    "return self.down(h)",
    "x = x + layer(x)",
)


def load(text: str, file: Path, name: str = "planted") -> Any:
    """Return the module of a text that stands in this file."""
    module = ModuleType(name)
    file.parent.mkdir(exist_ok=True)
    file.write_text(text, encoding="utf-8")
    linecache.checkcache()
    module.__file__, sys.modules[name] = str(file), module
    exec(compile(text, str(file), "exec"), vars(module))
    return module


def model(folder: Path, *body: str) -> Any:
    """Return a module with this forward."""
    text = "\n        ".join((f"{SOURCE}\nclass Planted(Gated):\n    def forward(self, x):", *body))
    return load(text, folder / "planted.py").Planted


@pytest.fixture
def net(tmp_path: Path) -> Any:
    return load(SOURCE, tmp_path / "planted.py").Net


@pytest.fixture
def no_cache() -> Iterator[None]:
    """No graph is that of an earlier version of this file."""
    with inductor.patch(fx_graph_cache=False), functorch.patch(enable_autograd_cache=False):
        yield


def ran(cpu: Device, build: Callable[[], Any], **changes: Any) -> Run:
    inputs = lambda: (torch.randn(4, 8, requires_grad=True),)  # noqa: E731
    return measured(cpu, tiny(build=build, inputs=inputs, **changes)).run


def places(run: Run) -> list[tuple[str, str, str]]:
    """Name, module and code of each kernel; the code as it stands in its file, at the line that is
    given.
    """
    file, found = str(sys.modules["planted"].__file__), []
    for kernel, origin in zip(run.kernels, run.origins, strict=True):
        if origin is None:  # the sum of the outputs, and the gradient that a backward begins with
            assert run.trains
            assert kernel.identity.name in ("aten::sum", "aten::fill_")
            found.append((kernel.identity.name, "", ""))
            continue
        assert all(
            source_line(file, line.line).code == line.code
            for line in origin.lines
            if line.file == "planted.py"
        )
        found.append(
            (kernel.identity.name, origin.module, " | ".join(line.code for line in origin.lines))
        )
    return found


def codes(origins: Any) -> list[str]:
    return [origin.lines[0].code for origin in origins]


def test_eager_kernel_has_its_line_and_module(cpu: Device, net: Any) -> None:
    """An operator is no call in Python: its line is not that of the call around it."""
    expected = [
        ("aten::mm", "layers.{}.gate", LINES[0]),
        ("aten::silu", "layers.{}", LINES[0]),
        ("aten::mm", "layers.{}.up", LINES[1]),
        ("aten::mul", "layers.{}", LINES[1]),
        ("aten::mm", "layers.{}.down", LINES[2]),
        ("aten::add", "Net", LINES[3]),
    ]
    run = ran(cpu, net)
    assert places(run) == [
        (op, module.format(layer), line) for layer in (0, 1) for op, module, line in expected
    ]
    assert set(run.op_origins) == {name for name in run.op_names() if "::" in name}
    silus = [(each.module, each.lines[0].code) for each in run.op_origins["aten::silu"]]
    assert silus == [("layers.*", LINES[0])]
    kernels = [run.kernels[place].identity.name for place in run.op_kernels if place is not None]
    launched = {name for name, *_ in expected}
    names = [name for name in run.op_names() if "::" in name]
    # within each linear
    assert kernels == [name if name in launched else "aten::mm" for name in names]


@pytest.mark.usefixtures("no_cache")
def test_compiled_kernel_has_the_lines_that_were_fused(cpu: Device, net: Any) -> None:
    fused = [
        (module, code) for name, module, code in places(ran(cpu, net, compile={})) if "silu" in name
    ]
    assert {module for module, _ in fused} == {"layers.*"}  # both layers are the same code
    assert all(set(code.split(" | ")) >= set(LINES[:2]) for _, code in fused)


HALVES = "h = self.gate(x) * torch.sigmoid(self.up(x))"
TRAINED, COMPILED = {"pass_": "train"}, {"compile": {}}
ADDS = ("y = x @ self.weight", "return y + self.bias")
# A forward; of one op, the lines that it leads to, and whether for the backward pass.
BODIES: dict[str, tuple[tuple[str, ...], dict[str, Any], str, list[tuple[Any, bool]]]] = {
    # It has the sequence number of the next node of autograd.
    "no gradient": (("y = x.detach() > 0", "return x * y"), TRAINED, "aten::mul", [("return x * y", False), ("return x * y", True)]),
    "gradient of a gradient": (
        ("y = x.sin()", "return torch.autograd.grad(y.sum(), x, create_graph=True)[0]"), TRAINED, "aten::neg", [("y = x.sin()", True)],
    ),
    # It runs again for the backward pass of whatever comes after it: of `down` here.
    "checkpointed": (
        ("return checkpoint(self.halves, x, use_reentrant=False)",), TRAINED, "aten::sigmoid", [(HALVES, False), (HALVES, True)],
    ),
    "after a break": (("y = self.gate(x)", "torch._dynamo.graph_break()", "return y.cos()"), COMPILED, "cos", [("return y.cos()", False)]),
    # Inductor puts one op for both, and draws all seeds at once.
    "addmm": (ADDS, COMPILED, "addmm", [(" | ".join(ADDS), False)]),
    "seeds": (("y = F.dropout(x.sin())", "return y + torch.rand_like(y)"), COMPILED, "randint", [("in forward", False)]),
}  # fmt: skip


@pytest.mark.usefixtures("no_cache")
@pytest.mark.parametrize(("body", "fields", "op", "expected"), BODIES.values(), ids=BODIES)
def test_kernel_leads_to_what_asked_for_it(
    cpu: Device,
    tmp_path: Path,
    body: tuple[str, ...],
    fields: Any,
    op: str,
    expected: list[tuple[str, bool]],
) -> None:
    planted, is_compiled = model(tmp_path, *body), "compile" in fields
    run = ran(cpu, planted if is_compiled else lambda: nn.Sequential(planted()), **fields)
    found = [
        (module, code, origin.is_backward)
        for (name, module, code), origin in zip(places(run), run.origins, strict=True)
        if (op in name if is_compiled else op == name)
    ]
    assert found == [("Planted" if is_compiled else "0", *each) for each in expected]
    # gradients replace those of the call before
    assert (run.counts.grown_bytes, run.growth_origins) == (0, ())


KEEPS = ("self.kept.append(x.detach().sin())", "self.kept.append(torch.cat((x, x)).detach())")


@pytest.mark.parametrize(("most", "grown"), [(1000, (3 * 128, list(KEEPS[::-1]))), (2, (0, []))])
def test_growth_of_memory_has_the_lines_that_asked_for_it(
    cpu: Device, tmp_path: Path, most: int, grown: Any
) -> None:
    """A list of losses grows with each call, unless as much is freed as is kept."""
    run = ran(cpu, model(tmp_path, *KEEPS, f"del self.kept[:-{most}]", "return x.cos()"))
    assert (run.counts.grown_bytes, codes(run.growth_origins)) == grown


@pytest.mark.parametrize(("every", "is_grown"), [(1000, True), (9, False)])
def test_host_memory_that_goes_later_is_not_kept(
    cpu: Device, tmp_path: Path, every: int, is_grown: bool
) -> None:
    """A data loader may let its last workers' queues go some calls later."""
    lines = (
        "self.kept.append(bytearray(20_000))",
        f"len(self.kept) % {every} or self.kept.clear()",
    )
    grown = ran(cpu, model(tmp_path, *lines, "return x.cos()")).counts.grown_host_bytes or 0
    assert (grown > 20_000) == is_grown


@pytest.mark.parametrize("every", [2, 3, 4, 5])
def test_tensors_that_some_calls_keep_are_growth(cpu: Device, tmp_path: Path, every: int) -> None:
    kept = "kept = torch.cat([x.detach()] * 100)"
    lines = (
        "self.calls = getattr(self, 'calls', 0) + 1",
        kept,
        f"if self.calls % {every} == 0: self.kept.append(kept)",
    )
    run = ran(cpu, model(tmp_path, *lines, "return x.cos()"))
    assert (run.counts.grown_bytes or 0) >= 100 * 128 // 5
    assert codes(run.growth_origins) == [kept]


def test_cycles_of_references_are_no_growth(cpu: Device, tmp_path: Path) -> None:
    """They are freed when Python's collector runs, which no call decides."""
    run = ran(cpu, model(tmp_path, "part = [x.sin()]", "part.append(part)", "return x.cos()"))
    assert (run.counts.grown_bytes, run.growth_origins) == (0, ())
    assert (run.counts.cyclic_bytes, codes(run.cyclic_origins)) == (128, ["part = [x.sin()]"])


@pytest.mark.parametrize(
    ("body", "most"),
    [
        (("x = x.sin()", "x = x.cos()", "return x.tan()"), 2 * 128),
        (("y = x.sin()", "z = y.cos()", "return z.tan()"), 3 * 128),
        # what is kept from the call before is still there when the next one allocates
        (("self.last = x.sin()", "return x.cos()"), 2 * 128),
    ],
)
def test_peak_on_a_cpu_is_what_a_call_holds(
    cpu: Device, tmp_path: Path, body: tuple[str, ...], most: int
) -> None:
    run = ran(cpu, model(tmp_path, *body))
    assert run.counts.peak_allocated_bytes == sum(part.bytes for part in run.peak) == most


def test_peak_of_python_has_its_line(cpu: Device, tmp_path: Path) -> None:
    """No profiler sees the call of a type, and no operator is one."""
    asks = ("rows = [*range(100_000)]", "del rows", "return x.cos()")
    run = ran(cpu, model(tmp_path, *asks))
    assert 800_000 < (run.counts.peak_host_bytes or 0) < 5_000_000
    assert codes(run.host_peak_origins) == [asks[0]]


LIBRARY = "from torch import nn\nclass Block(nn.Sequential):\n    def forward(self, x):\n        return self[0](x)\n"


@pytest.mark.usefixtures("no_cache")
@pytest.mark.parametrize("compile_", [None, {}], ids=["eager", "compiled"])
def test_kernel_of_a_library_has_its_line(cpu: Device, tmp_path: Path, compile_: Any) -> None:
    """The innermost frame is one of `nn.Linear`.

    Where code of the user calls the library, its line comes first.
    """
    linear = nn.Linear(8, 8)
    block = load(LIBRARY, tmp_path / "site-packages" / "blocks.py", "blocks").Block(linear)
    user = load(LIBRARY, tmp_path / "user.py").Block
    inner = SourceLine("blocks.py", 4, "return self[0](x)")
    called = SourceLine("user.py", 4, "return self[0](x)", inner)
    for module, line in ((block, inner), (user(block), called)):
        (origin,) = ran(cpu, lambda module=module: module, compile=compile_).origins
        assert origin.lines == (line,)
    # a module of torch has no other line
    (origin,) = ran(cpu, lambda: linear, compile=compile_).origins
    assert codes([origin]) == ["return F.linear(input, self.weight, self.bias)"]


SCALED = """\
import torch
from torch import nn

class Scaled(nn.Module):
    def forward(self, x):
        return x.sin() * 3.25
"""
LINE = "        return x.sin() * 3.25\n"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))


@pytest.mark.usefixtures("cache")
def test_line_of_a_cached_graph_is_where_it_is_now(
    cpu: Device, tmp_path: Path, monkeypatch: Any
) -> None:
    """Inductor's cache finds a graph by what it computes: its lines may be those of an older file,
    or of another folder.
    """
    texts = (
        ("one", ""),
        ("one", "# moved\n\n"),
        ("two", ""),
        ("one", f"# moved again\nSAME = '''\n{LINE}'''\n"),
    )
    for (folder, above), number in zip(texts, (6, 8, 6, 10), strict=True):
        scaled = load(above + SCALED, tmp_path / folder / "scaled.py")
        monkeypatch.chdir(tmp_path / folder)
        origins = ran(cpu, scaled.Scaled, compile={}).origins
        assert origins == (Origin("Scaled", (SourceLine("scaled.py", number, LINE.strip()),)),)


@pytest.mark.usefixtures("cache")
def test_line_of_a_cached_graph_is_of_what_ran(cpu: Device, tmp_path: Path) -> None:
    """Two functions of the same ops share what Inductor has in its cache, and what it says of their
    lines.
    """
    scaled = load(SCALED + SCALED.replace("Scaled", "Other"), tmp_path / "scaled.py")
    builds = scaled.Scaled, scaled.Other
    found = [ran(cpu, each, compile={}).origins[0] for each in builds]
    # in one session too, where the second one finds what the first one compiled
    with torch_set_up():
        reset_compiler()
        workloads = [tiny(build=each, compile={}, module=each.__name__) for each in builds]
        found += [
            Measurement(each, build(each, cpu), cpu, QUICK).origins.kernels[0] for each in workloads
        ]
    assert [origin.lines[0].line for origin in found] == [6, 12, 6, 12]
    one, other = (torch.compile(each()) for each in builds)
    both = ran(cpu, lambda: lambda x: (one(x), other(x)))
    assert both.origins == (None, None)  # one file of generated code: whose it is, it does not say


def test_compiled_function_in_eager_code_is_not_compiled_again(cpu: Device) -> None:
    """Nor is it by the second workload that calls it.

    A function of torch has no line of the user's but its caller's.
    """
    activated, measurements, graphs = torch.compile(F.silu), [], []

    def calls(x: torch.Tensor) -> torch.Tensor:
        y = activated(x)
        return y.cos()

    with torch_set_up():
        for _ in range(2):
            workload = tiny(build=lambda: calls)
            measurements.append(Measurement(workload, build(workload, cpu), cpu, QUICK))
            graphs.append(compiler.compile_counts().graphs)
    assert [codes(each.origins.kernels) for each in measurements] == [
        ["y = activated(x)", "return y.cos()"]
    ] * 2
    assert [codes(each.origins.compiled) for each in measurements] == [["y = activated(x)"]] * 2
    assert [each.compiled_ops for each in measurements] == [1, 0]
    assert graphs[0] == graphs[1]


# in each replicate it is compiled again
TAGGED = 'return x.sin() if self.tag == "never" else x.cos()'
UNDECIDED = ("if x.sum() > 0:", "    x = x * 2", "return x * 3")
NO_LONGER = (
    "the recompile_limit of 1 is reached, so the rest runs eagerly; self.tag == * no longer holds"
)


@pytest.mark.parametrize(
    ("body", "switches", "backend", "reason", "code"),
    [
        (
            [TAGGED],
            {"disable": True},
            "eager",
            "torch.compile is switched off: all of it runs eagerly",
            "",
        ),
        (UNDECIDED, {}, "eager", "a branch that depends on data", "if x.sum() > 0:"),
        (
            [TAGGED],
            {"suppress_errors": True},
            raising(ValueError()),
            "*all of `forward` runs eagerly",
            "in forward",
        ),
        ([TAGGED], {"recompile_limit": 1}, "eager", NO_LONGER, TAGGED),
    ],
    ids=["switched off", "branch", "error", "recompile limit"],
)
def test_code_that_is_not_compiled_is_an_event(
    cpu: Device,
    tmp_path: Path,
    body: tuple[str, ...],
    switches: Any,
    backend: Any,
    reason: str,
    code: str,
) -> None:
    with torch._dynamo.config.patch(**switches):
        run = ran(cpu, model(tmp_path, *body), compile={"backend": backend})
    (found,) = run.compile_events
    assert fnmatchcase(found.reason, reason), found
    assert (found.code, found.module) == (code, "Planted" if code else "")
    assert source_line(str(tmp_path / "planted.py"), found.line or 0).code == code
    counted = ("recompile", 0, 1) if reason == NO_LONGER else ("graph break", 1, 0)
    assert (found.kind, run.counts.graph_breaks, run.counts.recompiles) == counted


def test_recompile_names_first_what_keeps_failing(cpu: Device, tmp_path: Path) -> None:
    """`hasattr` fails for the first compilation alone, the number of calls for each."""
    body = (
        "if not hasattr(self, 'calls'):",
        "    self.calls = 0",
        "self.calls += 1",
        "return x * self.calls",
    )
    newest, *_, oldest = ran(
        cpu, model(tmp_path, *body), compile={"backend": "eager"}
    ).compile_events
    assert newest.reason.startswith("self.calls == ")
    assert oldest.reason == "not hasattr(self, 'calls') no longer holds"


def test_break_is_in_the_whole_function(cpu: Device, tmp_path: Path) -> None:
    """Dynamo names the rest of a function by the number of a line."""
    body = (
        "torch._dynamo.graph_break()",
        "for _ in range(2):",
        "    print(end='')",
        "return x.sin()",
    )
    events = ran(cpu, model(tmp_path, *body), compile={"backend": "eager"}).compile_events
    assert [each.function for each in events] == ["forward"] * 2
    assert events[1].reason.endswith("the rest of `forward` runs eagerly")


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (lambda call, x: call(x[:2]), "size of x at index 0 is 2, no longer 4"),
        (lambda call, x: call(x.double()), "dtype of x is Double, no longer Float"),
        (torch.no_grad()(lambda call, x: call(x)), "grad_mode of torch has changed"),
    ],
)
def test_recompile_is_said_in_whole_words(other: Callable[..., Any], reason: str) -> None:
    with torch_set_up():
        compiler.reset_compiler()
        call, x = torch.compile(lambda x: x.sin(), backend="eager"), torch.randn(4, 8)
        call(x)
        other(call, x)
        (event,) = compiler.compile_counts().events
    assert (event.kind, event.reason) == ("recompile", reason)


def test_mode_that_reads_lines_is_no_recompile() -> None:
    with torch_set_up():
        compiler.reset_compiler()
        call, x = torch.compile(lambda x: x.sin(), backend="eager"), torch.randn(4, 8)
        call(x)
        with BaseTorchFunctionMode():
            call(x)
        assert compiler.compile_counts().graphs == 2
        call(x[:2])
        (event,) = compiler.compile_counts().events
    assert event.reason == "size of x at index 0 is 2, no longer 4"


@pytest.mark.parametrize(
    ("build", "path"),
    [
        (lambda net: net.layers[0].forward, "gate"),
        (lambda net: torch.compile(net, backend="eager"), "Net"),
        (lambda net: lambda x: net(x), "net.layers.0.gate"),
        (lambda _: lambda x: x * 2.0, ""),
        (lambda _: nn.Sequential(*[nn.Linear(8, 8, bias=False)] * 2), "0 = 1"),
        (lambda _: nn.Sequential(torch.jit.script(nn.Linear(8, 8))), "0"),
    ],
)
def test_path_of_the_first_module(
    cpu: Device, net: Any, build: Callable[[Any], Any], path: str
) -> None:
    assert places(ran(cpu, lambda: build(net())))[0][1] == path


def test_module_that_is_an_argument_has_its_name(cpu: Device, net: Any) -> None:
    called = lambda student, x, *, teacher: (student(x), teacher(x))  # noqa: E731
    arguments = lambda: ((net(), torch.randn(4, 8)), {"teacher": net()})  # noqa: E731
    run = measured(cpu, tiny(build=lambda: called, inputs=arguments)).run
    paths = [module for _, module, _ in places(run)]
    assert (paths[0], paths[-1]) == ("student.layers.0.gate", "teacher")


def is_in_origins_of() -> bool:
    return any(frame.f_code.co_name == "origins_of" for frame, _ in traceback.walk_stack(None))


@pytest.mark.parametrize(
    ("is_other", "known"),
    [(lambda: _get_current_function_mode() is not None, True), (is_in_origins_of, False)],
)
def test_call_that_launches_something_else_has_no_origins(
    cpu: Device, is_other: Any, known: bool
) -> None:
    """The call is made once more for its lines.

    If that is other work, it is made without what tells an operator's line.
    """
    run = ran(cpu, lambda: lambda x: x.cos() if is_other() else x.sin())
    assert (run.kernel_names(), bool(run.origins)) == (["aten::sin"], known)


def test_torch_without_the_tree_of_events_has_no_origins(
    cpu: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch.profiler.python_tracer

    monkeypatch.delattr(torch.profiler.python_tracer, "_prefix_regex")
    assert ran(cpu, nn.GELU).origins == ()


def test_common_path_of_modules() -> None:
    assert common_path(("layers.0.norm1", "layers.1.norm2")) == "layers.*.{norm1,norm2}"
    assert common_path(("layers.0", "head")) == "layers.0, head"
    assert common_path(("a.0.norm", "norm", "a.1.norm", "a.2.norm")) == "a.*.norm, norm"
    assert common_path(tuple("abcd")) == "*"


def test_file_is_shown_without_folders_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend("/elsewhere/src")  # as an editable installation has it
    library = Path.cwd() / ".venv/lib/python3.12/site-packages/liger_kernel/ops/swiglu.py"
    paths = f"{Path.cwd()}/models/mlp.py", "/elsewhere/src/models/mlp.py", str(library)
    assert [shown_path(path) for path in paths] == [
        "models/mlp.py",
        "models/mlp.py",
        "liger_kernel/ops/swiglu.py",
    ]
    assert [compiler.owner_of(path) == "user" for path in paths] == [True, True, False]


@pytest.mark.parametrize(
    "between", ["", "stream0 = get_raw_stream(0)\n", "triton_poi_fused_gelu_0_xnumel = 10*s0\n"]
)
def test_handle_of_a_generated_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, between: str
) -> None:
    stacks = ((("model.py", 1, "forward", "return F.gelu(x)"),),)
    path = tmp_path / "generated.py"
    monkeypatch.setitem(
        compiler._generated, str(path), [(1, {"triton_poi_fused_gelu_0:1": stacks})]
    )
    handle = "# [Provenance debug handles] triton_poi_fused_gelu_0:1"
    path.write_text(
        f"{handle}\n{between}triton_poi_fused_gelu_0.run(buf0)\n{between}other.run(buf1)\n"
    )
    calls = [
        number for number, line in enumerate(path.read_text().splitlines(), 1) if ".run(" in line
    ]
    assert [compiler.stacks_at(str(path), number) for number in calls] == [stacks, None]
