"""The workflows of GitHub Actions: valid, and safe on a runner of one's own."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("yaml", reason="the workflows are read with PyYAML: pip install pyyaml")

from .sandbox import TEMPLATES, shellcheck
from .workflows import WORKFLOWS, load, run_steps, step

NAMES = [path.name for path in WORKFLOWS]


def checker(name: str) -> str:
    program = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if program is None:
        pytest.skip(f"{name} is not installed: pip install {name}")
    return program


def checked(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


# -- valid ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_workflow_is_valid_by_the_schema(name):
    path = TEMPLATES / "github-actions" / name
    done = checked(checker("check-jsonschema"), "--builtin-schema", "vendor.github-workflows", str(path))
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_schema_refuses_a_workflow_with_a_mistake(tmp_path):
    text = (TEMPLATES / "github-actions" / "nightly.yml").read_text()
    (tmp_path / "broken.yml").write_text(text.replace("runs-on:", "run-on:"))
    done = checked(
        checker("check-jsonschema"), "--builtin-schema", "vendor.github-workflows", str(tmp_path / "broken.yml")
    )
    assert done.returncode != 0


@pytest.mark.parametrize("name", NAMES)
def test_zizmor_finds_no_security_fault_in_a_workflow(name):
    path = TEMPLATES / "github-actions" / name
    done = checked(checker("zizmor"), "--offline", "--quiet", str(path))
    assert done.returncode == 0, done.stdout + done.stderr


def test_zizmor_finds_the_fault_of_an_input_that_is_pasted_into_a_script(tmp_path):
    text = (TEMPLATES / "github-actions" / "upgrade.yml").read_text()
    (tmp_path / "broken.yml").write_text(text.replace("code=0\n", "code=0\n          echo ${{ inputs.runner }}\n"))
    done = checked(checker("zizmor"), "--offline", "--quiet", str(tmp_path / "broken.yml"))
    assert done.returncode != 0
    assert "template-injection" in done.stdout + done.stderr


STEPS = [(name, title, text) for name in NAMES for title, text in run_steps(load(name))]


@pytest.mark.parametrize(("name", "title", "text"), STEPS, ids=[f"{name}: {title}" for name, title, _ in STEPS])
def test_shellcheck_finds_nothing_in_a_step(name, title, text):
    assert shellcheck("set -eo pipefail\n" + text) == ""


def test_shellcheck_finds_a_variable_without_quotes():
    text = step(load("pre-merge.yml"), "Measure and judge").replace('"$EXPRESSION"', "$EXPRESSION")
    assert "SC2086" in shellcheck(text)


# -- safe -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "title", "text"), STEPS, ids=[f"{name}: {title}" for name, title, _ in STEPS])
def test_no_expression_of_github_stands_in_a_script(name, title, text):
    assert "${{" not in text


@pytest.mark.parametrize("name", NAMES)
def test_a_workflow_has_no_permission_but_to_read_the_code(name):
    workflow = load(name)
    assert workflow["permissions"] == {}
    assert {json.dumps(job["permissions"]) for job in workflow["jobs"].values()} == {'{"contents": "read"}'}
    checkouts = [
        each for job in workflow["jobs"].values() for each in job["steps"] if "checkout" in each.get("uses", "")
    ]
    assert checkouts
    assert all(each["with"]["persist-credentials"] is False for each in checkouts)


@pytest.mark.parametrize("name", NAMES)
def test_every_action_is_pinned_to_a_commit_and_names_its_version(name):
    used = re.findall(r"uses: (.*)", (TEMPLATES / "github-actions" / name).read_text())
    assert used
    assert all(re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", each) for each in used)


@pytest.mark.parametrize("name", NAMES)
def test_every_job_and_every_measuring_step_ends_in_time_and_the_step_before_the_job(name):
    for job in load(name)["jobs"].values():
        measuring = [each for each in job["steps"] if "pytest perf" in each.get("run", "")]
        assert all(each["timeout-minutes"] < job["timeout-minutes"] for each in measuring)


@pytest.mark.parametrize("name", NAMES)
def test_two_jobs_never_time_on_one_gpu_and_none_that_waits_is_dropped(name):
    workflow = load(name)
    on_the_gpu = [job for job in workflow["jobs"].values() if "self-hosted" in job["runs-on"]]
    assert on_the_gpu
    for job in on_the_gpu:
        assert job.get("concurrency", workflow.get("concurrency")) == {
            "group": "kernelgauge-gpu",
            "cancel-in-progress": False,
            "queue": "max",
        }


@pytest.mark.parametrize("name", NAMES)
def test_reports_are_kept_whatever_came_before(name):
    last = [job["steps"][-1] for job in load(name)["jobs"].values() if "self-hosted" in job["runs-on"]]
    assert last
    for upload in last:
        assert "upload-artifact" in upload["uses"]
        assert upload["if"] == "${{ always() }}"
        assert upload["with"]["if-no-files-found"] == "error"


def test_no_workflow_runs_with_the_rights_of_the_repository_on_the_code_of_a_pull_request():
    events = {name: set(load(name)[True]) for name in NAMES}
    assert events == {
        "nightly.yml": {"schedule", "workflow_dispatch"},
        "pre-merge.yml": {"pull_request"},
        "upgrade.yml": {"workflow_dispatch"},
    }


def test_a_pull_request_is_measured_only_from_a_branch_of_the_repository_and_with_the_label():
    jobs = load("pre-merge.yml")["jobs"]
    assert jobs["changed"]["if"].split(" && ") == [
        "github.event.pull_request.head.repo.full_name == github.repository",
        "contains(github.event.pull_request.labels.*.name, 'perf')",
        "(github.event.action != 'labeled' || github.event.label.name == 'perf')",  # not again for another label
    ]
    assert jobs["performance"]["needs"] == "changed"  # skipped with it
    assert "always()" not in jobs["performance"]["if"]
