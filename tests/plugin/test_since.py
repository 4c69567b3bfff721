"""`--perf-since`: after which changes the tests of which workloads run."""

import os
import subprocess
from pathlib import Path

import pytest

FILES = {
    "pytest.ini": "[pytest]\npythonpath = lib\n",
    ".gitignore": "__pycache__\n",
    "README.md": "A library.\n",
    "CHANGES.rst": "",
    "setup.py": 'read("README.md")\nfind_packages(exclude=["tests"])\n',
    "docs/page.md": "A page.\n",
    "docs/conf.py": "",
    "notes/page.md": "",
    "lib/ops.py": '"""See tests and *.md."""\ndef op(x):\n    return x\n',
    "lib/test_table.py": "",
    "tests/test_ops.py": "",
    "tests/conftest.py": "",
    "perf/test_op.py": """
from ops import op

def test_op(kernelgauge):
    kernelgauge(op, 1)

def test_other():
    pass
""",
    "perf/loss/test_loss.py": """
from kernelgauge.standard import test_structure_is_that_of_the_baseline
""",
    "perf/loss/conftest.py": """
from kernelgauge import Workload

def pytest_kernelgauge_workloads():
    return [Workload("loss", "eager", lambda: abs, lambda: (1,), dtype="fp32")]
""",
    "baselines/gpu/loss-eager-fp32.json": "{}\n",
}
OP, OTHER, LOSS = "::test_op", "::test_other", "[loss-eager-fp32]"
ALL = {OP, OTHER, LOSS}


def git(root: Path, *arguments: str) -> None:
    own = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    own += ["-c", "protocol.file.allow=always"]
    subprocess.run(["git", *own, *arguments], cwd=root, check=True, capture_output=True)


def write(root: Path, name: str, text: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)


def commit(root: Path) -> None:
    git(root, "add", "-A")
    git(root, "commit", "-qm", "a commit")


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    for name, text in FILES.items():
        write(pytester.path, name, text)
    git(pytester.path, "init", "-q")
    commit(pytester.path)
    return pytester


def selected(project: pytest.Pytester, *arguments: str) -> set[str]:
    """Return the tests that are not deselected."""
    options = ("--collect-only", "-q", "--perf-device=cpu", "--perf-since=HEAD")
    result = project.runpytest_inprocess(*(arguments or ["perf"]), *options)
    result.stdout.fnmatch_lines("kernelgauge: * workloads deselected: * HEAD")
    return {each for each in ALL if each in result.stdout.str()}


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("README.md", set()),
        ("CHANGES.rst", set()),
        ("docs/page.md", set()),
        ("docs/new.md", set()),
        ("tests/test_ops.py", set()),
        ("tests/test_new.py", set()),
        ("reports/latest/results.json", set()),
        (".venv/pyvenv.cfg", set()),
        ("lib/ops.egg-info/PKG-INFO", set()),
        ("baselines/gpu/loss-eager-fp32.json", {LOSS}),
        ("baselines/gpu/of_no_workload.json", ALL),
        ("baselines/gpu/new/loss-eager-fp32.json", ALL),
        ("lib/ops.py", ALL),
        ("lib/new.py", ALL),
        ("perf/test_op.py", ALL),
        ("perf/test_new.py", ALL),
        ("perf/README.md", ALL),
        ("perf/loss/conftest.py", ALL),
        ("tests/conftest.py", ALL),
        ("notes/page.md", ALL),
        ("docs/conf.py", ALL),
        ("setup.py", ALL),
        ("pytest.ini", ALL),
        (".github/workflows/perf.yml", ALL),
        ("csrc/kernel.cu", ALL),
    ],
)
def test_change_lets_run_all_that_it_may_reach(project, file, expected):
    write(project.path, file, FILES.get(file, "") + "\n")
    assert selected(project) == expected


