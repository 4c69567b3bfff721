"""Strict runs of unchanged code and of code that is slower on purpose, each in a fresh process with empty compile caches.

    python benchmarks/nights.py --processes 10                 unchanged: each should be green
    python benchmarks/nights.py --processes 10 --slower 3      the MLPs do 3 % more GPU work: each should be red
    python benchmarks/nights.py -- -k "not hub"                without access to the Hugging Face Hub

Prints a line per process and `green N of M` or `red N of M`; exits with 1 unless all are. A slower process runs one more
kernel behind each MLP, and only the verdict about its GPU time counts: that its kernels differ is exact anyway. Results
stay in --out: copy the unchanged ones to benchmarks/data/unchanged, as proof of silence.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

from runs_file import RunsFile, write_runs

from kernelgauge.judge import Status
from kernelgauge.processes import compile_caches
from kernelgauge.results import Results, decode_results
from kernelgauge.run import Timer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=10)
    parser.add_argument("--slower", type=float, default=0.0, metavar="PERCENT", help="of GPU work, in the MLPs")
    parser.add_argument("--out", type=Path, default=Path("nights"), help="a folder for the runs of each process")
    parser.add_argument("arguments", nargs="*", help="more arguments for pytest")
    options = parser.parse_args()
    as_expected = sum(one(options, number) for number in range(1, options.processes + 1))
    print(f"{'red' if options.slower else 'green'} {as_expected} of {options.processes}")
    sys.exit(as_expected < options.processes)


def one(options: argparse.Namespace, number: int) -> bool:
    """Run one process. Return whether it ended as it should."""
    with tempfile.TemporaryDirectory(prefix="kernelgauge-") as folder:
        path = os.pathsep.join([str(ROOT / "benchmarks"), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
        environment = {
            **os.environ,
            **compile_caches(folder),
            "PYTHONPATH": path,
            "SLOWER_PERCENT": str(options.slower),
        }
        plugin = ["-p", "slower_mlps", "-k", "mlp and test_device_time"] if options.slower else []
        command = [
            sys.executable,
            "-m",
            "pytest",
            "perf",
            "--perf-strict",
            "-q",
            "-o",
            f"kernelgauge_reports={folder}",
            *plugin,
        ]
        started = time.perf_counter()
        done = subprocess.run(
            [*command, *options.arguments], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
        seconds = time.perf_counter() - started
        file = Path(folder) / "latest" / "results.json"
        if not file.exists():
            print(done.stdout[-2000:], done.stderr[-2000:])
            return False
        results = decode_results(file.read_bytes(), where=str(file))
    times = ((each, each.time_verdict(Timer.DEVICE)) for each in results.workloads if is_slower(each))
    red = [f"{each.id} {verdict.status.value}" for each, verdict in times if verdict]
    ends = len(red) >= 1 if options.slower else done.returncode == 0
    if not options.slower:
        keep(results, options.out / f"run-{number}.json.gz")
    print(f"{number}: exit status {done.returncode}, {seconds:.0f} s, slower: {', '.join(red) or 'none'}", flush=True)
    if not ends:
        print(
            *(line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))), sep="\n", flush=True
        )
    return ends


def is_slower(workload: object) -> bool:
    verdict = workload.time_verdict(Timer.DEVICE)  # type: ignore[attr-defined]
    return verdict is not None and verdict.status is Status.REGRESSED


def keep(results: Results, path: Path) -> None:
    """Write the runs, without what only reports need."""
    runs = [
        msgspec.structs.replace(each.run, ops=(), launch_apis=(), metadata_ops_that_launched=())
        for each in results.workloads
        if each.run is not None
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    suites = {run.workload: "perf" for run in runs}
    content = RunsFile("", suites, tuple(runs), len(results.timers), results.started_at, results.commit)
    write_runs(path, content)


if __name__ == "__main__":
    main()
