"""`kernelgauge show TRACE --json`, with the time of its import kept apart: python ours.py [OPTION...] TRACE"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "src"))

from kernelgauge.cli import main as kernelgauge


def main(*arguments: str) -> int:
    said = io.StringIO()
    start = time.perf_counter()
    with contextlib.redirect_stdout(said):
        code = kernelgauge(["show", "--json", *arguments])
    seconds = time.perf_counter() - start
    if code == 0:
        json.dump({"kernels": json.loads(said.getvalue())["kernels"], "work_seconds": seconds}, sys.stdout)
    return code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
