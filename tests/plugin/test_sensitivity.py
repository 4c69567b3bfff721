"""The slowdown that a PASS may miss, as the ini file sets it."""

from __future__ import annotations

import pytest

from tests.plugin.inner_project import Project

VERDICT, REASON = "kernelgauge_verdict", "kernelgauge_reason"


def ini(project: Project, *lines: str) -> None:
    project.pytester.makeini("[pytest]\nkernelgauge_sensitivity =\n" + "".join(f"    {line}\n" for line in lines))


@pytest.mark.parametrize(
    ("line", "verdict"), [("device_time = 0.01 %", "UNDECIDED"), ("device_time = 20 %", "PASS"), ("", "PASS")]
)
def test_ini_sensitivity_decides_whether_a_time_passes(project: Project, line: str, verdict: str) -> None:
    project.record()
    ini(project, line)
    project.run()
    case = project.case("test_device_time")
    assert case.properties[VERDICT] == verdict
    assert ("+0.01 %" in case.properties[REASON]) is (verdict == "UNDECIDED")
    assert project.case("test_host_dispatch_time").properties[VERDICT] == "PASS"


@pytest.mark.parametrize(
    "line",
    [
        "device_time",
        "device_time = much",
        "gpu_time = 2 %",
        "device_time = 0 %",
        "device_time = -1",
        "device_time = inf",
    ],
)
def test_malformed_ini_sensitivity_is_a_usage_error(project: Project, line: str) -> None:
    ini(project, line)
    result = project.run()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*kernelgauge_sensitivity: got '{line}', expected a line such as*"])
