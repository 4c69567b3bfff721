"""`--perf-changed`: what is the code of its baseline keeps the times of that, and nothing else does."""

import json
from typing import Any

import pytest

from kernelgauge.errors import WorkloadError
from tests.commands.conftest import Command
from tests.plugin.inner_project import Run

pytestmark = pytest.mark.timeout(300)

MODEL = """
import torch
from torch import nn

STEPS, EACH, NUMBERS = 3, 2, (30_000,)

@torch.library.custom_op("of_mine::doubled", mutates_args=())
def doubled(x: torch.Tensor) -> torch.Tensor:
    return x.new_full(x.shape, 2.0)

def scaled(x):
    total = 0
    for step in range(STEPS):
        if step % EACH:
            total += step  # 1
        else:
            total -= step
    return x * (1 + (30_000 in NUMBERS))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        return scaled(self.linear(x)).relu()

class Same(Net):
    pass
"""
TESTS = """
import torch
from model import Net, Same, doubled

X = torch.ones(4, 8)

def test_net(kernelgauge):
    kernelgauge(Net(), X)

def test_linear(kernelgauge):
    kernelgauge(torch.nn.Linear(8, 8), X)
"""
# a kernel of code that nobody can read, and what another one is compared with
OTHERS = """
def test_custom(kernelgauge):
    kernelgauge(doubled, X)

def test_faster(kernelgauge):
    kernelgauge.using(faster_than=Same())(Net(), X)
"""
# Inductor numbers the graphs of a process in the C++ code of their kernels
COMPILED = """
import torch

def test_first(kernelgauge):
    kernelgauge.using(compile={})(lambda x: x.sin() + 1, torch.ones(64, 64))

def test_second(kernelgauge):
    kernelgauge.using(compile={})(lambda x: x.cos() * 2, torch.ones(64, 64))
"""
# two modules, and a test that reads the times of one
SUITE = """
import torch
from torch import nn
from kernelgauge import Workload

def pytest_kernelgauge_workloads():
    one = lambda: (torch.ones(8, 8),)
    return [Workload(name, variant, nn.ReLU, one, dtype="fp32")
            for name, variant in (("net", "eager"), ("net", "other"), ("relu", "eager"))]
"""
READS_TIMES = """
import pytest
from kernelgauge import Timer

@pytest.mark.timing
@pytest.mark.workloads(module="net", variant="other")
def test_as_fast(run, sibling):
    timer = Timer.END_TO_END
    assert run.time_us(timer) < 100 * sibling(variant="eager").time_us(timer)
"""
EDITS = {
    "an operator": ("total += step", "total += step ** 2"),
    "a constant": ("= 3, 2", "= 5, 2"),
    "a default": ("def scaled(x):", "def scaled(x, why=None):"),
    "a shape": ("return x", "return x[None]"),
    "a branch": ("= 3, 2", "= 3, 3"),
}
KEPT = "{} of {} times not compared: the same code"


