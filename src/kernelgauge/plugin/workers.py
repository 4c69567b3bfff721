"""Under pytest-xdist: a GPU for each worker, a worker for each group of workloads, and one result of all workers.

Variants that a suite compares are one group, so that one GPU measures them. Tests of anything else are distributed as
without us. The groups are no `xdist_group` marks: pytest-xdist 3.8 puts those into the ids of tests, and pytest 9.2
ignores what it writes there.
"""

from __future__ import annotations

import signal
import threading
import warnings
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import pytest

from ..errors import KernelgaugeError, ResultsError
from ..judge import MEASUREMENT, Status, Verdict
from ..measure.nvml import VISIBLE, visible_gpus
from ..results import NAME, Results, TestResult, read_results
from ..results.files import write_atomically
from ..results.merge import copy_traces, join, with_traces_in
from .fixtures import skip_or_fail
from .options import Options, WorkerPlace
from .session import Session
from .suites import workload_of

__all__ = [
    "Controller",
    "Worker",
    "arguments_of",
    "gather",
    "is_controller",
    "place_of",
    "refuse",
    "require_suite",
    "tell_controller",
    "tell_groups",
    "workers_for",
]

# Keys of what controller and worker tell each other.
_HAS_SUITE = "kernelgauge_has_suite"
_ARGUMENTS = "kernelgauge_arguments"
_ERROR = "kernelgauge_error"

# Files of a worker.
_GROUPS = "groups.json"  # of each test of a workload, by pytest's id
_RUNNING = "running"  # the group that it is at

# -- before the workers start -----------------------------------------------------------------------------------------


def is_controller(config: pytest.Config) -> bool:
    """Return whether this process starts workers, and measures nothing itself."""
    distributes = config.getoption("dist", "no") != "no" and config.getoption("tx", None)
    return bool(distributes and not config.option.collectonly and not hasattr(config, "workerinput"))


def workers_for(config: pytest.Config) -> int | None:
    """Return how many workers ``-n auto`` starts: one for each GPU. None: there are tests of something else."""
    return max(1, len(_gpus(config))) if has_suite(config) and _only_suites(config) else None


def has_suite(config: pytest.Config) -> bool:
    """Return whether a `conftest.py` that pytest has loaded declares workloads: before collection, that of a named folder."""
    return bool(config.hook.pytest_kernelgauge_workloads.get_hookimpls())


def _only_suites(config: pytest.Config) -> bool:
    declaring = config.hook.pytest_kernelgauge_workloads.get_hookimpls()
    folders = [Path(file).parent for each in declaring if (file := getattr(each.plugin, "__file__", None))]
    paths = [config.invocation_params.dir / argument.partition("::")[0] for argument in config.args]
    return all(any(path.resolve().is_relative_to(folder) for folder in folders) for path in paths)


def _gpus(config: pytest.Config) -> tuple[str, ...]:
    device = config.getoption("--perf-device") or config.getini("kernelgauge_device")
    return () if device == "cpu" else visible_gpus()


# -- the controller ---------------------------------------------------------------------------------------------------


@contextmanager
def _ending_the_run() -> Iterator[None]:
    """End pytest with the text of our error alone; raised, it would be an internal error."""
    try:
        yield
    except KernelgaugeError as error:
        raise pytest.UsageError(str(error)) from error


