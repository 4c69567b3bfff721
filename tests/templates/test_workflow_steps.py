"""The steps of the workflows, run with stand-ins for pytest, pip and kernelgauge, and a real git."""

import shutil

import pytest

pytest.importorskip("yaml", reason="the workflows are read with PyYAML: pip install pyyaml")

from .sandbox import TEMPLATES, Sandbox
from .workflows import WORKFLOWS, load, run_step, step

NAMES = [path.name for path in WORKFLOWS]
PYTEST_CODES = (0, 1, 2, 3, 4, 5)


@pytest.fixture
def installed(sandbox: Sandbox) -> Sandbox:
    """The step `Install` has run."""
    for program in ("pytest", "kernelgauge"):
        sandbox.stand_in(program, 'echo "output of $0"; exit "${CODE:-0}"\n', at=sandbox.work / ".venv" / "bin")
    return sandbox


@pytest.mark.parametrize("name", NAMES)
def test_install_makes_an_environment_in_the_workspace(sandbox, name):
    sandbox.stand_in("pip", at=sandbox.folder / "spare")
    sandbox.stand_in("python3", f'mkdir -p "$3/bin"; cp "{sandbox.folder}/spare/pip" "$3/bin/"\n')
    assert run_step(sandbox, step(load(name), "Install")).returncode == 0
    assert sandbox.calls("python3") == [["-m", "venv", ".venv"]]
    extras = "suite,hub,history" if name == "nightly.yml" else "suite,hub"  # for `kernelgauge trend`
    assert sandbox.calls("pip") == [["install", "--quiet", f".[{extras}]"]]


@pytest.mark.parametrize("code", PYTEST_CODES)
def test_the_night_ends_as_pytest_ends(installed, code):
    done = run_step(installed, step(load("nightly.yml"), "Measure and judge"), CODE=str(code), HISTORY="")
    assert done.returncode == code


@pytest.mark.parametrize(("given", "expected"), [("", "{home}/kernelgauge-history"), ("s3://b/h x", "s3://b/h x")])
def test_the_night_is_strict_and_goes_into_the_history(installed, given, expected):
    history = expected.format(home=installed.folder / "home")
    workflow = load("nightly.yml")
    run_step(installed, step(workflow, "Measure and judge"), HISTORY=given)
    run_step(installed, step(workflow, "Trend"), HISTORY=given)
    options = ["--perf-device", "cuda", "--perf-strict", "--junitxml", "reports/latest/junit.xml"]
    assert installed.calls("pytest") == [["perf", *options, "--perf-history", history]]
    assert installed.calls("kernelgauge") == [["trend", "--history", history, "--html", "reports/latest/trend.html"]]


@pytest.mark.parametrize(
    "expression", ["", "mlp or linear", "(a and b) or c", "$(touch seen) `touch seen`; touch seen"]
)
def test_a_pull_request_is_measured_with_the_expression_as_one_argument(installed, expression):
    done = run_step(installed, step(load("pre-merge.yml"), "Measure and judge"), EXPRESSION=expression)
    assert done.returncode == 0
    assert installed.calls("pytest") == [
        ["perf", "-k", expression, "--perf-device", "cuda", "--junitxml", "reports/latest/junit.xml"]
    ]
    assert not (installed.work / "seen").exists()


@pytest.mark.parametrize("code", PYTEST_CODES)
def test_a_pull_request_ends_as_pytest_ends(installed, code):
    done = run_step(installed, step(load("pre-merge.yml"), "Measure and judge"), CODE=str(code), EXPRESSION="mlp")
    assert done.returncode == code


@pytest.mark.parametrize(("code", "ends_with"), [(0, 0), (1, 0), (2, 2), (3, 3), (4, 4), (5, 5)])
def test_an_upgrade_is_reviewed_when_something_moved_and_not_when_nothing_was_measured(installed, code, ends_with):
    done = run_step(installed, step(load("upgrade.yml"), "Measure"), CODE=str(code))
    assert done.returncode == ends_with
    assert not any("--perf-update" in argument for call in installed.calls("pytest") for argument in call)


@pytest.mark.parametrize(("code", "ends_with"), [(0, 0), (1, 0), (2, 2), (130, 130)])
def test_the_review_goes_into_the_summary_and_fails_only_where_there_is_none(installed, code, ends_with):
    done = run_step(installed, step(load("upgrade.yml"), "Review"), CODE=str(code))
    assert done.returncode == ends_with
    assert installed.calls("kernelgauge") == [["review", "reports/latest", "--markdown"]]
    assert (installed.folder / "GITHUB_STEP_SUMMARY").read_text().startswith("output of ")


# -- what a pull request selects ------------------------------------------------------------------------------------


