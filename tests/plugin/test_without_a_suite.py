"""What a session without a suite pays for the plugin, and what it says."""

from __future__ import annotations

import subprocess
import sys

import pytest

SHOW_MODULES = """
import sys

def pytest_terminal_summary(terminalreporter):
    ours = sorted(name for name in sys.modules if name.split(".")[0] in ("kernelgauge", "msgspec", "rich", "torch"))
    terminalreporter.write_line("loaded: " + " ".join(ours))
"""


def test_session_without_a_suite_loads_the_options_only(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(SHOW_MODULES)
    pytester.makepyfile("def test_nothing(): pass\n")
    command = [sys.executable, "-m", "pytest", "-p", "kernelgauge.plugin", "-q"]
    said = subprocess.run(command, cwd=pytester.path, capture_output=True, text=True, check=True).stdout
    (loaded,) = [line for line in said.splitlines() if line.startswith("loaded: ")]
    modules = ("", ".argument_types", ".hookspec", ".plugin")
    assert loaded == "loaded: " + " ".join(f"kernelgauge{name}" for name in modules)


def test_suite_in_a_folder_below_is_found_while_collecting(pytester: pytest.Pytester) -> None:
    folder = pytester.mkpydir("perf")
    (folder / "conftest.py").write_text(
        "from kernelgauge import Workload\n"
        "def pytest_kernelgauge_workloads():\n"
        "    return [Workload('mlp', 'eager', build=object, inputs=tuple, shape=(4,))]\n"
    )
    (folder / "test_perf.py").write_text(
        "def test_it(workload, kernelgauge_test): assert kernelgauge_test.session.pytest is not None\n"
    )
    result = pytester.runpytest_subprocess("-p", "kernelgauge.plugin", "-v")
    result.assert_outcomes(passed=1)


def test_options_that_do_not_go_together_end_a_session_below(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", "1")
    folder = pytester.mkpydir("perf")
    (folder / "conftest.py").write_text("def pytest_kernelgauge_workloads(): return []\n")
    (folder / "test_perf.py").write_text("def test_it(): pass\n")
    result = pytester.runpytest_subprocess("-p", "kernelgauge.plugin", "--perf-update")
    assert result.ret != pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["*--perf-update is refused under CI*"])
