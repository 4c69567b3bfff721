"""What a failure says of edited lines. The one that was edited is named first, and then those that it
leads to: a helper that launches for a line that is new did so before for others.
"""

import linecache
from collections.abc import Callable

import pytest

from tests.plugin.inner_project import Run

pytestmark = pytest.mark.timeout(300)
AfterEdit = Callable[..., str]


@pytest.fixture
def after_edit(pytester: pytest.Pytester, run: Run) -> AfterEdit:
    """Record a call of what a model defines, edit the model, and return what a run says then."""

    def said(model: str, edited: str, call: str, **options: object) -> str:
        given = f"timing=False, **{options}"
        test = f"def test_x(kernelgauge):\n    kernelgauge.using({given})({call})\n"
        pytester.makepyfile(model=model, test_x=f"import torch\nfrom model import *\n\n{test}")
        assert "1 written" in run("--perf-update")
        assert edited != model
        pytester.makepyfile(model=edited)
        linecache.checkcache()  # this process has read the file already
        return run()

    return said


HELPERS = """
import json

def largest(x):
    return x.amax(dim=-1, keepdim=True)

def doubled(x):
    return largest(x * 2)

def described(x):
    return json.dumps({"numbers": list(range(300)), "shape": list(x.shape)})
"""
MODEL = """
import torch
from torch import nn
from helpers import described, doubled, largest

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        h = self.linear(x)
        h = h - largest(h)  # 1
        return torch.relu(h)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)  # 2
        described(x)  # 3
        return x
"""
TESTS = """
import pytest, torch
from model import Net

pytestmark = pytest.mark.kernelgauge(timing=False)

def test_forward(kernelgauge):
    kernelgauge(Net().eval(), torch.ones(4, 8))

def test_train(kernelgauge):
    kernelgauge.using(pass_="train")(Net(), torch.ones(4, 8))
"""
EDITS = {
    "called_once_more": ("1", "h = h + largest(h)"),
    "through_another": ("1", "h = h + doubled(h)"),
    "module_called_once_more": ("2", "x = self.blocks[0](x)"),
    "host_work": ("1", "described(h)"),
    "host_work_through_a_module": ("3", "[described(x) for _ in range(3)]"),
}


def test_edited_line_is_named_first(pytester: pytest.Pytester, run: Run) -> None:
    pytester.makepyfile(helpers=HELPERS, model=MODEL, test_x=TESTS)
    assert "2 written" in run("--perf-update")
    for name, (mark, line) in EDITS.items():
        before, _, after = MODEL.lstrip().partition(f"  # {mark}\n")
        indent = " " * (8 if mark in "13" else 12)
        pytester.makepyfile(model=f"{before}  # {mark}\n{indent}{line}\n{after}")
        at = f"model.py:{before.count(chr(10)) + 2}  "
        failures = run().split("REGRESSED  ")[1:3]
        assert len(failures) == 2, name
        for failure in failures:
            (code, *_) = (row for row in failure.splitlines() if row.startswith("  code "))
            assert code.split(maxsplit=1)[1].startswith(at), (name, failure)
            assert line in code, (name, failure)


MORE = """
import torch
from torch import nn

class Deeper(nn.Module):
    def forward(self, x):
        for _ in range(4):  # loop
            x = x.t()
            x = x.t() + 1
        return x

class Cached(nn.Module):
    def __init__(self):
        super().__init__()
        self.known = {}

    def table(self, n):
        if n not in self.known:  # cache
            self.known[n] = torch.arange(n)
            self.known[n] = self.known[n].cos()
        return self.known[n]

    def forward(self, x):
        self.known.clear()
        return x * self.table(8) + self.table(8)

class Counted(nn.Module):
    def forward(self, x):
        number = 0
        for _ in range(90):  # host
            number = number + 2
            number = number - 1
        return x + 1
"""
OF_MORE = """
import pytest, torch
from model import Cached, Counted, Deeper

@pytest.mark.kernelgauge(timing=False)
@pytest.mark.parametrize("compiler", [None, "inductor"])
@pytest.mark.parametrize("net", [Deeper, Cached, Counted])
def test_x(kernelgauge, net, compiler):
    kernelgauge.using(compile=compiler and {"backend": compiler})(net().eval(), torch.ones(8, 8))
"""


