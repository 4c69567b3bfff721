"""How often `kernelgauge bisect` finds the right commit of 64, and how many processes it takes, beside `git bisect run`.

    python benchmarks/bisection.py --simulate                        1,000 simulated repositories for each size of change, no torch
    python benchmarks/bisection.py --kind all --repeat 3             real repositories and real measurements, on the GPU
    python benchmarks/bisection.py --kind device --kind host --repeat 20 --replay benchmarks/data/bisection/h200-b.jsonl.xz
                                                                     real repositories, recorded measurements; no GPU
    python benchmarks/bisection.py --record FILE.jsonl.xz            record processes of each state on the GPU, in turns
    python benchmarks/bisection.py --kind break --commits 8          a CPU will do, where kernels or counts change
    python benchmarks/bisection.py --summary reports/bisection.jsonl the table of docs/design/two-revisions.md

A repository has one commit that changes the model for real:

    fusion   an operator that Inductor cannot fuse, in a compiled MLP
    break    a graph break
    device   +1 % of GPU time in one kernel, with the same launch (needs a GPU)
    host     +10 % of host dispatch time, by a loop of Python around each call (needs a GPU)

A replay measures nothing. It picks a recorded process of the same state of the code at random, for each process of a
bisection. It uses each of them once, until a search needs more of a state than were recorded.

Each result is a line of `--out`, so that runs on several days add up: repository N of a kind is the same everywhere, and
each run goes on behind those that the file has.

`git bisect run` is simulated: a probe answers from the mean of one process, or of five, with a threshold midway between the
ends. Its levels and its noise are those of the processes that `kernelgauge bisect` measured in the same repository.
Structure has no noise: there both are right, and the number of processes is what differs.
"""

from __future__ import annotations

import argparse
import io
import json
import lzma
import math
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from statistics import fmean, stdev
from typing import Any
from unittest.mock import patch

import msgspec
from recorded import read_states

import kernelgauge.processes
from kernelgauge import cli
from kernelgauge.judge.revisions import FIRST, next_state, suspects
from kernelgauge.results import SCHEMA_VERSION, Results, WorkloadResult
from kernelgauge.run import Timer

_SHIFTS = (5.0, 3.0, 2.0)  # standard deviations of one process
_SIMULATED = 1000
_MOST = 200  # processes
_GIT_PROBES = (1, 5)  # processes of each
_TIMERS = {"device": "device_time", "host": "host_dispatch"}
_SIZE_ON_GPU, _SIZE_ON_CPU = 1024, 64  # of the model
# What `kernelgauge bisect` starts each process with.
_VARIABLES = {"TORCHINDUCTOR_DETERMINISTIC": "1"}
_PYTEST_ARGUMENTS = ["perf", "-k", "model-it", "-p", "kernelgauge.plugin"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked = parser.add_mutually_exclusive_group(required=True)
    asked.add_argument("--simulate", action="store_true", help="simulate repositories; measure nothing")
    asked.add_argument(
        "--kind", action="append", choices=("all", *_KINDS), help="what the commit changes; several times"
    )
    asked.add_argument("--summary", nargs="+", type=Path, metavar="FILE", help="print the table of these results")
    asked.add_argument("--record", type=Path, metavar="FILE", help="record processes of each state on the GPU")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="answer with recorded processes; measure nothing")
    parser.add_argument("--repeat", type=int, default=1, metavar="N", help="repositories of each kind (default: 1)")
    parser.add_argument("--commits", type=int, default=64, metavar="N", help="of each (default: 64)")
    parser.add_argument("--seconds", type=float, default=math.inf, metavar="S", help="begin no repository after this")
    parser.add_argument("--seed", type=int, default=20261123)
    parser.add_argument("--out", type=Path, default=Path("reports", "bisection.jsonl"), metavar="FILE")
    options = parser.parse_args()
    if options.summary:
        summarize(
            [json.loads(line) for path in options.summary for line in path.read_text().splitlines()], options.seed
        )
    elif options.simulate:
        simulate(options)
    elif options.record:
        record(options)
    else:
        measure(options)


# -- simulated repositories -------------------------------------------------------------------------------------------------


def simulate(options: argparse.Namespace) -> None:
    print(f"{_SIMULATED} repositories of {options.commits} commits; change in standard deviations of one process")
    print(f"{'change':>6}  {'search':<24} {'right':>7} {'processes':>9} {'95 of 100':>9}")
    for shift in _SHIFTS:
        rng = random.Random(options.seed)
        found = [_search(options.commits, shift, rng) for _ in range(_SIMULATED)]
        _print_row(shift, "kernelgauge bisect", found)
        for each in _GIT_PROBES:
            rng = random.Random(options.seed)
            classic = [_classic(options.commits, shift, each, rng) for _ in range(_SIMULATED)]
            _print_row(shift, f"git bisect run, {each} each", classic)


