"""Test functions that measure what they call, for real on the CPU: the fixture kernelgauge, and
--perf-benchmark.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from _pytest.capture import CaptureIO

from kernelgauge.judge import Status
from kernelgauge.measure import numerics
from kernelgauge.results import Results, read_results
from kernelgauge.run import Timer
from tests.commands.conftest import Command
from tests.plugin.inner_project import Project, Run, text_of

pytestmark = pytest.mark.timeout(300)

OPS = """
import itertools
import os, random
import numpy, pytest, torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from kernelgauge import Workload

def attention(q, k, v):
    if "FAULT" in os.environ:
        return (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v
    return scaled_dot_product_attention(q, k, v)

@pytest.mark.parametrize("scale", [-1, 1.5])
def test_attention(kernelgauge, scale):
    run = kernelgauge(attention, *(scale * torch.randn(2, 4, 64, 32) for _ in range(3)))
    assert run.counts.launches == 1

@pytest.mark.kernelgauge(timing=False, pass_="train")
class TestModule:
    def test_structure(self, kernelgauge):
        kernelgauge.using(dtype="fp32")(nn.Linear(64, 64), torch.randn(8, 64))

def test_sequence(kernelgauge):
    def batches():
        yield (torch.randn(4, 8),)
        yield (torch.randn(2, 8),)
    kernelgauge(Workload("any", "name", build=lambda: nn.Linear(8, 8), inputs=batches, dtype="fp32"))

def test_backward_of_its_own(kernelgauge):
    linear = nn.Linear(8, 8)
    kernelgauge(lambda x: linear(x).sum().backward(), torch.randn(4, 8))

@pytest.fixture
def rows():
    return random.randrange(1000), numpy.random.randint(1000), torch.randint(1000, (1,)).item()

def test_drawn_sizes(kernelgauge, rows):
    sizes = *rows, random.randrange(1000)
    kernelgauge(lambda *tensors: [x * 2 for x in tensors], *(torch.randn(1 + size) for size in sizes))

def test_sparse(kernelgauge):
    kernelgauge(torch.mm, torch.randn(64, 64).relu().to_sparse_csr(), torch.randn(64, 32))

def test_other():
    pass

net = nn.Linear(8, 8)

def test_autograd(kernelgauge):
    kernelgauge(lambda x: net(x) if "LOST" in os.environ else torch.no_grad()(net)(x), torch.randn(4, 8))

def test_switch(kernelgauge):
    kernelgauge(lambda x: scaled_dot_product_attention(x, x, x, is_causal="LOST" not in os.environ), torch.randn(1, 4, 8))

def test_counter(kernelgauge):
    calls = itertools.count()
    run = kernelgauge(lambda x: x.roll(next(calls), 0), torch.randn(8, 8))
    assert run.kernels[0].arguments == ("shifts=", "dims=[0]")  # the first is another in each call

def test_dimension(kernelgauge):
    kernelgauge(lambda x: x.cumsum(0 if "LOST" in os.environ else 1), torch.randn(8, 8))

def test_tensors_of_a_list(kernelgauge):
    kernelgauge(lambda *several: torch.cat(several[: 2 if "LOST" in os.environ else 3]), *torch.randn(3, 8, 8))

def test_float8(kernelgauge):
    kernelgauge(lambda x: x.to(torch.float8_e5m2 if "LOST" in os.environ else torch.float8_e4m3fn), torch.randn(64))
"""
REFUSING = """
import concurrent.futures, math, queue, threading
import pytest, torch
from torch import nn

class Config:
    def __init__(self, **values):
        self.values = values

class Refuses:
    def __deepcopy__(self, memo):
        raise NotImplementedError("one is enough")

class Refused(nn.Linear):
    def __deepcopy__(self, memo):
        raise NotImplementedError("no second module")

class Anew:
    def __reduce__(self):
        return Anew, (), {"lock": threading.Lock()}

class Fed:
    # another thread answers
    def __init__(self):
        self.asked, self.told = queue.Queue(), queue.Queue()
        threading.Thread(target=self.answer, daemon=True).start()
    def answer(self):
        while True:
            self.told.put(self.asked.get())

class Net(nn.Module):
    def __init__(self, **more):
        super().__init__()
        self.linear, self.more, self.calls = nn.Linear(8, 8), more, torch.zeros(())
    def forward(self, x):
        self.calls += 1
        for each in self.more.values():
            if isinstance(each, Fed):
                each.asked.put(1)
                each.told.get(timeout=60)
        return self.linear(x)

MORE = {
    "lock": threading.Lock(), "pool": concurrent.futures.ThreadPoolExecutor(1), "file": open(__file__), "module": math,
    "generator": (n for n in range(3)), "nested": Config(locks={"one": threading.RLock()}, two=threading.Lock()),
    "own": Refuses(), "fed": Fed(), "submodule": Refused(8, 8), "result": torch.ones(2, requires_grad=True) * 2, "anew": Anew(),
}

@pytest.mark.kernelgauge(timing=False, pass_="train")
@pytest.mark.parametrize("name", MORE)
def test_net(kernelgauge, name):
    net = Net(more=MORE[name], also=threading.Lock())
    kernelgauge(net, torch.randn(4, 8))
    assert net.calls == 0 and net.linear.weight.grad is None
"""
KINDS = """
import torch
from torch import nn

def twice(graph, inputs):
    assert inputs[0].dtype == torch.float32  # nobody compiles it for the reference
    return lambda *tensors: [tensor * 2 / 2 for tensor in graph(*tensors)]

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, dtype=torch.complex64))
    def forward(self, x):
        return x * self.weight