def test_line_that_runs_more_often_has_its_count(pytester: pytest.Pytester, run: Run) -> None:
    pytester.makepyfile(model=MORE, test_x=OF_MORE)
    assert "6 written" in run("--perf-update")
    edited = MORE.replace("range(4)", "range(6)").replace("n not in self.known", "True")
    pytester.makepyfile(model=edited.replace("range(90)", "range(150)"))
    text = run()
    assert text.count("REGRESSED  ") == 5, text  # no line of compiled code runs
    rows = [row.removeprefix("  code").strip() for row in text.splitlines()]
    loop = ["model.py:6  for _ in range(6):  # loop"]
    loop += [
        "model.py:7  Deeper  x = x.t()  (4 -> 6 times)",
        "model.py:8  Deeper  x = x.t() + 1  (4 -> 6 times)",
    ]
    cache = ["model.py:17  if True:  # cache"]
    cache += [
        "model.py:18  Cached  self.known[n] = torch.arange(n)  (1 -> 2 times)",
        "model.py:19  Cached  self.known[n] = self.known[n].cos()  (1 -> 2 times)",
    ]
    for lines in (loop, cache):  # eager and compiled
        assert all(rows.count(line) >= 2 for line in lines), text
    ops = text.partition("new ops: aten::t x4")[2].splitlines()
    assert [row.removeprefix("  code").strip() for row in ops[1:4]] == loop, text
    assert "model.py:29  Counted.forward()  for _ in range(150):  # host" in rows, text


REPEATED = """
import torch

def shifted(x):
    return (x - 1).gt(0).float()

def forward(x):
    h = torch.zeros_like(x)
    for _ in range(4):
        reset = shifted(h)
        h = h * 0.9 - reset
        h = h * shifted(h)
    return h
"""


def test_repeated_line_comes_before_its_helper(pytester: pytest.Pytester, run: Run) -> None:
    test = "import torch\nfrom model import forward\n\ndef test_x(kernelgauge):\n"
    test += "    kernelgauge.using(timing=False)(forward, torch.ones(4, 8))\n"
    pytester.makepyfile(model=REPEATED, test_x=test)
    assert "1 written" in run("--perf-update")
    call = "        reset = shifted(h)\n"
    pytester.makepyfile(model=REPEATED.replace(call, 2 * call))
    (code, *more) = run().partition("  code ")[2].splitlines()
    assert code.strip() in (
        f"model.py:{number}  reset = shifted(h)  (4 -> 8 times)" for number in (9, 10)
    )
    helper = "model.py:4  return (x - 1).gt(0).float()  (8 -> 12 times)"
    assert more[0].strip() == helper, more


DETACHED = """
import json, torch

def forward(x):
    h = torch.zeros_like(x)
    for _ in range(4):
        h = h.detach()
        h = (h * 0.9).detach()
    return h
"""


@pytest.mark.parametrize(
    ("line", "edited", "code"),
    [
        ("        h = h.detach()\n", "", ["h = h.detach()  (4 -> 0 times)"]),
        (
            "(h * 0.9).detach()",
            "h * 0.9",
            ["model.py:7  h = h * 0.9", "h = (h * 0.9).detach()  (4 -> 0 times)"],
        ),
        ("h * 0.9", "0.9 * h", []),  # not a lost op
    ],
    ids=["removed", "edited", "other"],
)
def test_line_of_lost_ops_is_shown(
    pytester: pytest.Pytester, run: Run, line: str, edited: str, code: list[str]
) -> None:
    test = "import torch\nfrom model import forward\n\ndef test_x(kernelgauge):\n"
    test += "    kernelgauge.using(timing=False)(forward, torch.ones(4, 8))\n"
    pytester.makepyfile(model=DETACHED, test_x=test)
    assert "1 written" in run("--perf-update")
    model = DETACHED.replace(line, edited)
    pytester.makepyfile(model=model.replace("return h", "json.dumps(3)\n    return h"))
    text = run()  # of which that alone fails, so it comes first
    assert "REGRESSED  other counts\n  cause    host: json.dumps 0 -> 1 call" in text, text
    fewer = text.partition("4 fewer ops: aten::detach x4")[2]
    assert bool(fewer) == bool(code), text
    shown = fewer.partition("  code ")[2].partition("  counts")[0].splitlines()
    assert [each.strip() for each in shown] == code, text