def _print_row(shift: float, name: str, found: Sequence[tuple[bool, int]]) -> None:
    used = sorted(count for _, count in found)
    right = 100 * fmean(is_right for is_right, _ in found)
    print(f"{shift:>6.1f}  {name:<24} {right:>5.1f} % {fmean(used):>9.1f} {used[int(0.95 * len(used))]:>9}", flush=True)


def _search(commits: int, shift: float, rng: random.Random) -> tuple[bool, int]:
    """Search as the command does, once the ends are known to differ. Return whether it was right, and the processes used."""
    first = rng.randint(1, commits)
    values: list[list[float]] = [[] for _ in range(commits + 1)]
    for used in range(_MOST):
        if used < 2 * FIRST:
            place: int | None = (0, commits)[used % 2]
        else:
            best = max(suspects(values), key=lambda each: each.probability)
            place = next_state(values)
            if place is None:
                return best.high == first, used
        assert place is not None
        values[place].append(shift * (place >= first) + rng.gauss(0, 1))
    return False, _MOST


def _classic(commits: int, shift: float, processes: int, rng: random.Random) -> tuple[bool, int]:
    """Halve, and believe every probe: the mean of its processes beside a threshold midway between the true levels."""
    first, low, high, used = rng.randint(1, commits), 0, commits, 0
    while high - low > 1:
        place = (low + high) // 2
        mean = shift * (place >= first) + rng.gauss(0, 1 / math.sqrt(processes))
        low, high = (low, place) if mean > shift / 2 else (place, high)
        used += processes
    return high == first, used


# -- real repositories ------------------------------------------------------------------------------------------------------

_SUITE = """
import torch
from kernelgauge import Workload
from model import Model, SIZE


def pytest_kernelgauge_workloads():
    compiled = {} if Model.compiled else None
    return [Workload("model", "it", Model, lambda: (torch.randn(SIZE, SIZE),), dtype="fp32", compile=compiled, graph_breaks=0)]
"""

_MODEL = """
import torch
import torch.nn.functional as F

SIZE = {size}


@torch.library.custom_op("benchmark::opaque_gelu", mutates_args=())
def opaque_gelu(x: torch.Tensor) -> torch.Tensor:
    return F.gelu(x)


@opaque_gelu.register_fake
def _(x):
    return torch.empty_like(x)


def spin(count):
    for _ in range(count):
        pass


class Model(torch.nn.Module):
    compiled = {compiled}

    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(SIZE, SIZE)

    def forward(self, x):
        {body}
"""

# What `forward` is before and after the commit, and whether it is compiled. The GPU's kernel of `device` waits for 100 us of
# an H200, and the host's loop of `host` takes far longer than a launch: both changes are a little more than their share.
_FUSED = "return F.gelu(self.up(x)) * 2 + x"
_KINDS: dict[str, tuple[str, str, bool]] = {
    "fusion": (_FUSED, "return opaque_gelu(self.up(x)) * 2 + x", True),
    "break": (_FUSED, "h = self.up(x); torch._dynamo.graph_break(); return F.gelu(h) * 2 + x", True),
    "device": ("torch.cuda._sleep(200_000); return x + 1", "torch.cuda._sleep(202_200); return x + 1", False),
    "host": ("spin(10_000); return x + 1", "spin(11_050); return x + 1", False),
}


def measure(options: argparse.Namespace) -> None:
    """Make repositories, bisect them, and append one line each to the file of results."""
    recorded = read_states(options.replay) if options.replay else {}
    kinds = list(_KINDS) if "all" in options.kind else options.kind
    machine, size = _machine(recorded)
    for kind in kinds if size == _SIZE_ON_CPU else ():
        if kind in _TIMERS:
            sys.exit(f"--kind {kind} changes a time of a GPU, and there is none")
    print(", ".join(machine.values()), flush=True)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    results = [json.loads(line) for line in options.out.read_text().splitlines()] if options.out.exists() else []
    numbers = Counter((each["kind"], each["commits"]) for each in results if each["device"] == machine["device"])
    started = time.monotonic()
    for _ in range(options.repeat):
        for kind in kinds:
            if time.monotonic() - started > options.seconds:
                break
            number = numbers[kind, options.commits]
            numbers[kind, options.commits] += 1
            found = machine | _measure_one(kind, number, options, size, recorded)
            results.append(found)
            with options.out.open("a") as file:
                file.write(json.dumps(found) + "\n")
            answer = "right" if found["right"] else f"WRONG {found['answer']}"
            shift = "" if found["shift"] is None else f", {found['shift']:.1f} standard deviations"
            size_text = "" if found["percent"] is None else f", {found['percent']:+.2f} %{shift}"
            print(
                f"{kind} {number}: commit {found['first']} of {options.commits}, {answer}, exit code {found['exit_code']}, "
                f"{found['processes']} processes, {found['seconds']:.0f} s{size_text}",
                flush=True,
            )
    summarize(results, options.seed)


