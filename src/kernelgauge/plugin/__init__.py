"""The pytest plugin, as far as every session needs it: its options, and the hook by which a suite
declares itself.

`hooks` has the rest. It is imported once a suite is there, so that a session without one does not
wait for it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest

from ..errors import is_profiled

if TYPE_CHECKING:
    from ..workload import Workload
    from .fixtures import Gauge

SESSION_KEY = pytest.StashKey[pytest.Session]()
# why, by the file of tests that was skipped as a whole
SKIPPED = pytest.StashKey["dict[str, str]"]()
MEASURED_BY = pytest.StashKey["set[str]"]()  # workers of pytest-xdist that have measured
# in what a worker of pytest-xdist tells its controller at the end
WORKER_ERROR = "kernelgauge_error"
WORKER_MEASURES = "kernelgauge_measures"  # likewise: its tests make workloads
# whether a profiler of Python runs: before "imports" of tests, behind them ("imported"), and before
# the first of the "tests"
PROFILED = pytest.StashKey["dict[str, bool]"]()
_HOOKS = "kernelgauge-hooks"
_MARKS = (
    "workloads(**fields): run the test for each workload whose fields have these values (a tuple: one of them); they add up",
    "structure: needs no clock: kernels, launches and counts (kernelgauge)",
    "timing: judges or reads times; without such a test nothing is timed (kernelgauge)",
    "numerics: compares results with float64 (kernelgauge)",
    "kernelgauge(**options): options of the fixture kernelgauge in this test: dtype, pass_, tolerance, timing=False and others",
    "gpu: a test of a workload that means something on a GPU only: deselected on a CPU (kernelgauge)",
)


class _Specifications:
    @pytest.hookspec
    def pytest_kernelgauge_workloads(self, config: pytest.Config) -> Iterable[Workload]:  # type: ignore[empty-body]
        """Return the workloads of a suite. Implement it in the `conftest.py` of the suite's folder,
        or in a plugin.

        `config` may be left out, as in any hook of pytest.
        """


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    pluginmanager.add_hookspecs(_Specifications)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    early_config.stash[PROFILED] = {"imports": is_profiled()}


def pytest_configure(config: pytest.Config) -> None:
    for mark in _MARKS:
        config.addinivalue_line("markers", mark)


def pytest_plugin_registered(plugin: object, manager: pytest.PytestPluginManager) -> None:
    """Load the rest with the first `conftest.py` or plugin that declares workloads, at the latest
    while collecting.
    """
    if any(
        caller.name == "pytest_kernelgauge_workloads"
        for caller in manager.get_hookcallers(plugin) or ()
    ):
        _load_hooks(manager)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Load the rest with the first test that measures what it calls; with --perf-strict with any
    test, whose file may have baselines.
    """
    is_strict = item.config.getoption("--perf-strict")
    asked = getattr(item, "fixturenames", ())
    if is_strict or set(measuring_fixtures(item.config)).intersection(asked):
        _load_hooks(item.config.pluginmanager)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Load the rest with --perf-strict for a file that is skipped as a whole: it may have
    baselines.
    """
    report = yield
    if report.skipped and collector.config.getoption("--perf-strict"):
        _load_hooks(collector.config.pluginmanager)
        why = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
        collector.config.stash.setdefault(SKIPPED, {})[collector.nodeid] = why
    return report


def measuring_fixtures(config: pytest.Config) -> tuple[str, ...]:
    """Return the fixtures by which a test measures what it calls."""
    return (
        ("kernelgauge", "benchmark") if config.getoption("--perf-benchmark") else ("kernelgauge",)
    )


def _load_hooks(manager: pytest.PytestPluginManager) -> None:
    if manager.has_plugin(_HOOKS):
        return
    try:
        # Not `from . import hooks`: that may find the module of an earlier session in this process.
        manager.register(import_module(".hooks", __name__), _HOOKS)
        manager.register(import_module(".fixtures", __name__))
    except pytest.UsageError:  # options that do not go together, if pytest is configured already
        manager.unregister(name=_HOOKS)
        raise


def pytest_sessionstart(session: pytest.Session) -> None:
    session.config.stash[SESSION_KEY] = session


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """End the run with the error of a worker of pytest-xdist, or gather what it measured: this
    process has collected nothing.
    """
    output = getattr(node, "workeroutput", {})
    if error := output.get(WORKER_ERROR):
        raise pytest.UsageError(error)
    if output.get(WORKER_MEASURES):
        node.config.stash.setdefault(MEASURED_BY, set()).add(node.gateway.id)
        _load_hooks(node.config.pluginmanager)


@pytest.fixture(scope="session")
def workload(request: pytest.FixtureRequest) -> Workload:
    """One workload of the suite of this folder. Ask for it, and the test runs once for each."""
    if not hasattr(request, "param"):
        pytest.fail(
            "no pytest_kernelgauge_workloads in a conftest.py of this folder or above it",
            pytrace=False,
        )
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def kernelgauge(request: pytest.FixtureRequest) -> Gauge:
    """Measure a call: ``kernelgauge(function, *args, **kwargs)``.

    The test ends with its verdict; `Gauge` has the options.
    """
    from .fixtures import gauge_of

    if request.config.option.setuponly:
        pytest.skip("--setup-only measures nothing")
    return gauge_of(request.node)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("kernelgauge", "GPU performance regressions")
    add = group.addoption
    matrix = "workloads to run: the default ones, or all"
    add("--perf-matrix", choices=("default", "full"), default="default", help=matrix)
    device = "auto: a GPU if there is one, else the CPU"
    add("--perf-device", choices=("auto", "cuda", "cpu"), default="auto", help=device)
    update = "store the measurements as the baselines of this machine; under CI only with =force"
    # Two flags, and not one that takes a word: it would take the path behind it.
    add("--perf-update", action="store_const", const="yes", help=update)
    forced = "the same under CI, in a job whose purpose is to record"
    add("--perf-update=force", action="store_const", const="force", dest="perf_update", help=forced)
    strict = "for nightly jobs: no baseline, an inconclusive time or a skipped variant is a failure"
    add("--perf-strict", action="store_true", help=strict)
    compile_ = "measure compile times too, from empty caches and from full ones: seconds for each compiled workload"
    add("--perf-compile", action="store_true", help=compile_)
    tune = "let autotuners choose anew: else they take the choices that the baselines have"
    add("--perf-tune", action="store_true", help=tune)
    benchmarks = (
        "measure what tests call by the fixture benchmark, of pytest-benchmark or pytest-codspeed"
    )
    add("--perf-benchmark", action="store_true", help=benchmarks)
    changed = "time only workloads whose code differs from that of their baselines"
    add("--perf-changed", action="store_true", help=changed)
    no_confirm = "fail a slower time without measuring it in a fresh process: for jobs that repeat a failure themselves"
    add("--perf-no-confirm", action="store_true", help=no_confirm)
    seed = "seed of the random input that numerics are compared on"
    add("--perf-seed", type=int, metavar="N", help=seed)
    add(
        "--perf-calibrate",
        metavar="DIR",
        help="a process of kernelgauge calibrate: measure into DIR only",
    )
    for name, kind, default, what in (
        (
            "baselines",
            "string",
            "baselines",
            "folder of the baselines, from the root of the project",
        ),
        ("reports", "string", "reports", "folder of the reports, from the root of the project"),
        (
            "replicates",
            "string",
            "",
            "fresh allocations for each time (default: GPU 12 to 32, CPU 4, latency 8)",
        ),
        (
            "gate",
            "linelist",
            [],
            "smaller changes are ignored, a line for each timer: device_time = 0.3 %",
        ),
        (
            "sensitivity",
            "linelist",
            [],
            "the slowdown that a PASS may miss, a line for each timer: device_time = 2 %",
        ),
    ):
        parser.addini(f"kernelgauge_{name}", type=kind, default=default, help=what)  # type: ignore[arg-type]
