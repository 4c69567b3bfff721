"""The judge on a real GPU: by the GPU's clock a faster candidate is faster, and attacks on that clock are not accepted."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


def test_gpus_clock_finds_what_is_faster_and_accepts_no_attack() -> None:
    names = "ten_times__once|does_not_wait_for_the_gate|says_at_once_that_the_queue_is_done"
    command = [sys.executable, "-m", "tests.judging.all", "cuda", names]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^honest +ten_times once +correct, faster$", done.stdout, re.MULTILINE)
    assert "accepted attacks: 0 of 2" in done.stdout
