"""Fresh processes of pytest: their environment and imports, and how they end if they fail or get a
signal.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernelgauge.baselines import BaselineStore
from kernelgauge.errors import KernelgaugeError, MeasurementError
from kernelgauge.processes import own_folder, run_process, worktree
from kernelgauge.results import encode_results
from tests import builders
from tests.commands.conftest import commit_all, forget_signals, git, make_repository
from tests.plugin.inner_project import Project

PLUGIN = ("-p", "kernelgauge.plugin")


def test_process_has_its_own_caches_and_no_page_of_a_job(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "summary.md")
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw0")  # there, pytest-benchmark times nothing
    project.add_to_conftest(
        "\nimport os\n(FOLDER / 'environment').write_text(json.dumps(dict(os.environ)))\n"
    )
    environments = []
    for _ in range(2):
        assert run_process(["perf", *PLUGIN]).workloads
        environments.append(json.loads((project.root / "perf" / "environment").read_text()))
    caches = {
        each[f"{name}_CACHE_DIR"] for each in environments for name in ("TORCHINDUCTOR", "TRITON")
    }
    assert [Path(each).parent.exists() for each in caches] == [False] * 4
    assert not [
        name
        for name in environments[0]
        if name.startswith("GITHUB_") or name == "PYTEST_XDIST_WORKER"
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("prf", "a process that measures failed.*ERROR: file or directory not found: prf"),
        ("perf -k gone", "no test is selected"),
    ],
)
def test_process_that_measures_nothing_is_an_error(
    project: Project, arguments: str, said: str
) -> None:
    with pytest.raises(MeasurementError, match=f"(?s){said}") as caught:
        run_process([*PLUGIN, *arguments.split()])
    assert len(str(caught.value.got).splitlines()) <= 15
    assert project.measured() == []


FINDER = """
import sys
from importlib.util import spec_from_file_location

MAPPING = {{"mypkg": {package!r}}}

class Finder:
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name == "mypkg":
            return spec_from_file_location(name, {package!r} + "/__init__.py", submodule_search_locations=[])

sys.meta_path.append(Finder)
"""


def install(how: str, package: Path, folder: Path) -> Path:
    """Install a package from a working tree, as pip would. Return the entry of PYTHONPATH."""
    if how in ("path", "clone"):
        return package.parent
    files = {}
    if how == "hook":
        files["sitecustomize.py"] = FINDER.format(package=str(package))
    else:
        folder = folder / ("site-packages" if how == "wheel" else "folder")
        shutil.copytree(package, folder / "mypkg")
    if how == "copy":
        origin = {"url": package.parents[1].as_uri(), "dir_info": {}}
        files = {
            "METADATA": "Name: mypkg\n",
            "RECORD": "mypkg/__init__.py,,\n",
            "direct_url.json": json.dumps(origin),
        }
        files = {f"mypkg-1.dist-info/{name}": text for name, text in files.items()}
        (folder / "mypkg-1.dist-info").mkdir()
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize(
    ("how", "source", "below"),
    [
        *((how, "python", "") for how in ("clone", "hook", "copy", "wheel")),
        ("path", "python", "part"),
        ("wheel", "third_party", ""),
    ],
)
def test_checkout_is_measured_with_its_own_package(
    project: Project,
    tmp_path_factory: Any,
    monkeypatch: pytest.MonkeyPatch,
    how: str,
    source: str,
    below: str,
) -> None:
    """`below`: the folder of the repository that the command is called in.

    Vendored code may be installed.
    """
    elsewhere, root = tmp_path_factory.mktemp("elsewhere"), project.root
    project.add_to_conftest("\nimport mypkg\n(FOLDER / 'value.txt').write_text(str(mypkg.VALUE))\n")
    (root / source / "mypkg").mkdir(parents=True)
    (root / source / "mypkg" / "__init__.py").write_text("VALUE = 1\n")
    (root / "perf" / "pytest.ini").write_text("[pytest]\n")
    (root / below).mkdir(exist_ok=True)
    (root / "perf").rename(root / below / "perf")
    make_repository(monkeypatch)
    commit_all("first")
    if how == "clone":
        root = elsewhere / "clone"
        git("clone", "-q", str(project.root), str(root))
    (root / source / "mypkg" / "__init__.py").write_text("VALUE = 2\n")
    folder = install(how, root / source / "mypkg", elsewhere)
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    )
    monkeypatch.chdir(project.root / below)
    with worktree("HEAD") as tree:
        if how in ("path", "clone", "hook") or source == "third_party":
            run_process(["perf", *PLUGIN], folder=tree)
            assert (tree / "perf" / "value.txt").read_text() == ("1" if source == "python" else "2")
        else:
            with pytest.raises(
                KernelgaugeError, match="mypkg is not imported from the revision that is measured"
            ):
                run_process(["perf", *PLUGIN], folder=tree)


HANG = """
import os, time
(Path(os.environ["PIDS"]) / str(os.getpid())).touch()
time.sleep(600)
"""


def is_running(pid: str) -> bool:
    """Whether a process runs: not if it only waits to be reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def eventually(condition: Callable[[], bool]) -> bool:
    for _ in range(200):
        if condition():
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize(
    ("command", "number"),
    [
        ("compare HEAD", signal.SIGTERM),
        ("bisect --good HEAD~1 --bad HEAD -k mlp", signal.SIGINT),
    ],
)
def test_signal_ends_the_processes_and_their_files(
    project: Project,
    tmp_path_factory: Any,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    number: signal.Signals,
) -> None:
    pids, temporary = tmp_path_factory.mktemp("pids"), tmp_path_factory.mktemp("temporary")
    project.add_to_conftest(HANG)
    make_repository(monkeypatch)
    for name in ("pytest.ini", "second"):
        (project.root / name).touch()
        commit_all(name)
    environment = {**os.environ, "PIDS": str(pids), "TMPDIR": str(temporary)}
    arguments = [sys.executable, "-m", "kernelgauge", *command.split()]
    with subprocess.Popen(
        arguments, env=environment, stderr=subprocess.DEVNULL, preexec_fn=forget_signals
    ) as process:
        assert eventually(lambda: len(list(pids.iterdir())) == 1)
        process.send_signal(number)
        assert process.wait(10) == 130
    assert eventually(lambda: not any(is_running(path.name) for path in pids.iterdir()))
    assert len(list(pids.iterdir())) == 1
    assert not list(temporary.glob("kernelgauge-*"))
    assert len(git("worktree", "list").splitlines()) == 1


