"""Whether `kernelgauge bisect --packages` finds the version of liger-kernel that changed its backward kernel. Needs a GPU.

    pip download --no-deps --dest wheels liger-kernel==0.5.4           and each version after it, up to 0.6.4
    python benchmarks/liger_versions.py --wheels wheels

Version 0.6.0 added `_block_rms_norm_backward_kernel`, which takes 16 rows at once where a row has 256 columns at most and
there are 32,768 rows or more. The versions before and after it, from 0.5.4 to 0.6.4, run the same RMSNorm kernels here.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

_FIRST, _LAST, _ANSWER = (0, 5, 4), (0, 6, 4), "liger-kernel==0.6.0"
_ROOT = Path(__file__).resolve().parents[1]

_SUITE = """
import torch
from kernelgauge import Workload
from liger_kernel.ops.rms_norm import LigerRMSNormFunction


class Norm(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(256))

    def forward(self, x):
        return LigerRMSNormFunction.apply(x, self.weight, 1e-6, 0.0, "llama", False)


def pytest_kernelgauge_workloads():
    return [Workload("norm", "liger", Norm, lambda: (torch.randn(65536, 256),), dtype="bf16", pass_="train")]
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheels", type=Path, required=True, metavar="DIR", help="wheels of liger-kernel")
    options = parser.parse_args()
    found = (re.match(r"liger_kernel-(\d+)\.(\d+)\.(\d+)-", path.name) for path in options.wheels.iterdir())
    versions = sorted(tuple(map(int, each.groups())) for each in found if each)
    between = [each for each in versions if _FIRST <= each <= _LAST]
    if between[:1] != [_FIRST] or between[-1:] != [_LAST]:
        parser.error("--wheels needs the versions from 0.5.4 to 0.6.4")
    with tempfile.TemporaryDirectory(prefix="kernelgauge-benchmark-") as name:
        folder = Path(name)
        (folder / "perf").mkdir()
        (folder / "perf" / "conftest.py").write_text(_SUITE)
        (folder / "perf" / "test_perf.py").write_text("from kernelgauge.standard import *  # noqa: F403\n")
        (folder / "pytest.ini").write_text("[pytest]\n")
        lists = []
        for version in between:
            shown = ".".join(map(str, version))
            lists.append(f"{shown}.txt")
            (folder / lists[-1]).write_text(f"liger-kernel=={shown}\n")
        paths = [str(_ROOT / "src"), os.environ.get("PYTHONPATH", "")]  # of a checkout too
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(options.wheels.resolve()),
        }
        command = [sys.executable, "-m", "kernelgauge", "bisect", "--packages", *lists, "-k", "norm-liger"]
        started = time.monotonic()
        done = subprocess.run(
            [*command, "--", "-p", "kernelgauge.plugin", "--perf-device", "cuda"],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        print(done.stdout)
        answers = re.findall(r"^package  \S+ -> (\S+)$", done.stdout, re.MULTILINE)
        right = "right" if answers == [_ANSWER] else f"WRONG: {_ANSWER} was expected"
        print(f"{len(between)} versions, {right}, {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
