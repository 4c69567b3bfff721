"""A second run on one GPU waits for the first."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.plugin.inner_project import Project
from tests.plugin.two_modules import add_to_conftest, run

pytestmark = pytest.mark.timeout(120)


def test_two_runs_on_one_gpu_wait_for_each_other(project: Project) -> None:
    from kernelgauge.locks import LOCKS, GpuLock

    lock = GpuLock(Path(os.environ[LOCKS]))
    lock.hold("told")
    impatient = "import kernelgauge.locks\nkernelgauge.locks.GpuLock.__init__.__kwdefaults__['patience_s'] = 0.3\n"
    add_to_conftest(project, impatient, first=True)
    result = run(project)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert project.measured() == []
    assert "another run of kernelgauge times on this GPU" in result.stdout.str()
    lock.release()
    assert run(project).ret == pytest.ExitCode.OK
    assert json.loads((project.root / "reports" / "latest" / "results.json").read_text())["exit_status"] == 0
