"""Repositories, and processes of pytest that measure what a text file says."""

import random
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from kernelgauge import processes
from kernelgauge.errors import NO_TIMES, MeasurementError
from kernelgauge.judge.baseline import Baseline, decode_baseline
from kernelgauge.results import Results
from kernelgauge.run import Lack, Run
from tests import builders

Command = Callable[..., tuple[int, str, str]]
FIRST, SECOND = "mlp-compiled-bf16-4x8", "linear-eager-bf16-4x8"


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], check=True, capture_output=True, text=True).stdout


def commit_all(subject: str) -> str:
    git("add", ".")
    git("commit", "-qm", subject)
    return git("rev-parse", "HEAD").strip()


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:cacheprovider -p no:hypothesispytest -p no:timeout")
    make_repository(monkeypatch)
    return folder


def make_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GIT_AUTHOR", "GIT_COMMITTER"):
        monkeypatch.setenv(f"{name}_NAME", "Ann")
        monkeypatch.setenv(f"{name}_EMAIL", "ann@example.org")
    git("init", "-q")


def measured(workload: str = FIRST, *, center: float = 205.0, place: int = 0, **fields: Any) -> Run:
    """Return the run of one process, a little apart from those of other places."""
    device = [center * (1 + 0.0001 * (place + offset)) for offset in (-1, 0, 1, 2)]
    defaults: dict[str, Any] = {
        "workload": workload,
        "device": device,
        "host": None,
        "end_to_end": None,
        "gpu": "a",
    }
    return builders.run(**(defaults | fields))


# A test with the fixture, and what a process of pytest needs to measure the run that its commit
# holds.
FIXTURE_TEST = """
from kernelgauge import Workload


def test_mlp(kernelgauge):
    kernelgauge(Workload("any", "name", build=list, inputs=list, dtype=None))
"""
FIXTURE_CONFTEST = """
from pathlib import Path
from types import SimpleNamespace

import msgspec
import torch
from kernelgauge import Run, Timer
from kernelgauge.errors import NO_TIMES
from kernelgauge.judge import NUMERICS, Status, Verdict
from kernelgauge.judge.evidence import Failed
from kernelgauge.plugin.fixtures import SESSION
from kernelgauge.run import Lack

exec(Path("code.py").read_text())
RUN = msgspec.json.decode(Path("run.json").read_bytes(), type=Run)


def measure_groups(workloads, device, fingerprint, settings, progress, *, timed, keeps_times, replays):
    times = {} if timed else {"samples": {}, "incomplete": NO_TIMES, "lack": Lack.NOT_ASKED}
    run = msgspec.structs.replace(RUN, workload=workloads[0].id, **times)
    yield {run.workload: SimpleNamespace(run=run, problem="", trace_json=b"{}", table="")}


def pytest_collection_modifyitems(config):
    session, sample = config.stash[SESSION], RUN.samples[Timer.END_TO_END]
    device = SimpleNamespace(gpu=RUN.gpu, timers=tuple(RUN.samples), fingerprint=lambda: RUN.fingerprint)
    device.torch_device, device.monitor = torch.device("cpu"), SimpleNamespace(why_not="")
    session.choose_device, session.measure_groups = lambda _: device, measure_groups
    session.time_latency = lambda *_: sample
    session.judge_result = lambda workload: Verdict(Status.PASS, workload.id, NUMERICS, Failed(""))
"""


def commit_fixture_test(subject: str, code: str = "", **fields: Any) -> str:
    """Commit a test that measures a run, and code that its process runs first.

    Return the commit.
    """
    Path("perf").mkdir(exist_ok=True)
    run = measured("any", end_to_end=(300.0, 301.0, 302.0, 303.0), **fields)
    for name, text in (
        ("perf/conftest.py", FIXTURE_CONFTEST),
        ("perf/test_ops.py", FIXTURE_TEST),
        ("pytest.ini", "[pytest]"),
        ("code.py", f"# {subject}\n{code}"),
        ("run.json", msgspec.json.encode(run).decode()),
    ):
        Path(name).write_text(text)
    return commit_all(subject)


