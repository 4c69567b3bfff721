"""The templates are valid and safe, and use options and commands that exist."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kernelgauge.cli import main

ROOT = Path(__file__).parents[1]
TEMPLATES = ROOT / "templates"
# The environment of this Python, whether it is active or not.
PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])


def names(pattern: str) -> list[str]:
    return sorted(path.relative_to(TEMPLATES).as_posix() for path in TEMPLATES.glob(pattern))


def check(program: str, *arguments: str, text: str = "") -> None:
    found = shutil.which(program, path=PATH)
    if found is None:
        pytest.skip(f"{program} is not installed: it is in the extra 'templates'")
    done = subprocess.run(
        [found, *arguments], input=text, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def check_shell(text: str) -> None:
    check("shellcheck", "--shell=bash", "--enable=quote-safe-variables", "-", text=text)


@pytest.mark.parametrize("name", names("github-actions/*.yml"))
def test_workflow_is_valid_and_safe(name):
    yaml = pytest.importorskip("yaml")
    path = TEMPLATES / name
    check("check-jsonschema", "--builtin-schema", "vendor.github-workflows", str(path))
    check("zizmor", "--offline", "--quiet", str(path))
    for job in yaml.safe_load(path.read_text())["jobs"].values():
        for step in job["steps"]:
            check_shell(f"set -eo pipefail\n{step.get('run', ':')}\n")


GH = """#!/bin/sh
case "$1 $2" in
"run download") cp -a "$FAKE/artifact" artifact ;;
"pr comment") cp "$5" "$FAKE/created-$3" ;;
"api --silent") echo "$5" > "$FAKE/edited" ;;
"api repos/"*/pulls) jq -r "$4" "$FAKE/pulls.json" ;;
"api repos/"*/comments) jq -r "$5" "$FAKE/comments.json" ;;
esac
"""


def pull(number: int, **head: str) -> dict[str, Any]:
    repo = {"full_name": head.get("fork", "ann/model")}
    return {
        "number": number,
        "state": "open",
        "head": {"sha": head.get("sha", "abc"), "ref": "fast", "repo": repo},
    }


@pytest.mark.parametrize("is_link", [False, True])
def test_comment_goes_to_its_own_pull_request_alone(tmp_path, is_link):
    """With stand-ins for GitHub.

    The artifact of a stranger has a link to a secret, or a text with a mention.
    """
    yaml = pytest.importorskip("yaml")
    if shutil.which("jq") is None:
        pytest.skip("jq is not installed")
    (step,) = yaml.safe_load((TEMPLATES / "github-actions/comment.yml").read_text())["jobs"][
        "comment"
    ]["steps"]
    report = tmp_path / "artifact" / "latest" / "report.md"
    report.parent.mkdir(parents=True)
    (tmp_path / "secret").write_text("a token")
    report.symlink_to(tmp_path / "secret") if is_link else report.write_text(
        "REGRESSED, says @everybody"
    )
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "gh").write_text(GH)
    (tmp_path / "bin" / "gh").chmod(0o755)
    pulls = [pull(1, fork="eve/model"), pull(2, sha="def"), pull(3)]
    (tmp_path / "pulls.json").write_text(json.dumps(pulls))

    def run(**changes: str) -> None:
        given = {
            "GH_REPO": "org/model",
            "COMMIT": "abc",
            "BRANCH": "fast",
            "FORK": "ann/model",
            "RUN": "7",
            "WORKFLOW": "1",
        } | changes
        path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
        environment = (
            os.environ
            | given
            | {"FAKE": str(tmp_path), "PATH": path, "GITHUB_SERVER_URL": "https://github.com"}
        )
        command = ["bash", "-eo", "pipefail", "-c", step["run"]]
        done = subprocess.run(
            command,
            cwd=tmp_path / "bin",
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == int(is_link and "FORK" not in changes), done.stderr
        shutil.rmtree(tmp_path / "bin" / "artifact", ignore_errors=True)

    (tmp_path / "comments.json").write_text("[]")
    run(FORK="eve/other")
    run()
    created = tmp_path / "created-3"
    assert list(tmp_path.glob("created-*")) == ([] if is_link else [created])
    if not is_link:
        assert "@\u200beverybody" in created.read_text()
        comment = {"id": 5, "user": {"login": "github-actions[bot]"}, "body": created.read_text()}
        (tmp_path / "comments.json").write_text(
            json.dumps([comment, comment | {"id": 6, "body": "of another job"}])
        )
        run()
        assert (tmp_path / "edited").read_text().strip() == "repos/org/model/issues/comments/5"
        created.unlink()
        run(WORKFLOW="2")  # of another workflow: a comment of its own
        assert "kernelgauge 2" in created.read_text()


@pytest.mark.parametrize("name", names("kubernetes/*.yaml"))
def test_manifests_are_valid(name):
    yaml = pytest.importorskip("yaml")
    checker = pytest.importorskip("kubernetes_validate")
    for manifest in yaml.safe_load_all((TEMPLATES / name).read_text()):
        for version in ("1.29", checker.latest_version()):
            checker.validate(manifest, version, strict=True)
        [container] = manifest["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
        assert container["command"] == ["bash", "-euo", "pipefail", "-c"]
        check_shell("set -euo pipefail\n" + container["args"][0])


def test_slurm_night_keeps_its_results_and_exit_code(tmp_path):
    """The suite is red, and the results are kept all the same."""
    script = TEMPLATES / "slurm" / "nightly.sbatch"
    check_shell(script.read_text())
    keeps = 'for each; do case $each in *reports=*) mkdir -p "${each#*=}/latest"; echo "$each" > "${each#*=}/latest/results.json"; esac; done'
    for name, text in {"srun": 'exec "$@"', "nvidia-smi": "", "pytest": f"{keeps}; exit 1"}.items():
        (tmp_path / name).write_text(f'#!/usr/bin/env bash\necho "{name} $*" >> "$CALLS"\n{text}\n')
        (tmp_path / name).chmod(0o755)
    environment = {
        "PATH": f"{tmp_path}:{os.defpath}:/usr/bin:/bin",
        "CALLS": str(tmp_path / "calls"),
    }
    assert (
        subprocess.run(
            ["bash", script], cwd=tmp_path, env=environment, timeout=60, check=False
        ).returncode
        == 1
    )
    calls = [shlex.split(call) for call in (tmp_path / "calls").read_text().splitlines()]
    [reports] = (each for each in calls[2] if each.startswith("kernelgauge_reports="))
    [kept] = (tmp_path / "history").rglob("*.json")
    assert kept.read_text().strip() == reports


def test_containerfile_copies_what_the_build_needs():
    text = (TEMPLATES / "Containerfile").read_text().replace("\\\n", " ")
    for command in re.findall(r"(?m)^RUN (.*)", text):
        check_shell(f': "$TORCH_INDEX" "$TORCH"\n{command}\n')
    copied = {
        source for line in re.findall(r"(?m)^COPY (.*)", text) for source in line.split()[:-1]
    }
    assert copied == {"pyproject.toml", "README.md", "LICENSE", "src"}
    [user] = re.findall(r"(?m)^USER (\d+)", text)
    assert f"runAsUser: {user}\n" in (TEMPLATES / "kubernetes" / "cronjob.yaml").read_text()


def test_options_and_commands_of_the_templates_exist(pytestconfig, capsys):
    text = "\n".join((TEMPLATES / name).read_text() for name in names("*/*"))
    unknown = object()
    options = set(re.findall(r"--perf-[a-z-]+[a-z]", text))
    assert "--perf-strict" in options
    assert unknown not in {pytestconfig.getoption(option, default=unknown) for option in options}
    commands = re.findall(r"kernelgauge ([a-z-]+) (?=[\"$r-])(.*)", text.replace("\\\n", " "))
    assert {command for command, _ in commands} == {"bisect", "compare", "history", "review"}
    for command, arguments in commands:
        with pytest.raises(SystemExit):
            main([command, "--help"])
        known = capsys.readouterr().out
        assert all(
            option in known for option in re.findall(r"--[a-z]+", arguments.partition(" -- ")[0])
        ), command
