"""The pytest plugin, as far as every session needs it: its options, and the hook by which a suite declares itself.

`hooks` has the rest. It is imported once a suite is there, so that a session without one does not wait for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

if TYPE_CHECKING:
    from ..workload import Share, Workload

__all__ = ["SESSION_KEY", "workload"]

SESSION_KEY = pytest.StashKey[pytest.Session]()
_HOOKS, _CONTROLLER = "kernelgauge-hooks", "kernelgauge-controller"
_WORKLOADS = (
    "workloads(**fields): run the test for each workload of the suite whose fields have these values "
    "(a tuple: one of them, or all of it, as a shape is); several marks add up"
)
_MARKS = (
    _WORKLOADS,
    "structure: needs no clock: kernels, launches and counts (kernelgauge)",
    "timing: judges or reads times; without such a test nothing is timed (kernelgauge)",
    "numerics: compares results with float64 (kernelgauge)",
    "gpu: a test of a workload that means something on a GPU only: deselected on a CPU (kernelgauge)",
)


class _Specifications:
    @pytest.hookspec
    def pytest_kernelgauge_workloads(self, config: pytest.Config) -> Iterable[Workload]:  # type: ignore[empty-body]
        """Return the workloads of a suite. Implement it in the `conftest.py` of the suite's folder, or in a plugin.

        `config` may be left out, as in any hook of pytest.
        """


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    pluginmanager.add_hookspecs(_Specifications)


def pytest_configure(config: pytest.Config) -> None:
    for mark in _MARKS:
        config.addinivalue_line("markers", mark)


def pytest_plugin_registered(plugin: object, manager: pytest.PytestPluginManager) -> None:
    """Load the rest with the first `conftest.py` or plugin that declares workloads, at the latest while collecting."""
    if any(caller.name == "pytest_kernelgauge_workloads" for caller in manager.get_hookcallers(plugin) or ()):
        _load(manager)


def _load(manager: pytest.PytestPluginManager) -> None:
    if manager.has_plugin(_HOOKS):
        return
    try:
        # Not `from . import hooks`: that may find the module of an earlier session in this process.
        manager.register(import_module(".hooks", __name__), _HOOKS)
    except pytest.UsageError:  # options that do not go together, if pytest is configured already
        manager.unregister(name=_HOOKS)
        raise


def pytest_sessionstart(session: pytest.Session) -> None:
    session.config.stash[SESSION_KEY] = session


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Report what went wrong in a worker of pytest-xdist that found a suite of which this process did not know."""
    manager = node.config.pluginmanager
    if not manager.has_plugin(_HOOKS) and any(
        key.startswith("kernelgauge") for key in getattr(node, "workeroutput", {})
    ):
        _load(manager)
        manager.get_plugin(_CONTROLLER).pytest_testnodedown(node)


@pytest.fixture(scope="session")
def workload() -> NoReturn:
    """One workload of the suite of this folder. Ask for it, and the test runs once for each."""
    pytest.fail("no pytest_kernelgauge_workloads in a conftest.py of this folder or above it", pytrace=False)


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
        help="auto: a GPU if there is one, else the CPU (default: kernelgauge_device of the ini file)",
    )
    group.addoption(
        "--perf-update",
        nargs="?",
        const="yes",
        choices=("yes", "force"),
        help="store the measurements as the baselines of this machine; under CI only with =force",
    )
    group.addoption(
        "--perf-strict",
        action="store_true",
        help="for nightly jobs: no baseline, an inconclusive time or a skipped variant is a failure",
    )
    group.addoption(
        "--perf-shard",
        type=_share,
        metavar="I/N",
        help="run part I of N of the suite, on one of N machines; kernelgauge merge joins their results",
    )
    group.addoption(
        "--perf-history",
        metavar="DIR",
        help="add the results to a history: a folder, or a URL that fsspec knows (s3://...)",
    )
    group.addoption("--perf-seed", type=int, metavar="N", help="seed of the random input that numerics are compared on")
    group.addoption("--perf-calibrate", metavar="DIR", help="a process of kernelgauge calibrate: measure into DIR only")
    for name, kind, default, what in (
        ("baselines", "string", "baselines", "folder of the baselines, from the root of the project"),
        ("reports", "string", "reports", "folder of the reports, from the root of the project"),
        ("device", "string", "auto", "auto, cuda or cpu"),
        ("strict", "bool", False, "as --perf-strict"),
        ("replicates", "string", "", "fresh allocations for each time (default: GPU 12 to 32, CPU 4, latency 8)"),
        ("deterministic", "bool", False, "let Inductor choose launch configurations without timing them"),
        ("gate", "linelist", [], "smaller changes are ignored, a line for each timer: device_time = 0.3 %"),
        ("sensitivity", "linelist", [], "the slowdown that a PASS may miss, a line for each timer: device_time = 2 %"),
    ):
        parser.addini(f"kernelgauge_{name}", type=kind, default=default, help=what)  # type: ignore[arg-type]


def _share(text: str) -> Share:
    from .options import share

    return share(text)
