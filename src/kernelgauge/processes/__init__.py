"""A suite in fresh processes of pytest, which measure and compare nothing: for `calibrate`, `compare` and `bisect`."""

from __future__ import annotations

import math
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from ..errors import CLEAR_LINE, MeasurementError, clear_status, printable
from ..results import NAME, Results, read_results
from ..results.files import DOING, WAITING
from .revisions import LOADED, Imports

_SHOWN_LINES = 15  # of the output of a process that failed
_NO_TESTS = 5  # pytest.ExitCode.NO_TESTS_COLLECTED
_PATIENCE_S = 5.0  # with a process that is asked to end
# A job shows what the command concludes, and not each of its processes. pytest-benchmark times nothing in a worker.
_LEFT_OUT = ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY", "PYTEST_XDIST_WORKER")


def status_line(text: str, started: float, columns: int, left: str = "") -> str:
    """Return what rewrites the line of a terminal: a text, cut to its columns, the seconds since `started`, and what is left."""
    end = f", {time.monotonic() - started:.0f} s{left}"
    return f"{CLEAR_LINE}{printable(text)[: max(0, columns - 1 - len(end))]}{end}"


class Progress:
    """Processes as they go on, on standard error: one line on a terminal, which is rewritten; else a line for each of them.

    Args:
        most: how many there are at most. None: a search, which may end at any of them.
        budget_s: after which no further one begins.
        is_exact: whether all of them will run.
    """

    def __init__(self, most: int | None, *, budget_s: float = math.inf, is_exact: bool = False) -> None:
        self._most, self._budget_s, self._about = most, budget_s, "about" if is_exact else "at most"
        self._started, self._begun = time.monotonic(), 0
        self._text = self._left = ""

    def begin(self, text: str) -> None:
        """Say which process begins, and how long the rest takes by the mean of those before."""
        if self._begun and self._most:
            seconds = time.monotonic() - self._started
            rest = min(seconds / self._begun * (self._most - self._begun), max(0.0, self._budget_s - seconds))
            self._left = f", {self._about} {rest:.0f} s left"
        self._begun += 1
        self._text = printable(text)
        if not sys.stderr.isatty():
            print(f"{self._text}{self._left}", file=sys.stderr)  # noqa: T201
        self(DOING)

    def __call__(self, line: str) -> None:
        """Show a line of the process that runs: one about waiting stays, and stands in a log too."""
        if line.startswith(WAITING):
            clear_status()
            print(printable(line), file=sys.stderr)  # noqa: T201
        elif sys.stderr.isatty():
            doing = line.removeprefix(DOING)
            text = f"{self._text}: {doing}" if doing else self._text
            columns = shutil.get_terminal_size().columns
            print(status_line(text, self._started, columns, self._left), end="", file=sys.stderr, flush=True)  # noqa: T201


def draw(arguments: Sequence[str], *, processes: int) -> list[Results]:
    """Run `pytest *arguments` in fresh processes, each with empty compile caches: the autotuner chooses anew in each.

    Raises `MeasurementError` if one of them fails: what is left would not be a fair sample.
    """
    measured: list[Results] = []
    progress = Progress(processes, is_exact=True)
    for number in range(1, processes + 1):
        progress.begin(f"process {number} of {processes}")
        measured.append(run_process(arguments, progress))
    return measured


def compile_caches(folder: str) -> dict[str, str]:
    """Return the environment variables that put the caches of Inductor and Triton into a folder."""
    return {"TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor", "TRITON_CACHE_DIR": f"{folder}/triton"}


def run_process(
    arguments: Sequence[str],
    progress: Callable[[str], None] = lambda _: None,
    *,
    folder: Path | None = None,
    packages: Sequence[Path] = (),
    python: str = sys.executable,
    may_fail: bool = False,
    variables: Mapping[str, str] = MappingProxyType({}),
    patience_s: float = threading.TIMEOUT_MAX,
) -> Results:
    """Run `pytest *arguments` in a fresh process with empty compile caches, which measures and compares nothing.

    Args:
        folder: of the project, whose code it imports; None: this one, as it is installed.
        packages: folders whose modules come before those that are installed.
        may_fail: whether the tests of what a workload declares may fail.
        variables: of its environment, beside this process's.
        patience_s: when it is killed.

    Raises `MeasurementError` if it leaves no results, fails or is killed, `KernelgaugeError` if it measures another folder's code.
    """
    with tempfile.TemporaryDirectory(prefix="kernelgauge-") as own:
        inherited = {name: value for name, value in os.environ.items() if name not in _LEFT_OUT}
        inherited |= variables
        environment = inherited | compile_caches(own) | {"KERNELGAUGE_PARENT": str(os.getpid())}  # see the plugin
        imports = None if folder is None else Imports(folder, python)
        paths = (
            [*packages] if imports is None or folder is None else [folder / "src", folder, *imports.folders, *packages]
        )
        if paths:
            environment["PYTHONPATH"] = os.pathsep.join([*map(str, paths), inherited.get("PYTHONPATH", "")])
        command = [python, "-m", "pytest", *arguments, "-q", f"--perf-calibrate={own}"]
        output: list[str] = []
        with subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process:
            assert process.stdout is not None
            started, alarm = time.monotonic(), threading.Timer(patience_s, process.kill)
            alarm.daemon = True
            alarm.start()
            try:
                for line in process.stdout:
                    output.append(line.rstrip())
                    if line.startswith((WAITING, DOING)):
                        progress(line.strip())
            except BaseException:  # interrupted: its files go away
                process.terminate()
                try:
                    process.wait(_PATIENCE_S)
                except subprocess.TimeoutExpired:
                    process.kill()
                raise
            finally:
                alarm.cancel()
        if time.monotonic() - started >= patience_s:
            raise MeasurementError(f"a process that measures did not end in {patience_s:.0f} s")
        results = Path(own, "latest", NAME)
        if process.returncode == _NO_TESTS:
            raise MeasurementError("no test is selected", next_command=shlex.join(["pytest", *arguments]))
        if process.returncode not in ((0, 1) if may_fail else (0,)) or not results.exists():
            raise MeasurementError(
                "a process that measures failed",
                got="\n".join(output[-_SHOWN_LINES:]),
                expected=None if may_fail else "every test to pass: noise is measured on unchanged code that works",
                next_command=shlex.join(["pytest", *arguments]),
            )
        if imports is not None:
            imports.require_own(results.with_name(LOADED).read_bytes())
        return read_results(results)
