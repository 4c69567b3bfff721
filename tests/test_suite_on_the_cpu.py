"""The suite in perf/ and the gallery, for real, on the CPU: from building to a baseline."""

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


def run_suite(suite: str, chosen: str, folder: Path, *arguments: str) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("CI", "PYTEST_"))}
    command = [sys.executable, "-m", "pytest", suite, "--perf-device", "cpu", "-k", chosen, *arguments]
    settings = {"baselines": folder / "baselines", "reports": folder / "reports", "replicates": 3}
    command += [part for name, value in settings.items() for part in ("-o", f"kernelgauge_{name}={value}")]
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=600)
    assert ended.returncode == 0, ended.stdout
    return ended.stdout


@pytest.mark.timeout(1300)
def test_small_workloads_are_recorded(tmp_path: Path) -> None:
    run_suite("perf", "matmul_add or linear", tmp_path, "--perf-update")
    assert sorted(path.stem for path in tmp_path.glob("baselines/cpu-*/*.json")) == sorted(WORKLOADS)
    traces = {path.name for path in (tmp_path / "reports" / "latest" / "traces").iterdir()}
    assert traces >= {f"{workload}.json.gz" for workload in WORKLOADS}


@pytest.mark.timeout(700)
def test_gallery_runs_on_the_cpu(tmp_path: Path) -> None:
    chosen = "rms_norm or rope or lm_head or chunks or norm_runs"
    output = run_suite("examples/gallery", chosen, tmp_path, "-m", "not timing", "-v")
    assert output.count("flash-attn is not installed") == 1
    for test in ("test_eager_norm_runs_a_kernel_for_each_op", "test_fused_norm_runs_one_kernel"):
        assert f"::{test}[rms_norm-" in output
    assert "test_result_matches_float64[lm_head-eager-train-fp32-32x64x512]" in output

    command = [sys.executable, "examples/gallery/table.py", str(tmp_path / "reports" / "latest" / "results.json")]
    table = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "| rms_norm, forward | 64x256 | compiled |" in table
