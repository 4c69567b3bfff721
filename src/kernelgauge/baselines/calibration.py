"""`kernelgauge calibrate`: the suite, unchanged, in fresh processes, to learn how noisy this machine is."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from ..errors import MeasurementError
from ..results import NAME, Results, read_results
from ..results.files import WAITING, temporary_folder
from .imports import LOADED, Imports

_SHOWN_LINES = 15  # of the output of a process that failed
_NO_TESTS = 5  # pytest.ExitCode.NO_TESTS_COLLECTED
_PATIENCE_S = 5.0  # with a process that is asked to end
_POLL_S = 0.1
_running: set[subprocess.Popen[str]] = set()
_OF_THE_JOB = ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY")


def draw(
    arguments: Sequence[str], *, processes: int, gpus: Sequence[str], progress: Callable[[str], None]
) -> list[Results]:
    """Run `pytest *arguments` in fresh processes, each with empty compile caches: the autotuner chooses anew in each.

    One process at a time on each of `gpus` (values for CUDA_VISIBLE_DEVICES; none: whatever is visible, one at a time).
    Raises `MeasurementError` if one of them fails: what is left would not be a fair sample.
    """
    free: SimpleQueue[str | None] = SimpleQueue()
    for gpu in gpus or (None,):
        free.put(gpu)

    def run_one(number: int) -> Results:
        gpu = free.get()
        try:
            progress(f"process {number + 1} of {processes}" + ("" if gpu is None else f" on GPU {gpu}"))
            # Without a GPU that is there, the process would measure a CPU.
            device = [] if gpu is None else ["--perf-device", "cuda"]
            return run_process([*arguments, *device], gpu, progress)
        finally:
            free.put(gpu)

    with ThreadPoolExecutor(max_workers=max(1, len(gpus))) as pool:
        futures = [pool.submit(run_one, number) for number in range(processes)]
        try:
            return [future.result() for future in futures]
        except BaseException:  # interrupted, or one of them failed: nobody waits for the others
            pool.shutdown(wait=False, cancel_futures=True)
            while not all(future.done() for future in futures):
                for process in [*_running]:
                    process.terminate()
                time.sleep(_POLL_S)
            raise


def compile_caches(folder: str) -> dict[str, str]:
    """Return the environment variables that put the caches of Inductor and Triton into a folder."""
    return {"TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor", "TRITON_CACHE_DIR": f"{folder}/triton"}


def run_process(
    arguments: Sequence[str],
    gpu: str | None = None,
    progress: Callable[[str], None] = lambda _: None,
    *,
    folder: Path | None = None,
    packages: Sequence[Path] = (),
    python: str = sys.executable,
    may_fail: bool = False,
) -> Results:
    """Run `pytest *arguments` in a fresh process with empty compile caches, which measures and compares nothing.

    Args:
        gpu: for CUDA_VISIBLE_DEVICES; None: whatever is visible.
        folder: of the project, whose code it imports; None: this one, as it is installed.
        packages: folders whose modules come before those that are installed.
        may_fail: whether the tests of what a workload declares may fail.

    Raises `MeasurementError` if it leaves no results, or fails, and `KernelgaugeError` if it measures another folder's code.
    """
    with temporary_folder() as own:
        # The page of a job shows what the command concludes, and not each of its processes.
        inherited = {name: value for name, value in os.environ.items() if name not in _OF_THE_JOB}
        environment = inherited | compile_caches(str(own)) | {"KERNELGAUGE_PARENT": str(os.getpid())}  # see the plugin
        imports = None if folder is None else Imports(folder, python)
        paths = (
            [*packages] if imports is None or folder is None else [folder / "src", folder, *imports.folders, *packages]
        )
        if paths:
            environment["PYTHONPATH"] = os.pathsep.join([*map(str, paths), inherited.get("PYTHONPATH", "")])
        if gpu is not None:
            environment["CUDA_VISIBLE_DEVICES"] = gpu
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
            _running.add(process)
            try:
                for line in process.stdout:
                    output.append(line.rstrip())
                    if line.startswith(WAITING):
                        progress(line.strip())
            except BaseException:  # interrupted: its files go away
                process.terminate()
                try:
                    process.wait(_PATIENCE_S)
                except subprocess.TimeoutExpired:
                    process.kill()
                raise
            finally:
                _running.discard(process)
        results = own / "latest" / NAME
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