def names(run):
    return [each.removeprefix("aten::") for each in run.kernel_names()]

def test_compiled_module(kernelgauge):
    net = nn.Sequential(nn.Tanh(), Compiled())
    net[1].compile(backend=twice)
    assert names(kernelgauge(net, torch.randn(8))) == ["tanh", "sin", "mul", "div"]

class Compiled(nn.Module):
    def forward(self, x):
        return x.sin()

def test_complex_parameter(kernelgauge):
    run = kernelgauge.using(dtype="fp32")(Net(), torch.randn(4, 8, dtype=torch.complex64))
    assert "complex" in run.kernels[-1].inputs[1]

def test_nested(kernelgauge):
    rows = torch.nested.nested_tensor([torch.randn(2, 8), torch.randn(3, 8)], layout=torch.jagged)
    kernelgauge(torch.sin, rows)
"""
WRONG = """
import pytest, torch
from torch import nn

def test_twice(kernelgauge):
    kernelgauge(torch.relu, torch.randn(4))
    kernelgauge(torch.relu, torch.randn(4))

@pytest.mark.kernelgauge(speed=2)
def test_option(kernelgauge):
    pass

def test_value(kernelgauge):
    kernelgauge.using(dtype="int3")(torch.relu, torch.randn(4))

def test_tensor(kernelgauge):
    kernelgauge(torch.randn(4))

def test_host(kernelgauge):
    kernelgauge(sorted, [2, 1])

def test_forward(kernelgauge):
    x = torch.randn(4, requires_grad=True)
    kernelgauge.using(pass_="forward")(lambda x: x.sum().backward(), x)

def test_untrained(kernelgauge):
    kernelgauge.using(pass_="train")(nn.functional.mse_loss, torch.randn(4), torch.randn(4))

@pytest.mark.kernelgauge("bf16")
def test_mark(kernelgauge):
    pass

def test_argument(kernelgauge):
    kernelgauge(nn.Linear(4, 4), torch.randn(2, 4), pass_="train")

def test_generator(kernelgauge):
    def generate(x):
        yield x.sin()
    kernelgauge(generate, torch.randn(4))

calls = []

def test_alternates(kernelgauge):
    def f(x):
        calls.append(1)
        return x.sin() if len(calls) % 2 else x.sin().cos()
    kernelgauge(f, torch.randn(4))

def test_raises(kernelgauge):
    kernelgauge(torch.mm, torch.randn(4, 5), torch.randn(4, 5))
"""
BENCHMARKS = """
import torch

def test_relu(benchmark):
    x = torch.randn(1000)
    assert (benchmark(torch.relu, x) >= 0).all()

def test_setup(benchmark):
    benchmark.extra_info["size"] = 64
    assert len(benchmark.pedantic(torch.mm, setup=lambda: ((torch.randn(64, 64),) * 2, {}), rounds=3)) == 64

def test_host(benchmark):
    assert benchmark(sorted, [3, 1, 2]) == [1, 2, 3]

def test_teardown(benchmark):
    log = []

    def setup():
        assert log.count("setup") == log.count("teardown")
        log.append("setup")
        return (torch.randn(9),), {"dim": 0}

    def teardown(x, dim):
        assert (x.shape, dim) == ((9,), 0)
        log.append("teardown")

    benchmark.pedantic(torch.sum, setup=setup, teardown=teardown, rounds=3)
    assert log.count("setup") == log.count("teardown") >= 3
