"""The hooks of a session that has a suite (the package loads them). They wire; what they mean is decided elsewhere."""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ..errors import KernelgaugeError
from ..results.files import WAITING
from . import SESSION_KEY, workers

# pytest finds the fixtures in the module that is registered.
from .fixtures import SESSION, kernelgauge_ratio, kernelgauge_test, run, sibling, trace_file, workload
from .options import options_of
from .record import keep_part, record_session, test_result
from .session import Session
from .suites import is_in_share, is_timed, keep, matches, sort_by_workload, workload_of, workloads_of, wrong_mark

if TYPE_CHECKING:
    from ..workload import Workload

__all__ = ["kernelgauge_ratio", "kernelgauge_test", "run", "sibling", "trace_file", "workload"]


def pytest_configure(config: pytest.Config) -> None:
    options = options_of(config, arguments=workers.arguments_of(config), worker=workers.place_of(config))
    show = _terminal_writer(config)
    # A worker of pytest-xdist and a process of a calibration share the standard error of the process that started them.
    has_terminal = options.worker is None and not options.calibrating
    session = Session(options, progress=show, waiting=show if has_terminal else _stderr_writer(config))
    config.stash[SESSION], session.pytest = session, config.stash.get(SESSION_KEY, None)
    if workers.is_controller(config):
        config.pluginmanager.register(workers.Controller(session), "kernelgauge-controller")
    elif options.worker is not None:
        config.pluginmanager.register(workers.Worker(session), "kernelgauge-worker")


def _capture_disabled(config: pytest.Config) -> AbstractContextManager[None]:
    capture: Any = config.pluginmanager.get_plugin("capturemanager")
    return capture.global_and_fixture_disabled() if capture else nullcontext()


def _terminal_writer(config: pytest.Config) -> Callable[[str], None]:
    def show(what: str) -> None:
        reporter = config.pluginmanager.get_plugin("terminalreporter")
        if reporter is None or config.getoption("verbose") < 0:
            return
        with _capture_disabled(config):
            reporter.ensure_newline()
            reporter.write_line(f"  {what}", bold=False)

    return show


def _stderr_writer(config: pytest.Config) -> Callable[[str], None]:
    def say(what: str) -> None:
        with _capture_disabled(config):
            os.write(2, f"{WAITING}{what}\n".encode(errors="backslashreplace"))

    return say


def pytest_sessionstart(session: pytest.Session) -> None:
    session.config.stash[SESSION].pytest = session


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "workload" not in metafunc.fixturenames:
        return
    declaring = metafunc.definition.ihook.pytest_kernelgauge_workloads.get_hookimpls()
    if not declaring:  # another project's fixture of the same name
        return
    config = metafunc.config
    suites = config.stash[SESSION].suites
    workloads: list[Workload] = []
    for implementation in declaring:
        plugin = implementation.plugin
        named = {"config": config} if "config" in implementation.argnames else {}
        declaration = functools.partial(implementation.function, **named)
        workloads += suites.declare(plugin, _suite_folder(plugin, config), declaration)
    full = config.stash[SESSION].options.full_matrix
    marks = list(metafunc.definition.iter_markers("workloads"))
    for mark in marks:
        wrong = wrong_mark(mark, workloads)
        if wrong and suites.error is None:
            suites.error = KernelgaugeError(
                wrong,
                where=metafunc.definition.nodeid,
                got=_written(mark),
                expected="fields of a workload, for example module='mlp', variant=('eager', 'compiled')",
            )
    filters = [mark.kwargs for mark in marks]
    selected = [
        workload
        for workload in workloads
        if (full or workload.matrix == "default")
        and (not filters or any(matches(workload, fields) for fields in filters))
        and (workload.faster_than is not None or "kernelgauge_ratio" not in metafunc.fixturenames)
    ]
    metafunc.parametrize("workload", selected, ids=[workload.id for workload in selected], indirect=True)


def _written(mark: pytest.Mark) -> str:
    arguments = [*map(repr, mark.args), *(f"{name}={value!r}" for name, value in mark.kwargs.items())]
    return f"@pytest.mark.{mark.name}({', '.join(arguments)})"


def _suite_folder(plugin: Any, config: pytest.Config) -> Path:
    """Return the folder of a `conftest.py`; for an object that is a plugin, the root of the project."""
    file = getattr(plugin, "__file__", None)
    return Path(file).parent if file else config.rootpath


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    return workers.workers_for(config)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Generator[None, None, None]:
    """Run all tests of one workload together, in the order that they are measured in."""
    # Of a suite without a ratio pytest would show a skipped test, or a deselected one.
    items[:] = [item for item in items if not (_is_of_ratios(item) and workload_of(item) is None)]
    yield
    session = config.stash[SESSION]
    keep(config, items, session.suites.runnable(items))
    if session.options.calibrating:
        keep(config, items, [workload_of(item) is not None and _calibrates(item) for item in items])
    session.planned = session.suites.count(full=session.options.full_matrix)
    keep(config, items, is_in_share(items, session.options))
    sort_by_workload(items, session.suites.in_order(workloads_of(items)))


def _is_of_ratios(item: pytest.Item) -> bool:
    return "kernelgauge_ratio" in getattr(item, "fixturenames", ())


def pytest_report_collectionfinish(config: pytest.Config, items: list[pytest.Item]) -> str:
    return config.stash[SESSION].suites.changes_on_cpu(items)