class Process:
    """Stands in for a process of pytest: it measures `runs`, or the model in its folder or in its
    packages.

    A model is a text of words. "205" is its time in microseconds, "down=73" the time of one kernel,
    "host=50" the dispatch time. "fewer", "breaks", "recompiles", "tf32" and "broken" change its
    kernels, counts and settings, or make it fail. `after`: how many processes end well before the
    next one is interrupted.
    """

    def __init__(self, baselines: Path) -> None:
        self.baselines = baselines
        self.seen: list[SimpleNamespace] = []  # the processes that ran
        self.runs: list[tuple[Run, ...]] = []  # of one process after the other, again and again
        self.change: Callable[[Results], Results] = lambda results: results
        self.rng = random.Random(20261123)
        self.noise = 0.0005
        # of the host, by process: how many times as long the host reference takes
        self.speeds = (1.0,)
        self.after: int | None = None
        self.is_machine_lost = False

    def __call__(
        self,
        arguments,
        progress=None,
        *,
        folder=None,
        packages=(),
        python=None,
        variables=None,
        **_: Any,
    ) -> Results:
        folder = folder or Path.cwd()
        if self.after is not None and len(self.seen) >= self.after:
            raise KeyboardInterrupt
        modules = [
            path.read_text() for each in packages for path in each.iterdir() if path.is_file()
        ]
        texts = (folder / name for name in ("model.txt", "perf/suite.txt"))
        model, suite = (path.read_text() if path.exists() else "" for path in texts)
        model = " ".join(modules) or model
        asked = {
            "folder": folder,
            "arguments": list(arguments),
            "python": python,
            "variables": dict(variables or {}),
        }
        self.seen.append(SimpleNamespace(model=model, suite=suite, packages=modules, **asked))
        if "broken" in model or self.is_machine_lost:
            raise MeasurementError(
                "a process that measures failed", got="ImportError: no module named gone"
            )
        runs = (
            self.runs[(len(self.seen) - 1) % len(self.runs)]
            if self.runs
            else (self.run_of(model, arguments[-1]),)
        )
        workloads = [
            builders.passing(name=each.workload, run=each, trace=f"traces/{each.workload}")
            for each in runs
        ]
        tests = [builders.one_test("test_device_time", workload=each.workload) for each in runs]
        fields = {
            "tests": tests,
            "timers": tuple(runs[0].samples),
            "baselines": str(self.baselines),
        }
        fields |= {"fingerprint": runs[0].fingerprint, "gpu": runs[0].gpu}
        return self.change(builders.complete_results(*workloads, **fields))

    def run_of(self, model: str, last_argument: str) -> Run:
        number = next(
            (float(word) for word in model.split() if re.fullmatch(r"[\d.]+", word)), 205.0
        )
        changes: dict[str, Any] = {"counts": builders.counts(graph_breaks=int("breaks" in model))}
        if last_argument == "not timing":
            changes |= {"device": None, "incomplete": NO_TIMES, "lack": Lack.NOT_ASKED}
        elif "recompiles" in model:  # on fresh allocations, in the replicates of a time
            changes |= {"device": None, "incomplete": "other kernels"}
            changes["counts"] = builders.counts(recompiles=4 + len(self.seen) % 2)
        changes["machine"] = builders.fingerprint(
            fp32_matmul="high" if "tf32" in model else "highest"
        )
        times = {name: float(time) for name, time in re.findall(r"(\w+)=([\d.]+)", model)}
        if host := times.pop("host", None):
            speed = self.speeds[(len(self.seen) - 1) % len(self.speeds)]
            host *= speed**1.2 * (1 + self.rng.gauss(0, self.noise))  # no ratio is quite the same
            changes |= {"host": [host] * 4, "host_control_us": builders.CONTROL_US * speed}
        changes["kernels"] = builders.mlp_kernels(**times)[: 3 if "fewer" in model else 4]
        return measured(center=number * (1 + self.rng.gauss(0, self.noise)), **changes)

    def stored(self) -> dict[str, Baseline]:
        return {
            path.stem: decode_baseline(path.read_bytes(), where=str(path), workload=path.stem)
            for path in self.baselines.glob("*/*.json")
        }


@pytest.fixture
def process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Process:
    process = Process(tmp_path / "baselines")
    monkeypatch.setattr(processes, "run_process", process)
    return process


def forget_signals() -> None:
    """Take no signal as ignored: under nohup, and in the background of a shell, some are."""
    for each in (signal.SIGHUP, signal.SIGINT):
        signal.signal(each, signal.SIG_DFL)


@pytest.fixture
def command(kernelgauge: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """In a folder of its own, with 100 columns, and not under CI."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("CI", raising=False)
    return kernelgauge
