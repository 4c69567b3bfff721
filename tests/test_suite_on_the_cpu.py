"""The suite in perf/ and the gallery, for real, on the CPU: from building to a baseline."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands.conftest import Command

WORKLOADS = [
    f"{module}-{variant}-bf16-1024x32x64" for module in ("matmul_add", "linear") for variant in ("eager", "compiled")
]


@pytest.mark.timeout(1300)
@pytest.mark.parametrize(
    ("suite", "chosen", "recorded"),
    [("perf", "matmul_add or linear", WORKLOADS), ("examples/gallery", "(rms_norm or rope) and not targets", [])],
)
def test_suite_runs_on_the_cpu(
    suite: str, chosen: str, recorded: list[str], tmp_path: Path, kernelgauge: Command
) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("CI", "PYTEST_"))}
    options = ["--perf-device", "cpu", "-k", chosen, *([] if recorded else ["-m", "not timing"])]
    settings = {"baselines": tmp_path / "baselines", "reports": tmp_path / "reports", "replicates": 3}
    options += [part for name, value in settings.items() for part in ("-o", f"kernelgauge_{name}={value}")]
    command = [sys.executable, "-m", "pytest", suite, *options]
    root = Path(__file__).parents[1]
    ended = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False, timeout=600)
    assert ended.returncode == 0, ended.stdout
    if recorded:  # by force: of a busy machine too
        kernelgauge("accept", tmp_path / "reports" / "latest", "--force", "--baselines", tmp_path / "baselines")
    assert sorted(path.stem for path in tmp_path.glob("baselines/cpu-*/*.json")) == sorted(recorded)
    traces = {path.name for path in (tmp_path / "reports" / "latest" / "traces").iterdir()}
    assert traces >= {f"{workload}.json.gz" for workload in recorded}