SWITCHED = """
import torch

def forward(net, x):
    with torch.no_grad():
        total = torch.zeros(())
        for _ in range(4):
            total = total + net(x).sum()
        return total

@torch.no_grad()
def decorated(net, x):
    return net(x) * 2

def detached(net, x):
    return x * net.bias.detach()

class Sampler:
    @torch.no_grad()
    def sample(self, net, x):
        times = torch.linspace(0, 1, 3).flip(0).tolist()
        return self.steps(net, x * 2, times)

    def steps(self, net, x, times):
        for time in times:
            x = x + time * net(x)
        return x

def sampled(net, x):
    return Sampler().sample(net, x)
"""


@pytest.mark.parametrize(
    ("function", "edit", "code"),
    [
        (
            "forward",
            ("with torch.no_grad()", "if True"),
            [
                "model.py:4  if True:",
                "model.py:7  net  total = total + net(x).sum()",
                "with torch.no_grad():  (gone)",
            ],
        ),
        (
            "decorated",
            ("@torch.no_grad()\ndef decorated", "def decorated"),
            ["model.py:11  net  return net(x) * 2", "@torch.no_grad() def decorated  (gone)"],
        ),
        (
            "sampled",
            ("    @torch.no_grad()\n    def sample", "    def sample"),
            [
                "model.py:20  return self.steps(net, x * 2, times)",
                "model.py:24  net  x = x + time * net(x)",
                "@torch.no_grad() def Sampler.sample  (gone)",
            ],
        ),
        (
            "detached",
            (".detach()", ""),
            ["model.py:15  return x * net.bias", "return x * net.bias.detach()  (gone)"],
        ),
    ],
)
def test_call_that_autograd_records_now_has_its_line(
    pytester: pytest.Pytester, run: Run, function: str, edit: tuple[str, str], code: list[str]
) -> None:
    test = f"import torch\nfrom model import {function}\n\ndef test_x(kernelgauge):\n"
    test += "    net, gauge = torch.nn.Linear(8, 8), kernelgauge.using(timing=False)\n"
    test += f"    gauge(lambda x: {function}(net, x), torch.ones(4, 8))\n"
    pytester.makepyfile(model=SWITCHED, test_x=test)
    assert "1 written" in run("--perf-update")
    pytester.makepyfile(model=SWITCHED.replace(*edit))
    text = run()
    shown = text.partition("  code ")[2].partition("  counts")[0].splitlines()
    assert [each.strip() for each in shown] == code, text


GENERATES = """
import torch

class Model:
    def __init__(self):
        self.scale, self.table, self.is_hot = 2.0, None, True

    def step(self, x, cache):
        if cache is not None:
            x = x[:, -1:]
        new = torch.tanh(x)
        return new if cache is None else torch.cat((cache, new), 1)

    def generate(self, x):
        cache = None
        for _ in range(3):
            new = self.step(x, cache)
            if self.scale == 2.0:  # cache
                cache = new
            x = torch.cat((x, new[:, -1:]), 1)
        return x

    def looked_up(self, x):
        if self.table is None:  # table
            self.fill(x)
        return self.times(x)

    def fill(self, x):
        self.table = [x]

    def times(self, x):
        if len(self.table) == 1:
            self.table.append(x.cos())
        return self.table[1] * x

    def heated(self, x):
        x = x + 1
        if self.is_hot:  # hot
            x = x.exp()
        return x
"""


