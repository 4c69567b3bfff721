"""What tools say of a trace, each in a process of its own: python peers.py TOOL [ARGUMENT...] TRACE

    ours [OPTION...]                `kernelgauge show --json`, with the time of its import kept apart
    json_loop                       what anyone would write first
    holistic json|ijson|analysis    HolisticTraceAnalysis. `json` is its parser as it comes; `ijson` with the backend that its
                                    source recommends and the shortest list of arguments, and needs the package ijson;
                                    `analysis` is `TraceAnalysis`, its documented entrance, which aligns and filters too
    perfetto_package [PATH]         Perfetto's trace processor through its Python package, which starts the binary
                                    trace_processor_shell (without PATH it downloads one), looks once a second whether it
                                    is up, sends it the trace over HTTP and queries it
    perfetto_shell PATH             the same binary alone: it reads the trace and answers one query

A tool imports what it needs and nothing else: its process is timed from start to end.

    python peers.py --compare TRACE [--python PEERS/bin/python] [--tracelens FOLDER]

It prints a table: CPU seconds and peak memory of tools that hold a trace to another one, here to itself. PEERS has
HolisticTraceAnalysis, FOLDER is a clone of AMD's TraceLens. Each has a process of its own, and fifteen minutes.
"""

from __future__ import annotations

import json
import os
import sys
import time

TYPE_CHECKING = False  # typing itself would take a few milliseconds of each process
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_UNAVAILABLE = 69  # EX_UNAVAILABLE of sysexits.h
_QUERY = """
SELECT name, COUNT(*) AS launches, SUM(dur) / 1000.0 AS device_time_us
FROM slice WHERE category = 'kernel' GROUP BY name ORDER BY device_time_us DESC
"""
# The name comes last: the binary quotes text in its CSV but does not escape what it quotes.
_SHELL_QUERY = """
SELECT COUNT(*), SUM(dur), name FROM slice WHERE category = 'kernel' GROUP BY name ORDER BY SUM(dur) DESC
"""

Found = tuple[list[dict[str, object]], float]  # the kernels, and the seconds of work


class Unavailable(Exception):
    """A tool that is not installed here."""


def ours(*arguments: str) -> Found:
    """Run `kernelgauge show`. Exit with its status if it fails."""
    import contextlib
    import io
    from pathlib import Path

    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))
    from kernelgauge.cli import main

    said = io.StringIO()
    start = time.perf_counter()
    with contextlib.redirect_stdout(said):
        code = main(["show", "--json", *arguments])
    seconds = time.perf_counter() - start
    if code != 0:
        sys.exit(code)
    return json.loads(said.getvalue())["kernels"], seconds


