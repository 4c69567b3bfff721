"""Measured for real on the CPU: odd workloads, steps, sequences, the README, planted causes."""

import re
from pathlib import Path

import pytest

from kernelgauge.report.findings import reasons
from kernelgauge.results import Results, WorkloadResult, read_results
from tests.commands.conftest import Command
from tests.planted import failure, line_of, run_suite
from tests.plugin.inner_project import VERDICT, Case, junit_cases, text_of

pytestmark = pytest.mark.timeout(600)  # compiling takes seconds, and many on a busy machine

SUITE = """
import os
from dataclasses import dataclass
from functools import partial
import torch
from torch import nn
from torch.nn.functional import cross_entropy, rms_norm
from kernelgauge import Training, Workload

@dataclass
class Output:
    loss: torch.Tensor
    logits: torch.Tensor
    tokens: torch.Tensor

class Head(nn.Linear):
    def forward(self, x, *, target, bias):
        logits = super().forward(x) + bias[0]
        return Output(cross_entropy(logits, target), logits, logits.argmax(-1))

class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 4)

    def forward(self, x):
        if "FAULT" in os.environ and len(x) == 6:
            x = x.sin()
        return {"loss": self.down(torch.relu(self.up(x))).pow(2).mean()}

class Decoder(nn.Linear):
    def forward(self, x, cache):
        cache.append(super().forward(x))
        return torch.cat(cache).sum(0)

class Cache(list):
    pass

class Broken(nn.Module):
    def forward(self, x):
        return x + 1 if x.sum() > 0 else x - 1

def head_inputs():
    return (torch.randn(5, 8),), {"target": torch.randint(16, (5,)), "bias": (torch.randn(16, requires_grad=True),)}

def closure():
    return lambda: square + 1

def decode(model):
    cache = Cache([torch.zeros(1, 16, dtype=model.weight.dtype)])
    for _ in range(3):
        yield torch.randn(1, 16), cache

def batches():
    for rows in (3, 6, 5):
        yield (torch.randn(rows, 16),)

def endless():
    while True:
        yield (torch.randn(1, 16),)

square = torch.rand(256, 256)
adamw, captured = partial(torch.optim.AdamW, lr=1e-3), {"backend": "eager"}  # captured by Dynamo alone
clipped = Training(adamw, micro_batches=2, clip_norm=1.0, schedule=partial(torch.optim.lr_scheduler.StepLR, step_size=1))

def workload(module, variant, build=MLP, inputs=lambda: (torch.rand(64, 16),), **fields):
    return Workload(module, variant, build, inputs, **{"dtype": "fp32"} | fields)

def step(variant, training=Training(adamw), **fields):
    return workload("step", variant, pass_="step", training=training, **fields)

def pytest_kernelgauge_workloads():
    return [
        workload("head", "eager", lambda: Head(8, 16), head_inputs, pass_="train"),
        workload("closure", "eager", closure, tuple, dtype=None),
        Workload.from_callable(rms_norm, torch.randn(4, 8), (8,), eps=1e-6),
        workload("breaks", "eager", Broken, compile=captured, graph_breaks=0),
        workload("known_break", "eager", Broken, compile=captured, graph_breaks=1),
        workload("nan", "eager", lambda: lambda x: (x - x) / (x - x), reference=lambda: lambda x: x),
        workload("wrong", "eager", lambda: lambda x: 1.5 * x, reference=lambda: lambda x: x),
        step("eager"),
        step("loop", Training(partial(adamw, foreach=False))),
        step("fused", Training(partial(adamw, fused=True))),
        step("clipped", clipped),
        step("compiled", Training(adamw, compile={}), compile={}),
        step("batches", inputs=batches),
        workload("decode", "eager", lambda: Decoder(16, 16), decode),
        workload("batches", "trained", inputs=batches, pass_="train"),
        workload("batches", "compiled", inputs=lambda: batches(), compile=captured, compiles=1),
        workload("batches", "static", inputs=batches, compile={"dynamic": False}, compiles=3),
        workload("sequence", "endless", inputs=endless),
    ]
"""
DECLARED, NUMERICS = "test_kernels_and_graphs_are_as_declared", "test_result_matches_float64"


