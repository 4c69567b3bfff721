"""The hooks and fixtures of a session that has a suite (`plugin.py` loads them). What they mean is decided elsewhere."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Generator
from contextlib import nullcontext
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from . import workers
from .errors import KernelgaugeError
from .files import FolderLock, GpuLock

# pytest finds the fixtures in the module that is registered.
from .fixtures import (
    GAUGE_KEY,
    available,
    conclude,
    gauge,
    run,
    workload,
    workload_of,
)
from .gauge import Gauge
from .hookspec import SESSION_KEY
from .measure.settings import Settings
from .observing import Observed
from .options import options_of
from .selecting import (
    are_ours,
    keep,
    matches,
    measure_something,
    sort_by_workload,
    that_may_judge_times,
    workloads_of,
    wrong_mark,
)
from .summary import keep_part, summarize, test_result

if TYPE_CHECKING:
    from .workload import Workload

__all__ = ["GAUGE_KEY", "available", "conclude", "gauge", "run", "workload"]


def pytest_configure(config: pytest.Config) -> None:
    gauge = config.stash[GAUGE_KEY] = _new_gauge(config)
    gauge.session, gauge.started = config.stash.get(SESSION_KEY, None), datetime.now(timezone.utc)
    if workers.is_controller(config):
        config.pluginmanager.register(workers.Controller(gauge), "kernelgauge-controller")
    elif gauge.options.worker is not None and gauge.options.worker.dist != "each":
        config.pluginmanager.register(workers.Worker(gauge), "kernelgauge-worker")


def _new_gauge(config: pytest.Config) -> Gauge:
    options = options_of(config)

    # These import torch: only when something is measured.
    def measure(*arguments: Any) -> Any:
        from .measure.compiler import take_deterministic_choices
        from .measure.runner import measure as measure_workloads

        if config.getoption("--perf-deterministic"):
            take_deterministic_choices()
        return measure_workloads(*arguments)

    def choose(choice: Any) -> Any:
        from .measure.device import choose_device

        return choose_device(choice)

    observed = Observed(
        options=options,
        measurer=measure,
        choose=choose,
        settings=Settings.of(config.getoption("--perf-replicates")),
        progress=_progress(config),
        waiting=_waiting(config),
        lock=GpuLock(),
    )
    return Gauge(options, observed, FolderLock(options.reports) if options.worker is None else None)


def _progress(config: pytest.Config) -> Callable[[str], None]:
    def show(what: str) -> None:
        reporter = config.pluginmanager.get_plugin("terminalreporter")
        if reporter is None or config.getoption("verbose") < 0:
            return
        capture = config.pluginmanager.get_plugin("capturemanager")
        with capture.global_and_fixture_disabled() if capture else nullcontext():
            reporter.ensure_newline()
            reporter.write_line(f"  {what}", bold=False)

    return show


def _waiting(config: pytest.Config) -> Callable[[str], None]:
    """A worker of pytest-xdist has no terminal, but it has the controller's standard error."""
    if not hasattr(config, "workerinput"):
        return _progress(config)

    def show(what: str) -> None:
        if config.getoption("verbose") >= 0:
            os.write(2, f"{what}\n".encode(errors="backslashreplace"))

    return show


def pytest_sessionstart(session: pytest.Session) -> None:
    session.config.stash[GAUGE_KEY].session = session


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "workload" not in metafunc.fixturenames:
        return
    declaring = metafunc.definition.ihook.pytest_kernelgauge_workloads.get_hookimpls()
    if not declaring:  # another project's fixture of the same name
        return
    config = metafunc.config
    gauge = config.stash[GAUGE_KEY]
    workloads: list[Workload] = []
    for implementation in declaring:
        plugin = implementation.plugin
        named = {"config": config} if "config" in implementation.argnames else {}
        declaration = functools.partial(implementation.function, **named)
        workloads += gauge.suites.declare(plugin, _suite_folder(plugin, config), declaration)
    full = config.getoption("--perf-matrix") == "full"
    marks = list(metafunc.definition.iter_markers("workloads"))
    for mark in marks:
        wrong = wrong_mark(mark, workloads)
        if wrong and gauge.suites.error is None:
            gauge.suites.error = KernelgaugeError(
                wrong,
                where=metafunc.definition.nodeid,
                got=f"args {mark.args}, fields {mark.kwargs}",
                expected="fields of a workload, for example module='mlp', variant=('eager', 'compiled')",
            )
    filters = [mark.kwargs for mark in marks]
    selected = [
        workload
        for workload in workloads
        if (full or workload.matrix == "default")
        and (not filters or any(matches(workload, fields) for fields in filters))
    ]
    metafunc.parametrize("workload", selected, ids=[workload.id for workload in selected], indirect=True)