class Controller:
    """Hooks of the process that starts the workers."""

    def __init__(self, session: Session) -> None:
        self._errors: list[str] = []  # of workers, each once
        self._session = session
        self._groups: dict[str, str] = {}
        self._before: Any = None  # the handler of SIGTERM

    @pytest.hookimpl(tryfirst=True)  # before the workers are started
    def pytest_sessionstart(self, session: pytest.Session) -> None:
        if has_suite(session.config):
            if threading.current_thread() is threading.main_thread():  # no other may set a handler
                # The end of a job's time: what was measured until then is still reported.
                self._before = signal.signal(signal.SIGTERM, _end_at_sigterm)
            with _ending_the_run():
                _require_one_measurement(session.config)
                self._session.prepare()

    def pytest_unconfigure(self) -> None:
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)

    def pytest_xdist_setupnodes(self, config: pytest.Config, specs: Sequence[Any]) -> None:
        """Before the worker imports anything of a suite: CUDA reads the variable once."""
        gpus = _gpus(config) if has_suite(config) else ()
        for place, spec in enumerate(specs):
            if gpus and spec.popen:  # a worker on another machine has GPUs of its own
                spec.env[VISIBLE] = gpus[place % len(gpus)]

    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput[_HAS_SUITE] = has_suite(node.config)
        node.workerinput[_ARGUMENTS] = [str(argument) for argument in node.config.invocation_params.args]

    @pytest.hookimpl(tryfirst=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> Any:
        return _scheduler(config, log, self._groups) if has_suite(config) else None

    def pytest_xdist_node_collection_finished(self, node: Any) -> None:
        artifacts = self._session.artifacts
        groups = artifacts.of_worker(node.gateway.id).folder / _GROUPS
        if not self._groups and groups.exists():  # it has workloads to measure
            self._groups.update(msgspec.json.decode(groups.read_bytes(), type=dict[str, str]))
            with _ending_the_run():
                artifacts.empty()

    def pytest_testnodedown(self, node: Any) -> None:
        error = getattr(node, "workeroutput", {}).get(_ERROR)
        if error and error not in self._errors:
            self._errors.append(error)

    def pytest_handlecrashitem(self, crashitem: str, report: Any) -> None:
        self._session.add_test(
            TestResult(crashitem, None, "failed", 0.0, said=str(report.longrepr))  # its worker's part lacks it
        )

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for error in self._errors:
            terminalreporter.write_line(f"ERROR: {error}", red=True)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._errors and session.exitstatus not in (pytest.ExitCode.INTERRUPTED, pytest.ExitCode.INTERNAL_ERROR):
            session.exitstatus = pytest.ExitCode.USAGE_ERROR


def _require_one_measurement(config: pytest.Config) -> None:
    """Raise `KernelgaugeError` under ``--dist each``: a run has one result of each workload."""
    if config.getoption("dist") == "each":
        raise KernelgaugeError(
            "--dist each measures each workload on every GPU, and a run has one result of each",
            expected="a run for each GPU, with its own folder of reports",
            next_command="CUDA_VISIBLE_DEVICES=0 pytest perf -o kernelgauge_reports=reports/gpu0",
        )


def _end_at_sigterm(*_: object) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one must not end the report
    pytest.exit("SIGTERM")


def _scheduler(config: pytest.Config, log: Any, groups: Mapping[str, str]) -> Any:
    """Return a scheduler that runs each group of workloads on one worker, and one worker on each GPU.

    The first worker that gets work on a GPU keeps that GPU while it lives: two would disturb each other. The other workers
    run the other tests, in the order and the scopes that ``--dist`` asks for.

    Args:
        groups: by pytest's id of a test; complete when the first worker has collected.
    """
    # Here, because pytest-xdist is optional.
    from xdist.scheduler import (  # type: ignore[import-untyped]
        LoadFileScheduling,
        LoadGroupScheduling,
        LoadScopeScheduling,
    )

    class OneWorkerOnEachGpu(LoadScopeScheduling):  # type: ignore[misc]
        workqueue: Any
        assigned_work: Any

        def __init__(self) -> None:
            super().__init__(config, log)
            self._timing: dict[object, Any] = {}  # workers, by GPU
            of_others = {"loadfile": LoadFileScheduling, "loadscope": LoadScopeScheduling}
            self._of_others = of_others.get(config.getoption("dist"), LoadGroupScheduling)

        def _split_scope(self, nodeid: str) -> str:
            return groups.get(nodeid) or str(self._of_others._split_scope(self, nodeid))

        def _gpu(self, node: Any) -> object:
            spec = node.gateway.spec
            return spec.env.get(VISIBLE) if spec.popen else spec.id

        def _assign_work_unit(self, node: Any) -> None:
            # A worker begins a test when it knows the next one, so one test alone would never begin.
            while self.workqueue and self._pending_of(self.assigned_work[node]) < 2:
                if self._timing.setdefault(self._gpu(node), node) is not node:
                    other = next((scope for scope in self.workqueue if scope not in groups.values()), None)
                    if other is None:
                        node.shutdown()
                        return
                    self.workqueue.move_to_end(other, last=False)
                super()._assign_work_unit(node)

        def remove_node(self, node: Any) -> str | None:
            if self._timing.get(self._gpu(node)) is node:
                del self._timing[self._gpu(node)]
            # What is complete would be assigned again, as work without a test, which never ends.
            left = {scope: tests for scope, tests in self.assigned_work[node].items() if not all(tests.values())}
            self.assigned_work[node] = left
            crashed: str | None = super().remove_node(node)
            return crashed

    return OneWorkerOnEachGpu()


# -- a worker ---------------------------------------------------------------------------------------------------------


class Worker:
    """Hooks of a worker: it measures one group at a time, and none in which another worker died."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._group = ""
        self._lost = ""  # why the group is not run

    @property
    def _running(self) -> Path:
        return self._session.artifacts.folder / _RUNNING

    @pytest.hookimpl(tryfirst=True)  # before a fixture of the suite, which may be what kills the worker
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        workload, group = workload_of(item), _group_of(item)
        if workload is None or not group:
            return
        if group != self._group:
            self._begin(group, item.session)
        if self._lost:
            self._session.conclude(Verdict(Status.INVALID, workload.id, MEASUREMENT, self._lost))
            skip_or_fail(item, self._session, self._lost)

    def _begin(self, group: str, session: pytest.Session) -> None:
        self._group, self._lost = group, ""
        workloads = {
            each.id: each for item in session.items if _group_of(item) == group and (each := workload_of(item))
        }
        self._session.selected = self._session.suites.in_order(workloads.values())
        for path in self._running.parent.parent.glob(f"*/{_RUNNING}"):
            with suppress(FileNotFoundError):  # another worker has just come to the end of its group
                if path != self._running and path.read_text() == group:
                    self._lost = f"worker {path.parent.name} died in the tests of {group}: they are not run again"
                    return
        self._running.write_text(group)

    def pytest_runtest_teardown(self, nextitem: pytest.Item | None) -> None:
        if self._group and _group_of(nextitem) != self._group:
            self._running.unlink(missing_ok=True)
            self._group = ""

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self) -> Generator[None, object, object]:
        """Write nothing to a controller that has ended."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # pluggy's, of the exception
            try:
                return (yield)
            except OSError:
                return None


def place_of(config: pytest.Config) -> WorkerPlace | None:
    """Return which worker this process is; None: none."""
    told: dict[str, Any] | None = getattr(config, "workerinput", None)
    return None if told is None else WorkerPlace(told["workerid"], bool(told.get(_HAS_SUITE)), told["workercount"] - 1)


def tell_groups(session: Session, items: Sequence[pytest.Item]) -> None:
    """Write the group of each test where the controller reads it. Raises `StorageError` if it cannot be written."""
    if session.options.worker is not None:
        groups = {item.nodeid: group for item in items if (group := _group_of(item))}
        write_atomically(session.artifacts.folder / _GROUPS, msgspec.json.encode(groups))


def _group_of(item: pytest.Item | None) -> str:
    """Return the name of what is measured on one GPU; empty: this is a test of something else."""
    workload = workload_of(item) if item is not None else None
    if workload is None:
        return ""
    shape = "x".join(map(str, workload.shape))
    pass_ = "" if workload.pass_ == "forward" else workload.pass_
    return "-".join(filter(None, (workload.module, workload.dtype, pass_, shape)))


def arguments_of(config: pytest.Config) -> tuple[str, ...]:
    """Return pytest's, as they were given to the controller: a worker's own are made up by pytest-xdist."""
    told: dict[str, Any] = getattr(config, "workerinput", {})
    return tuple(told.get(_ARGUMENTS) or map(str, config.invocation_params.args))


def require_suite(options: Options) -> None:
    """Raise `KernelgaugeError` in a worker whose controller knew of no suite: it would share the GPU with the others."""
    if options.worker is not None and not options.worker.has_suite:
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
    """Return whether there is one. It says the error, and the run has failed."""
    output: dict[str, Any] | None = getattr(config, "workeroutput", None)
    if output is not None:
        output.setdefault(_ERROR, str(error))
    return output is not None


# -- what the workers have left ---------------------------------------------------------------------------------------


def gather(session: Session) -> Results | None:
    """Return what all workers measured and judged as one; None if there is nothing.

    What a worker that died has left counts as far as it goes. The workers' parts stay: until what was made of them is
    written, they are all that there is.

    Raises `ResultsError` if the workers measured on GPUs of several models, `StorageError` if a trace cannot be copied.
    """
    folder = session.artifacts.workers
    folders = sorted(path.parent for path in folder.glob(f"*/{NAME}"))
    if session.pytest.exitstatus == pytest.ExitCode.INTERRUPTED:
        for path in sorted(folder.glob(f"*/{_RUNNING}")):
            session.warnings.append(
                f"worker {path.parent.name} was in the tests of {path.read_text()} when the run ended"
            )
    parts = list(_parts(session, folders))
    if not parts:
        return None
    results = copy_traces(join(parts), session.artifacts.folder)
    crashed = [_of_its_workload(test, results) for test in session.tests]
    nodes = {test.node for test in crashed}
    return msgspec.structs.replace(
        results,
        started_at=session.started.isoformat(timespec="seconds"),
        seconds=(datetime.now(timezone.utc) - session.started).total_seconds(),
        arguments=session.options.arguments,
        exit_status=int(session.pytest.exitstatus),
        tests=(*(test for test in results.tests if test.node not in nodes), *crashed),
        warnings=(*results.warnings, *session.warnings),
    )


def _of_its_workload(test: TestResult, results: Results) -> TestResult:
    """Return a test whose worker died in it, with the workload that its parameters name."""
    parameters = test.node.partition("[")[2].removesuffix("]")
    ids = [each for names in results.declared.values() for each in names if f"-{each}-" in f"-{parameters}-"]
    return msgspec.structs.replace(test, workload=max(ids, key=len)) if ids else test


def _parts(session: Session, folders: Sequence[Path]) -> Iterator[Results]:
    """Yield each worker's results, with the paths of its traces in its folder."""
    for folder in folders:
        try:
            part = read_results(folder / NAME)
        except ResultsError as error:
            session.warnings.append(f"{folder.name}: {error.one_line}")
            session.pytest.exitstatus = session.pytest.exitstatus or 1  # what it measured is lost
            continue
        yield with_traces_in(part, str(folder))
