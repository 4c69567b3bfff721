"""Under pytest-xdist."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from kernelgauge.gauge import Gauge, Options
from kernelgauge.measure.settings import Settings
from tests.plugin.inner_project import Project, told

pytest.importorskip("xdist")
pytestmark = pytest.mark.timeout(120)


def test_two_workers_judge_and_attach_their_verdicts(project: Project) -> None:
    project.tell(told(), told(variant="compiled"))
    project.record()
    project.tell(told(gelu_us=5.5), told(variant="compiled"))
    result = project.pytester.runpytest_subprocess("perf", "-n", "2", "--junitxml=junit.xml")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=9, failed=1)
    verdicts = sorted(case.properties["kernelgauge_verdict"] for case in project.cases())
    assert verdicts == ["PASS"] * 9 + ["REGRESSED"]


@pytest.mark.parametrize("workers", [("-n", "2"), ("--dist", "load", "--tx", "2*popen")], ids=["-n", "--tx"])
@pytest.mark.parametrize("option", ["--perf-update", "--perf-runs=runs.json"])
def test_what_one_process_writes_is_a_usage_error_in_several(
    project: Project, option: str, workers: tuple[str, ...]
) -> None:
    result = project.pytester.runpytest_subprocess("perf", option, *workers)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*{option.partition('=')[0]} is written by one process: run it without*"])
    assert not (project.root / "runs.json").exists()
    assert project.measured() == []
    assert not (project.root / "baselines").exists()


def test_two_processes_may_prepare_the_folders_of_reports_at_once(tmp_path: Path) -> None:
    def prepare(_: int) -> None:
        options = Options(root=tmp_path, baselines=tmp_path / "baselines", reports=tmp_path / "reports")
        nobody: Any = None
        Gauge(options, measurer=nobody, confirmer=nobody, choose=nobody, settings=Settings()).prepare_folders()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(prepare, range(100)))
