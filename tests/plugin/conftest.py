"""An inner project whose measurements the test tells."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.plugin.inner_project import Project


@pytest.fixture(autouse=True)
def as_at_a_desk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An inner run is not under CI unless its test says so, is no worker of the outer one, and waits for nobody's GPU."""
    monkeypatch.setenv("KERNELGAUGE_LOCKS", str(tmp_path))
    for name in ("CI", "GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY", "PYTEST_XDIST_WORKER"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setenv("COLUMNS", "200")  # the summary's table is as wide as the terminal
    return Project(pytester)
