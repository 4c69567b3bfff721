"""What a module holds between calls: weights, buffers, caches and stored results."""

import re

import pytest

from tests.plugin.inner_project import Run, text_of

HOLDS = """
import os, pytest, torch
from torch import nn

HELD = os.environ.get("HELD")

class Record:
    result = None

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(100, 8), nn.Linear(8, 100, bias=False)
        if HELD != "untied":
            self.head.weight = self.embedding.weight
        self.register_buffer("mask", torch.ones(9, 9, dtype=torch.int if HELD == "wide" else torch.bool))
        self.caches = {"keys": [torch.zeros(9)] * 2} if HELD != "list" else {"keys": [torch.zeros(9), torch.zeros(9)]}

        self.store, self.record, self.cache = {}, Record(), None

    def forward(self, x):
        if self.cache is None:
            self.cache = torch.rand(9)
        y = self.head(self.embedding(x))
        self.latest = x + 1
        if HELD == "store":
            self.store["y"] = y
        if HELD == "record":
            self.record.result = y
        return y

@pytest.mark.kernelgauge(timing=False)
def test_net(kernelgauge):
    kernelgauge(Net(), torch.arange(4))

@pytest.mark.kernelgauge(timing=False, pass_="train")
def test_gradients(kernelgauge):
    run = kernelgauge(nn.Linear(8, 8), torch.randn(4, 8))
    assert run.counts.held_bytes == 4 * (64 + 8)
"""


@pytest.mark.parametrize("held", ["untied", "wide", "list", "store", "record"])
def test_more_that_a_module_holds_is_a_loss(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, run: Run, held: str
) -> None:
    pytester.makepyfile(test_x=HOLDS)
    assert "2 written" in run("--perf-update")
    assert "2 passed" in run()
    monkeypatch.setenv("HELD", held)
    said = run()
    assert "1 failed, 1 passed" in said
    assert "REGRESSED  other counts" in said
    assert "more held between calls" in said
    # a line that has always stored its result is none of the cause
    assert "self.latest" not in said


LAZY = """
import pytest, torch

class Lazy(dict):
    def values(self):
        raise ValueError("imports what is not installed")

known, kept = Lazy(), []

@pytest.mark.kernelgauge(timing=False)
def test_kept(kernelgauge):
    def call(x):
        kept.append(x.sin())
        return x.cos() if known is not None else x
    kernelgauge(call, torch.ones(1000))
"""


def test_dictionary_that_refuses_to_list_its_values_is_no_error(pytester: pytest.Pytester) -> None:
    """Those of transformers import all models."""
    pytester.makepyfile(test_x=LAZY)
    said = text_of(pytester.runpytest_inprocess("-q", "--perf-device=cpu", "--perf-update"))
    assert "1 written" in said


REFUSING = """
import os, pytest, torch
from torch import nn

def refuse(*_):
    raise NotImplementedError("a method of the user's was run")

class Pair(tuple):  # as `e3nn.o3.Irrep`
    __len__ = __iter__ = __eq__ = refuse
    __hash__ = None

class Table(dict):
    __len__ = __iter__ = values = items = refuse

class Proxy:
    __slots__ = "target", "__dict__"
    __getattr__ = __getattribute__ = __bool__ = __eq__ = refuse
    __hash__ = None
    __class__ = property(refuse)

class Own(torch.Tensor):
    __torch_function__ = classmethod(refuse)

proxy, pair, table = Proxy(), Pair((1, 2)), Table(a=1)
object.__setattr__(proxy, "target", pair)
own = torch.ones(9).as_subclass(Own)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.kept, self.pair = [], pair
        self.linear = nn.Linear(64, 64)

    def forward(self, x):
        x, _ = self.linear(x), (table, proxy, own)
        if os.environ.get("KEEPS"):
            self.kept.append(x)
        return x

@pytest.mark.kernelgauge(timing=False)
@pytest.mark.parametrize("kind", ["module", "function"])
def test_net(kernelgauge, kind):
    net = Net()
    kernelgauge(net if kind == "module" else lambda x: net(x), torch.ones(9, 64))
"""


