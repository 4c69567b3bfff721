"""Measure on every visible GPU in fresh processes, and report what each method caught.

    python benchmarks/detection/run.py --out DIR                            8 processes, 7 minutes on one GPU
    python benchmarks/detection/run.py --evaluate DIR/raw.xz --out DIR      needs no GPU

One process at a time on each GPU, the GPUs in parallel. Writes table.md, caught.svg and raw.xz to DIR. Exits with 1 if
a process failed; the others are evaluated all the same.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[2] / "src")]

from detection.data import WORKLOAD_IDS, Process, load, load_all, save
from detection.evaluate import evaluate, is_slower
from detection.table import markdown, plot
from kernelgauge.processes import compile_caches

COLLECT = Path(__file__).with_name("collect.py")
_LAST_LINES = 8


@dataclass(frozen=True)
class Child:
    """One process to run: its name in messages, its command, and the GPU it sees."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    timeout_s: float


def main() -> int:
    """Measure and evaluate. Return 1 if a process failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=0.6, help="wall time of one measurement by one method")
    parser.add_argument("--workload", choices=WORKLOAD_IDS, action="append", help="instead of all of them")
    parser.add_argument("--first", type=int, default=0, help="number of the first process, to add to earlier ones")
    parser.add_argument("--timeout", type=float, default=180.0, help="seconds for one process")
    parser.add_argument("--evaluate", type=Path, nargs="+", metavar="FILE", help="evaluate these, and measure nothing")
    arguments = parser.parse_args()
    failures: list[str] = []
    if arguments.evaluate is None:
        failures = measure(arguments)
        paths = sorted((arguments.out / "processes").glob("*.xz"))
    else:
        paths = arguments.evaluate
    for failure in failures:
        print(failure, file=sys.stderr)
    processes = load_all(paths)
    if processes:
        report(processes, arguments.out)
    return int(bool(failures) or not processes)


def report(processes: Sequence[Process], out: Path) -> None:
    """Write one recording of all, then evaluate what it holds: it is kept whatever the evaluation does."""
    out.mkdir(parents=True, exist_ok=True)
    save(out / "raw.xz", processes)
    processes = load(out / "raw.xz")
    evaluation = evaluate(processes, is_slower)
    text = markdown(evaluation, processes)
    (out / "table.md").write_text(text, encoding="utf-8")
    print(text)
    try:
        plot(evaluation, out / "caught.svg")
    except ImportError as error:
        print(f"no plot: {error}", file=sys.stderr)


def measure(arguments: argparse.Namespace) -> list[str]:
    """Run every process. Return what failed."""
    gpus = visible_gpus()
    if not gpus:
        return ["no GPU is visible"]
    with tempfile.TemporaryDirectory(prefix="kernelgauge-detection-") as folder:
        # One set of compiled kernels for all. Inductor's autotuner may choose otherwise in the next process, and that
        # would be a real change.
        caches = compile_caches(folder)
        compiling = Child(
            "compiling",
            (sys.executable, str(COLLECT), "--compile-only", *_chosen(arguments)),
            {"CUDA_VISIBLE_DEVICES": gpus[0], **caches},
            600.0,
        )
        failure = run_child(compiling)
        if failure is not None:
            return [failure]
        numbers = range(arguments.first, arguments.first + arguments.processes)
        queues = [
            [
                child(arguments, number, len(gpus), {"CUDA_VISIBLE_DEVICES": gpu, **caches})
                for number in numbers
                if number % len(gpus) == place
            ]
            for place, gpu in enumerate(gpus)
        ]
        with ThreadPoolExecutor(len(gpus)) as pool:
            found = list(pool.map(run_queue, queues))
    return [failure for queue in found for failure in queue]


def child(arguments: argparse.Namespace, number: int, gpus: int, environment: Mapping[str, str]) -> Child:
    """Return the process of that number; each GPU's processes go through the peers' levels."""
    out = arguments.out / "processes" / f"process{number}.xz"
    out.unlink(missing_ok=True)  # of an earlier run: if this process fails, that would stand for it
    options = {
        "--out": out,
        "--process": number,
        "--slot": number // gpus + number % gpus,
        "--seconds": arguments.seconds,
    }
    command = [sys.executable, str(COLLECT), *(str(part) for option in options.items() for part in option)]
    return Child(f"process {number}", (*command, *_chosen(arguments)), environment, arguments.timeout)


def _chosen(arguments: argparse.Namespace) -> list[str]:
    return [part for name in arguments.workload or () for part in ("--workload", name)]


def run_queue(children: Sequence[Child]) -> list[str]:
    """Run one after the other; a failure does not stop the rest."""
    failures = []
    for one in children:
        start = time.perf_counter()
        failure = run_child(one)
        seconds = time.perf_counter() - start
        print(f"{one.name}: {'done' if failure is None else 'FAILED'}, {seconds:.0f} s", flush=True)
        if failure is not None:
            failures.append(failure)
    return failures


def run_child(one: Child) -> str | None:
    """Run a process. Return None, or how it failed and the last lines of its output.

    Its output goes to a file: a compiler's worker that outlives it would keep a pipe open, and us waiting.
    """
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as said:
        process = subprocess.Popen(
            one.command,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            env={**os.environ, **one.environment},
            start_new_session=True,
        )
        try:
            code = process.wait(one.timeout_s)
            happened = f"exit status {code}"
        except subprocess.TimeoutExpired:
            code, happened = -1, f"stopped after {one.timeout_s:g} s"
        finally:
            _end_group(process)
        if code == 0:
            return None
        said.seek(0)
        lines = said.read().splitlines()[-_LAST_LINES:]
    return "\n    ".join([f"{one.name} failed: {happened}", *lines])


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End the process and whatever it started: it leads a session of its own."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def visible_gpus() -> list[str]:
    """Return the GPUs as CUDA_VISIBLE_DEVICES names them."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [name.strip() for name in named.split(",") if name.strip()]
    import torch

    return [str(index) for index in range(torch.cuda.device_count())]


if __name__ == "__main__":
    sys.exit(main())