@pytest.fixture
def repository(sandbox: Sandbox) -> Sandbox:
    """A checkout as the workflow finds it: the tools in .github, a branch that is merged into."""
    github = sandbox.work / ".github"
    github.mkdir()
    shutil.copy(TEMPLATES / "changed.py", github)
    (github / "perf-map.txt").write_text("docs/** -> -\nmlp.py -> mlp\n")
    git(sandbox, "init", "--quiet", "--initial-branch", "main")
    (sandbox.work / "mlp.py").write_text("a\n" * 50)
    commit(sandbox, "base")
    return sandbox


def git(sandbox: Sandbox, *arguments: str) -> None:
    names = {f"GIT_{who}_{what}": "x" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    done = sandbox.run("git", *arguments, **names)
    assert done.returncode == 0, done.stderr


def commit(sandbox: Sandbox, message: str) -> None:
    git(sandbox, "add", "--all")
    git(sandbox, "commit", "--quiet", "--message", message)


def merged_pull_request(sandbox: Sandbox, **files: str) -> None:
    """What GitHub checks out: two commits of a branch, merged into a main that has moved on."""
    git(sandbox, "switch", "--quiet", "--create", "branch")
    for name, text in files.items():
        path = sandbox.work / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        commit(sandbox, name)
    git(sandbox, "switch", "--quiet", "main")
    (sandbox.work / "of-somebody-else.py").write_text("x\n")
    commit(sandbox, "main moves on")
    git(sandbox, "merge", "--quiet", "--no-ff", "--message", "merge", "branch")


def outputs(sandbox: Sandbox) -> list[str]:
    return (sandbox.folder / "GITHUB_OUTPUT").read_text().splitlines()


def test_what_the_branch_changed_is_selected_and_what_others_changed_is_not(repository):
    merged_pull_request(repository, **{"docs/a.md": "x", "mlp.py": "b"})
    done = run_step(repository, step(load("pre-merge.yml"), "Select"))
    assert done.returncode == 0, done.stderr
    assert outputs(repository) == ["run=some", "expression=mlp"]
    assert '"mlp.py": -k mlp (the map)' in done.stdout
    assert '"mlp.py": -k mlp (the map)' in (repository.folder / "GITHUB_STEP_SUMMARY").read_text()


def test_a_branch_that_can_move_nothing_says_so_in_the_summary(repository):
    merged_pull_request(repository, **{"docs/a.md": "x", "docs/```": "x"})
    assert run_step(repository, step(load("pre-merge.yml"), "Select")).returncode == 0
    assert outputs(repository) == ["run=nothing", "expression="]
    summary = (repository.folder / "GITHUB_STEP_SUMMARY").read_text()
    assert summary.startswith("Nothing is measured: no changed file can move a time.\n")
    assert [line for line in summary.splitlines() if line.startswith("```")] == ["```text", "```"]


def test_a_file_that_was_moved_away_counts_as_changed(repository):
    git(repository, "switch", "--quiet", "--create", "branch")
    (repository.work / "docs").mkdir()
    git(repository, "mv", "mlp.py", "docs/mlp.py")
    commit(repository, "moved")
    git(repository, "switch", "--quiet", "main")
    git(repository, "merge", "--quiet", "--no-ff", "--message", "merge", "branch")
    assert run_step(repository, step(load("pre-merge.yml"), "Select")).returncode == 0
    assert outputs(repository) == ["run=some", "expression=mlp"]


@pytest.mark.parametrize("name", [".github/perf-map.txt", ".github/changed.py", "new.py", "a\nb"])
def test_whatever_the_map_does_not_know_runs_the_whole_suite(repository, name):
    path = repository.work / name
    merged_pull_request(repository, **{name: (path.read_text() if path.exists() else "") + "# changed\n"})
    assert run_step(repository, step(load("pre-merge.yml"), "Select")).returncode == 0
    assert outputs(repository) == ["run=all", "expression="]


def test_a_map_that_cannot_be_read_fails_the_step_and_answers_nothing(repository):
    merged_pull_request(repository, **{".github/perf-map.txt": "nonsense"})
    done = run_step(repository, step(load("pre-merge.yml"), "Select"))
    assert done.returncode == 2
    assert "perf-map.txt, line 1" in done.stdout
    assert outputs(repository) == []


def test_a_history_that_is_too_short_for_the_difference_fails_the_step(repository):
    done = run_step(repository, step(load("pre-merge.yml"), "Select"))  # one commit: there is no HEAD^1
    assert done.returncode != 0
    assert outputs(repository) == []


def test_only_the_answer_nothing_keeps_the_gpu_job_from_running():
    assert load("pre-merge.yml")["jobs"]["performance"]["if"] == "needs.changed.outputs.run != 'nothing'"