def _machine(recorded: dict[str, list[WorkloadResult]]) -> tuple[dict[str, str], int]:
    """Return the device and torch that measure, or that have measured, and the size of the model there."""
    import torch

    for run in (each.run for states in recorded.values() for each in states if each.run is not None):
        return {"device": f"{run.fingerprint.device} (replayed)", "torch": run.fingerprint.torch}, _SIZE_ON_GPU
    has_gpu = torch.cuda.is_available()
    device = torch.cuda.get_device_name() if has_gpu else "CPU"
    return {"device": device, "torch": str(torch.__version__)}, _SIZE_ON_GPU if has_gpu else _SIZE_ON_CPU


def _measure_one(
    kind: str, number: int, options: argparse.Namespace, size: int, recorded: dict[str, list[WorkloadResult]]
) -> dict[str, Any]:
    rng = random.Random(f"{options.seed}/{kind}/{number}")
    first = rng.randint(1, options.commits)
    with tempfile.TemporaryDirectory(prefix="kernelgauge-benchmark-") as name:
        folder = Path(name)
        commits = _make_repository(folder, kind, options.commits, first, size)
        started = time.monotonic()
        run_process = _replay(kind, first, rng, recorded) if recorded else kernelgauge.processes.run_process
        done, processes = _bisect(folder, commits, run_process)
        seconds = time.monotonic() - started
    answer = [commits.index(each) for each in re.findall(r"^commit   (\w+)", done.stdout, re.MULTILINE)]
    if answer != [first]:
        print(done.stdout)
    percent, shift = _change(processes, first, _TIMERS[kind]) if kind in _TIMERS else (None, None)
    return {
        "kind": kind,
        "number": number,
        "commits": options.commits,
        "first": first,
        "answer": answer,
        "right": answer == [first],
        "exit_code": done.returncode,
        "processes": len(processes),
        "seconds": round(seconds, 1),
        "percent": percent,
        "shift": shift,
    }


def _change(
    processes: Sequence[tuple[int, WorkloadResult]], first: int, timer: str
) -> tuple[float | None, float | None]:
    """Return the size of the change as measured: in percent, and in standard deviations of one process."""
    sides: tuple[list[float], list[float]] = ([], [])
    for place, workload in processes:
        if workload.run and (sample := workload.run.samples.get(Timer(timer))):
            sides[place >= first].append(fmean(map(math.log, sample.replicates_us)))
    if min(map(len, sides)) < FIRST:
        return None, None
    old, new = map(fmean, sides)
    return 100 * math.expm1(new - old), (new - old) / math.sqrt(fmean(stdev(side) ** 2 for side in sides))


def summarize(results: Sequence[dict[str, Any]], seed: int) -> None:
    """Print the table of docs/design/two-revisions.md: one row for each kind, number of commits and machine."""
    probes = [f"`git bisect run`, {each} each" for each in _GIT_PROBES]
    print("\n| kind | commits | device, torch | right | processes | seconds |", " | ".join(probes), "|")
    print("|---" * (6 + len(probes)) + "|")
    rows: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for each in results:
        key = each["kind"], str(each["commits"]), f"{each['device']}, {each['torch']}"
        rows.setdefault(key, []).append(each)
    for row, found in rows.items():
        right, processes, seconds = (fmean(each[name] for each in found) for name in ("right", "processes", "seconds"))
        cells = [*row, f"{right * len(found):.0f} of {len(found)}", f"{processes:.1f}", f"{seconds:.0f}"]
        print("|", " | ".join([*cells, *_classic_cells(found, seed)]), "|", flush=True)


def _classic_cells(found: Sequence[dict[str, Any]], seed: int) -> Iterator[str]:
    """Yield what `git bisect run` would have answered with the levels and the noise that were measured."""
    commits = found[0]["commits"]
    shifts = [each["shift"] for each in found if each["shift"] is not None]
    for processes in _GIT_PROBES:
        used = processes * math.ceil(math.log2(commits))
        rng = random.Random(seed)
        right = [_classic(commits, shift, processes, rng)[0] for shift in shifts for _ in range(_SIMULATED)]
        yield f"{100 * fmean(right):.1f} % (simulated), {used}" if right else f"right, {used}"


