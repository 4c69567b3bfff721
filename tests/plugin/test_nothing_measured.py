"""What an earlier run left stays where no test runs."""

from __future__ import annotations

import pytest

from tests.plugin.inner_project import Project

ARGUMENTS = (
    ("--fixtures",),
    ("--fixtures-per-test",),
    ("--setup-plan",),
    ("--collect-only",),
    ("-k", "nothing_has_this_name"),
    ("-k", "mlp and"),
)


@pytest.mark.parametrize("arguments", ARGUMENTS)
def test_reports_stay_where_nothing_is_measured(project: Project, arguments: tuple[str, ...]) -> None:
    project.record()
    results = project.root / "reports" / "latest" / "results.json"
    before = results.read_bytes()
    project.pytester.runpytest_inprocess("perf", *arguments)
    assert results.read_bytes() == before
