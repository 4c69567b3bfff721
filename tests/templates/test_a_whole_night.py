"""A night on a Slurm cluster with the real pytest and the real kernelgauge, on measurements that are told."""

import json
import shlex
import sys
from pathlib import Path

import pytest

from kernelgauge.results_file import read_results
from tests.plugin.inner_project import Project, told

from .sandbox import TEMPLATES, Sandbox
from .test_slurm import SBATCH, SRUN

pytestmark = pytest.mark.timeout(180)
SOURCES = TEMPLATES.parent / "src"


@pytest.fixture
def cluster(sandbox: Sandbox) -> Sandbox:
    sandbox.stand_in("sbatch", SBATCH)
    sandbox.stand_in("srun", SRUN)
    sandbox.stand_in("nvidia-smi")
    python = shlex.quote(sys.executable)
    environment = sandbox.folder / "venv" / "bin"
    sandbox.stand_in("pytest", f'exec {python} -m pytest -p kernelgauge.plugin "$@"\n', at=environment)
    sandbox.stand_in("kernelgauge", f'exec {python} -m kernelgauge "$@"\n', at=environment)
    return sandbox


@pytest.fixture
def project(cluster: Sandbox, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Project:
    """With the baselines of three modules."""
    for name in ("CI", "GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("KERNELGAUGE_LOCKS", str(cluster.folder))
    project = Project(pytester)
    project.tell(*(told(module) for module in ("mlp", "linear", "norm")))
    project.record()
    return project


def night(cluster: Sandbox, project: Project, **environment: str) -> int:
    """The exit code."""
    cluster.work.rmdir()
    cluster.work.symlink_to(project.root)
    return submit(cluster, project, str(TEMPLATES / "slurm" / "submit.sh"), **environment)


def submit(cluster: Sandbox, project: Project, *command: str, **environment: str) -> int:
    given = {"VENV": str(cluster.folder / "venv"), "PYTHONPATH": str(SOURCES), "KERNELGAUGE_LOCKS": str(cluster.folder)}
    done = cluster.run(*command, SHARDS="3", **(given | environment))
    (project.root / "log").write_text(done.stdout + done.stderr)
    return done.returncode


def left(project: Project) -> Path:
    (run,) = (project.root / "reports" / "nightly").iterdir()
    return run


def test_a_night_without_a_fault_is_green_one_result_and_in_the_history(cluster, project):
    assert night(cluster, project) == 0, (project.root / "log").read_text()
    merged = read_results(left(project) / "merged" / "results.json")
    assert sorted(workload.module for workload in merged.workloads) == ["linear", "mlp", "norm"]
    parts = [read_results(left(project) / f"shard-{i}" / "latest" / "results.json").workloads for i in (1, 2, 3)]
    assert [len(workloads) for workloads in parts] == [1, 1, 1]
    assert len([path for path in (project.root / "history").rglob("*") if path.is_file()]) == 3


def test_a_regression_on_one_machine_fails_the_night(cluster, project):
    project.tell(told("mlp"), told("linear", gelu_us=5.5), told("norm"))
    assert night(cluster, project) == 1
    assert "REGRESSED" in (left(project) / "merged" / "report.md").read_text()


def test_a_machine_that_dies_loses_only_its_part_is_named_and_fails_the_night(cluster, project):
    assert night(cluster, project, DIES="2") == 1, (project.root / "log").read_text()
    merged = json.loads((left(project) / "merged" / "results.json").read_text())
    assert len(merged["workloads"]) == 2
    assert "shard 2/3 is missing" in (left(project) / "merge.log").read_text()


def test_the_part_that_was_lost_is_measured_again_by_itself_and_then_the_night_is_whole(cluster, project):
    assert night(cluster, project, DIES="2") == 1
    run = left(project)
    slurm = TEMPLATES / "slurm"
    assert (
        submit(cluster, project, "sbatch", "--wait", "--array=2", str(slurm / "nightly.sbatch"), RUN_DIR=str(run)) == 0
    )
    again = {"RUN_DIR": str(run), "MERGED": f"{run}-again"}
    assert submit(cluster, project, "sbatch", "--wait", str(slurm / "merge.sbatch"), **again) == 0
    assert len(read_results(Path(f"{run}-again") / "results.json").workloads) == 3


def test_when_every_machine_dies_the_night_says_that_there_is_nothing(cluster, project):
    cluster.stand_in("srun", 'kill -KILL "$PPID"\n')
    assert night(cluster, project) == 2
    assert "there is nothing to merge" in (left(project) / "merge.log").read_text()
