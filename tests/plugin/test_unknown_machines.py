"""A GPU that the baselines do not know: host clocks are not judged, and the summary says how to add the run."""

from __future__ import annotations

from typing import Any

import pytest

from tests.plugin.inner_project import Project, table_verdict, told

ID = "mlp-eager-bf16-4x8"
VERDICT = "kernelgauge_verdict"
HINT = "to add this run to them: kernelgauge accept --add"


@pytest.fixture
def recorded(project: Project) -> Project:
    measure(project, told())
    project.record()
    return project


def measure(project: Project, mlp: dict[str, Any], *, gpu: str = "told") -> None:
    """Say what two workloads measure on an H200, whose noise is known."""
    project.tell(mlp, told("linear"), gpu=gpu, device="NVIDIA H200")


@pytest.mark.parametrize("options", [(), ("--perf-strict",)], ids=["default", "strict"])
def test_host_clocks_on_unknown_gpu_are_skipped(recorded: Project, options: tuple[str, ...]) -> None:
    measure(recorded, told(host_us=300.0), gpu="another")
    result = recorded.run(*options)
    assert result.ret == pytest.ExitCode.OK
    result.assert_outcomes(passed=6, skipped=4)
    skipped = [case for case in recorded.cases() if case.outcome == "skipped"]
    assert {case.name for case in skipped} == {"test_host_dispatch_time", "test_end_to_end_latency"}
    for case in skipped:
        assert case.properties[VERDICT] == "NOT_JUDGED"
        assert "not judged: the baseline does not know this machine" in case.message
    assert table_verdict(result, ID) == "PASS"


def test_passing_run_on_unknown_gpu_names_accept_add_once(recorded: Project) -> None:
    measure(recorded, told(), gpu="another")
    lines = recorded.run().outlines
    assert sum(HINT in line for line in lines) == 1
    assert "the baselines do not know this GPU: another" in lines


def test_run_on_known_gpu_does_not_name_accept_add(recorded: Project) -> None:
    assert HINT not in recorded.run().stdout.str()


def test_failing_run_on_unknown_gpu_does_not_name_accept_add(recorded: Project) -> None:
    measure(recorded, told(gelu_us=14.0), gpu="another")
    result = recorded.run()
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert HINT not in result.stdout.str()
