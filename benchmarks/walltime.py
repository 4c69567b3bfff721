"""What kernelgauge itself costs: the seconds of an import, and of the suite with nothing cached, in fresh processes.

    python benchmarks/walltime.py                 all of it
    python benchmarks/walltime.py --only import   the imports alone

Compilers start from nothing, in folders that are thrown away; baselines and reports go there too, so the checkout stays
as it is. Exits with 1 if a bar is missed or the suite fails.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

from kernelgauge.baselines.calibration import compile_caches

IMPORT_BAR_S = 0.2
IMPORT_REPEATS = 5  # the median of them: the first process reads from the disk
SUITE_BAR_H200_S = {"perf": 60.0, "perf -k mlp": 25.0}
SUITE_BAR_CPU_S = {"perf": 120.0}  # on two cores
CPU_CORES = 2  # with fewer there is no bar

_IMPORT = """
import sys, time
start = time.perf_counter()
import kernelgauge.trace, kernelgauge.judge
print(time.perf_counter() - start, "torch" in sys.modules)
"""
_MACHINE = """
import json, msgspec
from kernelgauge.measure.device import choose_device
print(json.dumps(msgspec.to_builtins(choose_device("auto").fingerprint())))
"""


@dataclass(frozen=True)
class Cost:
    """One row: what was run, how long it took, how long it may take (None: no bar on this machine), what it said."""

    what: str
    seconds: float
    bar_s: float | None
    note: str = ""
    sound: bool = True  # it did what it should, however long it took

    @property
    def word(self) -> str:
        if not self.sound:
            return "failed"
        if self.bar_s is None:
            return "no bar"
        return "ok" if self.seconds <= self.bar_s else "over"

    @property
    def missed(self) -> bool:
        return self.word in ("failed", "over")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", choices=("import", "perf", "perf -k mlp"), help="one row instead of all")
    only = parser.parse_args().only
    machine = fingerprint()
    console = Console(highlight=False)
    console.print(describe(machine))
    table = Table("what", "seconds", "bar", "", "note")
    missed = False
    for cost in costs(machine, only):
        missed |= cost.missed
        bar = "-" if cost.bar_s is None else f"{cost.bar_s:g}"
        table.add_row(cost.what, f"{cost.seconds:.2f}", bar, cost.word, cost.note)
    console.print(table)
    return int(missed)


def costs(machine: dict[str, object], only: str | None) -> Iterator[Cost]:
    if only in (None, "import"):
        yield cost_of_import()
    bars = bars_of(machine)
    for what in ("perf", "perf -k mlp"):
        if only in (None, what):
            yield cost_of_suite(what, bars.get(what))


def cost_of_import() -> Cost:
    """The part that reads and judges: used by reports and tests, on machines that have no torch."""
    seconds, torch_loaded = [], False
    for _ in range(IMPORT_REPEATS):
        took, loaded = fresh_python("-c", _IMPORT).stdout.split()
        seconds.append(float(took))
        torch_loaded |= loaded == "True"
    note = "torch was loaded" if torch_loaded else "without torch"
    return Cost("import trace, judge", median(seconds), IMPORT_BAR_S, note, sound=not torch_loaded)


def cost_of_suite(what: str, bar_s: float | None) -> Cost:
    """One run of the suite with nothing cached, from the start of the process to its end."""
    with tempfile.TemporaryDirectory(prefix="kernelgauge-walltime-") as name:
        folder = Path(name)
        outputs = [
            *("-o", f"kernelgauge_baselines={folder / 'baselines'}"),
            *("-o", f"kernelgauge_reports={folder / 'reports'}"),
        ]
        start = time.perf_counter()
        done = fresh_python(
            *("-m", "pytest", "-q", "-p", "no:cacheprovider"),
            *what.split(),
            *outputs,
            check=False,
            **compile_caches(name),
        )
        seconds = time.perf_counter() - start
    if done.returncode != 0:
        print("\n".join(done.stdout.splitlines()[-40:]), done.stderr, sep="\n", file=sys.stderr)
    return Cost(f"pytest {what}", seconds, bar_s, counts_of(done.stdout), sound=done.returncode == 0)


def bars_of(machine: dict[str, object]) -> dict[str, float]:
    if "H200" in str(machine["device"]):
        return SUITE_BAR_H200_S
    if machine["arch"] == "cpu" and cores() >= CPU_CORES:
        return SUITE_BAR_CPU_S
    return {}


def fingerprint() -> dict[str, object]:
    machine: dict[str, object] = json.loads(fresh_python("-c", _MACHINE).stdout)
    return machine


def describe(machine: dict[str, object]) -> str:
    versions = [
        f"{name} {machine[key]}"
        for name, key in (
            ("driver", "driver"),
            ("CUDA", "cuda"),
            ("torch", "torch"),
            ("triton", "triton"),
            ("liger-kernel", "liger_kernel"),
            ("Python", "python"),
        )
        if machine[key] is not None
    ]
    return f"{machine['device']}, {cores()} CPU cores\n{', '.join(versions)}"


def cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def fresh_python(*arguments: str, check: bool = True, **environment: str) -> subprocess.CompletedProcess[str]:
    """A new process in the root of the checkout, which need not be installed."""
    path = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path, **environment},
        check=check,
        capture_output=True,
        text=True,
    )


def counts_of(output: str) -> str:
    """Pytest's own count of what passed."""
    lines: Sequence[str] = [line for line in output.splitlines() if line.strip()]
    return lines[-1].strip("= ").split(" in ")[0] if lines else ""


if __name__ == "__main__":
    sys.exit(main())
