"""Under pytest-xdist."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

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
def test_an_update_by_several_processes_is_a_usage_error(project: Project, workers: tuple[str, ...]) -> None:
    result = project.pytester.runpytest_subprocess("perf", "--perf-update", *workers)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*run it without*"])
    assert project.measured() == []
    assert not (project.root / "baselines").exists()


def test_two_processes_may_prepare_the_folders_of_reports_at_once(tmp_path: Path) -> None:
    def prepare(_: int) -> None:
        options = Options(root=tmp_path, baselines=tmp_path / "baselines", reports=tmp_path / "reports")
        Gauge(options=options, measurer=lambda: None, choose=lambda _: None, settings=Settings()).prepare_folders()  # type: ignore[arg-type]

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(prepare, range(100)))
