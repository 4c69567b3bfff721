"""The architecture: every import points down, and the ground floor knows neither torch nor pytest."""

from __future__ import annotations

import ast
import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"
PACKAGE = SOURCE / "kernelgauge"
MODULES = {path.relative_to(PACKAGE).as_posix(): path for path in sorted(PACKAGE.rglob("*.py"))}
GROUND = [name for name in MODULES if name.startswith(("trace/", "judge/"))]

KNOW_PYTEST = {
    "cli/baselines.py",  # -k, as pytest reads it
    "fixtures.py",
    "hooks.py",
    "hookspec.py",
    "options.py",
    "plugin.py",
    "selecting.py",
    "standard.py",
    "summary.py",
    "workers.py",
}
TOP = {"plugin", "hooks", "cli"}
# Those of the ground floor that open a file, to read it.
READERS = {
    "trace/reader.py": {"pathlib"},
}
# What each floor may import of the package itself; each part may also import itself.
ALLOWED = {
    "errors": set(),
    "printable": set(),
    "run": {"trace"},
    "files": {"errors"},
    "revision": set(),
    "shares": {"workload"},
    "trace": {"errors", "files"},
    "judge": {"errors", "printable", "run", "trace"},
    "report": {"printable", "revision", "run", "judge", "trace", "results", "history"},
    "baselines": {"errors", "files", "judge"},
    "acceptance": {
        "baselines",
        "errors",
        "judge",
        "printable",
        "report",
        "results",
        "results_file",
        "run",
        "runs_file",
    },
    "sharing": {"errors", "printable"},
    "history": {"errors", "files", "printable", "results", "run", "judge", "baselines"},
    "results": {"errors", "run", "judge"},
    "runs_file": {"errors", "files", "run"},
}


def imports(path: Path) -> Iterator[str]:
    """Every module that a file imports, in functions and under TYPE_CHECKING too, with its absolute name."""
    package = ".".join(path.parent.relative_to(SOURCE).parts)
    for node in ast.walk(ast.parse(path.read_text(), filename=str(path))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            yield base
            if base == "kernelgauge":
                yield from (f"kernelgauge.{alias.name}" for alias in node.names)


def packages(path: Path) -> set[str]:
    return {name.split(".")[0] for name in imports(path)}


def parts(path: Path) -> set[str]:
    """The parts of kernelgauge that a file imports: "judge", "run", ..."""
    return {name.split(".")[1] for name in imports(path) if name.startswith("kernelgauge.")}


def test_the_modules_are_found() -> None:
    assert {"trace/reader.py", "judge/timing.py", "plugin.py", "baselines.py"} <= set(MODULES)
    assert len(GROUND) > 10


def test_imports_are_found_in_any_scope(tmp_path: Path) -> None:
    assert "scipy" in packages(MODULES["judge/timing.py"])  # within a function
    assert "torch" in packages(MODULES["workload.py"])  # under TYPE_CHECKING
    assert {"errors", "run"} <= parts(MODULES["judge/baseline.py"])  # relative
    assert "hookspec" in parts(MODULES["plugin.py"])  # from . import


@pytest.mark.parametrize("name", GROUND)
def test_the_ground_floor_imports_neither_torch_nor_pytest_nor_triton(name: str) -> None:
    assert not packages(MODULES[name]) & {"torch", "pytest", "_pytest", "triton", "pynvml", "rich"}


@pytest.mark.parametrize("name", GROUND)
def test_the_ground_floor_touches_neither_disk_nor_clock_nor_processes(name: str) -> None:
    forbidden = {
        "os",
        "time",
        "datetime",
        "subprocess",
        "tempfile",
        "shutil",
        "socket",
        "random",
        "threading",
        "filelock",
    }
    assert not packages(MODULES[name]) & ((forbidden | {"pathlib"}) - READERS.get(name, set()))


@pytest.mark.parametrize("name", [name for name in MODULES if name not in KNOW_PYTEST])
def test_only_the_top_floor_imports_pytest(name: str) -> None:
    assert not packages(MODULES[name]) & {"pytest", "_pytest"}


@pytest.mark.parametrize("name", [name for name in MODULES if name not in {*KNOW_PYTEST, "__main__.py"}])
def test_nothing_imports_the_top_floor(name: str) -> None:
    assert not (parts(MODULES[name]) - {name.split("/")[0]}) & TOP


@pytest.mark.parametrize("name", [name for name in MODULES if name.split("/")[0].removesuffix(".py") in ALLOWED])
def test_every_import_points_down(name: str) -> None:
    part = name.split("/")[0].removesuffix(".py")
    assert parts(MODULES[name]) <= ALLOWED[part] | {part}


def test_no_part_imports_itself_by_way_of_others() -> None:
    """Of all parts, whether they are listed above or not."""
    below: dict[str, set[str]] = {}
    for name, path in MODULES.items():
        part = name.split("/")[0].removesuffix(".py")
        below[part] = below.get(part, set()) | parts(path) - {part}
    assert list(TopologicalSorter(below).static_order())  # CycleError names the parts


@pytest.mark.parametrize("name", [name for name in MODULES if name.startswith(("report/", "trace/", "judge/"))])
def test_only_measuring_code_imports_torch(name: str) -> None:
    assert not packages(MODULES[name]) & {"torch", "triton"}


@pytest.mark.parametrize(
    ("modules", "absent"),
    [
        ("kernelgauge.trace, kernelgauge.judge", {"torch", "pytest", "triton", "rich", "numpy", "scipy", "pynvml"}),
        ("kernelgauge.report, kernelgauge.baselines", {"torch", "pytest", "triton", "pynvml"}),
        ("kernelgauge", {"torch", "pytest", "triton", "rich"}),
        ("kernelgauge.plugin", {"torch", "triton"}),  # a session that measures nothing does not wait for it
    ],
)
def test_importing_does_not_load_what_is_not_needed(modules: str, absent: set[str]) -> None:
    script = (
        f"import json, sys; sys.path.insert(0, sys.argv[1]); import {modules}; print(json.dumps(list(sys.modules)))"
    )
    output = subprocess.run(
        [sys.executable, "-c", script, str(SOURCE)], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    loaded = set(json.loads(output))
    assert set(modules.split(", ")) <= loaded
    assert not loaded & absent
