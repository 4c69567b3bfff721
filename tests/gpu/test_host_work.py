"""Work of the host beside a GPU is found with its function and line where no clock judges it: on a
host that the baseline does not know.
"""

import re
from pathlib import Path

import pytest
import torch

from kernelgauge import Timer
from kernelgauge.judge import STRUCTURE
from kernelgauge.judge import evidence as e
from kernelgauge.results import read_results
from kernelgauge.run import observe
from tests.plugin.inner_project import text_of

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
RESULTS = Path("reports/latest/results.json")

# Each takes 5 to 20 % of the latency on the host of an H200.
TIMED = """
import copy, json, os, re, threading
import pytest, torch
from torch import nn

CONFIG, LOCK = {str(number): [number] for number in range(12)}, threading.Lock()

def copied(net):
    copy.deepcopy(CONFIG)  # planted
def dumped(net):
    json.dumps(CONFIG), json.dumps(CONFIG), json.dumps(CONFIG)  # planted
def locked(net):
    for _ in range(400):  # planted
        with LOCK: pass  # planted
def opened(net):
    open(os.devnull).close()  # planted
def walked(net):
    dict(net.named_parameters())  # planted

class Net(nn.Module):
    def __init__(self, cost):
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(256, 256) for _ in range(16)))
        self.cost = cost

    def forward(self, x):
        if "FAULT" in os.environ:
            self.cost(self.layers)
        return self.layers(x)

@pytest.mark.parametrize("cost", [copied, dumped, locked, opened, walked], ids=lambda each: each.__name__)
def test_work(kernelgauge, cost):
    kernelgauge(Net(cost), torch.randn(64, 256))
"""


def run(pytester: pytest.Pytester, *arguments: str) -> str:
    """Run pytest in this process, where torch is imported; return its output."""
    quick = ("-q", "--perf-no-confirm", "-okernelgauge_replicates=2")
    plugin = ("-p", "kernelgauge.plugin", "--perf-device=cuda")
    return text_of(pytester.runpytest_inprocess(*quick, *plugin, *arguments))


def test_host_work_on_an_unknown_host_has_its_line(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = TIMED.strip().splitlines()
    pytester.makepyfile(test_timed=TIMED)
    assert "5 written" in run(pytester, "--perf-update")
    before = {each.id: each.run for each in read_results(RESULTS).workloads}
    for file in pytester.path.glob("baselines/*/*.json"):
        text, count = re.subn('"host": "[^"]*"', '"host": "another"', file.read_text("utf-8"))
        assert count
        file.write_text(text, "utf-8")
    monkeypatch.setenv("FAULT", "1")
    run(pytester)
    for each in read_results(RESULTS).workloads:
        verdicts = {verdict.subject: verdict for verdict in each.verdicts}
        runs = [run for run in (before[each.id], each.run) if run is not None]
        latency_us = [observe(run.samples[Timer.END_TO_END]).mean_us for run in runs]
        found = verdicts[STRUCTURE]
        (cause, *_) = [it for it in found.reasons if isinstance(it, e.Cause)]
        statuses = {subject: verdict.status.value for subject, verdict in verdicts.items()}
        print(  # noqa: T201
            f"{each.id} {latency_us[0]:.0f} -> {latency_us[1]:.0f} us {cause.change} {statuses}"
        )
        assert found.status.fails
        assert isinstance(cause.change, e.HostCalls)
        # `self.cost(self.layers)` leads to it, and is new, too
        assert "# planted" in lines[cause.places[0].line.deepest.line - 1]
