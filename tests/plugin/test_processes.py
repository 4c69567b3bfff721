"""Fresh processes of pytest: their environment and imports, and how they end if they fail or get a signal."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kernelgauge.errors import KernelgaugeError, MeasurementError
from kernelgauge.processes import revisions, run_process
from tests.commands.conftest import commit_all, git, make_repository
from tests.plugin.inner_project import Project

PLUGIN = ("-p", "kernelgauge.plugin")


def test_process_has_its_own_caches_and_no_page_of_a_job(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "summary.md")
    project.add_to_conftest(
        "\nimport os\nwith (FOLDER / 'environments').open('a') as file: print(json.dumps(dict(os.environ)), file=file)\n"
    )
    for _ in range(2):
        assert run_process(["perf", *PLUGIN]).workloads
    first, second = map(json.loads, (project.root / "perf" / "environments").read_text().splitlines())
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        assert first[name] != second[name]
        assert not Path(first[name]).parent.exists()
    assert not [name for name in first if name.startswith("GITHUB_")]


@pytest.mark.parametrize(
    ("arguments", "what", "got"),
    [
        (["prf"], "a process that measures failed", "ERROR: file or directory not found: prf"),
        (["perf", "-k", "gone stale"], "a process that measures failed", "Wrong expression"),
        (["perf", "-k", "gone"], "no test is selected", None),
    ],
    ids=["folder", "expression", "nothing"],
)
def test_process_that_measures_nothing_is_an_error(
    project: Project, arguments: list[str], what: str, got: str | None
) -> None:
    with pytest.raises(MeasurementError) as caught:
        run_process([*PLUGIN, *arguments])
    assert caught.value.what == what
    assert got is None or got in str(caught.value.got)
    assert len(str(caught.value.got).splitlines()) <= 15
    assert project.measured() == []


# -- imports, where the project is installed from its working tree ----------------------------------------------------

FINDER = """
import sys
from importlib.util import spec_from_file_location

MAPPING = {mapping}

class Finder:
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name == "mypkg":
            return spec_from_file_location(name, {file!r}, submodule_search_locations=[])