def _make_repository(folder: Path, kind: str, commits: int, first: int, size: int) -> list[str]:
    """Commit the model, `commits` changes that change nothing but a comment, and at one of them the change. Return all."""
    before, after, compiled = _KINDS[kind]
    (folder / "perf").mkdir()
    (folder / "perf" / "conftest.py").write_text(_SUITE)
    (folder / "perf" / "test_perf.py").write_text("from kernelgauge.standard import *  # noqa: F403\n")
    (folder / ".gitignore").write_text("__pycache__\n")
    (folder / "pytest.ini").write_text("[pytest]\npythonpath = .\n")
    _git(folder, "init", "-q")
    hashes = []
    for number in range(commits + 1):
        text = _MODEL.format(size=size, compiled=compiled, body=after if number >= first else before)
        (folder / "model.py").write_text(f"{text}\n# commit {number}\n")
        _git(folder, "add", ".")
        _git(folder, "commit", "-qm", f"Commit {number}")
        hashes.append(_git(folder, "rev-parse", "HEAD"))
    return hashes


def _git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=benchmark", "-c", "user.email=benchmark@example.org"]
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def _bisect(
    folder: Path, commits: Sequence[str], run_process: Callable[..., Results]
) -> tuple[subprocess.CompletedProcess[str], list[tuple[int, WorkloadResult]]]:
    """Bisect, with `run_process` for each process. Return what it says, and each process with the place of its commit."""
    processes: list[tuple[int, WorkloadResult]] = []

    def run(*arguments: Any, folder: Path, **options: Any) -> Results:
        place = int((folder / "model.py").read_text().rpartition("# commit ")[2])
        results = run_process(*arguments, folder=folder, **options)
        processes.extend((place, each) for each in results.workloads if each.run)
        return results

    command = ["bisect", "--good", commits[0], "--bad", commits[-1], "-k", "model-it", "--", "-p", "kernelgauge.plugin"]
    out, before = io.StringIO(), Path.cwd()
    os.chdir(folder)
    try:
        with (
            patch.object(kernelgauge.processes, "run_process", run),
            redirect_stdout(out),
        ):  # progress is shown: it takes minutes
            code = cli.main(command)
    finally:
        os.chdir(before)
    return subprocess.CompletedProcess(command, code, out.getvalue()), processes


# -- recorded processes -----------------------------------------------------------------------------------------------------


def record(options: argparse.Namespace) -> None:
    """Measure processes of each state in turns until `--seconds` are over, and write them all, a line each."""
    kinds = {name: kind for kind in _KINDS for name in (f"{kind}-good", f"{kind}-bad") if name != "break-good"}
    lines: list[bytes] = []
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kernelgauge-benchmark-") as name:
        for state, kind in kinds.items():
            folder = Path(name) / state
            folder.mkdir()
            _make_repository(folder, kind, 0, int(state.endswith("good")), _SIZE_ON_GPU)
        for number in range(_MOST):
            for state in kinds if number % 2 == 0 else reversed(kinds):
                if time.monotonic() - started < options.seconds:
                    results = kernelgauge.processes.run_process(
                        _PYTEST_ARGUMENTS, folder=Path(name) / state, may_fail=True, variables=_VARIABLES
                    )
                    lines.append(msgspec.json.encode({"state": state, "workload": _trimmed(results.workloads[0])}))
                    print(f"{state}: {len(lines)}", flush=True)
    options.record.write_bytes(lzma.compress(b"\n".join([*lines, b""])))


def _trimmed(workload: WorkloadResult) -> WorkloadResult:
    """Return a result without what no bisection reads."""
    run = workload.run and msgspec.structs.replace(workload.run, ops=(), work=())
    return msgspec.structs.replace(workload, run=run, verdicts=(), baseline=None)


def _replay(
    kind: str, first: int, rng: random.Random, recorded: dict[str, list[WorkloadResult]]
) -> Callable[..., Results]:
    """Return what stands for a process: a recorded one. Each is used once, until the search needs more of its state."""
    unused: dict[str, list[WorkloadResult]] = {}

    def run_process(_: Sequence[str], *__: Any, folder: Path, **___: Any) -> Results:
        number = int((folder / "model.py").read_text().rpartition("# commit ")[2])
        state = f"{kind}-{'bad' if number >= first else 'good'}".replace("break-good", "fusion-good")  # the same code
        if not unused.get(state):
            unused[state] = rng.sample(recorded[state], len(recorded[state]))
        workload = unused[state].pop()
        assert workload.run is not None
        return Results(SCHEMA_VERSION, "", "", 0.0, (), workload.run.fingerprint, workload.run.gpu, "", (workload,))

    return run_process


if __name__ == "__main__":
    main()