@pytest.fixture
def steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the latency be that of the baseline: other jobs run beside tests."""
    monkeypatch.setattr("kernelgauge.plugin.session.is_as_fast", lambda *_: True)


@pytest.mark.usefixtures("steady")
def test_code_of_the_baseline_keeps_its_times(pytester: pytest.Pytester, run: Run) -> None:
    pytester.makepyfile(model=MODEL, test_x=TESTS)
    assert "2 written" in run("--perf-update")
    # comments, and where the lines are
    pytester.makepyfile(model="# moved\n" + MODEL.replace("# 1", "# as before"))
    text = run("--perf-changed", "--perf-strict")
    assert KEPT.format(2, 2) in text
    assert "2 passed" in text
    assert "PASS (kernels)\n" in text
    assert "the same code" not in run()


@pytest.mark.usefixtures("steady")
def test_other_code_is_timed(pytester: pytest.Pytester, run: Run) -> None:
    pytester.makepyfile(model=MODEL, test_x=TESTS)
    run("--perf-update")
    for name, (old, new) in EDITS.items():
        assert old in MODEL
        pytester.makepyfile(model=MODEL.replace(old, new))
        text = run("-v", "--perf-changed")
        assert KEPT.format(1, 2) in text, f"{name}: {text}"  # of test_linear
        assert "test_x-test_net: timing: other " in text, text
    pytester.makepyfile(model=MODEL.replace(*EDITS["an operator"]))
    # no slower: accepted, it is the code of the baseline
    run("--perf-update")
    assert KEPT.format(2, 2) in run("--perf-changed")


@pytest.mark.usefixtures("steady")
def test_time_that_was_accepted_alone_is_kept(pytester: pytest.Pytester, run: Run) -> None:
    slow = MODEL.replace("    total = 0\n", "    total = 0\n    time.sleep(1e-4)\n")
    pytester.makepyfile(model=f"import time\n{slow}", test_x=TESTS)
    run("--perf-update", "-k", "net")
    pytester.makepyfile(model=f"import time\n{slow.replace('1e-4', '1e-2')}")
    text = run("--perf-update", "-k", "net")
    assert "1 written" in text, text
    (file,) = (pytester.path / "baselines").rglob("test_x-test_net.json")
    (entry,) = json.loads(file.read_bytes())["entries"]
    timers = [each["timers"] for each in entry["processes"]]
    assert len(timers) == 2, timers  # that of the ops is the old one
    text = run("-v", "--perf-changed", "-k", "net")
    assert "1 of 1 time not compared: the same code" in text, text


@pytest.mark.usefixtures("steady")
def test_times_that_a_test_reads_are_measured(pytester: pytest.Pytester, run: Run) -> None:
    standard = "from kernelgauge.standard import *"
    pytester.makepyfile(conftest=SUITE, test_standard=standard, test_own=READS_TIMES)
    run("--perf-update")
    text = run("--perf-changed")
    assert KEPT.format(1, 3) in text  # of relu
    assert "failed" not in text
    assert KEPT.format(3, 3) in run("--perf-changed", "--deselect", "test_own.py")


def test_value_that_takes_longer_is_timed(pytester: pytest.Pytester, run: Run) -> None:
    pytester.makepyfile(model=MODEL, test_x=TESTS)
    run("--perf-update")
    pytester.makepyfile(model=MODEL.replace("(30_000,)", "(*range(30_001),)"))
    assert KEPT.format(2, 2) not in run("--perf-changed")


@pytest.mark.usefixtures("steady")
def test_what_cannot_be_told_is_timed(pytester: pytest.Pytester, run: Run) -> None:
    pytester.makepyfile(model=MODEL, test_x=TESTS.partition("def test_net")[0] + OTHERS)
    run("--perf-update")
    assert "the same code" not in run("--perf-changed")


@pytest.mark.usefixtures("steady")
def test_graphs_compiled_before_are_no_other_code(pytester: pytest.Pytester, run: Run) -> None:
    from torch._inductor import config

    pytester.makepyfile(test_x=COMPILED)
    run("--perf-update")
    with config.patch(fx_graph_cache=False):
        assert "1 of 1 time not compared: the same code" in run("--perf-changed", "-k", "second")


def test_look_that_fails_spoils_no_other_workload(
    pytester: pytest.Pytester, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(workload: Any, *_: object) -> None:
        raise WorkloadError(f"{workload.id}: no memory left")

    pytester.makepyfile(model=MODEL, test_x=TESTS)
    run("--perf-update")
    monkeypatch.setattr("kernelgauge.measure.runner._look_at_latency", failing)
    text = run("--perf-changed", "-k", "net")
    assert "1 passed" in text
    assert "the same code" not in text


def test_update_times_everything(pytester: pytest.Pytester, run: Run) -> None:
    pytester.makepyfile(model=MODEL, test_x=TESTS)
    assert "--perf-update times everything" in run("--perf-update", "--perf-changed")


@pytest.mark.usefixtures("steady")
@pytest.mark.parametrize("arguments", [["--perf-changed"], ["-m", "not timing"]])
def test_page_of_untimed_run_compares_no_times(
    pytester: pytest.Pytester, run: Run, kernelgauge: Command, arguments: list[str]
) -> None:
    linear = TESTS.partition("def test_net")[0] + TESTS[TESTS.index("def test_linear") :]
    pytester.makepyfile(model=MODEL, test_x=linear)
    run("--perf-update")
    assert "1 passed" in run(*arguments)
    said = kernelgauge("review")[1]
    assert "same kernels, not timed: 1\n" in said
    assert "unchanged within noise" not in said
    page = (pytester.path / "reports" / "latest" / "report.html").read_text()
    kernels = page[page.index("<h3>Kernels</h3>") :]
    assert "1 in both</span>" in kernels
    assert "with the same kernels</summary>" in kernels
    for words in ("us</span>", "of the call", "+0.00", " us</title>"):
        assert words not in kernels, words