@pytest.mark.parametrize(
    "command",
    ["compare HEAD", "bisect --good HEAD~1 --bad HEAD -k mlp", "calibrate perf --processes 2"],
)
def test_killed_command_leaves_nothing_behind(
    project: Project,
    tmp_path_factory: Any,
    monkeypatch: pytest.MonkeyPatch,
    kernelgauge: Any,
    command: str,
) -> None:
    pids, temporary = tmp_path_factory.mktemp("pids"), tmp_path_factory.mktemp("temporary")
    project.add_to_conftest(HANG)
    make_repository(monkeypatch)
    for name in ("pytest.ini", "second"):
        (project.root / name).touch()
        commit_all(name)
    (temporary / "kernelgauge-notes").mkdir()  # somebody's own
    monkeypatch.setenv("PIDS", str(pids))
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr(tempfile, "tempdir", None)
    arguments = [sys.executable, "-m", "kernelgauge", *command.split()]
    with subprocess.Popen(arguments, stderr=subprocess.DEVNULL) as process:
        assert eventually(lambda: len(list(pids.iterdir())) == 1)
        with worktree("HEAD") as tree:  # which a living process has
            before = {*temporary.iterdir()}
            process.kill()
            process.wait()
            assert eventually(lambda: not any(is_running(path.name) for path in pids.iterdir()))
            with own_folder() as own:
                after = sorted([own, tree.parent, temporary / "kernelgauge-notes"])
                assert (sorted(temporary.iterdir()), before <= {*after}) == (after, False)
                assert len(git("worktree", "list").splitlines()) == 2
    assert len(git("worktree", "list").splitlines()) == 1


def test_process_left_behind_is_killed(project: Project, tmp_path: Path) -> None:
    """It has the output of its parent, which would never end."""
    child = "\nimport os\nif not (child := os.fork()):\n    time.sleep(600)\n"
    project.add_to_conftest(f"{child}(FOLDER / 'child').write_text(str(child))\n")
    assert run_process(["perf", *PLUGIN]).workloads
    assert eventually(lambda: not is_running((project.root / "perf" / "child").read_text()))


def test_worktree_runs_no_hooks_of_the_repository(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_repository(monkeypatch)
    commit_all("first")
    hook = tmp_path / "hooks" / "post-checkout"
    hook.parent.mkdir()
    hook.write_text("#!/bin/sh\nexit 1\n")
    hook.chmod(0o755)
    git("config", "core.hooksPath", str(hook.parent))
    with worktree("HEAD") as tree:
        assert (tree / "perf" / "conftest.py").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signal_ends_each_command_as_an_interruption(
    store: BaselineStore, number: signal.Signals
) -> None:
    """Here `accept` waits for another update of the baselines."""
    folder = store.root.parent
    (folder / "results.json").write_bytes(
        encode_results(builders.complete_results(builders.passing()))
    )
    arguments = [
        sys.executable,
        "-m",
        "kernelgauge",
        "accept",
        "--baselines",
        str(store.root),
        str(folder),
    ]
    environment = {name: value for name, value in os.environ.items() if name != "CI"}
    with (
        store.locked(),
        subprocess.Popen(
            arguments, env=environment, stdout=subprocess.PIPE, preexec_fn=forget_signals
        ) as process,
    ):
        assert process.stdout is not None
        process.stdout.readline()  # of the results, before it waits
        process.send_signal(number)
        assert process.wait(10) == 130
