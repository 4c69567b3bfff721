"""Measured for real on the CPU: training steps, sequences of calls, and wrong ones of both."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from kernelgauge.report.findings import reasons
from kernelgauge.results import Results, WorkloadResult, read_results
from tests.plugin.inner_project import Case, junit_cases

pytestmark = pytest.mark.timeout(600)

SUITE = """
import os
from functools import partial
import torch
from torch import nn
from kernelgauge import Training, Workload

class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 4)

    def forward(self, x):
        if "FAULT" in os.environ and len(x) == 6:
            x = x.sin()
        return {"loss": self.down(torch.relu(self.up(x))).pow(2).mean()}

class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(16, 16)

    def forward(self, x, cache):
        cache.append(self.project(x))
        return torch.cat(cache).sum(0)

class Cache(list):
    pass

def decode(model):
    cache = Cache([torch.zeros(1, 16, dtype=model.project.weight.dtype)])
    for _ in range(3):
        yield torch.randn(1, 16), cache

def own_dtype(model):
    yield (torch.randn(4, 16, dtype=model.up.weight.dtype),)

def batches():
    for rows in (3, 6, 5):
        yield (torch.randn(rows, 16),)

def endless():
    while True:
        yield (torch.randn(1, 16),)

def batch():
    return (torch.randn(4, 16),)

adamw = partial(torch.optim.AdamW, lr=1e-3)
clipped = Training(adamw, micro_batches=2, clip_norm=1.0, schedule=partial(torch.optim.lr_scheduler.StepLR, step_size=1))
scaled = Training(adamw, clip_norm=1.0, scaler=partial(torch.amp.GradScaler, "cpu"))
foreign = Training(lambda _: adamw(nn.Linear(1, 1).parameters()))

def workload(module, variant, build=MLP, inputs=batch, **fields):
    return Workload(module, variant, build, inputs, dtype="fp32", **fields)

def step(variant, training=Training(adamw), **fields):
    return workload("step", variant, pass_="step", training=training, **fields)

def pytest_kernelgauge_workloads():
    return [
        step("eager"),
        step("loop", Training(partial(adamw, foreach=False))),
        step("fused", Training(partial(adamw, fused=True))),
        step("clipped", clipped),
        step("scaled", scaled),
        step("compiled", Training(adamw, compile={}), compile={}),
        step("batches", inputs=batches),
        workload("decode", "eager", Decoder, decode),
        workload("batches", "trained", inputs=batches, pass_="train"),
        workload("batches", "compiled", inputs=lambda: batches(), compile={}, compiles=1),
        workload("batches", "static", inputs=batches, compile={"dynamic": False}, compiles=3),
        workload("batches", "own", inputs=own_dtype),
        step("foreign", foreign),
        step("frozen", build=lambda: MLP().requires_grad_(False)),
        workload("sequence", "endless", inputs=endless),
        workload("sequence", "empty", inputs=lambda: (each for each in ())),
    ]
"""
DECLARED, NUMERICS = "test_kernels_and_graphs_are_as_declared", "test_result_matches_float64"


class Suite:
    """A suite in a folder, its last results, and its cases of JUnit by workload and test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "conftest.py").write_text(SUITE)
        (folder / "test_perf.py").write_text("from kernelgauge.standard import *\n")
        (folder / "pytest.ini").write_text("[pytest]\nkernelgauge_device = cpu\nkernelgauge_replicates = 2\n")

    def run(self, *arguments: str, **environment: str) -> Results:
        command = [sys.executable, "-m", "pytest", "--junitxml=junit.xml", "-p", "kernelgauge.plugin", *arguments]
        environment = {**os.environ, **environment}
        done = subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True, check=False)
        assert "INTERNALERROR" not in done.stdout, done.stdout
        return read_results(self.folder / "reports" / "latest" / "results.json")

    def cases(self, workload: str) -> dict[str, Case]:
        found = junit_cases(self.folder / "junit.xml")
        return {case.name: case for case in found if case.parameters.startswith(workload)}


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Suite:
    made = Suite(tmp_path_factory.mktemp("suite"))
    made.results = made.run("-k", "declared or float64")
    return made


