"""What it costs to find the lines of kernels: seconds of `pytest perf` with them and without, in turns.

    python benchmarks/origins.py --times 3 -- -m structure -k "not hub"

Each process is fresh and has empty compile caches. Arguments after -- go to pytest. Without lines, the untimed session with
Python's stacks is left out, and what keeps the stacks of compiled graphs. Both processes import the same.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import fmean, stdev

ROOT = Path(__file__).resolve().parents[1]
PLUGIN = """
import os
from kernelgauge.measure import compiler, subject
from kernelgauge.measure.origins import Origins

if os.environ["LINES"] == "without":
    subject.origins_of = lambda *_: Origins()
    compiler._keep_stacks = lambda _: None
"""


def seconds(lines: str, arguments: list[str]) -> float:
    """Return how long one process takes from its start to its end."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "cost_of_lines.py").write_text(PLUGIN)
        paths = os.pathsep.join([folder, str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
        caches = {name: f"{folder}/{name}" for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")}
        environment = {**os.environ, **caches, "PYTHONPATH": paths, "LINES": lines}
        command = [sys.executable, "-m", "pytest", "-p", "cost_of_lines", "perf", "-q", *arguments]
        started = time.perf_counter()
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        took = time.perf_counter() - started
    if done.returncode not in (0, 1):
        sys.exit(done.stdout + done.stderr)
    print(f"{lines:<8}{took:6.2f} s   {done.stdout.strip().splitlines()[-1]}", flush=True)
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=3, metavar="N", help="processes of each (default: 3)")
    parser.add_argument("arguments", nargs="*", metavar="ARGUMENT", help="of pytest")
    options = parser.parse_args()
    found: dict[str, list[float]] = {"with": [], "without": []}
    for number in range(options.times):
        for lines in ("with", "without") if number % 2 else ("without", "with"):
            found[lines].append(seconds(lines, options.arguments))
    both = found["with"], found["without"]
    error = sum(stdev(each) ** 2 / len(each) for each in both) ** 0.5 if options.times > 1 else float("nan")
    print(f"lines cost {fmean(both[0]) - fmean(both[1]):.2f} +- {error:.2f} s")


if __name__ == "__main__":
    main()
