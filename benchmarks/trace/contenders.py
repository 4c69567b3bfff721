"""The tools that are compared: their commands, and where they come from."""

from __future__ import annotations

import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from kernelgauge.errors import KernelgaugeError

__all__ = ["REFERENCE", "UNAVAILABLE", "Tool", "contenders", "make_peers"]

REFERENCE = "json.load and a loop"
UNAVAILABLE = 69  # a peer's exit code when what it needs is not there: EX_UNAVAILABLE of sysexits.h

_PEERS = Path(__file__).resolve().parent / "peers"
_PACKAGES = ("HolisticTraceAnalysis", "ijson", "perfetto")


@dataclass(frozen=True)
class Tool:
    """A command that takes a trace as its last argument, and one whose first line says its version."""

    name: str
    command: tuple[str, ...]
    version: tuple[str, ...]


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
    shell = ("--trace-processor", trace_processor) if trace_processor else ()
    found = [
        Tool("kernelgauge show", tuple(shlex.split(ours)) if ours else _script(sys.executable, "ours"), _own_version()),
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
    """An environment with the peers' packages, apart from the project's own; returns its interpreter."""
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


def _script(python: str, name: str, *arguments: str) -> tuple[str, ...]:
    return (python, str(_PEERS / f"{name}.py"), *arguments)


def _own_version() -> tuple[str, ...]:
    return (
        sys.executable,
        "-c",
        "from importlib.metadata import version; print('kernelgauge', version('kernelgauge'))",
    )
