"""What one call costs or changes is seen in its own test, and in no other: for real on the CPU."""

import re
from collections.abc import Iterator

import pytest
import torch

from tests.plugin.inner_project import junit_cases, text_of

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(autouse=True)
def own_threads() -> Iterator[None]:
    """Restore the threads that inner tests leave changed."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


CHANGES = """
import subprocess, sys, threading
import pytest, torch
from torch.overrides import TorchFunctionMode

class Mode(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))

CHANGES = {
    "num_threads": lambda: torch.set_num_threads(3),
    "grad_enabled": lambda: torch.set_grad_enabled(False),
    "default_dtype": lambda: torch.set_default_dtype(torch.float64),
    "default_device": lambda: torch.set_default_device("cpu"),
    "deterministic_algorithms": lambda: torch.use_deterministic_algorithms(True),
    "benchmark": lambda: setattr(torch.backends.cudnn, "benchmark", True),
    "flash_sdp": lambda: torch.backends.cuda.enable_flash_sdp(False),
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16).__enter__(),
    "detect_anomaly": lambda: torch.autograd.set_detect_anomaly(True),
    "function modes": lambda: Mode().__enter__(),
}
ENDED = threading.Event()
STARTS = {
    "thread": lambda: threading.Thread(target=ENDED.wait, daemon=True).start(),
    "process": lambda: subprocess.Popen([sys.executable, "-c", "import time; time.sleep(20)"]),
}

@pytest.mark.parametrize("name", [*CHANGES, *STARTS])
def test_call(kernelgauge, name):
    def call(x):
        (CHANGES | STARTS)[name]()
        return x.relu()

    try:
        kernelgauge.using(timing=False)(call, torch.randn(8))
    finally:
        ENDED.set()
        ENDED.clear()

@pytest.mark.parametrize("name", CHANGES)
def test_body(kernelgauge, name):
    if name != "num_threads":
        CHANGES[name]()
    kernelgauge.using(timing=False)(lambda x: x.relu(), torch.randn(8))
    CHANGES[name]()

def test_behind_them(kernelgauge):
    assert torch.is_grad_enabled() and torch.get_default_dtype() == torch.float32
    assert torch.get_num_threads() != 3 and not torch.are_deterministic_algorithms_enabled()
    assert not torch.is_autocast_enabled("cpu") and torch.backends.cuda.flash_sdp_enabled()
    kernelgauge.using(timing=False)(lambda x: x.relu(), torch.randn(8))
"""
STARTED = ("thread", "process")
COSTS = """
import itertools, os, random, time
import pytest, torch

def test_some(kernelgauge):
    drawn = random.Random(1)

    def call(x):
        time.sleep(0.001)
        if "COST" in os.environ and drawn.random() < 0.5:
            time.sleep(0.01)
        return x.relu()

    kernelgauge(call, torch.randn(8))

@pytest.mark.parametrize("each", [1, 2, 3, 5])
def test_cost(kernelgauge, each):
    calls = itertools.count()

    def call(x):
        time.sleep(0.001)
        if "COST" in os.environ and next(calls) % each == 0:
            time.sleep(0.01)
        return x.relu()

    kernelgauge(call, torch.randn(8))
"""


def test_change_of_torch_fails_its_own_test_alone(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_changes=CHANGES)
    result = pytester.runpytest_inprocess("--perf-update", "--junitxml=junit.xml")
    cases = junit_cases(pytester.path / "junit.xml")
    assert len(cases) == 12 + 10 + 1
    for case in cases:
        assert (case.outcome == "passed") is (case.name != "test_call"), text_of(result)
        if case.name == "test_call":
            said = (
                "leaves work running"
                if case.parameters in STARTED
                else "changed settings of torch while"
            )
            (failure,) = re.findall(
                rf"(?ms)^_+ test_call\[{case.parameters}\] _+$(.*?)^_{{3}}",
                f"{text_of(result)}\n___",
            )
            assert said in failure
            assert case.parameters in failure


def test_threads_that_another_test_left_are_named(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_threads="""
        import torch

        def test_first(kernelgauge):
            kernelgauge.using(timing=False)(lambda x: x.relu(), torch.randn(8))

        def test_other():
            torch.set_num_threads(torch.get_num_threads() + 1)

        def test_last(kernelgauge):
            try:
                kernelgauge.using(timing=False)(lambda x: x.relu(), torch.randn(8))
            finally:
                torch.set_num_threads(torch.get_num_threads() - 1)
        """
    )
    result = pytester.runpytest_inprocess("--perf-update")
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["*a test changed torch's threads, and did not restore them*"])


def test_cost_in_some_of_the_calls_is_slower(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makeini("[pytest]\nkernelgauge_replicates = 4\n")
    pytester.makepyfile(test_costs=COSTS)
    pytester.runpytest_inprocess("--perf-update").assert_outcomes(passed=5)
    pytester.runpytest_inprocess("--perf-no-confirm").assert_outcomes(passed=5)
    monkeypatch.setenv("COST", "1")
    result = pytester.runpytest_inprocess("--perf-no-confirm")
    result.assert_outcomes(failed=5)
    said = text_of(result)
    assert said.count("host: time.sleep 1 -> 2 calls") == 5, said
    # beside the cause, where this host is as fast as when it recorded
    late = re.search(r"(\d) of 5 times not judged", said.partition("FAILURES")[2])
    judged = re.findall(r"end to end \S+ -> \S+ us  \+", said)
    assert len(judged) >= 5 - int(late[1] if late else 0), said
