"""An inner project whose measurements the test tells."""

from __future__ import annotations

import pytest

from tests.plugin.inner_project import Project


@pytest.fixture(autouse=True)
def as_at_a_desk(monkeypatch: pytest.MonkeyPatch) -> None:
    """An inner run is not under CI unless its test says so, and is no worker of the outer one."""
    for name in ("CI", "GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY", "PYTEST_XDIST_WORKER"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setenv("COLUMNS", "200")  # the summary's table is as wide as the terminal
    return Project(pytester)