@pytest.mark.parametrize(
    ("method", "edit", "code"),
    [
        ("generate", ("2.0:", "3.0:"), ["model.py:17  if self.scale == 3.0:  # cache"]),
        (
            "looked_up",
            ("self.table is None", "self.table is not x"),
            [
                "model.py:23  if self.table is not x:  # table",
                "model.py:32  self.table.append(x.cos())",
            ],
        ),
        (
            "heated",
            ("self.is_hot:", "self.is_hot is None:"),
            ["model.py:37  if self.is_hot is None:  # hot"],
        ),
    ],
)
def test_edited_condition_that_calls_nothing_is_named_first(
    after_edit: AfterEdit, method: str, edit: tuple[str, str], code: list[str]
) -> None:
    said = after_edit(GENERATES, GENERATES.replace(*edit), f"Model().{method}, torch.ones(4, 8)")
    shown = said.partition("  code ")[2].splitlines()
    assert [each.strip() for each in shown[: len(code)]] == code, shown


DECIDES = """
import torch

TIMES = 2

def width():
    return 4 * 2

class Model:
    heads = 2

    def __init__(self, rows=4):
        self.rows = rows
        self.ones = torch.ones(8)

    def split(self, x):
        heads = self.heads
        return x.view(-1, heads, width() // heads).transpose(0, 1)

    def __call__(self, x):
        times, dtype = 2, torch.float32
        y = self.split(x[: self.rows]).to(dtype)
        for _ in range(times):
            y = y * 2
        return y, self.ones.repeat(TIMES)
"""


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("= self.heads", "= 2 * self.heads", "model.py:16  heads = 2 * self.heads"),
        ("= 2, torch", "= 4, torch", "model.py:20  times, dtype = 4, torch.float32"),
        ("float32", "float64", "model.py:20  times, dtype = 2, torch.float64"),
        ("TIMES = 2", "TIMES = 4", "model.py:3  TIMES = 4"),
        ("4 * 2", "4 * 4", "model.py:6  return 4 * 4"),
        ("    heads = 2", "    heads = 4", "model.py:9  heads = 4"),
        ("rows=4", "rows=2", "model.py:11  def Model.__init__(rows=2)"),
        ("torch.ones(8)", "torch.ones(16)", "model.py:13  self.ones = torch.ones(16)"),
        # beside a line that is new itself, another new one says nothing
        ("y = y * 2", "unused = 3\n            y = y * 2 * 2", "model.py:24  y = y * 2 * 2"),
    ],
)
def test_edited_statement_that_decides_what_a_line_does_is_named_first(
    after_edit: AfterEdit, old: str, new: str, code: str
) -> None:
    assert DECIDES.count(old) == 1
    said = after_edit(DECIDES, DECIDES.replace(old, new), "Model(), torch.ones(4, 8)")
    assert said.partition("  code ")[2].splitlines()[0].strip() == code, said


COMPILED = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.last = torch.nn.Linear(8, 64), None

    def forward(self, x):
        h = self.up(x).relu()
        return h.sum()
"""


def test_statement_that_keeps_in_compiled_code_is_named(after_edit: AfterEdit) -> None:
    said = after_edit(
        COMPILED,
        COMPILED.replace("        return h", "        self.last = h\n        return h"),
        "Net(), torch.ones(8, 8)",
        compile={},
    )
    said = said.partition("more held between calls\n")[2].splitlines()
    assert said[0].split(maxsplit=2) == ["code", "model.py:10", "self.last = h"], said


GUARDED = """
import torch

def paired(x):
    x = x * 2
    at = torch.arange(8).view(1, -1).reshape(2, 4)
    return x[at[0]]

def joined(x):
    return paired(x).view(-1, 2).sum()
