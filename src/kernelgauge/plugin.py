"""The pytest plugin: options, hooks and fixtures. What they mean is decided elsewhere."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import nullcontext
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from . import hookspec
from .errors import KernelgaugeError, UpdateRefused

# pytest finds the fixtures in the module that it knows as the plugin.
from .fixtures import GAUGE_KEY, available, bare_name, conclude, gauge, run, workload, workload_of
from .gauge import Gauge
from .judge import Status, Verdict
from .measure.settings import Settings
from .standard import MEASURING
from .suites import Options
from .summary import summarize, test_result

if TYPE_CHECKING:
    from .workload import Workload

__all__ = ["GAUGE_KEY", "available", "conclude", "gauge", "run", "workload"]


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("kernelgauge", "GPU performance regressions")
    group.addoption(
        "--perf-matrix",
        choices=("default", "full"),
        default="default",
        help="workloads to run: the default ones, or all of them",
    )
    group.addoption(
        "--perf-device",
        choices=("auto", "cuda", "cpu"),
        default="auto",
        help="auto: a GPU if there is one, else the CPU",
    )
    group.addoption(
        "--perf-update",
        nargs="?",
        const="yes",
        choices=("yes", "force"),
        help="store what was measured as the baselines of this machine; under CI only with =force",
    )
    group.addoption(
        "--perf-require-baseline", action="store_true", help="a missing baseline fails its tests instead of skipping"
    )
    group.addoption(
        "--perf-strict",
        action="store_true",
        help="for nightly jobs: whatever was not decided (no baseline, too noisy, variant skipped) is a failure",
    )
    group.addoption(
        "--perf-replicates",
        type=_replicates,
        metavar="N",
        help="fresh allocations for each time (default: 8 to 16, as many as it takes)",
    )
    group.addoption(
        "--perf-deterministic",
        action="store_true",
        help="let Inductor choose launch configurations without timing them, where this torch can",
    )
    group.addoption(
        "--perf-runs",
        metavar="FILE",
        help="only measure, and write what was measured to FILE: what kernelgauge calibrate asks of its processes",
    )
    group.addoption("--perf-baselines", metavar="DIR", help="folder of the baselines (default: <rootdir>/baselines)")
    group.addoption("--perf-reports", metavar="DIR", help="folder of the reports (default: <rootdir>/reports)")


def _replicates(text: str) -> int:
    count = int(text)
    if count < 2:
        raise argparse.ArgumentTypeError("at least 2: of one replicate no noise is known")
    return count


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    pluginmanager.add_hookspecs(hookspec)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "workloads(**fields): run the test for each workload of the suite whose fields have these values "
        "(a tuple: one of them); several marks add up",
    )
    config.stash[GAUGE_KEY] = _new_gauge(config)


def _new_gauge(config: pytest.Config) -> Gauge:
    options = _options(config)

    # These import torch: only when something is measured.
    def measure(*arguments: Any) -> Any:
        from .measure.compiler import take_deterministic_choices
        from .measure.runner import measure as measure_workloads

        if config.getoption("--perf-deterministic"):
            take_deterministic_choices()
        return measure_workloads(*arguments)

    def confirm(*arguments: Any) -> Any:
        from .measure.runner import confirm as confirm_workload

        return confirm_workload(*arguments)

    def choose(choice: Any) -> Any:
        from .measure.device import choose_device

        return choose_device(choice)

    return Gauge(
        options=options,
        measurer=measure,
        confirmer=confirm,
        choose=choose,
        settings=Settings.of(config.getoption("--perf-replicates")),
        progress=_progress(config),
    )


def _options(config: pytest.Config) -> Options:
    root = config.rootpath
    folder = config.invocation_params.dir
    update = config.getoption("--perf-update")
    if update == "yes" and os.environ.get("CI"):
        raise pytest.UsageError(str(_refused_under_ci()))
    writes = "--perf-update" if update else "--perf-runs" if config.getoption("--perf-runs") else None
    if writes and (getattr(config.option, "numprocesses", None) or getattr(config.option, "dist", "no") != "no"):
        raise pytest.UsageError(f"{writes} is written by one process: run it without -n and --dist")
    strict = config.getoption("--perf-strict")
    return Options(
        root=root,
        baselines=folder / (config.getoption("--perf-baselines") or root / "baselines"),
        reports=folder / (config.getoption("--perf-reports") or root / "reports"),
        device=config.getoption("--perf-device"),
        update=update is not None,
        runs=folder / runs if (runs := config.getoption("--perf-runs")) else None,
        require_baseline=strict or config.getoption("--perf-require-baseline"),
        strict=strict,
        invoked_from=folder,
        measuring_arguments=_measuring_arguments(config),
    )


def _measuring_arguments(config: pytest.Config) -> tuple[str, ...]:
    """What a proposed command must repeat, so that it measures on the same device and writes into the same folder."""
    device = config.getoption("--perf-device")
    baselines = config.getoption("--perf-baselines")
    full = config.getoption("--perf-matrix") == "full"
    return (
        *(("--perf-matrix", "full") if full else ()),
        *(("--perf-device", device) if device != "auto" else ()),
        *(("--perf-baselines", baselines) if baselines else ()),
    )


def _refused_under_ci() -> UpdateRefused:
    return UpdateRefused(
        "--perf-update is refused under CI: a job that accepts its own result gates nothing",
        got="the environment variable CI is set",
        next_command="pytest perf --perf-update=force   (in a job whose purpose is to record)",
    )


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


def pytest_sessionstart(session: pytest.Session) -> None:
    gauge = session.config.stash[GAUGE_KEY]
    gauge.session, gauge.started = session, datetime.now(timezone.utc)


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
        conftest: Any = implementation.plugin  # a module: the hook stands in a `conftest.py`
        workloads += gauge.suites.declare(Path(conftest.__file__).parent, implementation.function)
    full = config.getoption("--perf-matrix") == "full"
    marks = list(metafunc.definition.iter_markers("workloads"))
    for mark in marks:
        wrong = _wrong_mark(mark, workloads)
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
        and (not filters or any(_matches(workload, fields) for fields in filters))
    ]
    metafunc.parametrize("workload", selected, ids=[workload.id for workload in selected], indirect=True)


def _wrong_mark(mark: pytest.Mark, workloads: Sequence[Workload]) -> str | None:
    """Why a mark `workloads` cannot mean what it says; None if it can."""
    if mark.args or not mark.kwargs:
        return "the mark workloads takes fields by name, and at least one"
    unknown = [name for name in mark.kwargs if workloads and not hasattr(workloads[0], name)]
    if unknown:
        return f"a workload has no field {', '.join(unknown)}"
    if not any(_matches(workload, mark.kwargs) for workload in workloads):
        return "the mark selects no workload, so its test would never run"
    return None


def _matches(workload: Workload, fields: Mapping[str, object]) -> bool:
    return all(
        getattr(workload, name, None) in (wanted if isinstance(wanted, tuple) else (wanted,))
        for name, wanted in fields.items()
    )


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run all tests of one workload together."""
    if config.getoption("--perf-runs"):
        _deselect_what_measures_nothing(config, items)

    def group(item: pytest.Item) -> str:
        workload = workload_of(item)
        return workload.id if workload else ""

    order = {name: place for place, name in enumerate(dict.fromkeys(map(group, items)))}
    items.sort(key=lambda item: order[group(item)])


