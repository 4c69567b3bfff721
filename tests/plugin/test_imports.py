"""What a process that measures a checkout imports, where the project is installed from its working tree."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from kernelgauge.errors import KernelgaugeError
from kernelgauge.processes import revisions, run_process
from tests.commands.conftest import git
from tests.plugin.inner_project import Project

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
    """Install a package from a working tree, as pip would. Return what PYTHONPATH must have."""
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
        (environment / "mypkg").mkdir()
        (environment / "mypkg" / "__init__.py").write_text((package / "__init__.py").read_text())
        record = environment / "mypkg-1.dist-info"
        record.mkdir()
        (record / "METADATA").write_text("Metadata-Version: 2.1\nName: mypkg\nVersion: 1\n")
        (record / "RECORD").write_text("mypkg/__init__.py,,\n")
        origin = {"url": package.parents[1].as_uri(), "dir_info": {}}
        (record / "direct_url.json").write_text(json.dumps(origin))
    return str(environment)


@pytest.mark.parametrize("below", ["", "part"])
@pytest.mark.parametrize("how", ["path", "clone", "hook", "first hook", "copy", "wheel"])
def test_checkout_is_measured_with_its_own_package(
    project: Project,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    how: str,
    below: str,
) -> None:
    """`below`: the folder of the repository that the command is called in."""
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    root = project.root
    project.add_to_conftest("\nimport mypkg\n(FOLDER / 'value.txt').write_text(str(mypkg.VALUE))\n")
    (root / "python" / "mypkg").mkdir(parents=True)
    (root / "python" / "mypkg" / "__init__.py").write_text("VALUE = 1\n")
    (root / "pytest.ini").write_text("[pytest]\n")
    if below:
        (root / below).mkdir()
        for name in ("perf", "pytest.ini"):
            (root / name).rename(root / below / name)
    git("init", "-q")
    git("add", ".")
    git("-c", "user.name=Ann", "-c", "user.email=ann@example.org", "commit", "-qm", "first")
    if how == "clone":
        git("clone", "-q", str(root), str(elsewhere / "clone"))
        root, how = elsewhere / "clone", "path"
    (root / "python" / "mypkg" / "__init__.py").write_text("VALUE = 2\n")
    installed = install(how, root / "python" / "mypkg", elsewhere / "environment")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([installed, os.environ.get("PYTHONPATH", "")]))
    monkeypatch.chdir(project.root / below)
    with revisions.worktree("HEAD") as tree:
        if how in ("path", "hook"):
            run_process(["perf", "-p", "kernelgauge.plugin"], folder=tree)
            assert (tree / "perf" / "value.txt").read_text() == "1"
        else:
            with pytest.raises(KernelgaugeError, match="mypkg is not imported from the revision that is measured"):
                run_process(["perf", "-p", "kernelgauge.plugin"], folder=tree)


def test_code_of_others_in_the_repository_may_be_installed(
    project: Project, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.add_to_conftest("\nimport mypkg\n")
    package = project.root / "third_party" / "mypkg"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("VALUE = 1\n")
    git("init", "-q")
    git("add", ".")
    git("-c", "user.name=Ann", "-c", "user.email=ann@example.org", "commit", "-qm", "first")
    installed = install("wheel", package, tmp_path_factory.mktemp("elsewhere") / "environment")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([installed, os.environ.get("PYTHONPATH", "")]))
    with revisions.worktree("HEAD") as tree:
        assert run_process(["perf", "-p", "kernelgauge.plugin"], folder=tree).workloads