"""


def test_edited_line_comes_before_a_new_guard_elsewhere(after_edit: AfterEdit) -> None:
    edited = GUARDED.replace("paired(x).view", "paired(x).reshape")
    edited = edited.replace("    at =", "    if not paired:\n        raise ValueError\n    at =")
    said = after_edit(GUARDED, edited, "joined, torch.ones(8, 8)")
    code = said.partition("  code ")[2].splitlines()[0].strip()
    assert code == "model.py:11  return paired(x).reshape(-1, 2).sum()", said


RECORDS = """
import torch

def mine(x):
    with torch.no_grad():
        near = x.relu().sigmoid()
    return near.argmax()

def step(x):
    (x[mine(x)] * x).sum().backward()
"""


def test_lost_no_grad_within_a_step_has_its_line(pytester: pytest.Pytester, run: Run) -> None:
    test = "import torch\nfrom model import step\n\ndef test_x(kernelgauge):\n"
    test += "    x = torch.ones(8, requires_grad=True)\n"
    test += "    kernelgauge.using(timing=False)(lambda: step(x))\n"
    pytester.makepyfile(model=RECORDS, test_x=test)
    assert "1 written" in run("--perf-update")
    pytester.makepyfile(model=RECORDS.replace("no_grad", "enable_grad"))
    said = run()
    assert "cause    autograd records more of the call" in said, said
    code = said.partition("  code ")[2].splitlines()
    assert code[0].strip() == "model.py:4  with torch.enable_grad():", said
    assert "with torch.no_grad():  (gone)" in said


FITS = """
import torch