def of(results: Results, module: str, variant: str) -> WorkloadResult:
    (found,) = (each for each in results.workloads if (each.module, each.variant) == (module, variant))
    return found


def said(result: WorkloadResult, label: str) -> list[str]:
    return [line.text for verdict in result.verdicts for line in reasons(verdict) if line.label == label]


SOUND = ["eager", "loop", "fused", "clipped", "scaled", "compiled", "batches"]


@pytest.mark.parametrize("variant", SOUND)
def test_step_matches_float64_and_compiles_once(suite: Suite, variant: str) -> None:
    cases = suite.cases(f"step-{variant}-")
    assert {name: case.outcome for name, case in cases.items()} == {DECLARED: "passed", NUMERICS: "passed"}
    counts = of(suite.results, "step", variant).run.counts
    assert (counts.recompiles, counts.graph_breaks) == (0, 0)


def test_step_of_optimizer_has_its_kernels(suite: Suite) -> None:
    eager, fused = (of(suite.results, "step", variant).run for variant in ("eager", "fused"))
    assert "aten::_fused_adamw_" in {kernel.identity.name for kernel in fused.kernels}
    assert eager.counts.launches > 2 * fused.counts.launches


@pytest.mark.parametrize(
    ("module", "variant", "graphs"),
    [
        ("decode", "eager", [0, 0, 0]),
        ("batches", "trained", [0, 0, 0]),
        ("batches", "compiled", [1, 1, 0]),
        ("batches", "static", [1, 1, 1]),
        ("step", "batches", [0, 0, 0]),
    ],
)
def test_sequence_has_launches_and_graphs_of_each_call(
    suite: Suite, module: str, variant: str, graphs: Sequence[int]
) -> None:
    run = of(suite.results, module, variant).run
    assert [call.graphs for call in run.calls] == graphs
    assert sum(call.launches for call in run.calls) == run.counts.launches == 3 * run.calls[0].launches
    assert (run.counts.graphs, run.counts.recompiles) == (sum(graphs) or None, 0)  # None: nothing is to be compiled


def test_sequence_may_compile_as_often_as_declared(suite: Suite) -> None:
    assert suite.cases("batches-static")[DECLARED].outcome == "passed"
    assert suite.cases("batches-compiled")[DECLARED].outcome == "failure"
    assert "compiled graphs: got 2, expected 1" in said(of(suite.results, "batches", "compiled"), "why")[0]


def test_sequence_with_other_inputs_for_float64_is_not_judged(suite: Suite) -> None:
    assert suite.cases("decode-eager")[NUMERICS].outcome == "passed"
    case = suite.cases("batches-own")[NUMERICS]
    assert (case.outcome, "its inputs are others for the reference" in case.message) == ("skipped", True)


@pytest.mark.parametrize(
    ("workload", "text"),
    [
        ("step-foreign", "its optimizer has parameters of another module"),
        ("step-frozen", "there is nothing to train"),
        ("sequence-endless", "its inputs yield too many calls"),
        ("sequence-empty", "its inputs yield no call"),
    ],
)
def test_wrong_workload_fails_one_test(suite: Suite, workload: str, text: str) -> None:
    first, second = suite.cases(workload).values()
    assert (first.outcome, second.outcome) == ("failure", "skipped")
    assert text in first.message
    assert f"{text}: see {DECLARED}" in second.message


def test_regression_names_the_call_and_the_line(suite: Suite) -> None:
    suite.run("-k", "(batches-static or batches-trained) and (declared or structure or device)", "--perf-update=force")
    subprocess.run([sys.executable, "-m", "kernelgauge", "accept", "--force"], cwd=suite.folder, check=True)
    results = suite.run("-k", "batches-static or batches-trained", "-m", "structure", FAULT="1")
    line = 1 + SUITE.splitlines().index("            x = x.sin()")
    for variant in ("static", "trained"):
        result = of(results, "batches", variant)
        assert re.search(r"sin.*, in call 2\b", "\n".join(said(result, "cause")))
        assert f"conftest.py:{line}" in "\n".join(said(result, "code"))
