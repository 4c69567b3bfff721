"""Under pytest-xdist: a GPU for each worker, a worker for each group of workloads, and one result of all workers.

Imported only there: pytest-xdist is optional.
Variants that a suite compares are one group, so that one GPU measures them. The groups are no `xdist_group` marks: pytest-xdist 3.8 puts those into the ids of tests, and pytest 9.2
ignores what it writes there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import pytest
from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

from ..errors import KernelgaugeError, ResultsError
from ..measure.nvml import VISIBLE, visible_gpus
from ..results import NAME, Results, TestResult, read_results
from ..results.files import write_atomically
from ..results.merge import copy_traces, join, with_traces_in
from .record import refusing
from .session import Session
from .suites import group_of, workload_of

_HAS_SUITE = "kernelgauge_has_suite"
_TESTS = "tests.json"  # in the folder of a worker: the group and the workload of each test, by pytest's id


def has_suite(config: pytest.Config) -> bool:
    """Return whether a `conftest.py` that pytest has loaded declares workloads: before collection, that of a named folder."""
    return bool(config.hook.pytest_kernelgauge_workloads.get_hookimpls())


def _gpus(config: pytest.Config) -> tuple[str, ...]:
    device = config.getoption("--perf-device") or config.getini("kernelgauge_device")
    return () if device == "cpu" else visible_gpus()


# -- the controller ---------------------------------------------------------------------------------------------------


class Controller:
    """Hooks of the process that starts the workers, and measures nothing itself."""

    def __init__(self, session: Session) -> None:
        self._session = session
        # Group and workload by pytest's id, as the first worker tells them.
        self._tests: dict[str, tuple[str, str]] = {}
        self._scheduler: Any = None

    @pytest.hookimpl(tryfirst=True)  # before the workers are started
    def pytest_sessionstart(self, session: pytest.Session) -> None:
        config = session.config
        if has_suite(config):
            if config.option.numprocesses:  # two workers would disturb each other on one GPU, and on a host
                del config.option.tx[max(1, len(_gpus(config))) :]
            with refusing(config):
                if config.getoption("dist") == "each":
                    raise KernelgaugeError(
                        "--dist each measures each workload on every GPU, and a run has one result of each",
                        next_command="CUDA_VISIBLE_DEVICES=0 pytest perf -o kernelgauge_reports=reports/gpu0",
                    )
                self._session.prepare()

    def pytest_xdist_setupnodes(self, config: pytest.Config, specs: Sequence[Any]) -> None:
        """Before the worker imports anything of a suite: CUDA reads the variable once."""
        gpus = _gpus(config) if has_suite(config) else ()
        for place, spec in enumerate(specs):
            if gpus and spec.popen:  # a worker on another machine has GPUs of its own
                spec.env[VISIBLE] = gpus[place % len(gpus)]

    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput[_HAS_SUITE] = has_suite(node.config)
        node.workerinput["kernelgauge_arguments"] = list(self._session.options.arguments)

    @pytest.hookimpl(tryfirst=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> Any:
        if has_suite(config):
            self._scheduler = ByGroup(config, log, self._tests)
        return self._scheduler

    def pytest_xdist_node_collection_finished(self, node: Any) -> None:
        tests = self._session.artifacts.of_worker(node.gateway.id).folder / _TESTS
        if not self._tests and tests.exists():  # it has workloads to measure
            self._tests.update(msgspec.json.decode(tests.read_bytes()))
            with refusing(node.config):
                self._session.artifacts.empty()

    def pytest_handlecrashitem(self, crashitem: str, report: Any) -> None:
        # Its worker's part lacks it.
        _, workload = self._tests.get(crashitem, (None, None))
        crashed = TestResult(crashitem, workload, "failed", 0.0, said=str(report.longrepr))
        self._session.tests[crashitem] = [crashed]

    def results(self, exit_status: int) -> Results:
        """Return what all workers measured and judged as one. What a worker that died has left counts as far as it goes.

        The workers' parts stay: until what was made of them is written, they are all that there is.
        A part that cannot be read fails the run. Raises `ResultsError` if the workers measured on GPUs of several models,
        and `StorageError` if a trace cannot be copied.
        """
        own, folder = self._session.results(exit_status), self._session.artifacts.workers
        parts: list[Results] = []
        warnings = [*self._scheduler.lost] if self._scheduler is not None else []
        for file in sorted(folder.glob(f"*/{NAME}")):
            try:
                parts.append(with_traces_in(read_results(file), str(file.parent)))
            except ResultsError as error:
                warnings.append(f"{file.parent.name}: {error.one_line}")
                exit_status = exit_status or int(pytest.ExitCode.TESTS_FAILED)
        if not parts:
            return own
        results = copy_traces(join(parts), self._session.artifacts.folder)
        return msgspec.structs.replace(
            results,
            started_at=own.started_at,
            seconds=own.seconds,
            arguments=own.arguments,
            exit_status=exit_status,
            tests=(*(test for test in results.tests if test.node not in self._session.tests), *own.tests),
            warnings=(*results.warnings, *warnings),
        )


class ByGroup(LoadFileScheduling):  # type: ignore[misc]
    """Runs each group of workloads on one worker, and other tests file by file.

    `tests`: group and workload by pytest's id; complete when the first worker has collected.
    """

    workqueue: Any
    assigned_work: Any

    def __init__(self, config: pytest.Config, log: Any, tests: Mapping[str, tuple[str, str]]) -> None:
        super().__init__(config, log)
        self._tests = tests
        self.lost: list[str] = []

    def _split_scope(self, nodeid: str) -> str:
        return self._tests[nodeid][0] if nodeid in self._tests else str(super()._split_scope(nodeid))

    def remove_node(self, node: Any) -> str | None:
        """Return the test that a worker died in. The rest of its group is not run: it might kill the next worker too."""
        work = self.assigned_work.pop(node).items()
        left = {scope: tests for scope, tests in work if not all(tests.values())}
        if not left:
            return None
        died_in = next(iter(left))
        tests: dict[str, bool] = left.pop(died_in)
        self.lost.append(f"worker {node.gateway.id} died in the tests of {died_in}: they are not run again")
        self.workqueue.update(left)
        for other in self.assigned_work:
            self._reschedule(other)
        return next(test for test, done in tests.items() if not done)


# -- a worker ---------------------------------------------------------------------------------------------------------


def prepare_worker(session: Session, config: pytest.Config, items: Iterable[pytest.Item]) -> None:
    """Tell the controller which tests belong together. Raises `StorageError` if that cannot be written.

    Raises `KernelgaugeError` if the controller knew of no suite: this worker would share its GPU with the others.
    """
    if not config.workerinput.get(_HAS_SUITE):  # type: ignore[attr-defined]
        raise KernelgaugeError(
            "several workers found workloads that nobody had divided among them",
            got="a suite below the folders that pytest was given",
            expected="the suite's own folder",
            next_command="pytest perf -n 2   (name the folder whose conftest.py declares the workloads)",
        )
    tests = {item.nodeid: (group_of(workload), workload.id) for item in items if (workload := workload_of(item))}
    write_atomically(session.artifacts.folder / _TESTS, msgspec.json.encode(tests))