sys.meta_path.insert({place}, Finder)
"""
LAST, FIRST = 99, 0  # in `sys.meta_path`


def install(how: str, package: Path, environment: Path) -> str:
    """Install a package from a working tree, as pip would. Return the entry of PYTHONPATH."""
    environment.mkdir()
    if how == "path":
        return str(package.parent)
    if how in ("hook", "first hook"):
        is_first = how == "first hook"
        mapping = {} if is_first else {"mypkg": str(package)}
        text = FINDER.format(mapping=mapping, file=str(package / "__init__.py"), place=FIRST if is_first else LAST)
        (environment / "sitecustomize.py").write_text(text)
    if how == "wheel":
        environment = environment / "site-packages"
        shutil.copytree(package, environment / "mypkg")
    if how == "copy":
        shutil.copytree(package, environment / "mypkg")
        record = environment / "mypkg-1.dist-info"
        record.mkdir()
        (record / "METADATA").write_text("Metadata-Version: 2.1\nName: mypkg\nVersion: 1\n")
        (record / "RECORD").write_text("mypkg/__init__.py,,\n")
        origin = {"url": package.parents[1].as_uri(), "dir_info": {}}
        (record / "direct_url.json").write_text(json.dumps(origin))
    return str(environment)


def add_package(project: Project, folder: str) -> Path:
    """Let the suite import a package, which it finds in this folder of the project."""
    project.add_to_conftest("\nimport mypkg\n(FOLDER / 'value.txt').write_text(str(mypkg.VALUE))\n")
    package = project.root / folder / "mypkg"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("VALUE = 1\n")
    (project.root / "pytest.ini").write_text("[pytest]\n")
    return package


def put_on_path(monkeypatch: pytest.MonkeyPatch, folder: str) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([folder, os.environ.get("PYTHONPATH", "")]))


@pytest.mark.parametrize(
    ("how", "below"),
    [
        *((how, "") for how in ("path", "clone", "hook", "first hook", "copy", "wheel")),
        ("path", "part"),
        ("hook", "part"),
    ],
)
def test_checkout_is_measured_with_its_own_package(
    project: Project, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, how: str, below: str
) -> None:
    """`below`: the folder of the repository that the command is called in."""
    elsewhere, root = tmp_path_factory.mktemp("elsewhere"), project.root
    add_package(project, "python")
    if below:
        (root / below).mkdir()
        for name in ("perf", "pytest.ini"):
            (root / name).rename(root / below / name)
    make_repository(monkeypatch)
    commit_all("first")
    if how == "clone":
        git("clone", "-q", str(root), str(elsewhere / "clone"))
        root, how = elsewhere / "clone", "path"
    (root / "python" / "mypkg" / "__init__.py").write_text("VALUE = 2\n")
    put_on_path(monkeypatch, install(how, root / "python" / "mypkg", elsewhere / "environment"))
    monkeypatch.chdir(project.root / below)
    with revisions.worktree("HEAD") as tree:
        if how in ("path", "hook"):
            run_process(["perf", *PLUGIN], folder=tree)
            assert (tree / "perf" / "value.txt").read_text() == "1"
        else:
            with pytest.raises(KernelgaugeError, match="mypkg is not imported from the revision that is measured"):
                run_process(["perf", *PLUGIN], folder=tree)


def test_vendored_code_may_be_installed(
    project: Project, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = add_package(project, "third_party")
    make_repository(monkeypatch)
    commit_all("first")
    put_on_path(monkeypatch, install("wheel", package, tmp_path_factory.mktemp("elsewhere") / "environment"))
    with revisions.worktree("HEAD") as tree:
        assert run_process(["perf", *PLUGIN], folder=tree).workloads


# -- signals ----------------------------------------------------------------------------------------------------------

HANG = """
import os, time
(Path(os.environ["PIDS"]) / str(os.getpid())).touch()
time.sleep(600)
"""
COMMANDS = {
    "calibrate": ("calibrate", "perf", "--processes", "3"),
    "compare": ("compare", "HEAD"),
    "bisect": ("bisect", "--good", "HEAD~1", "--bad", "HEAD", "-k", "mlp"),
}


def is_running(pid: str) -> bool:
    """Whether a process runs: not if it only waits to be reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def forget_signals() -> None:
    """Take no signal as ignored: under nohup, and in the background of a shell, some are."""
    for each in (signal.SIGHUP, signal.SIGINT):
        signal.signal(each, signal.SIG_DFL)


def eventually(condition: Callable[[], bool]) -> bool:
    for _ in range(200):
        if condition():
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize(
    ("command", "number"),
    [
        *((command, signal.SIGTERM) for command in COMMANDS),
        *(("bisect", number) for number in (signal.SIGINT, signal.SIGHUP, signal.SIGKILL)),
    ],
)
def test_signal_ends_the_processes_and_their_files(
    project: Project,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    number: signal.Signals,
) -> None:
    pids, temporary = tmp_path_factory.mktemp("pids"), tmp_path_factory.mktemp("temporary")
    project.add_to_conftest(HANG)
    (project.root / "pytest.ini").write_text("[pytest]\n")
    make_repository(monkeypatch)
    for name in ("first", "second"):
        (project.root / name).touch()
        commit_all(name)
    environment = {**os.environ, "PIDS": str(pids), "TMPDIR": str(temporary)}
    arguments = [sys.executable, "-m", "kernelgauge", *COMMANDS[command]]
    with subprocess.Popen(arguments, env=environment, stderr=subprocess.DEVNULL, preexec_fn=forget_signals) as process:
        assert eventually(lambda: len(list(pids.iterdir())) == 1)
        process.send_signal(number)
        assert process.wait(10) == (-9 if number == signal.SIGKILL else 130)
    assert eventually(lambda: not any(is_running(path.name) for path in pids.iterdir()))
    assert len(list(pids.iterdir())) == 1
    if number != signal.SIGKILL:
        assert not list(temporary.glob("kernelgauge-*"))
        assert len(git("worktree", "list").splitlines()) == 1
