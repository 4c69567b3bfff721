"""How fast, and in how much memory, several tools say which kernels a torch.profiler trace has and what they cost.

    python benchmarks/trace/run.py --out DIR                                      peers are installed into DIR/peers
    python benchmarks/trace/run.py --out DIR --python PEERS/bin/python --trace-processor PATH --sizes 20,200,500

The answer: of each kernel name the number of launches and the summed device time, longest first. Each tool gives it in
a fresh process on one core; the tools take turns, in another order each time. Every answer is compared with that of a
plain loop over the events. PEERS has HolisticTraceAnalysis, ijson and perfetto; without PATH the latter downloads its
trace_processor_shell. Writes table.md and results.json to DIR. Exits with 1 if answers differ or a tool failed; one
that is not there is only reported.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "src")]

from contest import Answer, Measured, differences, markdown, read_answer
from generate import generate

from kernelgauge.errors import KernelgaugeError, printable

REFERENCE = "json.load and a loop"
UNAVAILABLE = 69  # a peer's exit code when what it needs is not there: EX_UNAVAILABLE of sysexits.h
_PACKAGES = ("HolisticTraceAnalysis", "ijson", "perfetto")
_WARM_UP_MB = 0.3
_TOP = 10
_LONGEST = 300  # characters of what a tool said last


@dataclass(frozen=True)
class Tool:
    """A command that takes a trace as its last argument, and one whose first line says its version."""

    name: str
    command: tuple[str, ...]
    version: tuple[str, ...]


@dataclass(frozen=True)
class Attempt:
    """One process: what it answered and cost, or why it did not. `absent`: the tool is not installed here."""

    tool: str
    file_mb: float
    answer: Answer | None = None
    measured: Measured | None = None
    problem: str = ""
    absent: bool = False


def main() -> int:
    options = _options()
    options.out.mkdir(parents=True, exist_ok=True)
    try:
        python = options.python or make_peers(options.out / "peers")
    except KernelgaugeError as error:
        print(error, file=sys.stderr)
        return 1
    tools = contenders(python, options.trace_processor, options.ours, analysis=options.analysis)
    with tempfile.TemporaryDirectory(prefix="kernelgauge-trace-") as folder:
        # A small one first, not for its times: compiled files, downloads, and who is there at all.
        warm_up = measure(tools, _WARM_UP_MB, 1, Path(folder), options)
        attempts: list[Attempt] = []
        for megabytes in options.sizes:
            able = [tool for tool in tools if not any(one.problem for one in _of(tool, [*warm_up, *attempts]))]
            attempts += measure(able, megabytes, options.repeats, Path(folder), options)
    problems = {one.tool: one.problem for one in [*warm_up, *attempts] if one.problem}
    wrong = wrong_answers([*warm_up, *attempts])
    write(options, tools, attempts, {**problems, **wrong})
    return int(bool(wrong) or any(one.problem and not one.absent for one in [*warm_up, *attempts]))


def measure(
    tools: Sequence[Tool], megabytes: float, repeats: int, folder: Path, options: argparse.Namespace
) -> list[Attempt]:
    """All tools on one trace, in turns. A tool that failed is not asked again."""
    trace = folder / f"{megabytes:g}.json"
    generate(megabytes, trace)
    file_mb = len(trace.read_bytes()) / 1e6  # reads all of it: none of them waits for the disk
    attempts: list[Attempt] = []
    for turn in range(repeats):
        for tool in random.Random(turn).sample(tools, len(tools)):
            if not any(one.problem for one in _of(tool, attempts)):
                attempts.append(attempt(tool, trace, file_mb, options.timeout, options.core))
                print(_progress(attempts[-1]), file=sys.stderr, flush=True)
    trace.unlink()
    return attempts


def attempt(tool: Tool, trace: Path, file_mb: float, timeout_s: float, core: int) -> Attempt:
    with tempfile.TemporaryDirectory(prefix="kernelgauge-launch-") as folder:
        report, said, warned = (Path(folder) / name for name in ("report", "said", "warned"))
        launcher = [sys.executable, "-I", "-S", str(HERE / "launch.py"), str(report), str(timeout_s), str(core)]
        with said.open("wb") as out, warned.open("wb") as err:
            command = [*launcher, *tool.command, str(trace)]
            subprocess.run(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, check=True)
        cost = json.loads(report.read_text(encoding="ascii"))
        code, seconds = cost["exit_code"], cost["seconds"]
        last_words = _last_words(warned.read_text(encoding="utf-8", errors="replace"))
        if code == UNAVAILABLE:
            return Attempt(tool.name, file_mb, problem=f"not available: {last_words}", absent=True)
        if code != 0:
            problem = f"FAILED with {file_mb:.1f} MB: exit status {code} after {seconds:.1f} s: {last_words}"
            return Attempt(tool.name, file_mb, problem=problem)
        try:
            answer = read_answer(said.read_text(encoding="utf-8"))
        except (ValueError, KeyError, TypeError) as error:
            return Attempt(tool.name, file_mb, problem=f"FAILED: unreadable: {printable(repr(error))[:_LONGEST]}")
    measured = Measured(tool.name, file_mb, seconds, answer.work_seconds, cost["peak_rss_mb"])
    return Attempt(tool.name, file_mb, answer, measured)


def wrong_answers(attempts: Sequence[Attempt]) -> dict[str, str]:
    """Tool -> in what its answer differs from the plain loop's, without which nothing is known to be right."""
    right = {one.file_mb: one.answer for one in attempts if one.tool == REFERENCE and one.answer}
    wrong: dict[str, str] = {}
    for one in attempts:
        if one.answer is None or one.tool in wrong:
            continue
        expected = right.get(one.file_mb)
        found = ["nothing to compare with"] if expected is None else differences(expected, one.answer)
        if found:
            wrong[one.tool] = f"WRONG with {one.file_mb:.1f} MB: {printable('; '.join(found))}"
    return wrong


