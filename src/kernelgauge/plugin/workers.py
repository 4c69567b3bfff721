"""Under pytest-xdist: a worker for each GPU, a share of the suite for each worker, and one result of all workers.

Imported only there. Each worker collects the whole suite and runs its share of it (`Suites.select`): pytest-xdist calls that
``--dist each``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from ..errors import KernelgaugeError, ResultsError
from ..measure.nvml import VISIBLE, visible_gpus
from ..results import NAME, Results, TestResult, read_results
from . import MEASURED_BY
from .record import refusing
from .session import Session


def _has_suite(config: pytest.Config) -> bool:
    """Return whether a `conftest.py` that pytest has loaded declares workloads: before collection, that of a named folder."""
    return bool(config.hook.pytest_kernelgauge_workloads.get_hookimpls())


def _gpus(config: pytest.Config) -> tuple[str, ...]:
    device = config.getoption("--perf-device") or config.getini("kernelgauge_device")
    return () if device == "cpu" else visible_gpus()


class Controller:
    """Hooks of the process that starts the workers, and measures nothing itself."""

    def __init__(self, session: Session, config: pytest.Config) -> None:
        self._session, self._config = session, config
        self._started = 0  # workers that know of a suite
        self._collected = 0  # tests, by all of them
        if _has_suite(config):
            config.option.dist = "each"
            # The next worker would measure all of the share again, and die where this one died.
            config.option.maxworkerrestart = "0"
            if config.option.numprocesses:  # two workers would disturb each other on one GPU, and on a host
                del config.option.tx[max(1, len(_gpus(config))) :]

    @pytest.hookimpl(tryfirst=True)  # before the workers are started
    def pytest_sessionstart(self, session: pytest.Session) -> None:
        self._session_of_pytest = session
        if _has_suite(session.config):
            with refusing(session.config):
                self._session.prepare()

    def pytest_xdist_setupnodes(self, config: pytest.Config, specs: Sequence[Any]) -> None:
        """Before the worker imports anything of a suite: CUDA reads the variable once."""
        gpus = _gpus(config) if _has_suite(config) else ()
        for place, spec in enumerate(specs):
            if gpus and spec.popen:  # a worker on another machine has GPUs of its own
                spec.env[VISIBLE] = gpus[place % len(gpus)]

    def pytest_configure_node(self, node: Any) -> None:
        if _has_suite(node.config):
            self._started += 1
            node.workerinput["kernelgauge_share"] = (self._started, len(node.nodemanager.specs))
        node.workerinput["kernelgauge_arguments"] = list(self._session.options.arguments)

    def pytest_xdist_node_collection_finished(self, node: Any, ids: Sequence[str]) -> None:
        self._collected += len(ids)
        if (self._session.artifacts.workers / node.gateway.id).exists():  # it has workloads to measure
            with refusing(node.config):
                self._session.artifacts.empty()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self) -> None:
        if self._started:  # pytest-xdist takes the number of the worker that was last, which may have no test
            self._session_of_pytest.testscollected = self._collected

    def pytest_handlecrashitem(self, crashitem: str, report: Any) -> None:
        # Its worker's part lacks it.
        workload = crashitem.partition("[")[2].removesuffix("]") or None
        crashed = TestResult(crashitem, workload, "failed", 0.0, said=str(report.longrepr))
        self._session.tests[crashitem] = [crashed]

    def results(self, exit_status: int) -> Results:
        """Return what all workers measured and judged as one. What a worker that died has left counts as far as it goes.

        The workers' parts stay: until what was made of them is written, they are all that there is.
        A part that cannot be read fails the run. Raises `ResultsError` if the workers measured on GPUs of several models.
        """
        own = self._session.results(exit_status)
        parts: list[Results] = []
        warnings = [f"a worker died in {test}: the rest of its share was not run" for test in self._session.tests]
        for file in sorted(self._session.artifacts.workers.glob(f"*/{NAME}")):
            # Without a suite nobody has removed what an earlier run left, and a worker that died has nothing to be gathered.
            if not (self._started or file.parent.name in self._config.stash[MEASURED_BY]):
                continue
            try:
                parts.append(read_results(file))
            except ResultsError as error:
                warnings.append(f"{file.parent.name}: {error.one_line}")
                exit_status = exit_status or int(pytest.ExitCode.TESTS_FAILED)
        if not parts:
            return msgspec.structs.replace(own, exit_status=exit_status, warnings=(*own.warnings, *warnings))
        models = {part.fingerprint.device for part in parts if part.fingerprint is not None}
        if len(models) > 1:
            got = ", ".join(sorted(models))
            what = "the workers measured on several models of GPU"
            raise ResultsError(what, got=got, next_command=f"{VISIBLE}=0 pytest perf   (those of one model only)")
        workloads = {each.id: each for part in parts for each in part.workloads}
        declared = {suite: names for part in parts for suite, names in part.declared.items()}
        places = {name: place for place, name in enumerate(name for names in declared.values() for name in names)}
        gpus = {part.gpu for part in parts}
        said = dict.fromkeys(warning for part in parts for warning in part.warnings)
        return msgspec.structs.replace(
            own,
            fingerprint=next((part.fingerprint for part in parts if part.fingerprint is not None), None),
            gpu=gpus.pop() if len(gpus) == 1 else None,
            not_watched="; ".join(dict.fromkeys(part.not_watched for part in parts if part.not_watched)),
            workloads=tuple(sorted(workloads.values(), key=lambda each: places.get(each.id, len(places)))),
            tests=(
                *(test for part in parts for test in part.tests if test.node not in self._session.tests),
                *own.tests,
            ),
            warnings=(*own.warnings, *said, *warnings),
            exit_status=exit_status,
            timers=tuple(dict.fromkeys(timer for part in parts for timer in part.timers)),
            comparisons=max(part.comparisons for part in parts),
            declared=declared,
        )


def prepare_worker(session: Session) -> None:
    """Tell the controller, by a folder, that this worker measures.

    Raises `KernelgaugeError` if the controller knew of no suite: this worker would share its GPU with the others.
    """
    if session.options.share is None and session.selected:
        raise KernelgaugeError(
            "several workers found workloads that nobody had divided among them",
            got="a suite below the folders that pytest was given",
            expected="the suite's own folder",
            next_command="pytest perf -n 2   (name the folder whose conftest.py declares the workloads)",
        )
    session.artifacts.results.parent.mkdir(parents=True, exist_ok=True)
