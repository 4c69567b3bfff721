"""`--perf-history`: every run of pytest leaves a file in a folder that machines share."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.plugin.inner_project import Project, told


def entries(project: Project, folder: str = "nights") -> list[Path]:
    return sorted((project.root / folder).rglob("*.json"))


def test_each_run_adds_one_file_with_its_workloads(project: Project) -> None:
    project.tell(told(), told(variant="compiled"))
    project.record("--perf-history=nights")
    (first,) = entries(project)
    result = project.run("--perf-history=nights", "-o", "kernelgauge_replicates=9")
    (second,) = set(entries(project)) - {first}  # in order of name: of one second, whichever
    for path in entries(project):
        assert "mlp-compiled-bf16-4x8" in path.read_text()
        assert json.loads(path.read_text())["started_at"].endswith("Z")
    result.stdout.fnmatch_lines([f"history: */nights/{second.relative_to(project.root / 'nights')}"])


def test_a_run_that_failed_is_a_night_too(project: Project) -> None:
    project.record()
    project.tell(told(gelu_us=5.5))
    result = project.run("--perf-history=nights")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    (path,) = entries(project)
    assert "REGRESSED" in path.read_text()


def test_without_the_option_there_is_none(project: Project) -> None:
    project.run()
    assert not list(project.root.rglob("*.v[0-9]*.json"))


def test_the_workers_of_a_run_add_it_once(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("xdist")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    project.tell(told(), told("linear"))
    result = project.pytester.runpytest_subprocess("perf", "-n", "2", "--perf-history=nights")
    assert result.ret == pytest.ExitCode.OK
    (path,) = entries(project)
    assert all(workload in path.read_text() for workload in ("mlp-eager-bf16-4x8", "linear-eager-bf16-4x8"))


def test_unwritable_history_fails_and_says_how_to_add_later(project: Project) -> None:
    (project.root / "nights").write_text("a file")
    result = project.pytester.runpytest_inprocess("perf", "--perf-history=nights")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines([f"add it later: kernelgauge history add */reports/latest --to {project.root}/nights"])
    assert (project.root / "reports" / "latest" / "results.json").exists()


@pytest.mark.parametrize("location", ["", "https://nights", "s3://"])
def test_invalid_location_measures_nothing(project: Project, location: str) -> None:
    result = project.pytester.runpytest_inprocess("perf", f"--perf-history={location}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--perf-history: invalid history location*", f"*{location or 'no location'}*"])
    assert project.measured() == []
    assert not list(project.root.rglob("*.v[0-9]*.json"))
