"""`--perf-shard`: a part of the suite for each of several machines."""

from __future__ import annotations

import pytest

from tests.plugin.inner_project import Project, told
from tests.plugin.two_modules import IDS, results, run, two_modules

pytestmark = pytest.mark.timeout(120)


class TestOnSeveralMachines:
    def test_every_machine_measures_its_part(self, project: Project) -> None:
        project.tell(*two_modules())
        parts = []
        for index in (1, 2):
            project.run(f"--perf-shard={index}/2")
            parts.append([each.id for each in results(project).workloads])
        assert parts == [IDS[2:], IDS[:2]]

    def test_a_part_is_divided_among_the_workers_of_its_machine(
        self, project: Project, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pytest.importorskip("xdist")
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
        modules = [told(name, variant) for name in "abcd" for variant in ("eager", "compiled")]
        project.tell(*modules)
        run(project, "-n", "2", "--perf-shard", "1/2")
        assert sorted(len(together) for together in project.measured_together()) == [2, 2]
        assert len(set(project.measured())) == 4

    @pytest.mark.parametrize("share", ["3/2", "0/2", "half"])
    def test_what_is_no_part_is_a_usage_error(self, project: Project, share: str) -> None:
        result = project.pytester.runpytest_subprocess("perf", f"--perf-shard={share}")
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stderr.fnmatch_lines(["*a share is I/N*"])


def test_a_part_that_is_empty_says_that_it_is_there(project: Project) -> None:
    project.run("--perf-shard=2/2")
    assert results(project).workloads == ()
    assert results(project).declared == {"perf": ("mlp-eager-bf16-4x8",)}


def test_a_part_that_is_only_collected_leaves_nothing(project: Project) -> None:
    project.run("--perf-shard=2/2", "--collect-only")
    assert not (project.root / "reports").exists()
