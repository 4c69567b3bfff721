"""The gallery, for real, on the CPU."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.timeout(1300)
def test_gallery_runs_on_the_cpu(tmp_path: Path) -> None:
    """`tox run -e perf` runs the suite in perf/."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("CI", "PYTEST_"))
    }
    options = [
        "--perf-device",
        "cpu",
        "-k",
        "(rms_norm or rope) and not targets",
        "-m",
        "not timing",
    ]
    settings = {
        "baselines": tmp_path / "baselines",
        "reports": tmp_path / "reports",
        "replicates": 3,
    }
    options += [
        part for name, value in settings.items() for part in ("-o", f"kernelgauge_{name}={value}")
    ]
    command = [sys.executable, "-m", "pytest", "examples/gallery", *options]
    root = Path(__file__).parents[1]
    ended = subprocess.run(
        command, cwd=root, env=environment, capture_output=True, text=True, check=False, timeout=600
    )
    assert ended.returncode == 0, ended.stdout
