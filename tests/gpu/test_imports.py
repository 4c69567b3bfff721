"""What a run on a GPU imports: nothing that its code does not use."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

TEST = """
import torch
from torch import nn

def test_eager(kernelgauge):
    kernelgauge(nn.Sequential(nn.Linear(64, 64), nn.GELU()), torch.randn(8, 64))
"""
CONFTEST = """
import json, sys
from pathlib import Path

def pytest_unconfigure():
    Path("modules.json").write_text(json.dumps(sorted(sys.modules)))
"""
COMPILERS = {"torch._dynamo", "torch._inductor", "torch._inductor.cudagraph_trees", "transformers"}


STEP = """
from functools import partial

import torch
from torch import nn
from kernelgauge import Training

def test_step(kernelgauge):
    training = Training(partial(torch.optim.AdamW, lr=1e-4))
    kernelgauge.using(pass_="step", training=training)(nn.Linear(64, 64), torch.randn(8, 64))
"""


def modules_of(folder: Path, test: str, *arguments: str) -> set[str]:
    """Return the modules that a run of a test has imported."""
    (folder / "test_it.py").write_text(test)
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "pytest.ini").write_text("[pytest]\n")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "kernelgauge.plugin",
        "-p",
        "no:randomly",
    ]
    ended = subprocess.run(
        [*command, *arguments], cwd=folder, capture_output=True, text=True, timeout=300
    )
    assert ended.returncode == 0, ended.stdout
    return set(json.loads((folder / "modules.json").read_text()))


def test_eager_call_imports_no_compiler(tmp_path: Path) -> None:
    for arguments, absent in ((["--perf-update=force"], COMPILERS | {"scipy"}), ([], COMPILERS)):
        assert not modules_of(tmp_path, TEST, *arguments) & absent


def test_training_step_imports_no_graph_trees(tmp_path: Path) -> None:
    """An optimizer imports Dynamo: a step that compiles nothing leaves it at that."""
    modules = modules_of(tmp_path, STEP, "--perf-update=force")
    assert "torch._inductor.cudagraph_trees" not in modules