"""
TESTS = """
test_attention-neg1 test_attention-1_5 TestModule-test_structure test_sequence test_backward_of_its_own
test_drawn_sizes test_sparse test_autograd test_switch test_counter test_dimension test_tensors_of_a_list test_float8
"""
IDS = [f"test_ops-{name}" for name in TESTS.split()]


@pytest.fixture
def run(run: Run, pytester: pytest.Pytester) -> Run:
    pytester.makeini("[pytest]\nkernelgauge_replicates = 2\n")
    return run


def results() -> Results:
    return read_results(Path("reports/latest/results.json"))


def statuses() -> dict[str, Status | None]:
    return {workload.id: workload.status for workload in results().workloads}


def test_functions_are_compared_with_their_baselines(
    pytester: pytest.Pytester, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile(test_ops=OPS)
    # As pytest-randomly does.
    pytester.makeconftest(
        "import random, pytest\n@pytest.hookimpl\ndef pytest_runtest_call(): random.seed()\n"
    )
    said = run("-k", "structure")
    assert (
        "record one with: pytest test_ops.py::TestModule::test_structure --perf-device cpu --perf-update"
        in said
    )
    said = run("--perf-update")
    assert "14 passed" in said
    assert "13 written" in said

    monkeypatch.setenv("FAULT", "1")
    said = run("-m", "not timing")
    assert [name for name, status in statuses().items() if status is Status.REGRESSED] == IDS[:2]
    assert list(statuses()) == IDS
    assert "2 failed, 12 passed" in said
    first = said[said.index("test_attention[-1] _") :].splitlines()[1:5]
    assert first[0] == f"{IDS[0]}: REGRESSED  kernels differ from the baseline"
    assert first[1].startswith("  cause    4 kernels instead of 1")
    assert first[3].startswith("  code     test_ops.py:10  return (q @ k.mT")
    assert f"kernelgauge accept -k {IDS[0]}" in said

    monkeypatch.delenv("FAULT")
    monkeypatch.setenv("LOST", "1")  # what no kernel, launch or op shows
    said = run("-m", "not timing", "-k", " or ".join(IDS[-6:]))
    assert list(statuses().values()) == [
        Status.REGRESSED,
        Status.CHANGED,
        Status.PASS,
        *[Status.CHANGED] * 3,
    ]
    for what in ("has a no_grad, inference_mode or detach gone?", "autograd nodes 0 -> 2", "is_causal True -> False", "dim 1 -> 0",
                 "float32[8,8] x3 -> float32[8,8] x2 in 1 kernel", "fp8_e4m3 -> fp8_e5m2"):  # fmt: skip
        assert what in said

    monkeypatch.delenv("LOST")
    assert "2 passed" in run("-m", "not timing", "-k", f"{IDS[0]} or test_sequence")
    assert [workload.run.samples for workload in results().workloads if workload.run] == [{}, {}]
    said = run("-n", "2", "-m", "not timing")
    assert sorted(statuses()) == sorted(IDS), said
    assert not Path("reports/latest/workers").exists()


BREAKS = """
import os
import torch

def body(x):
    x = x.sin()
    if "BREAK" in os.environ:
        torch._dynamo.graph_break()
    return x.cos()

def test_body(kernelgauge):
    options = {"graph_breaks": int(os.environ["DECLARED"])} if "DECLARED" in os.environ else {}
    kernelgauge.using(**options)(torch.compile(body, backend="eager"), torch.randn(8))
"""


LIBRARY = """
import torch

def twice(x):
    torch._dynamo.graph_break()
    x = x.sin()
    torch._dynamo.graph_break()
    return x.sin()
"""

CALLS_A_LIBRARY = """
import os, sys
sys.path.insert(0, "site-packages")
import library_that_breaks, torch

def body(x):
    if os.environ.get("BREAK"):
        return library_that_breaks.twice(x)
    return x.sin().sin()

def test_body(kernelgauge):
    run = kernelgauge(torch.compile(body, backend="BACKEND"), torch.randn(8))
    assert {line.file for it in run.origins for line in it.lines} == {"test_ops.py"}
"""


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_graph_break_in_a_library_names_the_call(
    pytester: pytest.Pytester, run: Run, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    """After the first break, Dynamo compiles the library's function without the code around it."""
    pytester.makepyfile(test_ops=CALLS_A_LIBRARY.replace("BACKEND", backend))
    (pytester.mkdir("site-packages") / "library_that_breaks.py").write_text(LIBRARY)
    assert "1 written" in run("--perf-update")
    monkeypatch.setenv("BREAK", "1")
    said = run("-m", "not timing")
    assert re.search(r"  cause    graph break: .*, 2 times\n", said)
    assert (
        "  code     test_ops.py:7  return library_that_breaks.twice(x)\n"
        "           library_that_breaks.py:5  torch._dynamo.graph_break()\n"
        "           library_that_breaks.py:7  torch._dynamo.graph_break()\n"
    ) in said