def json_loop(trace: str) -> Found:
    """Decode the whole file, and loop over its events."""
    start = time.perf_counter()
    with open(trace, encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    found: dict[str, list[float]] = {}
    for event in events:
        if event.get("cat") == "kernel" and event.get("ph") == "X":
            found.setdefault(event["name"], []).append(event["dur"])
    longest_first = sorted(found.items(), key=lambda item: -sum(item[1]))
    kernels: list[dict[str, object]] = [
        {"name": name, "launches": len(us), "device_time_us": sum(us)} for name, us in longest_first
    ]
    return kernels, time.perf_counter() - start


def holistic(way: str, trace: str) -> Found:
    """Read the trace into a table of events, and group it by name."""
    # By default it cuts both ends of every event to whole microseconds: sums of kernels lose a percent or two.
    os.environ["HTA_DISABLE_NS_ROUNDING"] = "1"
    try:
        read = _holistic_reader(way)
    except ImportError as error:
        raise Unavailable(f"{error} (pip install HolisticTraceAnalysis ijson)") from error
    start = time.perf_counter()
    events, symbols = read(trace)
    durations = events[events["cat"] == symbols.get_sym_id_map()["kernel"]].groupby("name")["dur"]
    found = durations.agg(["count", "sum"]).sort_values("sum", ascending=False)
    names = symbols.get_sym_table()
    kernels = [
        {"name": names[name], "launches": int(launches), "device_time_us": float(us)}
        for name, launches, us in found.itertuples(name=None)
    ]
    return kernels, time.perf_counter() - start


def _holistic_reader(way: str) -> Callable[[str], tuple[Any, Any]]:
    """Return what reads a trace into a DataFrame of events and the table of their names."""
    if way == "analysis":
        from hta.trace_analysis import TraceAnalysis

        def analyse(trace: str) -> tuple[Any, Any]:
            analysis = TraceAnalysis(trace_files={0: trace}, include_last_profiler_step=True)
            return analysis.t.get_trace(0), analysis.t.symbol_table

        return analyse

    from hta.common.trace_parser import parse_trace_dataframe
    from hta.configs.parser_config import ParserBackend, ParserConfig

    config = ParserConfig.get_default_cfg()
    if way == "ijson":
        import ijson

        if "yajl" not in ijson.backend:
            raise ImportError(f"ijson without yajl, its fast backend: {ijson.backend}")
        config = ParserConfig(ParserConfig.get_minimum_args())
        config.set_parser_backend(ParserBackend.IJSON_BATCH_AND_COMPRESS)
    return lambda trace: parse_trace_dataframe(trace, config)[1:]


def perfetto_package(*arguments: str) -> Found:
    """Query the trace processor over HTTP."""
    import contextlib
    import signal
    import subprocess

    *path, trace = arguments
    # The binary runs in a session of its own: whoever ends this process must let it end that one.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        from perfetto.trace_processor import TraceProcessor, TraceProcessorConfig
        from perfetto.trace_processor.platform import PlatformDelegate
    except ImportError as error:
        raise Unavailable(f"{error} (pip install perfetto)") from error
    try:
        with contextlib.redirect_stdout(sys.stderr):
            binary = PlatformDelegate().get_shell_path(bin_path=path[0] if path else None)
    except (OSError, subprocess.CalledProcessError) as error:
        raise Unavailable(f"no --trace-processor PATH, and the package cannot download its own: {error}") from error
    start = time.perf_counter()
    with TraceProcessor(trace=trace, config=TraceProcessorConfig(bin_path=binary)) as processor:
        kernels = [
            {"name": row.name, "launches": row.launches, "device_time_us": row.device_time_us}
            for row in processor.query(_QUERY)
        ]
        seconds = time.perf_counter() - start
    return kernels, seconds


def perfetto_shell(binary: str, trace: str) -> Found:
    """Query the trace processor's command line. Exit with its status if it fails."""
    import subprocess

    start = time.perf_counter()
    process = subprocess.run([binary, "-Q", _SHELL_QUERY, trace], stdout=subprocess.PIPE, check=False)
    _, *rows = process.stdout.decode().splitlines() or [""]
    kernels = []
    for row in rows:
        launches, nanoseconds, name = row.split(",", 2)
        kernels.append({"name": name[1:-1], "launches": int(launches), "device_time_us": int(nanoseconds) / 1000})
    seconds = time.perf_counter() - start
    if process.returncode != 0:
        sys.exit(process.returncode)
    return kernels, seconds


# What anyone would write to compare two traces: of each name or call, how often it ran and for how long.
_COMPARISONS = {
    "HTA, TraceDiff": """
import os, sys
from hta.trace_diff import DeviceType, TraceDiff
folder = os.path.dirname(sys.argv[1])
print(TraceDiff.compare_traces(folder, folder, device_type=DeviceType.GPU))
""",
    "TraceLens, TraceDiff": """
import sys
from TraceLens import TraceDiff, TreePerfAnalyzer
trees = [TreePerfAnalyzer.from_file(sys.argv[1]).tree for _ in range(2)]
print(TraceDiff(*trees).generate_diff_stats())
""",
    "HTA, kernels of one trace": """
import sys
from hta.trace_analysis import TraceAnalysis
analysis = TraceAnalysis(trace_files={0: sys.argv[1]}, include_last_profiler_step=True)
print(analysis.get_gpu_kernel_breakdown(visualize=False)[1])
""",
    "TraceLens, kernels of one trace": """
import sys
from TraceLens import TreePerfAnalyzer
analyzer = TreePerfAnalyzer.from_file(sys.argv[1])
print(analyzer.get_df_kernel_launchers_summary(analyzer.get_df_kernel_launchers()))
""",
}
_PATIENCE_S = 900


def compare(trace: str, python: str = sys.executable, tracelens: str = "") -> None:
    """Print a Markdown row for each tool."""
    import shutil
    import subprocess
    import tempfile
    from pathlib import Path

    here = Path(__file__).resolve().parent
    ours = [sys.executable, "-m", "kernelgauge"]
    paths = {"PYTHONPATH": os.pathsep.join([str(here.parents[1] / "src"), tracelens])}
    with tempfile.TemporaryDirectory() as name:
        alone = Path(name, "alone", "rank0.json")  # HTA reads all files of a folder
        alone.parent.mkdir()
        shutil.copy(trace, alone)
        baseline, page, report, said = (Path(name, each) for each in ("b.json", "page.html", "report", "said"))
        check = [*ours, "check", str(alone), "-b", str(baseline)]
        commands = {
            "kernelgauge check --update": [*check, "--update"],
            "kernelgauge check": check,
            "kernelgauge check --html": [*check, "--html", str(page)],
            "kernelgauge diff": [*ours, "diff", str(alone), str(alone)],
            **{tool: [python, "-c", script, str(alone)] for tool, script in _COMPARISONS.items()},
        }
        print(f"| {os.path.getsize(trace) / 1e6:.0f} MB | CPU seconds | peak memory |\n|---|---|---|")
        for tool, command in commands.items():
            launcher = [sys.executable, "-I", "-S", str(here / "launch.py"), str(report), str(_PATIENCE_S), "-1"]
            with said.open("w") as out:
                subprocess.run([*launcher, *command], env=os.environ | paths, stdout=out, stderr=out, check=True)
            cost = json.loads(report.read_text())
            cells = f"{cost['cpu_seconds']:.1f} | {cost['peak_rss_mb']:.0f} MB"
            if cost["exit_code"]:
                cells = (
                    f"exit code {cost['exit_code']} after {cost['seconds']:.0f} s: {said.read_text().strip()[-200:]} |"
                )
            print(f"| {tool} | {cells} |", flush=True)


def main(tool: str, *arguments: str) -> int:
    """Print the kernels and the seconds of work as JSON. Return 69 if the tool is not installed."""
    if tool == "--compare":
        trace, *options = arguments
        compare(trace, **{name.lstrip("-"): value for name, value in zip(options[::2], options[1::2], strict=True)})
        return 0
    tools: dict[str, Callable[..., Found]] = {
        each.__name__: each for each in (ours, json_loop, holistic, perfetto_package, perfetto_shell)
    }
    try:
        kernels, seconds = tools[tool](*arguments)
    except Unavailable as error:
        print(error, file=sys.stderr)
        return _UNAVAILABLE
    json.dump({"kernels": kernels, "work_seconds": seconds}, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
