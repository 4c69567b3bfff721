"""An inner project that measures fakes."""

import functools
import os
import sys
from pathlib import Path

import pytest

import kernelgauge.report.html as pages
from tests.plugin.inner_project import Project, Run, text_of

ENVIRONMENT = functools.cache(pages._environment)  # compiles the templates of the report once


@pytest.fixture(autouse=True)
def outside_of_ci(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Take an inner run out of CI and of the outer run's workers, with GPU locks of its own."""
    monkeypatch.setenv("KERNELGAUGE_LOCKS", str(tmp_path))
    for name in ("CI", "GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY", "PYTEST_XDIST_WORKER"):
        monkeypatch.delenv(name, raising=False)
    plugins = "-p no:cacheprovider -p no:hypothesispytest -p no:timeout"
    # rewriting the assertions of a project takes a sixth of its run, and its header a thirtieth
    monkeypatch.setenv("PYTEST_ADDOPTS", f"{plugins} --assert=plain --no-header")
    monkeypatch.setattr(os, "fsync", lambda _: None)  # no disk fails here
    # an edit of as many characters, in the same second, would run the code of before
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(pages, "_environment", ENVIRONMENT)


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setenv("COLUMNS", "200")  # the summary's table is as wide as the terminal
    return Project(pytester)


@pytest.fixture
def run(pytester: pytest.Pytester) -> Run:
    """Run pytest on the CPU, in a folder that its tests import from; return its output."""
    pytester.makeini("[pytest]\npythonpath = .\n")
    return lambda *arguments: text_of(
        pytester.runpytest_inprocess("-q", "--perf-device=cpu", *arguments)
    )
