"""The suite in perf/, for real, on the CPU: the small workloads, from building to a baseline and back."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
WORKLOADS = [
    f"{module}-{variant}-bf16-1024x32x64" for module in ("matmul_add", "linear") for variant in ("eager", "compiled")
]


def run_suite(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("CI", "PYTEST_"))}
    command = [sys.executable, "-m", "pytest", "perf", "--perf-device", "cpu", "-k", "matmul_add or linear", *arguments]
    folders = [
        *("-o", f"kernelgauge_baselines={folder / 'baselines'}"),
        *("-o", f"kernelgauge_reports={folder / 'reports'}"),
    ]
    return subprocess.run(
        [*command, *folders], cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=600
    )


@pytest.mark.timeout(1300)
def test_small_workloads_are_recorded_and_judged(tmp_path: Path) -> None:
    recorded = run_suite(tmp_path, "--perf-update")
    assert recorded.returncode == 0, recorded.stdout
    assert sorted(path.stem for path in tmp_path.glob("baselines/cpu-*/*.json")) == sorted(WORKLOADS)

    judged = run_suite(tmp_path)
    for workload in WORKLOADS:
        assert (tmp_path / "reports" / "latest" / "traces" / f"{workload}.json.gz").is_file()
    failed = [line for line in judged.stdout.splitlines() if line.startswith("FAILED")]
    # Structure is exact on any machine; times on a shared CPU are not this test's subject.
    assert [line for line in failed if "test_latency.py" not in line] == []
