"""A test that compares two implementations, on a CPU where each kernel takes 0.5 us:
`using(faster_than=..., by=...)`.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from kernelgauge.judge import RATIO, Status
from kernelgauge.measure.measurement import Measurement, Replicate
from kernelgauge.results import read_results
from tests.plugin.inner_project import Run

pytestmark = pytest.mark.timeout(300)

CODE = """
import copy
import pytest, torch
from torch import nn

x, weight = torch.randn(16, 16), torch.randn(16, 16)

def slow(function):
    def ten_times(*tensors):
        for _ in range(9):
            function(*tensors)
        return function(*tensors)
    return ten_times

def square(x):
    return x @ x

def halves(x):
    return (x.bfloat16() @ x.bfloat16()).float()

def in_float32(x):
    assert x.dtype == torch.float32
    return x @ weight

def nothing(x):
    x @ x

class Ten(nn.Module):
    def __init__(self, times=10):
        super().__init__()
        self.linear, self.times = nn.Linear(16, 16), times
    def forward(self, x):
        return [self.linear(x) for _ in range(self.times)][-1]

class OtherNames(nn.Module):
    def __init__(self, ten):
        super().__init__()
        self.once = copy.deepcopy(ten.linear)
    def forward(self, x):
        return self.once(x)

ten = Ten()

def with_times(ten, times):
    other = copy.deepcopy(ten)
    other.times = times
    return other

"""
TEST = "def test_call(kernelgauge):\n    kernelgauge.using({})({})\n"
PASSED, FAILED, SKIPPED = "1 passed", "1 failed", "1 skipped"
CASES = {
    "faster": (
        ("faster_than=slow(square), by=0.05", "square, x"),
        (PASSED, "PASS  5 % faster than ten_times: CPU time 0.5 us against 5.0 us, -"),
    ),
    "slower": (
        ("faster_than=square", "slow(square), x"),
        (FAILED, "REGRESSED  not faster than square: CPU time 5.0 us against 0.5 us, "),
    ),
    "as_fast": (
        ("faster_than=square, by=0.05", "lambda x: x @ x, x"),
        (
            SKIPPED,
            "UNDECIDED  not known to be 5 % faster than square: CPU time 0.5 us against 0.5 us, ",
        ),
    ),
    "not_as_much": (
        ("faster_than=slow(square), by=0.99", "square, x"),
        (FAILED, "REGRESSED  not 99 % faster than ten_times"),
    ),
    "unequal": (
        ("faster_than=slow(square)", "lambda x: x @ x * 1.001, x"),
        (FAILED, "INVALID  result differs from the float64 reference"),
    ),
    "other_indices": (
        (
            "faster_than=slow(lambda x: x.sort())",
            "lambda x: (x.sort()[0], x.sort(descending=True)[1]), x",
        ),
        (FAILED, "output 1: error"),
    ),
    "integers": (
        ("faster_than=slow(torch.argmax)", "torch.argmax, x"),
        (PASSED, "PASS  faster than ten_times"),
    ),
    "coarser": (
        ("faster_than=slow(square)", "halves, x"),
        (FAILED, "INVALID  result differs from the float64 reference"),
    ),
    "coarser_as_allowed": (
        ("faster_than=slow(square), tolerance=0.02", "halves, x"),
        (PASSED, "PASS  faster than ten_times"),
    ),
    "random": (
        ("faster_than=slow(nn.functional.dropout)", "nn.functional.dropout, x"),
        (FAILED, "INVALID  results not compared: its result is random"),
    ),
    "no_result": (
        ("faster_than=slow(nothing)", "nothing, x"),
        (FAILED, "INVALID  results not compared: its result holds no"),
    ),
    "fewer_results": (
        ("faster_than=slow(lambda x: (x @ x, x))", "square, x"),
        (FAILED, "the reference returns other tensors"),
    ),
    "other_fails": (
        ("faster_than=lambda x: x @ torch.ones(3, 3)", "square, x"),
        (FAILED, "test_call-faster_than: running failed"),
    ),
    "no_float64": (
        ("faster_than=slow(in_float32)", "lambda x: x @ weight, x"),
        (PASSED, "PASS  faster than ten_times"),
    ),
    "holds_a_tensor_and_unequal": (
        ("faster_than=slow(lambda x: x @ weight)", "lambda x: x @ weight * 1.001, x"),
        (FAILED, "INVALID  result differs from the float64 reference"),
    ),
    "no_float64_and_unequal": (
        ("faster_than=slow(in_float32)", "lambda x: x @ weight * 1.001, x"),
        (FAILED, "INVALID  result differs from the float32 reference"),
    ),
    "modules": (
        ("faster_than=Ten(), pass_='train'", "Ten(1), x"),
        (PASSED, "PASS  faster than Ten"),
    ),
    "module_of_other_names": (
        ("faster_than=ten", "OtherNames(ten), x"),
        (PASSED, "PASS  faster than Ten"),
    ),
    "module_in_bf16": (
        ("faster_than=ten, dtype='bf16'", "OtherNames(ten), x"),
        (PASSED, "PASS  faster than Ten"),
    ),
    "compiled_module": (
        ("faster_than=ten, pass_='train'", "torch.compile(with_times(ten, 1), backend='eager'), x"),
        (PASSED, "PASS  faster than Ten"),
    ),
    "compiled_by_option": (
        ("faster_than=slow(square), compile={'backend': 'eager'}", "square, x"),
        (PASSED, "PASS  faster than ten_times"),
    ),
}
REFUSED = {
    "timing=False, faster_than=square": "faster_than excludes timing",
    "target='sm_90', faster_than=square": "faster_than excludes target",
    "reference=lambda: square, faster_than=square": "faster_than excludes reference",
    "faster_than='eager'": "there is nothing to be faster than",
    "by=0.05": "{'faster_than': None, 'by': 0.05}",
    "faster_than=square, by=5": "0 <= by < 1",
    "faster_than=square, by='5 %'": "0 <= by < 1",
}


@pytest.fixture
def steady_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each kernel take 0.5 us on a steady host. Another job would change a measured ratio."""
    measure = Measurement.replicate
    hosts_us: list[float | None] = []

    def replicate(self: Measurement, index: int, usual_clock_mhz: int | None = None) -> Replicate:
        measured = measure(self, index, usual_clock_mhz)
        hosts_us.append(measured.host_us)
        each_us = 0.5 * (1 + 0.0001 * (-1) ** index)
        return replace(
            measured,
            kernel_us=(each_us,) * len(measured.kernel_us),
            busy_share=1.0,
            host_us=hosts_us[0],
        )

    monkeypatch.setattr(Measurement, "replicate", replicate)