class Suite:
    """A suite in a folder, and the results and cases of its first run."""

    def __init__(self, pytester: pytest.Pytester) -> None:
        settings = "[pytest]\naddopts = --perf-device=cpu\nkernelgauge_replicates = 2\n"
        files = {
            "conftest.py": SUITE,
            "test_perf.py": "from kernelgauge.standard import *\n",
            "pytest.ini": settings,
        }
        for name, text in files.items():
            (pytester.path / name).write_text(text)
        self.folder = pytester.path
        self.results = self.run(
            pytester, "-k", "declared or float64 or not (step or batches or decode or sequence)"
        )
        self.all_cases = junit_cases(self.folder / "junit.xml")

    def run(self, pytester: pytest.Pytester, *arguments: str) -> Results:
        result = pytester.runpytest_inprocess("--junitxml=junit.xml", *arguments)
        assert result.ret == pytest.ExitCode.TESTS_FAILED
        assert "INTERNALERROR" not in text_of(result)
        return read_results(self.folder / "reports" / "latest" / "results.json")

    def cases(self, workload: str) -> dict[str, Case]:
        return {case.name: case for case in self.all_cases if case.parameters.startswith(workload)}


SUITES: list[Suite] = []


@pytest.fixture
def suite(pytester: pytest.Pytester) -> Suite:
    """A suite that runs once, in the folder of the first test that asks for it."""
    if not SUITES:
        SUITES.append(Suite(pytester))
    return SUITES[0]


def of(results: Results, module: str, variant: str) -> WorkloadResult:
    (found,) = (
        each for each in results.workloads if (each.module, each.variant) == (module, variant)
    )
    return found


def said(result: WorkloadResult, label: str) -> str:
    return "\n".join(
        line.text for verdict in result.verdicts for line in reasons(verdict) if line.label == label
    )


@pytest.mark.parametrize(
    ("workload", "ends", "said"),
    [
        *(
            (name, ("passed", "PASS"), "")
            for name in ("head-eager-train", "rms_norm-torch", "breaks-eager")
        ),
        *(
            (name, ("failure", "INVALID"), "result differs from the float64 reference")
            for name in ("nan", "wrong")
        ),
        ("closure", ("skipped", "NOT_JUDGED"), "nothing to be compared with"),
    ],
)
def test_result_is_compared_with_float64(
    suite: Suite, workload: str, ends: tuple[str, str], said: str
) -> None:
    cases = suite.cases(f"{workload}-")
    assert (cases[NUMERICS].outcome, cases[NUMERICS].properties[VERDICT]) == ends
    assert said in cases[NUMERICS].message
    assert (
        ends[1] != "PASS" or cases["test_end_to_end_latency"].properties[VERDICT] == "NO_BASELINE"
    )


@pytest.mark.parametrize("variant", ["eager", "loop", "fused", "clipped", "compiled", "batches"])
def test_step_matches_float64_and_compiles_once(suite: Suite, variant: str) -> None:
    cases = suite.cases(f"step-{variant}-")
    assert {name: case.outcome for name, case in cases.items()} == {
        DECLARED: "passed",
        NUMERICS: "passed",
    }
    run = of(suite.results, "step", variant).run
    assert (run.counts.recompiles, run.counts.graph_breaks) == (0, 0)
    assert ("aten::_fused_adamw_" in run.kernel_names()) is (variant == "fused")


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
    suite: Suite, module: str, variant: str, graphs: list[int]
) -> None:
    run = of(suite.results, module, variant).run
    assert [call.graphs for call in run.calls] == graphs
    assert (
        sum(call.launches for call in run.calls) == run.counts.launches == 3 * run.calls[0].launches
    )
    # None: nothing is to be compiled
    assert (run.counts.graphs, run.counts.recompiles) == (sum(graphs) or None, 0)


def test_declaration_allows_graphs_and_breaks(suite: Suite) -> None:
    assert suite.cases("decode-eager")[NUMERICS].outcome == "passed"
    for allowed, too_many, got in (
        ("batches-static", "batches-compiled", "2 compiled graphs, 1 declared"),
        ("known_break-eager", "breaks-eager", "1 graph break, 0 declared"),
    ):
        assert suite.cases(allowed)[DECLARED].outcome == "passed"
        case = suite.cases(too_many)[DECLARED]
        assert (case.outcome, got in case.message) == ("failure", True)


