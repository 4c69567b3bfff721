"""What a module holds before its first call: weights, buffers and caches."""

import pytest

from tests.plugin.inner_project import text_of

HOLDS = """
import os, pytest, torch
from torch import nn

HELD = os.environ.get("HELD")

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(100, 8), nn.Linear(8, 100, bias=False)
        if HELD != "untied":
            self.head.weight = self.embedding.weight
        self.register_buffer("mask", torch.ones(9, 9, dtype=torch.int if HELD == "wide" else torch.bool))
        self.caches = {"keys": [torch.zeros(9)] * 2} if HELD != "list" else {"keys": [torch.zeros(9), torch.zeros(9)]}

    def forward(self, x):
        return self.head(self.embedding(x))

@pytest.mark.kernelgauge(timing=False)
def test_net(kernelgauge):
    kernelgauge(Net(), torch.arange(4))
"""


@pytest.mark.parametrize("held", ["untied", "wide", "list"])
def test_more_that_a_module_holds_is_a_loss(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, held: str
) -> None:
    pytester.makepyfile(test_x=HOLDS)
    run = lambda *given: text_of(  # noqa: E731
        pytester.runpytest_inprocess("-q", "--perf-device=cpu", *given)
    )
    assert "1 written" in run("--perf-update")
    assert "1 passed" in run()
    monkeypatch.setenv("HELD", held)
    said = run()
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