def _deselect_what_measures_nothing(config: pytest.Config, items: list[pytest.Item]) -> None:
    kept: list[pytest.Item] = []
    others: list[pytest.Item] = []
    for item in items:
        (kept if bare_name(item) in MEASURING and workload_of(item) else others).append(item)
    config.hook.pytest_deselected(items=others)
    items[:] = kept


def pytest_collection_finish(session: pytest.Session) -> None:
    gauge = session.config.stash[GAUGE_KEY]
    if gauge.suites.error is not None:
        raise pytest.UsageError(str(gauge.suites.error))
    chosen = {workload.id: workload for item in session.items if (workload := workload_of(item))}
    if session.config.option.collectonly or not chosen:
        return
    gauge.selected = list(chosen.values())
    try:
        gauge.prepare_folders()
    except KernelgaugeError as error:
        raise pytest.UsageError(str(error)) from error


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, None]:
    report = (yield).get_result()
    workload = workload_of(item)
    gauge = item.config.stash[GAUGE_KEY]
    if report.when == "call" or not report.passed:  # what was skipped or failed before its call has none
        gauge.tests.append(test_result(item, report))
    if not report.failed or workload is None:
        return
    gauge.failed.setdefault(workload.id, []).append(item.name)
    if not any(name == "kernelgauge_verdict" for name, _ in item.user_properties):  # a claim of the suite
        gauge.conclude(Verdict(Status.REGRESSED, workload.id, bare_name(item), "the test failed"))
        item.user_properties.append(("kernelgauge_verdict", Status.REGRESSED.value))
        report.user_properties = list(item.user_properties)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    summarize(config.stash[GAUGE_KEY], terminalreporter, collected_only=config.option.collectonly)