@pytest.mark.parametrize(
    ("code", "changed"),
    [
        ("open('README.md')", "README.md"),
        ("glob('*.md')", "README.md"),
        ("open(f'docs/{kind}.txt')", "docs/page.md"),
        ("import test_ops", "tests/test_ops.py"),
        ("from tests import run", "tests/test_ops.py"),
        ("import_module(f'tests.{name}')", "tests/test_ops.py"),
        ("paths = ['tests', name]", "tests/test_ops.py"),
        ("import test_table", "lib/test_table.py"),
        ("import_module(f'lib.{name}')", "lib/test_table.py"),
        ("this is 'tests' and no Python", "tests/test_ops.py"),
    ],
)
def test_change_of_a_file_that_code_names_lets_run_all(project, code, changed):
    write(project.path, "lib/lazy.py", f"{code}\n")
    commit(project.path)
    write(project.path, changed, FILES[changed] + "\n")
    assert selected(project) == ALL


def hide_from_git(root: Path) -> None:
    git(root, "update-index", "--assume-unchanged", "lib/ops.py")
    write(root, "lib/ops.py", "op = abs\n")


def skip_in_git(root: Path) -> None:
    git(root, "update-index", "--skip-worktree", "lib/ops.py")
    write(root, "lib/ops.py", "op = abs\n")


def change_submodule(root: Path) -> None:
    git(root, "init", "-q", "../third")
    git(root.parent / "third", "commit", "-qm", "first", "--allow-empty")
    git(root, "submodule", "add", "-q", "../third", "third")
    git(root, "config", "-f", ".gitmodules", "submodule.third.ignore", "all")
    commit(root)
    write(root, "third/data.txt", "")


def change_target_of_link(root: Path) -> None:
    (root / "lib" / "linked.py").symlink_to("../tests/test_ops.py")
    commit(root)
    write(root, "tests/test_ops.py", "op = abs\n")


def change_link(root: Path) -> None:
    (root / "tests" / "test_ops.py").unlink()
    (root / "tests" / "test_ops.py").symlink_to("conftest.py")


def remove_conftest(root: Path) -> None:
    (root / "tests" / "conftest.py").unlink()


def load_test_of_another_folder(root: Path) -> None:
    write(root, "pytest.ini", "[pytest]\npythonpath = lib\naddopts = -p test_plugin\n")
    write(root, "lib/test_plugin.py", "")
    commit(root)
    write(root, "lib/test_plugin.py", "changed = True\n")


@pytest.mark.parametrize(
    "change",
    [
        hide_from_git,
        skip_in_git,
        change_submodule,
        change_target_of_link,
        change_link,
        remove_conftest,
        load_test_of_another_folder,
    ],
)
def test_change_that_is_hidden_lets_run_all(project, change):
    change(project.path)
    assert selected(project) == ALL


def test_tests_outside_of_the_repository_run(project, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    for name in ("test_loss.py", "conftest.py"):
        write(other, name, FILES[f"perf/loss/{name}"])
    assert selected(project, str(other), f"--rootdir={project.path}") == {LOSS}


@pytest.mark.parametrize("workers", [(), ("-n1",)])
def test_revision_without_a_change_ends_green(project, workers):
    result = project.runpytest_inprocess("perf", "--perf-device=cpu", "--perf-since=HEAD", *workers)
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines("kernelgauge: 2 of 2 workloads deselected: the same code as HEAD")


@pytest.mark.parametrize(
    ("revision", "path", "said"),
    [
        ("gone", os.environ["PATH"], "*git knows no revision gone*"),
        ("", os.environ["PATH"], "*git knows no revision*"),
        ("HEAD", "", "*--perf-since cannot read the repository*"),
    ],
)
def test_repository_that_cannot_be_read_is_an_error(project, monkeypatch, revision, path, said):
    monkeypatch.setenv("PATH", path)
    result = project.runpytest_inprocess("perf", f"--perf-since={revision}", "--perf-device=cpu")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(said)
