"""The hooks of a session that has a suite (the package loads them).

They wire; what they mean is decided elsewhere.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
from collections.abc import Generator
from contextlib import ExitStack, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ..errors import CLEAR_LINE, KernelgaugeError, is_profiled
from ..processes import status_line
from ..results import TestResult
from ..results.files import DOING, WAITING
from . import (
    PROFILED,
    SESSION_KEY,
    SKIPPED,
    WORKER_MEASURES,
    measuring_fixtures,
)
from .fixtures import END, SESSION, SUBJECT, Benchmark, gauge_of, judge_skipped, require_verdict
from .options import options_of
from .record import Controller, Recorder, keep_part, prepare_worker, refusing
from .session import Session
from .suites import MADE_BY_TEST, is_conditional, workload_of

_CONTROLLER = "kernelgauge-controller"
_LONGEST_SAID = 20_000  # characters: a traceback is not what the results are for
_SEED = 0  # of the data that tests draw


def pytest_configure(config: pytest.Config) -> None:
    options = options_of(config)
    # A worker of pytest-xdist and a process of a calibration share the standard error of the
    # process that started them.
    has_terminal = not (options.worker or options.calibrating)
    status = StatusLine(config, has_terminal=has_terminal)
    config.pluginmanager.register(status)
    waiting = partial(status.show, is_urgent=True)  # it may take an hour
    # The controller of workers shows its tests. A calibration rewrites its own line.
    session = Session(
        options, progress=(lambda _: None) if options.worker else status.show, waiting=waiting
    )
    config.stash[SESSION] = session
    session.profiled = config.stash.setdefault(PROFILED, {})
    # its file has the same text
    if has_terminal and sys.stdout.isatty() and not config.getoption("xmlpath", None):
        session.width = shutil.get_terminal_size().columns
    distributes = config.getoption("dist", "no") != "no" and config.getoption("tx", None)
    if distributes and not options.worker and not config.option.collectonly:
        if options.calibrating:
            raise pytest.UsageError(
                "each process of a calibration measures alone: run it without -n and --dist"
            )
        config.pluginmanager.register(Controller(session, config), _CONTROLLER)


class StatusLine:
    """What is being measured, past pytest's capture: on a terminal the line below pytest's own,
    which is rewritten; else a line each time, and pytest's goes on below.
    """

    def __init__(self, config: pytest.Config, *, has_terminal: bool) -> None:
        self._config, self._has_terminal = config, has_terminal
        self._started = time.monotonic()
        self._is_shown = False  # a line that must be cleared
        self._ended: Path | str | None = None  # how the line of pytest that ours ended begins

    def show(self, text: str, *, is_urgent: bool = False) -> None:
        """Show a line. `is_urgent`: with -q too, and it stays."""
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        capture: Any = self._config.pluginmanager.get_plugin("capturemanager")
        with capture.global_and_fixture_disabled() if capture else nullcontext():
            if not self._has_terminal:
                os.write(
                    2,
                    f"{WAITING if is_urgent else DOING}{text}\n".encode(errors="backslashreplace"),
                )
            elif reporter is None or not (is_urgent or self._config.getoption("verbose") >= 0):
                return
            elif is_urgent or not reporter.isatty:
                self._clear()
                if isinstance(reporter.currentfspath, (Path, str)):
                    self._ended = reporter.currentfspath
                reporter.ensure_newline()
                reporter.write_line(f"  {text}")
            else:
                line = status_line(f"  {text}", self._started, reporter._tw.fullwidth)
                self._write(reporter, line if self._is_shown else f"\n{line}")
                self._is_shown = True

    def _write(self, reporter: Any, text: str) -> None:
        """Write what pytest does not count as part of its line."""
        line = reporter._tw._current_line
        reporter._tw.write(text, flush=True)
        reporter._tw._current_line = line

    def _clear(self) -> None:
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        if self._is_shown and reporter is not None:
            column = reporter._tw.width_of_current_line
            self._write(reporter, f"{CLEAR_LINE}\x1b[A" + (f"\x1b[{column}C" if column else ""))
            self._is_shown = False

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._clear()
        if self._ended is not None and (report.when == "call" or not report.passed):
            reporter: Any = self._config.pluginmanager.get_plugin("terminalreporter")
            begins, reporter.currentfspath, self._ended = self._ended, self._ended, None
            if isinstance(begins, Path):
                begins = f"{os.path.relpath(begins, reporter.startpath)} "
            reporter._tw.write(begins)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        self._clear()

    @pytest.hookimpl(tryfirst=True)
    def pytest_terminal_summary(self) -> None:
        self._clear()


# -- which tests run -------------------------------------------------------------------------------


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    declares = metafunc.definition.ihook.pytest_kernelgauge_workloads.get_hookimpls()
    # Private; the public names do not tell whose fixture it is.
    fixtures = metafunc._arg2fixturedefs.get("workload", ())
    is_ours = bool(fixtures) and fixtures[-1].func.__module__ == __package__
    given = [mark.args[0] for mark in metafunc.definition.iter_markers("parametrize") if mark.args]
    is_given = any(
        "workload" in (each.split(",") if isinstance(each, str) else each) for each in given
    )
    if declares and is_ours and not is_given:
        suites = metafunc.config.stash[SESSION].suites
        try:
            found = suites.workloads_for(metafunc)
            if found or not is_conditional(metafunc):
                metafunc.parametrize("workload", found, ids=str, indirect=True)
        except KernelgaugeError as error:
            suites.error = suites.error or error


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Generator[None, None, None]:
    # Of a conditional test without a workload pytest would show a skipped test, or a deselected
    # one.
    items[:] = [each for each in items if workload_of(each) or not is_conditional(each)]
    ours, fixtures = config.stash[SESSION], measuring_fixtures(config)
    ours.suites.adopt(items, fixtures)
    is_part = config.getoption("lf", False) or any("::" in each for each in config.args)
    if not is_part:
        # Those that ask for `benchmark` measure in a run with --perf-benchmark.
        part = [each for each in items if "benchmark" in getattr(each, "fixturenames", ())]
        part = [] if "benchmark" in fixtures else part
        ours.whole_files = {*map(ours.suites.file_of, items)} - {*map(ours.suites.file_of, part)}
    collected = len(items)
    yield
    if len(items) < collected and not ours.options.strict:
        ours.whole_files = set()  # whoever selects knows what else there is
    selected = ours.suites.select(items)
    if others := set(items) - set(selected):
        config.hook.pytest_deselected(items=list(others))
    items[:] = selected


@pytest.hookimpl(tryfirst=True)  # before a worker tells what it has collected
def pytest_collection_finish(session: pytest.Session) -> None:
    config, ours = session.config, session.config.stash[SESSION]
    ours.profiled["imported"] = is_profiled()
    with refusing(config):
        if ours.suites.error is not None:
            raise ours.suites.error
        if ours.options.worker:  # its controller knows no suite
            ours.require_tests(config.stash.get(SKIPPED, {}))
        # Else the results of an earlier run stay. pytest calls our hook in a `finally`: an
        # expression of -k may be wrong.
        shows_fixtures = config.option.showfixtures or config.option.show_fixtures_per_test
        runs_none = (
            config.option.collectonly or config.option.setuponly or shows_fixtures
        )  # --setup-plan sets setuponly
        if ours.select(session.items) and not (runs_none or sys.exc_info()[0] is not None):
            if ours.options.worker:
                prepare_worker(ours)
                ours.on_freeze = partial(keep_part, ours, config)
                config.workeroutput[WORKER_MEASURES] = True  # type: ignore[attr-defined]
            ours.prepare()
            if not ours.options.worker:
                ours.artifacts.empty()


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
) -> Generator[None, object, object]:
    """With --perf-benchmark, let the fixture `benchmark` of a test measure by kernelgauge."""
    value = yield
    if fixturedef.argname == "benchmark" and MADE_BY_TEST in request.node.stash:
        Benchmark.take_over(value, gauge_of(request.node))
    return value


# -- how they end ----------------------------------------------------------------------------------

# What is not the user's: libkineto's words to the standard error, as "USDT:2026-11-23 17:01:47
# 12461:12461 Handler.cpp:52] profiler_start", and torch's, as "W1123 20:51:53.136000 8554
# torch/_dynamo/convert_frame.py:1994] [0/8] ...". Verdicts name what matters.
_PROFILERS_LINE = r"(?:USDT|STAGE|INFO):\d{4}-\d\d-\d\d [^\n]*\.cpp:\d+\] [^\n]*\n?"
_TORCHS_LINE = r"[VDIW]\d{4} \d\d:\d\d:\d\d\.\d+ (?:\d+ )?torch/[^\n]*\n?"
# how one begins, by pytest's format
_RECORD = r"(?:DEBUG|INFO|WARNING|ERROR|CRITICAL|[A-Z][^\n]* \S+:\S+:\d+ )"
_TORCHS_RECORD = rf"(?:DEBUG|INFO|WARNING) +torch\.[^\n]*\n?(?:(?!{_RECORD})(?:[^\n]*\n|[^\n]+\Z))*"
_NOT_THE_USERS = re.compile(f"^(?:{_PROFILERS_LINE}|{_TORCHS_LINE}|{_TORCHS_RECORD})", re.MULTILINE)


_MOST_CAPTURED = 20  # lines of a section: each of a hundred calls prints the same ones


def _cut_captured(text: str, most: int) -> str:
    """Return captured output without the lines in its middle, if it has more than `most`."""
    lines = text.splitlines(keepends=True)
    if len(lines) <= most:
        return text
    first, last = ("".join(each) for each in (lines[: most // 2], lines[-(most // 2) :]))
    return f"{first.rstrip()}\n... {len(lines) - most} more lines: pytest -vv shows them\n{last}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    tests, workload = item.config.stash[SESSION].tests, workload_of(item)
    if workload is not None and "TORCH_LOGS" not in os.environ:
        texts = [(name, _NOT_THE_USERS.sub("", text)) for name, text in report.sections]
        most = sys.maxsize if item.config.get_verbosity() > 1 else _MOST_CAPTURED
        report.sections = [
            (name, _cut_captured(text, most)) for name, text in texts if text.strip()
        ]
    if report.when == "setup":
        tests.pop(item.nodeid, None)  # an attempt before this one
    if report.skipped:
        judge_skipped(item, report)
    subject, item.stash[SUBJECT] = item.stash.get(SUBJECT, None), None
    if item.stash.get(END, item) is None and not report.passed:
        subject = None
    if report.when == "teardown" and END in item.stash:
        del item.stash[END]  # it holds all that the test had
    # what was skipped or failed before its call has none
    if report.when == "call" or not report.passed:
        said = (
            report.longrepr[2]
            if isinstance(report.longrepr, tuple)
            else report.longrepr
            if report.failed
            else ""
        )
        # the verdict says it, and is not cut to a terminal's width
        said = "" if subject is not None else said
        documentation = getattr(getattr(item, "obj", None), "__doc__", None) or ""
        result = TestResult(
            node=item.nodeid,
            workload=workload.id if workload else None,
            outcome=report.outcome,
            seconds=report.duration,
            claim=documentation.strip().partition("\n")[0],
            # JSON has no half of a character.
            said=str(said)
            .removeprefix("Skipped: ")[:_LONGEST_SAID]
            .encode(errors="backslashreplace")
            .decode(),
            # of its own phase: a failure of its teardown is not the verdict that its call ended
            # with
            subject=subject,
        )
        tests.setdefault(item.nodeid, []).append(result)
        if item.config.stash[SESSION].options.worker:  # it may die: its controller keeps this
            vars(report)["kernelgauge_test"] = msgspec.to_builtins(result)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Restore the settings of torch that a test changed: the next test would be measured with them."""
    with ExitStack() as stack:
        if MADE_BY_TEST in item.stash:
            from ..measure.compiler import restoring_settings

            stack.enter_context(restoring_settings())
        result = yield
    require_verdict(item, is_over=False)
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    result = yield
    if [each.outcome for each in item.config.stash[SESSION].tests.get(item.nodeid, ())] == [
        "passed"
    ]:
        require_verdict(item, is_over=True)
    return result


