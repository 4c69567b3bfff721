"""A project of two modules in two variants each, run in a process of its own: what several workers or machines share."""

from __future__ import annotations

from typing import Any

import pytest

from kernelgauge.results import Results, read_results
from tests.plugin.inner_project import Project, told


def add_to_conftest(project: Project, text: str, *, first: bool = False) -> None:
    path = project.root / "perf" / "conftest.py"
    path.write_text(text + path.read_text() if first else path.read_text() + text)


def run(project: Project, *arguments: str) -> pytest.RunResult:
    return project.pytester.runpytest_subprocess("perf", *arguments)


def results(project: Project) -> Results:
    return read_results(project.root / "reports" / "latest" / "results.json")


def two_modules(**of_the_second: Any) -> tuple[dict[str, Any], ...]:
    return told(), told(variant="compiled"), told("linear", **of_the_second), told("linear", "compiled")


IDS = ["mlp-eager-bf16-4x8", "mlp-compiled-bf16-4x8", "linear-eager-bf16-4x8", "linear-compiled-bf16-4x8"]
