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


def test_eager_call_imports_no_compiler(tmp_path: Path) -> None:
    (tmp_path / "test_eager.py").write_text(TEST)
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
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
    for arguments, absent in ((["--perf-update=force"], COMPILERS | {"scipy"}), ([], COMPILERS)):
        ended = subprocess.run(
            [*command, *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=300
        )
        assert ended.returncode == 0, ended.stdout
        modules = set(json.loads((tmp_path / "modules.json").read_text()))
        assert not modules & absent