@pytest.hookimpl(tryfirst=True)  # before the fixtures that draw data
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Give a test that measures what it calls the same data in each run: other data may take other
    shapes and kernels.
    """
    item.config.stash[SESSION].profiled.setdefault("tests", is_profiled())
    _seed(item)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> None:
    _seed(pyfuncitem)  # again: pytest-randomly has another seed in each run, for the call too


def _seed(item: pytest.Item) -> None:
    if MADE_BY_TEST in item.stash:
        import torch

        from ..measure.instance import seed_others

        torch.manual_seed(_SEED)
        seed_others(_SEED)


@pytest.hookimpl(optionalhook=True, wrapper=True)
def pytest_benchmark_group_stats(config: pytest.Config) -> Generator[None, Any, Any]:
    """Leave latencies of workloads out of pytest-benchmark's table, unless `-v` asks for it."""
    groups = yield
    if config.getoption("verbose") > 0:
        return groups
    ours = {item.nodeid for item in config.stash[SESSION_KEY].items if workload_of(item)}
    others = [
        (name, [each for each in group if each["fullname"] not in ours]) for name, group in groups
    ]
    return [(name, group) for name, group in others if group]


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if session.config.stash[SESSION].options.worker:
        keep_part(session.config.stash[SESSION], session.config)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    session = config.stash[SESSION]
    # A worker has a reporter too, which nobody sees.
    if not (session.options.worker or config.option.collectonly or config.option.setuponly):
        controller = config.pluginmanager.get_plugin(_CONTROLLER)
        results_at = (controller or session).results
        Recorder(session, terminalreporter).record(results_at, has_workers=controller is not None)


def pytest_unconfigure(config: pytest.Config) -> None:
    if SESSION in config.stash:
        config.stash[SESSION].release()