def _suite_folder(plugin: Any, config: pytest.Config) -> Path:
    """Return the folder of a `conftest.py`; for an object that is a plugin, the root of the project."""
    file = getattr(plugin, "__file__", None)
    return Path(file).parent if file else config.rootpath


@pytest.hookimpl(wrapper=True)  # outermost: pytest-xdist looks at the number of workers in its own
def pytest_cmdline_main(config: pytest.Config) -> Generator[None, object, object]:
    said = workers.limit_workers(config)
    if said is not None and config.getoption("verbose") >= 0:
        print(said)  # noqa: T201  # there is no terminal reporter yet
    return (yield)


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    return workers.workers_for(config)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run all tests of one workload together, in the order that they are measured in."""
    if config.getoption("--perf-runs"):
        keep(config, items, measure_something(items))
    gauge = config.stash[GAUGE_KEY]
    full = config.getoption("--perf-matrix") == "full"
    gauge.planned_workloads = gauge.suites.count(full=full) * gauge.options.repeats
    keep(config, items, are_ours(items, gauge.options))

    sort_by_workload(items, gauge.suites.in_order(workloads_of(items)))


@pytest.hookimpl(tryfirst=True)  # before a worker tells what it has collected
def pytest_collection_finish(session: pytest.Session) -> None:
    gauge = session.config.stash[GAUGE_KEY]
    chosen = workloads_of(session.items)
    if gauge.suites.error is not None:
        workers.refuse(session, gauge.suites.error)
    elif chosen and _cannot_collect(session):
        session.items.clear()  # pytest's own loop would run nothing either; that of pytest-xdist does not look
    elif chosen and _runs_tests(session.config):
        gauge.observed.selected = gauge.suites.in_order(chosen)
        gauge.to_judge = {workload.id for workload in workloads_of(that_may_judge_times(session.items))}
        try:
            workers.require_suite(gauge.options)
            gauge.prepare_folders()
            gauge.artifacts.empty()
            workers.tell_groups(gauge, session.items)
        except KernelgaugeError as error:
            workers.refuse(session, error)


def _runs_tests(config: pytest.Config) -> bool:
    """Whether tests follow the collection. If not, the results of an earlier run stay."""
    failed = sys.exc_info()[0] is not None  # pytest calls our hook in a `finally`: an expression of -k may be wrong
    options = config.option
    return not (failed or options.collectonly or options.setupplan or _shows_fixtures(options))


def _shows_fixtures(options: Any) -> bool:
    return bool(options.showfixtures or options.show_fixtures_per_test)


def _cannot_collect(session: pytest.Session) -> bool:
    """Whether a worker of pytest-xdist has met a file that cannot be collected."""
    goes_on: bool = session.config.option.continue_on_collection_errors
    return hasattr(session.config, "workerinput") and bool(session.testsfailed) and not goes_on


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, None]:
    report = (yield).get_result()
    gauge = item.config.stash[GAUGE_KEY]
    if report.when == "setup":
        gauge.forget(item.nodeid)  # an attempt before this one
    if report.when == "call" or not report.passed:  # what was skipped or failed before its call has none
        gauge.add_test(test_result(item, report))
    if report.failed and gauge.options.worker is not None:
        keep_part(gauge)  # a failure of the teardown comes after it


def pytest_runtest_teardown(item: pytest.Item) -> None:
    gauge = item.config.stash[GAUGE_KEY]
    if gauge.options.worker is not None and workload_of(item) is not None:
        keep_part(gauge)  # should it hang or die in its next test, what it measured is known


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    gauge = session.config.stash[GAUGE_KEY]
    if gauge.options.worker is not None:
        keep_part(gauge)
    if gauge.observed.lock is not None:
        gauge.observed.lock.release()


def pytest_unconfigure(config: pytest.Config) -> None:
    gauge = config.stash.get(GAUGE_KEY, None)
    if gauge is not None and gauge.folder_lock is not None:  # the summary comes after the session
        gauge.folder_lock.release()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    gauge = config.stash[GAUGE_KEY]
    if gauge.options.worker is None:  # a worker has a reporter too, which nobody sees
        summarize(
            gauge,
            terminalreporter,
            collected_only=config.option.collectonly,
            controls_workers=workers.is_controller(config),
        )
