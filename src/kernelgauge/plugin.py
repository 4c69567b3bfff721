"""The pytest plugin, as far as every session needs it: options, and the hook by which a suite declares itself.

`hooks.py` has the rest. It is imported once a suite is there, so a session without one does not wait for it.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from . import hookspec
from .argument_types import at_least
from .hookspec import SENSITIVITY, SESSION_KEY

if TYPE_CHECKING:
    from .shares import Share

__all__ = ["workload"]

_HOOKS, _CONTROLLER = "kernelgauge-hooks", "kernelgauge-controller"


def pytest_addoption(parser: pytest.Parser) -> None:
    _add_options(parser.getgroup("kernelgauge", "GPU performance regressions"))
    _add_ini(parser)


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    pluginmanager.add_hookspecs(hookspec)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "workloads(**fields): run the test for each workload of the suite whose fields have these values "
        "(a tuple: one of them, or all of it, as a shape is); several marks add up",
    )


def pytest_plugin_registered(plugin: object, manager: pytest.PytestPluginManager) -> None:
    """Load the rest with the first `conftest.py` or plugin that declares workloads, at the latest while collecting."""
    if any(caller.name == "pytest_kernelgauge_workloads" for caller in manager.get_hookcallers(plugin) or ()):
        _load(manager)


def _load(manager: pytest.PytestPluginManager) -> None:
    if manager.has_plugin(_HOOKS):
        return
    from . import hooks

    try:
        manager.register(hooks, _HOOKS)
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


# -- options ----------------------------------------------------------------------------------------------------------


def _add_options(group: pytest.OptionGroup) -> None:
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
        help="for nightly jobs: whatever was not decided (no baseline, inconclusive, variant skipped) is a failure",
    )
    _add_measuring(group)
    group.addoption(
        "--perf-runs",
        metavar="FILE",
        help="only measure, and write what was measured to FILE: what kernelgauge calibrate asks of its processes",
    )
    group.addoption(
        "--perf-shard",
        type=_share,
        metavar="I/N",
        help="run part I of N of the suite: for N machines, say. kernelgauge merge brings their results together",
    )
    group.addoption(
        "--perf-history",
        metavar="DIR",
        help="add this run to a history: a folder, or a URL that fsspec knows (s3://...); kernelgauge trend reads it",
    )
    group.addoption("--perf-baselines", metavar="DIR", help="folder of the baselines (default: <rootdir>/baselines)")
    group.addoption("--perf-reports", metavar="DIR", help="folder of the reports (default: <rootdir>/reports)")


def _add_ini(parser: pytest.Parser) -> None:
    parser.addini(
        SENSITIVITY,
        type="linelist",
        help="the slowdown that a PASS may miss, a line for each timer: device_time = 2 %",
    )


def _add_measuring(group: pytest.OptionGroup) -> None:
    """How it is measured."""
    group.addoption(
        "--perf-replicates",
        type=at_least(2, "of one replicate no noise is known"),
        metavar="N",
        help="fresh allocations for each time (default: 12 to 32, as many as it takes)",
    )
    group.addoption(
        "--perf-deterministic",
        action="store_true",
        help="let Inductor choose launch configurations without timing them, where this torch can",
    )


def _share(text: str) -> Share:
    from .shares import Share

    try:
        return Share.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
