"""What a module holds between calls: weights, buffers, caches and stored results."""

import re

import pytest

from tests.plugin.inner_project import text_of

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
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, held: str
) -> None:
    pytester.makepyfile(test_x=HOLDS)
    run = lambda *given: text_of(  # noqa: E731
        pytester.runpytest_inprocess("-q", "--perf-device=cpu", *given)
    )
    assert "2 written" in run("--perf-update")
    assert "2 passed" in run()
    monkeypatch.setenv("HELD", held)
    said = run()
    assert "1 failed, 1 passed" in said
    assert "REGRESSED  other counts" in said
    assert "held bytes" in said


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
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their methods are the user's: a walk through them runs none."""
    pytester.makepyfile(test_x=REFUSING)
    run = lambda *given: text_of(  # noqa: E731
        pytester.runpytest_inprocess("-q", "--perf-device=cpu", *given)
    )
    assert "2 written" in run("--perf-update")
    assert "2 passed" in run()
    monkeypatch.setenv("KEEPS", "1")
    said = run()
    assert said.count("REGRESSED  other counts") == 2
    assert len(re.findall(r"code +test_x.py:36 .*self.kept.append", said)) == 2
