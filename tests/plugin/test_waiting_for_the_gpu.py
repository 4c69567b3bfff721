"""A second run on one GPU waits for the first."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from kernelgauge.files import LOCKS, GpuLock
from kernelgauge.measure.device import CpuDevice
from kernelgauge.plugin.options import Options
from kernelgauge.plugin.session import Session
from tests.plugin.inner_project import Project
from tests.plugin.two_modules import add_to_conftest, run

pytestmark = pytest.mark.timeout(120)


def test_two_runs_on_one_gpu_wait_for_each_other(project: Project) -> None:
    lock = GpuLock(Path(os.environ[LOCKS]))
    lock.hold("told")
    impatient = "import kernelgauge.files\nkernelgauge.files.GpuLock.__init__.__kwdefaults__['patience_s'] = 0.3\n"
    add_to_conftest(project, impatient, first=True)
    result = run(project)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert project.measured() == []
    assert "another run of kernelgauge times on this GPU" in result.stdout.str()
    lock.release()
    assert run(project).ret == pytest.ExitCode.OK
    assert json.loads((project.root / "reports" / "latest" / "results.json").read_text())["exit_status"] == 0


def test_who_measures_on_the_processor_after_all_keeps_no_gpu_from_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A torch without CUDA beside a driver: what there is to measure on is known after a GPU was held."""
    monkeypatch.setattr("kernelgauge.plugin.session.visible_gpus", lambda: ("0",))
    monkeypatch.setattr("kernelgauge.plugin.session.digest_of", lambda _: "a gpu")
    monkeypatch.setenv(LOCKS, str(tmp_path))
    session = Session(Options(root=tmp_path, baselines=tmp_path, reports=tmp_path))
    session.choose_device = lambda _: CpuDevice()
    assert isinstance(session.device, CpuDevice)
    GpuLock(tmp_path, patience_s=0.1).hold("a gpu")