def _calibrates(item: pytest.Item) -> bool:
    """Whether a calibration needs a test: those of timers, and those that say whether a workload is what it declares.

    Not those of ratios: each would measure another workload.
    """
    return (is_timed(item) and not _is_of_ratios(item)) or item.get_closest_marker("structure") is not None


@pytest.hookimpl(tryfirst=True)  # before a worker tells what it has collected
def pytest_collection_finish(session: pytest.Session) -> None:
    ours = session.config.stash[SESSION]
    chosen = workloads_of(session.items)
    if ours.suites.error is not None:
        workers.refuse(session, ours.suites.error)
    elif chosen and _cannot_collect(session):
        session.items.clear()  # pytest's own loop would run nothing either; that of pytest-xdist does not look
    elif chosen and _runs_tests(session.config):
        ours.selected = ours.suites.in_order(chosen)
        ours.is_timed = any(is_timed(item) for item in session.items if workload_of(item))
        try:
            workers.require_suite(ours.options)
            ours.prepare()
            ours.artifacts.empty()
            workers.tell_groups(ours, session.items)
        except KernelgaugeError as error:
            workers.refuse(session, error)


def _runs_tests(config: pytest.Config) -> bool:
    """Whether tests follow the collection. If not, the results of an earlier run stay."""
    failed = sys.exc_info()[0] is not None  # pytest calls our hook in a `finally`: an expression of -k may be wrong
    options = config.option
    shows_fixtures = options.showfixtures or options.show_fixtures_per_test
    return not (failed or options.collectonly or options.setupplan or shows_fixtures)


def _cannot_collect(session: pytest.Session) -> bool:
    """Whether a worker of pytest-xdist has met a file that cannot be collected."""
    goes_on: bool = session.config.option.continue_on_collection_errors
    return hasattr(session.config, "workerinput") and bool(session.testsfailed) and not goes_on


# What is not the user's: libkineto's words to the standard error, as "USDT:2026-11-23 17:01:47 12461:12461 Handler.cpp:52] profiler_start",
# and torch's, as "W1123 20:51:53.136000 8554 torch/_dynamo/convert_frame.py:1994] [0/8] ...". Verdicts name what matters.
_PROFILERS_LINE = r"(?:USDT|STAGE|INFO):\d{4}-\d\d-\d\d [^\n]*\.cpp:\d+\] [^\n]*\n?"
_TORCHS_LINE = r"[VDIW]\d{4} \d\d:\d\d:\d\d\.\d+ (?:\d+ )?torch/[^\n]*\n?"
_TORCHS_RECORD = r"(?:DEBUG|INFO|WARNING) +torch\.[^\n]*\n?(?:(?!DEBUG|INFO|WARNING|ERROR|CRITICAL)[^\n]*\n|[^\n]+\Z)*"
_NOT_THE_USERS = re.compile(f"^(?:{_PROFILERS_LINE}|{_TORCHS_LINE}|{_TORCHS_RECORD})", re.MULTILINE)
_ONLY_THE_PROFILERS = re.compile(f"^{_PROFILERS_LINE}", re.MULTILINE)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, None]:
    report = (yield).get_result()
    session = item.config.stash[SESSION]
    if workload_of(item) is not None:
        unwanted = _ONLY_THE_PROFILERS if "TORCH_LOGS" in os.environ else _NOT_THE_USERS
        texts = [(name, unwanted.sub("", text)) for name, text in report.sections]
        report.sections = [(name, text) for name, text in texts if text.strip()]
    if report.when == "setup":
        session.forget_test(item.nodeid)  # an attempt before this one
    if report.when == "call" or not report.passed:  # what was skipped or failed before its call has none
        session.add_test(test_result(item, report))
    if report.failed and session.options.worker is not None:
        keep_part(session)  # a failure of the teardown comes after it


def pytest_runtest_teardown(item: pytest.Item) -> None:
    session = item.config.stash[SESSION]
    if session.options.worker is not None and workload_of(item) is not None:
        keep_part(session)  # should it hang or die in its next test, what it measured is known


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    ours = session.config.stash[SESSION]
    if ours.options.worker is not None:
        keep_part(ours)
    ours.release_gpu()


def pytest_unconfigure(config: pytest.Config) -> None:
    session = config.stash.get(SESSION, None)
    if session is not None:  # the summary comes after the session
        session.release_folder()


@pytest.hookimpl(optionalhook=True, wrapper=True)
def pytest_benchmark_group_stats(config: pytest.Config) -> Generator[None, Any, Any]:
    """Leave latencies of workloads out of pytest-benchmark's table, unless `-v` or one of its options asks for it."""
    groups = yield
    session = config.stash[SESSION]
    asked = any(each.startswith("--benchmark") for each in session.options.arguments)
    if asked or config.getoption("benchmark_compare") or config.getoption("verbose") > 0:
        return groups
    ours = {item.nodeid for item in session.pytest.items if workload_of(item)}
    others = [(name, [each for each in group if each["fullname"] not in ours]) for name, group in groups]
    return [(name, group) for name, group in others if group]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    session = config.stash[SESSION]
    if session.options.worker is None:  # a worker has a reporter too, which nobody sees
        record_session(
            session,
            terminalreporter,
            collected_only=config.option.collectonly,
            controls_workers=workers.is_controller(config),
        )