LOSSES = """
import pytest, torch
from torch import nn

class Net(nn.Linear):
    def forward(self, x):
        y = super().forward(x)
        return y.sin(), y.cos()

@pytest.mark.parametrize("compile", [None, {}])
def test_net(kernelgauge, compile):
    run = kernelgauge.using(pass_="train", compile=compile)(Net(8, 8), torch.randn(4, 8))
    files = {line.file for it in run.origins if it for line in it.lines}
    assert "test_ops.py" in files and files <= {"test_ops.py", "torch/nn/modules/linear.py"}
"""


def test_code_that_sums_a_loss_is_no_origin(pytester: pytest.Pytester, run: Run) -> None:
    """A `train` pass sums the outputs in code of ours."""
    pytester.makepyfile(test_ops=LOSSES)
    assert "2 passed" in run("--perf-update", "-m", "not timing")


BREAKS_OF_A_BENCHMARK = """
import pytest
from test_ops import body, torch

@pytest.mark.kernelgauge(graph_breaks=0)
def test_body(benchmark):
    benchmark(torch.compile(body, backend="eager"), torch.randn(8))
"""


def test_graph_break_is_recorded_unless_another_number_is_declared(
    pytester: pytest.Pytester, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile(test_ops=BREAKS)
    monkeypatch.setenv("BREAK", "1")
    monkeypatch.setenv("DECLARED", "0")
    for arguments in ((), ("--perf-update",)):
        said = run(*arguments)
        assert "CHANGED  differs from what the workload declares\n  cause    graph break: " in said
        assert "  why      1 graph break, 0 declared\n" in said
        assert "  next     if that is right: kernelgauge.using(graph_breaks=1)(f, x)\n" in said
    assert not list(pytester.path.glob("baselines/*/*.json"))

    monkeypatch.delenv("DECLARED")
    assert "1 graph break: recorded" in run("--perf-update")
    for declared in (None, "1"):
        if declared:
            monkeypatch.setenv("DECLARED", declared)
        assert "1 passed" in run("-m", "not timing")

    # the declaration is stale: nothing else is wrong with the run by itself
    monkeypatch.delenv("BREAK")
    said = run("--perf-update")
    assert (
        "CHANGED  differs from what the workload declares\n  why      0 graph breaks, 1 declared\n"
        in said
    )
    monkeypatch.delenv("DECLARED")
    assert "1 written" in run("--perf-update")
    monkeypatch.setenv("BREAK", "1")
    said = run("-m", "not timing")
    assert "test_ops-test_body: REGRESSED" in said
    assert re.search(r"  cause    graph break: .*\n  code     test_ops.py:7  ", said)
    assert re.search(r"  counts   .*graph breaks 0 -> 1", said)

    # the worst verdict stands first, as in the table, and what is declared below it
    monkeypatch.setenv("DECLARED", "0")
    said = run("-m", "not timing")
    assert "test_ops-test_body: REGRESSED" in said
    below = "\nalso CHANGED  differs from what the workload declares\n  why      1 graph break, 0"
    assert below in said, said
    assert "  next     if that is right: kernelgauge.using(graph_breaks=1)(f, x)\n" in said
    assert re.search(r"\ntest_ops-test_body +\d+ REGRESSED structure\n", said), said
    assert "kernelgauge accept" not in said
    monkeypatch.delenv("DECLARED")
    pytester.makepyfile(test_bench=BREAKS_OF_A_BENCHMARK)
    said = run("--perf-benchmark", "test_bench.py", "-m", "not timing")
    assert "  next     if that is right: @pytest.mark.kernelgauge(graph_breaks=1)\n" in said


BREAK_IN_PYTHONS_LIBRARY = """
import inspect, os, torch

def body(x):
    if "BREAK" in os.environ:
        inspect.stack()
    y = x.sin()
    return y if "FASTER" in os.environ else y.cos() + sum(x * n for n in range(20))

def test_body(kernelgauge):
    kernelgauge.using(compile={"backend": "eager"})(body, torch.randn(8))

def test_time(kernelgauge):
    kernelgauge(body, torch.randn(8))
"""


def test_graph_break_in_pythons_library_is_at_the_line_that_calls_it(
    pytester: pytest.Pytester, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile(test_ops=BREAK_IN_PYTHONS_LIBRARY)
    assert "2 passed" in run("--perf-update")
    monkeypatch.setenv("BREAK", "1")
    said = run("-m", "not timing", "-k", "body")
    assert re.search(r"cause    graph break: .*\n  code     test_ops.py:5  .*\n +inspect.py:", said)
    # what fails says that it is faster, too, where the host let that be judged
    monkeypatch.delenv("BREAK")
    monkeypatch.setenv("FASTER", "1")
    said = run("-k", "time")
    assert "test_time: CHANGED" in said
    verdicts = read_results(Path("reports/latest/results.json")).verdicts
    is_faster = any(each.status is Status.IMPROVED for each in verdicts)
    assert ("\nalso IMPROVED  end to end " in said) == is_faster, said


@pytest.mark.parametrize("workers", [(), ("-n", "1")], ids=["alone", "worker"])
def test_device_that_is_not_there_is_a_usage_error(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, workers: tuple[str, ...]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    pytester.makepyfile(test_ops=OPS)
    arguments = ("-q", "--perf-device=cuda", *workers)
    done = pytester.runpytest_subprocess("-p", "kernelgauge.plugin", *arguments)
    said = text_of(done)
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    assert said.count("ERROR: no CUDA device\n  got  ") == said.count("no CUDA") == 1, said
    assert "--perf-device cpu" in said
    assert "Traceback" not in said


def test_wrong_call_is_one_clear_failure(pytester: pytest.Pytester, run: Run) -> None:
    pytester.makepyfile(test_wrong=WRONG)
    said = run("--perf-update")
    for what, got in (
        ("a test measures one call", "test_twice"),
        ("unknown option", "speed"),
        ("unknown dtype", "'int3'"),
        ("there is nothing to call", "Tensor"),
        ("the mark takes options by name", "'bf16'"),
        ("an option is given to the function", "kernelgauge.using(pass_=...)(function, *args)"),
        ("test_host: it runs no kernel", "pytest --perf-benchmark"),
        ("test_generator: its call returns a generator", "lambda x: list(f(x))"),
        ("test_raises: running failed", "RuntimeError: mat1"),
        ("test_alternates: its calls differ in their work", "not in all: cos"),
        ("test_forward: running failed", 'next     pass_="call"'),
        ("test_untrained: running failed", "expected an input with requires_grad=True"),
        ("nothing to store", "  next     mend what failed\n"),
    ):
        assert what in said
        assert got in said
    assert "Traceback" not in said
    assert "10 failed" in said
    assert "2 errors" in said
    assert not list(pytester.path.glob("baselines/*/*.json"))


LATE = """
import itertools, sys, torch
from torch import nn

class Late(nn.Module):
    compiled = None
    def forward(self, x):
        self.compiled = self.compiled or torch.compile(lambda x: nn.functional.gelu(x) * 2)
        return self.compiled(x)

def test_eager(kernelgauge):
    calls = itertools.count()
    kernelgauge(lambda x: x.roll(next(calls), 0), torch.randn(8))  # is run in other ways too
    assert not {"torch._dynamo", "torch._inductor"}.intersection(sys.modules)

def test_late(kernelgauge):
    run = kernelgauge(Late(), torch.ones(64))
    assert run.kernel_names() == ["cpp_fused_gelu_mul_0"]
"""


def test_dynamo_is_imported_by_what_compiles_alone(pytester: pytest.Pytester) -> None:
    """It takes seconds.

    What compiles within its first call is set up too: else its C++ kernels have no rows.
    """
    pytester.makepyfile(LATE)
    done = pytester.runpytest_subprocess(
        "-p", "kernelgauge.plugin", "-p", "no:randomly", "-m", "not timing", "--perf-update"
    )
    done.assert_outcomes(passed=2)


TIMED = """
import pytest, torch

@pytest.mark.timing_heavy
def test_heavy(kernelgauge):
    kernelgauge(torch.relu, torch.ones(9))

@pytest.mark.shape(rows=9)
def test_light(kernelgauge):
    kernelgauge(torch.relu, torch.ones(9))
"""


@pytest.mark.parametrize(
    ("expression", "timed"),
    [
        ("not timing", {"heavy": False, "light": False}),
        ("not (timing)", {"heavy": False, "light": False}),
        ("not (structure or timing) and not numerics", {"heavy": False, "light": False}),
        ("timing_heavy and not timing", {"heavy": False}),
        ("not timing_heavy", {"light": True}),
        ("not timing or timing_heavy", {"heavy": True, "light": False}),
        ("timing_heavy or not structure", {"heavy": True, "light": True}),
    ],
)
def test_mark_expression_decides_on_times(
    pytester: pytest.Pytester, run: Run, expression: str, timed: dict[str, bool]
) -> None:
    pytester.makepyfile(test_x=TIMED)
    run("-m", expression, "-W", "ignore")
    found = {
        each.id.removeprefix("test_x-test_"): bool(each.run.samples)
        for each in results().workloads
        if each.run
    }
    assert found == timed


def test_fault_of_ours_is_invalid_in_the_table(
    pytester: pytest.Pytester, run: Run, monkeypatch: Any
) -> None:
    monkeypatch.setattr("kernelgauge.measure.numerics.compare_with_float64", lambda *_, **__: 1 / 0)
    pytester.makepyfile(
        "import torch\ndef test_x(kernelgauge): kernelgauge(torch.relu, torch.ones(9))"
    )
    assert "ZeroDivisionError: division by zero" in (said := run("--perf-update"))
    assert statuses() == {"test_fault_of_ours_is_invalid_in_the_table-test_x": "INVALID"}, said


def test_long_trace_has_no_table(pytester: pytest.Pytester, run: Run, monkeypatch: Any) -> None:
    monkeypatch.setattr("kernelgauge.measure.profile._LARGEST_TABLED_BYTES", 1000)
    pytester.makepyfile(
        test_x="import torch\ndef test_x(kernelgauge): kernelgauge(torch.relu, torch.ones(9))"
    )
    run("--perf-update", "-m", "not timing")
    assert "kernelgauge trace TRACE" in Path("reports/latest/traces/test_x-test_x.txt").read_text()


def test_modules_and_tensors_of_all_kinds_are_measured(pytester: pytest.Pytester, run: Run) -> None:
    pytester.makepyfile(test_kinds=KINDS)
    assert "3 passed" in (said := run("--perf-update")), said


def test_two_functions_of_one_id_are_refused(pytester: pytest.Pytester, run: Run) -> None:
    pytester.makepyfile(
        "import pytest\n@pytest.mark.parametrize('x', ['a b', 'a-b'])\ndef test_x(kernelgauge, x): pass"
    )
    assert "two workloads have the same id" in run()


def test_benchmarks_are_measured_unchanged(pytester: pytest.Pytester, run: Run) -> None:
    pytester.makepyfile(test_speed=BENCHMARKS)
    assert "4 written" in run("--perf-benchmark", "--perf-update")
    timers = {each.id: set(each.run.samples) for each in results().workloads if each.run}
    both, host = {Timer.DEVICE, Timer.END_TO_END}, {Timer.END_TO_END}
    of_tests = {"relu": both, "setup": both, "host": host, "teardown": both}
    assert timers == {f"test_speed-test_{name}": found for name, found in of_tests.items()}
    # a busy host's times may be red
    assert "4 passed" in run("--perf-benchmark", "-m", "not timing")
    assert "kernelgauge" not in run()  # pytest-benchmark's own table


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CaptureIO, "isatty", lambda _: True)


@pytest.mark.usefixtures("terminal")
def test_terminal_has_one_line_of_progress(
    pytester: pytest.Pytester, run: Run, capsys: Any
) -> None:
    pytester.makepyfile(
        test_relu="""
import torch
def test_before(): pass
def test_relu(kernelgauge): kernelgauge(torch.relu, torch.randn(9))
"""
    )
    run("--perf-update", "--verbosity=0")
    said = capsys.readouterr().out
    progress = re.findall(r"\r\x1b\[2K  (.*?), \d+ s(?=\r)", said)
    assert progress[:2] == [
        "starting torch and the device",
        "1 of 1: profiling test_relu-test_relu",
    ]
    assert "timing, pass 1: 1 of 1 workloads" in progress[2]
    assert "test_relu-test_relu: timing the end-to-end latency" in progress
    # One line down, and back to where the first dot was.
    assert re.search(r"test_relu.py \.\n\r", said)
    assert "\r\x1b[2K\x1b[A\x1b[14C." in said


def test_log_has_whole_lines_of_dots(project: Project) -> None:
    project.write("test_a.py", "def test_plain(): pass")
    project.write("test_z.py", "def test_plain(): pass")
    lines = project.run("--perf-update", "-p", "no:randomly").outlines
    assert not any("starting torch" in each for each in lines)
    first = lines.index("  compiling")
    assert lines[first - 1].rstrip() == "perf/test_perf.py"
    assert re.match(r"perf/test_perf.py [.s]+ ", lines[first + 1])
    assert re.match(r"perf/test_a.py \. ", lines[first + 2])


@pytest.mark.usefixtures("terminal", "project")
def test_command_has_one_line_of_progress_of_its_processes(kernelgauge: Command) -> None:
    arguments = ("perf", "-p", "kernelgauge.plugin")
    _, out, err = kernelgauge("calibrate", "--processes=2", "--dry-run", "--", *arguments)
    lines = re.findall(r"\r\x1b\[2K(process[^\r\n]*)(?=\r)", err)
    assert re.fullmatch(r"process 1 of 2: compiling, \d+ s", lines[2])
    assert re.fullmatch(
        r"process 2 of 2: mlp-.*: timing the end-to-end latency, \d+ s, about \d+ s left", lines[-1]
    )
    assert "workload" in out
    assert err.endswith("\r\x1b[2K")  # the table takes the line's place


UNCOMPARED = """
import os, torch

def double(x):
    result = x * 2
    return (lambda: result) if "HIDDEN" in os.environ else result

def test_double(kernelgauge):
    kernelgauge.using(timing=False{option})(double, torch.ones(8))
"""
NOT_COMPARED = "not compared: its result holds no floating-point tensor"


def test_result_that_is_no_longer_compared_is_undecided(
    pytester: pytest.Pytester,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    kernelgauge: Command,
) -> None:
    pytester.makepyfile(test_x=UNCOMPARED.format(option=""))
    assert "1 passed" in run("--perf-update")
    monkeypatch.setenv("HIDDEN", "1")
    said = run()
    assert "1 skipped" in said
    assert "UNDECIDED  results no longer compared: its result holds no floating-point" in said
    assert "1 failed" in run("--perf-strict")
    code, out, _ = kernelgauge("accept")
    assert (code, "refused" in out or "not stored" in out) == (1, True), out

    (accept,) = re.findall(r"accept +kernelgauge (accept .*)", run())
    code, out, _ = kernelgauge(*accept.split())
    assert (code, "result with float64: compared -> not compared" in out) == (0, True), out
    said = run("--perf-strict")  # accepted, and said all the same
    assert "1 passed" in said
    assert f"1 of 1 result {NOT_COMPARED}" in said

    monkeypatch.delenv("HIDDEN")
    assert "not compared -> compared" in run("--perf-update")
    monkeypatch.setenv("HIDDEN", "1")
    assert "1 failed" in run("--perf-strict")


def test_verbose_run_says_where_a_copy_fails(pytester: pytest.Pytester, run: Run) -> None:
    code = """
import torch

def call(x):
    if x.dtype != torch.float32:
        raise TypeError("only float32")
    return x + 1

def test_call(kernelgauge):
    kernelgauge.using(timing=False)(call, torch.ones(8))
"""
    pytester.makepyfile(test_x=code)
    said = "1 of 1 result not compared: a copy in float64 does not run"
    where = [
        r"where +test_x\.py:5 in call: raise TypeError\(.only float32.\)",
        r"got +TypeError: only float32",
    ]
    brief = run("--perf-update")
    assert (said in brief, re.search(where[0], brief)) == (True, None)
    verbose, page = run("-vv"), Path("reports", "latest", "report.md").read_text()
    for text in (verbose, page):
        assert said in text
        assert all(re.search(each, text) for each in where), text


def test_result_that_never_could_be_compared_is_accepted(
    pytester: pytest.Pytester,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    kernelgauge: Command,
) -> None:
    pytester.makepyfile(test_x=UNCOMPARED.format(option=", tolerance=0.01"))
    monkeypatch.setenv("HIDDEN", "1")
    run("--perf-update")
    assert "1 failed" in run("--perf-strict")
    assert [kernelgauge(each)[0] for each in ("review", "accept")] == [0, 0]


def test_old_baseline_knows_no_comparison_until_an_update(
    pytester: pytest.Pytester, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile(test_x=UNCOMPARED.format(option=""))
    run("--perf-update")
    (file,) = pytester.path.glob("baselines/*/*.json")
    file.write_text(re.sub(r', "compared": true', "", file.read_text()))
    monkeypatch.setenv("HIDDEN", "1")
    said = run("--perf-strict")
    assert "1 passed" in said
    assert NOT_COMPARED in said
    monkeypatch.delenv("HIDDEN")
    assert "result with float64: not known -> compared" in run("--perf-update")
    assert "1 passed" in run("-m", "not numerics", "--perf-update")  # which forgets nothing
    monkeypatch.setenv("HIDDEN", "1")
    assert "1 failed" in run("--perf-strict")


@pytest.mark.parametrize("option", [", tolerance=0.1", ", reference=lambda: double"])
def test_comparison_that_a_test_asks_for_is_not_skipped(
    pytester: pytest.Pytester, run: Run, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    monkeypatch.setenv("HIDDEN", "1")
    pytester.makepyfile(test_x=UNCOMPARED.format(option=option))
    assert "1 failed" in run()  # it has no baseline
    run("--perf-update")
    assert f"UNDECIDED  results {NOT_COMPARED}" in run()
    assert "1 failed" in run("--perf-strict")


@pytest.mark.parametrize(("failing", "ends"), [(2, "1 passed"), (3, "1 failed")])
def test_chance_that_hides_a_result_is_drawn_again(
    pytester: pytest.Pytester, run: Run, monkeypatch: pytest.MonkeyPatch, failing: int, ends: str
) -> None:
    pytester.makepyfile(test_x=UNCOMPARED.format(option=""))
    run("--perf-update")
    compare, seeds = numerics.compare_with_float64, list[int]()

    def by_chance(*arguments: Any, seed: int) -> Any:
        seeds.append(seed)
        if len(seeds) <= failing:
            raise numerics.NotComparedError("rounding or overflow alone explains any error")
        return compare(*arguments, seed=seed)

    monkeypatch.setattr(numerics, "compare_with_float64", by_chance)
    assert ends in run("--perf-strict", "--perf-seed", "7")
    assert seeds == [7, 8, 9]


def test_module_with_lock_is_copied_and_compared(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_net=REFUSING)
    said = text_of(pytester.runpytest_inprocess("-q", "--perf-update"))
    found = {
        each.id.removeprefix("test_net-test_net-"): each
        for each in read_results(Path("reports/latest/results.json")).workloads
    }
    errors = {"submodule": "no second module", "anew": "_thread.lock"}
    failed = {name for name, each in found.items() if each.status is Status.INVALID}
    assert failed == errors.keys(), said
    for name, error in errors.items():
        block = said[said.index(f"\ntest_net-test_net-{name}: building failed") :]
        assert error in block.split("\n___")[0]
    assert len(found) == 11
    assert "not compared" not in said


def test_accepted_file_lists_its_ops_by_name(
    pytester: pytest.Pytester, run: Run, kernelgauge: Command
) -> None:
    test = "import torch\ndef test_x(kernelgauge):\n    kernelgauge.using(timing=False)"
    calls = "lambda x: x.tanh().sin().cos().exp().abs().neg().relu().t().clone()"
    pytester.makepyfile(test_x=f"{test}({calls}, torch.ones(4, 8))")
    run("--perf-update")
    (file,) = pytester.path.glob("baselines/*/*.json")
    before = json.loads(file.read_text())["ops"]
    pytester.makepyfile(
        test_x=f"{test}({calls.replace('x.tanh', 'x.clone().tanh')}, torch.ones(4, 8))"
    )
    run()
    assert kernelgauge("accept")[0] == 0
    after = json.loads(file.read_text())["ops"]
    assert list(after) == list(before) == sorted(before)
    assert {name for name, n in after.items() if before[name] != n} >= {"aten::clone"}


TANH = """
import torch

def test_x(kernelgauge):
    kernelgauge(torch.tanh, torch.randn(64, 64))
"""


def test_time_that_is_not_judged_has_no_baseline_beside_it(
    pytester: pytest.Pytester, run: Run
) -> None:
    pytester.makepyfile(test_ops=TANH)
    assert "1 written" in run("--perf-update")
    (file,) = pytester.path.glob("baselines/*/*.json")
    # a host that was nine times as fast
    stored = re.sub(
        r'("control_us": )([\d.]+)', lambda it: f"{it[1]}{float(it[2]) / 9}", file.read_text()
    )
    file.write_text(stored)
    said = run()
    assert re.search(r"\ntest_ops-test_x +1 +[\d.]+ +PASS +time not judged\n", said), said
    assert "baseline us" not in said


GENERATED = """
import torch
from torch import fx, nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        graph = fx.Graph()
        graph.output((fx.Proxy(graph.placeholder("x")).sin() + 1).node)
        self.inner = fx.GraphModule({}, graph)

    def forward(self, x):
        return self.inner(x) * 2

def test_net(kernelgauge):
    kernelgauge.using(compile={})(Net(), torch.randn(64, 48))
"""


def test_copies_that_each_compile_anew_count_once(pytester: pytest.Pytester, run: Run) -> None:
    """Each copy of a `GraphModule` has a class of its own, which Dynamo guards."""
    pytester.makepyfile(test_generated=GENERATED)
    said = run("--perf-update")
    assert "test_generated-test_net: 1 recompile: recorded" in said