def write(
    options: argparse.Namespace, tools: Sequence[Tool], attempts: Sequence[Attempt], problems: Mapping[str, str]
) -> None:
    runs = [one.measured for one in attempts if one.measured]
    right = {f"{one.file_mb:.1f}": one.answer for one in attempts if one.tool == REFERENCE and one.answer}
    results = {
        "machine": {"processor": _processor(), "core_used": options.core, "system": platform.platform()},
        "versions": {tool.name: _version(tool.version) for tool in tools if _of(tool, attempts)},
        "problems": dict(problems),
        "runs": [asdict(run) for run in runs],
        "top": {size: [asdict(kernel) for kernel in answer.kernels[:_TOP]] for size, answer in right.items()},
    }
    # What is not known is null: NaN is no JSON.
    text = json.dumps(results, indent=1).replace(": NaN", ": null")
    (options.out / "results.json").write_text(text + "\n", encoding="utf-8")
    table = markdown(runs, problems, [tool.name for tool in tools])
    (options.out / "table.md").write_text(table, encoding="utf-8")
    print(table)


def _of(tool: Tool, attempts: Sequence[Attempt]) -> list[Attempt]:
    return [one for one in attempts if one.tool == tool.name]


def _progress(one: Attempt) -> str:
    if one.measured is None:
        return f"{one.tool}: {one.problem}"
    return f"{one.tool}: {one.file_mb:.1f} MB in {one.measured.seconds:.2f} s and {one.measured.peak_rss_mb:.0f} MB"


def contenders(
    python: str, trace_processor: str | None = None, ours: str | None = None, *, analysis: bool = False
) -> list[Tool]:
    """Ours first: the others are relative to it. `python` is the interpreter that has the peers' packages.

    `analysis` adds HTA's TraceAnalysis. It looks through every profiler step for every event, and a generated trace has
    far more steps (2589 in 200 MB) than anyone records: the time that it takes here is not what its users wait for.
    """
    hta, ijson, perfetto = (
        (python, "-c", f"from importlib.metadata import version; print({package!r}, version({package!r}))")
        for package in _PACKAGES
    )
    shell = (trace_processor,) if trace_processor else ()
    own_version = "from importlib.metadata import version; print('kernelgauge', version('kernelgauge'))"
    own = tuple(shlex.split(ours)) if ours else _script(sys.executable, "ours")
    found = [
        Tool("kernelgauge show", own, (sys.executable, "-c", own_version)),
        Tool(REFERENCE, _script(sys.executable, "json_loop"), (sys.executable, "--version")),
        Tool("HTA, parser alone", _script(python, "holistic", "json"), hta),
        Tool("HTA, parser alone, ijson", _script(python, "holistic", "ijson"), ijson),
        *([Tool("HTA, TraceAnalysis", _script(python, "holistic", "analysis"), hta)] if analysis else []),
        Tool("Perfetto, Python package", _script(python, "perfetto_package", *shell), perfetto),
    ]
    if trace_processor:
        command = _script(sys.executable, "perfetto_shell", trace_processor)
        found.append(Tool("Perfetto, binary alone", command, (trace_processor, "--version")))
    return found


def make_peers(folder: Path) -> str:
    """Make an environment with the peers' packages, apart from the project's own; returns its interpreter."""
    python = folder / "bin" / "python"
    try:
        if not python.exists():
            subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *_PACKAGES], check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise KernelgaugeError(
            "the peers cannot be installed",
            where=str(folder),
            got=str(error),
            next_command="benchmarks/trace/run.py --python PATH   (an interpreter that has some of them)",
        ) from error
    return str(python)


def _script(python: str, tool: str, *arguments: str) -> tuple[str, ...]:
    return (python, str(HERE / "peers.py"), tool, *arguments)


def _last_words(text: str) -> str:
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    return printable(lines[-1])[:_LONGEST] if lines else "it said nothing"


def _version(command: Sequence[str]) -> str:
    try:
        said = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return printable((said.stdout.splitlines() or ["unknown"])[0])


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--sizes", type=_sizes, default=(20.0, 200.0, 500.0), metavar="MB,...", help="of the traces")
    parser.add_argument("--repeats", type=int, default=5, help="processes of each tool on each trace")
    parser.add_argument("--python", help="the interpreter that has the peers (default: one is made in DIR/peers)")
    parser.add_argument("--trace-processor", metavar="PATH", help="Perfetto's trace_processor_shell")
    parser.add_argument("--analysis", action="store_true", help="HTA's TraceAnalysis too: unfair to it, and slow")
    parser.add_argument("--ours", help="a command instead of `kernelgauge show TRACE --json`, without the trace")
    parser.add_argument("--timeout", type=float, default=1800, help="seconds for one process")
    core = max(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else -1
    parser.add_argument("--core", type=int, default=core, help="where all of them run; -1 is anywhere")
    return parser.parse_args()


def _sizes(text: str) -> tuple[float, ...]:
    return tuple(sorted(float(part) for part in text.split(",")))


if __name__ == "__main__":
    sys.exit(main())
