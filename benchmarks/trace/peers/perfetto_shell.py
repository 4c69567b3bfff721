"""Perfetto's trace processor without its Python package: python perfetto_shell.py TRACE_PROCESSOR_SHELL TRACE

The binary reads the trace and answers one query, which spares what the package adds: HTTP and its waiting.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time

# The name comes last: the binary quotes text in its CSV but does not escape what it quotes.
_QUERY = """
SELECT COUNT(*), SUM(dur), name FROM slice WHERE category = 'kernel' GROUP BY name ORDER BY SUM(dur) DESC
"""


def main(binary: str, trace: str) -> int:
    start = time.perf_counter()
    process = subprocess.run([binary, "-Q", _QUERY, trace], stdout=subprocess.PIPE, check=False)
    _, *rows = process.stdout.decode().splitlines() or [""]
    kernels = []
    for row in rows:
        launches, nanoseconds, name = row.split(",", 2)
        kernels.append({"name": name[1:-1], "launches": int(launches), "device_time_us": int(nanoseconds) / 1000})
    seconds = time.perf_counter() - start
    if process.returncode == 0:
        json.dump({"kernels": kernels, "work_seconds": seconds}, sys.stdout)
    return process.returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