@pytest.fixture
def run(run: Run, pytester: pytest.Pytester, steady_clock: None) -> Run:
    pytester.makeini("[pytest]\nkernelgauge_replicates = 4\n")
    return run


def statuses() -> dict[str, list[Status]]:
    """Return the statuses of the ratios, by workload."""
    workloads = read_results(Path("reports/latest/results.json")).workloads
    return {
        each.id: [it.status for it in each.verdicts if it.subject == RATIO] for each in workloads
    }


@pytest.mark.parametrize("case", CASES)
def test_call_beside_other_code_is_judged_by_both(
    pytester: pytest.Pytester, run: Run, case: str
) -> None:
    call, expected = CASES[case]
    pytester.makepyfile(test_speed=CODE + TEST.format(*call))
    said = run()
    for each in expected:
        assert each in said, said


@pytest.mark.parametrize("options", REFUSED)
def test_wrong_option_is_refused(pytester: pytest.Pytester, run: Run, options: str) -> None:
    pytester.makepyfile(test_speed=CODE + TEST.format(options, "square, x"))
    said = run()
    assert REFUSED[options] in said
    assert "1 failed" in said
    assert "Traceback" not in said


SHAPES = """
@pytest.mark.parametrize("rows", [8, 16])
@pytest.mark.kernelgauge(faster_than=slow(torch.relu), by=0.05)
def test_shape(kernelgauge, rows):
    kernelgauge(torch.relu if rows == 8 else slow(torch.relu), torch.randn(rows, rows))
"""


def test_each_shape_has_its_ratio(pytester: pytest.Pytester, run: Run) -> None:
    pytester.makepyfile(test_speed=CODE + SHAPES)
    run()
    assert statuses() == {
        "test_speed-test_shape-8": [Status.PASS],
        "test_speed-test_shape-16": [Status.UNDECIDED],
    }


def test_baseline_is_needed_by_strict_runs_alone(pytester: pytest.Pytester, run: Run) -> None:
    test = TEST.format("faster_than=slow(torch.relu)", "torch.relu, x")
    pytester.makepyfile(test_speed=CODE + test)
    assert "1 passed" in (said := run())
    assert "record one with: pytest test_speed.py" in said
    assert "1 failed" in run("--perf-strict")
    assert "1 failed" in run("-m", "not timing")  # without times, nothing else is judged

    assert "1 written" in run("--perf-update")
    assert "1 passed" in run("-m", "not timing")
    pytester.makepyfile(
        test_speed=CODE + test.replace("torch.relu, x", "lambda x: x.relu().relu(), x")
    )
    said = run("--perf-no-confirm")
    assert "REGRESSED  kernels differ from the baseline" in said
    assert statuses() == {"test_speed-test_call": [Status.PASS]}


@pytest.mark.parametrize(
    ("call", "outcome", "files"), [("slow(torch.relu)", FAILED, 0), ("torch.relu", SKIPPED, 1)]
)
def test_update_overrules_no_ratio(
    pytester: pytest.Pytester, run: Run, call: str, outcome: str, files: int
) -> None:
    pytester.makepyfile(test_speed=CODE + TEST.format("faster_than=torch.relu", f"{call}, x"))
    assert outcome in run("--perf-update")
    assert len(list(pytester.path.glob("baselines/*/*.json"))) == files
