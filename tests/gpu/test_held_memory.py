"""What calls leave on a GPU, and the line that keeps it."""

import re

import pytest
import torch

from tests.plugin.inner_project import text_of
from tests.plugin.test_held_memory import MORE_HELD, STORES

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


def test_line_that_keeps_a_graph_is_the_cause(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile(test_x=STORES)
    run = lambda *given: text_of(pytester.runpytest_inprocess("-q", *given))  # noqa: E731
    assert "6 written" in run("--perf-update")
    assert "6 passed" in run()
    monkeypatch.setenv("EDITED", "1")
    said = run()
    assert "5 failed, 1 passed" in said
    for name, (before, after, line) in MORE_HELD.items():
        own = said.partition(f"test_x-test_{name}: REGRESSED")[2].partition("baseline ")[0]
        assert f"held bytes {before} -> {after}" in own
        assert re.findall(r"code +(.*)", own)[0].endswith(line)
