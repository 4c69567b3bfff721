"""`kernelgauge calibrate` for real: two processes on the CPU, and a suite that is judged by what they stored."""

from __future__ import annotations

import json

import pytest

from kernelgauge.cli import main
from tests.plugin.inner_project import junit_cases

pytestmark = pytest.mark.timeout(300)

CONFTEST = """
import torch
from kernelgauge import Workload

def pytest_kernelgauge_workloads():
    return [
        Workload(name, "eager", build=lambda: torch.nn.Linear(8, 8), inputs=lambda: (torch.randn(4, 8),), dtype="fp32")
        for name in ("first", "second")
    ]
"""


@pytest.fixture
def suite(pytester: pytest.Pytester) -> pytest.Pytester:
    perf = pytester.mkdir("perf")
    (perf / "conftest.py").write_text(CONFTEST)
    (perf / "test_perf.py").write_text("from kernelgauge.standard import *\n")
    return pytester


def test_suite_is_calibrated_and_judged_by_it(suite: pytest.Pytester, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["calibrate", "perf", "--perf-device", "cpu", "--processes", "2"]) == 0
    printed = capsys.readouterr()
    assert printed.err.splitlines() == ["process 1 of 2", "process 2 of 2"]
    assert "2 written to " in printed.out
    assert not (suite.path / "reports").exists()  # those of the processes went with them
    baselines = {path.stem: json.loads(path.read_text()) for path in suite.path.glob("baselines/cpu-*/*.json")}
    assert set(baselines) == {"first-eager-fp32", "second-eager-fp32"}
    for baseline in baselines.values():
        (entry,) = baseline["entries"]
        assert entry["draws"] == 2
        assert [set(process["timers"]) for process in entry["processes"]] == [{"device_time", "end_to_end"}] * 2
        times = [process["timers"]["device_time"]["mean_us"] for process in entry["processes"]]
        assert times[0] != times[1]  # two measurements, not one twice

    suite.runpytest_subprocess("perf", "--perf-device", "cpu", "--junitxml=junit.xml")
    verdicts = {
        (case.parameters, case.name): case.properties.get("kernelgauge_verdict")
        for case in junit_cases(suite.path / "junit.xml")
    }
    for workload in baselines:
        assert verdicts[workload, "test_structure_is_that_of_the_baseline"] == "PASS"
        # The times of a busy CPU may be any of these, but they are compared.
        assert verdicts[workload, "test_device_time"] in ("PASS", "IMPROVED", "UNDECIDED", "REGRESSED", "NOT_JUDGED")