def test_line_that_keeps_is_named_beside_objects_that_refuse(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    """Their methods are the user's: a walk through them runs none."""
    pytester.makepyfile(test_x=REFUSING)
    assert "2 written" in run("--perf-update")
    assert "2 passed" in run()
    monkeypatch.setenv("KEEPS", "1")
    said = run()
    assert said.count("REGRESSED  other counts") == 2
    assert len(re.findall(r"code +test_x.py:36 .*self.kept.append", said)) == 2


STORES = """
import os, pytest, torch
from torch import nn

EDITED = os.environ.get("EDITED")
LAST, TABLES = {}, {}

class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x * x)
        return (x * x).sum()

    @staticmethod
    def backward(ctx, gradient):
        return ctx.saved_tensors[0] * gradient

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.last = nn.Linear(64, 256), None

    def forward(self, x):
        y = self.up(x).relu()
        if EDITED:
            self.last = (y,)
        return y

def loss_of(net, x):
    if x.shape not in TABLES:  # of another test, maybe
        TABLES[x.shape] = torch.ones(999)
    loss = net(x).pow(2).mean()
    if EDITED:
        LAST["loss"] = loss
    return loss.detach()

def square_of(x):
    loss = Square.apply(x)
    if EDITED:
        LAST["square"] = loss
    return loss.detach()

def kept(net, x):
    loss = net(x).pow(2).mean()
    if not EDITED:
        loss = loss.detach()
    LAST["kept"] = loss
    return loss.detach()

def seldom(x):
    result = x.cos()
    LAST["calls"] = LAST.get("calls", 0) + 1
    if LAST["calls"] % 3 == 0:
        LAST["seldom"] = result
    return result

given = pytest.mark.kernelgauge(timing=False, pass_="call")

@given
def test_module(kernelgauge):
    kernelgauge(Net(), torch.randn(32, 64))

@given
def test_function(kernelgauge):
    kernelgauge(loss_of, nn.Linear(64, 256), torch.randn(32, 64))

@given
def test_kept(kernelgauge):
    kernelgauge(kept, nn.Linear(64, 256), torch.randn(32, 64))

@given
def test_own_function(kernelgauge):
    kernelgauge(square_of, torch.randn(64, 64, requires_grad=True))

@given
def test_closure(kernelgauge):
    net, held = nn.Linear(64, 256), {}
    def call(x):
        y = net(x).relu()
        if EDITED:
            held["y"] = [y]
        return y.detach()
    kernelgauge(call, torch.randn(32, 64))

@given
def test_seldom(kernelgauge):
    kernelgauge(seldom, torch.randn(999))
"""
_OUTPUT = 4 * 32 * 256  # bytes of a tensor
MORE_HELD = {  # what is held without the edit and with it, and the line
    # behind the ReLU there is nothing else to keep
    "module": (4 * 256 * 65, 4 * 256 * 65 + _OUTPUT, "self.last = (y,)"),
    # what `pow` keeps, and the loss
    "function": (0, _OUTPUT + 4, 'LAST["loss"] = loss'),
    "kept": (4, _OUTPUT + 4, 'LAST["kept"] = loss'),
    "own_function": (0, 4 * 64 * 64 + 4, 'LAST["square"] = loss'),
    "closure": (0, _OUTPUT, 'held["y"] = [y]'),
}


def test_line_that_keeps_a_graph_is_the_cause(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    pytester.makepyfile(test_x=STORES)
    assert "6 written" in run("--perf-update")
    assert "6 passed" in run()
    assert "1 passed" in run("-k", "test_function")  # which fills the table itself
    monkeypatch.setenv("EDITED", "1")
    said = run()
    assert "5 failed, 1 passed" in said
    for name, (before, after, line) in MORE_HELD.items():
        own = said.partition(f"test_x-test_{name}: REGRESSED")[2].partition("baseline ")[0]
        assert f"held bytes {before} -> {after}" in own
        cause, code = re.findall(r"(?:cause|code) +(.*)", own)[:2]
        graph = "the graph of autograd is kept: a tensor is no longer detached"
        assert cause == graph if name == "kept" else cause.endswith("kB more held between calls")
        assert own.count("kB more held between calls") == 1
        assert code.endswith(line)


GROWS = """
import os, pytest, torch
from torch import nn

EDITED = os.environ.get("EDITED")
HISTORY = []

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.numbers = nn.Linear(64, 8), []

    def forward(self, x):
        self.numbers.append(len(x))
        y = self.linear(x)
        if EDITED:
            HISTORY.append(y.detach())
        return y

compiled = torch.compile(nn.Sequential(nn.Linear(64, 64), nn.ReLU()))

def run(x):
    y = compiled(x)
    if EDITED:
        HISTORY.append(y.detach())
    return y * 2

@pytest.mark.kernelgauge(timing=False)
@pytest.mark.parametrize("kind", ["eager", "compiled"])
def test_net(kernelgauge, kind):
    kernelgauge(Net() if kind == "eager" else run, torch.randn(64, 64))
"""


def test_new_line_that_keeps_is_named_alone(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    """Another container has always grown; and no line of compiled code is watched."""
    pytester.makepyfile(test_x=GROWS)
    assert "2 written" in run("--perf-update")
    monkeypatch.setenv("EDITED", "1")
    said = run()
    for kind, note in (
        ("eager", ""),
        ("compiled", "below: lines that allocate it, or are new; what keeps it is unknown"),
    ):
        own = said.partition(f"test_x-test_net-{kind}: REGRESSED")[2].partition("  counts ")[0]
        cause = own.partition("each call leaves ")[2]
        assert note in cause
        assert re.findall(r"test_x.py:\d+  (?:Net  )?(.*)", cause) == ["HISTORY.append(y.detach())"]


ROTATES = """
import collections, os, pytest, torch
from torch import nn

EDITED = os.environ.get("EDITED")
given = pytest.mark.kernelgauge(timing=False)

class Net(nn.Module):
    def __init__(self, kept=()):
        super().__init__()
        self.linear, self.kept = nn.Linear(64, 64), kept
        self.now = self.before = self.third = None
        self.calls = 0

    def forward(self, x):
        y = self.linear(x)
        self.kept.append(y)
        return y * 2

class Buffers(Net):
    def forward(self, x):
        if EDITED:
            self.before = self.now
        self.now = self.linear(x)
        return self.now * 2

class Third(Net):
    def forward(self, x):
        self.calls += 1
        y = self.linear(x)
        if EDITED and self.calls % 3 == 0:
            self.third = y
        return y * 2

@given
def test_longer(kernelgauge):
    kernelgauge(Net(collections.deque(maxlen=8 if EDITED else 3)), torch.randn(32, 64))

@given
def test_endless(kernelgauge):
    kernelgauge(Net([] if EDITED else collections.deque(maxlen=4)), torch.randn(32, 64))

@given
def test_buffers(kernelgauge):
    kernelgauge(Buffers(), torch.randn(32, 64))

@given
def test_third(kernelgauge):
    kernelgauge(Third(), torch.randn(32, 64))
"""
_WEIGHTS, _ROW = 4 * 65 * 64, 4 * 32 * 64  # bytes
HELD_IN_TURN = {  # bytes held without the edit and with it, in results; and what is said
    "longer": (3, 8, "41.0 kB more held between calls"),
    # its first call alone says how much it holds
    "endless": (4, 1, "each call leaves 8.2 kB more in memory"),
    "buffers": (1, 2, "8.2 kB more held between calls"),
    "third": (0, 1, "8.2 kB more held between calls"),
}


def test_results_that_replace_others_are_held_and_no_growth(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    """A profiler's session does not know the size of what was allocated before it."""
    pytester.makepyfile(test_x=ROTATES)
    assert "4 written" in run("--perf-update")
    assert "4 passed" in run()
    monkeypatch.setenv("EDITED", "1")
    said = run()
    assert "4 failed" in said
    for name, (before, after, cause) in HELD_IN_TURN.items():
        own = said.partition(f"test_x-test_{name}: REGRESSED")[2].partition("baseline ")[0]
        held = [_WEIGHTS + rows * _ROW for rows in (before, after)]
        assert "held bytes {} -> {}".format(*held) in own
        assert cause in own
        assert ("grown bytes" in own) == (name == "endless")