def test_wrong_workload_fails_one_test(suite: Suite) -> None:
    first, second = suite.cases("sequence-endless").values()
    assert (first.outcome, second.outcome) == ("failure", "skipped")
    assert "its inputs yield too many calls" in first.message


def test_regression_names_the_call_and_the_line(
    suite: Suite, pytester: pytest.Pytester, kernelgauge: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = "batches-static or batches-trained"
    monkeypatch.chdir(suite.folder)
    kernelgauge("accept", "--force", "-k", chosen)
    monkeypatch.setenv("FAULT", "1")
    results = suite.run(pytester, "-k", chosen, "-m", "structure")
    line = 1 + SUITE.splitlines().index("            x = x.sin()")
    for variant in ("static", "trained"):
        result = of(results, "batches", variant)
        assert re.search(r"sin.*, in call 2\b", said(result, "cause"))
        assert f"conftest.py:{line}" in said(result, "code")


README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


def test_readme_quick_start_catches_a_slower_module(
    pytester: pytest.Pytester, kernelgauge: Command
) -> None:
    ((name, test),) = re.findall(r"```python\n# (\S+)\n(.*?)```", README, re.DOTALL)
    pytester.mkdir("perf")
    (file := pytester.path / name).write_text(test)
    pytester.makeini("[pytest]\naddopts = --perf-device=cpu\nkernelgauge_replicates = 2\n")
    commands = re.search(r"```sh\n(.*?)```", README, re.DOTALL)[1].splitlines()
    (_, *record), (_, *check), (_, *accept) = (command.split() for command in commands)
    recorded = pytester.runpytest_inprocess(*record)
    assert recorded.ret == pytest.ExitCode.OK
    recorded.stdout.fnmatch_lines(["1 written to *"])
    file.write_text(test.replace("nn.ReLU(),", "nn.ReLU(), nn.Hardtanh(),"))
    checked = pytester.runpytest_inprocess(*check)
    assert checked.ret == pytest.ExitCode.TESTS_FAILED
    checked.stdout.fnmatch_lines(
        ["*REGRESSED  kernels differ from the baseline", "*launches 3 -> 4*"]
    )
    assert kernelgauge(*accept)[0] == 0
    assert pytester.runpytest_inprocess(*check, "-m", "not timing").ret == pytest.ExitCode.OK


SIGMOID = "h = h * torch.sigmoid(h)"
PLANTED = {
    "clone-eager-forward": ("1 new kernel: clone", "mlp", "u = u.clone()"),
    "more_work-eager-train": (
        "6 new kernels: sigmoid, mul",
        "mlp (forward and backward)",
        SIGMOID,
    ),
    # the line that is new, before those that it leads to, with their modules
    "cast_backward-eager-train": ("2 new kernels", "", "u = CastBackward.apply(u)"),
    "graph_break-captured-forward": ("graph break: ", "mlp", "torch._dynamo.graph_break()"),
    # Dynamo leaves all of `forward` alone
    "loop_break-captured-forward": ("graph break: ", "mlp", 'print(end="")'),
    "item-captured-forward": ("graph break: ", "mlp", "u[0, 0, 0].item()"),  # and warns of it
    "contiguous-compiled-forward": (
        "another kernel: cpp_fused_",
        "mlp",
        "u = u.transpose(1, 2).contiguous()",
    ),
}


def test_failure_names_the_cause_first_and_the_line_second(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_pytest(_: Path, *arguments: str, **variables: str) -> str:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        return text_of(pytester.runpytest_inprocess(*arguments))

    workloads = [*PLANTED, "error-eager-forward"]
    said, results = run_suite(pytester.path, workloads, "-m", "not timing", run_pytest=run_pytest)
    for workload, (cause, module, code) in PLANTED.items():
        found = failure(results, workload)
        assert found.cause.startswith(cause), found
        place = "  ".join(filter(None, (line_of(code), module)))
        assert found.code.startswith(f"{place}  "), found
    assert said.count(f"{line_of('h = h.view')} in forward: h = h.view(-1, 3, 7)") == 1
