"""Under pytest-xdist: one worker for each GPU, each with its share of the suite, and their results brought together.

The controller collects nothing and measures nothing. A worker knows nothing of the others but their number.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from .errors import KernelgaugeError
from .gpus import VISIBLE, visible_gpus
from .results import TestResult
from .shares import Share
from .suites import Options, WorkerPlace

if TYPE_CHECKING:
    from .gauge import Gauge

__all__ = [
    "Controller",
    "arguments_of",
    "is_controller",
    "limit_workers",
    "place_of",
    "refuse",
    "require_share",
    "workers_for",
]

# Keys of what controller and worker tell each other, and the variable in which a share travels to the worker: on its
# specification, so that the worker that replaces a crashed one has the same.
_SHARE = "KERNELGAUGE_SHARE"
_ARGUMENTS = "kernelgauge_arguments"
_ERROR = "kernelgauge_error"
_DIVIDED = "kernelgauge_divided"

_DIFFERENT = "the workers collected different tests: what they measured is not the whole suite"


def is_controller(config: pytest.Config) -> bool:
    return not hasattr(config, "workerinput") and _is_distributed(config)


def _is_distributed(config: pytest.Config) -> bool:
    return bool(
        not config.option.collectonly and config.getoption("dist", "no") != "no" and config.getoption("tx", None)
    )


def has_suite(config: pytest.Config) -> bool:
    """Whether a `conftest.py` that pytest has loaded declares workloads: before collection, that of a named folder."""
    return bool(config.hook.pytest_kernelgauge_workloads.get_hookimpls())


def workers_for(config: pytest.Config) -> int | None:
    """How many workers ``-n auto`` starts: one for each GPU. None: this is no suite of workloads."""
    return _places(config) if has_suite(config) else None


def limit_workers(config: pytest.Config) -> str | None:
    """Take back workers that would find every GPU taken; returns what to say of it."""
    wanted = getattr(config.option, "numprocesses", None)
    if not isinstance(wanted, int) or not has_suite(config):
        return None
    places = _places(config)
    if wanted <= places:
        return None
    config.option.numprocesses = places
    why = "one worker times on each GPU" if places > 1 or _gpus(config) else "there is one device to time on"
    return f"kernelgauge: {why}: -n {wanted} -> {places}"


def _places(config: pytest.Config) -> int:
    return max(1, len(_gpus(config)))


def _gpus(config: pytest.Config) -> tuple[str, ...]:
    return () if config.getoption("--perf-device") == "cpu" else visible_gpus()


@contextmanager
def _ending_the_run() -> Iterator[None]:
    """An error of ours ends pytest with its text alone, where a raised one would be an internal error."""
    try:
        yield
    except KernelgaugeError as error:
        raise pytest.UsageError(str(error)) from error


class Controller:
    """Hooks of pytest-xdist, where the workers are started. Other test suites are distributed as without us."""

    def __init__(self, gauge: Gauge) -> None:
        self.errors: list[str] = []  # of workers, each once
        self._gauge = gauge
        self._collected = 0
        self._splits = False
        self._session: pytest.Session | None = None
        self._divided: set[str] = set()
        self._measures = False

    @pytest.hookimpl(tryfirst=True)  # before the workers are started
    def pytest_sessionstart(self, session: pytest.Session) -> None:
        config = session.config
        if not has_suite(config):
            return
        self._session = session
        # Under `--dist each` whoever asks for it wants every test on every worker.
        self._splits = config.getoption("dist") != "each"
        with _ending_the_run():
            self._gauge.prepare_folders()

    def pytest_xdist_setupnodes(self, config: pytest.Config, specs: Sequence[Any]) -> None:
        """Before the worker imports anything of a suite: CUDA reads the variable once."""
        gpus = _gpus(config) if has_suite(config) else ()
        for place, spec in enumerate(specs):
            if has_suite(config):
                spec.env[_SHARE] = str(Share(place + 1, len(specs)) if self._splits else Share(1, 1))
            if gpus and spec.popen:  # a worker on another machine has GPUs of its own
                spec.env[VISIBLE] = gpus[place % len(gpus)]

    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput[_SHARE] = node.gateway.spec.env.get(_SHARE)
        node.workerinput[_ARGUMENTS] = [str(argument) for argument in node.config.invocation_params.args]

    @pytest.hookimpl(tryfirst=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> Any:
        """Every worker runs all that it has kept of its collection, which is its share."""
        if not self._splits:
            return None
        from .scheduling import ShareScheduling

        return ShareScheduling(config, log, _SHARE)

    def pytest_xdist_node_collection_finished(self, node: Any, ids: Sequence[str]) -> None:
        self._collected += len(ids)
        artifacts = self._gauge.artifacts
        if not self._measures and artifacts.of_worker(node.gateway.id).folder.exists():  # it has workloads to measure
            self._measures = True
            with _ending_the_run():
                artifacts.empty()

    def pytest_testnodedown(self, node: Any) -> None:
        error = getattr(node, "workeroutput", {}).get(_ERROR)
        if error and error not in self.errors:
            self.errors.append(error)
        divided = getattr(node, "workeroutput", {}).get(_DIVIDED)
        if self._splits and divided is not None:
            self._divided.add(divided)
            if len(self._divided) == 2:
                self.errors.append(_DIFFERENT)

    def pytest_handlecrashitem(self, crashitem: str, report: Any) -> None:
        self._gauge.add_test(
            TestResult(crashitem, None, "failed", 0.0, said=str(report.longrepr))  # the part that it left lacks it
        )

    def pytest_runtest_logstart(self) -> None:
        """pytest-xdist takes the number of tests from whichever worker collected last: progress is of all of them."""
        if self._splits and self._session is not None:
            self._session.testscollected = self._collected

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        try:
            return (yield)
        finally:
            if self._splits:  # where no test ran too: an empty share is not an empty suite
                session.testscollected = self._collected

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for error in self.errors:
            terminalreporter.write_line(f"ERROR: {error}", red=True)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.errors and session.exitstatus not in (pytest.ExitCode.INTERRUPTED, pytest.ExitCode.INTERNAL_ERROR):
            session.exitstatus = pytest.ExitCode.USAGE_ERROR


def place_of(config: pytest.Config) -> WorkerPlace | None:
    """Which worker this process is; None: none."""
    told: dict[str, Any] | None = getattr(config, "workerinput", None)
    if told is None:
        return None
    share = told.get(_SHARE)
    return WorkerPlace(told["workerid"], Share.parse(share) if share else None, told["workercount"] - 1)


def tell_division(config: pytest.Config, items: Sequence[pytest.Item]) -> None:
    """What this worker divides, in whatever order: it must be what the others divide."""
    output: dict[str, Any] | None = getattr(config, "workeroutput", None)
    if output is not None:
        names = "\n".join(sorted(item.nodeid for item in items))
        output[_DIVIDED] = hashlib.sha256(names.encode(errors="surrogateescape")).hexdigest()


def arguments_of(config: pytest.Config) -> tuple[str, ...]:
    """Of pytest, as they were given to the controller: a worker's own are made up by pytest-xdist."""
    told: dict[str, Any] = getattr(config, "workerinput", {})
    return tuple(told.get(_ARGUMENTS) or map(str, config.invocation_params.args))


def require_share(options: Options) -> None:
    """Raises `KernelgaugeError` in a worker whose controller knew of no suite: it would share the GPU with the others."""
    if options.worker is not None and options.worker.share is None:
        raise KernelgaugeError(
            "several workers found workloads that nobody had divided among them",
            got="a suite below the folders that pytest was given",
            expected="the suite's own folder",
            next_command="pytest perf -n 2   (name the folder whose conftest.py declares the workloads)",
        )


def refuse(session: pytest.Session, error: KernelgaugeError) -> None:
    """Run nothing, and say why. Raises `pytest.UsageError`, which of a worker would be taken for a crash."""
    if not tell_controller(session.config, error):
        raise pytest.UsageError(str(error)) from error
    session.items.clear()


def tell_controller(config: pytest.Config, error: KernelgaugeError) -> bool:
    """Whether there is one. It says the error, and the run has failed."""
    output: dict[str, Any] | None = getattr(config, "workeroutput", None)
    if output is not None:
        output.setdefault(_ERROR, str(error))
    return output is not None
