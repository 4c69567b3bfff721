"""Work of the host that runs no op: found without a clock, with the function and the line of the
user's code.
"""

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kernelgauge.results import read_results
from tests.plugin.inner_project import text_of

pytestmark = pytest.mark.timeout(300)

# Each is planted by the environment. Its line has `# planted` behind it.
WORK = """
import copy, functools, json, os, re, threading, time, warnings
import pytest, torch
from torch import nn

FAULT = "FAULT" in os.environ
CONFIG = {str(number): [number] for number in range(50)}

def copied(x):
    copy.deepcopy(CONFIG)  # planted
def pattern(x):
    re.sub("a+$", "", "aaab")  # planted
def dumped(x):
    json.dumps(CONFIG)  # planted
def opened(x):
    open(os.devnull).close()  # planted
def slept(x):
    time.sleep(0)  # planted
def warned(x):
    warnings.warn("slow")  # planted
def asked(x):
    for _ in range(300): x.size(0)  # planted
def looped(x):
    for _ in range(300): x.shape  # planted
def switched(x):
    with torch.backends.mkldnn.flags(enabled=False): pass  # planted
def threaded(x):
    threading.Thread(target=len, args=("",)).start()  # planted
    while threading.active_count() > ALIVE: pass
def uncached(x):
    table()
def hooked(x):
    pass

def note(module, inputs, output):  # planted
    return None
def of_table():
    return [number * other for number in range(30) for other in range(30)]  # planted
ALIVE, table = threading.active_count(), of_table if FAULT else functools.cache(of_table)

class Net(nn.Module):
    def __init__(self, fault):
        super().__init__()
        self.linear, self.fault = nn.Linear(8, 8), fault
        if FAULT and fault is hooked:
            for _ in range(6):
                self.linear.register_forward_hook(note)

    def forward(self, x):
        if FAULT:
            self.fault(x)
        return self.linear(x)

FAULTS = [copied, pattern, dumped, opened, slept, warned, asked, looped, switched, threaded, uncached, hooked]

@pytest.mark.kernelgauge(timing=False)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda each: each.__name__)
def test_work(kernelgauge, fault):
    kernelgauge(Net(fault), torch.randn(4, 8))
"""
CAUSES = {
    "copied": "copy.deepcopy 0 -> 151 calls",
    "pattern": "re.sub 0 -> 1 call",
    "dumped": "json.dumps 0 -> 1 call",
    "opened": "_?io.open 0 -> 1 call",
    "slept": "time.sleep 0 -> 1 call",
    "warned": "_warnings.warn 0 -> 1 call",
    "asked": "Tensor.size 0 -> 300 calls",
    "looped": r"2 -> 30\d lines of your code run",
    "switched": "torch._C._set_mkldnn_enabled 0 -> 2 calls",
    "threaded": r"_thread.start_\w+ 0 -> 1 call",
    "uncached": r"2 -> 9\d\d lines of your code run",
    "hooked": "test_host.py:note 0 -> 6 calls",
}
Run = Callable[..., str]


@pytest.fixture
def run(pytester: pytest.Pytester) -> Run:
    """Run pytest on the CPU; return its output."""
    return lambda *arguments: text_of(
        pytester.runpytest_inprocess("-q", "--perf-device=cpu", *arguments)
    )


def require_causes(said: str) -> None:
    """Require that each planted fault fails, with its function and its line."""
    assert "12 failed" in said
    lines = [
        number for number, line in enumerate(WORK.strip().splitlines(), 1) if "# planted" in line
    ]
    for name, cause in CAUSES.items():
        failure = said.partition(f"test_host-test_work-{name}: REGRESSED")[2].partition("accept")[0]
        places = re.findall(
            rf"cause    host: {cause}\n(?:  +and .*\n)?  code     .*test_host.py:(\d+)  ", failure
        )
        assert [int(each) in lines for each in places] == [True], (name, failure)


def test_host_work_is_found_with_its_line(
    pytester: pytest.Pytester, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile(test_host=WORK)
    assert "12 written" in run("--perf-update")
    monkeypatch.setenv("FAULT", "1")
    require_causes(run())


# The first process fills a cache on disk, and each process one in memory.
UNCHANGED = """
NAMES = {str(number) for number in range(40)}
@functools.cache
def of_disk():
    if os.path.exists("cache.json"):
        return json.load(open("cache.json"))
    json.dump(CONFIG, open("cache.json", "w"))
    return CONFIG
def copied"""


def test_host_work_unchanged_passes_with_other_hashes(
    pytester: pytest.Pytester, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "of_disk(), sorted(NAMES), any(each == '7' for each in NAMES)"
    pytester.makepyfile(
        test_host=WORK.replace("def copied", UNCHANGED).replace(
            "if FAULT:", f"{code}\n        if FAULT:"
        )
    )
    assert "12 written" in run("--perf-update")
    for seed, workers in (("1", ()), ("2", ("-n", "2"))):
        monkeypatch.setenv("PYTHONHASHSEED", seed)
        done = pytester.runpytest_subprocess("-q", "--perf-device=cpu", *workers)
        assert "12 passed" in text_of(done)


def test_host_work_under_a_debugger_counts_calls_alone(
    pytester: pytest.Pytester, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile(test_host=WORK)
    assert "12 written" in run("--perf-update")
    before = sys.gettrace()
    sys.settrace(lambda *_: None)
    try:
        unchanged = run()
        monkeypatch.setenv("FAULT", "1")
        said = run("-k", "copied or looped")
    finally:
        sys.settrace(before)
    assert "12 passed" in unchanged
    assert "1 failed, 1 passed" in said
    assert "host: copy.deepcopy 0 -> 151 calls" in said


def test_host_work_under_a_profiler_is_not_counted(pytester: pytest.Pytester, run: Run) -> None:
    pytester.makepyfile(test_host=WORK)
    assert "12 written" in run("--perf-update")
    before, profiler = sys.getprofile(), lambda *_: None
    sys.setprofile(profiler)
    try:
        said = run("-k", "copied")
        assert sys.getprofile() is profiler
    finally:
        sys.setprofile(before)
    assert "1 passed" in said
    assert "host work was not counted: a profiler of Python runs" in said
    (found,) = read_results(Path("reports/latest/results.json")).workloads
    assert found.run is not None
    assert not found.run.host_work
