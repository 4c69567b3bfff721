"""How often `kernelgauge bisect` finds the right commit of 64, and how many processes it takes, beside `git bisect run`.

    python benchmarks/bisection.py --simulate                      1,000 simulated repositories for each size of change, no torch
    python benchmarks/bisection.py --kind device --repeat 3        a real repository and real measurements, on the GPU
    python benchmarks/bisection.py --kind fusion --commits 8       a CPU will do, where kernels or counts change

A repository has one commit that changes the model for real:

    fusion   an operator that Inductor cannot fuse, in a compiled MLP
    break    a graph break
    device   +1 % of GPU time in one kernel, with the same launch (needs a GPU)
    host     +10 % of host dispatch time, by a loop of Python around each call (needs a GPU)

`git bisect run` is simulated: a probe answers from the mean of one process, or of five, with a threshold midway between the
ends. Its levels and its noise are those of the processes that `kernelgauge bisect` measured in the same repository.
Structure has no noise: there both are right, and the number of processes is what differs.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev

from kernelgauge.judge.changepoint import FIRST, Noise, next_state, suspects

_SHIFTS = (5.0, 3.0, 2.0)  # standard deviations of one process
_SIMULATED = 1000
_SURE = 0.95
_MOST = 200  # processes
_GIT_PROBES = (1, 5)  # processes of each
_TIMERS = {"device": "device_time", "host": "host_dispatch"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulate", action="store_true", help="simulate repositories; measure nothing")
    parser.add_argument("--kind", choices=("fusion", "break", "device", "host"), help="what the commit changes")
    parser.add_argument("--repeat", type=int, default=1, metavar="N", help="repositories (default: 1)")
    parser.add_argument("--commits", type=int, default=64, metavar="N", help="of each (default: 64)")
    parser.add_argument("--size", type=int, default=0, metavar="N", help="of the model (default: 1024, on a CPU 64)")
    parser.add_argument("--seed", type=int, default=20261123)
    options = parser.parse_args()
    if options.simulate == (options.kind is not None):
        parser.error("give --simulate or --kind")
    simulate(options) if options.simulate else measure(options)


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
    noise = Noise(sd=1.0, dof=2.0)
    for used in range(_MOST):
        if used < 2 * FIRST:
            place: int | None = (0, commits)[used % 2]
        else:
            best = max(suspects(values, noise), key=lambda each: each.probability)
            place = next_state(values, noise)
            if best.probability >= _SURE or place is None:
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
    import torch

    has_gpu = torch.cuda.is_available()
    if options.kind in _TIMERS and not has_gpu:
        sys.exit(f"--kind {options.kind} changes a time of a GPU, and there is none")
    size = options.size or (1024 if has_gpu else 64)
    rng = random.Random(options.seed)
    print(
        f"{torch.cuda.get_device_name() if has_gpu else 'CPU'}, torch {torch.__version__}, {options.kind}, size {size}"
    )
    found = []
    for number in range(options.repeat):
        first = rng.randint(1, options.commits)
        with tempfile.TemporaryDirectory(prefix="kernelgauge-benchmark-") as folder:
            started = time.monotonic()
            commits = _make_repository(Path(folder), options.kind, options.commits, first, size)
            done = _bisect(Path(folder), commits)
            answer = re.findall(r"^commit   (\w+)", done.stdout, re.MULTILINE)
            state = Path(folder, "state.jsonl").read_text().splitlines()[1:]
            right = answer == [commits[first]]
            found.append((right, len(state)))
            seconds = time.monotonic() - started
            print(
                f"repository {number + 1}: commit {first} of {options.commits}, "
                f"{'right' if right else f'WRONG ({[commits.index(each) for each in answer]})'}, exit code {done.returncode}, "
                f"{len(state)} processes, {seconds:.0f} s",
                flush=True,
            )
            if not right:
                print(done.stdout + done.stderr)
            else:
                _print_classic(state, commits, first, options)
    print(
        f"right: {sum(right for right, _ in found)} of {len(found)}, processes: {fmean(used for _, used in found):.1f}"
    )


def _make_repository(folder: Path, kind: str, commits: int, first: int, size: int) -> list[str]:
    """Commit the model, `commits` changes that change nothing but a comment, and at one of them the change. Return all."""
    before, after, compiled = _KINDS[kind]
    (folder / "perf").mkdir()
    (folder / "perf" / "conftest.py").write_text(_SUITE)
    (folder / "perf" / "test_perf.py").write_text("from kernelgauge.standard import *  # noqa: F403\n")
    (folder / ".gitignore").write_text("state.jsonl\n__pycache__\n")
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


def _bisect(folder: Path, commits: Sequence[str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kernelgauge", "bisect", "--good", commits[0], "--bad", commits[-1]]
    paths = [str(Path(__file__).resolve().parents[1] / "src"), os.environ.get("PYTHONPATH", "")]  # of a checkout too
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    return subprocess.run(
        [*command, "-k", "model-it", "--state", "state.jsonl", "--", "-p", "kernelgauge.plugin"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def _print_classic(state: Sequence[str], commits: Sequence[str], first: int, options: argparse.Namespace) -> None:
    """Say what `git bisect run` would have answered with the levels and the noise that were measured."""
    steps = math.ceil(math.log2(len(commits) - 1))
    if options.kind not in _TIMERS:
        for processes in _GIT_PROBES:
            print(
                f"    git bisect run, {processes} each: right, {processes * steps} processes (structure has no noise)"
            )
        return
    sides: tuple[list[float], list[float]] = ([], [])
    for process in map(json.loads, state):
        sample = ((process["workload"] or {}).get("run") or {}).get("samples", {}).get(_TIMERS[options.kind])
        if sample:
            sides[commits.index(process["state"]) >= first].append(fmean(map(math.log, sample["replicates_us"])))
    old, new = map(fmean, sides)
    sd = math.sqrt(fmean(stdev(side) ** 2 for side in sides))
    print(f"    {100 * math.expm1(new - old):+.2f} %, {(new - old) / sd:.1f} standard deviations of {100 * sd:.2f} %")
    for processes in _GIT_PROBES:
        rng = random.Random(options.seed)
        simulated = [_classic(options.commits, (new - old) / sd, processes, rng) for _ in range(_SIMULATED)]
        right = 100 * fmean(is_right for is_right, _ in simulated)
        print(
            f"    git bisect run, {processes} each: right in {right:.1f} % (simulated), {processes * steps} processes"
        )


if __name__ == "__main__":
    main()
