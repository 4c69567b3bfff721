"""Measure on every visible GPU in fresh processes, and say what each method caught.

    python benchmarks/detection/run.py --processes 24 --seconds 1.2 --out DIR
    python benchmarks/detection/run.py --evaluate DIR/raw.npz --out DIR       no GPU is needed for this

One process at a time on each GPU, the GPUs in parallel. Writes table.md, caught.svg and raw.npz to DIR. Exits with 1 if
a process failed; the others are evaluated all the same.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[2] / "src")]

from detection.data import Process, load_all, save_archive
from detection.evaluate import evaluate
from detection.levels import BARS, SETTLE_S, WORKLOAD_IDS, rotation_slot
from detection.peers import METHODS
from detection.table import markdown, plot
from kernelgauge.calibrate import compile_caches
from kernelgauge.measure.controls import control_pair

COLLECT = Path(__file__).with_name("collect.py")
_START_S = 60.0  # of one process, until it measures
_PATIENCE = 3.0  # how many times longer than planned it may take
_LAST_LINES = 8


@dataclass(frozen=True)
class Child:
    """One process to run: its name in messages, its command, and the GPU it sees."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    timeout_s: float


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--processes", type=int, default=24)
    parser.add_argument("--seconds", type=float, default=1.2, help="wall time of one measurement by one method")
    parser.add_argument("--workload", choices=WORKLOAD_IDS, action="append", help="instead of all of them")
    parser.add_argument("--levels-per-process", type=int, default=2, help="of each workload, beside none and the bars")
    parser.add_argument("--peer-levels", type=int, default=1, help="of those, how many the peers measure beside none")
    parser.add_argument("--peers-every", type=int, default=1, metavar="N", help="in every Nth process of a GPU")
    parser.add_argument("--first", type=int, default=0, help="number of the first process, to add to earlier ones")
    parser.add_argument("--timeout", type=float, help="seconds for one process (default: three times what is planned)")
    parser.add_argument("--rate", type=float, help="false alarms per suite to match the peers to (default: ours)")
    parser.add_argument("--evaluate", type=Path, nargs="+", metavar="NPZ", help="evaluate these, and measure nothing")
    arguments = parser.parse_args()
    failures: list[str] = []
    if arguments.evaluate is None:
        failures = measure(arguments)
        paths = sorted((arguments.out / "processes").glob("*.npz"))
    else:
        paths = arguments.evaluate
    for failure in failures:
        print(failure, file=sys.stderr)
    processes = load_all(paths)
    if processes:
        report(processes, arguments.out, arguments.rate)
    return int(bool(failures) or not processes)


def report(processes: Sequence[Process], out: Path, rate: float | None) -> None:
    """The archive first: what was measured is kept, whatever the evaluation does. What is evaluated is the archive."""
    out.mkdir(parents=True, exist_ok=True)
    save_archive(out / "raw.npz", processes)
    processes = load_all([out / "raw.npz"])

    from detection.ours import decide

    evaluation = evaluate(processes, decide, rate=rate)
    text = markdown(evaluation, processes)
    (out / "table.md").write_text(text, encoding="utf-8")
    print(text)
    try:
        plot(evaluation, out / "caught.svg")
    except ImportError as error:
        print(f"no plot: {error}", file=sys.stderr)


def measure(arguments: argparse.Namespace) -> list[str]:
    """Run every process; return what failed."""
    gpus = visible_gpus()
    if not gpus:
        return ["no GPU is visible"]
    with tempfile.TemporaryDirectory(prefix="kernelgauge-detection-") as folder:
        # One set of compiled kernels for all: Inductor's autotuner may choose otherwise in the next process, which
        # would be a real change and not a false alarm.
        caches = compile_caches(folder)
        compile_first = Child(
            "compiling",
            (sys.executable, str(COLLECT), "--compile-only", *_chosen(arguments)),
            _environment(gpus[0], caches),
            600.0,
        )
        failure = run_child(compile_first)
        if failure is not None:
            return [failure]
        queues = [
            [
                child(arguments, number, len(gpus), _environment(gpu, caches))
                for number in range(arguments.first, arguments.first + arguments.processes)
                if number % len(gpus) == place
            ]
            for place, gpu in enumerate(gpus)
        ]
        with ThreadPoolExecutor(len(gpus)) as pool:
            found = list(pool.map(run_queue, queues))
    return [failure for queue in found for failure in queue]


def child(arguments: argparse.Namespace, number: int, gpus: int, environment: Mapping[str, str]) -> Child:
    with_peers = number // gpus % arguments.peers_every == 0
    planned = planned_seconds(
        len(arguments.workload or WORKLOAD_IDS),
        arguments.seconds,
        arguments.levels_per_process,
        arguments.peer_levels if with_peers else None,
    )
    out = arguments.out / "processes" / f"process{number}.npz"
    out.unlink(missing_ok=True)  # of an earlier run: should this one fail, it would stand for it
    options = {
        "--out": out,
        "--process": number,
        "--seed": number,
        "--seconds": arguments.seconds,
        "--levels-per-process": arguments.levels_per_process,
        "--peer-levels": arguments.peer_levels,
        "--slot": rotation_slot(number, gpus),
    }
    command = [sys.executable, str(COLLECT), *(str(part) for option in options.items() for part in option)]
    command += [*_chosen(arguments), *([] if with_peers else ["--no-peers"])]
    timeout_s = arguments.timeout or _START_S + _PATIENCE * planned
    return Child(f"process {number}", tuple(command), environment, timeout_s)


def _chosen(arguments: argparse.Namespace) -> list[str]:
    return [part for name in arguments.workload or () for part in ("--workload", name)]


def planned_seconds(workloads: int, seconds: float, levels: int, peer_levels: int | None) -> float:
    """Measured by one process, at most: each workload's own times, ours at every level, every other method at the peers'.

    Ours has the time of the control pair too. `peer_levels`: None: there are no peers.
    """
    ours = seconds * (workloads * (1 + levels + len(BARS)) + len(control_pair())) + SETTLE_S
    peers = 0 if peer_levels is None else (seconds + SETTLE_S) * (1 + peer_levels) * len(METHODS)
    return workloads * seconds + ours + workloads * peers


def run_queue(children: Sequence[Child]) -> list[str]:
    """One after the other; a failure does not stop the rest."""
    failures = []
    for one in children:
        failure = run_child(one)
        print(f"{one.name}: {'done' if failure is None else 'FAILED'}", flush=True)
        if failure is not None:
            failures.append(failure)
    return failures


def run_child(one: Child) -> str | None:
    """None, or what happened and the last lines that it wrote.

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
    """The process and whatever it started: it leads a session of its own."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _environment(gpu: str, caches: Mapping[str, str]) -> dict[str, str]:
    return {"CUDA_VISIBLE_DEVICES": gpu, **caches}


def visible_gpus() -> list[str]:
    """As CUDA_VISIBLE_DEVICES names them."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [name.strip() for name in named.split(",") if name.strip()]
    import torch

    return [str(index) for index in range(torch.cuda.device_count())]


if __name__ == "__main__":
    sys.exit(main())
