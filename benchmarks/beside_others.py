"""Put the same function into kernelgauge, pytest-benchmark and pytest-codspeed, on a CPU: the table of docs/adopting.md.

    pip install pytest-benchmark pytest-codspeed
    OMP_NUM_THREADS=1 python benchmarks/beside_others.py --repeats 5

Each tool records the module of the tutorial once. Then it checks the unchanged module and two regressions, each in as many
fresh processes of pytest as `--repeats`: a fused normalisation written by hand, and a GEMM that runs twice.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

MODULE = """
import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(dim))
        self.up = nn.Linear(dim, 4 * dim)
        self.down = nn.Linear(4 * dim, dim)

    def forward(self, x):
        h = F.rms_norm(x, x.shape[-1:], self.scale, eps=1e-6)
        return x + self.down(F.gelu(self.up(h)))
"""
CASES = {
    "unchanged": MODULE,
    "lost fusion": MODULE.replace(
        "F.rms_norm(x, x.shape[-1:], self.scale, eps=1e-6)",
        "x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.scale",
    ),
    "doubled GEMM": MODULE.replace("self.up(h)))", "(self.up(h) + self.up(h)) / 2))"),
}
BENCHMARK = """
import torch
from my_model import Block

def test_block(benchmark):
    block, x = Block(256), torch.randn(64, 256)
    with torch.no_grad():
        benchmark(block, x)
"""
KERNELGAUGE = """
import torch
from my_model import Block

def test_block(kernelgauge):
    kernelgauge(Block(256), torch.randn(64, 256))
"""


@dataclass
class Tool:
    """How one tool is used."""

    test: str
    record: str  # arguments of pytest
    check: str
    said: str  # begins the line of its failure


TOOLS = {
    "kernelgauge": Tool(KERNELGAUGE, "--perf-update", "", "  cause "),
    "pytest-benchmark": Tool(
        BENCHMARK, "--benchmark-save=base", "--benchmark-compare --benchmark-compare-fail=min:25%", "\ttest_block"
    ),
    "pytest-codspeed": Tool(BENCHMARK, "--codspeed", "--codspeed", ""),
}


def run(arguments: str, folder: Path) -> tuple[float, subprocess.CompletedProcess[str]]:
    """Run pytest in a fresh process. Return its seconds, and how it ended."""
    others = "" if "codspeed" in arguments else "-p no:codspeed"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *others.split(), *arguments.split()]
    environment = {name: value for name, value in os.environ.items() if name != "CI"}
    started = time.perf_counter()
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return time.perf_counter() - started, done


def main() -> None:
    """Print the table, and what each failure says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5, metavar="N")
    repeats = parser.parse_args().repeats
    print("| tool | lines of the test | record, s | check, s |", *(f"{case} |" for case in CASES))
    print("|---|---|---|---|---|---|---|")
    for name, tool in TOOLS.items():
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            (folder / "test_perf.py").write_text(tool.test)
            (folder / "my_model.py").write_text(MODULE)
            record_s, done = run(tool.record, folder)
            assert done.returncode == 0, done.stdout + done.stderr
            seconds, red, said = [], {}, ""
            for case, module in CASES.items():
                (folder / "my_model.py").write_text(module)
                ended = [run(tool.check, folder) for _ in range(repeats)]
                seconds += [each for each, _ in ended]
                red[case] = sum(done.returncode != 0 for _, done in ended)
                for line in "\n".join(done.stdout + done.stderr for _, done in ended if done.returncode).splitlines():
                    said += f"    {case}: {line.strip()}\n" if tool.said and line.startswith(tool.said) else ""
        lines = sum(bool(line.strip()) for line in tool.test.splitlines())
        counts = " | ".join(f"{count}/{repeats}" for count in red.values())
        print(f"| {name} | {lines} | {record_s:.1f} | {sorted(seconds)[len(seconds) // 2]:.1f} | {counts} |")
        print("\n".join(dict.fromkeys(said.splitlines())), file=sys.stderr)


if __name__ == "__main__":
    main()
