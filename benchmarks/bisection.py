"""How often `kernelgauge bisect` finds the right commit of 64, and how many processes it takes.

    python benchmarks/bisection.py --kind device --kind host --repeat 20 --replay
                                                                     benchmarks/data/bisection/h200-b.jsonl.xz
                                                                     real repositories, recorded
                                                                     measurements; no GPU
    python benchmarks/bisection.py --kind all --repeat 3             real repositories and real
        measurements, on the GPU
    python benchmarks/bisection.py --kind break --commits 8          a CPU will do, where kernels or
        counts change

A repository has one commit that changes the model for real:

    fusion   an operator that Inductor cannot fuse, in a compiled MLP
    break    a graph break
    device   +1 % of GPU time in one kernel, with the same launch (needs a GPU)
    host     +10 % of host dispatch time, by a loop of Python around each call (needs a GPU)

A replay measures nothing. It picks a recorded process of the same state of the code at random, for
each process of a bisection. It uses each of them once, until a search needs more of a state than
were recorded.

Each result is a line of `--out`, and the table has all of its lines. Repository N of a kind is the
same everywhere, and each run goes on behind those that the file has.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from statistics import fmean
from typing import Any
from unittest.mock import patch

from recorded import read_states

import kernelgauge.processes
from kernelgauge import cli
from kernelgauge.results import SCHEMA_VERSION, Results, WorkloadResult

_OF_A_GPU = ("device", "host")  # changes of its times
_SIZE_ON_GPU, _SIZE_ON_CPU = 1024, 64  # of the model


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    kinds = "what the commit changes; several times"
    parser.add_argument(
        "--kind", action="append", required=True, choices=("all", *_KINDS), help=kinds
    )
    parser.add_argument(
        "--replay",
        type=Path,
        metavar="FILE",
        help="answer with recorded processes; measure nothing",
    )
    parser.add_argument(
        "--repeat", type=int, default=1, metavar="N", help="repositories of each kind (default: 1)"
    )
    parser.add_argument(
        "--commits", type=int, default=64, metavar="N", help="of each (default: 64)"
    )
    parser.add_argument("--seed", type=int, default=20261123)
    parser.add_argument(
        "--out", type=Path, default=Path("reports", "bisection.jsonl"), metavar="FILE"
    )
    measure(parser.parse_args())


# -- real repositories -----------------------------------------------------------------------------

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

# What `forward` is before and after the commit, and whether it is compiled. The GPU's kernel of
# `device` waits for 100 us of an H200, and the host's loop of `host` takes far longer than a
# launch: both changes are a little more than their share.
_FUSED = "return F.gelu(self.up(x)) * 2 + x"
_KINDS: dict[str, tuple[str, str, bool]] = {
    "fusion": (_FUSED, "return opaque_gelu(self.up(x)) * 2 + x", True),
    "break": (
        _FUSED,
        "h = self.up(x); torch._dynamo.graph_break(); return F.gelu(h) * 2 + x",
        True,
    ),
    "device": (
        "torch.cuda._sleep(200_000); return x + 1",
        "torch.cuda._sleep(202_200); return x + 1",
        False,
    ),
    "host": ("spin(10_000); return x + 1", "spin(11_050); return x + 1", False),
}


def measure(options: argparse.Namespace) -> None:
    """Make repositories, bisect them, and append one line each to the file of results."""
    recorded = read_states(options.replay) if options.replay else {}
    kinds = list(_KINDS) if "all" in options.kind else options.kind
    machine, size = _machine(recorded)
    for kind in kinds if size == _SIZE_ON_CPU else ():
        if kind in _OF_A_GPU:
            sys.exit(f"--kind {kind} changes a time of a GPU, and there is none")
    print(", ".join(machine.values()), flush=True)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    results = (
        [json.loads(line) for line in options.out.read_text().splitlines()]
        if options.out.exists()
        else []
    )
    numbers = Counter(
        (each["kind"], each["commits"]) for each in results if each["device"] == machine["device"]
    )
    for _ in range(options.repeat):
        for kind in kinds:
            number = numbers[kind, options.commits]
            numbers[kind, options.commits] += 1
            found = machine | _measure_one(kind, number, options, size, recorded)
            results.append(found)
            with options.out.open("a") as file:
                file.write(json.dumps(found) + "\n")
            answer = "right" if found["right"] else f"WRONG {found['answer']}"
            print(
                f"{kind} {number}: commit {found['first']} of {options.commits}, {answer}, exit code {found['exit_code']}, "
                f"{found['processes']} processes, {found['seconds']:.0f} s",
                flush=True,
            )
    summarize(results)


def _machine(recorded: dict[str, list[WorkloadResult]]) -> tuple[dict[str, str], int]:
    """Return the device and torch that measure, or that have measured, and the size of the model
    there.
    """
    import torch

    for run in (
        each.run for states in recorded.values() for each in states if each.run is not None
    ):
        return {
            "device": f"{run.fingerprint.device} (replayed)",
            "torch": run.fingerprint.torch,
        }, _SIZE_ON_GPU
    has_gpu = torch.cuda.is_available()
    device = torch.cuda.get_device_name() if has_gpu else "CPU"
    return {
        "device": device,
        "torch": str(torch.__version__),
    }, _SIZE_ON_GPU if has_gpu else _SIZE_ON_CPU


def _measure_one(
    kind: str,
    number: int,
    options: argparse.Namespace,
    size: int,
    recorded: dict[str, list[WorkloadResult]],
) -> dict[str, Any]:
    rng = random.Random(f"{options.seed}/{kind}/{number}")
    first = rng.randint(1, options.commits)
    with tempfile.TemporaryDirectory(prefix="kernelgauge-benchmark-") as name:
        folder = Path(name)
        commits = _make_repository(folder, kind, options.commits, first, size)
        started = time.monotonic()
        run_process = (
            _replay(kind, first, rng, recorded) if recorded else kernelgauge.processes.run_process
        )
        done, processes = _bisect(folder, commits, run_process)
        seconds = time.monotonic() - started
    answer = [
        commits.index(each) for each in re.findall(r"^commit   (\w+)", done.stdout, re.MULTILINE)
    ]
    if answer != [first]:
        print(done.stdout)
    return {
        "kind": kind,
        "number": number,
        "commits": options.commits,
        "first": first,
        "answer": answer,
        "right": answer == [first],
        "exit_code": done.returncode,
        "processes": processes,
        "seconds": round(seconds, 1),
    }


def summarize(results: Sequence[dict[str, Any]]) -> None:
    """Print the table of docs/design/two-revisions.md: one row for each kind, number of commits and
    machine.
    """
    print("\n| kind | commits | device, torch | right | processes | seconds |\n" + "|---" * 6 + "|")
    rows: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for each in results:
        key = each["kind"], str(each["commits"]), f"{each['device']}, {each['torch']}"
        rows.setdefault(key, []).append(each)
    for row, found in rows.items():
        right, processes, seconds = (
            fmean(each[name] for each in found) for name in ("right", "processes", "seconds")
        )
        cells = [
            *row,
            f"{right * len(found):.0f} of {len(found)}",
            f"{processes:.1f}",
            f"{seconds:.0f}",
        ]
        print("|", " | ".join(cells), "|", flush=True)


def _make_repository(folder: Path, kind: str, commits: int, first: int, size: int) -> list[str]:
    """Commit the model, `commits` changes that change nothing but a comment, and at one of them the
    change. Return all.
    """
    before, after, compiled = _KINDS[kind]
    (folder / "perf").mkdir()
    (folder / "perf" / "conftest.py").write_text(_SUITE)
    (folder / "perf" / "test_perf.py").write_text(
        "from kernelgauge.standard import *  # noqa: F403\n"
    )
    (folder / ".gitignore").write_text("__pycache__\n")
    (folder / "pytest.ini").write_text("[pytest]\npythonpath = .\n")
    _git(folder, "init", "-q")
    hashes = []
    for number in range(commits + 1):
        text = _MODEL.format(
            size=size, compiled=compiled, body=after if number >= first else before
        )
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
) -> tuple[subprocess.CompletedProcess[str], int]:
    """Bisect, with `run_process` for each process.

    Return what it says, and how many processes measured.
    """
    measured = 0

    def run(*arguments: Any, **options: Any) -> Results:
        nonlocal measured
        results = run_process(*arguments, **options)
        measured += any(each.run for each in results.workloads)
        return results

    command = [
        "bisect",
        "--good",
        commits[0],
        "--bad",
        commits[-1],
        "-k",
        "model-it",
        "--",
        "-p",
        "kernelgauge.plugin",
    ]
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
    return subprocess.CompletedProcess(command, code, out.getvalue()), measured


# -- recorded processes ----------------------------------------------------------------------------


def _replay(
    kind: str, first: int, rng: random.Random, recorded: dict[str, list[WorkloadResult]]
) -> Callable[..., Results]:
    """Return what stands for a process: a recorded one.

    Each is used once, until the search needs more of its state.
    """
    unused: dict[str, list[WorkloadResult]] = {}

    def run_process(_: Sequence[str], *__: Any, folder: Path, **___: Any) -> Results:
        number = int((folder / "model.py").read_text().rpartition("# commit ")[2])
        # the same code
        state = f"{kind}-{'bad' if number >= first else 'good'}".replace(
            "break-good", "fusion-good"
        )
        if not unused.get(state):
            unused[state] = rng.sample(recorded[state], len(recorded[state]))
        workload = unused[state].pop()
        assert workload.run is not None
        return Results(
            SCHEMA_VERSION,
            "",
            "",
            0.0,
            (),
            workload.run.fingerprint,
            workload.run.gpu,
            "",
            (workload,),
        )

    return run_process


if __name__ == "__main__":
    main()