def fit(x):
    net = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for _ in range(3):
        net(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def test_edited_argument_of_a_constructor_is_named_first(after_edit: AfterEdit) -> None:
    said = after_edit(
        FITS, FITS.replace("lr=0.01", "lr=0.01, momentum=0.9"), "fit, torch.ones(4, 8)"
    )
    first, second, *_ = said.partition("  code ")[2].splitlines()
    constructor = "model.py:5  optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)"
    assert (first.strip(), second.split()[0]) == (constructor, "model.py:8"), second


ON_SEVERAL_LINES = """
import torch

def forward(xs):
    totals = [
        torch.zeros(
            8,
            # of all rows
            dtype=torch.float32,
        )
        for x in xs
    ]
    for total, x in zip(
        totals * 2,
        xs,
    ):
        total += x
    return totals
"""


@pytest.mark.parametrize(
    ("edit", "code"),
    [
        (
            ("float32", "float64"),
            ["model.py:5  totals = [torch.zeros(8, dtype=torch.float64) for x in xs]"],
        ),
        (
            ("xs,\n    )", "[*xs, *xs],\n    )"),
            ["model.py:12  for total, x in zip(totals * 2, [*xs, *xs]):"],
        ),
    ],
)
def test_edited_row_of_a_statement_is_shown_with_all_of_it(
    after_edit: AfterEdit, edit: tuple[str, str], code: list[str]
) -> None:
    said = after_edit(
        ON_SEVERAL_LINES,
        ON_SEVERAL_LINES.replace(*edit),
        "lambda x: forward([x, x]), torch.ones(8)",
    )
    shown = said.partition("  code ")[2].splitlines()
    assert [each.strip() for each in shown[: len(code)]] == code, shown


DELETED = """
import torch

def causal(x):
    n = x.shape[-1]
    index = torch.arange(n)
    return x.masked_fill(index[:, None] < index[None, :], 0.0)
"""


def test_deleted_code_has_no_number_of_today(after_edit: AfterEdit) -> None:
    edited = DELETED.replace("torch.arange(n)", "[[i < j for j in range(n)] for i in range(n)]")
    edited = edited.replace("index[:, None] < index[None, :]", "torch.tensor(index)")
    said = after_edit(
        DELETED,
        edited.replace("import torch\n", "import torch\n\n"),
        "causal, torch.ones(8, 8)",
    )
    gone = said.partition("2 kernels gone: arange, lt\n")[2].partition("  counts")[0]
    assert [each.strip() for each in gone.removeprefix("  code ").splitlines()] == [
        "model.py  index = torch.arange(n)  (1 -> 0 times)",
        "model.py  return x.masked_fill(index[:, None] < index[None, :], 0.0)  (1 -> 0 times)",
    ]


FORCES = """
import torch
from torch import nn

NET = nn.Sequential(nn.Linear(3, 8), nn.SiLU(), nn.Linear(8, 1))

def forces(x):
    x = x.detach().requires_grad_()
    energy = NET(x).sum()
    return torch.autograd.grad(energy, x)[0]
"""


def test_edited_line_that_calls_a_backward_is_named_first(after_edit: AfterEdit) -> None:
    said = after_edit(
        FORCES,
        FORCES.replace("energy, x)", "energy, x, create_graph=True)"),
        "lambda x: forces(x), torch.ones(4, 3)",
    )
    first, second, *_ = said.partition("  code ")[2].splitlines()
    assert (
        first.strip() == "model.py:9  return torch.autograd.grad(energy, x, create_graph=True)[0]"
    )
    assert second.strip() == "model.py:8  (backward)  energy = NET(x).sum()"


def test_line_that_reads_a_tensor_is_named_by_its_call(pytester: pytest.Pytester, run: Run) -> None:
    pytester.makepyfile(model=MODEL, helpers=HELPERS, test_x=TESTS)
    assert "2 written" in run("--perf-update")
    pytester.makepyfile(model=MODEL.replace("# 3", "; x[0].tolist()"))
    for failure in run().split("REGRESSED  ")[1:3]:
        cause, ops, code = failure.splitlines()[1:4]
        assert cause == "  cause    host: Tensor.tolist 0 -> 1 call", failure
        assert ops.strip().startswith("with 3 new ops: "), failure
        assert code.endswith("described(x)  ; x[0].tolist()"), failure


def test_new_ops_are_those_that_a_line_calls(pytester: pytest.Pytester, run: Run) -> None:
    pytester.makepyfile(model=MODEL, helpers=HELPERS, test_x=TESTS)
    assert "2 written" in run("--perf-update")
    pytester.makepyfile(model=MODEL.replace("# 3", "; x.t(); x.flatten()"))
    text = run()
    assert "2 new ops: aten::t, aten::flatten\n" in text, text  # and no aten::transpose, aten::view


def test_other_dtypes_have_names(pytester: pytest.Pytester, run: Run) -> None:
    model = """
def forward(x):
    return x.sum(-1, dtype=torch.float32), torch.arange(8, dtype=torch.float32)
"""
    call = "def test_x(kernelgauge):\n    kernelgauge(forward, torch.ones(4, 8))\n"
    pytester.makepyfile(test_x=f"import torch\n{model}\n{call}")
    assert "1 written" in run("--perf-update")
    pytester.makepyfile(test_x=f"import torch\n{model.replace('32', '64')}\n{call}")
    text = run()
    assert "cause    float32 -> float64 in 2 kernels\n           sum, arange\n" in text, text


def test_other_lists_of_tensors_are_short(pytester: pytest.Pytester, run: Run) -> None:
    test = """
import torch
SIZES = [(3072,), (3072,), (8, 4), (2,), (5,)]

def forward(x):
    torch._foreach_mul([torch.ones(each, dtype=torch.float32) for each in SIZES], 2.0)
    return x + 1

def test_x(kernelgauge):
    kernelgauge(forward, torch.ones(4, 8))
"""
    pytester.makepyfile(test_x=test)
    assert "1 written" in run("--perf-update")
    pytester.makepyfile(test_x=test.replace("(8, 4)", "(8, 6)"))
    text = run()
    assert "cause    float32[8,4] -> float32[8,6] in 1 kernel\n           _foreach_mul\n" in text, (
        text
    )
    pytester.makepyfile(test_x=test.replace("float32", "float64"))
    assert "float32[3072] x2, float32[8,4], and 2 more -> float64[3072] x2, float64[8,4]," in run()


def test_kernels_behind_a_graph_break_keep_their_lines(
    pytester: pytest.Pytester, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(pytester.path / "inductor"))
    model = """
import torch

def forward(x):
    x = x @ x
    torch._dynamo.graph_break()
    return x.sin() @ x
"""
    test = """
import torch
from model import forward

def test_x(kernelgauge):
    kernelgauge.using(compile={}, timing=False)(forward, torch.ones(8, 8))
"""
    pytester.makepyfile(model=model, test_x=test)
    assert "1 written" in run("--perf-update")
    edited = model.replace("sin", "cos").lstrip()
    for moved in ("", "# one\n# two\n"):  # Inductor's cache has the graph of the first
        pytester.makepyfile(model=moved + edited)
        number = 6 + moved.count("\n")
        text = run()
        assert f"  code     model.py:{number}  return x.cos() @ x\n" in text, text


def test_compiled_ops_that_are_gone_are_named(pytester: pytest.Pytester, run: Run) -> None:
    model = (
        "import torch\n\ndef forward(x, given):\n    if not given == None:\n        x = x + given\n"
    )
    test = "import torch\nfrom model import forward\n\ndef test_x(kernelgauge):\n    gauge = "
    test += "kernelgauge.using(compile={}, timing=False)\n    gauge(forward, *torch.ones(2, 8))\n"
    model += "    return x.tanh()\n"
    pytester.makepyfile(model=model, test_x=test)
    assert "1 written" in run("--perf-update")
    pytester.makepyfile(model=model.replace("not given == None", "given is not None"))
    assert "1 passed" in run()
    report = (pytester.path / "reports/latest/report.html").read_text()
    assert "torch.compile was given 2 ops instead of 3\ngone: eq" in report


TENSORS = """
import torch

def square(x):
    return x * x

def squares(x):
    for part in x:
        x = x + square(part)
    return x

def biased(x, y):
    return x + y

def tilted(x, y):
    return torch.add(x.mT, y.mT)
"""
OF_TENSORS = """
import torch
from model import biased, squares, tilted

def test_places(kernelgauge):
    kernelgauge.using(timing=False)(squares, torch.ones(5, 8))

def test_ranks(kernelgauge):
    kernelgauge.using(timing=False)(biased, torch.ones(2, 16, 4, 4), torch.ones(16, 1, 1))

def test_layouts(kernelgauge):
    kernelgauge.using(timing=False)(tilted, torch.ones(8, 16), torch.ones(8, 16))
"""


def test_cause_counts_lines_and_shows_whole_shapes(pytester: pytest.Pytester, run: Run) -> None:
    pytester.makepyfile(model=TENSORS, test_x=OF_TENSORS)
    assert "3 written" in run("--perf-update")
    edited = TENSORS.replace("x * x", "x.clone() * x")
    pytester.makepyfile(model=edited.replace("x + y", "x + y.expand_as(x).contiguous()"))
    text = run()
    (cause, code) = text.partition("  cause ")[2].splitlines()[:2]
    assert cause.strip() == "5 new kernels: clone x5", text
    assert code.split(maxsplit=1)[1] == "model.py:4  return x.clone() * x", text
    assert "input shape [16,1,1] -> [2,16,4,4] in 1 kernel\n" in text, text
    pytester.makepyfile(model=TENSORS.replace("y.mT", "y.mT.contiguous()"))
    text = run("-k", "layouts")
    assert "inputs [16,8] by strides 1,16 -> contiguous in 1 kernel" in text, text


def test_page_has_no_number_for_a_line_that_is_gone(pytester: pytest.Pytester, run: Run) -> None:
    pytester.makepyfile(model=TENSORS, test_x=OF_TENSORS)
    assert "1 written" in run("--perf-update", "-k", "places")
    pytester.makepyfile(model=TENSORS.replace("x * x", "x"))
    text = run("-k", "places")
    assert "  code     model.py  return x * x  (5 -> 0 times)\n" in text, text
    page = (pytester.path / "reports/latest/report.html").read_text()
    assert "<br>model.py <" in page
    assert "model.py:0" not in page
    assert "5 kernels in order of launch; 5 gone<" in page


IN_OTHER_FILES = {
    "package/config.py": """
DEPTH = 2

def width():
    return 1

class Value:
    value = 0

    @classmethod
    def get(cls):
        return cls.value

class most(Value):
    value = 1
""",
    "package/__init__.py": """
from .config import DEPTH, most
""",
    "package/base.py": """
import torch
from . import config
try:
    from . import DEPTH
except ImportError:
    from .missing import DEPTH
from package import most as limit

class Base(torch.nn.Module):
    def __init__(self, again):
        super().__init__()
        self.again = again

    def forward(self, x):
        n = DEPTH + config.width() + limit.get() + self.again
        return torch.stack([x.sin() for _ in range(n)])
""",
    "package/net.py": """
from .base import Base

class Net(Base):
    def __init__(self, again=1):
        super().__init__(again)
""",
    "test_x.py": """
import torch
from package.net import Net

def test_x(kernelgauge):
    kernelgauge.using(timing=False)(Net(), torch.ones(8))
""",
}


@pytest.mark.parametrize(
    ("file", "old", "new", "line"),
    [
        ("config", "DEPTH = 2", "DEPTH = 3", "2  DEPTH = 3"),
        ("config", "return 1", "return 2", "5  return 2"),
        ("config", "value = 1", "value = 2", "15  value = 2"),
        ("net", "again=1", "again=2", "5  def Net.__init__(again=2)"),
    ],
)
def test_edited_statement_of_another_file_is_named_first(
    pytester: pytest.Pytester, run: Run, file: str, old: str, new: str, line: str
) -> None:
    """A constant, a function and a class that the file of the line imports, and a default of a class
    that inherits the line.
    """
    pytester.mkdir("package")
    for name, text in IN_OTHER_FILES.items():
        pytester.path.joinpath(name).write_text(text, "utf-8")
    pytester.syspathinsert()
    assert "1 written" in run("--perf-update")
    edited = pytester.path / "package" / f"{file}.py"
    text = edited.read_text("utf-8")
    assert old in text
    edited.write_text(text.replace(old, new), "utf-8")
    linecache.checkcache()
    said = run()
    assert f"\n  code     package/{file}.py:{line}\n" in said


STEP = """
import torch
from torch import nn

class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8))

    def forward(self, x, gates):
        x = x @ (self.weight / x.shape[-1] ** 0.5)
        if gates.shape[-1]:
            x = x * gates.sigmoid()
        return x

model = nn.ModuleList(Scaled() for _ in range(3))
optimizer = torch.optim.Adam(model.parameters(), foreach=True)
x, gates = torch.randn(64, 8), torch.randn(64, 8)

def step():
    out = x
    for each in model:
        out = each(out, gates)
    out.square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_numbers_behind_a_new_read_are_no_cause(after_edit: AfterEdit) -> None:
    """They may follow from data then, and are not known."""
    said = after_edit(
        STEP, STEP.replace("shape[-1]:", "shape[-1] and gates.abs().max() > 0:"), "step"
    )
    assert "an argument" not in said
    first = said.split("  cause    ", 2)[1]
    assert first.startswith("12 new kernels, in 3 layers: abs x3, max x3, gt x3, is_nonzero x3")
    assert "if gates.shape[-1] and gates.abs().max() > 0:" in first


def test_read_of_many_numbers_stands_above_their_memory(after_edit: AfterEdit) -> None:
    model = "def call(x):\n    assert len(x)\n    return x * 2\n"
    edited = model.replace("len(x)", "len(set(x.flatten().tolist()))")
    said = after_edit(model, edited, "call, torch.randn(4000)")
    host, memory = said.split("  cause    ")[1:]
    assert host.startswith("host: Tensor.tolist 0 -> 1 call")
    assert memory.startswith("peak memory of Python")
    assert "assert len(set(x.flatten().tolist()))" in host
