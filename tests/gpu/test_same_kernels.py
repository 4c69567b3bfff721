"""A kernel that keeps its name and is slower: the failure says why.

Unchanged kernels that are compiled anew are silent.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kernelgauge.report.findings import reasons
from kernelgauge.results import Results, read_results

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
if torch.cuda.is_available():
    from tests.gpu.same_kernels import CAUSES
else:
    CAUSES = {}
REBUILDS = 5
TESTS = "not float64 and not latency"


def run(folder: Path, *arguments: str, **environment: str) -> Results:
    command = [sys.executable, "-m", "pytest", "-p", "kernelgauge.plugin", "-q"]
    own = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "TRITON_CACHE_DIR": f"{folder}/cache{environment.get('AGAIN', '')}",
    }
    subprocess.run(
        [*command, *arguments], cwd=folder, env=own | environment, capture_output=True, check=False
    )
    return read_results(folder / "reports" / "latest" / "results.json")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("same")
    (found / "conftest.py").write_text(
        "from tests.gpu.same_kernels import pytest_kernelgauge_workloads\n"
    )
    (found / "test_all.py").write_text("from kernelgauge.standard import *\n")
    (found / "pytest.ini").write_text("[pytest]\n")
    run(found, "-k", "not float64", "--perf-update=force")
    assert len(list(found.glob("baselines/*/*.json"))) == len(CAUSES)
    return found


@pytest.fixture(scope="module")
def faulty(folder: Path) -> Results:
    return run(folder, "-k", TESTS, "--perf-no-confirm", FAULTY="1")


@pytest.mark.parametrize("name", CAUSES)
def test_failure_says_why_the_kernel_is_slower(name: str, faulty: Results) -> None:
    (workload,) = (each for each in faulty.workloads if each.module == name)
    failing = [each for each in workload.verdicts if each.status.fails]
    texts = [line.text for verdict in failing for line in reasons(verdict) if line.label == "cause"]
    assert any(CAUSES[name][2] in text for text in texts), texts


@pytest.mark.parametrize("number", range(REBUILDS))
def test_kernels_that_are_compiled_anew_are_silent(number: int, folder: Path) -> None:
    found = run(folder, "-k", TESTS, AGAIN=str(number))
    structure = [
        each.status
        for one in found.workloads
        for each in one.verdicts
        if each.subject == "structure"
    ]
    assert [status.value for status in structure] == ["PASS"] * len(CAUSES)
    assert not [each for one in found.workloads for each in one.verdicts if each.status.fails]
